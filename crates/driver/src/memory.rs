//! The memory of a queue pair, which the drive reads and writes at any time.
//!
//! | part | bytes | begins at |
//! | --- | --- | --- |
//! | submission entries | 64 each | 0 |
//! | completion entries | 16 each | the next page |
//! | PRP lists | one page a command | the next page |

use std::sync::atomic::Ordering;

use mem::{MemoryKind, Region};
use proto::QueuePairShape;
use spec::{Command, Completion};

use crate::device::{Device, Mapping};
use crate::error::DriverError;

/// Bytes of a memory page.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Entries of a PRP list that fill one page.
pub(crate) const LIST_ENTRIES: usize = PAGE_BYTES / 8;

#[derive(Debug)]
pub(crate) struct QueueMemory {
    mapping: Mapping,
    completion_offset: usize,
    list_offset: usize,
}

fn index(entries: u32) -> usize {
    usize::try_from(entries).expect("queue entries fit in an address space")
}

impl QueueMemory {
    /// Maps memory for a pair of this shape, with a PRP list for each of `lists` commands.
    pub(crate) fn new(
        device: &dyn Device,
        shape: QueuePairShape,
        lists: u32,
    ) -> Result<Self, DriverError> {
        let submission = index(shape.submission_entries) * Command::BYTES;
        let completion = index(shape.completion_entries) * Completion::BYTES;
        let completion_offset = submission.next_multiple_of(PAGE_BYTES);
        let list_offset = completion_offset + completion.next_multiple_of(PAGE_BYTES);
        let bytes = list_offset + index(lists) * PAGE_BYTES;
        let region = Region::map_anonymous(bytes, MemoryKind::Host)?;
        let mapping = device.map(&region)?;
        Ok(Self { mapping, completion_offset, list_offset })
    }

    fn region(&self) -> &Region {
        self.mapping.region()
    }

    pub(crate) fn submission_address(&self) -> u64 {
        self.mapping.address()
    }

    pub(crate) fn completion_address(&self) -> u64 {
        self.mapping.address() + self.completion_offset as u64
    }

    pub(crate) fn list_address(&self, slot: usize) -> u64 {
        self.mapping.address() + (self.list_offset + slot * PAGE_BYTES) as u64
    }

    /// Clears the completion entries, so that none has the phase tag of a new one.
    pub(crate) fn clear_completions(&self) {
        let bytes = self.list_offset - self.completion_offset;
        self.region().fill(self.completion_offset, bytes, 0);
    }

    /// Stores an entry; the drive sees it after the next doorbell (which is a Release store).
    pub(crate) fn store_command(&self, index: u16, command: &Command) {
        let offset = usize::from(index) * Command::BYTES;
        for (n, word) in command.to_words().into_iter().enumerate() {
            self.region().u64_at(offset + 8 * n).store(word, Ordering::Relaxed);
        }
    }

    /// Stores list entries; the drive sees them after the next doorbell.
    pub(crate) fn store_list(&self, slot: usize, entries: &[u64]) {
        let offset = self.list_offset + slot * PAGE_BYTES;
        for (n, entry) in entries.iter().enumerate() {
            self.region().u64_at(offset + 8 * n).store(*entry, Ordering::Relaxed);
        }
    }

    /// Loads a completion entry where its phase tag is the one asked for.
    #[inline]
    pub(crate) fn load_completion(&self, index: u16, phase: bool) -> Option<Completion> {
        let offset = self.completion_offset + usize::from(index) * Completion::BYTES;
        // Pairs with the drive's store of the half that holds the phase tag, its last one: the
        // first half and the payload are complete once the tag is seen.
        let high = self.region().u64_at(offset + Completion::PHASE_HALF).load(Ordering::Acquire);
        if Completion::phase_of_half(high) != phase {
            return None;
        }
        let low = self.region().u64_at(offset).load(Ordering::Relaxed);
        Some(Completion::from_words([low, high]))
    }
}
