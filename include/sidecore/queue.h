/// NVMe queue pairs, device side: what `bam.h` and `copilot.h` share. Include one of those.
///
/// Lanes build the commands, take command ids, ring the SQ's doorbell once for a run of commands, and
/// wait for their command's completion word. What differs is who looks into the CQ: that is the
/// template's argument.
///
/// A *handle* is a command in flight. It stays in flight until a call returns something else than
/// `status::PENDING` for it. Whoever will not wait for it any longer gives it to `retire`: then its
/// command id is used again only once its completion has been drained. Its buffer stays the drive's.
///
/// Where the host has to make the queues anew, commands in flight are sent once more by those that
/// wait for them; the one that was complained of ends as TIMED_OUT, and one that is lost a second
/// time as the drive's own "aborted due to SQ deletion".
///
/// Statuses that only the device makes: NOT_SUBMITTED, PENDING; BAD_LENGTH, BUFFER_RANGE, TIMED_OUT
/// and RING_CLOSED it makes itself too.
#pragma once

#include "impl/abi__types.h"
#include "impl/arch.h"
#include "impl/queue__command.h"
#include "lanes.h"

namespace sidecore {

/// What to move: `bytes` bytes between a namespace and a buffer.
struct QueueTransfer {
  /// In bytes; a multiple of the block.
  u64 namespace_offset;
  abi::DmaBufferView buffer;
  /// In bytes; a multiple of 4.
  u64 buffer_offset;
  /// A multiple of the block, at most the queue's largest transfer.
  u32 bytes;
};

/// A command that was asked for. Copy it as you like; use only one of the copies.
struct QueueHandle {
  u64 namespace_offset;
  /// Bus address of the first byte.
  u64 bus;
  /// When it was sent first, and when it is due to be complained of.
  u64 sent_ns;
  u64 due_ns;
  u32 bytes;
  u32 cid;
  /// Epoch of the queue pair when it was sent.
  u32 epoch;
  /// Looks at its completion so far.
  u32 polls;
  u8 opcode;
  /// How often it was sent.
  u8 sends;
  bool complained;
  /// Whether its completion was drained from the CQ, and by a lane.
  bool drained;
  bool by_gpu;
  /// Whether the host has not reacted to eight complaints: waiting longer is in vain.
  bool hopeless;
  /// PENDING while in flight, then how it ended.
  Completion completion;

  /// Whether it is in flight as far as this lane knows.
  /// Participants: thread. Order: none. Blocks: never. Effects: none.
  SC_DEVICE bool pending() const { return completion.status == status::PENDING; }
};

/// A queue pair that a kernel is attached to. `Protocol` says who drains the CQ.
template <class Protocol>
class QueuePair {
 public:
  /// Attaches to a queue pair of this version and protocol, whose view stays where it is. SUCCESS,
  /// or RING_CLOSED.
  /// Participants: thread. Order: none. Blocks: never. Effects: this object.
  SC_DEVICE u16 attach(const abi::QueuePairView* view);

  /// Reads from the namespace into the buffer, and waits for it.
  /// Participants: the lanes named. Order: the bytes read are visible to the caller.
  /// Blocks: until the command ends; eight of the queue's limits at most: then PENDING, and the handle
  ///   is retired. Effects: the buffer; doorbells, sometimes for others.
  SC_DEVICE Completion read(Lanes lanes, const QueueTransfer& transfer);

  /// Writes from the buffer to the namespace, and waits for it.
  /// Participants: the lanes named. Order: what the caller, or a lane named, stored to the buffer
  ///   before is what is written. Blocks, Effects: as `read`.
  SC_DEVICE Completion write(Lanes lanes, const QueueTransfer& transfer);

  /// Makes the writes that have ended durable, and waits for it.
  /// Participants: the lanes named. Order: none. Blocks: as `read`. Effects: durability.
  SC_DEVICE Completion flush(Lanes lanes);

  /// Sends OP_READ, OP_WRITE or OP_FLUSH (lanes of one call may ask for different ones), with at most
  /// `patience_ns` of waiting for a slot and a command id (0: one attempt). While the queue is full
  /// the callers drain it, so that more may be in flight than it is deep; but not more, of those that
  /// nobody has waited for yet, than it has command ids.
  /// Participants: the lanes named; lanes that get nothing hold nothing and may leave.
  /// Order: as `read` once the end was seen by `wait`; as `write`. Effects: as `read`.
  /// Blocks: until sent, or NOT_SUBMITTED after `patience_ns`, or after eight limits in which the
  ///   drive fetched nothing.
  SC_DEVICE QueueHandle submit(Lanes lanes, u8 opcode, const QueueTransfer& transfer,
                               u64 patience_ns = FOREVER);

  /// Sends a read. Participants, Order, Blocks, Effects: as `submit`.
  SC_DEVICE QueueHandle submit_read(Lanes lanes, const QueueTransfer& transfer,
                                    u64 patience_ns = FOREVER) {
    return submit(lanes, abi::OP_READ, transfer, patience_ns);
  }

  /// Sends a write. Participants, Order, Blocks, Effects: as `submit`.
  SC_DEVICE QueueHandle submit_write(Lanes lanes, const QueueTransfer& transfer,
                                     u64 patience_ns = FOREVER) {
    return submit(lanes, abi::OP_WRITE, transfer, patience_ns);
  }

  /// Sends a flush. Participants, Order, Blocks, Effects: as `submit`.
  SC_DEVICE QueueHandle submit_flush(Lanes lanes, u64 patience_ns = FOREVER);

  /// Waits for the end of a command. Returns at once where the handle is not in flight.
  /// Participants: thread; lanes do not wait for each other. Order: acquire at system scope.
  /// Blocks: as `read`; with PENDING the handle is still the caller's. Effects: as `read`.
  SC_DEVICE Completion wait(QueueHandle& handle) { return wait_until(handle, FOREVER); }

  /// As `wait`, at most `timeout_ns` (0: one look): then PENDING, and the command is in flight still.
  /// With second reads, the end of that read is waited for in any case.
  /// Participants, Order, Effects: as `wait`. Blocks: until `timeout_ns` are over.
  SC_DEVICE Completion wait_until(QueueHandle& handle, u64 timeout_ns);

  /// Leaves a command to its fate; a lane that returns while a handle is pending must call it.
  /// Participants: thread. Order: none. Blocks: never. Effects: the handle; its command id.
  SC_DEVICE void retire(const QueueHandle& handle);

  /// Where the end of a command is told, for an agent that looks for its lane: it is there once the word
  /// under `WORD_MASK` is `word_wanted`. Only a wait tells how it ended; an end by a new epoch, or of
  /// what a lane drains itself, is not seen there.
  /// Participants: thread. Order: none. Blocks: never. Effects: none.
  static constexpr u64 WORD_MASK = static_cast<u64>(abi::COMPLETION_DONE) << 48 | 0xffff;
  SC_DEVICE const u64* word_of(const QueueHandle& handle) const {
    return word(view_->completions, handle.cid);
  }
  SC_DEVICE u64 word_wanted(const QueueHandle& handle) const {
    return static_cast<u64>(abi::COMPLETION_DONE) << 48 | static_cast<u16>(handle.epoch);
  }

 protected:
  SC_DEVICE Protocol& protocol() { return *static_cast<Protocol*>(this); }
  SC_DEVICE abi::QueueState* state() const {
    return reinterpret_cast<abi::QueueState*>(view_->state);
  }
  SC_DEVICE u64 depth() const { return 1ull << view_->depth_log2; }
  SC_DEVICE u64 slot_of(u64 position) const { return position & (depth() - 1); }
  SC_DEVICE u64 limit_ns() const { return view_->limit_ms * 1000000ull; }
  SC_DEVICE u64* word(u64 array, u64 index) const { return reinterpret_cast<u64*>(array) + index; }

  // impl/queue__submit.h
  SC_DEVICE u16 check(u8 opcode, const QueueTransfer& transfer) const;
  SC_OUTLINE void send(u32 mask, QueueHandle& handle, u64 patience_ns);
  SC_DEVICE bool take_cid(u32& cid) const;
  SC_DEVICE void free_cid(const QueueHandle& handle) const;
  SC_DEVICE u32 enter(u32& epoch) const;
  SC_DEVICE void leave() const;
  SC_DEVICE u32 reserve(u32 wanted, u64& ticket) const;
  SC_DEVICE void publish(u32 granted, u64 ticket, const QueueHandle& handle) const;
  SC_DEVICE void push_tail() const;
  SC_DEVICE void complain(u64 entry, u32 epoch, u32 uses) const;

  // impl/queue__drain.h
  SC_OUTLINE void drain(bool everything);
  SC_DEVICE void pass(bool everything);
  SC_DEVICE u64 load_answer(u64 position) const;
  SC_DEVICE bool is_new(u64 answer, u64 position) const;
  SC_DEVICE bool claim(u64 position) const;
  SC_DEVICE bool is_retired(u64 answer) const;
  SC_DEVICE void deliver(u64 answer, u32 epoch) const;
  SC_DEVICE void move_head(u64 to, u64 last) const;

  // impl/queue__wait.h
  SC_DEVICE bool look(QueueHandle& handle) const;
  SC_DEVICE void end(QueueHandle& handle, u16 status) const;
  SC_DEVICE bool lost(QueueHandle& handle);
  SC_DEVICE bool late(QueueHandle& handle) const;
  SC_OUTLINE void poll(QueueHandle& handle, u64 timeout_ns);
  SC_OUTLINE u16 second_read(const QueueHandle& handle);
  SC_DEVICE Completion await(QueueHandle& handle);

  const abi::QueuePairView* view_;
};

}  // namespace sidecore

#include "impl/queue__submit.h"
#include "impl/queue__drain.h"
#include "impl/queue__wait.h"
