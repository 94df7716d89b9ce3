//! The ways a request ends: storage's word, its own limit, a cancel, a quiesce.
//!
//! Early ends climb a ladder, and the request is answered only at its end:
//!
//! ```text
//! limit or cancel -> storage is asked to end it -> (grace) -> its queue is quiesced -> answered
//! ```
//!
//! Where a queue has ended nothing of its own accord since a request began whose limit passed, not
//! that one alone hangs: it is quiesced as well.
//!
//! Requests that a quiesced queue gives back though nobody asked for their end are started again.
//! Storage writes staging, never a buffer: payload is delivered after the claim, by the copy engine
//! here, through the window at the end of the step. By route `direct` it does write buffers: so a request
//! ends only once storage says that nothing of it runs any more, and buffers that go quiesce its queue.

use abi::ring::{DETAIL_LENT, DETAIL_UNSETTLED};
use abi::status;
use gpu::{Copy, DeviceMemory};
use spec::Status;
use storage::{Completion, Op};

use super::{Ending, Service};
use crate::job::{Cause, Job, JobState, record_of};
use crate::registry::Tables;
use crate::ring::{ReadRoute, RingShared};

/// First byte of a record's staging area.
#[inline]
pub(super) fn staging_at(ring: &RingShared, record: u32) -> usize {
    record as usize * ring.config.staging_stride as usize
}

/// Whether storage ended a request in any way but success.
#[inline]
fn failed(c: &Completion) -> bool {
    c.errno != 0 || !c.status.is_success()
}

/// A copy between a record's staging area and its request's buffer.
pub(super) fn staging_copy<'a>(
    ring: &'a RingShared,
    device: &'a DeviceMemory,
    record: u32,
    job: &Job,
    bytes: u32,
) -> Copy<'a> {
    Copy {
        host: &ring.staging,
        host_offset: staging_at(ring, record),
        device,
        device_offset: job.entry.buffer_offset(),
        bytes: bytes as usize,
    }
}

impl Service {
    /// Takes what storage has ended of its own accord or by request, all of one queue.
    pub(super) fn on_completions(
        &mut self,
        ring: &RingShared,
        tables: &Tables,
        at: usize,
        completions: &[Completion],
    ) {
        let (mut ended, mut asked) = (0, 0);
        for c in completions {
            let (record, state) = (record_of(c.token), self.state_of(c.token));
            if state == JobState::Started && !failed(c) {
                self.deliver(ring, tables, record, c.bytes);
                ended += 1;
                continue;
            }
            if state == JobState::Hastened && ended == asked {
                self.suspect(at, record);
            }
            if self.conclude_oddly(ring, tables, c) {
                asked += u32::from(state == JobState::Hastened);
                ended += 1;
            }
        }
        let queue = &mut self.queues.list[at];
        queue.in_flight -= ended;
        if ended > asked {
            queue.heard_ns = self.now_ns;
        }
    }

    /// Ends what failed or was asked to end; `false` where the completion means no request.
    #[cold]
    #[inline(never)]
    fn conclude_oddly(&mut self, ring: &RingShared, tables: &Tables, c: &Completion) -> bool {
        let record = record_of(c.token);
        match self.state_of(c.token) {
            JobState::Started => self.conclude_badly(ring, record, c, Cause::None),
            JobState::Hastened => self.conclude(ring, tables, record, c),
            JobState::Idle | JobState::Waiting => {
                self.counts.stray_completions += 1;
                return false;
            }
        }
        true
    }

    /// Notes that a queue ended a request only when asked to, and nothing else since that began.
    #[cold]
    #[inline(never)]
    fn suspect(&mut self, at: usize, record: u32) {
        let job = &self.jobs[record as usize];
        let queue = &mut self.queues.list[at];
        queue.silent |= job.cause == Cause::Limit && queue.heard_ns < job.begun_ns;
    }

    /// The state of the request that storage means; late and doubled completions mean none.
    #[inline]
    fn state_of(&self, token: u64) -> JobState {
        match self.jobs.get(record_of(token) as usize) {
            Some(job) if job.token == token => job.state,
            _ => JobState::Idle,
        }
    }

    /// Ends a request as storage says, or as it was asked to end.
    #[cold]
    #[inline(never)]
    fn conclude(&mut self, ring: &RingShared, tables: &Tables, record: u32, c: &Completion) {
        let cause = self.jobs[record as usize].cause;
        if failed(c) || cause == Cause::Limit {
            self.conclude_badly(ring, record, c, cause);
        } else {
            self.deliver(ring, tables, record, c.bytes);
        }
    }

    /// Ends a request that failed, or whose limit passed.
    #[cold]
    #[inline(never)]
    fn conclude_badly(&mut self, ring: &RingShared, record: u32, c: &Completion, cause: Cause) {
        match cause {
            Cause::Limit => self.end_early(ring, record, status::TIMED_OUT),
            Cause::Lane | Cause::Host => self.end_early(ring, record, status::CANCELLED),
            Cause::None if c.errno != 0 => {
                self.end(ring, record, status::OS, c.errno.unsigned_abs());
            }
            Cause::None => {
                // A drive that not even a reset has stopped may go on.
                let unstopped =
                    self.jobs[record as usize].direct && c.status.is(Status::HOST_PATHING_ERROR);
                let unsettled = if unstopped { DETAIL_UNSETTLED } else { 0 };
                self.end(ring, record, c.status.bits(), c.bytes | unsettled);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn end_early(&mut self, ring: &RingShared, record: u32, status: u16) {
        if status == status::TIMED_OUT {
            self.counts.timed_out += 1;
        } else {
            self.counts.cancelled += 1;
        }
        self.end(ring, record, status, 0);
    }

    /// Ends a request that storage has served, delivering a read's payload.
    #[inline(always)]
    fn deliver(&mut self, ring: &RingShared, tables: &Tables, record: u32, moved: u32) {
        let ending = self.retire(record);
        if !self.claim(ring, &ending) {
            return;
        }
        if ending.op == Op::Flush {
            self.answer(ending, status::SUCCESS, 0);
        } else {
            self.deliver_transfer(ring, tables, ending, moved, false);
        }
    }

    /// Answers a transfer that was claimed, after its payload: out of staging, or out of what its source
    /// lends.
    #[inline(never)]
    pub(super) fn deliver_transfer(
        &mut self,
        ring: &RingShared,
        tables: &Tables,
        ending: Ending,
        moved: u32,
        lent: bool,
    ) {
        let job = &self.jobs[ending.record as usize];
        let length = job.entry.length();
        let moved = moved.min(length);
        let status = if moved < length { status::SHORT } else { status::SUCCESS };
        if ending.op != Op::Read {
            self.counts.write_bytes += u64::from(moved);
            return self.answer(ending, status, moved);
        }
        // The buffer may have been deregistered meanwhile: then its memory is not ours.
        let Ok(buffer) = tables.buffer(job.entry.buffer()) else {
            return self.answer(ending, status::STALE_ID, 0);
        };
        match ring.config.read_route {
            ReadRoute::Pull => {
                self.counts.pull_bytes += u64::from(moved);
                let place = if lent { DETAIL_LENT } else { 0 };
                self.answer(ending, status, moved | place);
            }
            ReadRoute::Bounce => {
                let copy = staging_copy(ring, &buffer.memory, ending.record, job, moved);
                if ring.gpu.copy_to_device(copy).is_err() {
                    return self.answer(ending, status::BAD_BUFFER, 0);
                }
                self.counts.bounce_bytes += u64::from(moved);
                self.answer(ending, status, moved);
            }
            ReadRoute::Direct if job.direct => {
                self.counts.direct_bytes += u64::from(moved);
                self.answer(ending, status, moved);
            }
            ReadRoute::Direct | ReadRoute::Window => {
                if buffer.memory.window.is_none() {
                    return self.answer(ending, status::BAD_BUFFER, 0);
                }
                self.counts.window_bytes += u64::from(moved);
                self.answer(ending, status, moved);
                self.done.carry(moved, lent);
            }
        }
        self.counts.read_bytes += u64::from(moved);
    }

    /// Asks for the early end of the request that uses `record` in `turn`, if one does.
    #[cold]
    #[inline(never)]
    pub(super) fn cancel(&mut self, record: u32, turn: u16, now_ns: u64) {
        let job = &self.jobs[record as usize];
        if job.turn() == turn && job.state != JobState::Idle && job.cause == Cause::None {
            self.hasten(record, Cause::Lane, now_ns);
        }
    }

    /// Asks storage for the early end of a request. What waits for room ends in the next expiry.
    fn hasten(&mut self, record: u32, cause: Cause, now_ns: u64) {
        let job = &mut self.jobs[record as usize];
        job.cause = cause;
        job.deadline_ns = now_ns;
        if job.state == JobState::Started {
            job.state = JobState::Hastened;
            job.deadline_ns = now_ns.saturating_add(self.grace_ns);
            self.queues.list[usize::from(job.queue)].queue.cancel(job.token);
        }
        self.next_deadline_ns = self.next_deadline_ns.min(job.deadline_ns);
    }

    /// Acts on every deadline that has passed.
    pub(super) fn expire(&mut self, ring: &RingShared, tables: &Tables, now_ns: u64) {
        self.next_deadline_ns = u64::MAX;
        for index in 0..self.jobs.len() {
            let job = &self.jobs[index];
            if job.state == JobState::Idle {
                continue;
            }
            if job.deadline_ns > now_ns {
                self.next_deadline_ns = self.next_deadline_ns.min(job.deadline_ns);
                continue;
            }
            let record = u32::try_from(index).expect("records are numbered with 24 bits");
            match (job.state, job.cause) {
                (JobState::Waiting, Cause::None | Cause::Limit) => {
                    self.end_early(ring, record, status::TIMED_OUT);
                }
                (JobState::Waiting, _) => self.end_early(ring, record, status::CANCELLED),
                (_, Cause::None) => self.hasten(record, Cause::Limit, now_ns),
                // Storage stayed silent for the grace, too.
                _ => self.quiesce_queue(ring, tables, usize::from(self.jobs[index].queue), false),
            }
        }
    }

    /// Ends everything that one storage queue has. Blocks for as long as storage needs to.
    ///
    /// Where `all`, requests end as cancelled; else those that were not asked to end start again.
    pub(super) fn quiesce_queue(
        &mut self,
        ring: &RingShared,
        tables: &Tables,
        at: usize,
        all: bool,
    ) {
        self.counts.storage_quiesced += 1;
        let mut completions = std::mem::take(&mut self.completions);
        let queue = &mut self.queues.list[at];
        queue.queue.quiesce(&mut completions);
        queue.in_flight = 0;
        queue.heard_ns = self.now_ns;
        queue.silent = false;
        for c in completions.drain(..) {
            match self.state_of(c.token) {
                JobState::Hastened | JobState::Started => {
                    self.settle(ring, tables, record_of(c.token), Some(&c), all);
                }
                JobState::Idle | JobState::Waiting => self.counts.stray_completions += 1,
            }
        }
        self.completions = completions;
        // What storage has forgotten is over as well: nothing touches memory after a quiesce.
        for index in 0..self.jobs.len() {
            let job = &self.jobs[index];
            if job.is_at_storage() && usize::from(job.queue) == at {
                let record = u32::try_from(index).expect("records are numbered with 24 bits");
                self.settle(ring, tables, record, None, all);
            }
        }
    }

    /// Ends, or starts again, one request of a queue that was quiesced.
    fn settle(
        &mut self,
        ring: &RingShared,
        tables: &Tables,
        record: u32,
        completion: Option<&Completion>,
        all: bool,
    ) {
        let job = &mut self.jobs[record as usize];
        let succeeded = completion.filter(|c| !failed(c));
        if let Some(c) = succeeded {
            return self.conclude(ring, tables, record, c);
        }
        if all && job.cause == Cause::None {
            job.cause = Cause::Host;
        }
        match job.cause {
            Cause::Limit => self.end_early(ring, record, status::TIMED_OUT),
            Cause::Lane | Cause::Host => self.end_early(ring, record, status::CANCELLED),
            Cause::None => {
                // Its own limit goes on, which bounds how often this can happen to it.
                job.state = JobState::Waiting;
                self.queues.list[usize::from(job.queue)].backlog.push_back(job.token);
            }
        }
    }

    /// Ends everything in flight, by the host's wish.
    pub(super) fn quiesce_all(&mut self, ring: &RingShared, tables: &Tables) {
        for at in 0..self.queues.list.len() {
            if self.queues.list[at].in_flight > 0 {
                self.quiesce_queue(ring, tables, at, true);
            }
            self.cancel_backlog(ring, at);
        }
    }

    /// Ends what waits for room in a storage queue, by the host's wish.
    fn cancel_backlog(&mut self, ring: &RingShared, at: usize) {
        while let Some(token) = self.queues.list[at].backlog.pop_front() {
            let record = record_of(token);
            if self.jobs[record as usize].waits(token) {
                self.end_early(ring, record, status::CANCELLED);
            }
        }
    }

    /// Takes over a new version of the tables: queues of sources that are gone are ended first.
    pub(super) fn follow_tables(&mut self, ring: &RingShared, tables: &Tables) {
        for at in self.queues.orphans(tables) {
            self.quiesce_queue(ring, tables, at, true);
            self.cancel_backlog(ring, at);
        }
        // Nothing may store to buffers that are gone.
        while let Some(at) = self.storing_to_gone(tables) {
            self.quiesce_queue(ring, tables, at, false);
        }
        let jobs = &mut self.jobs;
        self.queues.follow(ring, tables, |from, to| {
            for job in jobs.iter_mut().filter(|job| job.queue == from) {
                job.queue = to;
            }
        });
    }

    /// A queue whose storage may store to a buffer that is no longer registered.
    fn storing_to_gone(&self, tables: &Tables) -> Option<usize> {
        let gone = |job: &&Job| {
            job.is_at_storage() && job.direct && tables.buffer(job.entry.buffer()).is_err()
        };
        self.jobs.iter().find(gone).map(|job| usize::from(job.queue))
    }
}
