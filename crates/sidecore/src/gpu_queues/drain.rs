//! Draining a completion queue on the CPU, and handing it over to lanes and back.
//!
//! ```text
//! Closed --opens--> Cpu --give--> Gpu --recall--> Recalling --answered--> Cpu
//!    ^_______________|_____________|_________________|   a new epoch
//! ```
//!
//! A pass takes the entries that are there, stores one completion word for each, then the SQ head,
//! fences, and rings the completion doorbell once. The fence makes the words leave the core before
//! the drive may use the entries again; nothing else orders them, since each word is whole by itself.
//!
//! A command id that completes twice is told by the SQ head: a lane uses it again only after it has
//! seen the first completion, so the drive has fetched at least one more entry by the second.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::queue::{CompletionWord, OWNER_CPU, OWNER_GPU, OWNER_RECALL, OwnerWord, phase_of};
use driver::Device;
use mem::{fence_full, fence_payload};
use spec::{Completion, QueueId};

use super::copoll::{CopollOptions, Flip, FlipLog, FlipReason, Meter, Owner};
use super::counters::QueueCounters;
use super::memory::PairMemory;

/// Most entries of one queue in one pass, so that an agent's other queues have their turn.
const BATCH: u32 = 64;
/// How long lanes may take to hand a queue back before the host looks whether any is there.
const RECALL_PATIENCE_NS: u64 = 20_000;

/// Who has the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hold {
    /// Nobody: it is being made, or made again.
    Closed,
    Cpu,
    /// Lanes, since a time; with the head as last counted.
    Gpu {
        since_ns: u64,
        window_ns: u64,
        seen: u32,
    },
    /// Lanes, until one of them answers.
    Recalling {
        since_ns: u64,
        pending: u32,
    },
}

/// What a drain is made of.
pub(super) struct DrainParts {
    pub memory: Arc<PairMemory>,
    pub device: Arc<dyn Device>,
    pub pair: u32,
    pub queue: QueueId,
    pub doorbell: usize,
    pub flips: Arc<FlipLog>,
}

/// The CPU's side of one completion queue.
pub(super) struct Drain {
    parts: DrainParts,
    hold: Hold,
    /// The queue stays whose it is: recovery is at work.
    frozen: bool,
    copoll: Option<CopollOptions>,
    meter: Meter,
    flip: u16,
    epoch: u32,
    head: u64,
    sq_head: u64,
    /// Where positions began: no completion has this SQ head.
    origin: u64,
    /// By command id: the SQ head of its last completion, or the origin.
    last: Box<[u64]>,
    /// By slot: the last position that a lane took for itself. Empty but in an epoch's last draining.
    taken: Box<[u64]>,
    pub counts: QueueCounters,
}

impl Drain {
    pub fn new(parts: DrainParts) -> Self {
        let ids = parts.memory.options.command_ids as usize;
        Self {
            hold: Hold::Closed,
            frozen: false,
            copoll: parts.memory.options.copoll(),
            meter: Meter::new(0),
            flip: 0,
            epoch: 0,
            head: 0,
            sq_head: 0,
            origin: 0,
            last: vec![0; ids].into_boxed_slice(),
            taken: Box::default(),
            counts: QueueCounters::default(),
            parts,
        }
    }

    /// Begins an epoch at `start`, with `owner` draining. The caller opens the state afterwards.
    pub fn open(&mut self, now_ns: u64, start: u64, epoch: u32, owner: Owner) {
        (self.head, self.sq_head, self.epoch) = (start, start, epoch);
        self.origin = start;
        self.last.fill(start);
        self.taken = Box::default();
        self.frozen = false;
        self.hold = match owner {
            Owner::Cpu => Hold::Cpu,
            Owner::Gpu => Hold::Gpu { since_ns: now_ns, window_ns: now_ns, seen: low(start) },
        };
        self.meter = Meter::new(now_ns);
        self.store_owner(if owner == Owner::Cpu { OWNER_CPU } else { OWNER_GPU });
    }

    /// Stops draining: the queue is about to be made again.
    pub fn close(&mut self) {
        self.hold = Hold::Closed;
    }

    /// Takes the queue from lanes that can touch it no more, at their last word.
    ///
    /// A lane may have `taken` entries that the head is not past, and may have sent its command ids
    /// again since: those entries say nothing about the commands that have the ids now.
    pub fn seize(&mut self, now_ns: u64, cq_head: u64, sq_head: u64, taken: Box<[u64]>) {
        self.frozen = true;
        self.taken = taken;
        if self.is_lanes() {
            if self.copoll.is_some() {
                self.note_flip(now_ns, Owner::Gpu, FlipReason::Recovery, 0);
            }
            self.take(now_ns, cq_head, sq_head);
        }
    }

    /// Position up to which completions have been drained.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Whether lanes have the queue.
    pub fn is_lanes(&self) -> bool {
        matches!(self.hold, Hold::Gpu { .. } | Hold::Recalling { .. })
    }

    fn store_owner(&mut self, owner: u8) {
        let phase = phase_of(self.head, self.parts.memory.depth_log2);
        let word = OwnerWord::pack(owner, phase, self.flip, low(self.head));
        self.parts.memory.store_owner(word);
    }

    /// One step: a pass where the queue is the CPU's, else a look at what lanes report. How many
    /// completions were drained.
    #[inline]
    pub fn step(&mut self, now_ns: u64) -> u32 {
        match self.hold {
            Hold::Cpu => {
                let found = self.pass();
                if let Some(options) = self.copoll
                    && !self.frozen
                    && let Some(pending) = self.meter.note(now_ns, found, &options)
                {
                    self.give(now_ns, pending);
                }
                found
            }
            Hold::Closed => 0,
            Hold::Gpu { since_ns, window_ns, seen } => {
                self.watch(now_ns, since_ns, window_ns, seen);
                0
            }
            Hold::Recalling { since_ns, pending } => {
                self.await_return(now_ns, since_ns, pending);
                0
            }
        }
    }

    /// Drains what the drive left in a queue that it has forgotten: no doorbell is rung.
    pub fn finish(&mut self) {
        while matches!(self.hold, Hold::Cpu) && self.take_entries() > 0 {}
    }

    /// Drains what is there.
    fn pass(&mut self) -> u32 {
        let found = self.take_entries();
        if found > 0 {
            let memory = &*self.parts.memory;
            memory.store_sq_head(self.sq_head);
            // Words and SQ head leave the core before the drive may use the entries again.
            fence_payload();
            let slot = self.head & (u64::from(memory.options.depth) - 1);
            self.parts.device.ring(self.parts.doorbell, low(slot));
            self.counts.cpu_doorbells += 1;
        }
        found
    }

    /// Stores a word for each entry that is there; how many there were.
    fn take_entries(&mut self) -> u32 {
        let memory = &*self.parts.memory;
        let (depth_log2, mask) = (memory.depth_log2, u64::from(memory.options.depth) - 1);
        let (cq, at) = memory.cq();
        let before = self.head;
        let mut head = before;
        for _ in 0..BATCH {
            let slot = usize::try_from(head & mask).expect("below the depth");
            let offset = at + slot * Completion::BYTES + Completion::PHASE_HALF;
            // Pairs with the drive's store of the half that holds the phase tag, its last one.
            let half = cq.u64_at(offset).load(Ordering::Acquire);
            if Completion::phase_of_half(half) != phase_of(head, depth_log2) {
                break;
            }
            let position = head;
            head = head.wrapping_add(1);
            let entry = Entry::of(half);
            let index = usize::from(entry.id);
            if entry.queue != self.parts.queue.0 || u64::from(entry.sq_head) > mask {
                self.counts.misbehaved += 1;
                continue;
            }
            let fetched = u64::from(entry.sq_head).wrapping_sub(self.sq_head) & mask;
            self.sq_head = self.sq_head.wrapping_add(fetched);
            let Some(last) = self.last.get_mut(index) else {
                self.counts.misbehaved += 1;
                continue;
            };
            if *last == self.sq_head {
                self.counts.strays += 1;
                continue;
            }
            *last = self.sq_head;
            if self.taken.get(slot) == Some(&position) {
                continue;
            }
            let word = CompletionWord::done(self.epoch, entry.status, entry.sq_head, 0);
            memory.store_completion(index, word);
        }
        let found = low(head.wrapping_sub(before));
        self.head = head;
        self.counts.completions_polled += u64::from(found);
        found
    }

    fn note_flip(&mut self, now_ns: u64, from: Owner, reason: FlipReason, pending: u32) {
        let to = if from == Owner::Cpu { Owner::Gpu } else { Owner::Cpu };
        let (pair, queue) = (self.parts.pair, self.parts.queue);
        self.parts.flips.push(Flip { at_ns: now_ns, pair, queue, from, to, reason, pending });
        self.counts.flips += 1;
    }

    /// Gives the queue to lanes; the pass is over and its doorbell rung.
    fn give(&mut self, now_ns: u64, pending: u32) {
        self.flip = self.flip.wrapping_add(1);
        self.store_owner(OWNER_GPU);
        fence_payload();
        self.note_flip(now_ns, Owner::Cpu, FlipReason::LoadLow, pending);
        self.hold = Hold::Gpu { since_ns: now_ns, window_ns: now_ns, seen: low(self.head) };
    }

    /// Counts what lanes drain, by what they report, and asks for the queue where that is much.
    fn watch(&mut self, now_ns: u64, since_ns: u64, window_ns: u64, seen: u32) {
        let Some(options) = self.copoll else { return };
        let length_ns = u64::try_from(options.window.as_nanos()).unwrap_or(u64::MAX);
        if now_ns.saturating_sub(window_ns) < length_ns {
            return;
        }
        let report = self.parts.memory.report();
        let head = if report.flip() == self.flip { report.head() } else { seen };
        let pending = head.wrapping_sub(seen);
        let windows = (now_ns.saturating_sub(window_ns) / length_ns.max(1)).max(1);
        let dwell_ns = u64::try_from(options.dwell.as_nanos()).unwrap_or(u64::MAX);
        let stayed = now_ns.saturating_sub(since_ns) >= dwell_ns;
        if stayed && u64::from(pending) / windows >= u64::from(options.high) {
            self.store_owner(OWNER_RECALL);
            // The lanes' lock is read only after this word is out.
            fence_full();
            self.hold = Hold::Recalling { since_ns: now_ns, pending };
        } else {
            self.hold = Hold::Gpu { since_ns, window_ns: now_ns, seen: head };
        }
    }

    /// Takes the queue back where a lane has answered, or none is there to answer.
    fn await_return(&mut self, now_ns: u64, since_ns: u64, pending: u32) {
        let report = self.parts.memory.report();
        let answered = report.owner() == OWNER_CPU && report.flip() == self.flip;
        if !answered && now_ns.saturating_sub(since_ns) < RECALL_PATIENCE_NS {
            return;
        }
        // Positions are read as a copy: lanes drain no more once the answer, or no holder, is seen.
        let Ok(positions) = self.parts.memory.positions() else { return };
        if !answered && positions.head_lock != 0 {
            self.hold = Hold::Recalling { since_ns: now_ns, pending };
            return;
        }
        self.note_flip(now_ns, Owner::Gpu, FlipReason::LoadHigh, pending);
        self.take(now_ns, positions.cq_head, positions.sq_head);
    }

    fn take(&mut self, now_ns: u64, cq_head: u64, sq_head: u64) {
        // Where no lane came to take the queue over, its head is from before.
        if cq_head.wrapping_sub(self.head) < 1 << 63 {
            (self.head, self.sq_head) = (cq_head, sq_head);
        }
        self.flip = self.flip.wrapping_add(1);
        self.last.fill(self.origin);
        self.hold = Hold::Cpu;
        self.meter = Meter::new(now_ns);
        self.store_owner(OWNER_CPU);
        fence_payload();
    }
}

#[inline]
fn low(value: u64) -> u32 {
    (value & 0xffff_ffff) as u32
}

/// What the upper half of a completion entry says.
struct Entry {
    sq_head: u16,
    queue: u16,
    id: u16,
    status: u16,
}

impl Entry {
    #[inline]
    fn of(half: u64) -> Self {
        Self {
            sq_head: (half & 0xffff) as u16,
            queue: (half >> 16 & 0xffff) as u16,
            id: (half >> 32 & 0xffff) as u16,
            status: (half >> 49) as u16,
        }
    }
}
