//! Copies to the device, of all threads together: whoever comes by carries on for the others.
//!
//! ```text
//! worker -> post (a list under a short lock) ---> pump: whoever gets the other lock
//!                                                   ends batches in order | starts what was posted
//! ```
//!
//! A driver serves the calls of many threads one after the other, and a copy engine pauses some
//! microseconds between two submissions, which is as long as it copies 200 KiB. So what is posted while some
//! batches are on their way goes out as one batch when the first of them has ended. There is no thread of
//! its own: everybody who waits, or has filled a slot, pumps.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use gpu::{CopyQueue, Gpu, Span};
use mem::Region;

use crate::error::BulkError;

/// Queues of copies: while one pauses between two batches, the other copies.
const QUEUES: usize = 2;
/// Batches of each on their way at once: when one has ended, others go on until somebody comes by.
const BATCHES: usize = 2;
/// Most copies of a batch.
const COPIES_MAX: usize = 512;
/// A batch takes no more when it has so many bytes: its slots are free when its last copy has ended, and
/// the engine's pause before the next one costs a thirtieth of such a batch.
const BYTES_MAX: usize = 6 << 20;
/// How long a waiting thread looks again and again before it naps.
const SPIN: Duration = Duration::from_micros(20);
/// How long it naps between two looks then.
const NAP: Duration = Duration::from_micros(20);
/// After so long, the queue is asked whether something has failed.
const DOUBT: Duration = Duration::from_millis(1);

/// Failures that are remembered.
const FAILED_MAX: usize = 1024;

/// A copy that was asked for.
pub(crate) struct Parcel {
    pub host: Region,
    pub at: usize,
    pub device: u64,
    pub bytes: usize,
}

impl Parcel {
    fn span(&self) -> Span<'_> {
        let Self { host, at, device, bytes } = self;
        Span { host, host_offset: *at, device: *device, bytes: *bytes }
    }
}

#[derive(Default)]
struct Inbox {
    /// Copies that were posted, ever.
    posted: u64,
    parcels: Vec<Parcel>,
}

/// Copies on their way: up to a number, by a mark of a queue.
struct Batch {
    queue: usize,
    mark: u64,
    last: u64,
}

struct Wheel {
    queues: Vec<Box<dyn CopyQueue>>,
    /// Batches that can be on their way.
    batches: usize,
    turn: usize,
    flying: VecDeque<Batch>,
    /// Copies that were started, ever.
    started: u64,
    taken: Vec<Parcel>,
    /// Copies that failed: the first, the last, and why.
    failed: VecDeque<(u64, u64, BulkError)>,
}

/// The copies of an engine.
pub(crate) struct Courier {
    inbox: Mutex<Inbox>,
    wheel: Mutex<Wheel>,
    /// Copies that have ended, from the first one on.
    ended: AtomicU64,
    has_failed: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn broken(error: &gpu::GpuError) -> BulkError {
    BulkError::gpu("copying to the device", error)
}

impl Courier {
    /// Makes its queues of copies.
    ///
    /// # Errors
    /// [`BulkError::Gpu`].
    pub fn new(gpu: &dyn Gpu) -> Result<Self, BulkError> {
        let made = |e: gpu::GpuError| BulkError::gpu("making a queue of copies", &e);
        let queues = (0..QUEUES).map(|_| {
            let mut queue = gpu.copy_queue().map_err(made)?;
            // The first mark settles how marks are made.
            let mark = queue.mark().map_err(made)?;
            queue.wait(mark).map_err(made)?;
            Ok(queue)
        });
        Ok(Self::over(queues.collect::<Result<_, BulkError>>()?))
    }

    fn over(queues: Vec<Box<dyn CopyQueue>>) -> Self {
        let wheel = Wheel {
            batches: queues.len() * BATCHES,
            queues,
            turn: 0,
            flying: VecDeque::new(),
            started: 0,
            taken: Vec::new(),
            failed: VecDeque::new(),
        };
        Self {
            inbox: Mutex::default(),
            wheel: Mutex::new(wheel),
            ended: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
        }
    }

    /// Carries out a first batch, within pinned memory. What the driver makes for it, it may make only
    /// while no stream waits.
    pub fn warm(&self, gpu: &dyn Gpu) {
        const BYTES: usize = 4096;
        let Ok(host) = gpu.allocate_host(4 * BYTES as u64) else { return };
        let span = |at: usize| Span {
            host: &host,
            host_offset: at,
            device: host.address() + (2 * BYTES + at) as u64,
            bytes: BYTES,
        };
        for queue in &mut lock(&self.wheel).queues {
            // What is refused here is refused again where somebody needs it.
            let _refused = queue.start_all_to_device(&[span(0), span(BYTES)]);
            if let Ok(mark) = queue.mark() {
                let _refused = queue.wait(mark);
            }
        }
    }

    /// Takes copies over: the numbers of the first and the last one. Their host memory is kept until they
    /// have ended.
    pub fn post(&self, parcels: impl Iterator<Item = Parcel>) -> (u64, u64) {
        let numbers = {
            let mut inbox = lock(&self.inbox);
            let (before, first) = (inbox.parcels.len(), inbox.posted + 1);
            inbox.parcels.extend(parcels);
            inbox.posted += (inbox.parcels.len() - before) as u64;
            (first, inbox.posted)
        };
        self.pump();
        numbers
    }

    /// Ends what has ended and starts what can be started, unless somebody else does that now.
    pub fn pump(&self) {
        let mut wheel = match self.wheel.try_lock() {
            Ok(wheel) => wheel,
            Err(TryLockError::Poisoned(poisoned)) => {
                let mut wheel = poisoned.into_inner();
                self.wheel.clear_poison();
                self.give_up(&mut wheel);
                wheel
            }
            Err(TryLockError::WouldBlock) => return,
        };
        loop {
            self.end(&mut wheel);
            if wheel.flying.len() >= wheel.batches || !self.take(&mut wheel) {
                return;
            }
            self.start(&mut wheel);
        }
    }

    fn end(&self, wheel: &mut Wheel) {
        while let Some(Batch { queue, mark, last }) = wheel.flying.front() {
            let (queue, mark, last) = (*queue, *mark, *last);
            match wheel.queues[queue].is_done(mark) {
                Ok(false) => return,
                Ok(true) => {}
                Err(error) => self.note_failed(wheel, last, broken(&error)),
            }
            wheel.flying.pop_front();
            // Pairs with the loads of whoever waits: the copies are there before this says so.
            self.ended.fetch_max(last, Ordering::Release);
        }
    }

    /// After a panic of whoever pumped: what was on its way is waited for, and all that was posted fails.
    fn give_up(&self, wheel: &mut Wheel) {
        let why = "a worker of the bulk engine panicked; please report it".to_owned();
        while let Some(Batch { queue, mark, .. }) = wheel.flying.pop_front() {
            let _broken = wheel.queues[queue].wait(mark);
        }
        let posted = {
            let mut inbox = lock(&self.inbox);
            inbox.parcels.clear();
            inbox.posted
        };
        self.note_failed(wheel, posted, BulkError::Misuse(why));
        wheel.started = posted;
        wheel.taken.clear();
        self.ended.fetch_max(posted, Ordering::Release);
    }

    /// Notes that all copies up to one failed that have not ended yet.
    fn note_failed(&self, wheel: &mut Wheel, last: u64, error: BulkError) {
        let first = self.ended.load(Ordering::Relaxed) + 1;
        self.note(wheel, (first, last), error);
    }

    /// Notes that some copies failed. Where too many runs of them are known, the oldest two become one:
    /// copies between them that went well then count as failed, and never the other way round.
    fn note(&self, wheel: &mut Wheel, (first, last): (u64, u64), error: BulkError) {
        let goes_on = |(from, to, why): &&mut (u64, u64, BulkError)| {
            (*from..=*to + 1).contains(&first) && why.to_string() == error.to_string()
        };
        match wheel.failed.back_mut().filter(goes_on) {
            Some((_, to, _)) => *to = last.max(*to),
            None => wheel.failed.push_back((first, last, error)),
        }
        if wheel.failed.len() > FAILED_MAX
            && let Some((from, ..)) = wheel.failed.pop_front()
        {
            wheel.failed[0].0 = from.min(wheel.failed[0].0);
        }
        self.has_failed.store(true, Ordering::Release);
    }

    /// Takes what was posted; false where there is nothing.
    fn take(&self, wheel: &mut Wheel) -> bool {
        let mut inbox = lock(&self.inbox);
        let mut bytes = 0;
        let fits = |parcel: &&Parcel| {
            let fits = bytes < BYTES_MAX;
            bytes += parcel.bytes;
            fits
        };
        let count = inbox.parcels.iter().take(COPIES_MAX).take_while(fits).count();
        wheel.taken.extend(inbox.parcels.drain(..count));
        count > 0
    }

    fn start(&self, wheel: &mut Wheel) {
        let taken = std::mem::take(&mut wheel.taken);
        let spans: Vec<_> = taken.iter().map(Parcel::span).collect();
        let turn = wheel.turn;
        wheel.turn = (turn + 1) % wheel.queues.len();
        let (first, last) = (wheel.started + 1, wheel.started + taken.len() as u64);
        if wheel.queues[turn].start_all_to_device(&spans).is_err() {
            // One by one, again where some were started, to know which it is.
            for (number, span) in (first..=last).zip(&spans) {
                if let Err(error) = wheel.queues[turn].start_to_device(*span) {
                    self.note(wheel, (number, number), broken(&error));
                }
            }
        }
        wheel.started = last;
        match wheel.queues[turn].mark() {
            Ok(mark) => wheel.flying.push_back(Batch { queue: turn, mark, last }),
            Err(error) => {
                // Nothing will say when they have ended; the others on their way end first.
                self.note(wheel, (first, last), broken(&error));
                while let Some(Batch { queue, mark, last }) = wheel.flying.pop_front() {
                    if let Err(error) = wheel.queues[queue].wait(mark) {
                        self.note_failed(wheel, last, broken(&error));
                    }
                    self.ended.fetch_max(last, Ordering::Release);
                }
                self.ended.fetch_max(last, Ordering::Release);
            }
        }
        drop(spans);
        wheel.taken = taken;
        wheel.taken.clear();
    }

    /// Whether all copies from `first` to `last` have ended.
    ///
    /// # Errors
    /// Why one of them failed.
    pub fn is_done(&self, (first, last): (u64, u64)) -> Result<bool, BulkError> {
        if self.ended.load(Ordering::Acquire) < last {
            self.pump();
            if self.ended.load(Ordering::Acquire) < last {
                return Ok(false);
            }
        }
        if !self.has_failed.load(Ordering::Acquire) {
            return Ok(true);
        }
        let wheel = lock(&self.wheel);
        let hit = wheel.failed.iter().find(|(from, to, _)| *from <= last && first <= *to);
        hit.map_or(Ok(true), |(_, _, error)| Err(error.clone()))
    }

    /// Waits until all copies up to `last` have ended, or failed.
    pub fn wait(&self, last: u64) {
        let begin = Instant::now();
        let mut doubt = DOUBT;
        while self.ended.load(Ordering::Acquire) < last {
            self.pump();
            let waited = begin.elapsed();
            if waited < SPIN {
                std::hint::spin_loop();
                continue;
            }
            std::thread::sleep(NAP);
            if waited > doubt {
                doubt = waited * 2;
                self.look(last);
            }
        }
    }

    /// Waits for the oldest batch as its queue does, which notices failures.
    fn look(&self, last: u64) {
        let mut wheel = lock(&self.wheel);
        if self.ended.load(Ordering::Acquire) >= last {
            return;
        }
        let Some(Batch { queue, mark, last }) = wheel.flying.front() else { return };
        let (queue, mark, last) = (*queue, *mark, *last);
        if let Err(error) = wheel.queues[queue].wait(mark) {
            self.note_failed(&mut wheel, last, broken(&error));
            wheel.flying.pop_front();
            self.ended.fetch_max(last, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests;
