/// Litmus kernels: who may see which store when. Each right one has twins that lack one thing.
#include "sidecore/impl/arch.h"

using namespace sidecore;
using namespace sidecore::arch;

struct MemoryArgs {
  u64* data;   // payload, 16-byte aligned
  u64* flag;   // two words, 16-byte aligned
  u64* out;    // results, 16-byte aligned
  u64 words;   // payload words, even
};

static u64 payload(u64 index) { return 0x1122334455667788u * (index + 1); }

/// Lane 0 of the caller's mask stores all payload.
static void produce(const MemoryArgs& args) {
  for (u64 i = 0; i < args.words; i += 2) {
    store_relaxed_16(args.data + i, payload(i), payload(i + 1));
  }
}

static void consume(const MemoryArgs& args, u64* out) {
  for (u64 i = 0; i < args.words; i += 2) copy_16(out + i, args.data + i);
}

static void wait_for_flag(const MemoryArgs& args) {
  while (load_relaxed(args.flag) == 0) pause(200, "the flag");
}

// Payload, then flag, lane to CPU (or to another block).

SC_KERNEL(send_fenced, MemoryArgs, args) {
  produce(args);
  fence_system();
  store_relaxed(args.flag, u64{1});
}

SC_KERNEL(send_released, MemoryArgs, args) {
  produce(args);
  store_release(args.flag, u64{1});
}

SC_KERNEL(send_unfenced, MemoryArgs, args) {
  produce(args);
  store_relaxed(args.flag, u64{1});
}

SC_KERNEL(send_fenced_for_device, MemoryArgs, args) {
  produce(args);
  fence_device();
  store_relaxed(args.flag, u64{1});
}

/// The warp stores together; after sync_warp one lane's fence covers all.
SC_KERNEL(send_by_warp, MemoryArgs, args) {
  const u32 lane = lane_index();
  if (lane * 2 < args.words) {
    store_relaxed_16(args.data + lane * 2, payload(lane * 2), payload(lane * 2 + 1));
  }
  sync_warp(0xffffffffu);
  if (lane == 0) {
    fence_system();
    store_relaxed(args.flag, u64{1});
  }
}

/// A ballot makes lanes wait, but orders nothing.
SC_KERNEL(send_by_warp_unsynced, MemoryArgs, args) {
  const u32 lane = lane_index();
  if (lane * 2 < args.words) {
    store_relaxed_16(args.data + lane * 2, payload(lane * 2), payload(lane * 2 + 1));
  }
  ballot(0xffffffffu, true);
  if (lane == 0) {
    fence_system();
    store_relaxed(args.flag, u64{1});
  }
}

// Payload, then flag, CPU to lane.

SC_KERNEL(receive_acquired, MemoryArgs, args) {
  wait_for_flag(args);
  fence_acquire_system();
  consume(args, args.out);
}

SC_KERNEL(receive_by_acquire_load, MemoryArgs, args) {
  while (load_acquire(args.flag) == 0) pause(200, "the flag");
  consume(args, args.out);
}

SC_KERNEL(receive_unacquired, MemoryArgs, args) {
  consume(args, args.out);
  wait_for_flag(args);
  consume(args, args.out);
}

/// One lane polls and acquires; the barrier passes it on to the block.
SC_KERNEL(receive_by_block, MemoryArgs, args) {
  const u32 i = thread_index() * 2;
  if (i < args.words) copy_16(args.out + i, args.data + i);
  sync_threads();
  if (thread_index() == 0) {
    wait_for_flag(args);
    fence_acquire_system();
  }
  sync_threads();
  if (i < args.words) copy_16(args.out + i, args.data + i);
}

/// As before, but all that the block does is meet.
SC_KERNEL(receive_by_block_unacquired, MemoryArgs, args) {
  const u32 i = thread_index() * 2;
  if (i < args.words) copy_16(args.out + i, args.data + i);
  sync_threads();
  if (thread_index() == 0) wait_for_flag(args);
  sync_threads();
  if (i < args.words) copy_16(args.out + i, args.data + i);
}

// Block 0 sends, block 1 receives.

SC_KERNEL(pass_fenced, MemoryArgs, args) {
  if (block_index() == 0) {
    produce(args);
    fence_device();
    store_relaxed_device(args.flag, u64{1});
  } else {
    consume(args, args.out);
    while (load_relaxed_device(args.flag) == 0) pause(200, "the flag");
    fence_device();
    consume(args, args.out);
  }
}

SC_KERNEL(pass_unfenced_sender, MemoryArgs, args) {
  if (block_index() == 0) {
    produce(args);
    store_relaxed_device(args.flag, u64{1});
  } else {
    while (load_relaxed_device(args.flag) == 0) pause(200, "the flag");
    fence_device();
    consume(args, args.out);
  }
}

SC_KERNEL(pass_unfenced_receiver, MemoryArgs, args) {
  if (block_index() == 0) {
    produce(args);
    fence_device();
    store_relaxed_device(args.flag, u64{1});
  } else {
    consume(args, args.out);
    while (load_relaxed_device(args.flag) == 0) pause(200, "the flag");
    consume(args, args.out);
  }
}

// One address, or two.

/// Two blocks each store one word, then look at the other's.
SC_KERNEL(store_buffering_fenced, MemoryArgs, args) {
  const u32 me = block_index();
  store_relaxed(args.data + me, u64{1});
  fence_system();
  args.out[me] = load_relaxed(args.data + 1 - me);
}

SC_KERNEL(store_buffering_unfenced, MemoryArgs, args) {
  const u32 me = block_index();
  store_relaxed(args.data + me, u64{1});
  args.out[me] = load_relaxed(args.data + 1 - me);
}

/// Block 0 counts up; all others must never see a count go down.
SC_KERNEL(coherence, MemoryArgs, args) {
  if (block_index() == 0) {
    if (thread_index() != 0) return;
    for (u64 i = 1; i <= args.words; ++i) store_relaxed(args.data, i);
    return;
  }
  u64 last = 0;
  u64 bad = 0;
  while (last < args.words) {
    const u64 seen = load_relaxed(args.data);
    bad += seen < last;
    last = seen;
    pause(20, "the last count");
  }
  args.out[block_index() * block_threads() + thread_index()] = bad + 1;
}

/// A lane sees its own stores.
SC_KERNEL(own_stores, MemoryArgs, args) {
  u64 bad = 0;
  u64* mine = args.data + thread_index();
  for (u64 i = 1; i <= 50; ++i) {
    store_relaxed(mine, i);
    bad += load_relaxed(mine) != i;
    bad += fetch_add_device(mine, u64{1}) != i;
    bad += load_relaxed(mine) != i + 1;
  }
  args.out[thread_index()] = bad + 1;
}

SC_KERNEL(publish_16, MemoryArgs, args) { store_relaxed_16(args.flag, 7, 7); }

SC_KERNEL(publish_8_8, MemoryArgs, args) {
  store_relaxed(args.flag, u64{7});
  store_relaxed(args.flag + 1, u64{7});
}

/// Block 0 stores pairs, block 1 must never see half of one.
SC_KERNEL(pairs, MemoryArgs, args) {
  if (block_index() == 0) {
    for (u64 i = 1; i <= args.words; ++i) store_relaxed_16(args.flag, i, ~i);
    return;
  }
  u64 bad = 0;
  u64 lo = 0;
  u64 hi = 0;
  while (lo != args.words) {
    load_relaxed_16(args.flag, lo, hi);
    bad += lo != 0 && hi != ~lo;
    pause(20, "the last pair");
  }
  args.out[thread_index()] = bad + 1;
}

/// Atomics lose nothing, and a lock made of them with fences protects plain words.
SC_KERNEL(locked_counter, MemoryArgs, args) {
  fetch_add_device(args.out, u64{1});
  while (cas_device(args.flag, 0, 1) != 0) pause(50, "the lock");
  fence_device();
  store_relaxed_device(args.data, load_relaxed_device(args.data) + 1);
  fence_device();
  store_relaxed_device(args.flag, u64{0});
}

SC_KERNEL(unlocked_counter, MemoryArgs, args) {
  fetch_add_device(args.out, u64{1});
  while (cas_device(args.flag, 0, 1) != 0) pause(50, "the lock");
  store_relaxed_device(args.data, load_relaxed_device(args.data) + 1);
  store_relaxed_device(args.flag, u64{0});
}
