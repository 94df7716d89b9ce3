/// `copilot`: lanes submit, a CPU agent drains the CQ and stores each command's completion word, as
/// CoPilotIO has it. Where the host gives the CQ to the lanes (co-polling), whoever waits drains it
/// for all, and gives it back when asked.
///
///   sidecore::Copilot queue;
///   if (queue.attach(views + block % count) != sidecore::status::SUCCESS) return;
///   sidecore::QueueHandle handle = queue.submit_read(sidecore::Lanes::here(), {0, buffer, 0, 4096});
///   const sidecore::Completion done = queue.wait(handle);
///
/// CoPilotIO releases waiters through a hardware barrier. A CPU cannot signal one: lanes look at
/// a word in device memory instead, with pauses that grow.
///
/// Source: CoPilotIO, OSDI 2026, sections 4 and 5; nothing of its code.
#pragma once

#include "queue.h"

namespace sidecore {

class Copilot : public QueuePair<Copilot> {
 public:
  /// Whether lanes take entries of the CQ outside its lock.
  static constexpr bool SCANS = false;

  /// Whether the end of a command seems to be there: one glance, for lanes with many in flight. Only a
  /// wait tells, makes the bytes visible, and drains where the CQ is the lanes'.
  /// Participants: thread. Order: none. Blocks: never. Effects: none.
  SC_DEVICE bool seems_ended(const QueueHandle& handle) const {
    return (arch::load_relaxed(word_of(handle)) & WORD_MASK) == word_wanted(handle);
  }

 private:
  friend class QueuePair<Copilot>;

  SC_DEVICE bool may_drain() const;
  SC_DEVICE void head_moved(u64 to) const;
  SC_DEVICE void make_room();
  SC_DEVICE void adopt(u64 owner) const;
  SC_DEVICE void hand_back(u64 owner) const;
  SC_DEVICE void report(u64 owner, u64 kind, u64 head) const;
  SC_DEVICE bool seek(QueueHandle& handle, u32 round);
};

/// Drains for all where the CQ is the lanes', or gives it back, unless a lane is at it.
SC_DEVICE void Copilot::make_room() {
  const u64 owner = arch::load_relaxed(word(view_->owner, 0));
  const u32 kind = static_cast<u32>(owner & 0xff);
  if (kind != abi::OWNER_GPU && kind != abi::OWNER_RECALL) return;
  if (arch::load_relaxed_device(&state()->returned) == owner) return;
  if (arch::load_relaxed_device(&state()->head_lock) == 0) drain(true);
}

SC_DEVICE bool Copilot::seek(QueueHandle& handle, u32) {
  make_room();
  return look(handle);
}

/// Whether the holder of the lock may drain; it takes over, or hands back, what it must.
SC_DEVICE bool Copilot::may_drain() const {
  const u64 owner = arch::load_relaxed(word(view_->owner, 0));
  const u32 kind = static_cast<u32>(owner & 0xff);
  if (kind != abi::OWNER_GPU && kind != abi::OWNER_RECALL) return false;
  adopt(owner);
  if (kind == abi::OWNER_RECALL) hand_back(owner);
  return kind == abi::OWNER_GPU;
}

/// Takes over at the host's head, once for each turn.
SC_DEVICE void Copilot::adopt(u64 owner) const {
  abi::QueueState* const s = state();
  const u64 turn = (owner & ~0xffull) | abi::OWNER_GPU;
  if (arch::load_relaxed_device(&s->adopted) == turn) return;
  // The host's last words, its doorbell and its SQ head came before its owner word.
  arch::fence_acquire_system();
  u64 head = arch::load_relaxed_device(&s->cq_head);
  head += static_cast<u32>(owner >> 32) - static_cast<u32>(head);
  arch::store_relaxed_device(&s->cq_head, head);
  arch::store_relaxed_device(&s->reported, head);
  arch::store_relaxed_device(&s->adopted, turn);
}

/// Gives the CQ back; nothing of it is touched any more in this turn.
SC_DEVICE void Copilot::hand_back(u64 owner) const {
  abi::QueueState* const s = state();
  if (arch::load_relaxed_device(&s->returned) == owner) return;
  arch::store_relaxed_device(&s->returned, owner);
  // Completion words, SQ head and doorbell of this turn came before the hand-over: who drained has fenced
  // before it gave up the lock, and this lane since it took it.
  report(owner, abi::OWNER_CPU, arch::load_relaxed_device(&s->cq_head));
}

/// Stores the head in the host's memory.
SC_DEVICE void Copilot::report(u64 owner, u64 kind, u64 head) const {
  if (view_->report == 0) return;
  const u64 phase = ~(head >> view_->depth_log2) & 1;
  arch::store_relaxed(word(view_->report, 0),
                      kind | phase << 8 | (owner & 0xffff0000ull) | head << 32);
}

/// Reports from time to time how far the lanes are.
SC_DEVICE void Copilot::head_moved(u64 to) const {
  abi::QueueState* const s = state();
  const u32 period = view_->report_period;
  if (period == 0 || to - arch::load_relaxed_device(&s->reported) < period) return;
  arch::store_relaxed_device(&s->reported, to);
  report(arch::load_relaxed_device(&s->adopted), abi::OWNER_GPU, to);
}

}  // namespace sidecore
