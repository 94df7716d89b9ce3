/// A kernel for programs of nvcc, for CuPy and for the simulated GPU: reads a file through a ring and adds up
/// its bytes, each times its position, so that a byte in the wrong place is noticed.
#include <sidecore/ring.h>

struct PositionSum {
  sidecore::abi::RingView ring;
  sidecore::abi::SourceView file;
  sidecore::abi::BufferView buffer;  // `block` bytes a thread
  sidecore::u64 block;
  sidecore::u64* sum;
  sidecore::u64* failures;
};

SC_KERNEL(position_sum, PositionSum, args) {
  using namespace sidecore;
  const u32 thread = arch::block_index() * arch::block_threads() + arch::thread_index();
  const u64 threads = arch::grid_blocks() * arch::block_threads();
  Ring ring;
  if (ring.attach(args.ring) != status::SUCCESS) {
    arch::fetch_add_device(args.failures, 1ull);
    return;
  }
  u64 sum = 0;
  for (u64 at = thread * args.block; at < args.file.bytes; at += threads * args.block) {
    const u64 left = args.file.bytes - at;
    const u32 bytes = static_cast<u32>(left < args.block ? left : args.block);
    const Transfer transfer{args.file, at, args.buffer, thread * args.block, bytes};
    // Whoever has come here asks together; the record is this thread's own.
    if (!ring.read(Lanes::here(), thread, transfer).ok()) {
      arch::fetch_add_device(args.failures, 1ull);
      continue;
    }
    const u8* const byte =
        reinterpret_cast<const u8*>(args.buffer.address + thread * args.block);
    for (u32 i = 0; i < bytes; ++i) sum += (at + i + 1) * byte[i];
  }
  arch::fetch_add_device(args.sum, sum);
}
