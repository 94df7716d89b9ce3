/// Copies memory in units of 16 bytes: what the GPU's own loads and stores reach, as a ceiling.
#include <sidecore/impl/arch.h>

namespace {

using namespace sidecore;

struct CopyArgs {
  u64 to;
  u64 from;
  u64 bytes;  // a multiple of 16
};

}  // namespace

SC_KERNEL(sidecore_copy, CopyArgs, args) {
  const u64 threads = static_cast<u64>(arch::grid_blocks()) * arch::block_threads();
  const u64 thread = static_cast<u64>(arch::block_index()) * arch::block_threads() + arch::thread_index();
  for (u64 at = thread * 16; at < args.bytes; at += threads * 16) {
    arch::copy_16(reinterpret_cast<char*>(args.to) + at,
                  reinterpret_cast<const char*>(args.from) + at);
  }
}
