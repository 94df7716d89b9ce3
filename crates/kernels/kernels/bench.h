/// The benchmark's kernel, whatever the protocol: takes planned I/Os off a common counter and does
/// them over a `Link`.
///
/// A sample is one I/O's own time: from before its ticket is reserved to after its last byte has been
/// read, whatever others wait for. So each lane waits for its own I/O alone (where lanes copy their
/// payload, with those lanes whose I/Os have ended too). With a batch of 1 the
/// warp asks together, and together again once each lane has its answer. With more, a lane looks at
/// all that it has in flight and takes new I/Os as soon as any has ended, with whoever else may.
///
/// A link is made from its arguments and has: `Args`, `Handle`, `Totals`; `attach()`, whether it can
/// be used; `submit(lanes, warp, slot, io, opcode, offset)`; `wait_until(lanes, handle, timeout_ns)`
/// for the lanes named, together; `together()`, whether lanes whose I/Os have ended gain by waiting
/// together (their payload is then theirs to copy); `seems_ended(handle)`, whether a wait seems worth
/// while; `forget(handle, timeout_ns)`, whether a handle that is still pending is given up;
/// `count(handle)` and `add_counts()` for what it counts itself. One that is `ROOMY` has registers to
/// spare: its lanes load several words together (`word_of(handle)`, `word_wanted(handle)`, `WORD_MASK`)
/// and take several I/Os between two looks. The kernels of the others are limited to so few registers
/// that this would cost them more than it brings.
#pragma once

#include <sidecore/agent.h>
#include <sidecore/lanes.h>

namespace bench {

using namespace sidecore;

/// Pauses between two looks at all I/Os in flight: from this to sixteen times it.
constexpr u32 PAUSE_NS = 64;

/// Sweeps over all I/Os in flight between two close looks at all.
constexpr u32 CLOSE_PERIOD = 16;

/// I/Os whose words are loaded together; divides the batches that lanes can have.
constexpr u32 GLANCE = 8;

/// Most I/Os that a lane takes between two looks at those in flight.
constexpr u32 STARTS = 8;

/// One of a lane's I/Os in flight.
template <class Link>
struct Flight {
  typename Link::Handle handle;
  u64 io;
  u64 started_ns;
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
template <class Args>
SC_DEVICE bool edges_right(const Args& args, u64 io) {
  const u64 begin = args.buffer.address + io * args.io_bytes;
  const u64 end = begin + args.io_bytes - 16;
  const u64 edge = io * (sizeof(abi::BenchEdges) / 8);
  // All loads before any is looked at, so that they are under way together.
  const u64 found[4] = {load_8(begin), load_8(begin + 8), load_8(end), load_8(end + 8)};
  const u64 planned[4] = {load_word(args.edges, edge), load_word(args.edges, edge + 1),
                          load_word(args.edges, edge + 2), load_word(args.edges, edge + 3)};
  return ((found[0] ^ planned[0]) | (found[1] ^ planned[1]) | (found[2] ^ planned[2]) |
          (found[3] ^ planned[3])) == 0;
}

/// Asks for an I/O. Lanes of one call may ask for different things.
template <class Link>
SC_DEVICE Flight<Link> start(const typename Link::Args& args, Link& link, Lanes lanes, u32 warp,
                             u32 slot, u64 io) {
  const u64 plan = io * (sizeof(abi::BenchIo) / 8);
  const u64 offset = load_word(args.plan, plan);
  const u8 opcode = static_cast<u8>(load_word(args.plan, plan + 1));
  Flight<Link> flight;
  flight.io = io;
  flight.started_ns = arch::timer_ns();
  flight.handle = link.submit(lanes, warp, slot, io, opcode, offset);
  return flight;
}

/// Waits for an I/O at most `timeout_ns`, checks and notes it; whether it has ended.
template <class Link>
SC_DEVICE bool finish(const typename Link::Args& args, Link& link, Lanes lanes,
                      Flight<Link>& flight, u64 timeout_ns) {
  const bool submitted = flight.handle.pending();
  const Completion completion = link.wait_until(lanes, flight.handle, timeout_ns);
  if (flight.handle.pending() && !link.forget(flight.handle, timeout_ns)) return false;
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
  if (submitted) link.count(flight.handle);
  return true;
}

/// Takes the next I/Os, one a lane of `mask`; this lane's index.
template <class Link>
SC_DEVICE u64 take(const typename Link::Args& args, u32 mask) {
  const u32 lane = arch::lane_index();
  const u32 leader = arch::lowest_bit(mask);
  u64 first = 0;
  if (lane == leader) {
    auto* const totals = reinterpret_cast<typename Link::Totals*>(args.totals);
    first = arch::fetch_add_device(&totals->next, static_cast<u64>(arch::popcount(mask)));
  }
  return arch::shuffle(mask, first, leader) + arch::popcount(mask & ((1u << lane) - 1));
}

/// One I/O a lane at a time.
template <class Link>
SC_DEVICE void work_in_step(const typename Link::Args& args, Link& link, u32 warp, u32 mask) {
  for (;;) {
    const u64 io = take<Link>(args, mask);
    const bool mine = io < args.ios;
    // Who finds nothing left is done; the others are the lanes below it.
    mask = arch::ballot(mask, mine);
    if (!mine) return;
    Flight<Link> flight = start(args, link, Lanes{mask}, warp, 0, io);
    finish(args, link, Lanes::alone(), flight, FOREVER);
  }
}

/// Which of a lane's I/Os in flight seem to have ended.
template <class Link>
SC_DEVICE u64 glance(const typename Link::Args& args, const Link& link,
                     const Flight<Link>* flights, u64 busy, u32 batch) {
  u64 ended = 0;
  if constexpr (Link::ROOMY) {
    // Several words are loaded before any is looked at, so that the loads are under way together.
    for (u32 first = 0; first < batch; first += GLANCE) {
      u64 words[GLANCE] = {};
      for (u32 n = 0; n < GLANCE; ++n) {
        // Who has nothing there loads a word that means nothing: a load is quicker than a branch.
        const bool one = (busy >> (first + n) & 1) != 0;
        const u64* const nothing = reinterpret_cast<const u64*>(args.totals);
        words[n] = arch::load_relaxed(one ? link.word_of(flights[first + n].handle) : nothing);
      }
      for (u32 n = 0; n < GLANCE; ++n) {
        if ((busy >> (first + n) & 1) == 0) continue;
        const u64 wanted = link.word_wanted(flights[first + n].handle);
        ended |= static_cast<u64>((words[n] & Link::WORD_MASK) == wanted) << (first + n);
      }
    }
  } else {
    for (u32 slot = 0; slot < batch; ++slot) {
      if ((busy >> slot & 1) == 0) continue;
      if (link.seems_ended(flights[slot].handle)) ended |= 1ull << slot;
    }
  }
  return ended;
}

/// Up to `batch` <= BATCH I/Os a lane at a time.
template <u32 BATCH, class Link>
SC_DEVICE void work_apart(const typename Link::Args& args, Link& link, u32 warp, u32 mask) {
  const u32 batch = args.batch < BATCH ? args.batch : BATCH;
  const u64 all = batch == 64 ? ~0ull : (1ull << batch) - 1;
  Flight<Link> flights[BATCH];
  u64 busy = 0;
  bool more = true;
  u32 pause_ns = PAUSE_NS;
  u32 sweep = 0;
  while (arch::any(mask, more || busy != 0)) {
    const u64 before = busy;
    // A glance at all; a close look, which costs more, at those that seem to have ended, and now and
    // then at all: a link that is lost ends nothing.
    u64 look = ++sweep % CLOSE_PERIOD == 0 ? busy : glance(args, link, flights, busy, batch);
    for (u32 slot = 0; slot < batch; ++slot) {
      const bool looks = (look >> slot & 1) != 0;
      const Lanes lanes = link.together() ? Lanes{arch::ballot(mask, looks)} : Lanes::alone();
      if (!looks) continue;
      if (finish(args, link, lanes, flights[slot], 0)) busy &= ~(1ull << slot);
    }
    for (u32 round = 0; round < (Link::ROOMY ? STARTS : 1); ++round) {
      const bool wants = more && busy != all;
      const u32 takers = arch::ballot(mask, wants);
      if (takers == 0) break;
      if (!wants) continue;
      const u64 io = take<Link>(args, takers);
      more = io < args.ios;
      const u32 with_one = arch::ballot(takers, more);
      if (!more) continue;
      u32 slot = 0;
      while ((busy >> slot & 1) != 0) ++slot;
      flights[slot] = start(args, link, Lanes{with_one}, warp, slot, io);
      busy |= 1ull << slot;
    }
    if (busy != before) {
      pause_ns = PAUSE_NS;
    } else if (busy != 0) {
      arch::pause(pause_ns, "bench: any completion");
      if (pause_ns < PAUSE_NS * 16) pause_ns *= 2;
    }
  }
}

/// One I/O a lane at a time, for whose end the block's agent looks.
template <class Link>
SC_DEVICE void work_watched(const typename Link::Args& args, Link& link, u32 warp, u32 mask,
                            WaitBoard& board) {
  for (;;) {
    const u64 io = take<Link>(args, mask);
    const bool mine = io < args.ios;
    mask = arch::ballot(mask, mine);
    if (!mine) return;
    Flight<Link> flight = start(args, link, Lanes{mask}, warp, 0, io);
    bool waits = true;
    do {
      const u64* const word = waits && flight.handle.pending() ? link.word_of(flight.handle) : nullptr;
      board.wait(Lanes{mask}, arch::warp_index(), word, link.word_wanted(flight.handle));
      if (waits) waits = !finish(args, link, Lanes::alone(), flight, 0);
    } while (arch::any(mask, waits));
  }
}

/// A block whose lanes are only there, until the host stores that nothing is left to do. Each block
/// takes one I/O, which it does not do, so that the host knows when all are there.
template <class Link>
SC_DEVICE bool asleep(const typename Link::Args& args) {
  if ((args.flags & abi::BENCH_ASLEEP) == 0) return false;
  auto* const totals = reinterpret_cast<typename Link::Totals*>(args.totals);
  if (arch::thread_index() == 0) arch::fetch_add_device(&totals->next, 1ull);
  while (arch::load_relaxed(&totals->next) < args.ios) arch::pause(1000000, "bench: asleep");
  return true;
}

/// A lane's part of a launch whose last warp of each block waits for the others.
template <class Link>
SC_DEVICE void work_by_agent(const typename Link::Args& args) {
  SC_SHARED(WaitBoard, board);
  const Lanes lanes = Lanes::here();
  const u32 workers = (arch::block_threads() + 31) / 32 - 1;
  board.open(workers);
  if (asleep<Link>(args)) return;
  if (arch::warp_index() == workers) {
    const u64 looks = board.serve(lanes, Link::WORD_MASK);
    auto* const totals = reinterpret_cast<typename Link::Totals*>(args.totals);
    arch::fetch_add_device(&totals->polls, looks);
    return;
  }
  Link link{args};
  if (args.batch == 1 && link.attach()) {
    const u32 warp = arch::block_index() * workers + arch::warp_index();
    work_watched(args, link, warp, lanes.mask, board);
    link.add_counts();
  }
  board.leave(lanes, arch::warp_index());
}

/// A lane's part of the launch.
template <class Link>
SC_DEVICE void work(const typename Link::Args& args) {
  const Lanes lanes = Lanes::here();
  if (asleep<Link>(args)) return;
  Link link{args};
  if (args.batch == 0 || !link.attach()) return;
  const u32 warps = (arch::block_threads() + 31) / 32;
  const u32 warp = arch::block_index() * warps + arch::warp_index();
  if (args.batch == 1 && !link.together()) {
    work_in_step(args, link, warp, lanes.mask);
  } else if (args.batch <= 8) {
    work_apart<8>(args, link, warp, lanes.mask);
  } else {
    work_apart<abi::BENCH_BATCH_MAX>(args, link, warp, lanes.mask);
  }
  link.add_counts();
}

}  // namespace bench
