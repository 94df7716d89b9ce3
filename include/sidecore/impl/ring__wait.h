/// Bodies of ring.h: waiting, taking payload, cancelling.
#pragma once

#include "../ring.h"
#include "backoff.h"

namespace sidecore {

/// First pause between looks at a record.
constexpr u32 RING_WAIT_PAUSE_NS = 32;
/// Looks before the pauses grow: some five microseconds of looking, since memory answers as soon.
constexpr u32 RING_WAIT_EAGER = 16;
/// Looks at the record between two looks at the ring's state.
constexpr u32 RING_STATE_PERIOD = 8;

/// Looks at the record once; whether the request has ended.
SC_DEVICE bool Ring::look(Handle& handle) const {
  const u64 word = load_record(handle.record);
  if (static_cast<u16>(word) != handle.turn) return false;
  handle.completion.status = static_cast<u16>(word >> 16);
  handle.completion.detail = static_cast<u32>(word >> 32);
  // The payload was stored before the word. Pairs with the fence between the two on the host.
  arch::fence_acquire_system();
  return true;
}

/// Looks at the ring's state; whether nobody will end the request any more.
///
/// When the epoch changes, the supervisor ends what was in flight. A side core that hangs while it
/// ends a request keeps that request to itself: hence a bound from the change on, twice the ring's
/// limit.
SC_DEVICE bool Ring::lost(Handle& handle) const {
  const u64 state = load_state();
  if (static_cast<u32>(state) == abi::STATE_CLOSED) {
    // The last completions were stored before the state.
    arch::fence_acquire_system();
    if (!look(handle)) handle.completion = Completion{status::RING_CLOSED, 0};
    return true;
  }
  if (static_cast<u32>(state >> 32) == handle.epoch) return false;
  const u64 now = arch::timer_ns();
  if (handle.lost_by_ns == 0) handle.lost_by_ns = now + view_.limit_ms * 2000000ull;
  if (now < handle.lost_by_ns) return false;
  if (!look(handle)) handle.completion = Completion{status::SIDE_CORE_LOST, 0};
  return true;
}

/// Waits for the end of this lane's request, if it has one in flight.
SC_DEVICE void Ring::poll(Handle& handle, u64 timeout_ns) const {
  if (!handle.pending()) return;
  const u64 started_ns = timeout_ns == FOREVER ? 0 : arch::timer_ns();
  Backoff backoff(RING_WAIT_PAUSE_NS, RING_WAIT_EAGER);
  for (u32 round = 1; handle.polls += 1, !look(handle); ++round) {
    const bool over = timeout_ns != FOREVER && arch::timer_ns() - started_ns >= timeout_ns;
    if ((over || round % RING_STATE_PERIOD == 0) && lost(handle)) return;
    if (over) return;
    backoff.pause("ring: a completion");
  }
}

SC_DEVICE Completion Ring::wait_until(Lanes lanes, Handle& handle, u64 timeout_ns) {
  const bool before = handle.pending();
  poll(handle, timeout_ns);
  if (view_.read_route == abi::ROUTE_PULL) {
    const Completion& c = handle.completion;
    const bool arrived = before && handle.opcode == abi::OP_READ &&
                         (c.status == status::SUCCESS || c.status == status::SHORT);
    const u32 moved = c.detail & ~abi::DETAIL_LENT;
    const u32 bytes = moved < handle.bytes ? moved : handle.bytes;
    // The payload is in staging, or it stayed in the source.
    u64 from = view_.staging + static_cast<u64>(handle.record) * view_.staging_stride;
    if (arrived && (c.detail & abi::DETAIL_LENT) != 0) from = handle.origin;
    if (arrived && from == 0) {
      // A view of the source that says nothing of its address is not the engine's.
      handle.completion = Completion{status::BAD_SOURCE, 0};
    } else if (arrived) {
      handle.completion.detail = moved;
    }
    ring_impl::copy_payloads(lanes.mask, handle.target, from, arrived && from != 0 ? bytes : 0);
    // The payload was read before its place can be named by a later request: the record's next one,
    // or a write to the source.
    arch::fence_system();
  }
  return handle.completion;
}

SC_DEVICE Completion Ring::cancel(Lanes lanes, Handle& handle, u64 patience_ns) {
  Wish wish{};
  wish.verdict = handle.pending() ? status::SUCCESS : status::NOT_SUBMITTED;
  wish.request.opcode = abi::OP_CANCEL;
  wish.request.length = 1;
  wish.request.record = handle.record;
  wish.request.record_turn = handle.turn;
  publish_all(lanes, wish, look_at_ring(), patience_ns);
  return wait_until(lanes, handle, patience_ns);
}

SC_DEVICE Completion Ring::read(Lanes lanes, u32 record, const Transfer& transfer) {
  Handle handle = submit_read(lanes, record, transfer);
  return wait(lanes, handle);
}

SC_DEVICE Completion Ring::write(Lanes lanes, u32 record, const Transfer& transfer) {
  Handle handle = submit_write(lanes, record, transfer);
  return wait(lanes, handle);
}

SC_DEVICE Completion Ring::flush(Lanes lanes, u32 record, const abi::SourceView& source) {
  Handle handle = submit_flush(lanes, record, source);
  return wait(lanes, handle);
}

}  // namespace sidecore
