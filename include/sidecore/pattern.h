/// Self-describing data: every byte follows from its address and its block's generation. The twin of
/// crates/testkit/src/pattern.rs (the formula is there).
#pragma once

#include "impl/arch.h"
#include "impl/types.h"

namespace sidecore {
namespace pattern {

/// Bytes in a block: each starts with its address and generation in clear.
constexpr u64 BLOCK_BYTES = 4096;

/// Mixes 64 bits so that each depends on all.
/// Participants: thread. Order: none. Blocks: never. Effects: none.
SC_DEVICE u64 mix(u64 value) {
  u64 x = (value ^ (value >> 33)) * 0xff51afd7ed558ccdull;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 33);
}

/// The two words of the 16-byte unit that holds the byte at `address`.
/// Participants: thread. Order: none. Blocks: never. Effects: `lo` and `hi`.
SC_DEVICE void unit_words(u64 address, u64 generation, u64& lo, u64& hi) {
  const u64 a = address & ~15ull;
  if (a % BLOCK_BYTES == 0) {
    lo = a;
    hi = generation;
    return;
  }
  lo = mix(a + generation * 0x9e3779b97f4a7c15ull);
  hi = (lo << 29 | lo >> 35) + a;
}

/// The byte at `address`.
/// Participants: thread. Order: none. Blocks: never. Effects: none.
SC_DEVICE u8 byte_at(u64 address, u64 generation) {
  u64 lo, hi;
  unit_words(address, generation, lo, hi);
  const u32 within = static_cast<u32>(address & 15);
  return static_cast<u8>((within < 8 ? lo : hi) >> (within % 8 * 8));
}

/// How many of `bytes` bytes at `memory` are not the pattern of `address` and up.
/// Participants: thread. Order: none; nobody may store there meanwhile. Blocks: never.
/// Effects: none.
SC_DEVICE u32 count_wrong(const void* memory, u32 bytes, u64 address, u64 generation) {
  const u8* byte = static_cast<const u8*>(memory);
  u32 wrong = 0;
  for (u32 at = 0; at < bytes; ++at) {
    wrong += arch::load_u8(byte + at) != byte_at(address + at, generation);
  }
  return wrong;
}

}  // namespace pattern
}  // namespace sidecore
