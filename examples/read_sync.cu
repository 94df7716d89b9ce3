/// Reads a drive into GPU memory: each lane asks the drive for a block itself, and waits for it.
#include <sidecore/copilot.h>

using namespace sidecore;
constexpr u32 BLOCK = 4096;

struct Reads {
  const abi::QueuePairView* pair;
  abi::DmaBufferView buffer;  // as long as the drive
  u64* results;               // the sum of all words, and how many reads failed
};

SC_KERNEL(read_sync, Reads, args) {
  Copilot queue;
  if (queue.attach(args.pair) != status::SUCCESS) return;
  const u64 lane = arch::block_index() * arch::block_threads() + arch::thread_index();
  const u64 at = lane * BLOCK;
  if (at >= args.buffer.bytes) return;
  // Whoever has come here takes part; they ring the doorbell once. A CPU core sees the end.
  const Completion done = queue.read(Lanes::here(), {at, args.buffer, at, BLOCK});
  const u64* const words = reinterpret_cast<const u64*>(args.buffer.address + at);
  u64 sum = 0;
  for (u32 n = 0; done.ok() && n < BLOCK / 8; ++n) sum += words[n];
  arch::fetch_add_device(args.results, sum);
  if (!done.ok()) arch::fetch_add_device(args.results + 1, u64{1});
}
