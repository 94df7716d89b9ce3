/// How finely the GPU's clock ticks, which every time that a kernel takes rests on.
#include <sidecore/impl/abi__types.h>
#include <sidecore/impl/arch.h>

namespace {

using namespace sidecore;

struct ClockArgs {
  u64 smallest_ns;  // device address of a word: the smallest step seen between two readings
  u64 readings;
};

}  // namespace

SC_KERNEL(sidecore_clock, ClockArgs, args) {
  if (arch::block_index() != 0 || arch::thread_index() != 0) return;
  u64 smallest = ~0ull;
  u64 before = arch::timer_ns();
  for (u64 reading = 0; reading < args.readings; ++reading) {
    const u64 now = arch::timer_ns();
    if (now != before && now - before < smallest) smallest = now - before;
    before = now;
  }
  arch::store_relaxed(reinterpret_cast<u64*>(args.smallest_ns), smallest);
}
