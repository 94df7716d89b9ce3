/// Bodies of queue.h: waiting, losing, fencing.
#pragma once

#include "../queue.h"
#include "backoff.h"

namespace sidecore {

/// First pause between looks at a completion word.
constexpr u32 QUEUE_WAIT_PAUSE_NS = 64;
/// Looks at the word between two looks at state and clock.
constexpr u32 QUEUE_STATE_PERIOD = 8;

/// Notes how a command ended.
template <class P>
SC_DEVICE void QueuePair<P>::end(QueueHandle& handle, u16 status) const {
  handle.completion = Completion{status, status == status::SUCCESS ? handle.bytes : 0};
  free_cid(handle);
}

/// Looks at the completion word once; whether the command has ended.
template <class P>
SC_DEVICE bool QueuePair<P>::look(QueueHandle& handle) const {
  const u64 done = arch::load_relaxed(word(view_->completions, handle.cid));
  const u64 flags = done >> 48;
  if ((flags & abi::COMPLETION_DONE) == 0) return false;
  if (static_cast<u16>(done) != static_cast<u16>(handle.epoch)) return false;
  // The payload was stored before the word. Pairs with the fence between the two of who stored it.
  arch::fence_acquire_system();
  handle.drained = true;
  handle.by_gpu = (flags & abi::COMPLETION_BY_GPU) != 0;
  end(handle, static_cast<u16>(done >> 16));
  return true;
}

/// Looks at the state; whether the command has ended by the end of its queue.
template <class P>
SC_DEVICE bool QueuePair<P>::lost(QueueHandle& handle) {
  const u64 now = arch::load_relaxed(&state()->state);
  const bool closed = static_cast<u32>(now) == abi::QUEUE_CLOSED;
  const bool other = static_cast<u32>(now) == abi::QUEUE_OPEN &&
                     static_cast<u32>(now >> 32) != handle.epoch;
  if (!closed && !other) return false;
  // The last completion words of the epoch were stored before the state.
  arch::fence_acquire_system();
  if (look(handle)) return true;
  if (closed || handle.complained || handle.sends > 1) {
    end(handle,
        closed              ? status::RING_CLOSED
        : handle.complained ? status::TIMED_OUT
                            : queue_impl::ABORTED_QUEUE_DELETION);
    return true;
  }
  // The command's own fault it was not: once more.
  free_cid(handle);
  handle.completion.status = status::SUCCESS;
  send(1u << arch::lane_index(), handle, FOREVER);
  if (handle.pending()) return false;
  if (handle.completion.status == status::NOT_SUBMITTED) {
    handle.completion.status = queue_impl::ABORTED_QUEUE_DELETION;
  }
  return true;
}

/// Complains where the command is late; whether it is so late that the host must be gone.
template <class P>
SC_DEVICE bool QueuePair<P>::late(QueueHandle& handle) const {
  const u64 now = arch::timer_ns();
  if (now < handle.due_ns) return false;
  const u64 uses = arch::load_relaxed_device(word(view_->cids, handle.cid)) >> 32;
  complain(handle.cid, handle.epoch, static_cast<u32>(uses));
  handle.complained = true;
  handle.due_ns = now + limit_ns();
  handle.hopeless = now - handle.sent_ns >= QUEUE_LIMITS_MAX * limit_ns();
  return handle.hopeless;
}

/// Waits for the end of this lane's command, if it has one in flight.
template <class P>
SC_OUTLINE void QueuePair<P>::poll(QueueHandle& handle, u64 timeout_ns) {
  if (!handle.pending()) return;
  const u64 started_ns = timeout_ns == FOREVER ? 0 : arch::timer_ns();
  Backoff backoff(QUEUE_WAIT_PAUSE_NS);
  for (u32 round = 1; handle.polls += 1, !look(handle); ++round) {
    if (protocol().seek(handle, round)) return;
    const bool over = timeout_ns != FOREVER && arch::timer_ns() - started_ns >= timeout_ns;
    if (over || round % QUEUE_STATE_PERIOD == 0) {
      if (look(handle) || lost(handle) || late(handle)) return;
    }
    if (over) return;
    backoff.pause("queue: a completion");
  }
}

template <class P>
SC_DEVICE Completion QueuePair<P>::wait_until(QueueHandle& handle, u64 timeout_ns) {
  if (!handle.pending()) return handle.completion;
  poll(handle, timeout_ns);
  const bool arrived = handle.completion.ok() && handle.opcode == abi::OP_READ;
  if (arrived && (view_->flags & abi::QUEUE_SECOND_READ) != 0) {
    const u16 fenced = second_read(handle);
    if (fenced != status::SUCCESS) handle.completion = Completion{fenced, 0};
  }
  return handle.completion;
}

/// Reads a block again, so that the payload of all reads that have ended is there, as BaM does; one
/// such read serves all that wait for one. Its status.
template <class P>
SC_OUTLINE u16 QueuePair<P>::second_read(const QueueHandle& handle) {
  abi::QueueState* const s = state();
  const u64 wanted = arch::fetch_add_device(&s->fence_wanted, 1ull) + 1;
  for (;;) {
    if (static_cast<i64>(arch::load_relaxed_device(&s->fence_done) - wanted) >= 0) break;
    if (arch::cas_device(&s->fence_lock, 0ull, 1ull) == 0) {
      // Not less than this lane's own wish; what it covers had ended before, and `send` fences.
      const u64 covered = arch::load_relaxed_device(&s->fence_wanted);
      QueueHandle again{};
      again.opcode = abi::OP_READ;
      again.namespace_offset = handle.namespace_offset;
      again.bus = handle.bus;
      again.bytes = 1u << view_->block_bytes_log2;
      send(1u << arch::lane_index(), again, FOREVER);
      poll(again, FOREVER);
      retire(again);
      // Its end was seen, and fenced, before its command id was given back.
      if (again.completion.ok()) arch::store_relaxed_device(&s->fence_done, covered);
      const u64 reads = arch::load_relaxed_device(&s->fence_ios);
      arch::store_relaxed_device(&s->fence_ios, reads + 1);
      arch::fence_system();
      arch::store_relaxed_device(&s->fence_lock, 0ull);
      return again.completion.status;
    }
    arch::pause(QUEUE_WAIT_PAUSE_NS * 4, "queue: a second read");
  }
  arch::fence_acquire_system();
  return status::SUCCESS;
}

/// Waits for a command of a synchronous call.
template <class P>
SC_DEVICE Completion QueuePair<P>::await(QueueHandle& handle) {
  wait(handle);
  retire(handle);
  return handle.completion;
}

template <class P>
SC_DEVICE Completion QueuePair<P>::read(Lanes lanes, const QueueTransfer& transfer) {
  QueueHandle handle = submit_read(lanes, transfer);
  return await(handle);
}

template <class P>
SC_DEVICE Completion QueuePair<P>::write(Lanes lanes, const QueueTransfer& transfer) {
  QueueHandle handle = submit_write(lanes, transfer);
  return await(handle);
}

template <class P>
SC_DEVICE Completion QueuePair<P>::flush(Lanes lanes) {
  QueueHandle handle = submit_flush(lanes);
  return await(handle);
}

}  // namespace sidecore
