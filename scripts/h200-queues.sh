#!/bin/bash
# Rows of bam, copilot and interference on one H200 in one run:
#   scripts/h200-queues.sh BINARY RESULTS.jsonl [SECONDS A REPEAT] [REPEATS] [SECONDS IN ALL]
# First the rows that decide something (recorded 123 s, beside 46, memory 25, stalled 32, placement 36,
# sweeps about 60 each), each form of them interrupted when the time is over: then the rows that were begun
# have fewer repeats, and say so. ALL=1 adds the rest, which takes half an hour.
# Needs what scripts/h200.sh needs. Then: scripts/h200.py scripts/h200-queues-goals.toml COMMIT H200 RESULTS.jsonl
# GPU=simulated SIZE=64M DIR=/tmp and a short time try it where there is no GPU.
S=${1:?the binary}
RESULTS=${2:?where the rows go}
D=${3:-3s}
R=${4:-5}
END=$((SECONDS + ${5:-3600}))
GPU=${GPU:-0}
SIZE=${SIZE:-4G}
DIR=${DIR:-/dev/shm}
VERDICT=$(mktemp -d)/verdict
: >"$RESULTS"
[ "$GPU" = simulated ] || { nvidia-smi -L; mount -o remount,size=64G /dev/shm; }
# Names a form's rows and appends them.
rows() {
  local name=$1 begun=$SECONDS left=$((END - SECONDS))
  shift
  [ $left -lt 5 ] && { echo "$name: no time left"; return; }
  [ -s "$VERDICT" ] && set -- "$@" --baseline "$VERDICT"
  timeout -s INT -k 20 $left "$S" bench "$@" --gpu "$GPU" --size "$SIZE" --dir "$DIR" --json | python3 -c '
import json, sys
for line in sys.stdin:
    row = json.loads(line)
    parts = [sys.argv[1], row["path"]]
    if "slowdown" in row:
        parts.append(str(row["compute_threads"]))
    elif row["setting"] == "recorded":
        limit = "limit" if "1400000 commands/s" in row["drive"] else "unlimited"
        parts += [str(row["sms"]), str(row["warps"]), "q" + str(row["queues"]), limit]
    else:
        parts += [row["setting"], str(row["sms"]), row["sq"], row["cq"]]
    row["row"] = "-".join(part for part in parts if part)
    print(json.dumps(row), flush=True)
' "$name" >>"$RESULTS"
  echo "$name: $((SECONDS - begun)) s, rc ${PIPESTATUS[0]}"
}
C="--duration $D --repeats $R --verify device"
L="--drive-iops 1400000 --drive-latency 60us"
I="interference --repeats $R --pinned-max 8G"
# Of the recorded rows those nearest to what was recorded, that which was once below it, and the fastest.
# Each other row reaches its limit, or at least 1.9 times what was recorded, in short runs.
ONLY=bam-4-1-q16-limit,bam-48-32-q16-limit,copilot-12-1-q16-limit,bam-12-32-q16-unlimited,copilot-96-1-q16-unlimited
rows baseline baseline $C --out "$VERDICT" $([ -n "$ALL" ] || echo "--only $ONLY")
rows beside $I
rows beside-memory $I --path ring --drive memory --queues 8 --side-cores 8
rows stalled $I --stalled --path ring,copilot --io-size 512
C="$C $L --pinned-max 8G"
rows placement placement $C --path bam --sms 12 --warps 32 --queues 16 --host-cores 4 --cq device
rows sweep sweep $C --table matched --sms 4 --warps 2 --queues 8 --depth 2048 --host-cores 4
rows sweep sweep $C --table matched --sms 1 --warps 2 --queues 8 --depth 2048 --host-cores 4
if [ -n "$ALL" ]; then
  rows placement placement $C --path bam --sms 12 --warps 32 --queues 16 --host-cores 4 --cq host
  rows placement placement $C --path copilot --sms 12 --warps 1 --batch 8 --queues 16 --depth 4096 --host-cores 4
  rows sweep sweep $C --sms 2,8,12,24,48,96,132 --warps 2 --queues 8 --depth 2048 --host-cores 4
  [ "$GPU" = simulated ] || "$S" bench copoll --gpu "$GPU"
fi
