//! Submission and completion queues as the controller holds them: memory, positions, phase.
//!
//! The controller consumes submissions at `head` up to the doorbell's `tail`, and produces
//! completions at `tail` as long as the doorbell's `head` leaves a free entry: a queue of depth `d`
//! holds at most `d - 1`. The phase tag starts at 1 and turns over at each wrap.
//!
//! Sources: NVMe Base Specification 2.0c, 3.3.1 (queues), 3.3.3.2 (completion queue entry);
//! NVMe over PCIe Transport 1.0c, 3.1.2 (doorbells).

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use mem::{MemoryKind, Region, fence_payload};
use spec::Status;

/// Bytes of a submission entry.
pub(crate) const SUBMISSION_BYTES: usize = 64;
/// Bytes of a completion entry.
pub(crate) const COMPLETION_BYTES: usize = 16;

/// Most entries fetched together.
const RUN: u32 = 64;

/// The phase tag in the upper half of an entry.
const PHASE: u64 = 1 << 48;

/// No lower half of an entry: a result has 32 bits.
const UNKNOWN: u64 = u64::MAX;

/// Keeps the half of an entry with the phase tag behind its other half on the way out of the core.
/// Where that is as before, which it is for all reads and writes, nobody can tell.
#[cold]
#[inline(never)]
fn keep_behind(known: &mut u64, lower: u64) {
    if *known != lower {
        *known = lower;
        fence_payload();
    }
}

/// What a doorbell said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ring {
    /// A value that cannot be, seen for the first time.
    Invalid,
    /// Progress.
    Moved,
    /// Nothing new.
    Same,
}

/// A host's way to send commands.
#[derive(Debug)]
pub(crate) struct SubmissionQueue {
    memory: Region,
    pub(crate) depth: u32,
    pub(crate) head: u32,
    pub(crate) tail: u32,
    refused_doorbell: Option<u32>,
    pub(crate) completion_queue: u16,
    /// Commands fetched and not yet ended.
    pub(crate) outstanding: u32,
    /// The command id of the Delete that waits for `outstanding` to reach zero.
    pub(crate) deleting: Option<u16>,
    /// A fault stopped this queue: nothing is fetched any more.
    pub(crate) stuck: bool,
    /// One bit per command id in flight.
    busy_ids: Box<[u64]>,
    /// Entries that were fetched together, and how far they have been taken.
    run: Box<[[u8; SUBMISSION_BYTES]]>,
    run_at: usize,
    run_end: usize,
}

impl SubmissionQueue {
    pub(crate) fn new(memory: Region, depth: u32, completion_queue: u16) -> Self {
        Self {
            memory,
            depth,
            head: 0,
            tail: 0,
            refused_doorbell: None,
            completion_queue,
            outstanding: 0,
            deleting: None,
            stuck: false,
            busy_ids: vec![0; 1 << 10].into_boxed_slice(),
            run: vec![[0; SUBMISSION_BYTES]; RUN as usize].into_boxed_slice(),
            run_at: 0,
            run_end: 0,
        }
    }

    /// Takes the doorbell's value.
    #[inline]
    pub(crate) fn ring(&mut self, value: u32) -> Ring {
        if value == self.tail {
            Ring::Same
        } else if value < self.depth {
            self.tail = value;
            Ring::Moved
        } else if self.refused_doorbell == Some(value) {
            Ring::Same
        } else {
            self.refused_doorbell = Some(value);
            Ring::Invalid
        }
    }

    /// Whether all entries have been fetched.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Whether the next entry must be fetched from the queue's memory: with those behind it.
    #[inline]
    pub(crate) fn wants_run(&self) -> bool {
        self.run_at == self.run_end && self.head != self.tail
    }

    /// Fetches the entries that are there together, up to the end of the queue's memory: out of device
    /// memory many cost little more than one. How many.
    #[cold]
    #[inline(never)]
    pub(crate) fn fetch_run(&mut self) -> u32 {
        let end = if self.tail > self.head { self.tail } else { self.depth };
        let fetched = (end - self.head).min(RUN);
        let count = fetched as usize;
        let at = self.head as usize * SUBMISSION_BYTES;
        self.memory.read_bytes(at, self.run[..count].as_flattened_mut());
        (self.run_at, self.run_end) = (0, count);
        fetched
    }

    /// Entries that the doorbell has told of and that were not fetched.
    pub(crate) fn unfetched(&self) -> u32 {
        (self.tail + self.depth - self.head) % self.depth
    }

    /// Takes the next of the entries that were fetched, if one is left.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<[u8; SUBMISSION_BYTES]> {
        if self.run_at == self.run_end {
            return None;
        }
        let entry = self.run[self.run_at];
        self.run_at += 1;
        self.head = if self.head + 1 == self.depth { 0 } else { self.head + 1 };
        Some(entry)
    }

    /// Takes the next entry, if there is one.
    #[cfg(test)]
    pub(crate) fn fetch(&mut self) -> Option<[u8; SUBMISSION_BYTES]> {
        if self.wants_run() {
            self.fetch_run();
        }
        self.take()
    }

    /// Counts a command as outstanding under its id; false where that is outstanding already.
    #[inline]
    pub(crate) fn claim_id(&mut self, id: u16) -> bool {
        let (word, bit) = (&mut self.busy_ids[usize::from(id >> 6)], 1 << (id & 63));
        if *word & bit != 0 {
            return false;
        }
        *word |= bit;
        self.outstanding += 1;
        true
    }

    #[inline]
    pub(crate) fn release_id(&mut self, id: u16) {
        self.busy_ids[usize::from(id >> 6)] &= !(1 << (id & 63));
        self.outstanding -= 1;
    }
}

/// A completion, without the fields that are known only when it is posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    pub(crate) submission_queue: u16,
    pub(crate) command: u16,
    pub(crate) result: u32,
    pub(crate) status: Status,
}

/// A host's way to learn how commands ended.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    memory: Region,
    pub(crate) depth: u32,
    tail: u32,
    head: u32,
    /// The phase tag of this turn, where it lies in the upper half of an entry.
    phase: u64,
    /// By entry, where they lie in a window: what the lower half is known to be.
    lower: Option<Box<[u64]>>,
    refused_doorbell: Option<u32>,
    /// Submission queues that complete here.
    pub(crate) users: u32,
    /// Completions that found the queue full, in order.
    pub(crate) backlog: VecDeque<Answer>,
}

impl CompletionQueue {
    pub(crate) fn new(memory: Region, depth: u32) -> Self {
        let window = memory.kind() == MemoryKind::Window;
        let lower = window.then(|| vec![UNKNOWN; depth as usize].into_boxed_slice());
        Self {
            memory,
            depth,
            tail: 0,
            head: 0,
            phase: PHASE,
            lower,
            refused_doorbell: None,
            users: 0,
            backlog: VecDeque::new(),
        }
    }

    /// Takes the doorbell's value: the host has consumed up to here.
    #[inline]
    pub(crate) fn ring(&mut self, value: u32) -> Ring {
        if value == self.head {
            return Ring::Same;
        }
        let distance =
            |from: u32, to: u32| if to >= from { to - from } else { to + self.depth - from };
        if value < self.depth && distance(self.head, value) <= distance(self.head, self.tail) {
            self.head = value;
            Ring::Moved
        } else if self.refused_doorbell == Some(value) {
            Ring::Same
        } else {
            self.refused_doorbell = Some(value);
            Ring::Invalid
        }
    }

    #[inline]
    fn after_tail(&self) -> u32 {
        if self.tail + 1 == self.depth { 0 } else { self.tail + 1 }
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.after_tail() == self.head
    }

    /// Whether entries lie in write-combining memory, and need a fence to leave the core.
    #[inline]
    pub(crate) fn is_window(&self) -> bool {
        self.lower.is_some()
    }

    /// Writes an entry. The caller has ordered the payload before this and found room.
    #[inline]
    pub(crate) fn post(&mut self, answer: &Answer, submission_head: u32) {
        debug_assert!(!self.is_full(), "the caller looked for room");
        let offset = self.tail as usize * COMPLETION_BYTES;
        let upper = u64::from(submission_head & 0xffff)
            | u64::from(answer.submission_queue) << 16
            | u64::from(answer.command) << 32
            | u64::from(answer.status.bits()) << 49
            | self.phase;
        let lower = u64::from(answer.result);
        let [first, second] = self.memory.words_at(offset);
        first.store(lower, Ordering::Relaxed);
        if let Some(known) = &mut self.lower {
            keep_behind(&mut known[self.tail as usize], lower);
        }
        // Pairs with the host's Acquire load of the phase tag.
        second.store(upper, Ordering::Release);
        self.tail = self.after_tail();
        if self.tail == 0 {
            self.phase ^= PHASE;
        }
    }
}

#[cfg(test)]
#[path = "queues_tests.rs"]
mod tests;
