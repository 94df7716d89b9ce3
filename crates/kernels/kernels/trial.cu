/// The kernel of the seeded tests: each lane does its own list of I/Os, each in the manner that the
/// plan says, and judges what it got with its own loads. The twin of its structures is
/// crates/testkit/tests/seeded/plan.rs.
#include <sidecore/pattern.h>
#include <sidecore/ring.h>

namespace trial {

using namespace sidecore;

/// What a lane does about an I/O.
enum : u32 {
  /// Waits until the end.
  MANNER_WAIT,
  /// Waits for its patience, then cancels and waits on.
  MANNER_CANCEL,
  /// Waits for its patience, then leaves the kernel with the request in flight.
  MANNER_ABANDON,
  /// Leaves the kernel instead.
  MANNER_LEAVE,
};

constexpr u32 BATCH_MAX = 4;
constexpr u64 POISON = 0xdeadbeefdeadbeefull;

struct Io {
  u64 source_offset;
  u64 buffer_offset;
  u64 patience_ns;
  u32 bytes;
  u32 opcode;
  u32 manner;
  u32 limit_ms;
};

struct Result {
  u64 latency_ns;
  u32 detail;
  u32 wrong;
  u16 status;
  u16 ends;
  u32 reserved;
};

struct Args {
  abi::RingView ring;
  abi::SourceView source;
  abi::BufferView buffer;
  u64 plan;
  u64 results;
  u32 ios_a_lane;
  u32 batch;
  u32 alone;
  u32 generation;
};

/// Who makes a call together: the lanes that are here and are about to make the same one.
SC_DEVICE Lanes who(const Args& args, u32 call) {
  if (args.alone != 0) return Lanes::alone();
  return Lanes{arch::match_any(Lanes::here().mask, call)};
}

constexpr u32 CALL_SUBMIT = 0x100;
constexpr u32 CALL_SYNCHRONOUS = 0x200;
constexpr u32 CALL_WAIT = 0x300;
constexpr u32 CALL_WAIT_UNTIL = 0x400;

SC_DEVICE Transfer transfer_of(const Args& args, const Io& io) {
  return Transfer{args.source, io.source_offset,         args.buffer,
                  io.buffer_offset, io.bytes, static_cast<u16>(io.limit_ms)};
}

/// Poisons the buffer of a read, fills that of a write.
SC_DEVICE void prepare(const Args& args, const Io& io) {
  char* const at = reinterpret_cast<char*>(args.buffer.address + io.buffer_offset);
  for (u32 unit = 0; unit < io.bytes; unit += 16) {
    u64 lo = POISON, hi = POISON;
    if (io.opcode == abi::OP_WRITE) {
      pattern::unit_words(io.source_offset + unit, args.generation, lo, hi);
    }
    arch::store_relaxed_16(at + unit, lo, hi);
  }
  // A read's payload must not meet these stores on its way.
  if (io.opcode == abi::OP_READ) arch::fence_system();
}

/// Words of a read's buffer that are not what the source holds.
SC_DEVICE u32 wrong_words(const Args& args, const Io& io) {
  const u64* const word =
      reinterpret_cast<const u64*>(args.buffer.address + io.buffer_offset);
  u32 wrong = 0;
  for (u32 unit = 0; unit < io.bytes; unit += 16) {
    u64 lo, hi;
    pattern::unit_words(io.source_offset + unit, 1, lo, hi);
    wrong += arch::load_relaxed(word + unit / 8) != lo;
    wrong += arch::load_relaxed(word + unit / 8 + 1) != hi;
  }
  return wrong;
}

SC_DEVICE Handle submit(const Args& args, Ring& ring, u32 record, const Io& io) {
  const Transfer transfer = transfer_of(args, io);
  const Lanes lanes = who(args, CALL_SUBMIT + io.opcode);
  if (io.opcode == abi::OP_READ) return ring.submit_read(lanes, record, transfer);
  if (io.opcode == abi::OP_WRITE) return ring.submit_write(lanes, record, transfer);
  return ring.submit_flush(lanes, record, args.source);
}

SC_DEVICE Completion synchronous(const Args& args, Ring& ring, u32 record, const Io& io) {
  const Transfer transfer = transfer_of(args, io);
  const Lanes lanes = who(args, CALL_SYNCHRONOUS + io.opcode);
  if (io.opcode == abi::OP_READ) return ring.read(lanes, record, transfer);
  if (io.opcode == abi::OP_WRITE) return ring.write(lanes, record, transfer);
  return ring.flush(lanes, record, args.source);
}

SC_DEVICE Completion await(const Args& args, Ring& ring, Handle& handle, const Io& io) {
  if (io.manner == MANNER_WAIT) return ring.wait(who(args, CALL_WAIT), handle);
  Completion done = ring.wait_until(who(args, CALL_WAIT_UNTIL), handle, io.patience_ns);
  if (io.manner == MANNER_ABANDON || !handle.pending()) return done;
  done = ring.cancel(Lanes::alone(), handle, io.patience_ns);
  if (!handle.pending()) return done;
  return ring.wait(Lanes::alone(), handle);
}

SC_DEVICE void judge(const Args& args, const Io& io, const Completion& done, u64 began_ns,
                     Result& result) {
  result.latency_ns = arch::timer_ns() - began_ns;
  result.status = done.status;
  result.detail = done.detail;
  result.ends = result.ends + (done.status != status::PENDING);
  result.wrong = io.opcode == abi::OP_READ && done.ok() ? wrong_words(args, io) : 0;
}

}  // namespace trial

SC_KERNEL(sidecore_trial, trial::Args, args) {
  using namespace trial;
  Ring ring;
  if (ring.attach(args.ring) != status::SUCCESS) return;
  const u32 lane = arch::block_index() * arch::block_threads() + arch::thread_index();
  const Io* const plan = reinterpret_cast<const Io*>(args.plan) + lane * args.ios_a_lane;
  Result* const results = reinterpret_cast<Result*>(args.results) + lane * args.ios_a_lane;
  for (u32 first = 0; first < args.ios_a_lane; first += args.batch) {
    Handle handles[BATCH_MAX];
    u64 began_ns[BATCH_MAX];
    for (u32 slot = 0; slot < args.batch; ++slot) {
      const Io& io = plan[first + slot];
      if (io.manner == MANNER_LEAVE) return;
      const u32 record = ring.record(lane / 32, args.batch, slot);
      prepare(args, io);
      began_ns[slot] = arch::timer_ns();
      if (args.batch == 1 && io.manner == MANNER_WAIT) {
        judge(args, io, synchronous(args, ring, record, io), began_ns[slot], results[first]);
      } else {
        handles[slot] = submit(args, ring, record, io);
      }
    }
    for (u32 slot = 0; slot < args.batch; ++slot) {
      const Io& io = plan[first + slot];
      if (args.batch == 1 && io.manner == MANNER_WAIT) continue;
      const Completion done = await(args, ring, handles[slot], io);
      judge(args, io, done, began_ns[slot], results[first + slot]);
      if (done.status == status::PENDING) return;
    }
  }
}
