/// Payload copies between buffers and staging areas, by lanes: routes `pull` and `push`.
///
/// Lanes of a call form teams of up to eight, by rank; a team copies the payloads of its members one
/// after the other, so that neighbours touch neighbouring 16-byte units (a team covers a line of
/// 128 bytes at a time). A lane that takes part alone is a team of one. Any alignment and length:
/// bytes up to the first 16-byte boundary, 16-byte units, bytes; bytes alone where the two sides lie
/// differently within 16.
#pragma once

#include "abi__types.h"
#include "arch.h"

namespace sidecore {
namespace ring_impl {

/// Lanes in a team.
constexpr u32 TEAM = 8;
/// Loads that a lane has under way together.
constexpr u32 UNROLL = 8;

/// Index of the bit of `mask` that has `n` set bits below it; there is one.
/// Participants: thread. Order: none. Blocks: never. Effects: none.
SC_DEVICE u32 nth_bit(u32 mask, u32 n) {
  if ((mask & (mask + 1)) == 0) return n;
  for (; n > 0; --n) mask &= mask - 1;
  return arch::lowest_bit(mask);
}

/// Copies one payload: `member` of `members` lanes copies every `members`-th unit.
/// Participants: thread, together with the other members. Order: none. Blocks: never.
/// Effects: `bytes` bytes at `to`.
SC_DEVICE void copy_part(u64 to, u64 from, u32 bytes, u32 member, u32 members) {
  char* target = reinterpret_cast<char*>(to);
  const char* source = reinterpret_cast<const char*>(from);
  u32 head = static_cast<u32>(0 - from) & 15;
  if (((to ^ from) & 15) != 0 || head > bytes) head = bytes;
  const u32 body = (bytes - head) & ~15u;
  for (u32 byte = member; byte < head; byte += members) {
    arch::store_u8(target + byte, arch::load_u8(source + byte));
  }
  u32 at = head + member * 16;
  const u32 stride = members * 16;
  const u32 end = head + body;
  // Host memory is a microsecond away: as many loads as registers allow are under way together.
  for (; at + (UNROLL - 1) * stride < end; at += UNROLL * stride) {
    arch::copy_16_each<UNROLL>(target + at, source + at, stride);
  }
  for (; at < end; at += stride) arch::copy_16(target + at, source + at);
  for (u32 byte = end + member; byte < bytes; byte += members) {
    arch::store_u8(target + byte, arch::load_u8(source + byte));
  }
}

/// Copies each lane's payload; 0 bytes for a lane that has none.
/// Participants: warp; exactly the lanes in `mask`. Blocks: until all have come.
/// Order: the copies come after what each participant saw, and before what it does next, within the
///   warp; the caller fences for others. Effects: each payload.
SC_DEVICE void copy_payloads(u32 mask, u64 to, u64 from, u32 bytes) {
  const u32 count = arch::popcount(mask);
  if (count == 1) {
    copy_part(to, from, bytes, 0, 1);
    return;
  }
  // A member copies for others: what they stored, and what they saw arrive, must be its own to see.
  arch::sync_warp(mask);
  const u32 lane = arch::lane_index();
  const u32 rank = arch::popcount(mask & ((1u << lane) - 1));
  const u32 first = rank / TEAM * TEAM;
  const u32 members = count - first < TEAM ? count - first : TEAM;
  const u32 rounds = count < TEAM ? count : TEAM;
  for (u32 round = 0; round < rounds; ++round) {
    // All teams go through all rounds, since a shuffle is of the whole mask.
    const u32 owner = nth_bit(mask, first + (round < members ? round : 0));
    const u64 owners_to = arch::shuffle(mask, to, owner);
    const u64 owners_from = arch::shuffle(mask, from, owner);
    const u32 owners_bytes = arch::shuffle(mask, bytes, owner);
    if (round < members) copy_part(owners_to, owners_from, owners_bytes, rank - first, members);
  }
  arch::sync_warp(mask);
}

}  // namespace ring_impl
}  // namespace sidecore
