/// An NVMe command as lanes build it: 64 bytes, with its data pointer as PRPs.
///
/// ```
/// w0  opcode (8) | flags (8) | command id (16) | namespace (32)
/// w3  PRP 1: address of the first byte        w4  PRP 2: the second page, or a list of the others
/// w5  first block (64)                        w6  blocks - 1 (16)
/// ```
/// Source: NVMe Base Specification 2.0c, 3.3.3.1 and 4.1.1; NVM Command Set 1.0c, 3.2.
#pragma once

#include "abi__types.h"
#include "arch.h"

namespace sidecore {
namespace queue_impl {

// NVMe I/O opcodes.
constexpr u64 NVME_FLUSH = 0x00;
constexpr u64 NVME_WRITE = 0x01;
constexpr u64 NVME_READ = 0x02;
/// The drive's status for commands whose queue was deleted under them: generic, 08h.
constexpr u16 ABORTED_QUEUE_DELETION = 0x08;

/// Pages that `bytes` bytes from `bus` on touch.
/// Participants: thread. Order: none. Blocks: never. Effects: none.
SC_DEVICE u32 pages_of(u64 bus, u32 bytes, u32 page_bytes_log2) {
  const u64 within = bus & ((1ull << page_bytes_log2) - 1);
  return static_cast<u32>((within + bytes + (1ull << page_bytes_log2) - 1) >> page_bytes_log2);
}

/// PRP 2 of a transfer; stores the list of its pages where it has more than two.
/// Participants: thread. Order: none; the caller fences before the command can be seen.
/// Blocks: never. Effects: the PRP list page of the command id.
SC_DEVICE u64 second_prp(const abi::QueuePairView& view, u32 cid, u64 bus, u32 bytes) {
  const u32 log2 = view.page_bytes_log2;
  const u32 pages = pages_of(bus, bytes, log2);
  if (pages < 2) return 0;
  const u64 second = ((bus >> log2) + 1) << log2;
  if (pages == 2) return second;
  const u64 offset = static_cast<u64>(cid) << log2;
  u64* const list = reinterpret_cast<u64*>(view.prp_lists + offset);
  for (u32 page = 0; page + 1 < pages; ++page) {
    arch::store_relaxed(list + page, second + (static_cast<u64>(page) << log2));
  }
  return view.prp_lists_bus + offset;
}

/// Stores a command into the SQ's slot at `entry`.
/// Participants: thread. Order: none; the caller fences. Blocks: never. Effects: the slot; the PRP
/// list page of the command id.
SC_DEVICE void store_command(const abi::QueuePairView& view, u64 entry, u8 opcode, u32 cid,
                             u64 namespace_offset, u64 bus, u32 bytes) {
  const bool moves = opcode != abi::OP_FLUSH;
  const u64 code = opcode == abi::OP_READ ? NVME_READ : moves ? NVME_WRITE : NVME_FLUSH;
  const u64 prp2 = moves ? second_prp(view, cid, bus, bytes) : 0;
  const u32 block = view.block_bytes_log2;
  char* const at = reinterpret_cast<char*>(entry);
  const u64 first = code | static_cast<u64>(cid) << 16 | static_cast<u64>(view.nsid) << 32;
  arch::store_relaxed_16(at, first, 0);
  arch::store_relaxed_16(at + 16, 0, moves ? bus : 0);
  arch::store_relaxed_16(at + 32, prp2, moves ? namespace_offset >> block : 0);
  arch::store_relaxed_16(at + 48, moves ? (bytes >> block) - 1 : 0, 0);
}

}  // namespace queue_impl
}  // namespace sidecore
