/// Bodies of queue.h: draining the CQ under its lock.
///
/// The upper half of a CQ entry: SQ head (16) | SQ (16) | command id (16) | phase (1) | status (15).
/// Source: NVMe Base Specification 2.0c, 3.3.3.2.
#pragma once

#include "../queue.h"

namespace sidecore {

/// The upper half of the CQ's entry at a position.
template <class P>
SC_DEVICE u64 QueuePair<P>::load_answer(u64 position) const {
  return arch::load_relaxed(reinterpret_cast<const u64*>(view_->cq + slot_of(position) * 16 + 8));
}

/// Whether it was stored in this turn of the queue: the phase tag is 1 in even turns.
template <class P>
SC_DEVICE bool QueuePair<P>::is_new(u64 answer, u64 position) const {
  return (answer >> 48 & 1) != (position >> view_->depth_log2 & 1);
}

/// Takes the entry at a position; false where another lane has.
template <class P>
SC_DEVICE bool QueuePair<P>::claim(u64 position) const {
  const u64 before = position - depth();
  return arch::cas_device(word(view_->head_marks, slot_of(position)), before, position) == before;
}

/// Whether the lane that an answer is for has left.
template <class P>
SC_DEVICE bool QueuePair<P>::is_retired(u64 answer) const {
  const u64 cid = answer >> 32 & 0xffff;
  if (cid >> view_->cid_log2 != 0) return true;
  return (arch::load_relaxed_device(word(view_->cids, cid)) & 0xff) != abi::CID_TAKEN;
}

/// Stores the completion word of an answer that was seen and fenced.
template <class P>
SC_DEVICE void QueuePair<P>::deliver(u64 answer, u32 epoch) const {
  const u64 cid = answer >> 32 & 0xffff;
  u64* const target = word(view_->completions, cid);
  bool known = cid >> view_->cid_log2 == 0 &&
               (arch::load_relaxed_device(word(view_->cids, cid)) & 0xff) != abi::CID_FREE;
  if (known) {
    // A word of this epoch: the drive says it twice. (One of an earlier epoch says nothing.)
    const u64 there = arch::load_relaxed(target);
    known = (there >> 48 & abi::COMPLETION_DONE) == 0 ||
            static_cast<u16>(there) != static_cast<u16>(epoch);
  }
  if (!known) {
    arch::fetch_add_device(&state()->strays, 1ull);
    return;
  }
  const u64 flags = abi::COMPLETION_DONE | abi::COMPLETION_BY_GPU;
  arch::store_relaxed(target, static_cast<u64>(static_cast<u16>(epoch)) | (answer >> 49) << 16 |
                                  (answer & 0xffff) << 32 | flags << 48);
  arch::fetch_add_device(&state()->drained, 1ull);
}

/// All below `to` is drained; `last` is the answer just below it. Tells the drive, and submitters.
template <class P>
SC_DEVICE void QueuePair<P>::move_head(u64 to, u64 last) const {
  abi::QueueState* const s = state();
  u64 head = arch::load_relaxed(&s->sq_head);
  head += (last - head) & (depth() - 1);
  arch::store_relaxed(&s->sq_head, head);
  arch::store_relaxed_device(&s->cq_head, to);
  const u64 rung = arch::load_relaxed_device(&s->cq_doorbells);
  arch::store_relaxed_device(&s->cq_doorbells, rung + 1);
  // Every entry was read, or taken by a lane that had read it, before the drive may overwrite it.
  arch::fence_system();
  arch::store_relaxed(reinterpret_cast<u32*>(view_->cq_doorbell), static_cast<u32>(slot_of(to)));
}

/// Drains what there is, as holder of the lock: up to the first entry that a lane which is there may
/// still want to take itself, or really everything.
template <class P>
SC_DEVICE void QueuePair<P>::pass(bool everything) {
  const u64 now = arch::load_relaxed(&state()->state);
  if (static_cast<u32>(now) != abi::QUEUE_OPEN) return;
  // The positions of this epoch were stored before its state.
  arch::fence_acquire_system();
  if (!protocol().may_drain()) return;
  const u64 head = arch::load_relaxed_device(&state()->cq_head);
  u64 to = head, last = 0;
  bool all_taken = P::SCANS;
  for (bool more = true; more && to - head < depth();) {
    // Several at once, so that their loads are under way together.
    u64 answers[QUEUE_GLANCE], marks[QUEUE_GLANCE];
    for (u32 n = 0; n < QUEUE_GLANCE; ++n) answers[n] = load_answer(to + n);
    for (u32 n = 0; n < QUEUE_GLANCE && P::SCANS; ++n) {
      marks[n] = arch::load_relaxed_device(word(view_->head_marks, slot_of(to + n)));
    }
    for (u32 n = 0; n < QUEUE_GLANCE && more; ++n) {
      const bool taken = P::SCANS && marks[n] == to;
      more = to - head < depth() && is_new(answers[n], to) &&
             (!P::SCANS || everything || taken || is_retired(answers[n]));
      if (!more) break;
      all_taken = all_taken && taken;
      last = answers[n];
      ++to;
    }
  }
  if (to == head) return;
  // Payload before entry before completion word. Pairs with the drive's order, and with `look`.
  if (!all_taken) arch::fence_system();
  for (u64 at = all_taken ? to : head; at != to; ++at) {
    if (P::SCANS) {
      if (arch::load_relaxed_device(word(view_->head_marks, slot_of(at))) == at) continue;
      if (!claim(at)) continue;
    }
    deliver(load_answer(at), static_cast<u32>(now >> 32));
  }
  move_head(to, last);
  protocol().head_moved(to);
}

/// What a request adds to the lock: one, and in the upper half how many of them ask for everything.
constexpr u64 QUEUE_ASKS = 1;
constexpr u64 QUEUE_ASKS_ALL = 1ull << 32 | 1;

/// Asks for a pass. Who holds the lock makes it, and one more for those who asked meanwhile, over
/// everything if one of them asked for that; so what was taken before asking is never left behind, and
/// neither is what lanes that cannot go on before the holder does have not taken.
template <class P>
SC_OUTLINE void QueuePair<P>::drain(bool everything) {
  // While the host has the queues, lanes leave the lock alone: the host waits until it is free.
  if (static_cast<u32>(arch::load_relaxed(&state()->state)) != abi::QUEUE_OPEN) return;
  u64* const lock = &state()->head_lock;
  // This lane's marks came before the request: it has fenced them in `leave`.
  const u64 ask = everything ? QUEUE_ASKS_ALL : QUEUE_ASKS;
  u64 asked = arch::fetch_add_device(lock, ask) + ask;
  if (asked != ask) return;
  for (;;) {
    // Others' marks; and, for the host: this lane sees its state and owner, or it sees the lock.
    arch::fence_total_system();
    pass(everything);
    arch::fence_system();
    const u64 seen = arch::cas_device(lock, asked, 0ull);
    if (seen == asked) return;
    everything = seen >> 32 != asked >> 32;
    asked = seen;
  }
}

}  // namespace sidecore
