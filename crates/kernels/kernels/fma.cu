/// A neighbour that only computes: independent chains of fused multiply-adds, by which another kernel's
/// demand on an SM is seen. It takes few registers, so that much of the SM is left. Each thread whose
/// chains come out right counts, so that nothing is left out; the first thread of each block notes on
/// which SM it ran.
#include <sidecore/lanes.h>

#include <sidecore/impl/abi__types.h>

namespace {

using namespace sidecore;

/// Multiply-adds of a thread in a round, whatever the number of chains.
constexpr u32 ROUND = 64;

template <u32 CHAINS>
SC_DEVICE void compute(const abi::FmaArgs& args) {
  const u32 thread = arch::block_index() * arch::block_threads() + arch::thread_index();
  float chain[CHAINS];
  for (u32 n = 0; n < CHAINS; ++n) chain[n] = static_cast<float>(thread % 1000 + n);
  const float factor = 0.999f, addend = 0.5f;
  for (u32 round = 0; round < args.rounds; ++round) {
    for (u32 step = 0; step < ROUND / CHAINS; ++step) {
      for (u32 n = 0; n < CHAINS; ++n) chain[n] = chain[n] * factor + addend;
    }
  }
  // Each chain goes to 500, whatever it began at.
  bool right = true;
  for (u32 n = 0; n < CHAINS; ++n) right = right && chain[n] > 400.0f && chain[n] < 600.0f;
  if (right) arch::fetch_add_device(reinterpret_cast<u64*>(args.results), 1ull);
  if (arch::thread_index() == 0) {
    u64* const seats = reinterpret_cast<u64*>(args.results) + 1;
    arch::store_relaxed(seats + arch::block_index(), static_cast<u64>(arch::processor_index()));
  }
}

}  // namespace

/// Two warps a scheduler fill the pipe, and one alone does not.
SC_KERNEL(sidecore_fma_2, sidecore::abi::FmaArgs, args) { compute<2>(args); }

/// One warp alone fills its scheduler's pipe: a scheduler that stays with a warp as long as it can go on
/// lets others in but rarely.
SC_KERNEL(sidecore_fma_4, sidecore::abi::FmaArgs, args) { compute<4>(args); }
