//! From a published entry to a request under way: copied, checked, taken into flight, handed to storage or
//! refused; what is lent is answered at once.

use std::sync::atomic::Ordering;

use abi::ring::{CompletionRecord, OP_CANCEL, OP_READ, RequestEntry, STATE_OPEN};
use abi::status;
use mem::SharedU64;
use storage::Op;

use super::outbox::Done;
use super::{Ending, FETCH_MAX, Service, check, ending, hand_over};
use crate::counters::RingCounters;
use crate::job::{Job, JobState, op_of};
use crate::registry::Tables;
use crate::ring::{ReadRoute, RingShared, WriteRoute};
use crate::slots::Begun;

impl Service {
    /// Copies what was published, in ticket order.
    pub(super) fn fetch(&mut self, ring: &RingShared, tables: &Tables, mode: u32) -> u32 {
        let refuse_below = ring.refuse_below.load(Ordering::Acquire);
        let mut fetched = 0;
        loop {
            let late = refuse_below.wrapping_sub(self.head).cast_signed();
            self.refusing = late > 0 || mode != STATE_OPEN;
            let alike = if late > 0 { u32::try_from(late).unwrap_or(u32::MAX) } else { u32::MAX };
            let at = ring.position_of(self.head);
            let most = (FETCH_MAX - fetched).min(ring.config.depth - at).min(alike);
            let taken = self.fetch_run(ring, tables, at, most);
            fetched += taken;
            if taken < most || fetched == FETCH_MAX {
                break;
            }
        }
        if fetched > 0 {
            self.next_deadline_ns = self.next_deadline_ns.min(self.usual_deadline_ns);
        }
        self.counts.requests += u64::from(fetched);
        self.counts.request_bytes += u64::from(fetched) * size_of::<RequestEntry>() as u64;
        fetched
    }

    /// Copies what was published of `most` entries that lie side by side in the ring.
    fn fetch_run(&mut self, ring: &RingShared, tables: &Tables, at: u32, most: u32) -> u32 {
        let first = self.head;
        let tag = u64::from(ring.tag(first)) << 48;
        let mut head = first;
        for row in ring.entries().range(at as usize, most as usize) {
            let Some(entry) = copy_entry(row, tag) else { break };
            if !self.take(ring, tables, entry) || self.is_over(ring) {
                break;
            }
            head = head.wrapping_add(1);
            // After `take`: a successor may see the entry again, but never miss it.
            ring.head.store(head, Ordering::Release);
        }
        self.head = head;
        u32::try_from(head.wrapping_sub(first)).expect("at most the run")
    }

    /// Begins a request, or refuses it; whether it did. One that names what these tables lack is left in
    /// the ring where newer tables may have it.
    #[inline]
    fn take(&mut self, ring: &RingShared, tables: &Tables, entry: RequestEntry) -> bool {
        let (record, turn) = (entry.record(), entry.record_turn());
        if record as usize >= ring.slots.len() {
            self.counts.unanswerable += 1;
            return true;
        }
        if entry.opcode() == OP_CANCEL {
            self.cancel(record, turn, self.now_ns);
            return true;
        }
        if self.queues.lending && entry.opcode() == OP_READ && self.take_lent(ring, tables, &entry)
        {
            return true;
        }
        if !self.take_record(ring, record, turn, false) {
            return true;
        }
        let refusal = if self.refusing {
            status::RING_CLOSED.into()
        } else {
            match check::check(ring, tables, &self.queues, &entry) {
                Ok(way) => {
                    self.begin(ring, tables, entry, way);
                    return true;
                }
                Err(_) if self.leave_in_ring(ring, tables, record, turn) => return false,
                Err(refusal) => refusal,
            }
        };
        self.refuse(ring, Ending { record, turn, op: op_of(entry.opcode()) }, refusal);
        true
    }

    /// Takes a request's record into flight, or claims it at once; whether it could be had.
    #[inline(always)]
    fn take_record(&mut self, ring: &RingShared, record: u32, turn: u16, claim: bool) -> bool {
        match ring.slots.begin(record, turn, self.tenure, claim) {
            Begun::Started => return true,
            Begun::Poisoned => self.refuse_poisoned(record, turn),
            Begun::Busy | Begun::Replayed => self.counts.unanswerable += 1,
        }
        false
    }

    /// Gives a record that was just begun back, so that its request is looked at again with newer tables;
    /// false where these are the newest.
    #[cold]
    #[inline(never)]
    fn leave_in_ring(&self, ring: &RingShared, tables: &Tables, record: u32, turn: u16) -> bool {
        if tables.are_newest() || !ring.slots.claim(record, turn, self.tenure) {
            return false;
        }
        ring.slots.release(std::iter::once((record, turn.wrapping_sub(1))), self.epoch);
        true
    }

    /// Answers a request that never becomes a job.
    #[cold]
    #[inline(never)]
    fn refuse(&mut self, ring: &RingShared, ending: Ending, refusal: check::Refusal) {
        self.counts.refused += 1;
        if self.claim(ring, &ending) {
            self.answer(ending, refusal.status, refusal.detail);
        }
    }

    #[cold]
    #[inline(never)]
    fn refuse_poisoned(&mut self, record: u32, turn: u16) {
        self.counts.refused += 1;
        self.counts.others += 1;
        self.counts.others_failed += 1;
        let word = CompletionRecord::pack(turn, status::BUFFER_POISONED, 0);
        self.done.push(Done::new(record, false, word));
    }

    /// Starts a checked request's own limit and hands it to storage.
    #[inline]
    fn begin(&mut self, ring: &RingShared, tables: &Tables, entry: RequestEntry, way: check::Way) {
        let record = entry.record();
        self.active += 1;
        let deadline_ns = match entry.limit_ms() {
            0 => self.usual_deadline_ns,
            ms => self.own_deadline(ms),
        };
        let job = &mut self.jobs[record as usize];
        job.begin(entry, way.op, way.queue, self.now_ns, deadline_ns);
        if way.op == Op::Write && !stage_write(&mut self.counts, ring, tables, record, job) {
            return self.end_badly(ring, record, status::BAD_BUFFER, 0);
        }
        let queue = &mut self.queues.list[usize::from(way.queue)];
        if !queue.backlog.is_empty() {
            return queue.backlog.push_back(job.token);
        }
        if let Err(rejected) = hand_over(ring, queue, job, record) {
            self.on_rejected(ring, record, rejected);
        }
    }

    /// Takes a read and answers it, where its source lends what it asks for; else nothing has happened.
    #[inline(never)]
    fn take_lent(&mut self, ring: &RingShared, tables: &Tables, entry: &RequestEntry) -> bool {
        let checked = check::check(ring, tables, &self.queues, entry);
        let Some(way) = checked.ok().filter(|_| !self.refusing) else { return false };
        let queue = &self.queues.list[usize::from(way.queue)];
        if queue.lends(entry.source_offset(), entry.length()).is_none() {
            return false;
        }
        let (record, turn, op) = (entry.record(), entry.record_turn(), way.op);
        if !self.take_record(ring, record, turn, true) {
            return true;
        }
        let queue = &mut self.queues.list[usize::from(way.queue)];
        queue.lent_reads += 1;
        if !self.done.carries()
            && ring.config.read_route != ReadRoute::Pull
            && let Some((memory, at)) = queue.lends(entry.source_offset(), entry.length())
        {
            // The first to be copied: the others are asked for while the one before is.
            memory.ask_for(at, entry.length() as usize);
        }
        let job = &mut self.jobs[record as usize];
        job.begin(*entry, op, way.queue, self.now_ns, u64::MAX);
        job.state = JobState::Idle;
        let ending = Ending { record, turn, op };
        self.deliver_transfer(ring, tables, ending, entry.length(), true);
        true
    }

    /// The deadline of a request that brings a limit of its own.
    #[cold]
    #[inline(never)]
    fn own_deadline(&mut self, limit_ms: u16) -> u64 {
        let deadline_ns = self.now_ns.saturating_add(u64::from(limit_ms) * 1_000_000);
        self.next_deadline_ns = self.next_deadline_ns.min(deadline_ns);
        deadline_ns
    }
}

/// Brings a write's payload into staging where the lanes did not; `false` where the GPU refuses.
#[inline(never)]
fn stage_write(
    counts: &mut RingCounters,
    ring: &RingShared,
    tables: &Tables,
    record: u32,
    job: &Job,
) -> bool {
    let length = job.entry.length();
    match ring.config.write_route {
        WriteRoute::Push => {
            counts.push_bytes += u64::from(length);
            true
        }
        WriteRoute::Bounce => {
            counts.bounce_bytes += u64::from(length);
            let Ok(buffer) = tables.buffer(job.entry.buffer()) else { return false };
            let copy = ending::staging_copy(ring, &buffer.memory, record, job, length);
            ring.gpu.copy_to_host(copy).is_ok()
        }
    }
}

/// Copies an entry where both of its halves are there: they end in the tag, its highest bits.
#[inline]
fn copy_entry([w0, w1, w2, w3]: [SharedU64<'_>; 4], tag: u64) -> Option<RequestEntry> {
    // Each half is stored as one unit that ends in its tag: the acquire load of the tagged word
    // makes the load of the other word see the same store.
    let w1 = w1.load(Ordering::Acquire);
    let w3 = w3.load(Ordering::Acquire);
    let (first, second) = (w1 ^ tag, w3 ^ tag);
    if (first | second) >> 48 != 0 {
        return None;
    }
    Some(RequestEntry { w: [w0.load(Ordering::Relaxed), w1, w2.load(Ordering::Relaxed), w3] })
}
