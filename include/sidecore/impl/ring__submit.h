/// Bodies of ring.h: checking, reserving and publishing.
///
/// A slot is reserved and its entry published without any wait between the two, and a lane that was
/// granted no slot holds nothing. So the side core never waits for a lane that itself waits.
#pragma once

#include "../ring.h"

namespace sidecore {

/// Pauses while the ring is full: from this to eight times it.
constexpr u32 RING_FULL_PAUSE_NS = 128;

SC_DEVICE u16 Ring::attach(const abi::RingView& view) {
  view_ = view;
  const bool known = view.magic == abi::RING_MAGIC && view.version == abi::ABI_VERSION &&
                     view.bytes == sizeof(abi::RingView) && view.depth_log2 < 32;
  if (!known) view_.record_count = 0;
  return known ? status::SUCCESS : status::RING_CLOSED;
}

SC_DEVICE const abi::RingControl* Ring::control() const {
  return reinterpret_cast<const abi::RingControl*>(view_.control);
}

SC_DEVICE u64 Ring::load_record(u32 record) const {
  const u64 at = view_.records + static_cast<u64>(record) * sizeof(abi::CompletionRecord);
  return arch::load_relaxed(reinterpret_cast<const u64*>(at));
}

SC_DEVICE u64 Ring::load_state() const { return arch::load_relaxed(&control()->state); }

/// What `reserve` begins with. `fetched` only grows: an old value makes the ring look fuller than it is,
/// never emptier.
SC_DEVICE Ring::Standing Ring::look_at_ring() const {
  const abi::RingControl* const words = control();
  return Standing{load_state(), arch::load_relaxed(&words->fetched),
                  arch::load_relaxed_device(&words->tail)};
}

/// Whether lanes move this operation's payload.
SC_DEVICE bool Ring::moves_payload(u8 opcode) const {
  return (opcode == abi::OP_READ && view_.read_route == abi::ROUTE_PULL) ||
         (opcode == abi::OP_WRITE && view_.write_route == abi::ROUTE_PUSH);
}

/// What a request must fulfil before this lane may touch memory for it; the rest is the host's.
/// `turn` is the record's last one.
SC_DEVICE u16 Ring::check(u8 opcode, u32 record, const Transfer& transfer, u32& turn) const {
  if (record >= view_.record_count) return status::RECORD_BUSY;
  turn = arch::load_relaxed_device(reinterpret_cast<const u32*>(view_.turns) + record);
  if (static_cast<u16>(turn) != static_cast<u16>(load_record(record))) return status::RECORD_BUSY;
  if (opcode == abi::OP_FLUSH) return status::SUCCESS;
  if (transfer.bytes == 0 || transfer.bytes > abi::TRANSFER_BYTES_MAX) return status::BAD_LENGTH;
  if (!moves_payload(opcode)) return status::SUCCESS;
  if (transfer.bytes > view_.staging_stride) return status::BAD_LENGTH;
  const u64 room = transfer.buffer.bytes;
  if (transfer.buffer_offset > room || transfer.bytes > room - transfer.buffer_offset) {
    return status::BUFFER_RANGE;
  }
  return status::SUCCESS;
}

SC_DEVICE Handle Ring::submit(Lanes lanes, u8 opcode, u32 record, const Transfer& transfer,
                              u64 patience_ns) {
  Wish wish;
  u32 turn = 0;
  // Before anything that waits for memory, so that all these loads are under way together.
  const Standing standing = look_at_ring();
  wish.verdict = check(opcode, record, transfer, turn);
  const bool good = wish.verdict == status::SUCCESS;
  const u64 address = transfer.buffer.address + transfer.buffer_offset;
  if (arch::any(lanes.mask, opcode == abi::OP_WRITE)) {
    if (view_.write_route == abi::ROUTE_PUSH) {
      const u64 staging = view_.staging + static_cast<u64>(record) * view_.staging_stride;
      const bool push = good && opcode == abi::OP_WRITE;
      ring_impl::copy_payloads(lanes.mask, staging, address, push ? transfer.bytes : 0);
    } else {
      arch::sync_warp(lanes.mask);
    }
    // Payload before entry: in staging, or in the buffer that the copy engine reads. Pairs with the
    // side core's acquire of the entry's tags.
    arch::fence_system();
  }
  u32* const turns = reinterpret_cast<u32*>(view_.turns);
  turn += 1;
  abi::Request& r = wish.request;
  r.opcode = opcode;
  r.source = transfer.source.id;
  r.source_offset = transfer.source_offset;
  r.buffer = transfer.buffer.id;
  r.buffer_offset = transfer.buffer_offset;
  r.length = transfer.bytes;
  r.record = record;
  r.record_turn = static_cast<u16>(turn);
  r.limit_ms = transfer.limit_ms;
  const u32 epoch = static_cast<u32>(standing.state >> 32);
  publish_all(lanes, wish, standing, patience_ns);
  Handle handle;
  handle.record = record;
  handle.turn = r.record_turn;
  handle.opcode = opcode;
  handle.epoch = epoch;
  const abi::SourceView& source = transfer.source;
  handle.origin = source.address == 0 ? 0 : source.address + transfer.source_offset;
  handle.target = address;
  handle.bytes = transfer.bytes;
  handle.completion = Completion{wish.verdict, 0};
  handle.lost_by_ns = 0;
  if (wish.verdict == status::SUCCESS) {
    // This lane is the record's owner; nobody else reads its turn while the request is in flight.
    arch::store_relaxed_device(turns + record, turn);
    handle.completion.status = status::PENDING;
  }
  return handle;
}

/// Publishes the wishes of all lanes that have one; each verdict says what became of it.
SC_DEVICE void Ring::publish_all(Lanes lanes, Wish& wish, Standing standing, u64 patience_ns) {
  u32 pending = arch::ballot(lanes.mask, wish.verdict == status::SUCCESS);
  if (wish.verdict != status::SUCCESS) return;
  const u32 lane = arch::lane_index();
  const u64 started_ns = patience_ns == FOREVER ? 0 : arch::timer_ns();
  u32 backoff_ns = RING_FULL_PAUSE_NS;
  for (;;) {
    // The leader reserves for all; the low half of what it says is how much, the high half a status.
    const u32 leader = arch::lowest_bit(pending);
    u64 ticket = 0;
    u32 outcome = 0;
    if (lane == leader) {
      outcome = reserve(arch::popcount(pending), standing, ticket);
      if (outcome == 0) outcome = no_slot(backoff_ns, started_ns, patience_ns);
    }
    outcome = arch::shuffle(pending, outcome, leader);
    ticket = arch::shuffle(pending, ticket, leader);
    if (outcome >> 16 != 0) {
      wish.verdict = static_cast<u16>(outcome >> 16);
      return;
    }
    u32 rest = pending;
    for (u32 n = 0; n < outcome; ++n) rest &= rest - 1;
    const u32 granted = pending & ~rest;
    if ((granted >> lane & 1) != 0) {
      publish(granted, ticket, wish.request);
      return;
    }
    pending = rest;
    standing = look_at_ring();
  }
}

/// Reserves up to `wanted` tickets from `ticket` on; how many, or in the high half why none.
SC_DEVICE u32 Ring::reserve(u32 wanted, const Standing& standing, u64& ticket) const {
  const u64 depth = 1ull << view_.depth_log2;
  u64* const tail_word = const_cast<u64*>(&control()->tail);
  const u64 fetched = standing.fetched;
  u64 tail = standing.tail;
  if (static_cast<u32>(standing.state) != abi::STATE_OPEN) {
    return static_cast<u32>(status::RING_CLOSED) << 16;
  }
  for (;;) {
    u64 used = tail - fetched;
    if (static_cast<i64>(used) < 0) {
      // An old value of the tail: the swap, which changes nothing, tells the present one.
      const u64 present = arch::cas_device(tail_word, tail, tail);
      if (present == tail) return 0;
      tail = present;
      continue;
    }
    if (used >= depth) return 0;
    const u64 free = depth - used;
    const u32 count = free < wanted ? static_cast<u32>(free) : wanted;
    const u64 seen = arch::cas_device(tail_word, tail, tail + count);
    if (seen == tail) {
      ticket = tail;
      return count;
    }
    tail = seen;
  }
}

/// The ring is full: waits a little, or gives up where the patience is over.
SC_DEVICE u32 Ring::no_slot(u32& backoff_ns, u64 started_ns, u64 patience_ns) const {
  if (patience_ns != FOREVER && arch::timer_ns() - started_ns >= patience_ns) {
    return static_cast<u32>(status::NOT_SUBMITTED) << 16;
  }
  arch::pause(backoff_ns, "ring: a free slot");
  if (backoff_ns < RING_FULL_PAUSE_NS * 8) backoff_ns *= 2;
  return 0;
}

/// Stores the entries of the lanes in `granted`, whose tickets are `ticket` and up by rank.
///
/// The halves of all entries are units of 16 bytes, `2 * count` of them side by side. The lane of
/// rank r stores unit r, then unit r + count, so that each store instruction covers contiguous
/// bytes. In each of two rounds every lane gives one of its halves and takes one of its units.
SC_DEVICE void Ring::publish(u32 granted, u64 ticket, const abi::Request& request) const {
  const u32 count = arch::popcount(granted);
  const u32 rank = arch::popcount(granted & ((1u << arch::lane_index()) - 1));
  const u16 tag = static_cast<u16>(((ticket + rank) >> view_.depth_log2) + 1);
  const abi::RequestEntry entry = abi::pack(request, tag);
  // With an even count the units of the upper half of the ranks swap rounds; then each lane's two
  // units come in different rounds. With an odd count they do anyway.
  const u32 swap = (count % 2 == 0 && rank >= count / 2) ? 1 : 0;
  u64 first_lo = 0, first_hi = 0, second_lo = 0, second_hi = 0;
  for (u32 round = 0; round < 2; ++round) {
    const u32 half = round ^ swap;
    const bool early = (rank & 1) == round;
    const u32 from = ring_impl::nth_bit(granted, (early ? rank : rank + count) / 2);
    const u64 lo = arch::shuffle(granted, half == 0 ? entry.w[0] : entry.w[2], from);
    const u64 hi = arch::shuffle(granted, half == 0 ? entry.w[1] : entry.w[3], from);
    if (early) {
      first_lo = lo;
      first_hi = hi;
    } else {
      second_lo = lo;
      second_hi = hi;
    }
  }
  store_unit(ticket, rank, first_lo, first_hi);
  store_unit(ticket, rank + count, second_lo, second_hi);
}

/// Stores the 16-byte unit `unit` of the entries from `ticket` on.
SC_DEVICE void Ring::store_unit(u64 ticket, u32 unit, u64 lo, u64 hi) const {
  const u64 slot = (ticket + unit / 2) & ((1ull << view_.depth_log2) - 1);
  const u64 at = view_.entries + slot * sizeof(abi::RequestEntry) + unit % 2 * 16;
  arch::store_relaxed_16(reinterpret_cast<void*>(at), lo, hi);
}

SC_DEVICE Handle Ring::submit_read(Lanes lanes, u32 record, const Transfer& transfer,
                                   u64 patience_ns) {
  return submit(lanes, abi::OP_READ, record, transfer, patience_ns);
}

SC_DEVICE Handle Ring::submit_write(Lanes lanes, u32 record, const Transfer& transfer,
                                    u64 patience_ns) {
  return submit(lanes, abi::OP_WRITE, record, transfer, patience_ns);
}

SC_DEVICE Handle Ring::submit_flush(Lanes lanes, u32 record, const abi::SourceView& source,
                                    u64 patience_ns) {
  Transfer transfer{};
  transfer.source = source;
  transfer.bytes = 1;
  return submit(lanes, abi::OP_FLUSH, record, transfer, patience_ns);
}

}  // namespace sidecore
