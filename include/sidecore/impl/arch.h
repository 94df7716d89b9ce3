/// The one layer that differs between compilers: lanes, collectives, loads, stores, fences, time.
///
/// `impl/arch_cuda.h` (nvcc, NVRTC) and `impl/arch_simt.h` (the host's C++ compiler, with
/// SIDECORE_SIMT defined) define the same names with the same meaning. This file says what they
/// mean. Everything lives in namespace `sidecore::arch`; nothing includes a standard header.
///
/// "System scope" means: ordered with respect to the CPU and the other blocks. "Device scope": the
/// other blocks only. "Relaxed": atomic, but orders nothing except accesses to the same address.
///
/// Macros
///   SC_DEVICE                        marks a device function or a device method (inline)
///   SC_OUTLINE                       marks a device template that is called, not copied to each call
///   SC_KERNEL(name, Type, args) {}   defines a kernel whose one argument is a `const Type args`
///   SC_KERNEL_LIMITED(name, Type, args, registers) {}   the same, with at most so many registers a thread
///                                    (where the compiler is older than CUDA 12.4: at most 64)
///   SC_SHARED(Type, name);           one uninitialised object of the block, inside a device function
///
/// u32 thread_index(), block_index(), block_threads(), grid_blocks(), lane_index(), warp_index()
///   Who this lane is: thread in block, block in grid, threads a block, blocks in the grid, lane in
///   warp (0..31), warp in block.
///   Participants: thread. Order: none. Blocks: never. Effects: none.
///
/// u32 processor_index()
///   The SM that this lane runs on now; on the simulated GPU the block's number.
///   Participants: thread. Order: none. Blocks: never. Effects: none.
///
/// u32 popcount(u32 bits)       bits that are set
/// u32 lowest_bit(u32 bits)     index of the lowest bit that is set; `bits` is not 0
///   Participants: thread. Order: none. Blocks: never. Effects: none.
///
/// u32 active_mask()
///   A mask of lanes of this warp that are here now, the caller among them, equal in all of them.
///   Participants: warp (whoever is there). Order: none. Effects: none.
///   Blocks: on the simulated GPU until the other lanes of the warp have come, wait or sleep.
///
/// u32 ballot(u32 mask, bool predicate)         bits of the participants whose predicate holds
/// bool any(u32 mask, bool), all(u32 mask, bool)
/// u32/u64 shuffle(u32 mask, T value, u32 source_lane)   the value that lane `source_lane` gave
/// u32 match_any(u32 mask, u64 value)           participants that gave the same value
///   Participants: warp; exactly the lanes in `mask`, all with an equal mask that has their own bit;
///   the source lane of a shuffle is one of them. Order: none. Effects: none.
///   Blocks: until all participants have called. The same function with the same mask counts as the
///   same call wherever it stands.
///
/// void sync_warp(u32 mask)
///   Participants: warp; the lanes in `mask`. Blocks: until all have called.
///   Order: what a participant did before is visible to the others after. Effects: none.
///
/// void sync_threads()
///   Participants: block; every lane that has not returned. Blocks: until all have called.
///   Order: as sync_warp, for the block. Effects: none.
///
/// u32/u64 load_relaxed(const T* p)      u32/u64 load_acquire(const T* p)
/// void store_relaxed(T* p, T v)         void store_release(T* p, T v)
///   One naturally aligned access at system scope. Participants: thread. Blocks: never.
///   Order: relaxed; acquire (later accesses after it); release (earlier accesses before it).
///   Effects: the store.
///
/// void store_relaxed_16(void* p, u64 lo, u64 hi)
/// void load_relaxed_16(const void* p, u64& lo, u64& hi)
///   One 128-bit access at a 16-byte aligned address: never torn. Participants: thread.
///   Order: relaxed, system scope. Blocks: never. Effects: the store.
///
/// u32/u64 load_relaxed_device(const T* p)      void store_relaxed_device(T* p, T v)
/// u64 cas_device(u64* p, u64 expected, u64 desired)     returns the value before
/// u32/u64 fetch_add_device(T* p, T v)                   returns the value before
///   One naturally aligned access to device memory. Participants: thread. Order: relaxed, device
///   scope. Blocks: never. Effects: the store; `cas_device` stores where it returns `expected`.
///
/// void copy_16(void* to, const void* from)     u8 load_u8(const void* p)    void store_u8(void*, u8)
/// void copy_16_each<COUNT>(void* to, const void* from, u32 stride)
///                                `copy_16` of COUNT units that many bytes apart, all loaded before any
///                                is stored
///   Weak accesses for payload: 16 bytes between 16-byte aligned addresses, or one byte.
///   Participants: thread. Order: none at all; nobody may access the bytes at the same time.
///   Blocks: never. Effects: the store.
///
/// void fence_system()            earlier accesses before later ones, system scope, all kinds
/// void fence_total_system()      the same, in one order that all such fences share: of two parties
///                                that each store, fence totally and load, one sees the other's store
/// void fence_device()            as fence_system, at device scope
/// void fence_acquire_system()    earlier loads before later accesses, system scope
///   Participants: thread; what was seen from others (after sync_warp, sync_threads or an acquire)
///   is ordered too. Order: as said. Blocks: never. Effects: none.
///
/// u32/u64 load_block(const T* p)      void store_block(T* p, T v)
///   One naturally aligned access to the block's shared memory. Participants: thread.
///   Order: acquire, release, in the block. Blocks: never. Effects: the store.
///
/// void barrier_init(u64* barrier)      a barrier in shared memory of which one arrival ends a phase
/// void barrier_arrive(u64* barrier)    ends the present phase
///   Participants: thread; after `barrier_init` sync_threads, before others use it. Order: release, in
///   the block. Blocks: never. Effects: the barrier.
///
/// bool barrier_try_wait(u64* barrier, u32 parity, const char* site)
///   Whether the phase of this parity (the first one's is 0) is over; `site` as for pause.
///   Participants: thread. Order: acquire, in the block, where it is. Effects: none.
///   Blocks: for a short time that the hardware chooses, off the scheduler, or until it is over.
///
/// u64 timer_ns()
///   A monotonic clock that all lanes share; never comparable with a CPU clock.
///   Participants: thread. Order: none. Blocks: never. Effects: none.
///
/// void pause(u32 ns, const char* site)
///   Waits about `ns` nanoseconds; what waits for a CPU or another block must call it in its loop.
///   `site` (static) says what it waits for, in reports. Participants: thread. Order: none.
///   Blocks: for the time given. Effects: none.
#pragma once

#include "types.h"

#if defined(SIDECORE_SIMT)
#include "arch_simt.h"
#else
#include "arch_cuda.h"
#endif
