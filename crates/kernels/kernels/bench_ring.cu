/// The benchmark's kernel: takes planned I/Os off a common counter and does them over a ring.
///
/// A sample is one I/O's own time: from before its ticket is reserved to after its last byte has been
/// read, whatever others wait for. So each lane waits for its own I/O alone. With a batch of 1 the
/// warp asks together, and together again once each lane has its answer. With more, a lane looks at
/// all that it has in flight and takes new I/Os as soon as any has ended, with whoever else may.
#include <sidecore/ring.h>

namespace {

using namespace sidecore;

/// Pauses between two looks at all I/Os in flight: from this to sixteen times it.
constexpr u32 PAUSE_NS = 64;

/// One of a lane's I/Os in flight.
struct Flight {
  Handle handle;
  u64 io;
  u64 started_ns;
};

/// What a lane counts before it adds to the totals.
struct Counts {
  u64 polled;
  u64 submitted;
};

/// Loads 8 bytes at any alignment.
SC_DEVICE u64 load_8(u64 at) {
  if (at % 8 == 0) return arch::load_relaxed(reinterpret_cast<const u64*>(at));
  u64 word = 0;
  for (u32 byte = 0; byte < 8; ++byte) {
    word |= static_cast<u64>(arch::load_u8(reinterpret_cast<const u8*>(at) + byte)) << byte * 8;
  }
  return word;
}

SC_DEVICE u64 load_word(u64 array, u64 index) {
  return arch::load_relaxed(reinterpret_cast<const u64*>(array) + index);
}

/// Whether the first and last 16 bytes of a read are what the host planned.
SC_DEVICE bool edges_right(const abi::BenchArgs& args, u64 io) {
  const u64 begin = args.buffer.address + io * args.io_bytes;
  const u64 end = begin + args.io_bytes - 16;
  const u64 edge = io * (sizeof(abi::BenchEdges) / 8);
  return load_8(begin) == load_word(args.edges, edge) &&
         load_8(begin + 8) == load_word(args.edges, edge + 1) &&
         load_8(end) == load_word(args.edges, edge + 2) &&
         load_8(end + 8) == load_word(args.edges, edge + 3);
}

SC_DEVICE u8 opcode_of(const abi::BenchArgs& args, u64 io) {
  return static_cast<u8>(load_word(args.plan, io * (sizeof(abi::BenchIo) / 8) + 1));
}

SC_DEVICE Flight start(const abi::BenchArgs& args, Ring& ring, Lanes lanes, u32 record, u64 io) {
  Transfer transfer{};
  transfer.source = args.source;
  transfer.source_offset = load_word(args.plan, io * (sizeof(abi::BenchIo) / 8));
  transfer.buffer = args.buffer;
  transfer.buffer_offset = io * args.io_bytes;
  transfer.bytes = args.io_bytes;
  transfer.limit_ms = static_cast<u16>(args.limit_ms);
  Flight flight;
  flight.io = io;
  flight.started_ns = arch::timer_ns();
  // Lanes of one call may ask for different things: the opcode is an argument here.
  flight.handle = ring.submit(lanes, opcode_of(args, io), record, transfer, FOREVER);
  return flight;
}

/// Waits for an I/O at most `timeout_ns`, checks and notes it; whether it has ended.
SC_DEVICE bool finish(const abi::BenchArgs& args, Ring& ring, Flight& flight, Counts& counts,
                      u64 timeout_ns) {
  const bool submitted = flight.handle.pending();
  const Completion completion = ring.wait_until(Lanes::alone(), flight.handle, timeout_ns);
  if (flight.handle.pending()) return false;
  const u64 io = flight.io;
  u16 flags = submitted ? abi::BENCH_SUBMITTED : 0;
  const bool check = (args.flags & abi::BENCH_CHECK_EDGES) != 0 && completion.ok() &&
                     flight.handle.opcode == abi::OP_READ;
  if (check && edges_right(args, io)) flags |= abi::BENCH_EDGES_RIGHT;
  const u64 ended_ns = arch::timer_ns();
  u64* const result = reinterpret_cast<u64*>(args.results) + io * (sizeof(abi::BenchResult) / 8);
  arch::store_relaxed(result, ended_ns - flight.started_ns);
  arch::store_relaxed(result + 1, static_cast<u64>(completion.detail) << 32 |
                                      static_cast<u64>(flags) << 16 | completion.status);
  counts.submitted += submitted ? 1 : 0;
  counts.polled += submitted ? 1 : 0;
  return true;
}

/// Takes the next I/Os, one a lane of `mask`; this lane's index.
SC_DEVICE u64 take(const abi::BenchArgs& args, u32 mask) {
  const u32 lane = arch::lane_index();
  const u32 leader = arch::lowest_bit(mask);
  u64 first = 0;
  if (lane == leader) {
    auto* const totals = reinterpret_cast<abi::BenchTotals*>(args.totals);
    first = arch::fetch_add_device(&totals->next, static_cast<u64>(arch::popcount(mask)));
  }
  return arch::shuffle(mask, first, leader) + arch::popcount(mask & ((1u << lane) - 1));
}

/// One I/O a lane at a time.
SC_DEVICE void work_in_step(const abi::BenchArgs& args, Ring& ring, u32 warp, u32 mask,
                            Counts& counts) {
  for (;;) {
    const u64 io = take(args, mask);
    const bool mine = io < args.ios;
    // Who finds nothing left is done; the others are the lanes below it.
    mask = arch::ballot(mask, mine);
    if (!mine) return;
    Flight flight = start(args, ring, Lanes{mask}, ring.record(warp, 1, 0), io);
    finish(args, ring, flight, counts, FOREVER);
  }
}

/// Up to `batch` <= BATCH I/Os a lane at a time.
template <u32 BATCH>
SC_DEVICE void work_apart(const abi::BenchArgs& args, Ring& ring, u32 warp, u32 mask,
                          Counts& counts) {
  const u32 batch = args.batch < BATCH ? args.batch : BATCH;
  const u64 all = batch == 64 ? ~0ull : (1ull << batch) - 1;
  Flight flights[BATCH];
  u64 busy = 0;
  bool more = true;
  u32 pause_ns = PAUSE_NS;
  while (arch::any(mask, more || busy != 0)) {
    const u64 before = busy;
    for (u32 slot = 0; slot < batch; ++slot) {
      if ((busy >> slot & 1) == 0) continue;
      if (finish(args, ring, flights[slot], counts, 0)) busy &= ~(1ull << slot);
    }
    const bool wants = more && busy != all;
    const u32 takers = arch::ballot(mask, wants);
    if (wants) {
      const u64 io = take(args, takers);
      more = io < args.ios;
      const u32 with_one = arch::ballot(takers, more);
      if (more) {
        u32 slot = 0;
        while ((busy >> slot & 1) != 0) ++slot;
        const u32 record = ring.record(warp, args.batch, slot);
        flights[slot] = start(args, ring, Lanes{with_one}, record, io);
        busy |= 1ull << slot;
      }
    }
    if (busy != before) {
      pause_ns = PAUSE_NS;
    } else if (busy != 0) {
      arch::pause(pause_ns, "bench: any completion");
      if (pause_ns < PAUSE_NS * 16) pause_ns *= 2;
    }
  }
}

}  // namespace

SC_KERNEL(sidecore_bench_ring, sidecore::abi::BenchArgs, args) {
  const auto* const views = reinterpret_cast<const abi::RingView*>(args.rings);
  const Lanes lanes = Lanes::here();
  Ring ring;
  if (args.batch == 0 || ring.attach(views[arch::block_index() % args.ring_count]) != status::SUCCESS) return;
  Counts counts{};
  const u32 warps = (arch::block_threads() + 31) / 32;
  const u32 warp = arch::block_index() * warps + arch::warp_index();
  if (args.batch == 1) {
    work_in_step(args, ring, warp, lanes.mask, counts);
  } else if (args.batch <= 8) {
    work_apart<8>(args, ring, warp, lanes.mask, counts);
  } else {
    work_apart<abi::BENCH_BATCH_MAX>(args, ring, warp, lanes.mask, counts);
  }
  auto* const totals = reinterpret_cast<abi::BenchTotals*>(args.totals);
  arch::fetch_add_device(&totals->completions_polled, counts.polled);
  arch::fetch_add_device(&totals->request_bytes, counts.submitted * sizeof(abi::RequestEntry));
}
