/// Reads a drive block by block: each lane asks the drive itself and waits for the answer; a CPU core
/// looks into the completion queue for it.
#include <sidecore/copilot.h>

using namespace sidecore;

constexpr u32 BLOCK = 4096;

struct Reads {
  const abi::QueuePairView* queues;
  u64 queue_count;
  abi::DmaBufferView buffer;  // BATCH blocks a lane; here one of them
  u64 blocks;
  u64* sum;
  u64* errors;
};

SC_KERNEL(read_sync, Reads, args) {
  Copilot queue;
  // Blocks share queue pairs: the first gets the first, and so on.
  if (queue.attach(args.queues + arch::block_index() % args.queue_count) != status::SUCCESS) return;
  const u32 thread = arch::block_index() * arch::block_threads() + arch::thread_index();
  const u32 threads = arch::grid_blocks() * arch::block_threads();
  const u64 place = static_cast<u64>(thread) * BLOCK;
  const u64* const words = reinterpret_cast<const u64*>(args.buffer.address + place);
  u64 sum = 0;
  for (u64 block = thread; block < args.blocks; block += threads) {
    // Whoever has come here takes part; they ring the doorbell once.
    const Completion done = queue.read(Lanes::here(), {block * BLOCK, args.buffer, place, BLOCK});
    if (!done.ok()) {
      arch::fetch_add_device(args.errors, 1ull);
      continue;
    }
    for (u32 i = 0; i < BLOCK / 8; ++i) sum += words[i];
  }
  arch::fetch_add_device(args.sum, sum);
}
