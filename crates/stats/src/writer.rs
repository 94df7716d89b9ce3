//! Who counts.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use mem::Region;
use rustix::time::{ClockId, clock_gettime};

use crate::histogram::bucket;
use crate::{Event, Op, Role, Route, layout};

/// One thread's counters. Counting is an addition in its own memory; others see it after
/// [`Writer::publish`] (call it every millisecond or so, and before going idle).
#[derive(Debug)]
pub struct Writer {
    /// This writer's shard: sequence, then the words.
    shard: Region,
    words: Vec<u64>,
    published: Vec<u64>,
    cpu_seen_ns: Option<u64>,
    index: usize,
    /// Where the shard's index goes when this writer is dropped.
    free: Arc<Mutex<Vec<usize>>>,
}

impl Writer {
    pub(crate) fn new(shard: Region, index: usize, free: Arc<Mutex<Vec<usize>>>) -> Self {
        let words = vec![0; layout::WORDS];
        Self { shard, published: words.clone(), words, cpu_seen_ns: None, index, free }
    }

    /// Counts one I/O that ended.
    #[inline]
    pub fn io(&mut self, route: Route, op: Op, bytes: u64, ok: bool) {
        let at = layout::traffic(route, op);
        self.words[at] += 1;
        self.words[at + 1] += bytes;
        self.words[at + 2] += u64::from(!ok);
    }

    /// Counts many I/Os at once: how many ended, how many of them badly, and their bytes.
    pub fn ios(&mut self, route: Route, op: Op, ended: u64, bytes: u64, errors: u64) {
        let at = layout::traffic(route, op);
        self.words[at] += ended;
        self.words[at + 1] += bytes;
        self.words[at + 2] += errors;
    }

    /// Counts `n` events.
    #[inline]
    pub fn count(&mut self, event: Event, n: u64) {
        self.words[layout::event(event)] += n;
    }

    /// Adds CPU time.
    pub fn cpu(&mut self, role: Role, ns: u64) {
        self.words[layout::role(role)] += ns;
    }

    /// Charges the calling thread's CPU time since the last such call (since its start, at the
    /// first). One system call. Call it on one and the same thread.
    pub fn charge_thread(&mut self, role: Role) {
        let now = thread_cpu_ns();
        let before = self.cpu_seen_ns.replace(now).unwrap_or(0);
        self.cpu(role, now.saturating_sub(before));
    }

    /// Adds one latency sample.
    #[inline]
    pub fn latency(&mut self, op: Op, ns: u64) {
        self.words[layout::latency(op) + bucket(ns)] += 1;
    }

    /// Makes all counts visible to readers, at once.
    pub fn publish(&mut self) {
        if self.words == self.published {
            return;
        }
        let sequence = self.shard.u64_at(0);
        // Only this writer stores it. Odd while the words change; the fence keeps the words behind
        // it, and the Release below keeps them before the even number. Pairs with `read_shard`.
        let odd = sequence.load(Ordering::Relaxed).wrapping_add(1);
        sequence.store(odd, Ordering::Relaxed);
        fence(Ordering::Release);
        for (i, (word, published)) in self.words.iter().zip(&mut self.published).enumerate() {
            if *word != *published {
                // A shard may have had an earlier owner: add, so that its counts stay.
                let cell = self.shard.u64_at(8 + i * 8);
                let sum = cell.load(Ordering::Relaxed).wrapping_add(word.wrapping_sub(*published));
                cell.store(sum, Ordering::Relaxed);
                *published = *word;
            }
        }
        sequence.store(odd.wrapping_add(1), Ordering::Release);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.publish();
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
    }
}

fn clock_ns(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0)
}

/// CPU time of the calling thread, in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    clock_ns(ClockId::ThreadCPUTime)
}

/// CPU time of this process, in nanoseconds.
pub fn process_cpu_ns() -> u64 {
    clock_ns(ClockId::ProcessCPUTime)
}
