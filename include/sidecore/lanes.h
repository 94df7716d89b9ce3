/// Who takes part in a call, and how what it asked for stands: the same for rings and queue pairs.
#pragma once

#include "impl/abi__types.h"
#include "impl/arch.h"

namespace sidecore {

/// A wait without a deadline.
constexpr u64 FOREVER = ~0ull;

/// Who takes part in a call: lanes of one warp, the caller among them.
struct Lanes {
  u32 mask;

  /// The lanes of this warp that are here now.
  /// Participants: warp (whoever is there). Order: none. Effects: none.
  /// Blocks: as `arch::active_mask`.
  SC_DEVICE static Lanes here() { return Lanes{arch::active_mask()}; }

  /// The caller alone.
  /// Participants: thread. Order: none. Blocks: never. Effects: none.
  SC_DEVICE static Lanes alone() { return Lanes{1u << arch::lane_index()}; }
};

/// How a request stands, or ended.
struct Completion {
  /// A drive's status unchanged, or one of `sidecore::status`.
  u16 status;
  /// Bytes moved; an errno where the status is OS.
  u32 detail;

  /// Whether all bytes asked for were moved.
  /// Participants: thread. Order: none. Blocks: never. Effects: none.
  SC_DEVICE bool ok() const { return status == status::SUCCESS; }
};

}  // namespace sidecore
