#!/bin/bash
# Every row of the ring on one H200 in one run: scripts/h200.sh BINARY RESULTS.jsonl [SECONDS]
# Needs NVIDIA's driver, NVRTC 12.3 or newer, for the window a Vulkan loader, libglvnd and libX11, and
# 16 GiB of /dev/shm. Build elsewhere (cargo build --release -p sidecore-cli); carry the binary and scripts/.
# Then: scripts/h200.py scripts/h200-goals.toml COMMIT H200 RESULTS.jsonl
S=${1:?the binary}
RESULTS=${2:?where the rows go}
HERE=$(dirname "$0")
nvidia-smi -L
mount -o remount,size=64G /dev/shm
"$S" bench suite "$HERE/h200.rows" --gpu 0 --dir /dev/shm --size 4G --repeats 5 --duration 3s \
  --limit "${3:-900}s" >"$RESULTS"
