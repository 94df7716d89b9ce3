/// The benchmark's kernel over request rings, with a warp a block that waits for the others.
#include "bench_ring.h"

SC_KERNEL(sidecore_bench_ring_agent, sidecore::abi::BenchArgs, args) {
  bench::work_by_agent<bench::RingLink>(args);
}
