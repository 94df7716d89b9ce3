/// Fixed-width integers, without a standard header.
///
/// The three compilers of device code (nvcc, NVRTC, the host's C++ compiler under SIDECORE_SIMT)
/// agree on these widths; the assertions hold them to it.
#pragma once

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
