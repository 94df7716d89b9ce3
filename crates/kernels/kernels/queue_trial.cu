/// The kernels of the seeded tests of queue pairs: each lane does its own list of I/Os, in the manner
/// that the plan says, and judges what it got with its own loads. The twin of its structures is
/// crates/testkit/tests/seeded_queues/plan.rs.
#include <sidecore/bam.h>
#include <sidecore/copilot.h>
#include <sidecore/pattern.h>

namespace queue_trial {

using namespace sidecore;

/// What a lane does about an I/O.
enum : u32 {
  /// Waits until the end.
  MANNER_WAIT,
  /// Waits for its patience first, then until the end.
  MANNER_LOOK,
  /// Waits for its patience, then leaves the kernel with its commands in flight.
  MANNER_ABANDON,
};

constexpr u32 BATCH_MAX = 4;
constexpr u64 POISON = 0xdeadbeefdeadbeefull;

struct Io {
  u64 offset;
  u64 buffer_offset;
  u64 patience_ns;
  u32 bytes;
  u32 opcode;
  u32 manner;
  u32 reserved;
};

struct Result {
  u64 latency_ns;
  u32 wrong;
  u16 status;
  u16 ends;
};

struct Args {
  u64 views;
  u64 plan;
  u64 results;
  abi::DmaBufferView buffer;
  u32 view_count;
  u32 ios_a_lane;
  u32 batch;
  u32 alone;
  u32 generation;
  u32 reserved;
};

/// Who makes a call together: the lanes that are here and are about to make the same one.
SC_DEVICE Lanes who(const Args& args, u32 call) {
  if (args.alone != 0) return Lanes::alone();
  return Lanes{arch::match_any(Lanes::here().mask, call)};
}

constexpr u32 CALL_SUBMIT = 0x100;
constexpr u32 CALL_SYNCHRONOUS = 0x200;

/// Poisons both ends of a read's buffer, fills that of a write.
SC_DEVICE void prepare(const Args& args, const Io& io) {
  char* const at = reinterpret_cast<char*>(args.buffer.address + io.buffer_offset);
  if (io.opcode == abi::OP_READ) {
    arch::store_relaxed_16(at, POISON, POISON);
    arch::store_relaxed_16(at + io.bytes - 16, POISON, POISON);
    // The payload must not meet these stores on its way.
    arch::fence_system();
  }
  if (io.opcode != abi::OP_WRITE) return;
  for (u32 unit = 0; unit < io.bytes; unit += 16) {
    u64 lo, hi;
    pattern::unit_words(io.offset + unit, args.generation, lo, hi);
    arch::store_relaxed_16(at + unit, lo, hi);
  }
}

/// Words at both ends of a read's buffer that are not what the namespace holds.
SC_DEVICE u32 wrong_words(const Args& args, const Io& io) {
  const u64* const word = reinterpret_cast<const u64*>(args.buffer.address + io.buffer_offset);
  u32 wrong = 0;
  for (u32 unit = 0; unit < io.bytes; unit += io.bytes - 16) {
    u64 lo, hi;
    pattern::unit_words(io.offset + unit, 1, lo, hi);
    wrong += arch::load_relaxed(word + unit / 8) != lo;
    wrong += arch::load_relaxed(word + unit / 8 + 1) != hi;
  }
  return wrong;
}

template <class Queue>
SC_DEVICE Completion synchronous(const Args& args, Queue& queue, const Io& io) {
  const QueueTransfer transfer{io.offset, args.buffer, io.buffer_offset, io.bytes};
  const Lanes lanes = who(args, CALL_SYNCHRONOUS + io.opcode);
  if (io.opcode == abi::OP_READ) return queue.read(lanes, transfer);
  if (io.opcode == abi::OP_WRITE) return queue.write(lanes, transfer);
  return queue.flush(lanes);
}

template <class Queue>
SC_DEVICE QueueHandle submit(const Args& args, Queue& queue, const Io& io) {
  const QueueTransfer transfer{io.offset, args.buffer, io.buffer_offset, io.bytes};
  return queue.submit(who(args, CALL_SUBMIT), static_cast<u8>(io.opcode), transfer);
}

SC_DEVICE void judge(const Args& args, const Io& io, const Completion& done, u64 began_ns,
                     Result& result) {
  result.latency_ns = arch::timer_ns() - began_ns;
  result.status = done.status;
  result.ends = result.ends + (done.status != status::PENDING);
  result.wrong = io.opcode == abi::OP_READ && done.ok() ? wrong_words(args, io) : 0;
}

template <class Queue>
SC_DEVICE void run(const Args& args) {
  Queue queue;
  const abi::QueuePairView* const views = reinterpret_cast<const abi::QueuePairView*>(args.views);
  if (queue.attach(views + arch::block_index() % args.view_count) != status::SUCCESS) return;
  const u32 lane = arch::block_index() * arch::block_threads() + arch::thread_index();
  const Io* const plan = reinterpret_cast<const Io*>(args.plan) + lane * args.ios_a_lane;
  Result* const results = reinterpret_cast<Result*>(args.results) + lane * args.ios_a_lane;
  for (u32 first = 0; first < args.ios_a_lane; first += args.batch) {
    QueueHandle handles[BATCH_MAX];
    u64 began_ns[BATCH_MAX];
    for (u32 slot = 0; slot < args.batch; ++slot) {
      const Io& io = plan[first + slot];
      prepare(args, io);
      began_ns[slot] = arch::timer_ns();
      if (args.batch == 1 && io.manner == MANNER_WAIT) {
        judge(args, io, synchronous(args, queue, io), began_ns[slot], results[first]);
      } else {
        handles[slot] = submit(args, queue, io);
      }
    }
    for (u32 slot = 0; slot < args.batch; ++slot) {
      const Io& io = plan[first + slot];
      if (args.batch == 1 && io.manner == MANNER_WAIT) continue;
      if (io.manner != MANNER_WAIT) queue.wait_until(handles[slot], io.patience_ns);
      if (io.manner != MANNER_ABANDON) queue.wait(handles[slot]);
      judge(args, io, handles[slot].completion, began_ns[slot], results[first + slot]);
      if (io.manner != MANNER_ABANDON) continue;
      for (u32 left = slot; left < args.batch; ++left) queue.retire(handles[left]);
      return;
    }
  }
}

}  // namespace queue_trial

SC_KERNEL(sidecore_queue_trial_bam, queue_trial::Args, args) {
  queue_trial::run<sidecore::Bam>(args);
}

SC_KERNEL(sidecore_queue_trial_copilot, queue_trial::Args, args) {
  queue_trial::run<sidecore::Copilot>(args);
}
