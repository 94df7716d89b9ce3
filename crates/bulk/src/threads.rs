//! The engine's core: jobs that wait, workers that take their chunks, and the usher of streams.

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gpu::Gpu;
use rustix::fs::FileType;
use storage::Residency;

use crate::counters;
use crate::courier::Courier;
use crate::error::BulkError;
use crate::file::{Access, Inner};
use crate::interference::{Interference, Need};
use crate::job::Job;
use crate::knees::{CALLERS_MAX, INLINE_SLOTS, Knees, PAGE_BYTES};
use crate::numa::{self, Near};
use crate::route::Cause;
use crate::seat::Seat;

/// How long the usher looks again and again at streams before it naps between two looks.
const SPIN: Duration = Duration::from_micros(200);
/// How long it naps then.
const NAP: Duration = Duration::from_micros(30);

/// What all parts of the engine share.
pub(crate) struct Core {
    pub gpu: Option<Arc<dyn Gpu>>,
    pub knees: Knees,
    /// Most threads.
    pub threads_max: usize,
    pub counters: counters::Shared,
    pub interference: Option<Arc<dyn Interference>>,
    work: Mutex<Work>,
    wake: Condvar,
    prepared: Condvar,
    gates: Mutex<Gates>,
    gates_wake: Condvar,
    spare: Mutex<Spare>,
    /// Copies to the device, made when the first is.
    courier: Mutex<Option<Arc<Courier>>>,
    warmed: Once,
    /// CPUs near the GPU, looked for when the first worker starts.
    near: OnceLock<Near>,
    /// How cached pages are found out, by device number.
    residency: Mutex<HashMap<(u64, bool), Residency>>,
}

#[derive(Default)]
struct Work {
    jobs: VecDeque<Arc<Job>>,
    workers: Vec<JoinHandle<()>>,
    refused: bool,
    stopped: bool,
    /// Workers are to make all that they may need, or have.
    prepare: bool,
    /// Those that have not yet.
    preparing: usize,
    /// Why one could not.
    unprepared: Option<BulkError>,
}

/// Seats of threads that carry out small requests themselves.
#[derive(Default)]
struct Spare {
    seats: Vec<Seat>,
    /// Those in use.
    out: u64,
}

#[derive(Default)]
struct Gates {
    waiting: Vec<Arc<Job>>,
    usher: Option<JoinHandle<()>>,
    stopped: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    pub fn new(
        gpu: Option<Arc<dyn Gpu>>,
        knees: Knees,
        threads_max: usize,
        counters: counters::Shared,
        interference: Option<Arc<dyn Interference>>,
    ) -> Self {
        Self {
            gpu,
            knees,
            threads_max,
            counters,
            interference,
            work: Mutex::default(),
            wake: Condvar::new(),
            prepared: Condvar::new(),
            gates: Mutex::default(),
            gates_wake: Condvar::new(),
            spare: Mutex::default(),
            courier: Mutex::default(),
            warmed: Once::new(),
            near: OnceLock::new(),
            residency: Mutex::default(),
        }
    }

    /// Whether tests have the system refuse this.
    pub fn refuses(&self, need: Need) -> bool {
        self.interference.as_ref().is_some_and(|interference| interference.refuses(need))
    }

    /// Whoever carries copies to the device.
    pub fn courier(&self) -> Result<Arc<Courier>, BulkError> {
        let mut courier = lock(&self.courier);
        if let Some(courier) = &*courier {
            return Ok(Arc::clone(courier));
        }
        let gpu = self.gpu.as_ref().expect("device memory was resolved by a GPU");
        let made = Arc::new(Courier::new(gpu.as_ref())?);
        Ok(Arc::clone(courier.insert(made)))
    }

    /// Opens a file; how its cached pages are found out is asked once a device.
    pub fn open(&self, path: &Path, access: Access) -> Result<Inner, BulkError> {
        Inner::open(path, access, |device, kind, fd| self.residency(device, kind, fd))
    }

    /// How cached pages are found out on a device.
    pub fn residency(&self, device: u64, kind: FileType, fd: BorrowedFd<'_>) -> Residency {
        let regular = kind == FileType::RegularFile;
        if let Some(known) = lock(&self.residency).get(&(device, regular)) {
            return *known;
        }
        let magic = rustix::fs::fstatfs(fd).map_or(0, |s| s.f_type.cast_unsigned());
        let found = match self.refuses(Need::Residency) {
            true => Residency::Unknown,
            false => Residency::choose(magic, kind, fd),
        };
        lock(&self.residency).insert((device, regular), found);
        found
    }

    /// Puts a job into the queue, behind its gate if it has one, and starts what workers it can use.
    pub fn submit(self: &Arc<Self>, job: &Arc<Job>) {
        if lock(&job.gate).is_some() {
            return self.wait_for_gate(job);
        }
        self.enqueue(job);
    }

    fn enqueue(self: &Arc<Self>, job: &Arc<Job>) {
        if job.chunks == 0 {
            return job.chunks_ended(0, &self.counters);
        }
        let mut work = lock(&self.work);
        if work.stopped {
            drop(work);
            return job.abandon(BulkError::Closed, &self.counters);
        }
        work.jobs.push_back(Arc::clone(job));
        let wanted = job.threads.min(self.threads_max);
        let chunks = usize::try_from(job.chunks).unwrap_or(usize::MAX);
        let wanted = wanted.min(work.workers.len().saturating_add(chunks));
        while work.workers.len() < wanted && !work.refused {
            self.start_worker(&mut work);
        }
        if work.workers.is_empty() {
            // Not one thread is to be had: the caller does the work.
            work.jobs.pop_back();
            drop(work);
            return self.carry_out(job);
        }
        drop(work);
        if job.chunks == 1 {
            self.wake.notify_one();
        } else {
            self.wake.notify_all();
        }
    }

    fn start_worker(self: &Arc<Self>, work: &mut Work) {
        let index = work.workers.len();
        let core = Arc::clone(self);
        let thread = std::thread::Builder::new().name(format!("bulk-{index}"));
        let spawned = match self.refuses(Need::Thread) {
            true => Err(std::io::Error::other("refused on purpose")),
            false => thread.spawn(move || core.serve(index)),
        };
        match spawned {
            Ok(handle) => {
                self.counters.threads.fetch_add(1, Ordering::Relaxed);
                work.workers.push(handle);
            }
            Err(error) => {
                work.refused = true;
                self.counters.fell_back(Cause::ThreadRefused, || {
                    format!("{error}; {index} threads do the work")
                });
            }
        }
    }

    /// Starts all workers, and has each make all that it may need of the GPU. While a stream waits for
    /// transfers, nothing must be allocated: the driver might wait for that stream first.
    ///
    /// # Errors
    /// The first refusal.
    pub fn prepare(self: &Arc<Self>) -> Result<(), BulkError> {
        let gpu = self.gpu.as_ref().expect("whoever prepares has looked");
        let courier = self.courier()?;
        self.warmed.call_once(|| courier.warm(gpu.as_ref()));
        let mut work = lock(&self.work);
        if work.prepare && work.preparing == 0 {
            return work.unprepared.clone().map_or(Ok(()), Err);
        }
        if !work.prepare {
            while work.workers.len() < self.threads_max && !work.refused {
                self.start_worker(&mut work);
            }
            if work.workers.is_empty() {
                let what = "transfers in the order of streams".to_owned();
                let why = "no thread could be started; raise the limit of threads".to_owned();
                return Err(BulkError::Unsupported { what, why });
            }
            work.prepare = true;
            work.preparing = work.workers.len();
            self.wake.notify_all();
        }
        while work.preparing > 0 && !work.stopped {
            work = self.prepared.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
        work.unprepared.clone().map_or(Ok(()), Err)
    }

    /// Whether streams wait for transfers, or may soon.
    pub fn is_prepared(&self) -> bool {
        lock(&self.work).prepare
    }

    /// A worker's part of [`Core::prepare`].
    fn prepare_seat(&self, seat: &mut Seat) {
        let result = seat.prepare(self);
        let mut work = lock(&self.work);
        work.preparing = work.preparing.saturating_sub(1);
        if let Err(error) = result {
            work.unprepared.get_or_insert(error);
        }
        self.prepared.notify_all();
    }

    /// A worker's life.
    fn serve(&self, index: usize) {
        let bytes = usize::try_from(self.knees.slot_bytes).expect("at most 64 MiB");
        if let Near::Cpus(cpus) = self.near() {
            numa::stay(cpus);
        }
        let mut seat = Seat::new(bytes, self.knees.slots);
        let mut prepared = false;
        // Naps between two looks at copies are shorter than the 50 us that the system else adds to each.
        let _longer = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        loop {
            if !prepared && self.is_prepared() {
                prepared = true;
                self.prepare_seat(&mut seat);
            }
            let step = AssertUnwindSafe(|| self.step(index, &mut seat));
            if catch_unwind(step).is_err() {
                seat.abandon(self);
                // Its copies may still run: its memory stays for good.
                let broken = std::mem::replace(&mut seat, Seat::new(bytes, self.knees.slots));
                std::mem::forget(broken);
                prepared = false;
            } else if seat.is_idle() && !self.has_work(index, prepared) {
                seat.let_go();
                if !self.wait_for_work(index, prepared) {
                    return seat.retire(self);
                }
            }
        }
    }

    /// Where workers run. Without a GPU, anywhere.
    fn near(&self) -> &Near {
        self.near.get_or_init(|| {
            let Some(gpu) = &self.gpu else { return Near::OneNode };
            let near = numa::near(Path::new("/sys"), gpu.pci().as_deref());
            if let Near::Unknown(why) = &near {
                self.counters.fell_back(Cause::NoNuma, || format!("{why}; threads run anywhere"));
            }
            near
        })
    }

    /// Begins what there is room for, and waits for something to end.
    fn step(&self, index: usize, seat: &mut Seat) {
        while seat.has_room() {
            let Some((job, chunk)) = self.claim(index) else { break };
            seat.begin(self, &job, chunk);
            seat.advance(self);
        }
        if !seat.is_idle() {
            seat.wait(self);
        }
    }

    fn claim(&self, index: usize) -> Option<(Arc<Job>, u64)> {
        take(&mut lock(&self.work), index)
    }

    /// Whether there may be something to claim now.
    fn has_work(&self, index: usize, prepared: bool) -> bool {
        let work = lock(&self.work);
        let wanted = work.prepare != prepared || work.jobs.iter().any(|job| index < job.threads);
        wanted && !work.stopped
    }

    /// Sleeps until there is something to claim; false at the end.
    fn wait_for_work(&self, index: usize, prepared: bool) -> bool {
        let mut work = lock(&self.work);
        while !work.stopped {
            if work.prepare != prepared {
                return true;
            }
            if work.jobs.iter().any(|job| index < job.threads) {
                return true;
            }
            work = self.wake.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
        false
    }

    /// Carries a small job of one chunk out in this thread, unless too many threads do that already.
    pub fn carry_out_if_free(&self, job: &Arc<Job>) -> bool {
        let slot_bytes = self.knees.inline_slot_bytes();
        if job.bytes + 2 * PAGE_BYTES > slot_bytes {
            return false;
        }
        let kept = {
            // A seat that would have to be made now might wait for a stream that waits for a transfer.
            let prepared = self.is_prepared();
            let mut spare = lock(&self.spare);
            if spare.out >= CALLERS_MAX || (prepared && spare.seats.is_empty()) {
                return false;
            }
            spare.out += 1;
            spare.seats.pop()
        };
        let slots = usize::try_from(INLINE_SLOTS).expect("two");
        let bytes = usize::try_from(slot_bytes).expect("at most 64 MiB");
        let mut seat = kept.unwrap_or_else(|| Seat::new(bytes, slots));
        self.run(job, &mut seat);
        let mut spare = lock(&self.spare);
        spare.out -= 1;
        spare.seats.push(seat);
        true
    }

    /// Carries a job out in this thread, since there is no other.
    fn carry_out(&self, job: &Arc<Job>) {
        let bytes = usize::try_from(self.knees.slot_bytes).expect("at most 64 MiB");
        let mut seat = Seat::new(bytes, self.knees.slots);
        self.run(job, &mut seat);
        seat.retire(self);
    }

    fn run(&self, job: &Arc<Job>, seat: &mut Seat) {
        loop {
            while seat.has_room() {
                let Some(chunk) = job.claim() else { break };
                seat.begin(self, job, chunk);
            }
            seat.advance(self);
            if seat.is_idle() && job.is_claimed() {
                break;
            }
            if !seat.is_idle() {
                seat.wait(self);
            }
        }
    }

    fn wait_for_gate(self: &Arc<Self>, job: &Arc<Job>) {
        let mut gates = lock(&self.gates);
        if gates.stopped {
            drop(gates);
            return job.abandon(BulkError::Closed, &self.counters);
        }
        gates.waiting.push(Arc::clone(job));
        if gates.usher.is_none() {
            let core = Arc::clone(self);
            let thread = std::thread::Builder::new().name("bulk-usher".to_owned());
            match thread.spawn(move || core.usher()) {
                Ok(handle) => gates.usher = Some(handle),
                Err(error) => {
                    gates.waiting.pop();
                    drop(gates);
                    let what = "waiting for a stream".to_owned();
                    let why =
                        format!("no thread could be started: {error}; raise the limit of threads");
                    return job.abandon(BulkError::Unsupported { what, why }, &self.counters);
                }
            }
        }
        drop(gates);
        self.gates_wake.notify_one();
    }

    /// Looks at gates, and lets jobs go whose streams have come to them.
    fn usher(self: Arc<Self>) {
        let mut looked = Instant::now();
        loop {
            let waiting = {
                let mut gates = lock(&self.gates);
                if gates.waiting.is_empty() && !gates.stopped {
                    gates = self.gates_wake.wait(gates).unwrap_or_else(PoisonError::into_inner);
                    looked = Instant::now();
                }
                if gates.stopped {
                    return;
                }
                gates.waiting.clone()
            };
            let passed: Vec<_> = waiting.iter().filter(|job| self.passes(job)).collect();
            if passed.is_empty() {
                if looked.elapsed() < SPIN {
                    std::hint::spin_loop();
                } else {
                    std::thread::sleep(NAP);
                }
                continue;
            }
            looked = Instant::now();
            let gone = |job: &Arc<Job>| passed.iter().any(|passed| Arc::ptr_eq(passed, job));
            lock(&self.gates).waiting.retain(|job| !gone(job));
            passed.into_iter().for_each(|job| self.enqueue(job));
        }
    }

    /// Whether a job need not wait any more: its stream has come to it, or it is to end.
    fn passes(&self, job: &Job) -> bool {
        let reached = lock(&job.gate).as_ref().map_or(Ok(true), |gate| gate.is_reached());
        reached.unwrap_or_else(|error| {
            job.fail(BulkError::gpu("what came before in the stream", &error));
            true
        }) || job.is_stopped()
    }

    /// Ends the threads; what nobody has begun ends as closed.
    pub fn stop(&self) {
        let (waiting, usher) = {
            let mut gates = lock(&self.gates);
            gates.stopped = true;
            (std::mem::take(&mut gates.waiting), gates.usher.take())
        };
        self.gates_wake.notify_all();
        waiting.iter().for_each(|job| job.abandon(BulkError::Closed, &self.counters));
        let (jobs, workers) = {
            let mut work = lock(&self.work);
            work.stopped = true;
            (std::mem::take(&mut work.jobs), std::mem::take(&mut work.workers))
        };
        self.wake.notify_all();
        jobs.iter().for_each(|job| job.abandon(BulkError::Closed, &self.counters));
        for thread in workers.into_iter().chain(usher) {
            // A worker that panicked has said so.
            let _panicked = thread.join();
        }
        lock(&self.spare).seats.drain(..).for_each(|mut seat| seat.retire(self));
    }
}

/// Takes a chunk of the first job that this worker may take part in.
fn take(work: &mut Work, index: usize) -> Option<(Arc<Job>, u64)> {
    let mut at = 0;
    while let Some(job) = work.jobs.get(at) {
        if index >= job.threads {
            at += 1;
            continue;
        }
        match job.claim() {
            Some(chunk) => {
                let taken = (Arc::clone(job), chunk);
                if job.is_claimed() {
                    work.jobs.remove(at);
                }
                return Some(taken);
            }
            None => {
                work.jobs.remove(at);
            }
        }
    }
    None
}
