#!/usr/bin/env bash
# Compares paths `posix` and `uring` of `sidecore bench` with fio on the same file, interleaved.
#
# usage: benches/fio.sh [cached|direct] [ROUNDS] [SECONDS]
# Many short rounds tell more than a few long ones: a virtual machine's speed changes from one second to
# the next. Who goes first alternates.
#
# Like for like: 4 KiB random reads with repetition allowed between passes, into host memory, nothing
# verified on either side, no cache dropped before, the same file. io_uring: depth 32 with registered
# file and fixed buffers, eight submitted and reaped together on both sides; psync: 32 threads. Prints
# each pair, the medians, and the median of the pairs' ratios (a pair shares what else the machine did
# at that time); fails where that is below 0.95.
set -eu
mode=${1:-cached}; rounds=${2:-15}; seconds=${3:-1}
cd "$(dirname "$0")/.."
command -v fio >/dev/null || { echo "fio is not installed (package fio)"; exit 2; }
cargo build --release --quiet
sidecore=target/release/sidecore
folder=$(mktemp -d "${FIO_DIR:-${TMPDIR:-/tmp}}/sidecore-fio-XXXXXX"); trap 'rm -rf "$folder"' EXIT
file=$folder/data
head -c $((192 << 20)) /dev/urandom > "$file"; sync "$file"
case $mode in
  cached) direct=0; cache=cached; cat "$file" > /dev/null ;;
  direct) direct=1; cache=direct ;;
  *) echo "mode is cached or direct, not $mode"; exit 2 ;;
esac
common=(--name=a --filename="$file" --rw=randread --bs=4k --direct=$direct --invalidate=0
  --norandommap --time_based --runtime="$seconds" --minimal --terse-version=3 --thread
  --group_reporting --randrepeat=0 --gtod_reduce=0)
fio_iops() { fio "${common[@]}" "$@" | awk -F';' '{ print $8 }'; }
fio_uring() {
  fio_iops --ioengine=io_uring --iodepth=32 --iodepth_batch_submit=8 \
    --iodepth_batch_complete_min=8 --iodepth_batch_complete_max=32 --fixedbufs --registerfiles
}
fio_posix() { fio_iops --ioengine=psync --numjobs=32; }
ours() {
  "$sidecore" bench --path "$1" --file "$file" --memory host --verify none --io-size 4k \
    --cache "$cache" --repeats 1 --duration "$seconds" --json
}
field() { sed -n "s/.*\"$1\":\([0-9.]*\).*/\1/p"; }
median() { sort -g | awk '{ v[NR] = $1 } END { print (NR % 2) ? v[(NR+1)/2] : (v[NR/2]+v[NR/2+1])/2 }'; }
status=0
for path in uring posix; do
  : > "$folder/fio"; : > "$folder/ours"; : > "$folder/ratio"
  for round in $(seq "$rounds"); do
    if ((round % 2)); then theirs=$(fio_$path); row=$(ours $path)
    else row=$(ours $path); theirs=$(fio_$path); fi
    mine=$(field iops <<< "$row")
    echo "$theirs" >> "$folder/fio"; echo "$mine" >> "$folder/ours"
    awk -v a="$theirs" -v b="$mine" 'BEGIN { print b / a }' >> "$folder/ratio"
    awk -v p=$path -v r="$round" -v a="$theirs" -v b="$mine" -v f="$(field in_flight_mean <<< "$row")" \
      -v s="$(field syscalls <<< "$row")" -v n="$(field ios <<< "$row")" 'BEGIN {
        printf "%s %s: fio %.0f IOPS, sidecore %.0f IOPS, ratio %.3f, in flight %.1f, system calls an I/O %.3f\n",
          p, r, a, b, b / a, f, s / n }'
  done
  awk -v p=$path -v m="$mode" -v a="$(median < "$folder/fio")" -v b="$(median < "$folder/ours")" \
    -v r="$(median < "$folder/ratio")" 'BEGIN {
    printf "%s %s: median fio %.0f, sidecore %.0f, median ratio %.3f\n", p, m, a, b, r
    exit !(r >= 0.95) }' || status=1
done
exit $status
