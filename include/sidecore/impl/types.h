/// Fixed-width integers, without a standard header.
///
/// The three compilers of device code (nvcc, NVRTC, the host's C++ compiler under SIDECORE_SIMT)
/// agree on these widths; the assertions hold them to it.
#pragma once

/// Byte offset of a member. NVRTC of CUDA 13.0 does not know the builtin of the other compilers.
#ifdef __CUDACC_RTC__
#define SIDECORE_OFFSETOF(type, member) __INTADDR__(&(((type*)0)->member))
#else
#define SIDECORE_OFFSETOF(type, member) __builtin_offsetof(type, member)
#endif

namespace sidecore {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

static_assert(sizeof(u8) == 1 && sizeof(u16) == 2, "narrow words");
static_assert(sizeof(u32) == 4 && sizeof(i32) == 4, "half words");
static_assert(sizeof(u64) == 8 && sizeof(i64) == 8, "words");

}  // namespace sidecore
