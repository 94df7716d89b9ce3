/// The benchmark's kernel over request rings.
#include "bench_ring.h"

SC_KERNEL(sidecore_bench_ring, sidecore::abi::BenchArgs, args) {
  bench::work<bench::RingLink>(args);
}
