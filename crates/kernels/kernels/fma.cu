/// A neighbour that only computes: independent chains of fused multiply-adds, by which another kernel's
/// demand on an SM is seen. Every thread notes its sum, so that nothing is left out; the first thread of
/// each block notes on which SM it ran.
#include <sidecore/lanes.h>

#include <sidecore/impl/abi__types.h>

namespace {

using namespace sidecore;

/// Chains a thread: enough that each SM issues every cycle.
constexpr u32 CHAINS = 4;

}  // namespace

SC_KERNEL(sidecore_fma, abi::FmaArgs, args) {
  const u32 thread = arch::block_index() * arch::block_threads() + arch::thread_index();
  float chain[CHAINS];
  for (u32 n = 0; n < CHAINS; ++n) chain[n] = static_cast<float>(thread % 1000 + n);
  const float factor = 0.999f, addend = 0.5f;
  for (u32 round = 0; round < args.rounds; ++round) {
    for (u32 step = 0; step < 16; ++step) {
      for (u32 n = 0; n < CHAINS; ++n) chain[n] = chain[n] * factor + addend;
    }
  }
  float sum = 0;
  for (u32 n = 0; n < CHAINS; ++n) sum += chain[n];
  // Each chain goes to 500, whatever it began at.
  const u64 right = sum > 1500.0f && sum < 2500.0f ? 1 : 0;
  if (right != 0) arch::fetch_add_device(reinterpret_cast<u64*>(args.results), 1ull);
  if (arch::thread_index() == 0) {
    u64* const seats = reinterpret_cast<u64*>(args.results) + 1;
    arch::store_relaxed(seats + arch::block_index(), static_cast<u64>(arch::processor_index()));
  }
}
