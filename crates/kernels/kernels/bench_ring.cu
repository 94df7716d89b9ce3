/// The benchmark's kernel: takes planned I/Os off a common counter and does them over a ring.
///
/// Each warp takes 32 I/Os at a time, one a lane, and keeps up to `batch` such rounds in flight. A
/// lane waits for its own I/O alone, so that a sample is that I/O's own time: from before its ticket
/// is reserved to after its last byte has been read.
#include <sidecore/ring.h>

namespace {

using namespace sidecore;

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

SC_DEVICE void finish(const abi::BenchArgs& args, Ring& ring, Flight& flight, Counts& counts) {
  const bool submitted = flight.handle.pending();
  const Completion completion = ring.wait(Lanes::alone(), flight.handle);
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
}

/// Takes the next I/Os for the lanes of this warp; the first one's index.
SC_DEVICE u64 take(const abi::BenchArgs& args, Lanes lanes) {
  const u32 leader = arch::lowest_bit(lanes.mask);
  u64 first = 0;
  if (arch::lane_index() == leader) {
    auto* const totals = reinterpret_cast<abi::BenchTotals*>(args.totals);
    first = arch::fetch_add_device(&totals->next, static_cast<u64>(arch::popcount(lanes.mask)));
  }
  return arch::shuffle(lanes.mask, first, leader);
}

/// Does the warp's share; `BATCH` bounds what each lane has in flight.
template <u32 BATCH>
SC_DEVICE void work(const abi::BenchArgs& args, Ring& ring, Lanes lanes, Counts& counts) {
  const u32 lane = arch::lane_index();
  const u32 rank = arch::popcount(lanes.mask & ((1u << lane) - 1));
  const u32 warps = (arch::block_threads() + 31) / 32;
  const u32 warp = arch::block_index() * warps + arch::warp_index();
  const u32 batch = args.batch < BATCH ? args.batch : BATCH;
  Flight flights[BATCH];
  u32 issued = 0;
  u32 ended = 0;
  for (bool more = true; more || ended != issued;) {
    while (more && issued - ended < batch) {
      const u64 first = take(args, lanes);
      more = first < args.ios;
      if (!more) break;
      const bool mine = first + rank < args.ios;
      const u32 takers = arch::ballot(lanes.mask, mine);
      Flight& flight = flights[issued % batch];
      flight.io = ~0ull;
      if (mine) {
        const u32 record = ring.record(warp, args.batch, issued % batch);
        flight = start(args, ring, Lanes{takers}, record, first + rank);
      }
      ++issued;
    }
    if (ended == issued) continue;
    Flight& flight = flights[ended % batch];
    if (flight.io != ~0ull) finish(args, ring, flight, counts);
    ++ended;
  }
}

}  // namespace

SC_KERNEL(sidecore_bench_ring, sidecore::abi::BenchArgs, args) {
  const auto* const views = reinterpret_cast<const abi::RingView*>(args.rings);
  const Lanes lanes = Lanes::here();
  Ring ring;
  if (args.batch == 0 || ring.attach(views[arch::block_index() % args.ring_count]) != status::SUCCESS) return;
  Counts counts{};
  if (args.batch == 1) {
    work<1>(args, ring, lanes, counts);
  } else if (args.batch <= 8) {
    work<8>(args, ring, lanes, counts);
  } else {
    work<abi::BENCH_BATCH_MAX>(args, ring, lanes, counts);
  }
  auto* const totals = reinterpret_cast<abi::BenchTotals*>(args.totals);
  arch::fetch_add_device(&totals->completions_polled, counts.polled);
  arch::fetch_add_device(&totals->request_bytes, counts.submitted * sizeof(abi::RequestEntry));
}
