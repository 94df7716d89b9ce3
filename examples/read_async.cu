/// Reads a drive block by block, several at a time: each lane asks for a batch, then takes the
/// answers.
#include <sidecore/copilot.h>

using namespace sidecore;

constexpr u32 BLOCK = 4096;
constexpr u32 BATCH = 8;

struct Reads {
  const abi::QueuePairView* queues;
  u64 queue_count;
  abi::DmaBufferView buffer;  // BATCH blocks a lane
  u64 blocks;
  u64* sum;
  u64* errors;
};

SC_KERNEL(read_async, Reads, args) {
  Copilot queue;
  if (queue.attach(args.queues + arch::block_index() % args.queue_count) != status::SUCCESS) return;
  const u32 thread = arch::block_index() * arch::block_threads() + arch::thread_index();
  const u32 threads = arch::grid_blocks() * arch::block_threads();
  const u64 place = static_cast<u64>(thread) * BATCH * BLOCK;
  const u64* const words = reinterpret_cast<const u64*>(args.buffer.address + place);
  u64 sum = 0;
  for (u64 first = thread; first < args.blocks; first += static_cast<u64>(threads) * BATCH) {
    QueueHandle reads[BATCH];
    u32 asked = 0;
    for (u64 block = first; asked < BATCH && block < args.blocks; block += threads, ++asked) {
      const u64 target = place + asked * BLOCK;
      reads[asked] = queue.submit_read(Lanes::here(), {block * BLOCK, args.buffer, target, BLOCK});
    }
    // More may be in flight than the queue is deep: who asks makes room by himself.
    for (u32 n = 0; n < asked; ++n) {
      const Completion done = queue.wait(reads[n]);
      if (!done.ok()) {
        // One that is still in flight keeps its command id, and its part of the buffer.
        queue.retire(reads[n]);
        arch::fetch_add_device(args.errors, 1ull);
        continue;
      }
      for (u32 i = 0; i < BLOCK / 8; ++i) sum += words[n * (BLOCK / 8) + i];
    }
  }
  arch::fetch_add_device(args.sum, sum);
}
