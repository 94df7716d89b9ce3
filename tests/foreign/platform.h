// What lanes need of a machine: on a GPU CUDA's own intrinsics, else threads of the host, which stand for
// lanes. Nothing of sidecore is included.
#pragma once

#include <stdint.h>

typedef uint32_t u32;
typedef unsigned long long u64;

#ifdef __CUDACC__

#define LANE __device__ inline

LANE u32 add(u32 *p, u32 value) { return atomicAdd(p, value); }
LANE u32 swap_if(u32 *p, u32 expected, u32 value) { return atomicCAS(p, expected, value); }
LANE u32 look(const u32 *p) { return *(const volatile u32 *)p; }
LANE void put(u32 *p, u32 value) { *(volatile u32 *)p = value; }
LANE void fence() { __threadfence_system(); }
LANE void nap() { __nanosleep(200); }
LANE u64 now_ns()
{
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}

#else

#include <chrono>
#include <thread>

#define LANE inline

LANE u32 add(u32 *p, u32 value) { return __atomic_fetch_add(p, value, __ATOMIC_ACQ_REL); }
LANE u32 swap_if(u32 *p, u32 expected, u32 value)
{
    __atomic_compare_exchange_n(p, &expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return expected;
}
LANE u32 look(const u32 *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
LANE void put(u32 *p, u32 value) { __atomic_store_n(p, value, __ATOMIC_RELEASE); }
LANE void fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
LANE void nap() { std::this_thread::yield(); }
LANE u64 now_ns()
{
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return (u64)std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

#endif
