/// Kernels that probe queue pairs in the tests, of both protocols: what lanes may do to one, and what
/// they must see.
#include <sidecore/bam.h>
#include <sidecore/copilot.h>
#include <sidecore/pattern.h>

namespace {

using namespace sidecore;

/// A byte that no test data is likely to have in a row.
constexpr u8 POISON = 0xa5;
/// Most commands that a lane has in flight.
constexpr u32 BATCH_MAX = 16;

/// A lane's place in the launch, and what it has seen.
template <class Queue>
struct Probe {
  const abi::QueueProbeArgs& args;
  Queue queue{};
  abi::ProbeResult result{};
  u32 lane;

  SC_DEVICE explicit Probe(const abi::QueueProbeArgs& a)
      : args(a),
        lane(arch::block_index() * arch::block_threads() + arch::thread_index()) {
    result.status = queue.attach(&a.queue);
  }

  SC_DEVICE bool attached() const { return result.status == status::SUCCESS; }

  /// Offset in the buffer of one of this lane's places.
  SC_DEVICE u64 place(u32 slot) const {
    return (static_cast<u64>(lane) * args.batch + slot) * args.bytes;
  }
  SC_DEVICE u8* memory(u32 slot) const {
    return reinterpret_cast<u8*>(args.buffer.address + place(slot));
  }

  /// The transfer of a round: some place of the namespace.
  SC_DEVICE QueueTransfer transfer(u32 round, u32 slot) const {
    const u64 places = args.source_bytes / args.bytes;
    const u64 key = (static_cast<u64>(args.seed) << 40) + (static_cast<u64>(lane) << 20) +
                    round * BATCH_MAX + slot;
    QueueTransfer t{};
    t.namespace_offset = pattern::mix(key) % places * args.bytes;
    t.buffer = args.buffer;
    t.buffer_offset = place(slot);
    t.bytes = args.bytes;
    return t;
  }

  SC_DEVICE void poison(u32 slot) const {
    // The first bytes of each block and the last of all: enough to tell that nothing came.
    for (u32 at = 0; at < args.bytes; at += 512) arch::store_u8(memory(slot) + at, POISON);
    arch::store_u8(memory(slot) + args.bytes - 1, POISON);
    // The poison may not drain over the payload.
    arch::fence_system();
  }

  SC_DEVICE void check(u32 slot, u64 offset, u64 generation) {
    result.wrong_bytes += pattern::count_wrong(memory(slot), args.bytes, offset, generation);
  }

  /// Counts how a command stands.
  SC_DEVICE void count(const Completion& c) {
    if (c.ok()) {
      result.succeeded += 1;
      return;
    }
    result.status = c.status;
    switch (c.status) {
      case status::PENDING: result.pending += 1; break;
      case status::NOT_SUBMITTED: result.not_submitted += 1; break;
      default: result.failed += 1;
    }
  }

  SC_DEVICE void report() {
    result.finished = 1;
    const u64 words[4] = {static_cast<u64>(result.failed) << 32 | result.succeeded,
                          static_cast<u64>(result.not_submitted) << 32 | result.wrong_bytes,
                          static_cast<u64>(result.busy) << 32 | result.pending,
                          static_cast<u64>(result.finished) << 32 | result.status};
    u64* const target = reinterpret_cast<u64*>(args.results) + static_cast<u64>(lane) * 4;
    for (u32 word = 0; word < 4; ++word) arch::store_relaxed(target + word, words[word]);
  }
};

/// Whether this lane leaves before `round`, by seed: about one in sixteen does.
template <class P>
SC_DEVICE bool leaves(const P& p, u32 round) {
  const u64 key = (static_cast<u64>(p.args.seed) << 32) + p.lane * 4099ull + round;
  return pattern::mix(key) % 16 == 0;
}

/// Each lane reads, round after round, and checks every byte. Whoever leaves early leaves a command
/// in flight behind.
template <class Queue>
SC_DEVICE void read_rounds(const abi::QueueProbeArgs& args) {
  Probe<Queue> p(args);
  if (!p.attached()) return p.report();
  u32 mask = Lanes::here().mask;
  for (u32 round = 0; round < args.rounds; ++round) {
    const bool leave = leaves(p, round);
    mask = arch::ballot(mask, !leave);
    const QueueTransfer t = p.transfer(round, 0);
    if (leave) {
      const QueueHandle left = p.queue.submit_read(Lanes::alone(), t, args.patience_ns);
      p.result.busy += left.pending() ? 1 : 0;
      p.queue.retire(left);
      break;
    }
    p.poison(0);
    const Completion c = p.queue.read(Lanes{mask}, t);
    p.count(c);
    if (c.ok()) p.check(0, t.namespace_offset, 0);
  }
  p.report();
}

/// Each lane has `batch` reads in flight, asked for before any is waited for, and takes their ends in
/// the opposite order.
template <class Queue>
SC_DEVICE void read_batches(const abi::QueueProbeArgs& args) {
  Probe<Queue> p(args);
  if (!p.attached()) return p.report();
  const Lanes lanes = Lanes::here();
  QueueHandle handles[BATCH_MAX];
  for (u32 round = 0; round < args.rounds; ++round) {
    for (u32 slot = 0; slot < args.batch; ++slot) {
      p.poison(slot);
      handles[slot] = p.queue.submit_read(lanes, p.transfer(round, slot), args.patience_ns);
    }
    for (u32 slot = args.batch; slot-- > 0;) {
      const Completion c = p.queue.wait(handles[slot]);
      p.queue.retire(handles[slot]);
      p.count(c);
      if (c.ok()) p.check(slot, p.transfer(round, slot).namespace_offset, 0);
    }
  }
  p.report();
}

/// A lane that wants others' entries drained, as one without room does; but it asks only whoever is at
/// it, and while there is something to drain.
class Asker : public Bam {
 public:
  SC_DEVICE void ask() {
    const u64 head = arch::load_relaxed_device(&state()->cq_head);
    if (arch::load_relaxed_device(&state()->head_lock) == 0) return;
    if (is_new(load_answer(head), head)) drain(true);
  }
};

/// The lanes of the first block have a read in flight each, and wait for them one after the other, the
/// last first: nobody looks for the ends of the others until then, as where lanes that have found
/// theirs wait for the rest of their warp. The lanes of the other blocks ask them to drain everything.
SC_DEVICE void read_in_turn(const abi::QueueProbeArgs& args) {
  Probe<Asker> p(args);
  if (!p.attached()) return p.report();
  if (arch::block_index() != 0) {
    const u64* const results = reinterpret_cast<const u64*>(args.results);
    for (u32 lane = 0; lane < arch::block_threads();) {
      if (arch::load_relaxed(results + lane * 4 + 3) >> 32 != 0) {
        ++lane;
        continue;
      }
      p.queue.ask();
      arch::pause(32, "queue: an end of another block");
    }
    return p.report();
  }
  const Lanes lanes = Lanes::here();
  for (u32 round = 0; round < args.rounds; ++round) {
    const QueueTransfer t = p.transfer(round, 0);
    p.poison(0);
    QueueHandle handle = p.queue.submit_read(lanes, t, args.patience_ns);
    for (u32 turn = 32; turn-- > 0;) {
      if (turn == arch::lane_index()) p.queue.wait(handle);
      arch::sync_warp(lanes.mask);
    }
    p.queue.retire(handle);
    p.count(handle.completion);
    if (handle.completion.ok()) p.check(0, t.namespace_offset, 0);
  }
  p.report();
}

/// Each lane writes its own part of the namespace with generation `seed`, flushes, and reads it back.
template <class Queue>
SC_DEVICE void write_rounds(const abi::QueueProbeArgs& args) {
  Probe<Queue> p(args);
  if (!p.attached()) return p.report();
  const Lanes lanes = Lanes::here();
  for (u32 round = 0; round < args.rounds; ++round) {
    QueueTransfer t = p.transfer(round, 0);
    t.namespace_offset = static_cast<u64>(p.lane) * args.bytes;
    const u64 generation = static_cast<u64>(args.seed) + round;
    for (u32 at = 0; at < args.bytes; ++at) {
      arch::store_u8(p.memory(0) + at, pattern::byte_at(t.namespace_offset + at, generation));
    }
    p.count(p.queue.write(lanes, t));
    p.count(p.queue.flush(lanes));
    p.poison(0);
    const Completion c = p.queue.read(lanes, t);
    p.count(c);
    if (c.ok()) p.check(0, t.namespace_offset, generation);
  }
  p.report();
}

/// Each lane sends with little patience and waits with little patience, then as long as it takes.
template <class Queue>
SC_DEVICE void give_up(const abi::QueueProbeArgs& args) {
  Probe<Queue> p(args);
  if (!p.attached()) return p.report();
  const Lanes lanes = Lanes::here();
  for (u32 round = 0; round < args.rounds; ++round) {
    const QueueTransfer t = p.transfer(round, 0);
    p.poison(0);
    QueueHandle handle = p.queue.submit_read(lanes, t, args.patience_ns);
    if (!handle.pending()) {
      p.count(handle.completion);
      continue;
    }
    if (p.queue.wait_until(handle, args.timeout_ns).status == status::PENDING) p.result.busy += 1;
    const Completion c = p.queue.wait(handle);
    p.queue.retire(handle);
    p.count(c);
    if (c.ok()) p.check(0, t.namespace_offset, 0);
  }
  p.report();
}

}  // namespace

SC_KERNEL(sidecore_bam_read, sidecore::abi::QueueProbeArgs, args) { read_rounds<Bam>(args); }
SC_KERNEL(sidecore_bam_batch, sidecore::abi::QueueProbeArgs, args) { read_batches<Bam>(args); }
SC_KERNEL(sidecore_bam_turns, sidecore::abi::QueueProbeArgs, args) { read_in_turn(args); }
SC_KERNEL(sidecore_bam_write, sidecore::abi::QueueProbeArgs, args) { write_rounds<Bam>(args); }
SC_KERNEL(sidecore_bam_give_up, sidecore::abi::QueueProbeArgs, args) { give_up<Bam>(args); }
SC_KERNEL(sidecore_copilot_read, sidecore::abi::QueueProbeArgs, args) { read_rounds<Copilot>(args); }
SC_KERNEL(sidecore_copilot_batch, sidecore::abi::QueueProbeArgs, args) {
  read_batches<Copilot>(args);
}
SC_KERNEL(sidecore_copilot_write, sidecore::abi::QueueProbeArgs, args) {
  write_rounds<Copilot>(args);
}
SC_KERNEL(sidecore_copilot_give_up, sidecore::abi::QueueProbeArgs, args) { give_up<Copilot>(args); }
