/// Adds up the bytes of a file. Each lane reads its own blocks: submit, wait, use.
#include <sidecore/ring.h>

using namespace sidecore;

constexpr u32 BLOCK = 4096;

struct ByteSum {
  abi::RingView ring;
  abi::SourceView file;
  abi::BufferView buffer;  // BLOCK bytes a lane
  u64* sum;
  u64* errors;
};

SC_KERNEL(byte_sum, ByteSum, args) {
  Ring ring;
  if (ring.attach(args.ring) != status::SUCCESS) return;
  const u32 thread = arch::block_index() * arch::block_threads() + arch::thread_index();
  const u32 threads = arch::grid_blocks() * arch::block_threads();
  const u64 place = static_cast<u64>(thread) * BLOCK;
  u64 sum = 0;
  for (u64 at = place; at < args.file.bytes; at += static_cast<u64>(threads) * BLOCK) {
    const u64 left = args.file.bytes - at;
    const u32 bytes = left < BLOCK ? static_cast<u32>(left) : BLOCK;
    // Whoever has come here takes part; the record is this thread's own.
    const Transfer block{args.file, at, args.buffer, place, bytes};
    const Completion done = ring.read(Lanes::here(), thread, block);
    if (!done.ok()) {
      arch::fetch_add_device(args.errors, 1ull);
      continue;
    }
    const u8* const byte = reinterpret_cast<const u8*>(args.buffer.address + place);
    for (u32 i = 0; i < bytes; ++i) sum += byte[i];
  }
  arch::fetch_add_device(args.sum, sum);
}
