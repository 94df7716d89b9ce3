/// Kernels about lanes: collectives, divergence, early exit, shared memory, pauses, broken masks.
#include "sidecore/impl/arch.h"

using namespace sidecore;
using namespace sidecore::arch;

struct LanesArgs {
  u64* out;    // one word a thread of the grid
  u64* gate;   // opened by the host
  u64 count;
};

static u32 global_thread() { return block_index() * block_threads() + thread_index(); }

/// Everything a full or partial mask can be asked.
SC_KERNEL(collectives, LanesArgs, args) {
  const u32 lane = lane_index();
  const u32 evens = 0x55555555u;
  u64 sum = 0;
  if (lane % 2 == 0) {
    sum += ballot(evens, lane % 4 == 0) == 0x11111111u;
    sum += shuffle(evens, lane * 3, lane ^ 2u) == (lane ^ 2u) * 3;
    sum += shuffle(evens, u64{1} << 40 | lane, 30) == (u64{1} << 40 | 30);
  } else {
    const u32 odds = ~evens;
    sum += ballot(odds, true) == odds;
    sum += match_any(odds, lane / 8) == (odds & 0xffu << (lane / 8 * 8));
    sum += any(odds, lane == 7) && !all(odds, lane == 7) && all(odds, true);
  }
  sync_warp(0xffffffffu);
  sum += ballot(0xffffffffu, lane >= 16) == 0xffff0000u;
  store_relaxed(args.out + global_thread(), sum);
}

/// Lanes leave one by one; those left go on among themselves.
SC_KERNEL(early_exit, LanesArgs, args) {
  const u32 lane = lane_index();
  for (u32 first = 0; first < 32; ++first) {
    const u32 mask = 0xffffffffu << first;
    const u32 voted = ballot(mask, true);
    if (voted != mask) return;
    args.out[global_thread()] += 1;
    if (lane == first) return;
  }
}

/// A sum over the block through shared memory, with lanes that left before the barrier.
SC_KERNEL(reduce, LanesArgs, args) {
  struct Partial {
    u64 of[1024];
  };
  SC_SHARED(Partial, partial);
  const u32 n = block_threads() - 3;
  const u32 i = thread_index();
  if (i >= n) return;
  partial.of[i] = i + 1 + block_index();
  sync_threads();
  for (u32 stride = 512; stride > 0; stride /= 2) {
    if (i < stride && i + stride < n) partial.of[i] += partial.of[i + stride];
    sync_threads();
  }
  args.out[global_thread()] = partial.of[0];
}

/// Every lane waits for the host's gate, then counts itself.
SC_KERNEL(blocked, LanesArgs, args) {
  fetch_add_device(args.out, u64{1});
  while (load_acquire(args.gate) == 0) pause(20000, "the gate");
  fetch_add_device(args.out + 1, u64{1});
}

/// Lanes come to one place in company.
SC_KERNEL(convergence, LanesArgs, args) {
  const u32 lane = lane_index();
  if (lane == 9) pause(1000, "a late lane");
  const u32 here = active_mask();
  const u32 seen = ballot(here, true);
  args.out[global_thread()] = seen == here && (here >> lane & 1);
}

/// A pause is at least as long as asked.
SC_KERNEL(pauses, LanesArgs, args) {
  const u64 before = timer_ns();
  pause(static_cast<u32>(args.count), "time");
  args.out[global_thread()] = timer_ns() - before;
}

SC_KERNEL(mask_without_caller, LanesArgs, args) {
  args.out[0] = ballot(1u << ((lane_index() + 1) % 32), true);
}

SC_KERNEL(mask_with_returned_lane, LanesArgs, args) {
  if (lane_index() == 5) return;
  args.out[0] = ballot(0xffffffffu, true);
}

SC_KERNEL(shuffle_outside, LanesArgs, args) {
  args.out[0] = shuffle(0xffffffffu, lane_index(), 32);
}

/// Half the warp votes with all, the other half waits for the block.
SC_KERNEL(deadlock, LanesArgs, args) {
  if (lane_index() < 16) {
    args.out[0] = ballot(0xffffffffu, true);
  } else {
    sync_threads();
  }
}
