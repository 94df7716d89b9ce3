/// The arch layer on a real GPU, as inline PTX; `arch.h` says what each name means.
///
/// For nvcc and NVRTC, sm_80 and later. Pointers are generic; accesses that name the global state
/// space convert them first. A 16-byte access is PTX's `.b128`, which is one access (single copy
/// atomic), not a vector of narrower ones. Every access is `volatile` with a memory clobber, so that
/// the compiler keeps program order; what the hardware may reorder is as the PTX memory model has it.
///
/// Source: PTX ISA 9.0, chapters 8 (memory consistency model) and 9.7 (instructions).
#pragma once

#include "types.h"

#if defined(SIDECORE_SIMT)
#error "arch_cuda.h is for a real GPU; include arch.h"
#endif

#define SC_DEVICE __device__ inline
#define SC_OUTLINE __device__ __noinline__

#define SC_KERNEL(name, ArgsType, args) extern "C" __global__ void name(const ArgsType args)

#if defined(__CUDACC_VER_MAJOR__) && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1204
#define SC_REGISTERS(count) __maxnreg__(count)
#else
#define SC_REGISTERS(count) __launch_bounds__(1024)
#endif
#define SC_KERNEL_LIMITED(name, ArgsType, args, registers) \
  extern "C" __global__ void SC_REGISTERS(registers) name(const ArgsType args)

#define SC_SHARED(Type, name) __shared__ Type name

namespace sidecore {
namespace arch {

namespace cuda {

#define SC_SPECIAL(function, special)             \
  SC_DEVICE u32 function() {                      \
    u32 value;                                    \
    asm volatile("mov.u32 %0, %%" special ";" : "=r"(value)); \
    return value;                                 \
  }
SC_SPECIAL(tid, "tid.x")
SC_SPECIAL(ctaid, "ctaid.x")
SC_SPECIAL(ntid, "ntid.x")
SC_SPECIAL(nctaid, "nctaid.x")
SC_SPECIAL(laneid, "laneid")
#undef SC_SPECIAL

// An access to global memory through a generic pointer: `%1` is the pointer, `g` its global form.
#define SC_GLOBAL(operand, instruction) \
  "{\n\t.reg .u64 g;\n\tcvta.to.global.u64 g, " operand ";\n\t" instruction "\n\t}"

}  // namespace cuda

SC_DEVICE u32 thread_index() { return cuda::tid(); }
SC_DEVICE u32 block_index() { return cuda::ctaid(); }
SC_DEVICE u32 block_threads() { return cuda::ntid(); }
SC_DEVICE u32 grid_blocks() { return cuda::nctaid(); }
SC_DEVICE u32 lane_index() { return cuda::laneid(); }
SC_DEVICE u32 warp_index() { return cuda::tid() / 32; }

SC_DEVICE u32 processor_index() {
  u32 value;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(value));
  return value;
}

SC_DEVICE u32 popcount(u32 bits) {
  u32 count;
  asm("popc.b32 %0, %1;" : "=r"(count) : "r"(bits));
  return count;
}
SC_DEVICE u32 lowest_bit(u32 bits) {
  u32 index;
  asm("{\n\t.reg .b32 r;\n\tbrev.b32 r, %1;\n\tclz.b32 %0, r;\n\t}" : "=r"(index) : "r"(bits));
  return index;
}

SC_DEVICE u32 active_mask() {
  u32 mask;
  asm volatile("activemask.b32 %0;" : "=r"(mask));
  return mask;
}
SC_DEVICE u32 ballot(u32 mask, bool predicate) {
  u32 bits;
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %1, 0;\n\tvote.sync.ballot.b32 %0, p, %2;\n\t}"
      : "=r"(bits)
      : "r"(static_cast<u32>(predicate)), "r"(mask)
      : "memory");
  return bits;
}
SC_DEVICE bool any(u32 mask, bool predicate) { return ballot(mask, predicate) != 0; }
SC_DEVICE bool all(u32 mask, bool predicate) { return ballot(mask, predicate) == mask; }
SC_DEVICE u32 shuffle(u32 mask, u32 value, u32 source_lane) {
  u32 result;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, %3;"
               : "=r"(result)
               : "r"(value), "r"(source_lane), "r"(mask)
               : "memory");
  return result;
}
SC_DEVICE u64 shuffle(u32 mask, u64 value, u32 source_lane) {
  const u32 low = shuffle(mask, static_cast<u32>(value), source_lane);
  const u32 high = shuffle(mask, static_cast<u32>(value >> 32), source_lane);
  return static_cast<u64>(high) << 32 | low;
}
SC_DEVICE u32 match_any(u32 mask, u64 value) {
  u32 bits;
  asm volatile("match.any.sync.b64 %0, %1, %2;"
               : "=r"(bits)
               : "l"(value), "r"(mask)
               : "memory");
  return bits;
}
SC_DEVICE void sync_warp(u32 mask) { asm volatile("bar.warp.sync %0;" : : "r"(mask) : "memory"); }
SC_DEVICE void sync_threads() { asm volatile("barrier.sync 0;" : : : "memory"); }

#define SC_LOAD(function, T, suffix, constraint)                                        \
  SC_DEVICE T function(const T* p) {                                                    \
    T value;                                                                            \
    asm volatile(SC_GLOBAL("%1", "ld." suffix " %0, [g];")                              \
                 : "=" constraint(value)                                                \
                 : "l"(p)                                                               \
                 : "memory");                                                           \
    return value;                                                                       \
  }
#define SC_STORE(function, T, suffix, constraint)                                       \
  SC_DEVICE void function(T* p, T value) {                                              \
    asm volatile(SC_GLOBAL("%0", "st." suffix " [g], %1;")                              \
                 :                                                                      \
                 : "l"(p), constraint(value)                                            \
                 : "memory");                                                           \
  }
SC_LOAD(load_relaxed, u32, "relaxed.sys.global.u32", "r")
SC_LOAD(load_relaxed, u64, "relaxed.sys.global.u64", "l")
SC_LOAD(load_acquire, u32, "acquire.sys.global.u32", "r")
SC_LOAD(load_acquire, u64, "acquire.sys.global.u64", "l")
SC_LOAD(load_relaxed_device, u32, "relaxed.gpu.global.u32", "r")
SC_LOAD(load_relaxed_device, u64, "relaxed.gpu.global.u64", "l")
SC_STORE(store_relaxed, u32, "relaxed.sys.global.u32", "r")
SC_STORE(store_relaxed, u64, "relaxed.sys.global.u64", "l")
SC_STORE(store_release, u32, "release.sys.global.u32", "r")
SC_STORE(store_release, u64, "release.sys.global.u64", "l")
SC_STORE(store_relaxed_device, u32, "relaxed.gpu.global.u32", "r")
SC_STORE(store_relaxed_device, u64, "relaxed.gpu.global.u64", "l")
#undef SC_LOAD
#undef SC_STORE

SC_DEVICE u64 cas_device(u64* p, u64 expected, u64 desired) {
  u64 before;
  asm volatile(SC_GLOBAL("%1", "atom.relaxed.gpu.global.cas.b64 %0, [g], %2, %3;")
               : "=l"(before)
               : "l"(p), "l"(expected), "l"(desired)
               : "memory");
  return before;
}
SC_DEVICE u32 fetch_add_device(u32* p, u32 value) {
  u32 before;
  asm volatile(SC_GLOBAL("%1", "atom.relaxed.gpu.global.add.u32 %0, [g], %2;")
               : "=r"(before)
               : "l"(p), "r"(value)
               : "memory");
  return before;
}
SC_DEVICE u64 fetch_add_device(u64* p, u64 value) {
  u64 before;
  asm volatile(SC_GLOBAL("%1", "atom.relaxed.gpu.global.add.u64 %0, [g], %2;")
               : "=l"(before)
               : "l"(p), "l"(value)
               : "memory");
  return before;
}

SC_DEVICE void store_relaxed_16(void* p, u64 lo, u64 hi) {
  asm volatile(SC_GLOBAL("%0",
                         ".reg .b128 q;\n\tmov.b128 q, {%1, %2};\n\t"
                         "st.relaxed.sys.global.b128 [g], q;")
               :
               : "l"(p), "l"(lo), "l"(hi)
               : "memory");
}
SC_DEVICE void load_relaxed_16(const void* p, u64& lo, u64& hi) {
  asm volatile(SC_GLOBAL("%2",
                         ".reg .b128 q;\n\tld.relaxed.sys.global.b128 q, [g];\n\t"
                         "mov.b128 {%0, %1}, q;")
               : "=l"(lo), "=l"(hi)
               : "l"(p)
               : "memory");
}

SC_DEVICE void copy_16(void* to, const void* from) {
  u64 lo, hi;
  asm volatile("ld.v2.u64 {%0, %1}, [%2];" : "=l"(lo), "=l"(hi) : "l"(from) : "memory");
  asm volatile("st.v2.u64 [%0], {%1, %2};" : : "l"(to), "l"(lo), "l"(hi) : "memory");
}
template <u32 COUNT>
SC_DEVICE void copy_16_each(void* to, const void* from, u32 stride) {
  u64 lo[COUNT], hi[COUNT];
#pragma unroll
  for (u32 unit = 0; unit < COUNT; ++unit) {
    const char* at = static_cast<const char*>(from) + unit * stride;
    asm volatile("ld.v2.u64 {%0, %1}, [%2];" : "=l"(lo[unit]), "=l"(hi[unit]) : "l"(at) : "memory");
  }
#pragma unroll
  for (u32 unit = 0; unit < COUNT; ++unit) {
    char* at = static_cast<char*>(to) + unit * stride;
    asm volatile("st.v2.u64 [%0], {%1, %2};" : : "l"(at), "l"(lo[unit]), "l"(hi[unit]) : "memory");
  }
}
SC_DEVICE u8 load_u8(const void* p) {
  u32 value;
  asm volatile("ld.u8 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return static_cast<u8>(value);
}
SC_DEVICE void store_u8(void* p, u8 value) {
  asm volatile("st.u8 [%0], %1;" : : "l"(p), "r"(static_cast<u32>(value)) : "memory");
}

#undef SC_GLOBAL

SC_DEVICE void fence_system() { asm volatile("fence.acq_rel.sys;" : : : "memory"); }
SC_DEVICE void fence_device() { asm volatile("fence.acq_rel.gpu;" : : : "memory"); }
SC_DEVICE void fence_total_system() { asm volatile("fence.sc.sys;" : : : "memory"); }
// A fence that only acquires needs sm_90; this one is right everywhere.
SC_DEVICE void fence_acquire_system() { asm volatile("fence.acq_rel.sys;" : : : "memory"); }

SC_DEVICE u32 load_block(const u32* p) {
  u32 value;
  asm volatile("ld.acquire.cta.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}
SC_DEVICE u64 load_block(const u64* p) {
  u64 value;
  asm volatile("ld.acquire.cta.u64 %0, [%1];" : "=l"(value) : "l"(p) : "memory");
  return value;
}
SC_DEVICE void store_block(u32* p, u32 value) {
  asm volatile("st.release.cta.u32 [%0], %1;" : : "l"(p), "r"(value) : "memory");
}
SC_DEVICE void store_block(u64* p, u64 value) {
  asm volatile("st.release.cta.u64 [%0], %1;" : : "l"(p), "l"(value) : "memory");
}

#define SC_BARRIER(instruction) \
  "{\n\t.reg .u64 s;\n\tcvta.to.shared.u64 s, %0;\n\t" instruction "\n\t}"
SC_DEVICE void barrier_init(u64* barrier) {
  asm volatile(SC_BARRIER("mbarrier.init.shared.b64 [s], 1;") : : "l"(barrier) : "memory");
}
SC_DEVICE void barrier_arrive(u64* barrier) {
  asm volatile(SC_BARRIER(".reg .b64 t;\n\tmbarrier.arrive.shared.b64 t, [s];")
               :
               : "l"(barrier)
               : "memory");
}
#undef SC_BARRIER
SC_DEVICE bool barrier_try_wait(u64* barrier, u32 parity, const char*) {
  u32 over;
#if __CUDA_ARCH__ >= 900
#define SC_WAIT "mbarrier.try_wait.parity.shared.b64 p, [s], %2;"
#else
#define SC_WAIT "mbarrier.test_wait.parity.shared.b64 p, [s], %2;"
#endif
  asm volatile(
      "{\n\t.reg .pred p;\n\t.reg .u64 s;\n\tcvta.to.shared.u64 s, %1;\n\t" SC_WAIT
      "\n\tselp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(over)
      : "l"(barrier), "r"(parity)
      : "memory");
#undef SC_WAIT
#if __CUDA_ARCH__ < 900
  if (over == 0) asm volatile("nanosleep.u32 500;" : : : "memory");
#endif
  return over != 0;
}

SC_DEVICE u64 timer_ns() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now) : : "memory");
  return now;
}
SC_DEVICE void pause(u32 ns, const char*) {
  asm volatile("nanosleep.u32 %0;" : : "r"(ns) : "memory");
}

}  // namespace arch
}  // namespace sidecore
