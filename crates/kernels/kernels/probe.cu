/// Kernels that probe a ring in the tests: what lanes may do to it, and what they must see.
#include <sidecore/pattern.h>
#include <sidecore/ring.h>

namespace {

using namespace sidecore;

/// A byte that no test data is likely to have in a row.
constexpr u8 POISON = 0xa5;
/// Bytes beside a lane's buffer that must not change, on each side.
constexpr u32 GUARD = 32;

/// A lane's place in the launch, and what it has seen.
struct Probe {
  const abi::ProbeArgs& args;
  Ring ring;
  abi::ProbeResult result;
  u32 lane;

  SC_DEVICE explicit Probe(const abi::ProbeArgs& a)
      : args(a), ring(), result(), lane(arch::block_index() * arch::block_threads() +
                                        arch::thread_index()) {
    result.status = ring.attach(a.ring);
  }

  SC_DEVICE bool attached() const { return result.status == status::SUCCESS; }

  /// Offset in the buffer of this lane's bytes.
  SC_DEVICE u64 place() const {
    return static_cast<u64>(lane) * (args.bytes + 2 * GUARD) + GUARD + args.shift;
  }

  SC_DEVICE u8* memory() const { return reinterpret_cast<u8*>(args.buffer.address + place()); }

  /// The transfer of a round: some aligned place of the source.
  SC_DEVICE Transfer transfer(u32 round) const {
    Transfer t{};
    t.source = args.source;
    const u64 places = args.source.bytes / args.bytes;
    const u64 key = (static_cast<u64>(args.seed) << 40) + (static_cast<u64>(lane) << 20) + round;
    const u64 draw = pattern::mix(key);
    t.source_offset = draw % places * args.bytes;
    t.buffer = args.buffer;
    t.buffer_offset = place();
    t.bytes = args.bytes;
    return t;
  }

  SC_DEVICE void poison() const {
    for (u32 at = 0; at < args.bytes + 2 * GUARD; ++at) {
      arch::store_u8(memory() - GUARD + at, POISON);
    }
    // The poison may not drain over the payload.
    arch::fence_system();
  }

  SC_DEVICE void check(u64 source_offset, u64 generation) {
    result.wrong_bytes += pattern::count_wrong(memory(), args.bytes, source_offset, generation);
    for (u32 at = 0; at < GUARD; ++at) {
      result.wrong_bytes += arch::load_u8(memory() - GUARD + at) != POISON;
      result.wrong_bytes += arch::load_u8(memory() + args.bytes + at) != POISON;
    }
  }

  /// Counts how a request stands.
  SC_DEVICE void count(const Completion& c) {
    if (c.ok()) {
      result.succeeded += 1;
      return;
    }
    result.status = c.status;
    switch (c.status) {
      case status::PENDING: result.pending += 1; break;
      case status::NOT_SUBMITTED: result.not_submitted += 1; break;
      case status::RECORD_BUSY: result.busy += 1; break;
      default: result.failed += 1;
    }
  }

  SC_DEVICE void report() {
    result.finished = 1;
    u64 words[4] = {static_cast<u64>(result.failed) << 32 | result.succeeded,
                    static_cast<u64>(result.not_submitted) << 32 | result.wrong_bytes,
                    static_cast<u64>(result.busy) << 32 | result.pending,
                    static_cast<u64>(result.finished) << 32 | result.status};
    u64* const target = reinterpret_cast<u64*>(args.results) + static_cast<u64>(lane) * 4;
    for (u32 word = 0; word < 4; ++word) arch::store_relaxed(target + word, words[word]);
  }
};

/// Whether this lane leaves before `round`, by seed: about one in sixteen does.
SC_DEVICE bool leaves(const Probe& p, u32 round) {
  const u64 key = (static_cast<u64>(p.args.seed) << 32) + p.lane * 4099ull + round;
  return pattern::mix(key) % 16 == 0;
}

}  // namespace

/// Each lane reads, round after round, and checks every byte. Whoever leaves early leaves the others
/// with a smaller warp. Shows: any mask, early exit, depth below the number of lanes.
SC_KERNEL(sidecore_probe_read, sidecore::abi::ProbeArgs, args) {
  Probe p(args);
  if (!p.attached()) return p.report();
  u32 mask = Lanes::here().mask;
  for (u32 round = 0; round < args.rounds; ++round) {
    const bool leave = leaves(p, round);
    mask = arch::ballot(mask, !leave);
    if (leave) break;
    const Transfer t = p.transfer(round);
    p.poison();
    const Completion c = p.ring.read(Lanes{mask}, p.lane, t);
    p.count(c);
    if (c.ok()) p.check(t.source_offset, 0);
  }
  p.report();
}

/// As `sidecore_probe_read`, each lane on its own: no call waits for another lane.
SC_KERNEL(sidecore_probe_alone, sidecore::abi::ProbeArgs, args) {
  Probe p(args);
  if (!p.attached()) return p.report();
  for (u32 round = 0; round < args.rounds && !leaves(p, round); ++round) {
    const Transfer t = p.transfer(round);
    p.poison();
    const Completion c = p.ring.read(Lanes::alone(), p.lane, t);
    p.count(c);
    if (c.ok()) p.check(t.source_offset, 0);
  }
  p.report();
}

/// Each lane writes its own part of the source with generation `seed`, flushes, and reads it back.
SC_KERNEL(sidecore_probe_write, sidecore::abi::ProbeArgs, args) {
  Probe p(args);
  if (!p.attached()) return p.report();
  const Lanes lanes = Lanes::here();
  for (u32 round = 0; round < args.rounds; ++round) {
    Transfer t = p.transfer(round);
    t.source_offset = static_cast<u64>(p.lane) * args.bytes;
    const u64 generation = static_cast<u64>(args.seed) + round;
    for (u32 at = 0; at < args.bytes; ++at) {
      arch::store_u8(p.memory() + at, pattern::byte_at(t.source_offset + at, generation));
    }
    p.count(p.ring.write(lanes, p.lane, t));
    p.count(p.ring.flush(lanes, p.lane, args.source));
    p.poison();
    const Completion c = p.ring.read(lanes, p.lane, t);
    p.count(c);
    if (c.ok()) p.check(t.source_offset, generation);
  }
  p.report();
}

/// Each lane tries for a slot with little patience and waits with little patience; a request that it
/// gave up is still in flight, which a second one in the same record must be told. In the end it
/// cancels what is left and waits for the end, so that the record is free again.
SC_KERNEL(sidecore_probe_give_up, sidecore::abi::ProbeArgs, args) {
  Probe p(args);
  if (!p.attached()) return p.report();
  const Lanes lanes = Lanes::here();
  for (u32 round = 0; round < args.rounds; ++round) {
    const Transfer t = p.transfer(round);
    p.poison();
    Handle handle = p.ring.submit_read(lanes, p.lane, t, args.patience_ns);
    if (!handle.pending()) p.count(handle.completion);
    const bool published = handle.pending();
    Completion c = p.ring.wait_until(lanes, handle, args.timeout_ns);
    if (published && handle.pending()) p.count(c);
    const bool in_flight = handle.pending();
    const u32 still = arch::ballot(lanes.mask, in_flight);
    if (in_flight) {
      const Handle second = p.ring.submit_read(Lanes{still}, p.lane, t, 0);
      // Its end may just have come; then the second request is the one to wait for.
      if (second.pending()) handle = second;
      else p.count(second.completion);
    }
    c = p.ring.cancel(lanes, handle, args.timeout_ns);
    while (arch::any(lanes.mask, handle.pending())) c = p.ring.wait(lanes, handle);
    if (published) p.count(c);
    if (published && c.ok()) p.check(t.source_offset, 0);
  }
  p.report();
}

/// Each lane publishes one request and leaves without waiting for it.
SC_KERNEL(sidecore_probe_abandon, sidecore::abi::ProbeArgs, args) {
  Probe p(args);
  if (!p.attached()) return p.report();
  const Handle handle =
      p.ring.submit_read(Lanes::here(), p.lane, p.transfer(0), args.patience_ns);
  p.count(handle.completion);
  p.report();
}

/// Each lane reads, round after round into a place of its own, and looks at none before all have
/// arrived: so nothing of its own keeps the taking of one payload before the next request of its record.
SC_KERNEL(sidecore_probe_again, sidecore::abi::ProbeArgs, args) {
  Probe p(args);
  if (!p.attached()) return p.report();
  const u64 first = static_cast<u64>(p.lane) * args.rounds;
  for (u32 round = 0; round < args.rounds; ++round) {
    Transfer t = p.transfer(round);
    t.buffer_offset = (first + round) * args.bytes;
    p.count(p.ring.read(Lanes::alone(), p.lane, t));
  }
  for (u32 round = 0; round < args.rounds; ++round) {
    const u8* const at =
        reinterpret_cast<const u8*>(args.buffer.address) + (first + round) * args.bytes;
    p.result.wrong_bytes += pattern::count_wrong(at, args.bytes, p.transfer(round).source_offset, 0);
  }
  p.report();
}
