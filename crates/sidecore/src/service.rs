//! Serving one ring: fetch, check, start, poll, complete; stepped by hand.
//!
//! One step: new entries are copied and checked and go to storage; storage is polled; what has
//! ended is claimed; at the end of the step payload goes through the window at a stretch, and then
//! the completion words of the whole step, in the order of their records, so that a warp's leave as
//! whole lines:
//!
//! ```text
//! claims - payload - fence - words - fence - records free
//! ```
//!
//! A claim is an instruction with a lock, which waits for all write-combining stores before it: hence
//! none comes between two payloads.
//!
//! How requests begin is in `fetching`, the checks are in `check`, the ways to end in `ending`. This
//! does not know which thread runs it nor what time it is.

mod check;
mod ending;
mod fetching;
mod outbox;
mod payload;

use std::sync::atomic::Ordering;

use abi::ring::{CompletionRecord, STATE_CLOSED};
use abi::status;
use mem::fence_payload;
use storage::{Completion, Op, Rejected};

use outbox::{Done, Outbox};

use crate::counters::RingCounters;
use crate::hooks::{Hooks, Moment};
use crate::job::{Cause, Job, JobState, record_of};
use crate::queues::{Queues, SourceQueue, reaches};
use crate::registry::Tables;
use crate::ring::{FETCHED_AT, RingConfig, RingShared};
use crate::slots::Tenure;

/// Most entries copied in one step: enough for whole warps, few enough to answer soon.
const FETCH_MAX: u32 = 128;
/// Busy steps between two publications of the counters.
const PUBLISH_STEPS: u32 = 64;
/// How often a restarted ring repeats `fetched`, which its former side core may have spoilt.
const REPEAT_NS: u64 = 1_000_000;

/// A request that is about to be answered.
struct Ending {
    record: u32,
    turn: u16,
    op: Op,
}

/// What one step did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stepped {
    pub fetched: u32,
    pub completed: u32,
}

/// All that serving one ring needs; owned by whoever holds its lock.
pub(crate) struct Service {
    pub epoch: u32,
    tenure: Tenure,
    jobs: Box<[Job]>,
    pub queues: Queues,
    done: Outbox,
    completions: Vec<Completion>,
    counts: RingCounters,
    /// Requests begun and not ended.
    active: u32,
    /// The time of this step.
    now_ns: u64,
    /// No request's deadline is earlier.
    next_deadline_ns: u64,
    head: u64,
    /// Whether what is fetched now is refused, since the ring is or was closed for it.
    refusing: bool,
    /// What `fetched` in device memory says.
    published: u64,
    repeat_at_ns: u64,
    unpublished_steps: u32,
    /// Deadline of a request of this step that brings no limit.
    usual_deadline_ns: u64,
    limit_ns: u64,
    grace_ns: u64,
    /// Whether the ring was closed in the last step.
    closed: bool,
}

impl Service {
    pub fn new(config: &RingConfig, epoch: u32) -> Self {
        let records = config.records as usize;
        Self {
            epoch,
            tenure: Tenure::of(epoch),
            jobs: (0..config.records).map(Job::idle).collect(),
            queues: Queues::default(),
            done: Outbox::new(records + FETCH_MAX as usize),
            completions: Vec::with_capacity(2 * records),
            counts: RingCounters::default(),
            active: 0,
            now_ns: 0,
            next_deadline_ns: u64::MAX,
            head: config.start_ticket,
            refusing: false,
            published: config.start_ticket,
            repeat_at_ns: u64::MAX,
            unpublished_steps: 0,
            usual_deadline_ns: u64::MAX,
            limit_ns: u64::from(config.limit_ms()) * 1_000_000,
            grace_ns: u64::try_from(config.grace.as_nanos()).unwrap_or(u64::MAX),
            closed: false,
        }
    }

    /// A service that goes on where a lost side core left the ring.
    pub fn resume(ring: &RingShared, epoch: u32) -> Self {
        let head = ring.head.load(Ordering::Acquire);
        let counts = ring.counters.read();
        let queues = Queues::resume(&counts);
        let new = Self::new(&ring.config, epoch);
        Self { head, published: head, counts, queues, repeat_at_ns: 0, ..new }
    }

    /// Does what there is to do.
    pub fn step(
        &mut self,
        ring: &RingShared,
        tables: &Tables,
        hooks: &Hooks,
        now_ns: u64,
    ) -> Stepped {
        self.now_ns = now_ns;
        self.usual_deadline_ns = now_ns.saturating_add(self.limit_ns);
        if self.queues.version != tables.version {
            self.follow_tables(ring, tables);
        }
        let mode = ring.mode();
        let closing = mode == STATE_CLOSED && !self.closed;
        let quiesce = ring.wishes.quiesce.load(Ordering::Acquire);
        if quiesce || closing {
            self.quiesce_all(ring, tables);
        }
        hooks.at(Moment::BeforeFetch);
        let fetched = if mode == STATE_CLOSED { 0 } else { self.fetch(ring, tables, mode) };
        if self.active > 0 {
            hooks.at(Moment::BeforePoll);
        }
        self.poll(ring, tables);
        if now_ns >= self.next_deadline_ns {
            self.expire(ring, tables, now_ns);
        }
        let publish = self.publication_due(fetched, ring.config.depth, now_ns);
        let completed = self.flush(ring, tables, hooks, publish);
        if closing {
            self.show_closed(ring);
        }
        self.closed = mode == STATE_CLOSED;
        self.account(ring, fetched + completed);
        if quiesce {
            ring.wishes.quiesce.store(false, Ordering::Release);
        }
        Stepped { fetched, completed }
    }

    /// Requests begun and not ended.
    pub fn active(&self) -> u32 {
        self.active
    }

    /// Whether the supervisor has given this service up, so that it must not touch the ring's words.
    fn is_over(&self, ring: &RingShared) -> bool {
        ring.epoch.load(Ordering::Acquire) != self.epoch
    }

    /// Ends everything in flight, for a ring that goes.
    pub fn leave(&mut self, ring: &RingShared, tables: &Tables) {
        self.quiesce_all(ring, tables);
        self.flush(ring, tables, &Hooks::default(), false);
        self.show_closed(ring);
        self.publish_counts(ring);
        ring.in_flight.store(0, Ordering::Release);
    }

    /// Tells the kernel's side that nobody ends a request any more. All completion words are out.
    fn show_closed(&self, ring: &RingShared) {
        if !self.is_over(ring) {
            ring.store_state(STATE_CLOSED);
            fence_payload();
        }
    }

    /// Ends what storage has, answering nothing: the supervisor has answered, or will.
    pub fn abandon(&mut self) {
        self.done.clear();
        for queue in &mut self.queues.list {
            self.completions.clear();
            queue.queue.quiesce(&mut self.completions);
            queue.backlog.clear();
            queue.in_flight = 0;
        }
        self.completions.clear();
        for job in &mut self.jobs {
            job.state = JobState::Idle;
            job.cause = Cause::None;
        }
        self.active = 0;
        self.queues.list.clear();
    }

    /// Gives a waiting request to storage; `false` where storage is full and it waits on.
    fn submit(&mut self, ring: &RingShared, record: u32) -> bool {
        let job = &mut self.jobs[record as usize];
        let queue = &mut self.queues.list[usize::from(job.queue)];
        match hand_over(ring, queue, job, record) {
            Ok(()) => true,
            Err(rejected) => self.on_rejected(ring, record, rejected),
        }
    }

    /// Lets a request wait that storage has no room for (`false`), or ends it.
    #[cold]
    #[inline(never)]
    fn on_rejected(&mut self, ring: &RingShared, record: u32, rejected: Rejected) -> bool {
        let job = &self.jobs[record as usize];
        match rejected {
            Rejected::QueueFull => {
                let backlog = &mut self.queues.list[usize::from(job.queue)].backlog;
                backlog.push_front(job.token);
                false
            }
            Rejected::Invalid(why) => {
                self.end_badly(ring, record, why.bits(), 0);
                true
            }
        }
    }

    /// Reaps every queue and starts what waited for room.
    fn poll(&mut self, ring: &RingShared, tables: &Tables) {
        for at in 0..self.queues.list.len() {
            let queue = &mut self.queues.list[at];
            let mut completions = std::mem::take(&mut self.completions);
            queue.queue.poll(&mut completions);
            self.on_completions(ring, tables, at, &completions);
            completions.clear();
            self.completions = completions;
            if self.queues.list[at].silent {
                self.quiesce_queue(ring, tables, at, false);
            }
            self.pump(ring, at);
        }
    }

    fn pump(&mut self, ring: &RingShared, at: usize) {
        while let Some(token) = self.queues.list[at].backlog.pop_front() {
            let record = record_of(token);
            if self.jobs[record as usize].waits(token) && !self.submit(ring, record) {
                break;
            }
        }
    }

    /// Takes a request out of the table, so that it can be claimed and answered.
    #[inline]
    fn retire(&mut self, record: u32) -> Ending {
        let job = &mut self.jobs[record as usize];
        job.state = JobState::Idle;
        job.cause = Cause::None;
        self.active -= 1;
        Ending { record, turn: job.turn(), op: job.op }
    }

    /// Claims the right to end a request. Not won where the supervisor has answered already.
    #[inline]
    fn claim(&self, ring: &RingShared, ending: &Ending) -> bool {
        ring.slots.claim(ending.record, ending.turn, self.tenure)
    }

    /// Ends a request that delivers no payload.
    fn end(&mut self, ring: &RingShared, record: u32, status: u16, detail: u32) {
        let ending = self.retire(record);
        if self.claim(ring, &ending) {
            self.answer(ending, status, detail);
        }
    }

    /// Ends a request with an error.
    #[cold]
    #[inline(never)]
    fn end_badly(&mut self, ring: &RingShared, record: u32, status: u16, detail: u32) {
        self.end(ring, record, status, detail);
    }

    /// Queues the completion word of a request that was claimed.
    #[inline]
    fn answer(&mut self, ending: Ending, status: u16, detail: u32) {
        let Ending { record, turn, op } = ending;
        let failed = u64::from(status != status::SUCCESS);
        let (ended, failures) = match op {
            Op::Read => (&mut self.counts.reads, &mut self.counts.reads_failed),
            Op::Write => (&mut self.counts.writes, &mut self.counts.writes_failed),
            _ => (&mut self.counts.others, &mut self.counts.others_failed),
        };
        *ended += 1;
        *failures += failed;
        let word = CompletionRecord::pack(turn, status, detail);
        self.done.push(Done::new(record, true, word));
    }

    /// Whether `fetched` must go out with this step: a quarter of the ring, or nothing else to do.
    fn publication_due(&mut self, fetched: u32, depth: u32, now_ns: u64) -> bool {
        let behind = self.head.wrapping_sub(self.published);
        if behind == 0 {
            let repeat = fetched == 0 && now_ns >= self.repeat_at_ns;
            if repeat {
                self.repeat_at_ns = now_ns.saturating_add(REPEAT_NS);
            }
            return repeat && self.epoch > 1;
        }
        fetched == 0 || behind >= u64::from(depth / 4).max(1)
    }

    /// Sends the payloads and completion words of this step, and `fetched` where it is due.
    fn flush(&mut self, ring: &RingShared, tables: &Tables, hooks: &Hooks, publish: bool) -> u32 {
        if self.done.is_empty() && !publish {
            return 0;
        }
        hooks.at(Moment::BeforeWords);
        let records = ring.records();
        self.done.sort();
        self.store_payloads(ring, tables);
        let all = self.done.all();
        // Payload before words: pairs with the acquire of whoever sees its word.
        fence_payload();
        for done in all {
            records.at(done.record as usize).store(done.word.word, Ordering::Relaxed);
        }
        hooks.at(Moment::AmidWords);
        if publish && ring.epoch.load(Ordering::Acquire) == self.epoch {
            ring.window.u64_at(FETCHED_AT).store(self.head, Ordering::Relaxed);
            self.published = self.head;
            self.counts.fetched_published += 1;
        }
        // Write-combining stores leave the core when it feels like it, or now.
        fence_payload();
        hooks.at(Moment::AfterWords);
        let epoch = ring.epoch.load(Ordering::Acquire);
        let claimed = all.iter().filter(|done| done.claimed);
        ring.slots.release(claimed.map(|done| (done.record, done.word.turn())), epoch);
        let completed = u32::try_from(all.len()).expect("at most a step's worth");
        self.counts.completions += u64::from(completed);
        self.done.clear();
        completed
    }

    /// Publishes what was counted, when it matters or now and then.
    fn account(&mut self, ring: &RingShared, progress: u32) {
        if self.is_over(ring) {
            return;
        }
        self.unpublished_steps += 1;
        if progress > 0 && self.unpublished_steps < PUBLISH_STEPS {
            if ring.in_flight.load(Ordering::Relaxed) == 0 {
                ring.in_flight.store(self.active, Ordering::Release);
            }
            return;
        }
        if progress > 0 || self.unpublished_steps > 1 {
            self.publish_counts(ring);
        }
        self.unpublished_steps = 0;
        ring.in_flight.store(self.active, Ordering::Release);
    }

    pub fn publish_counts(&mut self, ring: &RingShared) {
        let counts = &mut self.counts;
        let ended = counts.reads + counts.writes + counts.others;
        counts.failed = counts.reads_failed + counts.writes_failed + counts.others_failed;
        counts.succeeded = ended - counts.failed;
        let storage = self.queues.counters();
        self.counts.ios_at_device = storage.ios_at_device;
        self.counts.syscalls = storage.syscalls;
        self.counts.cpu_doorbells = storage.doorbells;
        self.counts.completions_polled = storage.completions_polled;
        ring.counters.publish(&self.counts);
    }
}

/// Gives a request to its storage queue.
#[inline]
fn hand_over(
    ring: &RingShared,
    queue: &mut SourceQueue,
    job: &mut Job,
    record: u32,
) -> Result<(), Rejected> {
    let entry = &job.entry;
    let reached = if job.op == Op::Read { reaches(&queue.reached, entry.buffer()) } else { None };
    let (memory, memory_offset) = match reached {
        // Checked against the buffer, which is no longer than its window.
        Some(window) => (window, usize::try_from(entry.buffer_offset()).expect("40 bits")),
        None => (&ring.staging, ending::staging_at(ring, record)),
    };
    let request = storage::Request {
        token: job.token,
        op: job.op,
        offset: entry.source_offset(),
        bytes: entry.length(),
        memory,
        memory_offset,
    };
    job.direct = reached.is_some();
    queue.queue.try_submit(request)?;
    job.state = JobState::Started;
    queue.in_flight += 1;
    Ok(())
}
