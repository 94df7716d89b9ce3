/// Request rings as the benchmark uses them.
#pragma once

#include <sidecore/ring.h>

#include "bench.h"

namespace bench {

/// A ring as the benchmark uses it.
struct RingLink {
  using Args = abi::BenchArgs;
  using Handle = sidecore::Handle;
  using Totals = abi::BenchTotals;

  const Args& args;
  Ring ring{};
  u64 ended = 0;
  u64 polls = 0;

  SC_DEVICE explicit RingLink(const Args& a) : args(a) {}

  SC_DEVICE bool attach() {
    const auto* const views = reinterpret_cast<const abi::RingView*>(args.rings);
    return ring.attach(views[arch::block_index() % args.ring_count]) == status::SUCCESS;
  }

  SC_DEVICE Handle submit(Lanes lanes, u32 warp, u32 slot, u64 io, u8 opcode, u64 offset) {
    Transfer transfer{};
    transfer.source = args.source;
    transfer.source_offset = offset;
    transfer.buffer = args.buffer;
    transfer.buffer_offset = io * args.io_bytes;
    transfer.bytes = args.io_bytes;
    transfer.limit_ms = static_cast<u16>(args.limit_ms);
    const u32 record = ring.record(warp, args.batch, slot);
    return ring.submit(lanes, opcode, record, transfer, FOREVER);
  }

  SC_DEVICE Completion wait_until(Lanes lanes, Handle& handle, u64 timeout_ns) {
    return ring.wait_until(lanes, handle, timeout_ns);
  }

  SC_DEVICE bool together() const { return ring.copies_reads(); }

  // A ring ends every request.
  SC_DEVICE bool forget(const Handle&, u64) const { return false; }
  SC_DEVICE void count(const Handle& handle) {
    ended += 1;
    polls += handle.polls;
  }
  static constexpr bool ROOMY = true;
  static constexpr u64 WORD_MASK = Ring::WORD_MASK;
  SC_DEVICE const u64* word_of(const Handle& handle) const { return ring.word_of(handle); }
  SC_DEVICE u64 word_wanted(const Handle& handle) const { return ring.word_wanted(handle); }

  SC_DEVICE void add_counts() const {
    auto* const totals = reinterpret_cast<Totals*>(args.totals);
    arch::fetch_add_device(&totals->completions_polled, ended);
    arch::fetch_add_device(&totals->request_bytes, ended * sizeof(abi::RequestEntry));
    arch::fetch_add_device(&totals->polls, polls);
  }
};

}  // namespace bench
