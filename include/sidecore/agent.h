/// Waiting by an agent: one warp of a block looks for the ends of what its other warps wait for, and
/// releases each through a barrier in shared memory, on which the hardware deschedules the waiting warp.
///
/// A CPU cannot signal such a barrier, so a GPU warp looks in its stead; CoPilotIO has the CPU do it. Of
/// a block's warps one looks, whatever the others wait for. A warp is released when all that its lanes
/// wait for has ended, or after a while in vain: then its lanes look at limits and states themselves.
///
///   SC_SHARED(sidecore::WaitBoard, board);
///   board.open(warps - 1);                       // every lane of the block
///   if (warp == warps - 1) { board.serve(lanes, Ring::WORD_MASK); return; }
///   ...  board.wait(lanes, warp, ring.word_of(handle), ring.word_wanted(handle));
///   board.leave(lanes, warp);                    // each warp but the last, when it is done
#pragma once

#include "lanes.h"

namespace sidecore {

class WaitBoard {
 public:
  /// Warps that can wait: all of a block but the agent.
  static constexpr u32 WARPS = 31;

  /// Prepares the board for warps 0 to `warps` - 1.
  /// Participants: block, all lanes. Order: block. Blocks: until all have come. Effects: the board.
  SC_DEVICE void open(u32 warps) {
    if (arch::thread_index() == 0) {
      warps_ = warps;
      for (u32 warp = 0; warp < warps; ++warp) {
        asked_[warp] = served_[warp] = 0;
        arch::barrier_init(&barriers_[warp]);
      }
    }
    arch::sync_threads();
  }

  /// Waits until all lanes named have what they wait for (`word` null: nothing), or for a while in vain.
  /// Participants: the lanes named, of one warp; it has no other wait meanwhile. Order: none; a look of
  ///   the caller's own must follow. Blocks: as said, about a millisecond at most. Effects: the board.
  SC_DEVICE void wait(Lanes lanes, u32 warp, const u64* word, u64 wanted) {
    const u32 lane = arch::lane_index();
    arch::store_block(&words_[warp][lane], reinterpret_cast<u64>(word));
    arch::store_block(&wanted_[warp][lane], wanted);
    arch::sync_warp(lanes.mask);
    const u32 round = arch::load_block(&served_[warp]);
    if (lane == arch::lowest_bit(lanes.mask)) {
      arch::store_block(&masks_[warp], lanes.mask);
      arch::store_block(&asked_[warp], round + 1);
    }
    while (!arch::barrier_try_wait(&barriers_[warp], round & 1, "agent: its barrier")) {
    }
    arch::sync_warp(lanes.mask);
  }

  /// Says that a warp waits for nothing any more.
  /// Participants: the lanes named. Order: none. Blocks: never. Effects: the board.
  SC_DEVICE void leave(Lanes lanes, u32 warp) {
    arch::sync_warp(lanes.mask);
    if (arch::lane_index() == arch::lowest_bit(lanes.mask)) arch::store_block(&asked_[warp], GONE);
  }

  /// Looks for all warps until each has left. How many looks this lane's warp took.
  /// Participants: the agent's lanes, all 32. Order: none. Blocks: as said. Effects: the board.
  SC_DEVICE u32 serve(Lanes lanes, u64 mask) {
    const u32 lane = arch::lane_index();
    u32 looks = 0, pause_ns = PAUSE_NS;
    u64 since_ns = arch::timer_ns();
    for (;;) {
      u32 here = 0;
      bool released = false;
      const bool late = arch::any(lanes.mask, arch::timer_ns() - since_ns >= PATIENCE_NS);
      if (late) since_ns = arch::timer_ns();
      for (u32 warp = 0; warp < warps_; ++warp) {
        const u32 asked = arch::shuffle(lanes.mask, arch::load_block(&asked_[warp]), 0);
        if (asked == GONE) continue;
        here += 1;
        const u32 served = arch::load_block(&served_[warp]);
        if (asked == served) continue;
        const bool waits = (arch::load_block(&masks_[warp]) >> lane & 1) != 0;
        const u64* const word =
            waits ? reinterpret_cast<const u64*>(arch::load_block(&words_[warp][lane])) : nullptr;
        looks += 1;
        const bool over =
            word == nullptr ||
            (arch::load_relaxed(word) & mask) == arch::load_block(&wanted_[warp][lane]);
        if (!arch::all(lanes.mask, over) && !late) continue;
        if (lane == 0) {
          arch::store_block(&served_[warp], asked);
          arch::barrier_arrive(&barriers_[warp]);
        }
        arch::sync_warp(lanes.mask);
        released = true;
      }
      if (here == 0) return looks;
      if (released) {
        pause_ns = PAUSE_NS;
      } else {
        arch::pause(pause_ns, "agent: any end");
        if (pause_ns < PAUSE_NS * 16) pause_ns *= 2;
      }
    }
  }

 private:
  static constexpr u32 GONE = ~0u;
  static constexpr u32 PAUSE_NS = 64;
  /// After so long every warp that waits is released, to look at limits and states itself.
  static constexpr u64 PATIENCE_NS = 1000000;

  u64 barriers_[WARPS];
  u64 words_[WARPS][32];
  u64 wanted_[WARPS][32];
  /// Waits that a warp has asked for, and those that it was released from.
  u32 asked_[WARPS];
  u32 served_[WARPS];
  u32 masks_[WARPS];
  u32 warps_;
};

}  // namespace sidecore
