#!/bin/bash
# What the device side must withstand on a real GPU: scripts/withstand.sh FOLDER RESULTS.jsonl
#
# FOLDER holds what was built elsewhere (scripts/withstand-build.sh makes it): sidecore, foreign, position_sum,
# reset, position_sum.py, position_sum_kernel.cu, include/ and lib/. Needs NVIDIA's driver, NVRTC, a Vulkan
# loader for the window; compute-sanitizer and CuPy for the rows of that name. Each row ends as PASS, FAIL or
# NOT MEASURED, with what was seen.
HERE=$(cd "${1:?the folder}" && pwd)
RESULTS=${2:?where the rows go}
: > "$RESULTS"
S=$HERE/sidecore
export LD_LIBRARY_PATH=$HERE/lib:$LD_LIBRARY_PATH SIDECORE_HOME=$HERE
cd /tmp || exit 1
ONLY=${ONLY:-.}

row() { # NAME VERDICT WHAT
  printf '%-13s %-26s %s\n' "$2" "$1" "$3"
  python3 - "$1" "$2" "$3" >> "$RESULTS" <<'P'
import json, sys
print(json.dumps(dict(zip(("row", "verdict", "seen"), sys.argv[1:]))))
P
}
wanted() { [[ $1 =~ $ONLY ]]; }
# expect NAME PATTERN COMMAND...: it ends well and prints the pattern.
expect() {
  local name=$1 pattern=$2; shift 2
  wanted "$name" || return
  local t0=$SECONDS
  timeout "${LIMIT:-60}" "$@" > o 2> e; local rc=$?
  local seen; seen=$(grep -E -m1 -- "$pattern" o e | cut -c1-300)
  if [ $rc -eq 0 ] && [ -n "$seen" ]; then row "$name" PASS "$seen ($((SECONDS - t0)) s)"
  else row "$name" FAIL "rc $rc after $((SECONDS - t0)) s: $(tail -n 4 o e | tr '\n' ' ' | cut -c1-600)"; fi
}
used() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits; }

nvidia-smi -L
"$S" selftest --gpu 0 --json a_view_of_another_version_is_refused > o 2> e  # compiles what is not cached
NAME=$(python3 -c 'import json; print(json.loads(open("o").readline())["gpu"])' 2> /dev/null)
case $NAME in ''|simulated*) row gpu FAIL "no real GPU: $NAME $(head -c 300 e)"; exit 1;; *) row gpu PASS "$NAME";; esac

# The device side's cases, each a row.
if wanted selftest; then
  timeout 150 "$S" selftest --gpu 0 --json > cases 2> e
  while read -r line; do
    python3 -c 'import json,sys; r=json.loads(sys.argv[1]); print(r["selftest"], "PASS" if r["passed"] else "FAIL", "%.2f s %s" % (r["seconds"], (r["why"] or "")[:1500].replace("\n"," ")))' "$line" > one
    read -r name verdict seen < one; row "case:$name" "$verdict" "$seen"
  done < cases
  listed=$("$S" selftest --list | sort | md5sum); ran=$(python3 -c 'import json; [print(json.loads(l)["selftest"]) for l in open("cases")]' | sort | md5sum)
  [ "$listed" = "$ran" ] && row cases-all-run PASS "$(wc -l < cases) of the list" || row cases-all-run FAIL "$(wc -l < cases) ran; $(tail -n 2 e)"
fi

# Lanes that fill queues, again and again.
for case in lanes_write_over_a_queue_that_is_always_full lanes_move_every_byte_over_queue_pairs_in_all_placements; do
  wanted repeated || break
  timeout 90 "$S" selftest --gpu 0 --json --repeat 400 --within "${REPEATED:-15s}" $case > o 2> e; rc=$?
  seen=$(python3 -c 'import json; r=json.loads(open("o").readline()); print(r["runs"], "runs in %.1f s" % r["seconds"], (r["why"] or "")[:1500].replace("\n", " "))' 2> /dev/null)
  [ $rc -eq 0 ] && row "repeated:$case" PASS "$seen" || row "repeated:$case" FAIL "rc $rc: $seen $(tail -n 2 e)"
done

# Memory order: each rule at least 10^8 rounds of lanes.
if wanted litmus; then
  timeout 100 "$S" selftest --gpu 0 --json --litmus "${LITMUS:-1500ms}" > litmus 2> e || row litmus FAIL "$(tail -n 2 e)"
  python3 - > rows <<'P'
import json
for line in open("litmus"):
    r = json.loads(line)
    rounds, seen = r["lanes"]["looks"], r["violations"]
    text = f'{rounds:.3g} rounds of lanes, {r["lanes"]["fresh"]:.3g} new, {r["cpu"]["looks"]:.3g} of the CPU, {seen} violations'
    if r["right"]:
        print(f'litmus:{r["litmus"]}', "PASS" if seen == 0 and rounds >= 1e8 else "FAIL", text)
    else:
        verdict = "PASS" if seen else "NOT-SHOWN"
        print(f'litmus-twin:{r["litmus"]}', verdict, r["left_out"] + ": " + text)
P
  while read -r name verdict seen; do row "$name" "$verdict" "$seen"; done < rows
fi

# Other people's device code, and CUDA users.
for words in "own 4096 256 host host" "own 16384 64 window host" "lent 8192 256 host window" "lent 4096 16 window window"; do
  expect "foreign:${words// /-}" "0 words wrong" "$HERE/foreign" $words
done
expect foreign-faults " 5 faults" "$HERE/foreign" own 4096 256 host host "error:n=5,op=read"
if wanted users; then
  head -c 20000017 /dev/urandom > data
  sum=$(python3 -c 'import numpy as n; d=n.fromfile("data",dtype=n.uint8).astype(n.uint64); print(int((d*n.arange(1,len(d)+1,dtype=n.uint64)).sum(dtype=n.uint64)))')
  expect users-nvcc "0 failures, sum by position $sum" "$HERE/position_sum" data
  expect users-cupy "0 failures, sum by position $sum" python3 "$HERE/position_sum.py" data
fi
expect context-destroyed-early "^0 wrong" "$HERE/reset"

# Memory checking: it finds what is wrong, and nothing in what is not.
SANITIZER=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2> /dev/null)
if wanted sanitizer; then
  if [ -z "$SANITIZER" ]; then row sanitizer "NOT MEASURED" "no compute-sanitizer here"; else
    timeout 60 "$SANITIZER" --tool memcheck --error-exitcode 9 "$S" selftest --gpu 0 --bad-store > o 2>&1; rc=$?
    seen=$(grep -m1 "Invalid __global__ write" o)
    [ -n "$seen" ] && row sanitizer-finds PASS "rc $rc: $seen" || row sanitizer-finds FAIL "rc $rc: $(tail -n 3 o | tr '\n' ' ')"
    for case in a_view_of_another_version_is_refused lanes_give_up_and_their_records_stay_theirs one_warp_goes_on_at_every_depth; do
      timeout 60 "$SANITIZER" --tool memcheck --error-exitcode 9 "$S" selftest --gpu 0 $case > o 2>&1; rc=$?
      [ $rc -eq 0 ] && grep -q "ERROR SUMMARY: 0 errors" o && row "sanitizer-clean:$case" PASS "$(grep -m1 'ERROR SUMMARY' o)" || row "sanitizer-clean:$case" FAIL "rc $rc: $(grep -m3 '=====' o | tr '\n' ' ' | cut -c1-400)"
    done
  fi
fi

B="$S bench --gpu 0 --json --dir /dev/shm --io-size 4k --size 64M --repeats 1 --side-cores 2"
expect bounce-loaded-lazily '"path":"ring"' env CUDA_MODULE_LOADING=LAZY $B --path ring --route bounce --ios 20000
# Faults inside the drive, on every path on which lanes ask.
for path in ring bam copilot; do
  wanted faults || break
  drive=; [ $path = ring ] && drive="--drive software"
  for script in error:n=40 late:ms=20,n=40 lost:n=8 duplicate:n=40 flip:n=40; do
    timeout 60 $B --path $path $drive --ios 20000 --limit-ms 400 --faults $script --faults-at drive > o 2> e; rc=$?
    python3 - $path $script $rc > one <<'P'
import json, sys
path, script, rc = sys.argv[1:]
kind, n = script.split(":")[0], int(script.split("n=")[1])
try:
    r = json.loads(open("o").readline())
    errors, unverified, ios = r["errors"], r["ios_unverified"], r["ios"]
    want = {"error": (n, 0), "late": (0, 0), "lost": (None, 0), "duplicate": (0, 0), "flip": (0, n)}[kind]
    # A lost command may be sent again by recovery: then nobody sees it.
    good = (errors == want[0] or (kind == "lost" and errors <= n)) and (unverified - errors == want[1] or unverified == want[1])
    print("PASS" if good else "FAIL", f"{ios} I/Os, {errors} errors, {unverified} not verified on {r['gpu']}")
except Exception as error:
    print("FAIL", f"rc {rc}: {error} {open('e').read()[:300]!r}")
P
    read -r verdict seen < one; row "faults:$path:${script%%:*}" "$verdict" "$seen"
  done
done

# Two processes on one GPU.
if wanted two; then
  $B --path ring --ios 200000 > o1 2> e1 & one=$!
  $B --path ring --ios 200000 > o2 2> e2 & two=$!
  wait $one; a=$?; wait $two; b=$?
  [ $a -eq 0 ] && [ $b -eq 0 ] && row two-processes PASS "both verified every byte" || row two-processes FAIL "rc $a and $b: $(head -c 200 e1) $(head -c 200 e2)"
fi

# A process that is killed while lanes wait: the GPU's memory comes back, and a new start works.
if wanted kill; then
  before=$(used)
  $B --path ring --destination 4G --duration 30s > o 2> e & victim=$!
  sleep 6; during=$(used); kill -9 $victim; t0=$(date +%s%N)
  wait $victim 2> /dev/null
  for _ in $(seq 100); do [ "$(used)" -le $((before + 64)) ] && break; sleep 0.1; done
  freed=$((($(date +%s%N) - t0) / 1000000)); after=$(used)
  timeout 20 $B --path ring --ios 20000 > o 2> e; rc=$?
  again=$((($(date +%s%N) - t0) / 1000000))
  seen="memory used $before, then $during, after the kill $after MiB; free after $freed ms, a new run verified after $again ms"
  [ $rc -eq 0 ] && [ "$during" -gt $((before + 1000)) ] && [ "$after" -le $((before + 64)) ] && [ $again -le 10000 ] && row kill-9 PASS "$seen" || row kill-9 FAIL "rc $rc: $seen $(head -c 200 e)"
  rm -f /dev/shm/sidecore* 2> /dev/null
fi
echo
python3 - "$RESULTS" <<'P'
import collections, json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
print(dict(collections.Counter(row["verdict"] for row in rows)))
P
