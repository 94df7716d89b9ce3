/// Pauses of a lane that looks for something again and again.
#pragma once

#include "arch.h"

namespace sidecore {

/// After `eager` looks with the first pause between them, which is for answers that take microseconds,
/// pauses double to 16 times the first; after 24 more in vain, some tens of microseconds, every 8 looks
/// again, up to 512 times it. So a quick answer is seen at once, a slow one at most about an eighth of
/// its time late, and who waits for a drive that stands still costs neighbours next to nothing.
class Backoff {
 public:
  /// Participants: thread. Order: none. Blocks: never. Effects: this object.
  SC_DEVICE explicit Backoff(u32 first_ns, u32 eager = 0)
      : ns_(first_ns), most_ns_(first_ns * 16), eager_(eager) {}

  /// Looks so far.
  /// Participants: thread. Order: none. Blocks: never. Effects: none.
  SC_DEVICE u32 looks() const { return looks_; }

  /// Pauses once more.
  /// Participants: thread. Order: none. Blocks: for the pause. Effects: this object.
  SC_DEVICE void pause(const char* site) {
    arch::pause(ns_, site);
    looks_ += 1;
    if (looks_ <= eager_) return;
    const u32 late = looks_ - eager_;
    if (ns_ < most_ns_) {
      ns_ *= 2;
    } else if (late >= LOOKS && late % 8 == 0 && late < LOOKS + 8 * 5) {
      ns_ *= 2;
      most_ns_ = ns_;
    }
  }

 private:
  static constexpr u32 LOOKS = 24;
  u32 ns_;
  u32 most_ns_;
  u32 eager_;
  u32 looks_ = 0;
};

}  // namespace sidecore
