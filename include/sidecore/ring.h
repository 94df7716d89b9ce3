/// The request ring, device side: a kernel asks, a side core of the CPU does everything else.
///
///   sidecore::Ring ring;
///   if (ring.attach(args.ring) != sidecore::status::SUCCESS) return;
///   const sidecore::Lanes lanes = sidecore::Lanes::here();
///   const u32 record = ring.record(warp_in_grid, 1, 0);
///   const sidecore::Completion done = ring.read(lanes, record, {source, 0, buffer, 0, 4096});
///   if (done.ok()) { /* the bytes are in the buffer */ }
///
/// A lane brings its own *record*: the place of its completion, and on routes `pull` and `push` of
/// its payload. A record carries one request at a time. Who takes part in a call is its first
/// argument; the lanes named there, and no others, call it together, each with its own request.
///
/// A *handle* is a request in flight. It stays in flight until a call returns something else than
/// `status::PENDING` for it: giving up a wait does not give back the record or the buffer.
///
/// Statuses that only the device makes: RECORD_BUSY, NOT_SUBMITTED, PENDING; it also makes BAD_LENGTH,
/// BUFFER_RANGE, RING_CLOSED and SIDE_CORE_LOST itself where it need not, or cannot, ask.
#pragma once

#include "impl/abi__types.h"
#include "impl/arch.h"
#include "impl/ring__entry.h"
#include "lanes.h"

namespace sidecore {

/// What to move: `bytes` bytes between a source and a buffer.
struct Transfer {
  abi::SourceView source;
  /// In bytes; a multiple of the source's block length.
  u64 source_offset;
  abi::BufferView buffer;
  /// In bytes; any.
  u64 buffer_offset;
  /// 1..=TRANSFER_BYTES_MAX, and at most the ring's staging stride.
  u32 bytes;
  /// The request's own limit from when it is fetched, in ms; 0: the ring's default.
  u16 limit_ms = 0;
};

/// A request that was asked for. Copy it as you like; use only one of the copies.
struct Handle {
  u32 record;
  u16 turn;
  u8 opcode;
  /// Epoch of the ring when it was published.
  u32 epoch;
  /// Where the source's own bytes are, for lanes that can load them; else 0.
  u64 origin;
  /// Where a pulled payload goes, and how long it is.
  u64 target;
  u32 bytes;
  /// PENDING while in flight, then how it ended.
  Completion completion;
  /// When to stop waiting for an end that a lost side core owes; 0 where none is lost.
  u64 lost_by_ns;
  /// Looks at its record so far.
  u32 polls = 0;

  /// Whether it is in flight as far as this lane knows.
  /// Participants: thread. Order: none. Blocks: never. Effects: none.
  SC_DEVICE bool pending() const { return completion.status == status::PENDING; }
};

/// A ring that a kernel is attached to. Each lane has its own copy.
class Ring {
 public:
  /// Attaches to a ring of this ABI version. SUCCESS, or RING_CLOSED where the view is of another
  /// version or none at all.
  /// Participants: thread. Order: none. Blocks: never. Effects: this object.
  SC_DEVICE u16 attach(const abi::RingView& view);

  /// This lane's record when each warp has `batch` requests a lane in flight: `slot` < `batch`,
  /// `warp` counts the warps that share the ring. A warp's records for one slot lie side by side.
  /// Participants: thread. Order: none. Blocks: never. Effects: none.
  SC_DEVICE u32 record(u32 warp, u32 batch, u32 slot) const {
    return (warp * batch + slot) * 32 + arch::lane_index();
  }

  /// Whether lanes copy the payload of reads themselves (route `pull`): then they do so best together.
  /// Participants: thread. Order: none. Blocks: never. Effects: none.
  SC_DEVICE bool copies_reads() const { return view_.read_route == abi::ROUTE_PULL; }

  /// Records that the ring has.
  /// Participants: thread. Order: none. Blocks: never. Effects: none.
  SC_DEVICE u32 record_count() const { return view_.record_count; }

  /// Reads from the source into the buffer, and waits for it.
  /// Participants: the lanes named. Order: the bytes read are visible to the caller; a warp's other
  ///   lanes see them after `arch::sync_warp`.
  /// Blocks: until the engine has ended the request; never once the ring is closed.
  /// Effects: the buffer, one slot of the ring for a moment, the record until the end.
  SC_DEVICE Completion read(Lanes lanes, u32 record, const Transfer& transfer);

  /// Writes from the buffer to the source, and waits for it.
  /// Participants: the lanes named. Order: what the caller, or a lane named, stored to the buffer
  ///   before is what is written. Blocks: as `read`. Effects: the source; else as `read`.
  SC_DEVICE Completion write(Lanes lanes, u32 record, const Transfer& transfer);

  /// Makes the writes to the source that have ended durable, and waits for it.
  /// Participants: the lanes named. Order: none. Blocks: as `read`. Effects: the source's durability.
  SC_DEVICE Completion flush(Lanes lanes, u32 record, const abi::SourceView& source);

  /// Publishes a read; `patience_ns` bounds the wait for a free slot of the ring (0: one attempt).
  /// Participants: the lanes named; lanes that get nothing hold nothing and may leave.
  /// Order: as `read`, once the handle's end was seen by `wait`. Effects: as `read`.
  /// Blocks: until a slot is free, the ring closes, or `patience_ns` are over (NOT_SUBMITTED).
  SC_DEVICE Handle submit_read(Lanes lanes, u32 record, const Transfer& transfer,
                               u64 patience_ns = FOREVER);

  /// Publishes a write.
  /// Participants: as `submit_read`. Order: as `write`; the buffer must not change before the end.
  /// Blocks: as `submit_read`. Effects: as `write`.
  SC_DEVICE Handle submit_write(Lanes lanes, u32 record, const Transfer& transfer,
                                u64 patience_ns = FOREVER);

  /// Publishes OP_READ or OP_WRITE: lanes of one call may ask for different operations.
  /// Participants, Order, Blocks, Effects: as `submit_read` and `submit_write`.
  SC_DEVICE Handle submit(Lanes lanes, u8 opcode, u32 record, const Transfer& transfer,
                          u64 patience_ns);

  /// Publishes a flush.
  /// Participants: as `submit_read`. Order: none. Blocks: as `submit_read`. Effects: as `flush`.
  SC_DEVICE Handle submit_flush(Lanes lanes, u32 record, const abi::SourceView& source,
                                u64 patience_ns = FOREVER);

  /// Waits for the end of a request. Returns at once where the handle is not in flight.
  /// Participants: the lanes named. On route `pull` they bring the payloads together, hence wait
  ///   for each other; use `Lanes::alone()` where each lane is to go on by itself.
  /// Order: acquire at system scope. Effects: the handle; the buffer on route `pull`.
  /// Blocks: as `read`.
  SC_DEVICE Completion wait(Lanes lanes, Handle& handle) {
    return wait_until(lanes, handle, FOREVER);
  }

  /// As `wait`, at most `timeout_ns`: then PENDING, and the request is still in flight.
  /// Participants, Order, Effects: as `wait`. Blocks: until `timeout_ns` are over (0: one look).
  SC_DEVICE Completion wait_until(Lanes lanes, Handle& handle, u64 timeout_ns);

  /// Whether the end of a request seems to be there: one glance, for lanes with many in flight. Only
  /// a wait tells, and makes the bytes visible; a closed ring is not seen.
  /// Participants: thread. Order: none. Blocks: never. Effects: none.
  SC_DEVICE bool seems_ended(const Handle& handle) const {
    return static_cast<u16>(load_record(handle.record)) == handle.turn;
  }

  /// Asks for the early end of a request, and waits for that end at most `patience_ns`. What is
  /// returned is how it ended, CANCELLED or otherwise; with PENDING, nothing is known and record and
  /// buffer stay in flight until the host quiesces the ring or a later wait sees the end.
  /// Participants: the lanes named. Order, Effects: as `wait`.
  /// Blocks: until `patience_ns` are over (for the slot, then for the end).
  SC_DEVICE Completion cancel(Lanes lanes, Handle& handle, u64 patience_ns);

  /// Where the end of a request is told, for an agent that looks for its lane: it is there once the word
  /// under `WORD_MASK` is `word_wanted`. Only a wait tells how it ended; a closed ring is not seen.
  /// Participants: thread. Order: none. Blocks: never. Effects: none.
  static constexpr u64 WORD_MASK = 0xffff;
  SC_DEVICE const u64* word_of(const Handle& handle) const {
    return reinterpret_cast<const u64*>(view_.records) + handle.record;
  }
  SC_DEVICE u64 word_wanted(const Handle& handle) const { return handle.turn; }

 private:
  /// What one call brings to `publish_all`.
  struct Wish {
    abi::Request request;
    /// SUCCESS: publish it. Else nothing is published and this is why.
    u16 verdict;
  };

  /// How the ring stands, as loaded before a reservation.
  struct Standing {
    u64 state;
    u64 fetched;
    u64 tail;
  };

  SC_DEVICE const abi::RingControl* control() const;
  SC_DEVICE u64 load_record(u32 record) const;
  SC_DEVICE u64 load_state() const;

  // impl/ring__submit.h
  SC_DEVICE u16 check(u8 opcode, u32 record, const Transfer& transfer, u32& turn) const;
  SC_DEVICE bool moves_payload(u8 opcode) const;
  SC_DEVICE Standing look_at_ring() const;
  SC_DEVICE void publish_all(Lanes lanes, Wish& wish, Standing standing, u64 patience_ns);
  SC_DEVICE u32 reserve(u32 wanted, const Standing& standing, u64& ticket) const;
  SC_DEVICE u32 no_slot(u32& backoff_ns, u64 started_ns, u64 patience_ns) const;
  SC_DEVICE void publish(u32 granted, u64 ticket, const abi::Request& request) const;
  SC_DEVICE void store_unit(u64 ticket, u32 unit, u64 lo, u64 hi) const;

  // impl/ring__wait.h
  SC_DEVICE void poll(Handle& handle, u64 timeout_ns) const;
  SC_DEVICE bool look(Handle& handle) const;
  SC_DEVICE bool lost(Handle& handle) const;

  abi::RingView view_;
};

}  // namespace sidecore

#include "impl/ring__copy.h"
#include "impl/ring__submit.h"
#include "impl/ring__wait.h"
