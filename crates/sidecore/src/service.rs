//! Serving one ring: fetch, check, start, poll, complete; stepped by hand.
//!
//! One step: new entries are copied and checked and go to storage; storage is polled; what has
//! ended is claimed, its payload delivered, and the completion words of the whole step go out in
//! the order of their records, so that a warp's leave as whole lines:
//!
//! ```text
//! claim - payload - fence - words - fence - records free
//! ```
//!
//! The checks are in `check`, the ways to end in `ending`. This does not know which thread runs it
//! nor what time it is.

mod check;
mod ending;

use std::sync::atomic::Ordering;

use abi::ring::{CompletionRecord, OP_CANCEL, OP_FLUSH, OP_READ, OP_WRITE, Request, RequestEntry};
use abi::ring::{STATE_CLOSED, STATE_OPEN};
use abi::status;
use mem::fence_payload;
use storage::{Completion, Op, Rejected};

use crate::counters::RingCounters;
use crate::hooks::{Hooks, Moment};
use crate::job::{Cause, Job, JobState};
use crate::queues::Queues;
use crate::registry::Tables;
use crate::ring::{FETCHED_AT, RingConfig, RingShared, WriteRoute};
use crate::slots::Begun;

/// Most entries copied in one step: enough for whole warps, few enough to answer soon.
const FETCH_MAX: u32 = 128;
/// Busy steps between two publications of the counters.
const PUBLISH_STEPS: u32 = 64;
/// How often a restarted ring repeats `fetched`, which its former side core may have spoilt.
const REPEAT_NS: u64 = 1_000_000;

/// A completion word that is ready to go out.
#[derive(Clone, Copy)]
struct Done {
    record: u32,
    /// Whether the record was claimed and must be given back.
    claimed: bool,
    word: CompletionRecord,
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
    jobs: Box<[Job]>,
    pub queues: Queues,
    done: Vec<Done>,
    completions: Vec<Completion>,
    counts: RingCounters,
    /// Requests begun and not ended.
    active: u32,
    /// The time of this step.
    now_ns: u64,
    /// No request's deadline is earlier.
    next_deadline_ns: u64,
    head: u64,
    /// What `fetched` in device memory says.
    published: u64,
    repeat_at_ns: u64,
    unpublished_steps: u32,
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
            jobs: vec![Job::IDLE; records].into_boxed_slice(),
            queues: Queues::default(),
            done: Vec::with_capacity(records + FETCH_MAX as usize),
            completions: Vec::with_capacity(2 * records),
            counts: RingCounters::default(),
            active: 0,
            now_ns: 0,
            next_deadline_ns: u64::MAX,
            head: config.start_ticket,
            published: config.start_ticket,
            repeat_at_ns: u64::MAX,
            unpublished_steps: 0,
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
        let fetched = if mode == STATE_CLOSED { 0 } else { self.fetch(ring, tables, mode, now_ns) };
        if self.active > 0 {
            hooks.at(Moment::BeforePoll);
        }
        self.poll(ring, tables);
        if now_ns >= self.next_deadline_ns {
            self.expire(ring, tables, now_ns);
        }
        let publish = self.publication_due(fetched, ring.config.depth, now_ns);
        let completed = self.flush(ring, hooks, publish);
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
        self.flush(ring, &Hooks::default(), false);
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
        self.jobs.fill(Job::IDLE);
        self.active = 0;
        self.queues.list.clear();
    }

    /// Copies what was published, in ticket order.
    fn fetch(&mut self, ring: &RingShared, tables: &Tables, mode: u32, now_ns: u64) -> u32 {
        let mut fetched = 0;
        let refuse_below = ring.refuse_below.load(Ordering::Acquire);
        while fetched < FETCH_MAX {
            let Some(entry) = copy_entry(ring, self.head) else { break };
            let late = self.head.wrapping_sub(refuse_below).cast_signed() < 0;
            let mode = if late { STATE_CLOSED } else { mode };
            self.take(ring, tables, mode, &entry.unpack(), now_ns);
            if self.is_over(ring) {
                break;
            }
            self.head = self.head.wrapping_add(1);
            // After `take`: a successor may see the entry again, but never miss it.
            ring.head.store(self.head, Ordering::Release);
            fetched += 1;
        }
        self.counts.requests += u64::from(fetched);
        self.counts.request_bytes += u64::from(fetched) * size_of::<RequestEntry>() as u64;
        fetched
    }

    /// Begins a request, or refuses it.
    fn take(&mut self, ring: &RingShared, tables: &Tables, mode: u32, r: &Request, now_ns: u64) {
        if r.record as usize >= ring.slots.len() {
            self.counts.unanswerable += 1;
            return;
        }
        if r.opcode == OP_CANCEL {
            self.cancel(r.record, r.record_turn, now_ns);
            return;
        }
        match ring.slots.begin(r.record, r.record_turn, self.epoch) {
            Begun::Started => {}
            Begun::Poisoned => {
                self.refuse_poisoned(r);
                return;
            }
            Begun::Busy | Begun::Replayed => {
                self.counts.unanswerable += 1;
                return;
            }
        }
        self.active += 1;
        let checked = if mode == STATE_OPEN {
            check::check(ring, tables, &self.queues, r)
        } else {
            Err(check::Refusal { status: status::RING_CLOSED, detail: 0 })
        };
        match checked {
            Ok(queue) => self.begin(ring, tables, r, queue, now_ns),
            Err(refusal) => self.refuse(ring, r, refusal),
        }
    }

    #[cold]
    #[inline(never)]
    fn refuse(&mut self, ring: &RingShared, r: &Request, refusal: check::Refusal) {
        self.counts.refused += 1;
        self.jobs[r.record as usize].begin(r, 0, self.now_ns, u64::MAX);
        self.end(ring, r.record, refusal.status, refusal.detail);
    }

    #[cold]
    #[inline(never)]
    fn refuse_poisoned(&mut self, r: &Request) {
        self.counts.refused += 1;
        self.counts.others += 1;
        self.counts.others_failed += 1;
        let word = CompletionRecord::pack(r.record_turn, status::BUFFER_POISONED, 0);
        self.done.push(Done { record: r.record, claimed: false, word });
    }

    /// Starts a checked request's own limit and hands it to storage.
    fn begin(&mut self, ring: &RingShared, tables: &Tables, r: &Request, queue: u16, now_ns: u64) {
        let limit_ns = match r.limit_ms {
            0 => self.limit_ns,
            ms => u64::from(ms) * 1_000_000,
        };
        let deadline_ns = now_ns.saturating_add(limit_ns);
        self.next_deadline_ns = self.next_deadline_ns.min(deadline_ns);
        self.jobs[r.record as usize].begin(r, queue, now_ns, deadline_ns);
        if r.opcode == OP_WRITE && !self.stage_write(ring, tables, r.record) {
            self.end(ring, r.record, status::BAD_BUFFER, 0);
            return;
        }
        let queue = &mut self.queues.list[usize::from(queue)];
        let serial = self.jobs[r.record as usize].serial;
        if queue.backlog.is_empty() {
            self.submit(ring, r.record);
        } else {
            queue.backlog.push_back((r.record, serial));
        }
    }

    /// Brings a write's payload into staging where the lanes did not; `false` where the GPU refuses.
    fn stage_write(&mut self, ring: &RingShared, tables: &Tables, record: u32) -> bool {
        let job = &self.jobs[record as usize];
        match ring.config.write_route {
            WriteRoute::Push => {
                self.counts.push_bytes += u64::from(job.length);
                true
            }
            WriteRoute::Bounce => {
                self.counts.bounce_bytes += u64::from(job.length);
                let Ok(buffer) = tables.buffer(job.buffer) else { return false };
                let copy = ending::staging_copy(ring, &buffer.memory, record, job, job.length);
                ring.gpu.copy_to_host(copy).is_ok()
            }
        }
    }

    /// Gives a waiting request to storage; `false` where storage is full and it waits on.
    fn submit(&mut self, ring: &RingShared, record: u32) -> bool {
        let job = &mut self.jobs[record as usize];
        let queue = &mut self.queues.list[usize::from(job.queue)];
        let (op, bytes) = match job.opcode {
            OP_READ => (Op::Read, job.length),
            OP_FLUSH => (Op::Flush, 0),
            _ => (Op::Write, job.length),
        };
        let request = storage::Request {
            token: job.token(record),
            op,
            offset: job.source_offset,
            bytes,
            memory: ring.staging.clone(),
            memory_offset: ending::staging_at(ring, record),
        };
        match queue.queue.try_submit(request) {
            Ok(()) => {
                job.state = JobState::Started;
                queue.in_flight += 1;
                true
            }
            Err(Rejected::QueueFull(_)) => {
                queue.backlog.push_front((record, job.serial));
                false
            }
            Err(Rejected::Invalid(_, why)) => {
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
            for completion in completions.drain(..) {
                self.on_completion(ring, tables, &completion);
            }
            self.completions = completions;
            if self.queues.list[at].silent {
                self.quiesce_queue(ring, tables, at, false);
            }
            self.pump(ring, at);
        }
    }

    fn pump(&mut self, ring: &RingShared, at: usize) {
        while let Some((record, serial)) = self.queues.list[at].backlog.pop_front() {
            let job = &self.jobs[record as usize];
            let current = job.serial == serial && job.state == JobState::Waiting;
            if current && !self.submit(ring, record) {
                break;
            }
        }
    }

    /// Claims the right to end a request and queues its completion word.
    ///
    /// Whether the claim was won: where it was not, the supervisor has answered already.
    fn claim(&mut self, ring: &RingShared, record: u32) -> bool {
        let job = &mut self.jobs[record as usize];
        job.state = JobState::Idle;
        job.cause = Cause::None;
        self.active -= 1;
        ring.slots.claim(record, job.turn, self.epoch)
    }

    /// Ends a request that delivers no payload.
    fn end(&mut self, ring: &RingShared, record: u32, status: u16, detail: u32) {
        if self.claim(ring, record) {
            self.answer(record, status, detail);
        }
    }

    /// Ends a request with an error.
    #[cold]
    #[inline(never)]
    fn end_badly(&mut self, ring: &RingShared, record: u32, status: u16, detail: u32) {
        self.end(ring, record, status, detail);
    }

    #[inline]
    fn answer(&mut self, record: u32, status: u16, detail: u32) {
        let failed = u64::from(status != status::SUCCESS);
        let job = &self.jobs[record as usize];
        let turn = job.turn;
        let (ended, failures) = match job.opcode {
            OP_READ => (&mut self.counts.reads, &mut self.counts.reads_failed),
            OP_WRITE => (&mut self.counts.writes, &mut self.counts.writes_failed),
            _ => (&mut self.counts.others, &mut self.counts.others_failed),
        };
        *ended += 1;
        *failures += failed;
        let word = CompletionRecord::pack(turn, status, detail);
        self.done.push(Done { record, claimed: true, word });
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

    /// Sends the completion words of this step, and `fetched` where it is due.
    fn flush(&mut self, ring: &RingShared, hooks: &Hooks, publish: bool) -> u32 {
        if self.done.is_empty() && !publish {
            return 0;
        }
        hooks.at(Moment::BeforeWords);
        if !self.done.is_sorted_by_key(|done| done.record) {
            self.done.sort_unstable_by_key(|done| done.record);
        }
        // Payload before words: pairs with the acquire of whoever sees its word.
        fence_payload();
        for done in &self.done {
            ring.store_record(done.record, done.word);
        }
        if publish && !self.is_over(ring) {
            ring.window.u64_at(FETCHED_AT).store(self.head, Ordering::Relaxed);
            self.published = self.head;
            self.counts.fetched_published += 1;
        }
        // Write-combining stores leave the core when it feels like it, or now.
        fence_payload();
        hooks.at(Moment::AfterWords);
        let epoch = ring.epoch.load(Ordering::Acquire);
        for done in self.done.iter().filter(|done| done.claimed) {
            ring.slots.release(done.record, done.word.turn(), epoch);
        }
        let completed = u32::try_from(self.done.len()).expect("at most a step's worth");
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

/// Copies the entry of a ticket where both of its halves are there.
#[inline]
fn copy_entry(ring: &RingShared, ticket: u64) -> Option<RequestEntry> {
    let at = ring.entry_at(ticket);
    let tag = ring.tag(ticket);
    let entries = &ring.entries;
    // Each half is stored as one unit that ends in its tag: the acquire load of the tagged word
    // makes the load of the other word see the same store.
    let w1 = entries.u64_at(at + 8).load(Ordering::Acquire);
    if (w1 >> 48) != u64::from(tag) {
        return None;
    }
    let w3 = entries.u64_at(at + 24).load(Ordering::Acquire);
    if (w3 >> 48) != u64::from(tag) {
        return None;
    }
    let w0 = entries.u64_at(at).load(Ordering::Relaxed);
    let w2 = entries.u64_at(at + 16).load(Ordering::Relaxed);
    Some(RequestEntry { w: [w0, w1, w2, w3] })
}
