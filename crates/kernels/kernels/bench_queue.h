/// Queue pairs as the benchmark uses them, of either protocol.
#pragma once

#include <sidecore/queue.h>

#include "bench.h"

namespace bench {

/// A queue pair: the block's.
template <class Queue>
struct QueueLink {
  using Args = abi::QueueBenchArgs;
  using Handle = QueueHandle;
  using Totals = abi::QueueBenchTotals;

  const Args& args;
  Queue queue{};
  u64 by_gpu = 0;
  u64 by_cpu = 0;
  u64 sends = 0;
  u64 polls = 0;

  SC_DEVICE explicit QueueLink(const Args& a) : args(a) {}

  SC_DEVICE bool attach() {
    const auto* const views = reinterpret_cast<const abi::QueuePairView*>(args.queues);
    return queue.attach(views + arch::block_index() % args.queue_count) == status::SUCCESS;
  }

  SC_DEVICE Handle submit(Lanes lanes, u32, u32, u64 io, u8 opcode, u64 offset) {
    QueueTransfer transfer{};
    transfer.namespace_offset = offset;
    transfer.buffer = args.buffer;
    transfer.buffer_offset = io * args.io_bytes;
    transfer.bytes = args.io_bytes;
    return queue.submit(lanes, opcode, transfer);
  }

  SC_DEVICE Completion wait_until(Lanes, Handle& handle, u64 timeout_ns) {
    return queue.wait_until(handle, timeout_ns);
  }

  static constexpr bool ROOMY = false;
  static constexpr u64 WORD_MASK = Queue::WORD_MASK;
  SC_DEVICE const u64* word_of(const Handle& handle) const { return queue.word_of(handle); }
  SC_DEVICE u64 word_wanted(const Handle& handle) const { return queue.word_wanted(handle); }

  SC_DEVICE bool together() const { return false; }
  SC_DEVICE bool seems_ended(const Handle& handle) const { return queue.seems_ended(handle); }
  /// Whether the host does not react any more: then nobody waits for the I/O, which stays PENDING.
  SC_DEVICE bool forget(const Handle& handle, u64 timeout_ns) {
    if (timeout_ns != FOREVER && !handle.hopeless) return false;
    queue.retire(handle);
    return true;
  }

  SC_DEVICE void count(const Handle& handle) {
    sends += handle.sends;
    polls += handle.polls;
    if (handle.pending()) return;
    by_gpu += handle.drained && handle.by_gpu ? 1 : 0;
    by_cpu += handle.drained && !handle.by_gpu ? 1 : 0;
  }

  SC_DEVICE void add_counts() const {
    auto* const totals = reinterpret_cast<Totals*>(args.totals);
    arch::fetch_add_device(&totals->polled_by_gpu, by_gpu);
    arch::fetch_add_device(&totals->polled_by_cpu, by_cpu);
    arch::fetch_add_device(&totals->request_bytes, sends * 64);
    arch::fetch_add_device(&totals->polls, polls);
  }
};

}  // namespace bench
