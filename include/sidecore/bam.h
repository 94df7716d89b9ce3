/// `bam`: GPU lanes do everything, as BaM has it. Each lane that waits scans the CQ for its own
/// command; heads and doorbells move for several at a time.
///
///   sidecore::Bam queue;
///   if (queue.attach(views + block % count) != sidecore::status::SUCCESS) return;
///   const sidecore::Completion done = queue.read(sidecore::Lanes::here(), {0, buffer, 0, 4096});
///
/// What BaM leaves out is here: a status for each command, bounds on every wait, an end of waits when
/// queues are made anew, entries of lanes that have left or do not wait yet (whoever needs room, or has
/// waited in vain for a while, drains for all), and a head that nobody's entry is left behind at.
///
/// Source: BaM, ASPLOS 2023, section 4; nothing of its code.
#pragma once

#include "queue.h"

namespace sidecore {

class Bam : public QueuePair<Bam> {
 public:
  /// Whether lanes take entries of the CQ outside its lock.
  static constexpr bool SCANS = true;

  /// Whether a wait seems worth while: always, since only looking through the CQ finds an end.
  /// Participants: thread. Order: none. Blocks: never. Effects: none.
  SC_DEVICE bool seems_ended(const QueueHandle&) const { return true; }

 private:
  friend class QueuePair<Bam>;

  /// Rounds of a scan in vain before a lane drains for all, one entry after the other: rarely, since
  /// lanes that are there take theirs side by side.
  static constexpr u32 DRAIN_PERIOD = 64;

  SC_DEVICE bool may_drain() const { return true; }
  SC_DEVICE void head_moved(u64) const {}
  SC_DEVICE void make_room() { drain(true); }
  SC_DEVICE bool seek(QueueHandle& handle, u32 round);
  SC_DEVICE bool take(QueueHandle& handle, u64 position);
};

/// Scans the CQ for this lane's command; whether it was found.
///
/// Lanes of a warp find their commands at different places. They take them behind the loop, so that
/// those that are there together share the fences, and the first of them moves the head for all.
SC_DEVICE bool Bam::seek(QueueHandle& handle, u32 round) {
  const u64 head = arch::load_relaxed_device(&state()->cq_head);
  bool found = false;
  u64 at = head;
  for (bool more = true; more && at - head < depth();) {
    // Several at once, so that their loads are under way together.
    u64 answers[QUEUE_GLANCE];
    for (u32 n = 0; n < QUEUE_GLANCE; ++n) answers[n] = load_answer(at + n);
    for (u32 n = 0; n < QUEUE_GLANCE && more; ++n) {
      found = at - head < depth() && is_new(answers[n], at) &&
              (answers[n] >> 32 & 0xffff) == handle.cid;
      more = !found && at - head < depth() && is_new(answers[n], at);
      if (more) ++at;
    }
  }
  if (found && take(handle, at)) {
    drain(false);
    return true;
  }
  if (round % DRAIN_PERIOD == 0) drain(true);
  return false;
}

/// Takes an entry that names this lane's command, unless another lane has, or the queue is no more.
SC_DEVICE bool Bam::take(QueueHandle& handle, u64 position) {
  u32 epoch = 0;
  if (enter(epoch) != 1) return false;
  // Seen again inside, so that it is of this epoch.
  const u64 answer = load_answer(position);
  const bool mine = epoch == handle.epoch && is_new(answer, position) &&
                    (answer >> 32 & 0xffff) == handle.cid && claim(position);
  if (mine) {
    // The payload was stored before the entry.
    arch::fence_acquire_system();
    arch::fetch_add_device(&state()->drained, 1ull);
    handle.drained = handle.by_gpu = true;
    end(handle, static_cast<u16>(answer >> 49));
  }
  leave();
  return mine;
}

}  // namespace sidecore
