/// Reads a drive into GPU memory: each lane asks for a batch of blocks, then takes the answers.
#include <sidecore/copilot.h>

using namespace sidecore;
constexpr u32 BLOCK = 4096, BATCH = 8;

struct Reads {
  const abi::QueuePairView* pair;
  abi::DmaBufferView buffer;  // as long as the drive
  u64* results;               // the sum of all words, and how many reads failed
};

SC_KERNEL(read_async, Reads, args) {
  Copilot queue;
  if (queue.attach(args.pair) != status::SUCCESS) return;
  const u64 first = (arch::block_index() * arch::block_threads() + arch::thread_index()) * BATCH;
  QueueHandle reads[BATCH];
  u32 asked = 0;
  for (u64 at = first * BLOCK; asked < BATCH && at < args.buffer.bytes; at += BLOCK) {
    reads[asked++] = queue.submit_read(Lanes::here(), {at, args.buffer, at, BLOCK});
  }
  for (u32 n = 0; n < asked; ++n) {
    const Completion done = queue.wait(reads[n]);
    queue.retire(reads[n]);  // one that is in flight still keeps its command id
    const u64* words = reinterpret_cast<const u64*>(args.buffer.address + (first + n) * BLOCK);
    u64 sum = 0;
    for (u32 i = 0; done.ok() && i < BLOCK / 8; ++i) sum += words[i];
    arch::fetch_add_device(args.results, sum);
    if (!done.ok()) arch::fetch_add_device(args.results + 1, u64{1});
  }
}
