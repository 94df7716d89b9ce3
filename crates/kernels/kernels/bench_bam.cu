/// The benchmark's kernel over `bam` queue pairs.
///
/// So few registers that 32 warps of it fit on an SM beside 32 warps of a kernel with 16 registers: BaM
/// hides latency by warps, and what they cost a neighbour shall not be that it finds no room.
#include <sidecore/bam.h>

#include "bench_queue.h"

SC_KERNEL_LIMITED(sidecore_bench_bam, sidecore::abi::QueueBenchArgs, args, 48) {
  bench::work<bench::QueueLink<sidecore::Bam>>(args);
}
