//! One CPU thread of a path: keeps a storage queue full, and sees each I/O to its destination.
//!
//! ```text
//! straight   storage <-> destination            host memory, or a drive that reaches the GPU
//! window     storage -> staging -> (this core's stores) -> destination
//! bounce     storage <-> staging <-> (copy engine) <-> destination
//! ```
//!
//! A read that bounces is handed to the copy engine with others that ended at about the same time,
//! while the queue goes on with other staging slots: the engine and the storage overlap.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use abi::bench::{BENCH_EDGES_RIGHT, BENCH_SUBMITTED, BenchEdges, BenchResult};
use abi::ring::OP_READ;
use mem::Region;
use spec::Status;
use storage::{Completion, Counters, Op, Rejected, Request, StorageQueue};

use crate::bench::copier::{Batch, Direction, Item};
use crate::bench::cpu;
use crate::bench::round::Round;

/// I/Os that a worker takes from the round at once.
const TAKE: usize = 32;
/// A worker sends at most so many I/Os to the copy engine at once.
const COPY_BATCH: usize = 16;
/// How long a worker waits before it looks whether an I/O has passed its limit.
const WAIT: Duration = Duration::from_millis(5);

/// Where payload goes between storage and destination.
pub enum Transport {
    /// Storage and destination are one.
    Straight(Region),
    /// This core stores from staging into the destination.
    Window {
        /// The CPU's mapping of the destination.
        target: Region,
        /// Slots of host memory.
        staging: Region,
    },
    /// The copy engine moves it.
    Bounce {
        /// Slots of pinned host memory.
        staging: Region,
        /// To the copy engine.
        engine: Sender<Batch>,
        /// Returned by the copy engine.
        done: Receiver<Batch>,
        /// Names this worker to the copy engine.
        reply: Sender<Batch>,
    },
}

/// What a worker needs to know.
pub struct WorkerOptions {
    /// Workers on the same round.
    pub workers: usize,
    /// I/Os in flight at most.
    pub depth: usize,
    /// Slots of staging.
    pub slots: usize,
    /// After this an I/O without an answer ends as an error.
    pub limit: Duration,
}

/// A round for one worker.
pub struct Job {
    /// The I/Os.
    pub round: Arc<Round>,
    /// The next one that nobody has taken.
    pub next: Arc<AtomicUsize>,
    /// Time zero of the round.
    pub start: Instant,
}

/// What a worker did of a round.
#[derive(Default)]
pub struct Done {
    /// Index in the round, and how it ended.
    pub results: Vec<(usize, BenchResult)>,
    /// CPU seconds of this thread.
    pub cpu_s: f64,
    /// Sum of the times that I/Os were in flight in the queue.
    pub in_flight_ns: u64,
    /// The queue's counters since it was opened.
    pub counters: Counters,
    /// When the last I/O ended, from the start of the round.
    pub end_ns: u64,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    /// Which use of the slot this is; the token carries it, so that late answers are told apart.
    serial: u32,
    /// The queue has it: it has been submitted and not answered.
    in_queue: bool,
    index: usize,
    started_ns: u64,
    submitted_ns: u64,
    cancelled: bool,
}

/// A worker.
pub struct Worker {
    queue: Box<dyn StorageQueue>,
    transport: Transport,
    options: WorkerOptions,
    slots: Vec<Slot>,
    /// First in, first out: neighbours stay neighbours, so that their copies join.
    free: VecDeque<usize>,
    /// Slots whose payload is in staging and can be written to storage.
    ready: Vec<usize>,
    /// For the copy engine.
    batch: Vec<Item>,
    /// I/Os sent to the copy engine at once: at most half of the slots, so that the other half fills.
    copy_batch: usize,
    /// Batches that the copy engine has.
    copying: usize,
    taken: std::ops::Range<usize>,
    completions: Vec<Completion>,
    done: Done,
    /// The clock as read a moment ago, if no wait came between.
    read_ns: Option<u64>,
    /// When the queue last answered with success, from the start of the round.
    answered_ns: u64,
}

impl Worker {
    /// Makes a worker of an open queue.
    pub fn new(queue: Box<dyn StorageQueue>, transport: Transport, options: WorkerOptions) -> Self {
        let slots = vec![Slot::default(); options.slots];
        let free = (0..options.slots).collect();
        let copy_batch = (options.slots / 2).clamp(1, COPY_BATCH);
        Self {
            queue,
            transport,
            slots,
            free,
            options,
            ready: Vec::new(),
            batch: Vec::new(),
            copy_batch,
            copying: 0,
            taken: 0..0,
            completions: Vec::new(),
            done: Done::default(),
            answered_ns: 0,
            read_ns: None,
        }
    }

    /// Does its part of a round.
    pub fn run(&mut self, job: &Job) -> Done {
        let cpu_before = cpu::thread_seconds();
        self.answered_ns = 0;
        self.read_ns = None;
        self.done.results.reserve(job.round.plan.len() / 8);
        loop {
            self.fill(job);
            let progress = self.poll(job) | self.collect(job, None);
            self.send_batch(progress);
            if progress {
                continue;
            }
            self.read_ns = None;
            if self.queue.in_flight() > 0 {
                self.queue.wait_for_completion(WAIT);
                self.cancel_overdue(job);
            } else if self.copying > 0 {
                self.collect(job, Some(WAIT));
            } else if self.ready.is_empty() && !self.may_take(job) {
                break;
            }
        }
        let mut done = std::mem::take(&mut self.done);
        done.counters = self.queue.counters();
        done.cpu_s = cpu::thread_seconds() - cpu_before;
        done
    }

    fn may_take(&self, job: &Job) -> bool {
        !self.taken.is_empty() || job.next.load(Ordering::Relaxed) < job.round.plan.len()
    }

    fn take(&mut self, job: &Job) -> Option<usize> {
        if self.taken.is_empty() {
            let all = job.round.plan.len();
            // Towards the end of a round less at once, so that all workers end together.
            let left = all.saturating_sub(job.next.load(Ordering::Relaxed));
            let take = (left / (4 * self.options.workers)).clamp(1, TAKE);
            let first = job.next.fetch_add(take, Ordering::Relaxed);
            self.taken = first.min(all)..(first + take).min(all);
        }
        self.taken.next()
    }

    /// Submits until the queue, the slots or the round is exhausted.
    fn fill(&mut self, job: &Job) {
        // What was read at the end of the last I/O is before the next one's ticket.
        let started_ns = self.read_ns.take().unwrap_or_else(|| elapsed(job));
        while (self.queue.in_flight() as usize) < self.options.depth {
            if let Some(slot) = self.ready.pop() {
                self.submit(job, slot, started_ns);
                continue;
            }
            if self.free.is_empty() {
                break;
            }
            let Some(index) = self.take(job) else { break };
            let slot = self.free.pop_front().expect("a free slot was seen above");
            let serial = self.slots[slot].serial.wrapping_add(1);
            self.slots[slot] = Slot { serial, index, started_ns, ..Slot::default() };
            let writes = job.round.plan[index].opcode != u32::from(OP_READ);
            if writes && matches!(self.transport, Transport::Bounce { .. }) {
                self.copy_later(job, slot, Direction::ToHost);
                if self.batch.len() >= self.copy_batch {
                    self.send_batch(false);
                }
            } else {
                self.submit(job, slot, started_ns);
            }
        }
    }

    fn submit(&mut self, job: &Job, slot: usize, now_ns: u64) {
        let Slot { serial, index, .. } = self.slots[slot];
        let io = job.round.plan[index];
        let io_bytes = job.round.io_bytes as usize;
        let (memory, memory_offset) = match &self.transport {
            Transport::Straight(region) => (region, job.round.place(index)),
            Transport::Window { staging, .. } | Transport::Bounce { staging, .. } => {
                (staging, slot * io_bytes)
            }
        };
        let request = Request {
            token: u64::from(serial) << 32 | slot as u64,
            op: if io.opcode == u32::from(OP_READ) { Op::Read } else { Op::Write },
            offset: io.source_offset,
            bytes: job.round.io_bytes,
            memory,
            memory_offset,
        };
        self.slots[slot].submitted_ns = now_ns;
        match self.queue.try_submit(request) {
            Ok(()) => self.slots[slot].in_queue = true,
            Err(Rejected::QueueFull) => self.ready.push(slot),
            Err(Rejected::Invalid(status)) => self.end(job, slot, status, 0, false),
        }
    }

    /// Takes what has ended; whether anything had.
    fn poll(&mut self, job: &Job) -> bool {
        let mut completions = std::mem::take(&mut self.completions);
        self.queue.poll(&mut completions);
        let any = !completions.is_empty();
        let now_ns = if any { elapsed(job) } else { 0 };
        for completion in completions.drain(..) {
            self.finish(job, completion, now_ns);
        }
        self.completions = completions;
        any
    }

    fn finish(&mut self, job: &Job, completion: Completion, now_ns: u64) {
        let slot = usize::try_from(completion.token & 0xffff_ffff).expect("32 bits");
        let serial = u32::try_from(completion.token >> 32).expect("32 bits");
        if !self.slots.get(slot).is_some_and(|s| s.in_queue && s.serial == serial) {
            return; // A second answer to a request that has had its first.
        }
        self.slots[slot].in_queue = false;
        self.done.in_flight_ns += now_ns.saturating_sub(self.slots[slot].submitted_ns);
        let index = self.slots[slot].index;
        let io_bytes = job.round.io_bytes;
        let read = job.round.plan[index].opcode == u32::from(OP_READ);
        if completion.status.is_success() {
            self.answered_ns = now_ns;
        }
        if !completion.status.is_success() || completion.bytes != io_bytes {
            let status = if completion.status.is_success() {
                Status::from_bits(abi::status::SHORT)
            } else {
                completion.status
            };
            self.end(job, slot, status, completion.bytes, false);
            return;
        }
        if !read {
            self.end(job, slot, completion.status, io_bytes, false);
            return;
        }
        let place = job.round.place(index);
        let target = match &self.transport {
            Transport::Straight(region) => region,
            Transport::Window { target, staging } => {
                let bytes = io_bytes as usize;
                target.copy_from(place, staging, slot * bytes, bytes);
                mem::fence_payload();
                target
            }
            Transport::Bounce { .. } => return self.copy_later(job, slot, Direction::ToDevice),
        };
        let right = edges_right(&job.round, index, target, place);
        let end_ns = if job.round.edges.is_empty() { now_ns } else { elapsed(job) };
        self.record(slot, completion.status, io_bytes, end_ns, right);
        self.read_ns = Some(end_ns);
    }

    fn copy_later(&mut self, job: &Job, slot: usize, direction: Direction) {
        let index = self.slots[slot].index;
        self.batch.push(Item {
            slot,
            index,
            direction,
            staging_offset: slot * job.round.io_bytes as usize,
            end_ns: 0,
            right: false,
        });
        if self.batch.len() == 1 {
            self.done.end_ns = self.done.end_ns.max(self.slots[slot].started_ns);
        }
    }

    /// Hands the batch to the copy engine, if it is full or there is nothing to wait for.
    fn send_batch(&mut self, more_may_come: bool) {
        if self.batch.is_empty()
            || (more_may_come && self.batch.len() < self.copy_batch && !self.free.is_empty())
        {
            return;
        }
        let Transport::Bounce { engine, reply, staging, .. } = &self.transport else { return };
        let items = std::mem::take(&mut self.batch);
        let batch =
            Batch { items, staging: staging.clone(), reply: Some(reply.clone()), failure: None };
        self.copying += 1;
        engine.send(batch).expect("the copy engine lives as long as its path");
    }

    /// Takes what the copy engine has done, waiting at most `limit`; whether there was any.
    fn collect(&mut self, job: &Job, limit: Option<Duration>) -> bool {
        let mut any = false;
        while self.copying > 0 {
            let Transport::Bounce { done, .. } = &self.transport else { return any };
            let batch = match limit.filter(|_| !any) {
                Some(limit) => done.recv_timeout(limit).ok(),
                None => done.try_recv().ok(),
            };
            let Some(batch) = batch else { return any };
            any = true;
            self.copying -= 1;
            let status = batch.failure.unwrap_or(Status::SUCCESS);
            for item in &batch.items {
                match item.direction {
                    Direction::ToHost if status.is_success() => self.ready.push(item.slot),
                    _ => self.end_at(job, item.slot, status, item.end_ns, item.right),
                }
            }
        }
        any
    }

    fn end(&mut self, job: &Job, slot: usize, status: Status, bytes: u32, right: bool) {
        let end_ns = elapsed(job);
        self.record(slot, status, bytes, end_ns, right);
    }

    fn end_at(&mut self, job: &Job, slot: usize, status: Status, end_ns: u64, right: bool) {
        self.record(slot, status, job.round.io_bytes, end_ns, right);
    }

    fn record(&mut self, slot: usize, status: Status, bytes: u32, end_ns: u64, right: bool) {
        let Slot { index, started_ns, .. } = self.slots[slot];
        let flags = BENCH_SUBMITTED | if right { BENCH_EDGES_RIGHT } else { 0 };
        let latency_ns = end_ns.saturating_sub(started_ns);
        let result = BenchResult { latency_ns, status: status.bits(), flags, detail: bytes };
        self.done.results.push((index, result));
        self.done.end_ns = self.done.end_ns.max(end_ns);
        self.free.push_back(slot);
    }

    /// Asks for the end of what has had no answer for too long; of all there is, where the queue has
    /// answered nothing with success for as long.
    fn cancel_overdue(&mut self, job: &Job) {
        let limit_ns = u64::try_from(self.options.limit.as_nanos()).unwrap_or(u64::MAX);
        let now_ns = elapsed(job);
        let late = |slot: &Slot| now_ns.saturating_sub(slot.submitted_ns) > limit_ns;
        let any_late = self.slots.iter().any(|slot| slot.in_queue && late(slot));
        if any_late && now_ns.saturating_sub(self.answered_ns) > limit_ns {
            let mut completions = Vec::new();
            self.queue.quiesce(&mut completions);
            for completion in completions {
                self.finish(job, completion, now_ns);
            }
            self.answered_ns = now_ns;
            return;
        }
        for (i, slot) in self.slots.iter_mut().enumerate() {
            if slot.in_queue && late(slot) && !slot.cancelled {
                slot.cancelled = true;
                self.queue.cancel(u64::from(slot.serial) << 32 | i as u64);
            }
        }
    }
}

/// Nanoseconds since the round began.
pub fn elapsed(job: &Job) -> u64 {
    nanoseconds_since(job.start)
}

/// Nanoseconds since an instant.
pub fn nanoseconds_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Whether the first and last 16 bytes at the destination are what they must be.
pub fn edges_right(round: &Round, index: usize, target: &Region, place: usize) -> bool {
    let Some(BenchEdges { first, last }) = round.edges.get(index) else { return false };
    let end = place + round.io_bytes as usize;
    let word = |at: usize| target.u64_at(at).load(Ordering::Relaxed);
    mem::fence_acquire();
    [word(place), word(place + 8)] == *first && [word(end - 16), word(end - 8)] == *last
}
