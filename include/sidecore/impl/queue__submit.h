/// Bodies of queue.h: command ids, tickets, commands, and the SQ's doorbell.
///
/// Tickets are BaM's, but for one thing: a ticket is taken only while there is a slot for it. So a
/// lane that gets none holds nothing, and no lane waits for one that waits.
#pragma once

#include "../queue.h"

namespace sidecore {

/// Pauses while the queue is full: from this to eight times it.
constexpr u32 QUEUE_FULL_PAUSE_NS = 128;
/// Command ids that a lane tries before it looks at the clock.
constexpr u32 QUEUE_CID_TRIES = 8;
/// Entries, or marks, that a lane looks at together.
constexpr u32 QUEUE_GLANCE = 8;
/// Limits after which a lane gives up on a host that does not react to complaints.
constexpr u32 QUEUE_LIMITS_MAX = 8;

template <class P>
SC_DEVICE u16 QueuePair<P>::attach(const abi::QueuePairView* view) {
  view_ = view;
  const bool known = view->magic == abi::QUEUE_MAGIC && view->version == abi::QUEUE_VERSION &&
                     view->bytes == sizeof(abi::QueuePairView) && view->depth_log2 < 16 &&
                     ((view->flags & abi::QUEUE_SCAN) != 0) == P::SCANS;
  return known ? status::SUCCESS : status::RING_CLOSED;
}

/// What the drive must not be asked for; the rest is the drive's to refuse.
template <class P>
SC_DEVICE u16 QueuePair<P>::check(u8 opcode, const QueueTransfer& t) const {
  if (opcode == abi::OP_FLUSH) return status::SUCCESS;
  const u64 block = 1ull << view_->block_bytes_log2;
  if (t.bytes == 0 || ((t.bytes | t.namespace_offset) & (block - 1)) != 0) return status::BAD_LENGTH;
  if (t.bytes > view_->transfer_bytes_max || (t.bytes >> view_->block_bytes_log2) > 0x10000) {
    return status::BAD_LENGTH;
  }
  const u64 room = t.buffer.bytes;
  if (t.buffer_offset > room || t.bytes > room - t.buffer_offset || (t.buffer_offset & 3) != 0) {
    return status::BUFFER_RANGE;
  }
  const u32 log2 = view_->page_bytes_log2;
  const u32 pages = queue_impl::pages_of(t.buffer.bus + t.buffer_offset, t.bytes, log2);
  const u32 listed = view_->prp_lists == 0 ? 1 : 1u << (log2 - 3);
  return pages - 1 <= listed ? status::SUCCESS : status::BAD_LENGTH;
}

template <class P>
SC_DEVICE QueueHandle QueuePair<P>::submit(Lanes lanes, u8 opcode, const QueueTransfer& transfer,
                                           u64 patience_ns) {
  QueueHandle handle{};
  handle.opcode = opcode;
  handle.namespace_offset = transfer.namespace_offset;
  handle.bus = transfer.buffer.bus + transfer.buffer_offset;
  handle.bytes = opcode == abi::OP_FLUSH ? 0 : transfer.bytes;
  handle.completion.status = check(opcode, transfer);
  // What the lanes named have stored to buffers: their fence in `publish` covers it.
  if (arch::any(lanes.mask, opcode == abi::OP_WRITE)) arch::sync_warp(lanes.mask);
  send(lanes.mask, handle, patience_ns);
  return handle;
}

/// Sends the commands of the lanes whose handle says SUCCESS: then it says PENDING, or why not.
template <class P>
SC_OUTLINE void QueuePair<P>::send(u32 mask, QueueHandle& handle, u64 patience_ns) {
  const bool wish = handle.completion.status == status::SUCCESS;
  u32 pending = arch::ballot(mask, wish);
  if (!wish) return;
  const u32 lane = arch::lane_index();
  const u64 started_ns = arch::timer_ns();
  u64 moved_ns = started_ns, head_seen = 0;
  u32 backoff_ns = QUEUE_FULL_PAUSE_NS;
  bool have_cid = false, looked = false, complained = false;
  for (;;) {
    if (!have_cid) have_cid = take_cid(handle.cid);
    const u32 ready = arch::ballot(pending, have_cid);
    const u32 leader = arch::lowest_bit(ready != 0 ? ready : pending);
    // The leader acts for all; the low half of what it says is how much, the high half a status.
    u32 outcome = 0, epoch = 0;
    u64 ticket = 0;
    if (lane == leader) {
      outcome = enter(epoch);
      if (outcome == 1) {
        outcome = ready != 0 ? reserve(arch::popcount(ready), ticket) : 0;
        if (outcome == 0) leave();
      }
    }
    outcome = arch::shuffle(pending, outcome, leader);
    ticket = arch::shuffle(pending, ticket, leader);
    epoch = arch::shuffle(pending, epoch, leader);
    if (outcome != 0 && outcome >> 16 == 0) {
      u32 rest = ready;
      for (u32 n = 0; n < outcome; ++n) rest &= rest - 1;
      const u32 granted = ready & ~rest;
      if ((granted >> lane & 1) != 0) {
        handle.epoch = epoch;
        handle.completion.status = status::PENDING;
        handle.sends += 1;
        handle.sent_ns = arch::timer_ns();
        handle.due_ns = handle.sent_ns + limit_ns();
        publish(granted, ticket, handle);
        return;
      }
      pending &= ~granted;
      continue;
    }
    if (lane == leader && outcome == 0) {
      // Full: what has ended makes room, whoever's it is.
      protocol().make_room();
      const u64 now = arch::timer_ns();
      const u64 head = arch::load_relaxed(&state()->sq_head);
      // A lane that has not looked before cannot know since when it has not moved: others looked for it.
      if (!looked || head != head_seen) {
        looked = true;
        head_seen = head;
        moved_ns = now;
        complained = false;
      }
      if (now - moved_ns >= limit_ns() && !complained) {
        complained = true;
        complain(1ull << view_->cid_log2, epoch, static_cast<u32>(now));
      }
      const bool over = patience_ns != FOREVER ? now - started_ns >= patience_ns
                                               : now - moved_ns >= QUEUE_LIMITS_MAX * limit_ns();
      if (over) outcome = static_cast<u32>(status::NOT_SUBMITTED) << 16;
    }
    outcome = arch::shuffle(pending, outcome, leader);
    if (outcome >> 16 != 0) {
      if (have_cid) free_cid(handle);
      handle.completion.status = static_cast<u16>(outcome >> 16);
      return;
    }
    arch::pause(backoff_ns, "queue: a slot");
    if (backoff_ns < QUEUE_FULL_PAUSE_NS * 8) backoff_ns *= 2;
  }
}

/// Takes a command id that nobody has, if one of a few tried is that.
template <class P>
SC_DEVICE bool QueuePair<P>::take_cid(u32& cid) const {
  const u16 epoch = static_cast<u16>(arch::load_relaxed(&state()->state) >> 32);
  for (u32 n = 0; n < QUEUE_CID_TRIES; ++n) {
    const u64 next = arch::fetch_add_device(&state()->cid_next, 1ull);
    const u64 at = next & ((1ull << view_->cid_log2) - 1);
    u64* const entry = word(view_->cids, at);
    u64* const answer = word(view_->completions, at);
    const u64 seen = arch::load_relaxed_device(entry);
    const u32 kind = static_cast<u32>(seen & 0xff);
    bool free = kind == abi::CID_FREE;
    if (kind == abi::CID_RETIRED) {
      // Its lane has left. Drained, or forgotten with an earlier epoch? The lane had emptied the word
      // before it left: nothing older may be seen.
      arch::fence_system();
      const u16 of = static_cast<u16>(seen >> 16);
      const u64 done = arch::load_relaxed(answer);
      // Earlier, not other: this lane's epoch may be an old value, the id's a newer one.
      free = (static_cast<u16>(epoch - of) != 0 && static_cast<u16>(epoch - of) < 0x8000) ||
             (static_cast<u16>(done) == of && (done >> 48 & abi::COMPLETION_DONE) != 0);
    }
    if (!free) continue;
    const u64 uses = (seen >> 32) + 1;
    const u64 taken = abi::CID_TAKEN | static_cast<u64>(epoch) << 16 | uses << 32;
    if (arch::cas_device(entry, seen, taken) != seen) continue;
    // The old word was stored before its id could be had; this replaces it. Ordered before the
    // command by the fence in `publish`.
    arch::fence_device();
    arch::store_relaxed(answer, 0ull);
    cid = static_cast<u32>(at);
    return true;
  }
  return false;
}

/// Gives back the command id of a command that is in flight no more.
template <class P>
SC_DEVICE void QueuePair<P>::free_cid(const QueueHandle& handle) const {
  u64* const entry = word(view_->cids, handle.cid);
  const u64 uses = arch::load_relaxed_device(entry) >> 32;
  arch::fence_device();
  arch::store_relaxed_device(entry, abi::CID_FREE | uses << 32);
}

template <class P>
SC_DEVICE void QueuePair<P>::retire(const QueueHandle& handle) {
  if (!handle.pending()) return;
  u64* const entry = word(view_->cids, handle.cid);
  const u64 uses = arch::load_relaxed_device(entry) >> 32;
  const u64 epoch = static_cast<u16>(handle.epoch);
  arch::store_relaxed_device(entry, abi::CID_RETIRED | epoch << 16 | uses << 32);
}

/// Begins to touch queues: 1, or 0 while the host has them, or a status in the high half.
template <class P>
SC_DEVICE u32 QueuePair<P>::enter(u32& epoch) const {
  // While the host has the queues, lanes leave the count alone: the host waits until it is 0.
  const u64 before = arch::load_relaxed(&state()->state);
  epoch = static_cast<u32>(before >> 32);
  if (static_cast<u32>(before) == abi::QUEUE_QUIESCED) return 0;
  arch::fetch_add_device(&state()->inside, 1ull);
  // Pairs with the host's full fence between its store of the state and its load of `inside`: this
  // lane sees that state, or the host sees this lane.
  arch::fence_total_system();
  const u64 now = arch::load_relaxed(&state()->state);
  epoch = static_cast<u32>(now >> 32);
  if (static_cast<u32>(now) == abi::QUEUE_OPEN) {
    // The positions of this epoch were stored before its state.
    arch::fence_acquire_system();
    return 1;
  }
  leave();
  const bool closed = static_cast<u32>(now) == abi::QUEUE_CLOSED;
  return closed ? static_cast<u32>(status::RING_CLOSED) << 16 : 0;
}

/// Ends to touch queues.
template <class P>
SC_DEVICE void QueuePair<P>::leave() const {
  arch::fence_system();
  arch::fetch_add_device(&state()->inside, ~0ull);
}

/// Reserves up to `wanted` tickets from `ticket` on; how many.
template <class P>
SC_DEVICE u32 QueuePair<P>::reserve(u32 wanted, u64& ticket) const {
  u64* const word = &state()->in_ticket;
  // The head only grows: an old value makes the queue look fuller than it is, never emptier.
  const u64 head = arch::load_relaxed(&state()->sq_head);
  u64 next = arch::load_relaxed_device(word);
  for (;;) {
    const u64 used = next - head;
    const u64 room = depth() - 1;
    if (static_cast<i64>(used) >= 0 && used >= room) return 0;
    const u64 free = room - used;
    // An old value of the ticket lies below the head: the swap fails and tells the present one.
    const u32 count = free < wanted ? static_cast<u32>(free) : wanted;
    const u64 seen = arch::cas_device(word, next, next + count);
    if (seen == next) {
      ticket = next;
      return count;
    }
    next = seen;
  }
}

/// Stores the commands of the lanes in `granted`, whose tickets are `ticket` and up by rank, and lets
/// the drive know of them.
template <class P>
SC_DEVICE void QueuePair<P>::publish(u32 granted, u64 ticket, const QueueHandle& handle) const {
  const u32 lane = arch::lane_index();
  const u64 position = ticket + arch::popcount(granted & ((1u << lane) - 1));
  const u64 slot = slot_of(position);
  queue_impl::store_command(*view_, view_->sq + slot * 64, handle.opcode, handle.cid,
                            handle.namespace_offset, handle.bus, handle.bytes);
  // Payload, PRP list, the emptied completion word and the command, before whoever sees the mark
  // rings the doorbell.
  arch::fence_system();
  arch::store_relaxed_device(word(view_->tail_marks, slot), position);
  arch::sync_warp(granted);
  if (lane == arch::lowest_bit(granted)) {
    push_tail();
    leave();
  }
}

/// Rings the doorbell for all marks in a row, unless another lane is about to.
template <class P>
SC_DEVICE void QueuePair<P>::push_tail() const {
  abi::QueueState* const s = state();
  // This warp's marks before the request; the holder fences after it has seen the request.
  arch::fence_system();
  u64 asked = arch::fetch_add_device(&s->tail_lock, 1ull) + 1;
  if (asked != 1) return;
  for (;;) {
    arch::fence_system();
    const u64 tail = arch::load_relaxed_device(&s->tail);
    u64 end = tail;
    for (bool more = true; more && end - tail < depth();) {
      // Several at once, so that their loads are under way together.
      u64 marks[QUEUE_GLANCE];
      for (u32 n = 0; n < QUEUE_GLANCE; ++n) {
        marks[n] = arch::load_relaxed_device(word(view_->tail_marks, slot_of(end + n)));
      }
      for (u32 n = 0; n < QUEUE_GLANCE && more; ++n) {
        more = end - tail < depth() && marks[n] == end;
        if (more) ++end;
      }
    }
    if (end != tail) {
      arch::store_relaxed_device(&s->tail, end);
      const u64 rung = arch::load_relaxed_device(&s->sq_doorbells);
      arch::store_relaxed_device(&s->sq_doorbells, rung + 1);
      // The entries, which other lanes fenced before their marks, before the doorbell.
      arch::fence_system();
      arch::store_relaxed(reinterpret_cast<u32*>(view_->sq_doorbell),
                          static_cast<u32>(slot_of(end)));
    }
    // Doorbells of two holders keep their order.
    arch::fence_system();
    const u64 seen = arch::cas_device(&s->tail_lock, asked, 0ull);
    if (seen == asked) return;
    asked = seen;
  }
}

/// Tells the host that something takes too long.
template <class P>
SC_DEVICE void QueuePair<P>::complain(u64 entry, u32 epoch, u32 uses) const {
  const u64 low = static_cast<u64>(static_cast<u16>(epoch)) | 1ull << 16;
  arch::store_relaxed(word(view_->complaints, entry), low | static_cast<u64>(uses) << 32);
  // The complaint before the alarm, by which the host knows to look.
  arch::fence_system();
  arch::store_relaxed(reinterpret_cast<u64*>(view_->alarm),
                      (arch::timer_ns() << 17 | entry) + (1ull << 63));
}

template <class P>
SC_DEVICE QueueHandle QueuePair<P>::submit_flush(Lanes lanes, u64 patience_ns) {
  return submit(lanes, abi::OP_FLUSH, QueueTransfer{}, patience_ns);
}

}  // namespace sidecore
