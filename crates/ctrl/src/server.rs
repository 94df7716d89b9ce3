//! A thread around controllers.
//!
//! The thread steps its controllers in turn and rests by how little there was to do:
//!
//! | found | rest |
//! | --- | --- |
//! | work | none |
//! | nothing, for some steps | spin |
//! | nothing, for some time | yield the core |
//! | nothing, for longer | sleep, 50 us doubling to 1 ms |
//! | a completion due later than the next sleep | sleep until shortly before it |
//! | no controller enabled | park: 10 ms at a time, or until [`Server::wake`] |
//!
//! Registers are plain memory, so a host that enables a controller wakes nobody: without `wake` the
//! controller is seen within the parking interval, and a doorbell within the longest sleep.
//!
//! A panic of a controller is contained: the host sees CSTS.CFS, [`Server::failure`] says what
//! happened, the other controllers go on.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use crate::controller::{Controller, Progress};

/// How often CPU time is published while the thread never sleeps.
const PUBLISH_NS: u64 = 1_000_000;
/// How early a sleep that ends at a due time ends: the kernel's timer slack, and a little.
const EARLY_NS: u64 = 80_000;
/// How long dropping a server waits for its thread.
const DROP_LIMIT: Duration = Duration::from_secs(2);

/// How a server rests.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Name of the thread.
    pub name: String,
    /// Steps without work before the thread yields.
    pub spin_steps: u32,
    /// How long it yields before it sleeps.
    pub yield_for: Duration,
    /// First sleep.
    pub sleep_min: Duration,
    /// Longest sleep while a controller is enabled.
    pub sleep_max: Duration,
    /// Longest sleep while none is.
    pub park: Duration,
    /// When its clock began: the same for servers whose controllers share a pacer.
    pub origin: Instant,
    /// CPU that the thread stays on.
    pub cpu: Option<u32>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            name: "nvme-software".to_owned(),
            spin_steps: 64,
            yield_for: Duration::from_micros(100),
            sleep_min: Duration::from_micros(50),
            sleep_max: Duration::from_millis(1),
            park: Duration::from_millis(10),
            origin: Instant::now(),
            cpu: None,
        }
    }
}

/// What can go wrong with a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The thread could not be started. Remedy: see the source error.
    #[error("starting the controller's thread: {0}")]
    Start(#[from] std::io::Error),
    /// A controller panicked; its host saw CSTS.CFS. Remedy: report the text, it is a defect.
    #[error("a software controller panicked: {0}")]
    Panicked(String),
    /// The thread did not stop in time and was left behind. Remedy: look at its storage.
    #[error("the controller's thread did not stop within {0:?}")]
    Stuck(Duration),
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    cpu_ns: AtomicU64,
    failure: Mutex<Option<String>>,
}

impl Shared {
    fn publish_cpu_time(&self) {
        let used = clock_gettime(ClockId::ThreadCPUTime);
        let seconds = u64::try_from(used.tv_sec).unwrap_or(0);
        let ns = seconds * 1_000_000_000 + u64::try_from(used.tv_nsec).unwrap_or(0);
        // Relaxed: a figure that orders nothing.
        self.cpu_ns.store(ns, Ordering::Relaxed);
    }

    fn note_panic(&self, payload: &(dyn Any + Send)) {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        let text = text.unwrap_or_else(|| "a panic without a text".to_owned());
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(text);
    }
}

/// A thread that serves controllers until it is stopped or dropped.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    ended: Receiver<()>,
}

impl Server {
    /// Starts a thread around these controllers.
    ///
    /// # Errors
    /// [`ServerError::Start`].
    pub fn start(
        controllers: Vec<Controller>,
        options: ServerOptions,
    ) -> Result<Self, ServerError> {
        let shared = Arc::new(Shared::default());
        let (end, ended) = channel();
        let served = Arc::clone(&shared);
        let name = options.name.clone();
        let thread = thread::Builder::new()
            .name(name)
            .spawn(move || serve(&served, controllers, &options, &end))?;
        Ok(Self { shared, thread: Some(thread), ended })
    }

    /// Ends the thread's present sleep.
    pub fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// CPU time of the thread, at most about a millisecond old.
    pub fn cpu_seconds(&self) -> f64 {
        self.shared.cpu_ns.load(Ordering::Relaxed) as f64 / 1e9
    }

    /// What a controller panicked with, if one did.
    pub fn failure(&self) -> Option<String> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends what is in flight, and the thread, within a limit. Returns the thread's CPU seconds.
    ///
    /// # Errors
    /// [`ServerError::Stuck`] where it takes longer, [`ServerError::Panicked`] where a controller
    /// had panicked.
    pub fn stop(mut self, limit: Duration) -> Result<f64, ServerError> {
        self.end(limit)?;
        match self.failure() {
            Some(text) => Err(ServerError::Panicked(text)),
            None => Ok(self.cpu_seconds()),
        }
    }

    fn end(&mut self, limit: Duration) -> Result<(), ServerError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        // Pairs with the Acquire in `serve`.
        self.shared.stop.store(true, Ordering::Release);
        thread.thread().unpark();
        match self.ended.recv_timeout(limit) {
            Err(RecvTimeoutError::Timeout) => Err(ServerError::Stuck(limit)),
            // It says so last, or its end of the channel is gone: either way it is done.
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                if let Err(payload) = thread.join() {
                    self.shared.note_panic(&*payload);
                }
                Ok(())
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A thread that does not end is left behind: there is nobody to tell.
        drop(self.end(DROP_LIMIT));
    }
}

fn serve(
    shared: &Shared,
    mut controllers: Vec<Controller>,
    options: &ServerOptions,
    end: &Sender<()>,
) {
    if let Some(cpu) = options.cpu {
        let mut cpus = CpuSet::new();
        cpus.set(cpu as usize);
        // Where it is refused, the scheduler decides.
        let _anywhere = sched_setaffinity(None, &cpus);
    }
    let start = options.origin;
    let now_ns = || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let mut ladder = Ladder::new(options);
    let mut published_ns = 0;
    while !shared.stop.load(Ordering::Acquire) {
        let now = now_ns();
        let progress = step_all(shared, &mut controllers, now);
        let rest = ladder.rest(progress, now);
        if matches!(rest, Rest::Sleep(_)) || now >= published_ns + PUBLISH_NS {
            published_ns = now;
            shared.publish_cpu_time();
        }
        match rest {
            Rest::None => {}
            Rest::Spin => std::hint::spin_loop(),
            Rest::Yield => thread::yield_now(),
            Rest::Sleep(time) => thread::park_timeout(time),
        }
    }
    for controller in controllers {
        retire(shared, controller);
    }
    shared.publish_cpu_time();
    // Nobody listens where the server was dropped and gave up: then there is nobody to tell.
    let _ = end.send(());
}

/// Steps all controllers; those that panic are told to their hosts as failed, and dropped.
fn step_all(shared: &Shared, controllers: &mut Vec<Controller>, now_ns: u64) -> Progress {
    let mut most = Progress::Stopped;
    let mut position = 0;
    while position < controllers.len() {
        let controller = &mut controllers[position];
        match catch_unwind(AssertUnwindSafe(|| controller.step(now_ns))) {
            Ok(progress) => {
                most = busier(most, progress);
                position += 1;
            }
            Err(payload) => {
                shared.note_panic(&*payload);
                controller.show_broken();
                let broken = controllers.remove(position);
                retire_broken(shared, broken);
            }
        }
    }
    most
}

fn retire(shared: &Shared, mut controller: Controller) {
    let ended = catch_unwind(AssertUnwindSafe(move || controller.halt()));
    if let Err(payload) = ended {
        shared.note_panic(&*payload);
    }
}

/// Ends the storage I/O of a broken controller without touching what its host sees.
fn retire_broken(shared: &Shared, mut controller: Controller) {
    let ended = catch_unwind(AssertUnwindSafe(move || controller.let_go()));
    if let Err(payload) = ended {
        shared.note_panic(&*payload);
    }
}

/// Of two findings, the one that leaves less time to rest.
fn busier(one: Progress, other: Progress) -> Progress {
    use Progress::{Idle, Stopped, Waiting, Worked};
    match (one, other) {
        (Worked, _) | (_, Worked) => Worked,
        (Waiting { until_ns: a }, Waiting { until_ns: b }) => {
            Waiting { until_ns: a.and_then(|a| b.map(|b| a.min(b))) }
        }
        (waiting @ Waiting { .. }, _) | (_, waiting @ Waiting { .. }) => waiting,
        (Idle, _) | (_, Idle) => Idle,
        (Stopped, Stopped) => Stopped,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rest {
    None,
    Spin,
    Yield,
    Sleep(Duration),
}

/// The steps from spinning to sleeping.
struct Ladder {
    options: ServerOptions,
    idle_steps: u32,
    idle_since_ns: u64,
    sleep: Duration,
}

impl Ladder {
    fn new(options: &ServerOptions) -> Self {
        let sleep = options.sleep_min;
        Self { options: options.clone(), idle_steps: 0, idle_since_ns: 0, sleep }
    }

    fn rest(&mut self, progress: Progress, now_ns: u64) -> Rest {
        if progress == Progress::Worked {
            self.idle_steps = 0;
            self.sleep = self.options.sleep_min;
            return Rest::None;
        }
        if self.idle_steps == 0 {
            self.idle_since_ns = now_ns;
        }
        self.idle_steps = self.idle_steps.saturating_add(1);
        if self.idle_steps < self.options.spin_steps {
            return Rest::Spin;
        }
        let idle = Duration::from_nanos(now_ns.saturating_sub(self.idle_since_ns));
        if idle < self.options.yield_for {
            return Rest::Yield;
        }
        match progress {
            Progress::Waiting { until_ns: Some(until_ns) } => {
                let early = until_ns.saturating_sub(now_ns).saturating_sub(EARLY_NS);
                match Duration::from_nanos(early) {
                    Duration::ZERO => Rest::Yield,
                    // New commands may come meanwhile.
                    time => Rest::Sleep(time.min(self.options.sleep_max)),
                }
            }
            // The storage is at work, and cannot wake this thread.
            Progress::Waiting { until_ns: None } => Rest::Sleep(self.options.sleep_min),
            Progress::Stopped => self.longer_sleep(self.options.park),
            Progress::Idle | Progress::Worked => self.longer_sleep(self.options.sleep_max),
        }
    }

    fn longer_sleep(&mut self, max: Duration) -> Rest {
        let now = self.sleep.min(max);
        self.sleep = (now * 2).min(self.options.park);
        Rest::Sleep(now)
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
