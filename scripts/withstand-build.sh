#!/bin/bash
# Builds what scripts/withstand.sh runs, where there is no GPU: scripts/withstand-build.sh FOLDER
# nvcc comes from `cargo xtask test --only device`, or from NVCC.
set -e
OUT=${1:?the folder}
cd "$(dirname "$0")/.."
CUDA=target/tools/cuda/nvidia/cu13
NVCC=${NVCC:-$CUDA/bin/nvcc}
cargo build --release -p sidecore-cli
cargo run -q -p sidecore-xtask -- capi --out "$OUT"
strip -o "$OUT/sidecore" target/release/sidecore
strip --strip-unneeded "$OUT/lib/libsidecore.so.0"
build() {
  LD_LIBRARY_PATH=$CUDA/lib "$NVCC" -std=c++17 -O2 -x cu -arch=sm_90 -Iinclude "$1" -o "$OUT/$2" -L"$OUT/lib" -lsidecore \
    -L$CUDA/lib -Xlinker -rpath,'$ORIGIN/lib'
}
build tests/foreign/foreign.cpp foreign
build tests/c_api/reset.cpp reset
build examples/cuda/position_sum.cu position_sum
cp examples/cuda/position_sum.py examples/cuda/position_sum_kernel.cu scripts/withstand.sh "$OUT"
du -sh "$OUT"
