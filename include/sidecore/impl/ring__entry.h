/// A request, and its form in the ring. The twin of `RequestEntry` in crates/abi/src/ring.rs, which
/// has the table of bits.
#pragma once

#include "abi__types.h"
#include "arch.h"

namespace sidecore {
namespace abi {

/// A request before it is packed. Fields that are too wide are cut.
struct Request {
  u64 source_offset;
  u64 buffer_offset;
  /// 1..=TRANSFER_BYTES_MAX.
  u32 length;
  u32 source;
  u32 buffer;
  u32 record;
  u16 record_turn;
  u16 limit_ms;
  u8 opcode;
};

/// Packs a request with the slot's tag into two halves of two words.
/// Participants: thread. Order: none. Blocks: never. Effects: none.
SC_DEVICE RequestEntry pack(const Request& r, u16 tag) {
  const u64 tagged = static_cast<u64>(tag) << 48;
  const u64 length_z = (r.length - 1) & 0xffffffu;
  RequestEntry entry;
  entry.w[0] = (r.source_offset & SOURCE_OFFSET_MAX) | static_cast<u64>(r.record_turn) << 48;
  entry.w[1] = length_z | static_cast<u64>(r.opcode) << 24 |
               static_cast<u64>(r.limit_ms) << 32 | tagged;
  entry.w[2] = (r.buffer_offset & BUFFER_OFFSET_MAX) | static_cast<u64>(r.buffer) << 40;
  entry.w[3] = (r.record & 0xffffffu) | static_cast<u64>(r.source & 0xffffffu) << 24 | tagged;
  return entry;
}

/// Unpacks; every bit pattern is some request.
/// Participants: thread. Order: none. Blocks: never. Effects: none.
SC_DEVICE Request unpack(const RequestEntry& entry) {
  const u64* w = entry.w;
  Request r;
  r.source_offset = w[0] & SOURCE_OFFSET_MAX;
  r.record_turn = static_cast<u16>(w[0] >> 48);
  r.length = static_cast<u32>(w[1] & 0xffffffu) + 1;
  r.opcode = static_cast<u8>(w[1] >> 24);
  r.limit_ms = static_cast<u16>(w[1] >> 32);
  r.buffer_offset = w[2] & BUFFER_OFFSET_MAX;
  r.buffer = static_cast<u32>(w[2] >> 40);
  r.record = static_cast<u32>(w[3] & 0xffffffu);
  r.source = static_cast<u32>(w[3] >> 24) & 0xffffffu;
  return r;
}

}  // namespace abi
}  // namespace sidecore
