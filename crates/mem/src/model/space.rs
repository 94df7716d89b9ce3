//! The memory itself: registered regions, and what each of their words held before.
//!
//! The present value of a word lies in the real memory, so that unmodelled readers see it. A word
//! that was ever stored to has a [`History`]: when its present value came (as a global sequence
//! number), and up to four values before.
// UNSAFETY: reads and writes words of registered regions.
#![expect(unsafe_code, reason = "raw words of registered regions")]

use std::sync::atomic::{AtomicU64, Ordering};

use crate::region::{MemoryKind, Region};

/// Past values kept of a word.
const PAST_MAX: usize = 4;
/// Nobody reads a value that was overwritten longer ago than this many stores.
pub(super) const STALE_MAX: u64 = 2048;

/// An aligned 8-byte word of a registered region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Word {
    pub region: u32,
    pub index: u32,
}

impl Word {
    pub(super) fn next(self) -> Self {
        Self { index: self.index + 1, ..self }
    }
}

struct Registered {
    start: u64,
    end: u64,
    region: Region,
    name_hash: u64,
    /// A word's place in `histories` plus 1; 0 where it has none.
    slots: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Past {
    since: u64,
    value: u64,
}

/// When a word's present value came, and what it held before, newest first.
#[derive(Clone, Copy)]
struct History {
    since: u64,
    past: [Past; PAST_MAX],
    len: usize,
}

/// A value and the sequence number of the store that made it.
#[derive(Clone, Copy)]
pub(super) struct Version {
    pub value: u64,
    pub since: u64,
}

/// All registered memory.
pub(super) struct Space {
    regions: Vec<Registered>,
    /// All of them lie between these addresses.
    lowest: u64,
    highest: u64,
    last_found: usize,
    histories: Vec<History>,
    /// Number of the newest store.
    pub now: u64,
    /// How many stores changed a value.
    pub changes: u64,
}

impl Space {
    pub(super) fn new() -> Self {
        // Stores begin above STALE_MAX so that differences need no care.
        let now = 2 * STALE_MAX;
        Self {
            regions: Vec::new(),
            lowest: u64::MAX,
            highest: 0,
            last_found: 0,
            histories: Vec::new(),
            now,
            changes: 0,
        }
    }

    /// Registers a region; panics where it overlaps another or is not 16-byte aligned.
    pub(super) fn register(&mut self, name: &str, region: &Region) {
        let start = region.address();
        let end = start + region.len_bytes() as u64;
        assert!(start.is_multiple_of(16), "region {name} is not aligned to 16 bytes");
        let overlap = self.regions.iter().any(|r| r.start < end && start < r.end);
        assert!(!overlap, "region {name} overlaps a registered one");
        let name_hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        self.lowest = self.lowest.min(start);
        self.highest = self.highest.max(end);
        let slots = vec![0; region.len_bytes().div_ceil(8)];
        self.regions.push(Registered { start, end, region: region.clone(), name_hash, slots });
    }

    /// Finds the registered range; `None` where any byte of it is not registered.
    #[inline]
    pub(super) fn find(&mut self, address: u64, bytes: usize) -> Option<(u32, usize)> {
        let end = address.checked_add(bytes as u64)?;
        let holds = |r: &Registered| r.start <= address && end <= r.end;
        if !self.regions.get(self.last_found).is_some_and(holds) {
            self.last_found = self.regions.iter().position(holds)?;
        }
        let offset = usize::try_from(address - self.regions[self.last_found].start).ok()?;
        Some((u32::try_from(self.last_found).expect("few regions"), offset))
    }

    pub(super) fn kind(&self, region: u32) -> MemoryKind {
        self.regions[region as usize].region.kind()
    }

    /// What stands for a word in the hash of accesses: the same in every process.
    pub(super) fn identity(&self, word: Word) -> u64 {
        self.regions[word.region as usize].name_hash ^ u64::from(word.index)
    }

    /// What stands for a value in the hash of accesses: where it is an address of registered memory, not
    /// that, which differs from run to run, but which memory and where in it.
    #[inline]
    pub(super) fn value_identity(&self, value: u64) -> u64 {
        if value < self.lowest || value >= self.highest {
            return value;
        }
        let holds = |r: &&Registered| r.start <= value && value < r.end;
        let region = self.regions.iter().find(holds);
        region.map_or(value, |region| region.name_hash ^ (value - region.start))
    }

    /// The word in the real memory. The last one may be cut short by the region's end, but mappings
    /// are whole pages.
    fn cell(&self, word: Word) -> &AtomicU64 {
        let registered = &self.regions[word.region as usize];
        let index = word.index as usize;
        assert!(index < registered.slots.len(), "word {index} of the region");
        // SAFETY: the index is inside by the assertion above, and the region is alive in `self`.
        let pointer = unsafe { registered.region.as_ptr().cast::<u64>().add(index) };
        // SAFETY: aligned (the base is, by `register`); foreign memory is accessed by atomics only.
        unsafe { AtomicU64::from_ptr(pointer) }
    }

    fn history(&self, word: Word) -> Option<&History> {
        let slot = self.regions[word.region as usize].slots[word.index as usize];
        self.histories.get(slot.checked_sub(1)? as usize)
    }

    /// When the word's present value came; 0 where it was never stored to.
    #[inline]
    pub(super) fn since(&self, word: Word) -> u64 {
        self.history(word).map_or(0, |history| history.since)
    }

    /// The present value.
    #[inline]
    pub(super) fn present(&self, word: Word) -> Version {
        Version { value: self.cell(word).load(Ordering::Acquire), since: self.since(word) }
    }

    /// How many past values were still there at `floor` or later.
    pub(super) fn past_since(&self, word: Word, floor: u64) -> usize {
        let Some(history) = self.history(word) else { return 0 };
        let mut until = history.since;
        let mut count = 0;
        for past in &history.past[..history.len] {
            if until <= floor {
                break;
            }
            count += 1;
            until = past.since;
        }
        count
    }

    /// The last moment at which the word's `nth` newest past value was still there.
    pub(super) fn past_until(&self, word: Word, nth: usize) -> u64 {
        let history = self.history(word).expect("a word with past values has a history");
        let overwritten = if nth == 0 { history.since } else { history.past[nth - 1].since };
        overwritten - 1
    }

    /// The value at a moment.
    #[inline]
    pub(super) fn at(&self, word: Word, moment: u64) -> Version {
        let present = self.present(word);
        if present.since <= moment {
            return present;
        }
        let history = self.history(word).expect("stored to, so it has a history");
        let past = &history.past[..history.len];
        let found = past.iter().find(|past| past.since <= moment).or(past.last());
        found.map_or(present, |past| Version { value: past.value, since: past.since })
    }

    /// Stores to a word, as part of the store numbered `now`.
    pub(super) fn install(&mut self, word: Word, value: u64, mask: u64) {
        let cell = self.cell(word);
        let old = cell.load(Ordering::Relaxed);
        let new = old & !mask | value & mask;
        cell.store(new, Ordering::Release);
        self.changes += u64::from(new != old);
        let now = self.now;
        let slot = &mut self.regions[word.region as usize].slots[word.index as usize];
        if *slot == 0 {
            let empty = [Past { since: 0, value: 0 }; PAST_MAX];
            self.histories.push(History { since: 0, past: empty, len: 0 });
            *slot = u32::try_from(self.histories.len()).expect("fewer than 2^32 words");
        }
        let history = &mut self.histories[*slot as usize - 1];
        history.past.copy_within(..PAST_MAX - 1, 1);
        history.past[0] = Past { since: history.since, value: old };
        history.len = (history.len + 1).min(PAST_MAX);
        history.since = now;
    }
}
