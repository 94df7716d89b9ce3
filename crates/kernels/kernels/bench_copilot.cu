/// The benchmark's kernel over `copilot` queue pairs; with blocks of up to 32 warps.
#include <sidecore/copilot.h>

#include "bench_queue.h"

SC_KERNEL_LIMITED(sidecore_bench_copilot, sidecore::abi::QueueBenchArgs, args, 64) {
  bench::work<bench::QueueLink<sidecore::Copilot>>(args);
}
