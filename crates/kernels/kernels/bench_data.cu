/// The benchmark's data in device memory: put there before a round and compared after it, every byte
/// of it, where the host would take longer than the round.
#include <sidecore/impl/abi__types.h>
#include <sidecore/impl/arch.h>
#include <sidecore/pattern.h>

namespace {

using namespace sidecore;

/// What no data is by chance for long.
constexpr u64 POISON = 0xdbdbdbdbdbdbdbdbull;

struct DataArgs {
  u64 plan;      // `ios` BenchIo, whose `generation` says what the bytes are, or become
  u64 results;   // `ios` BenchResult
  u64 buffer;    // device address of I/O 0's place
  u64 ios;
  u64 io_bytes;  // a multiple of 16
};

/// A warp's share: calls `act(io, address, offset, opcode, generation)` for each of its I/Os.
template <class Act>
SC_DEVICE void each_io(const DataArgs& args, Act act) {
  const u64 warps_a_block = (arch::block_threads() + 31) / 32;
  const u64 warps = arch::grid_blocks() * warps_a_block;
  const u64 warp = arch::block_index() * warps_a_block + arch::warp_index();
  const u64* const plan = reinterpret_cast<const u64*>(args.plan);
  for (u64 io = warp; io < args.ios; io += warps) {
    const u64 offset = arch::load_relaxed(plan + io * (sizeof(abi::BenchIo) / 8));
    const u64 second = arch::load_relaxed(plan + io * (sizeof(abi::BenchIo) / 8) + 1);
    act(io, args.buffer + io * args.io_bytes, offset, static_cast<u8>(second), second >> 32);
  }
}

/// The lanes that share a warp's I/Os.
SC_DEVICE u32 lanes_here() {
  const u32 threads = arch::block_threads() - arch::warp_index() * 32;
  return threads < 32 ? threads : 32;
}

}  // namespace

SC_KERNEL(sidecore_bench_prepare, DataArgs, args) {
  each_io(args, [&](u64, u64 at, u64 offset, u8 opcode, u64 generation) {
    for (u64 byte = arch::lane_index() * 16; byte < args.io_bytes; byte += lanes_here() * 16) {
      u64 lo = POISON, hi = POISON;
      if (opcode == abi::OP_WRITE) pattern::unit_words(offset + byte, generation, lo, hi);
      arch::store_relaxed_16(reinterpret_cast<void*>(at + byte), lo, hi);
    }
  });
}

SC_KERNEL(sidecore_bench_check, DataArgs, args) {
  const u32 mask = arch::active_mask();
  each_io(args, [&](u64 io, u64 at, u64 offset, u8, u64 generation) {
    bool right = true;
    for (u64 byte = arch::lane_index() * 16; byte < args.io_bytes; byte += lanes_here() * 16) {
      u64 lo, hi, must_lo, must_hi;
      arch::load_relaxed_16(reinterpret_cast<const void*>(at + byte), lo, hi);
      pattern::unit_words(offset + byte, generation, must_lo, must_hi);
      right = right && lo == must_lo && hi == must_hi;
    }
    right = arch::all(mask, right);
    if (right && arch::lane_index() == 0) {
      u64* const result = reinterpret_cast<u64*>(args.results) + io * (sizeof(abi::BenchResult) / 8);
      const u64 flag = static_cast<u64>(abi::BENCH_ALL_RIGHT) << 16;
      arch::store_relaxed(result + 1, arch::load_relaxed(result + 1) | flag);
    }
  });
}
