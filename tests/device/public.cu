/// Names every public device function once, so that each compiler sees all of them compiled. It is
/// compiled, never run; a test holds that nothing is missing here.
#include <sidecore/agent.h>
#include <sidecore/bam.h>
#include <sidecore/copilot.h>
#include <sidecore/pattern.h>
#include <sidecore/impl/backoff.h>
#include <sidecore/ring.h>

namespace {

struct Arguments {
  sidecore::abi::RingView ring;
  sidecore::Transfer transfer;
  const sidecore::abi::QueuePairView* queues;
  sidecore::QueueTransfer queue_transfer;
  sidecore::u64* out;
};

struct Shared {
  sidecore::u32 words[32];
};

using namespace sidecore;

SC_DEVICE u64 use_lanes(u64 value) {
  const u32 mask = arch::active_mask();
  u64 sum = arch::thread_index() + arch::block_index() + arch::block_threads();
  sum += arch::grid_blocks() + arch::lane_index() + arch::warp_index() + arch::processor_index();
  sum += arch::popcount(mask) + arch::lowest_bit(mask);
  sum += arch::ballot(mask, value != 0);
  sum += arch::any(mask, value == 1) + arch::all(mask, value == 2);
  sum += arch::shuffle(mask, static_cast<u32>(value), 0) + arch::shuffle(mask, value, 0);
  sum += arch::match_any(mask, value);
  arch::sync_warp(mask);
  SC_SHARED(Shared, shared);
  shared.words[arch::lane_index()] = static_cast<u32>(sum);
  arch::sync_threads();
  return sum + shared.words[0];
}

SC_DEVICE u64 use_memory(u64* words, u32* halves) {
  u64 lo = 0, hi = 0;
  arch::load_relaxed_16(words, lo, hi);
  arch::store_relaxed_16(words, hi, lo);
  arch::store_relaxed(words, arch::load_relaxed(words) + arch::load_acquire(words));
  arch::store_relaxed(halves, arch::load_relaxed(halves) + arch::load_acquire(halves));
  arch::store_release(words, lo);
  arch::store_release(halves, static_cast<u32>(lo));
  arch::store_relaxed_device(words, arch::load_relaxed_device(words));
  arch::store_relaxed_device(halves, arch::load_relaxed_device(halves));
  lo += arch::cas_device(words, lo, hi);
  lo += arch::fetch_add_device(words, static_cast<u64>(1)) + arch::fetch_add_device(halves, 1u);
  arch::copy_16(words, words + 2);
  arch::copy_16_each<2>(words, words + 4, 16);
  arch::store_u8(words, arch::load_u8(words + 1));
  arch::fence_system();
  arch::fence_device();
  arch::fence_total_system();
  arch::fence_acquire_system();
  arch::pause(32, "never run");
  return lo + hi + arch::timer_ns();
}

SC_DEVICE u64 use_agent(const u64* word) {
  SC_SHARED(WaitBoard, board);
  SC_SHARED(u64, own);
  board.open(1);
  if (arch::thread_index() == 0) {
    arch::barrier_init(&own);
    arch::store_block(&own, arch::load_block(&own));
    arch::barrier_arrive(&own);
  }
  Backoff backoff = Backoff(64);
  while (!arch::barrier_try_wait(&own, 0, "never run")) backoff.pause("never run");
  const Lanes here = Lanes::here();
  if (arch::warp_index() == 1) return board.serve(here, 1) + backoff.looks();
  board.wait(here, 0, word, 1);
  board.leave(here, 0);
  return 0;
}

SC_DEVICE u64 use_pattern(u64 address) {
  u64 lo, hi;
  pattern::unit_words(address, 1, lo, hi);
  const u8 byte = pattern::byte_at(address, 1);
  return lo + hi + byte + pattern::mix(lo) + pattern::count_wrong(&byte, 1, address, 1);
}

SC_DEVICE u64 use_ring(const Arguments& args) {
  Ring ring;
  if (ring.attach(args.ring) != status::SUCCESS) return 0;
  const Lanes here = Lanes::here();
  const Lanes alone = Lanes::alone();
  const Transfer& t = args.transfer;
  const u32 record = ring.record(0, 1, 0) % ring.record_count();
  u64 sum = ring.read(here, record, t).detail;
  sum += ring.write(here, record, t).ok() ? 1 : 0;
  sum += ring.flush(alone, record, t.source).status;
  Handle handle = ring.submit_read(here, record, t);
  sum += *ring.word_of(handle) ^ ring.word_wanted(handle);
  if (ring.seems_ended(handle) || ring.copies_reads()) sum += 1;
  sum += ring.wait(here, handle).detail;
  handle = ring.submit_write(here, record, t, 1000);
  sum += ring.wait_until(here, handle, 1000).detail;
  if (handle.pending()) sum += ring.cancel(alone, handle, 1000).status;
  handle = ring.submit_flush(here, record, t.source, 0);
  sum += ring.wait(here, handle).status;
  handle = ring.submit(here, abi::OP_READ, record, t, FOREVER);
  sum += ring.wait(here, handle).status;
  const abi::RequestEntry entry = abi::pack(abi::Request{}, 1);
  return sum + abi::unpack(entry).length;
}

template <class Queue>
SC_DEVICE u64 use_queue(const Arguments& args) {
  Queue queue;
  if (queue.attach(args.queues) != status::SUCCESS) return 0;
  const Lanes here = Lanes::here();
  const QueueTransfer& t = args.queue_transfer;
  u64 sum = queue.read(here, t).detail + queue.write(here, t).detail;
  sum += queue.flush(here).status;
  QueueHandle handle = queue.submit_read(here, t);
  if (queue.seems_ended(handle)) sum += 1;
  sum += *queue.word_of(handle) ^ queue.word_wanted(handle);
  sum += queue.wait(handle).detail;
  handle = queue.submit_write(here, t, 1000);
  sum += queue.wait_until(handle, 1000).detail;
  if (handle.pending()) queue.retire(handle);
  handle = queue.submit_flush(here, 0);
  sum += queue.wait(handle).status;
  handle = queue.submit(here, abi::OP_READ, t, FOREVER);
  queue_impl::store_command(*args.queues, args.queues->sq, abi::OP_READ, 1, 0, 4096, 512);
  sum += queue_impl::second_prp(*args.queues, 1, 512, 8192) + queue_impl::pages_of(0, 1, 12);
  return sum + queue.wait(handle).status;
}

}  // namespace

SC_KERNEL(sidecore_public, Arguments, args) {
  u64 sum = use_lanes(args.transfer.bytes);
  sum += use_memory(args.out, reinterpret_cast<u32*>(args.out + 4));
  sum += use_pattern(args.transfer.source_offset) + use_agent(args.out);
  args.out[8 + arch::thread_index()] = sum + use_ring(args) + use_queue<Bam>(args) +
                                  use_queue<Copilot>(args);
}
