/// The benchmark's kernel over `bam` queue pairs.
#include <sidecore/bam.h>

#include "bench_queue.h"

SC_KERNEL(sidecore_bench_bam, sidecore::abi::QueueBenchArgs, args) {
  bench::work<bench::QueueLink<sidecore::Bam>>(args);
}
