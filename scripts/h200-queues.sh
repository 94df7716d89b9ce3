#!/bin/bash
# Every row of bam, copilot and interference on one H200 in one run:
#   scripts/h200-queues.sh BINARY RESULTS.jsonl [SECONDS A REPEAT] [REPEATS]
# Needs what scripts/h200.sh needs. Then: scripts/h200.py scripts/h200-queues-goals.toml COMMIT H200 RESULTS.jsonl
S=${1:?the binary}
RESULTS=${2:?where the rows go}
D=${3:-3s}
R=${4:-5}
VERDICT=$(mktemp)
: >"$RESULTS"
nvidia-smi -L
mount -o remount,size=64G /dev/shm
# Names a form's rows and appends them.
rows() {
  local name=$1
  shift
  "$S" bench "$@" --gpu 0 --dir /dev/shm --json | python3 -c '
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
    print(json.dumps(row))
' "$name" >>"$RESULTS"
}
C="--size 4G --duration $D --repeats $R --verify device"
L="--drive-iops 1400000 --drive-latency 60us"
rows baseline baseline $C --out "$VERDICT"
C="$C --baseline $VERDICT $L --pinned-max 8G"
rows placement placement $C --path bam --sms 12 --warps 32 --queues 16 --host-cores 4
rows placement placement $C --path copilot --sms 12 --warps 1 --batch 8 --queues 16 --depth 4096 --host-cores 4
rows sweep sweep $C --sms 1,2,4,8,12,24,48,96,132 --warps 2 --queues 8 --depth 2048 --host-cores 4
I="--repeats $R --size 4G --baseline $VERDICT --pinned-max 8G"
rows beside interference $I
rows beside-memory interference $I --path ring --drive memory --queues 8 --side-cores 8
rows stalled interference $I --stalled --path ring,copilot --io-size 512
"$S" bench copoll --gpu 0
