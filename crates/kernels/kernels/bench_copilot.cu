/// The benchmark's kernel over `copilot` queue pairs.
#include <sidecore/copilot.h>

#include "bench_queue.h"

SC_KERNEL(sidecore_bench_copilot, sidecore::abi::QueueBenchArgs, args) {
  bench::work<bench::QueueLink<sidecore::Copilot>>(args);
}
