/// The arch layer on the simulated GPU; `arch.h` says what each name means.
///
/// A lane is a fiber; what it waits for is a call into the simulator, which switches to another
/// lane. In bench mode memory accesses are the host's own atomics. In seeded mode each goes to the
/// simulator, which decides when it happens and what it sees. Calls take the place they stand at by
/// default arguments, for reports.
#pragma once

#include "types.h"

#if !defined(SIDECORE_SIMT)
#error "arch_simt.h is for the simulated GPU; include arch.h"
#endif

#define SC_DEVICE inline
#define SC_OUTLINE __attribute__((noinline))

#define SC_KERNEL(name, ArgsType, args)                                    \
  static inline void name##_sc_body(const ArgsType args);                  \
  extern "C" void name(const void* sc_arguments) {                         \
    name##_sc_body(*static_cast<const ArgsType*>(sc_arguments));           \
  }                                                                        \
  static inline void name##_sc_body(const ArgsType args)

#define SC_KERNEL_LIMITED(name, ArgsType, args, registers) SC_KERNEL(name, ArgsType, args)

#define SC_SHARED(Type, name)                                              \
  static char name##_sc_key;                                               \
  Type& name = *static_cast<Type*>(                                        \
      sidecore_simt_shared(&name##_sc_key, sizeof(Type), alignof(Type)))

extern "C" {

/// What a lane knows about itself. Mirrors `LaneView` in crates/simt/src/device.rs.
struct sidecore_simt_lane_view {
  sidecore::u32 thread, block, block_threads, grid_blocks, lane, warp;
};

/// One an OS thread. Mirrors `ThreadState` in crates/simt/src/device.rs.
struct sidecore_simt_thread_state {
  const sidecore_simt_lane_view* view;
  sidecore::u32 modelled;
};
#if defined(SIDECORE_SIMT_SHARED)
/// In a program that is linked to the shared library, which exports functions only.
sidecore_simt_thread_state* sidecore_simulated_thread();
#define sidecore_simt_thread (*sidecore_simulated_thread())
#else
extern __thread sidecore_simt_thread_state sidecore_simt_thread;
#endif

/// Two words returned in registers.
struct sidecore_simt_pair {
  sidecore::u64 lo, hi;
};

/// Waits in a warp collective or in the block's barrier, and returns its result for this lane.
sidecore::u64 sidecore_simt_collective(sidecore::u32 kind, sidecore::u32 mask, sidecore::u64 value,
                                       sidecore::u32 source, const char* file, sidecore::u32 line);
/// One modelled access; `what` is made by `access_code`.
sidecore_simt_pair sidecore_simt_access(sidecore::u32 what, const void* address, sidecore::u64 a,
                                        sidecore::u64 b);
void* sidecore_simt_shared(const void* key, sidecore::u64 bytes, sidecore::u64 align);
sidecore::u64 sidecore_simt_timer();
void sidecore_simt_pause(sidecore::u32 ns, const char* site);

}  // extern "C"

namespace sidecore {
namespace arch {

namespace simt {

// Kinds of collectives; mirrored by `CollectiveKind` in crates/simt/src/warp.rs.
enum : u32 { BALLOT, SHUFFLE, MATCH_ANY, SYNC_WARP, ACTIVE_MASK, SYNC_THREADS };
// Operations, orders and scopes; mirrored by `Access` in crates/simt/src/device.rs.
enum : u32 { LOAD, STORE, CAS, FETCH_ADD, COPY, FENCE };
enum : u32 { WEAK, RELAXED, ACQUIRE, RELEASE, FULL, TOTAL };
enum : u32 { DEVICE, SYSTEM };

typedef long long v2 __attribute__((vector_size(16), may_alias));

constexpr u32 access_code(u32 operation, u32 bytes, u32 order, u32 scope) {
  return operation | bytes << 8 | order << 16 | scope << 24;
}
inline bool modelled() { return __builtin_expect(sidecore_simt_thread.modelled != 0, 0); }

template <class T>
inline T load(const T* p, u32 order, u32 scope) {
  if (modelled()) {
    return static_cast<T>(
        sidecore_simt_access(access_code(LOAD, sizeof(T), order, scope), p, 0, 0).lo);
  }
  return order == ACQUIRE ? __atomic_load_n(p, __ATOMIC_ACQUIRE)
                          : __atomic_load_n(p, __ATOMIC_RELAXED);
}
template <class T>
inline void store(T* p, T value, u32 order, u32 scope) {
  if (modelled()) {
    sidecore_simt_access(access_code(STORE, sizeof(T), order, scope), p, value, 0);
  } else if (order == RELEASE) {
    __atomic_store_n(p, value, __ATOMIC_RELEASE);
  } else {
    __atomic_store_n(p, value, __ATOMIC_RELAXED);
  }
}
template <class T>
inline T fetch_add(T* p, T value) {
  if (modelled()) {
    return static_cast<T>(
        sidecore_simt_access(access_code(FETCH_ADD, sizeof(T), RELAXED, DEVICE), p, value, 0).lo);
  }
  return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
}
inline void fence(u32 order, u32 scope) {
  if (modelled()) {
    sidecore_simt_access(access_code(FENCE, 0, order, scope), nullptr, 0, 0);
  } else if (order == ACQUIRE) {
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
  } else {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
  }
}

}  // namespace simt

// Every call takes its caller's place.
#define SC_HERE const char *file = __builtin_FILE(), u32 line = __builtin_LINE()

SC_DEVICE u32 thread_index() { return sidecore_simt_thread.view->thread; }
SC_DEVICE u32 block_index() { return sidecore_simt_thread.view->block; }
SC_DEVICE u32 block_threads() { return sidecore_simt_thread.view->block_threads; }
SC_DEVICE u32 grid_blocks() { return sidecore_simt_thread.view->grid_blocks; }
SC_DEVICE u32 lane_index() { return sidecore_simt_thread.view->lane; }
SC_DEVICE u32 warp_index() { return sidecore_simt_thread.view->warp; }

SC_DEVICE u32 processor_index() { return sidecore_simt_thread.view->block; }

SC_DEVICE u32 popcount(u32 bits) { return static_cast<u32>(__builtin_popcount(bits)); }
SC_DEVICE u32 lowest_bit(u32 bits) { return static_cast<u32>(__builtin_ctz(bits)); }

SC_DEVICE u32 active_mask(SC_HERE) {
  return static_cast<u32>(sidecore_simt_collective(simt::ACTIVE_MASK, 0, 0, 0, file, line));
}
SC_DEVICE u32 ballot(u32 mask, bool predicate, SC_HERE) {
  return static_cast<u32>(
      sidecore_simt_collective(simt::BALLOT, mask, predicate, 0, file, line));
}
SC_DEVICE bool any(u32 mask, bool predicate, SC_HERE) {
  return ballot(mask, predicate, file, line) != 0;
}
SC_DEVICE bool all(u32 mask, bool predicate, SC_HERE) {
  return ballot(mask, predicate, file, line) == mask;
}
SC_DEVICE u32 shuffle(u32 mask, u32 value, u32 source_lane, SC_HERE) {
  return static_cast<u32>(
      sidecore_simt_collective(simt::SHUFFLE, mask, value, source_lane, file, line));
}
SC_DEVICE u64 shuffle(u32 mask, u64 value, u32 source_lane, SC_HERE) {
  return sidecore_simt_collective(simt::SHUFFLE, mask, value, source_lane, file, line);
}
SC_DEVICE u32 match_any(u32 mask, u64 value, SC_HERE) {
  return static_cast<u32>(
      sidecore_simt_collective(simt::MATCH_ANY, mask, value, 0, file, line));
}
SC_DEVICE void sync_warp(u32 mask, SC_HERE) {
  sidecore_simt_collective(simt::SYNC_WARP, mask, 0, 0, file, line);
}
SC_DEVICE void sync_threads(SC_HERE) {
  sidecore_simt_collective(simt::SYNC_THREADS, 0, 0, 0, file, line);
}

#undef SC_HERE

SC_DEVICE u32 load_relaxed(const u32* p) { return simt::load(p, simt::RELAXED, simt::SYSTEM); }
SC_DEVICE u64 load_relaxed(const u64* p) { return simt::load(p, simt::RELAXED, simt::SYSTEM); }
SC_DEVICE u32 load_acquire(const u32* p) { return simt::load(p, simt::ACQUIRE, simt::SYSTEM); }
SC_DEVICE u64 load_acquire(const u64* p) { return simt::load(p, simt::ACQUIRE, simt::SYSTEM); }
SC_DEVICE void store_relaxed(u32* p, u32 v) { simt::store(p, v, simt::RELAXED, simt::SYSTEM); }
SC_DEVICE void store_relaxed(u64* p, u64 v) { simt::store(p, v, simt::RELAXED, simt::SYSTEM); }
SC_DEVICE void store_release(u32* p, u32 v) { simt::store(p, v, simt::RELEASE, simt::SYSTEM); }
SC_DEVICE void store_release(u64* p, u64 v) { simt::store(p, v, simt::RELEASE, simt::SYSTEM); }

SC_DEVICE u32 load_relaxed_device(const u32* p) {
  return simt::load(p, simt::RELAXED, simt::DEVICE);
}
SC_DEVICE u64 load_relaxed_device(const u64* p) {
  return simt::load(p, simt::RELAXED, simt::DEVICE);
}
SC_DEVICE void store_relaxed_device(u32* p, u32 v) {
  simt::store(p, v, simt::RELAXED, simt::DEVICE);
}
SC_DEVICE void store_relaxed_device(u64* p, u64 v) {
  simt::store(p, v, simt::RELAXED, simt::DEVICE);
}
SC_DEVICE u64 cas_device(u64* p, u64 expected, u64 desired) {
  if (simt::modelled()) {
    return sidecore_simt_access(simt::access_code(simt::CAS, 8, simt::RELAXED, simt::DEVICE), p,
                                expected, desired)
        .lo;
  }
  __atomic_compare_exchange_n(p, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
SC_DEVICE u32 fetch_add_device(u32* p, u32 v) { return simt::fetch_add(p, v); }
SC_DEVICE u64 fetch_add_device(u64* p, u64 v) { return simt::fetch_add(p, v); }

SC_DEVICE void store_relaxed_16(void* p, u64 lo, u64 hi) {
  if (simt::modelled()) {
    sidecore_simt_access(simt::access_code(simt::STORE, 16, simt::RELAXED, simt::SYSTEM), p, lo,
                         hi);
    return;
  }
  // One aligned vector move: not torn on any x86-64 with AVX, nor on aarch64 with LSE2.
  *static_cast<volatile simt::v2*>(p) =
      simt::v2{static_cast<long long>(lo), static_cast<long long>(hi)};
}
SC_DEVICE void load_relaxed_16(const void* p, u64& lo, u64& hi) {
  if (simt::modelled()) {
    const sidecore_simt_pair pair = sidecore_simt_access(
        simt::access_code(simt::LOAD, 16, simt::RELAXED, simt::SYSTEM), p, 0, 0);
    lo = pair.lo;
    hi = pair.hi;
    return;
  }
  const simt::v2 value = *static_cast<const volatile simt::v2*>(p);
  lo = static_cast<u64>(value[0]);
  hi = static_cast<u64>(value[1]);
}

SC_DEVICE void copy_16(void* to, const void* from) {
  if (simt::modelled()) {
    sidecore_simt_access(simt::access_code(simt::COPY, 16, simt::WEAK, simt::SYSTEM), to,
                         reinterpret_cast<__UINTPTR_TYPE__>(from), 0);
    return;
  }
  *static_cast<simt::v2*>(to) = *static_cast<const simt::v2*>(from);
}
template <u32 COUNT>
SC_DEVICE void copy_16_each(void* to, const void* from, u32 stride) {
  for (u32 unit = 0; unit < COUNT; ++unit) {
    copy_16(static_cast<char*>(to) + unit * stride, static_cast<const char*>(from) + unit * stride);
  }
}
SC_DEVICE u8 load_u8(const void* p) {
  const u8* byte = static_cast<const u8*>(p);
  return simt::modelled() ? simt::load(byte, simt::WEAK, simt::SYSTEM) : *byte;
}
SC_DEVICE void store_u8(void* p, u8 v) {
  u8* byte = static_cast<u8*>(p);
  if (simt::modelled()) {
    simt::store(byte, v, simt::WEAK, simt::SYSTEM);
  } else {
    *byte = v;
  }
}

SC_DEVICE void fence_system() { simt::fence(simt::FULL, simt::SYSTEM); }
SC_DEVICE void fence_device() { simt::fence(simt::FULL, simt::DEVICE); }
SC_DEVICE void fence_total_system() { simt::fence(simt::TOTAL, simt::SYSTEM); }
SC_DEVICE void fence_acquire_system() { simt::fence(simt::ACQUIRE, simt::SYSTEM); }

SC_DEVICE u64 timer_ns() { return sidecore_simt_timer(); }
SC_DEVICE void pause(u32 ns, const char* site) { sidecore_simt_pause(ns, site); }

// The block's own memory is not modelled: lanes of a block meet in it as they run.
SC_DEVICE u32 load_block(const u32* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
SC_DEVICE u64 load_block(const u64* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
SC_DEVICE void store_block(u32* p, u32 v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
SC_DEVICE void store_block(u64* p, u64 v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
// A barrier is the number of its phases that are over.
SC_DEVICE void barrier_init(u64* barrier) { store_block(barrier, 0); }
SC_DEVICE void barrier_arrive(u64* barrier) { store_block(barrier, load_block(barrier) + 1); }
SC_DEVICE bool barrier_try_wait(u64* barrier, u32 parity, const char* site) {
  if ((load_block(barrier) & 1) != parity) return true;
  pause(1000, site);
  return false;
}

}  // namespace arch
}  // namespace sidecore
