//! Bench mode: OS threads own whole blocks, lanes run until they wait.
//!
//! Block `b` belongs to worker `b % workers`. A worker keeps as many blocks resident as its share of
//! the lanes allows; the others wait until one has ended. Ready lanes run in turn; sleeping lanes run
//! no earlier than their time. A worker whose lanes all sleep, or have all looked in vain for what
//! they wait for, gives its CPU away: side cores need it.

mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::block::Plan;
use crate::fiber::{ArgumentCopy, StackPool};
use crate::report::{LaunchError, Report};
use crate::{Entry, Shape};

/// How a device simulates.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// OS threads a launch uses at most.
    pub threads: usize,
    /// Lanes that are resident at once in a launch, at least one block a thread. Each costs a stack.
    pub resident_lanes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { threads: 1, resident_lanes: 8192 }
    }
}

/// A simulated device: what launches have in common.
pub struct Device {
    options: Options,
    pool: Arc<StackPool>,
}

impl Device {
    /// A device that has launched nothing.
    pub fn new(options: Options) -> Self {
        Self { options, pool: Arc::default() }
    }

    /// Starts a kernel. `arguments` is copied; device code sees it 16-byte aligned.
    ///
    /// # Errors
    /// [`LaunchError::Shape`], [`LaunchError::Thread`].
    pub fn launch(
        &self,
        entry: Entry,
        shape: Shape,
        arguments: &[u8],
    ) -> Result<Launch, LaunchError> {
        shape.check()?;
        let workers = self.options.threads.clamp(1, shape.blocks as usize);
        let launch = Arc::new(Shared {
            arguments: ArgumentCopy::new(arguments),
            abort: AtomicBool::new(false),
            cpu_ns: (0..workers).map(|_| AtomicU64::new(0)).collect(),
            outcome: Mutex::new(Outcome { running: workers, ..Outcome::default() }),
            ended: Condvar::new(),
        });
        let mut started = Launch { shared: Arc::clone(&launch), threads: Vec::new() };
        for worker in 0..workers {
            let plan = worker::Assignment {
                entry,
                shape,
                worker,
                workers,
                resident_lanes: self.options.resident_lanes / workers,
                launch: Arc::clone(&launch),
                pool: Arc::clone(&self.pool),
            };
            let thread = std::thread::Builder::new()
                .name(format!("simt-{worker}"))
                .spawn(move || plan.run())
                .map_err(LaunchError::Thread);
            match thread {
                Ok(thread) => started.threads.push(thread),
                Err(error) => {
                    launch.outcome().running = started.threads.len();
                    return Err(error);
                }
            }
        }
        Ok(started)
    }
}

#[derive(Default)]
struct Outcome {
    running: usize,
    error: Option<LaunchError>,
    report: Report,
}

/// What the workers of a launch and its handle share.
struct Shared {
    arguments: ArgumentCopy,
    abort: AtomicBool,
    cpu_ns: Vec<AtomicU64>,
    outcome: Mutex<Outcome>,
    ended: Condvar,
}

impl Shared {
    fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plan(&self, entry: Entry, shape: Shape) -> Plan {
        Plan { entry, arguments: self.arguments.address(), shape, modelled: false }
    }
}

/// A launch that runs; dropping it ends it.
pub struct Launch {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Launch {
    /// Waits until all lanes have returned, at most for `limit`; `None` when it still runs.
    ///
    /// The result is handed out once; later calls return `Ok`.
    pub fn wait(&mut self, limit: Duration) -> Option<Result<(), LaunchError>> {
        let deadline = Instant::now() + limit;
        let mut outcome = self.shared.outcome();
        while outcome.running > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.shared.ended.wait_timeout(outcome, left);
            outcome = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let error = outcome.error.take();
        let mut report = std::mem::take(&mut outcome.report);
        report.waiting.sort_by_key(|group| (group.block, group.warp));
        drop(outcome);
        self.join();
        match error {
            Some(error) => Some(Err(error)),
            None if !report.waiting.is_empty() => Some(Err(LaunchError::Aborted(report))),
            None => Some(Ok(())),
        }
    }

    /// Asks for an early end; `wait` then says where the lanes were.
    pub fn abort(&mut self) {
        self.shared.abort.store(true, Ordering::Release);
    }

    /// CPU time of the workers so far; up to a few milliseconds behind while they run.
    pub fn cpu_seconds(&self) -> f64 {
        let ns: u64 = self.shared.cpu_ns.iter().map(|ns| ns.load(Ordering::Relaxed)).sum();
        Duration::from_nanos(ns).as_secs_f64()
    }

    fn join(&mut self) {
        for thread in self.threads.drain(..) {
            // A worker catches its own panics and has reported them.
            drop(thread.join());
        }
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        self.abort();
        self.join();
    }
}
