/// Reads requests as 10 numbers a line, packs each with the device headers, and prints the four
/// words and what unpacking them gives.
#include <sidecore/impl/ring__entry.h>

#include <cstdio>

int main() {
  using namespace sidecore;
  unsigned long long v[10];
  auto read = [&] {
    for (auto& x : v) {
      if (std::scanf("%llu", &x) != 1) return false;
    }
    return true;
  };
  while (read()) {
    const abi::Request in{v[0], v[1], static_cast<u32>(v[2]), static_cast<u32>(v[3]),
                          static_cast<u32>(v[4]), static_cast<u32>(v[5]), static_cast<u16>(v[6]),
                          static_cast<u16>(v[7]), static_cast<u8>(v[8])};
    const abi::RequestEntry e = abi::pack(in, static_cast<u16>(v[9]));
    const abi::Request r = abi::unpack(e);
    std::printf("%llu %llu %llu %llu", e.w[0], e.w[1], e.w[2], e.w[3]);
    std::printf(" %llu %llu %u %u %u %u %u %u %u\n", r.source_offset, r.buffer_offset, r.length,
                r.source, r.buffer, r.record, r.record_turn, r.limit_ms, r.opcode);
  }
}
