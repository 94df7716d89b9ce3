//! At which sizes and thread counts the planner switches.

use serde::{Deserialize, Serialize};

/// Bytes in a page.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// Threads of users that carry out small requests themselves at once, and their slots.
pub(crate) const CALLERS_MAX: u64 = 16;
pub(crate) const INLINE_SLOTS: u64 = 2;

/// Chunks that each thread shall have, so that the last ones end about together.
const CHUNKS_A_THREAD: u64 = 4;
/// Shorter chunks cost more than they spread.
const CHUNK_BYTES_MIN: u64 = 256 << 10;

/// Fewest and most bytes of a slot.
pub(crate) const SLOT_BYTES: (u64, u64) = (64 << 10, 64 << 20);
/// Fewest and most slots of a thread.
pub(crate) const SLOTS: (u64, u64) = (2, 64);

/// The planner's numbers. The default is a guess for a machine that was never measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Knees {
    /// Threads that read from the page cache.
    pub threads_cached: usize,
    /// Threads that read around it.
    pub threads_direct: usize,
    /// Threads that write.
    pub threads_write: usize,
    /// Bytes of a slot, and of the chunks that requests are cut into: a power of two from 64 KiB on.
    pub slot_bytes: u64,
    /// Slots of a thread: chunks that are filled and copied at the same time.
    pub slots: usize,
    /// Requests up to this length are read into the window, where there is one.
    pub window_bytes_max: u64,
    /// Cold ranges from this length on are read around the page cache.
    pub direct_bytes_min: u64,
    /// Requests up to this length are carried out by the thread that waits for them.
    pub inline_bytes_max: u64,
    /// Requests of a batch up to this length share a slot with others.
    pub gather_bytes_max: u64,
    /// Threads that gather rows: each waits for memory most of the time, so more of them help longer.
    #[serde(default = "row_threads")]
    pub threads_rows: usize,
}

/// Threads for rows where nothing was measured.
fn row_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).clamp(1, 16)
}

impl Default for Knees {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            // Eight fill four fifths of a PCIe 5 link from the page cache; twelve fill it.
            threads_cached: cpus.min(8.max(cpus * 3 / 4)).clamp(1, 12),
            threads_direct: cpus.clamp(1, 4),
            threads_write: cpus.clamp(1, 4),
            // What a thread fills stays in caches until it is copied; larger slots are read by 15 % slower.
            slot_bytes: 1 << 20,
            slots: 4,
            window_bytes_max: 64 << 10,
            direct_bytes_min: 16 << 10,
            inline_bytes_max: 256 << 10,
            gather_bytes_max: 256 << 10,
            threads_rows: row_threads(),
        }
    }
}

impl Knees {
    /// The same within what the engine can do.
    pub(crate) fn admissible(self) -> Self {
        Self {
            threads_cached: self.threads_cached.clamp(1, 256),
            threads_direct: self.threads_direct.clamp(1, 256),
            threads_write: self.threads_write.clamp(1, 256),
            threads_rows: self.threads_rows.clamp(1, 256),
            slot_bytes: self.slot_bytes.clamp(SLOT_BYTES.0, SLOT_BYTES.1).next_power_of_two(),
            slots: self.slots.clamp(2, 64),
            ..self
        }
    }

    /// Bytes of the chunks of a request: small enough that all threads have some, within a slot.
    pub(crate) fn chunk_bytes(&self, bytes: u64, threads: usize) -> u64 {
        let share = bytes / (threads as u64).saturating_mul(CHUNKS_A_THREAD).max(1);
        let least = CHUNK_BYTES_MIN.min(self.slot_bytes);
        share.next_power_of_two().clamp(least, self.slot_bytes)
    }

    /// Bytes of a slot of a thread that carries out a small request itself: with the pages around it.
    pub(crate) fn inline_slot_bytes(&self) -> u64 {
        let most = self.inline_bytes_max.saturating_add(2 * PAGE_BYTES).min(self.slot_bytes);
        most.max(2 * PAGE_BYTES).next_power_of_two()
    }

    /// The same where `bytes` of pinned memory are all there is for `threads` threads; whether it had to
    /// shrink.
    pub(crate) fn within(self, bytes: u64, threads: usize) -> (Self, usize, bool) {
        let mut knees = self;
        let mut threads = threads;
        let used = |k: &Self, threads: usize| {
            let callers = k.inline_slot_bytes() * INLINE_SLOTS * CALLERS_MAX;
            k.slot_bytes * k.slots as u64 * threads as u64 + callers
        };
        while used(&knees, threads) > bytes {
            if knees.slots > 2 {
                knees.slots -= 1;
            } else if knees.slot_bytes > 256 << 10 {
                knees.slot_bytes /= 2;
            } else if knees.inline_bytes_max > PAGE_BYTES {
                knees.inline_bytes_max = (knees.inline_bytes_max / 2).min(knees.slot_bytes / 2);
            } else if threads > 1 {
                threads -= 1;
            } else if knees.slot_bytes > 64 << 10 {
                knees.slot_bytes /= 2;
            } else {
                break;
            }
        }
        let shrunk = knees != self;
        (knees, threads, shrunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_pool_takes_slots_then_bytes_then_threads() {
        let knees = Knees { slots: 4, slot_bytes: 1 << 20, ..Knees::default() };
        let callers = 32 * knees.inline_slot_bytes();
        let (same, threads, shrunk) = knees.within((32 << 20) + callers, 8);
        assert!(same == knees && threads == 8 && !shrunk);
        let (fewer, threads, shrunk) = knees.within((16 << 20) + callers, 8);
        assert!(fewer.slots == 2 && fewer.slot_bytes == 1 << 20 && threads == 8 && shrunk);
        for pool in [8_u64 << 20, 4 << 20, 2 << 20, crate::POOL_BYTES_MIN] {
            let (less, threads, _) = knees.within(pool, 8);
            let used = less.slot_bytes * less.slots as u64 * threads as u64;
            assert!(used + 32 * less.inline_slot_bytes() <= pool, "{less:?} {threads}");
        }
        let (least, threads, _) = knees.within(0, 8);
        assert!(least.slot_bytes == 64 << 10 && least.slots == 2 && threads == 1);
    }
}
