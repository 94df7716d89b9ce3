/// Litmus kernels: whether memory keeps the order that the request ring builds on, seen from the GPU; and a
/// kernel that is wrong on purpose, for memory checkers to find.
///
/// Nothing shakes hands: one side stores numbers that only grow, the other looks at any time. Who sees a
/// flag must see payload at least as new. Arguments are those of crates/selftest/src/litmus.rs.
#include <sidecore/impl/arch.h>

namespace {

using namespace sidecore;

/// Words of a cell: the flag's line, then three lines of payload.
constexpr u32 LINE_WORDS = 16;
constexpr u32 CELL_WORDS = 4 * LINE_WORDS;

/// What a lane does, bit by bit.
constexpr u32 ACQUIRE = 1;  // a fence between flag and payload
constexpr u32 PAIRS = 2;    // looks at 16 bytes at once instead
constexpr u32 FENCE = 4;    // a fence between payload and entry

struct LitmusArgs {
  u64* cells;
  u64* stop;     // not 0: the CPU has ended
  u64* results;  // looks, new ones among them, violations: added up
  u64 cell_count;
  u64 rounds;    // at least
  u64 rounds_max;
  u32 mode;
  u32 reserved;
};

/// The word for a number: both halves say it, so that a torn word is seen.
SC_DEVICE u64 word_of(u64 number) { return number << 32 | (~number & 0xffffffffull); }
SC_DEVICE bool is_whole(u64 word) {
  return word == 0 || (word >> 32 ^ 0xffffffffull) == (word & 0xffffffffull);
}

SC_DEVICE bool goes_on(const LitmusArgs& args, u64 round) {
  if (round >= args.rounds_max) return false;
  return round < args.rounds || arch::load_relaxed(args.stop) == 0;
}

SC_DEVICE void report(const LitmusArgs& args, u64 looks, u64 fresh, u64 violations) {
  arch::fetch_add_device(args.results, looks);
  arch::fetch_add_device(args.results + 1, fresh);
  arch::fetch_add_device(args.results + 2, violations);
}

SC_DEVICE u64 thread_in_grid() {
  return static_cast<u64>(arch::block_index()) * arch::block_threads() + arch::thread_index();
}

}  // namespace

/// The CPU stores payload, then the flag; lanes look at the flag, then at the payload. (Rules: payload is
/// fenced before its word; one acquire in whoever reads payload; 8 bytes are atomic in a window.)
SC_KERNEL(sidecore_litmus_receive, LitmusArgs, args) {
  const u64* const cell = args.cells + thread_in_grid() % args.cell_count * CELL_WORDS;
  u64 looks = 0, fresh = 0, violations = 0, last = 0;
  for (u64 round = 0; goes_on(args, round); ++round) {
    ++looks;
    if ((args.mode & PAIRS) != 0) {
      u64 lo, hi;
      arch::load_relaxed_16(cell + LINE_WORDS, lo, hi);
      violations += lo != hi;
      fresh += lo != last;
      last = lo;
      continue;
    }
    const u64 flag = arch::load_relaxed(cell + LINE_WORDS / 2 - 1);
    if ((args.mode & ACQUIRE) != 0) arch::fence_acquire_system();
    bool wrong = !is_whole(flag);
    for (u32 line = 1; line < 4; ++line) {
      alignas(16) u64 payload[2];
      arch::copy_16(payload, cell + line * LINE_WORDS);
      wrong = wrong || !is_whole(payload[0]) || payload[0] >> 32 < flag >> 32;
    }
    violations += wrong;
    fresh += flag != last;
    last = flag;
  }
  report(args, looks, fresh, violations);
}

/// Lanes store payload, then a 16-byte entry, into host memory; the CPU looks at the entry, then at the
/// payload. (Rule: a pushed payload is fenced before its entry; 16 bytes are stored at once.)
SC_KERNEL(sidecore_litmus_send, LitmusArgs, args) {
  const u64 lane = thread_in_grid();
  if (lane >= args.cell_count) return;
  u64* const cell = args.cells + lane * CELL_WORDS;
  u64 stored = 0;
  for (u64 round = 0; goes_on(args, round); ++round) {
    alignas(16) const u64 payload[2] = {word_of(round + 1), word_of(round + 1)};
    for (u32 line = 1; line < 4; ++line) arch::copy_16(cell + line * LINE_WORDS, payload);
    if ((args.mode & FENCE) != 0) arch::fence_system();
    arch::store_relaxed_16(cell, word_of(round + 1), word_of(round + 1));
    ++stored;
  }
  report(args, stored, stored, 0);
}

/// Lanes change a word of a line of which the CPU changes another and looks at it. (Rule: a fence before a
/// line of the window is read again.)
SC_KERNEL(sidecore_litmus_beside, LitmusArgs, args) {
  u64* const word = args.cells + thread_in_grid() % args.cell_count * CELL_WORDS + 1;
  u64 changed = 0;
  for (u64 round = 0; goes_on(args, round); ++round) {
    arch::fetch_add_device(word, u64{1});
    ++changed;
    arch::pause(2000, "litmus: the next change");
  }
  report(args, changed, changed, 0);
}

/// Wrong on purpose: stores behind the end of its memory, `rounds` bytes long.
SC_KERNEL(sidecore_bad_store, LitmusArgs, args) {
  if (thread_in_grid() == 0) arch::store_u8(reinterpret_cast<u8*>(args.cells) + args.rounds, 1);
}
