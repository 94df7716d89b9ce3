//! A queue on a file over io_uring.
//!
//! When to enter the kernel, of which the system calls an I/O follow:
//!
//! * `poll` submits what is buffered where the kernel has nothing to do otherwise, where half of the
//!   queue's depth has gathered, or after [`PATIENCE_POLLS`] polls;
//! * `wait_for_completion` submits and waits in the same call. On a busy queue it waits for an
//!   eighth of the depth, for up to [`GATHER`] once there is one completion: the rest of the depth
//!   keeps the drive busy meanwhile.
//!
//! Short transfers go on where they ended, a direct transfer that is refused for what it is goes on
//! buffered, and zeros that the file system cannot make are written; all in the request's own slot.

use std::sync::Arc;
use std::time::Duration;

use spec::Status;
use uring::{Ended, FileIndex, Kind, Ring, RingOptions, Transfer, UringError};

use super::blocking::{ZEROING, ZEROS_BYTES, zeros};
use super::outcome;
use super::residency::Map;
use super::target::{Route, Target};
use crate::admit::status;
use crate::queue::{Completion, Counters, Lent, Op, QueueOptions, Rejected, StorageQueue};

/// Polls that leave a small batch unsubmitted while the kernel is busy with others.
const PATIENCE_POLLS: u32 = 16;
/// Longest that one completion waits for company in `wait_for_completion`.
const GATHER: Duration = Duration::from_micros(500);
/// Longest that `quiesce` waits for what cannot be cancelled, such as a transfer on a drive.
const QUIESCE_LIMIT: Duration = Duration::from_secs(30);
/// Times that a transfer is tried again without having moved a byte.
const RETRIES_MAX: u8 = 100;

/// A request on its way.
#[derive(Clone, Copy)]
struct Active {
    token: u64,
    op: Op,
    asked: u32,
    done: u32,
    route: Route,
    retries: u8,
    /// Ways of zeroing tried so far.
    zeroing: u8,
    cancelled: bool,
    /// Given up and answered by `quiesce`: its end is only for the slot.
    answered: bool,
}

pub(super) struct RingQueue {
    target: Arc<Target>,
    ring: Ring,
    map: Map,
    active: Vec<Option<Active>>,
    free: Vec<u32>,
    ready: Vec<Completion>,
    ended: Vec<Ended>,
    counters: Counters,
    idle_polls: u32,
    urgent: bool,
}

impl RingQueue {
    pub(super) fn new(
        target: Arc<Target>,
        options: &QueueOptions,
        bound_to_thread: bool,
    ) -> Result<Self, UringError> {
        let depth = options.depth;
        let ring = Ring::new(RingOptions {
            depth,
            bound_to_thread,
            files: target.descriptors(),
            buffers: options.registered.clone(),
        })?;
        Ok(Self {
            map: Map::new(target.bytes()),
            target,
            ring,
            active: vec![None; depth as usize],
            free: (0..depth).rev().collect(),
            ready: Vec::new(),
            ended: Vec::new(),
            counters: Counters::default(),
            idle_polls: 0,
            urgent: false,
        })
    }

    fn depth(&self) -> u32 {
        u32::try_from(self.active.len()).expect("given as 32 bits")
    }

    fn push(&mut self, index: u32, transfer: Transfer) {
        // The ring has as many slots as we have, and ours is free.
        let taken = self.ring.push(u64::from(index), transfer);
        if let Err(transfer) = taken {
            // The kernel takes nothing at all: this is the end of the request.
            let result = -rustix::io::Errno::IO.raw_os_error();
            self.ended.push(Ended { tag: u64::from(index), result, transfer });
        }
    }

    /// Ends a request, or sends it on its way again.
    fn settle(&mut self, ended: Ended) {
        let index = u32::try_from(ended.tag).expect("our own index");
        let mut active = self.active[index as usize].take().expect("one end for each transfer");
        let again = match u32::try_from(ended.result) {
            Ok(count) => advance(&mut active, count, ended.transfer, &self.target),
            Err(_) => retry(&mut active, -ended.result, ended.transfer),
        };
        match again {
            Next::Again(transfer) if active.cancelled => {
                drop(transfer);
                self.finish(index, &active, rustix::io::Errno::CANCELED.raw_os_error());
            }
            Next::Again(transfer) => {
                self.active[index as usize] = Some(active);
                self.push(index, transfer);
            }
            Next::Done(errno) => self.finish(index, &active, errno),
        }
    }

    fn finish(&mut self, index: u32, active: &Active, errno: i32) {
        let Active { token, op, done, .. } = *active;
        match op {
            Op::Read => self.counters.bytes_read += u64::from(done),
            Op::Write | Op::WriteZeroes => self.counters.bytes_written += u64::from(done),
            Op::Flush => {}
        }
        let status = if errno == 0 { Status::SUCCESS } else { outcome::status_of(errno, op) };
        self.free.push(index);
        if active.answered {
            return;
        }
        self.ready.push(Completion { token, status, bytes: done, errno });
    }

    fn reap(&mut self) {
        let mut ended = std::mem::take(&mut self.ended);
        self.ring.reap(&mut ended);
        for end in ended.drain(..) {
            self.settle(end);
        }
        // `settle` may have put a transfer there that the ring did not take.
        ended.append(&mut self.ended);
        self.ended = ended;
    }

    fn submit_if_due(&mut self) {
        let buffered = self.ring.unsubmitted();
        let in_kernel = self.ring.in_flight().saturating_sub(buffered);
        let due = buffered > 0
            && (self.urgent
                || in_kernel == 0
                || buffered >= (self.depth() / 2).max(1)
                || self.idle_polls >= PATIENCE_POLLS);
        if due || (self.ring.ready() && !self.ring.has_completions()) {
            // An error leaves everything where it is, to be tried with the next poll.
            let _ = self.ring.submit();
            self.idle_polls = 0;
            self.urgent = false;
        } else if buffered > 0 {
            self.idle_polls += 1;
        }
    }

    fn deliver(&mut self, completions: &mut Vec<Completion>) {
        self.counters.completions_polled += self.ready.len() as u64;
        completions.append(&mut self.ready);
    }
}

/// What follows the end of a transfer.
enum Next {
    Again(Transfer),
    /// With this errno, or 0.
    Done(i32),
}

/// After success: ends where all is moved or nothing more comes, else goes on with the rest.
fn advance(active: &mut Active, count: u32, transfer: Transfer, target: &Target) -> Next {
    if !matches!(transfer.kind, Kind::Read | Kind::Write) {
        active.done = if active.op == Op::Flush { 0 } else { active.asked };
        return Next::Done(0);
    }
    active.done += count;
    if count == 0 || active.done >= active.asked {
        return Next::Done(0);
    }
    active.retries = 0;
    let left = active.asked - active.done;
    let mut transfer = transfer;
    transfer.offset += u64::from(count);
    if active.op == Op::WriteZeroes {
        transfer.bytes = left.min(u32::try_from(ZEROS_BYTES).expect("small"));
        return Next::Again(transfer);
    }
    transfer.bytes = left;
    transfer.memory_offset += count as usize;
    let Transfer { offset, memory_offset, ref memory, .. } = transfer;
    active.route = target.still(active.route, offset, left, memory, memory_offset);
    transfer.file = file_of(active.route);
    Next::Again(transfer)
}

/// After an error: another try where that can help.
fn retry(active: &mut Active, errno: i32, transfer: Transfer) -> Next {
    if outcome::is_transient(errno) && active.retries < RETRIES_MAX {
        active.retries += 1;
        return Next::Again(transfer);
    }
    if active.route == Route::Direct && outcome::refuses_direct(errno) {
        active.route = Route::Buffered;
        return Next::Again(Transfer { file: file_of(Route::Buffered), ..transfer });
    }
    if matches!(transfer.kind, Kind::Allocate(_)) && outcome::refuses_zeroing(errno) {
        active.zeroing += 1;
        if let Some(kind) = zeroing(active.zeroing) {
            return Next::Again(Transfer { kind, ..transfer });
        }
        return match zeros() {
            Ok(memory) => {
                let bytes = active.asked.min(u32::try_from(ZEROS_BYTES).expect("small"));
                let kind = Kind::Write;
                Next::Again(Transfer { kind, bytes, memory, memory_offset: 0, ..transfer })
            }
            Err(errno) => Next::Done(errno),
        };
    }
    Next::Done(errno)
}

fn zeroing(step: u8) -> Option<Kind> {
    let flags = ZEROING.get(usize::from(step))?;
    Some(Kind::Allocate(flags.bits().cast_signed()))
}

fn file_of(route: Route) -> FileIndex {
    FileIndex(u32::from(route == Route::Direct))
}

impl StorageQueue for RingQueue {
    fn try_submit(&mut self, request: Lent<'_>) -> Result<(), Rejected> {
        if self.free.is_empty() {
            return Err(Rejected::QueueFull);
        }
        if let Err(status) = self.target.admit(&request) {
            return Err(Rejected::Invalid(status));
        }
        let index = self.free.pop().expect("not empty");
        let route = self.target.choose(&request, &mut self.map, &mut self.counters.syscalls);
        let kind = match request.op {
            Op::Read => Kind::Read,
            Op::Write => Kind::Write,
            Op::Flush => Kind::Sync,
            Op::WriteZeroes => zeroing(0).expect("there is a first way"),
        };
        let Lent { token, op, offset, bytes, memory, memory_offset } = request;
        self.active[index as usize] = Some(Active {
            token,
            op,
            asked: bytes,
            done: 0,
            route,
            retries: 0,
            zeroing: 0,
            cancelled: false,
            answered: false,
        });
        let file = file_of(route);
        let memory = memory.clone();
        self.push(index, Transfer { file, kind, offset, bytes, memory, memory_offset });
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.submit_if_due();
        self.reap();
        self.deliver(completions);
    }

    /// Returns at once where nothing is in flight.
    fn wait_for_completion(&mut self, limit: Duration) {
        let busy = self.ring.in_flight();
        if !self.ready.is_empty() || busy == 0 || self.ring.has_completions() {
            return;
        }
        let want = if busy * 2 >= self.depth() { (self.depth() / 8).clamp(1, busy) } else { 1 };
        self.idle_polls = 0;
        self.urgent = false;
        if self.ring.wait(want, GATHER, limit).is_err() {
            // The caller's next poll tries again; do not let it spin meanwhile.
            std::thread::sleep(limit.min(Duration::from_millis(1)));
        }
    }

    fn cancel(&mut self, token: u64) {
        let found = self.active.iter().position(|a| a.is_some_and(|a| a.token == token));
        if let Some(index) = found {
            if let Some(active) = &mut self.active[index] {
                active.cancelled = true;
            }
            self.ring.cancel(index as u64);
            self.urgent = true;
        }
    }

    /// What is on a drive cannot be called back: that is waited for, up to 30 seconds. Where even
    /// that passes, the memory of what is left stays mapped for good, since it may still be written.
    fn quiesce(&mut self, completions: &mut Vec<Completion>) {
        for active in self.active.iter_mut().flatten() {
            active.cancelled = true;
        }
        let mut ended = std::mem::take(&mut self.ended);
        let all = self.ring.drain(QUIESCE_LIMIT, &mut ended);
        for end in ended.drain(..) {
            self.settle(end);
        }
        self.ended = ended;
        self.deliver(completions);
        if all {
            return;
        }
        // Their slots stay taken: the kernel may still answer.
        for active in self.active.iter_mut().flatten().filter(|a| !a.answered) {
            active.answered = true;
            let (token, status) = (active.token, status::ABORT_REQUESTED);
            completions.push(Completion { token, status, bytes: 0, errno: 0 });
        }
    }

    fn in_flight(&self) -> u32 {
        let working = self.depth() - u32::try_from(self.free.len()).expect("at most the depth");
        working + u32::try_from(self.ready.len()).expect("at most the depth")
    }

    fn counters(&self) -> Counters {
        let ring = self.ring.counters();
        Counters {
            ios_at_device: ring.ended,
            syscalls: self.counters.syscalls + ring.syscalls,
            ..self.counters
        }
    }
}

#[cfg(test)]
mod tests;
