/// The benchmark's kernel over `copilot` queue pairs, with a warp a block that waits for the others.
#include <sidecore/copilot.h>

#include "bench_queue.h"

SC_KERNEL_LIMITED(sidecore_bench_copilot_agent, sidecore::abi::QueueBenchArgs, args, 64) {
  bench::work_by_agent<bench::QueueLink<sidecore::Copilot>>(args);
}
