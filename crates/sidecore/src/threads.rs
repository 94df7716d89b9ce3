//! The threads that step side cores and the supervisor, and the ladder that they idle on.
//!
//! ```text
//! since the last progress   a side core whose rings are silent
//! below 20 us               looks again at once (yields where cores are shared)
//! below 200 us              yields between looks
//! from 200 us               sleeps: 50 us, doubling to 1 ms (to 50 us while storage works)
//! no ring attached          parks until one is
//! ```
//!
//! A GPU's store wakes nobody, so the longest sleep bounds how late a request is seen: 1 ms and
//! what the scheduler adds. Threads are of the ordinary scheduling class.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use stats::thread_cpu_ns;

use crate::engine::Inner;
use crate::error::EngineError;
use crate::side_core::{CoreState, Progress, SideCore};
use crate::supervisor::Supervisor;

const SPIN_NS: u64 = 20_000;
const YIELD_NS: u64 = 200_000;
pub(crate) const SLEEP_MIN: Duration = Duration::from_micros(50);
pub(crate) const SLEEP_MAX: Duration = Duration::from_millis(1);
/// Steps between two publications of a busy side core's CPU time.
const PUBLISH_STEPS: u32 = 4096;
/// How often the supervisor looks.
const SUPERVISE_EVERY: Duration = Duration::from_millis(10);
/// How long the end of a thread is waited for.
const JOIN_MAX: Duration = Duration::from_secs(3);

/// Where side cores run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    /// The first side core's CPU, where they are pinned.
    pub first_cpu: Option<u32>,
    /// Whether others need the same CPUs.
    pub shared: bool,
}

type Handles = Arc<Mutex<Vec<JoinHandle<()>>>>;

/// All threads of one engine.
pub(crate) struct Threads {
    handles: Handles,
    supervisor: std::thread::Thread,
}

pub(crate) fn os_error(target: String) -> impl FnOnce(std::io::Error) -> EngineError {
    move |source| EngineError::Os { operation: "starting", target, source }
}

impl Threads {
    pub fn start(
        inner: &Arc<Inner>,
        placement: Placement,
        stall_ns: u64,
    ) -> Result<Self, EngineError> {
        if let Some(first) = placement.first_cpu {
            check_cpus(first, inner.cores().len())?;
        }
        let clock = Instant::now();
        let handles = Handles::default();
        for shared in inner.cores() {
            spawn_side_core(inner, inner.side_core(shared), placement, clock, &handles)?;
        }
        let supervisor = Supervisor::new(Arc::clone(inner), stall_ns);
        let run = Supervising {
            inner: Arc::clone(inner),
            handles: Arc::clone(&handles),
            placement,
            clock,
        };
        let handle = Builder::new()
            .name("sidecore-super".into())
            .spawn(move || run.run(supervisor))
            .map_err(os_error("the supervisor's thread".into()))?;
        let thread = handle.thread().clone();
        handles.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
        Ok(Self { handles, supervisor: thread })
    }

    pub fn wake_supervisor(&self) {
        self.supervisor.unpark();
    }

    /// Waits for all threads, but not for ever for one that hangs.
    pub fn join(self) {
        self.supervisor.unpark();
        let start = Instant::now();
        let handles =
            std::mem::take(&mut *self.handles.lock().unwrap_or_else(PoisonError::into_inner));
        for handle in handles {
            while !handle.is_finished() && start.elapsed() < JOIN_MAX {
                handle.thread().unpark();
                std::thread::sleep(Duration::from_micros(200));
            }
            if handle.is_finished() {
                // A side core's panic ends in its step; nothing is left to report here.
                let _ = handle.join();
            }
        }
    }
}

pub(crate) fn check_cpus(first: u32, count: usize) -> Result<(), EngineError> {
    let own = rustix::thread::sched_getaffinity(None).map_err(|errno| EngineError::Os {
        operation: "reading",
        target: "the CPUs of this process".into(),
        source: errno.into(),
    })?;
    let first = first as usize;
    match (first..first + count).find(|&cpu| cpu >= CpuSet::MAX_CPU || !own.is_set(cpu)) {
        Some(cpu) => Err(EngineError::Unsupported {
            what: "pinning side cores",
            why: format!("CPU {cpu} is none that this process may use"),
        }),
        None => Ok(()),
    }
}

fn spawn_side_core(
    inner: &Arc<Inner>,
    core: SideCore,
    placement: Placement,
    clock: Instant,
    handles: &Handles,
) -> Result<(), EngineError> {
    let index = core.index();
    let inner = Arc::clone(inner);
    let handle = Builder::new()
        .name(format!("sidecore-{index}"))
        .spawn(move || {
            if let Some(first) = placement.first_cpu {
                let mut cpus = CpuSet::new();
                cpus.set((first + index) as usize);
                // Checked at the start; where it fails since, the scheduler decides.
                let _ = sched_setaffinity(None, &cpus);
            }
            let ladder = Ladder::new(placement.shared);
            Serving { inner, core, clock, since_publish: 0, ladder }.run();
        })
        .map_err(os_error(format!("side core {index}'s thread")))?;
    handles.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
    Ok(())
}

/// What an idle poller does next.
pub(crate) enum Rung {
    Sleep,
    Spin,
    Yield,
}

/// Where a poller stands on the ladder.
pub(crate) struct Ladder {
    shared: bool,
    last_progress_ns: u64,
    sleep: Duration,
    slept: u64,
}

impl Ladder {
    /// At the top; `shared` says whether others need the same CPU.
    pub(crate) fn new(shared: bool) -> Self {
        Self { shared, last_progress_ns: 0, sleep: SLEEP_MIN, slept: 0 }
    }

    /// Back to the top.
    pub(crate) fn progress(&mut self, now_ns: u64) {
        self.last_progress_ns = now_ns;
        self.sleep = SLEEP_MIN;
    }

    pub(crate) fn rung(&self, now_ns: u64) -> Rung {
        let idle_ns = now_ns.saturating_sub(self.last_progress_ns);
        if idle_ns < SPIN_NS && !self.shared {
            Rung::Spin
        } else if idle_ns < YIELD_NS {
            Rung::Yield
        } else {
            Rung::Sleep
        }
    }

    /// Sleeps, at most so long, and twice as long the next time.
    pub(crate) fn sleep(&mut self, limit: Duration) {
        self.sleep = self.sleep.min(limit);
        std::thread::sleep(self.sleep);
        self.sleep = (self.sleep * 2).min(limit);
        self.slept += 1;
    }

    /// How often it slept since the last time.
    pub(crate) fn take_slept(&mut self) -> u64 {
        std::mem::take(&mut self.slept)
    }
}

pub(crate) fn elapsed_ns(clock: Instant) -> u64 {
    u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// One side core's thread.
struct Serving {
    inner: Arc<Inner>,
    core: SideCore,
    clock: Instant,
    since_publish: u32,
    ladder: Ladder,
}

impl Serving {
    fn run(mut self) {
        self.core.shared().set_thread(std::thread::current());
        self.ladder.progress(elapsed_ns(self.clock));
        while !self.inner.stop.load(Ordering::Acquire) {
            let now_ns = elapsed_ns(self.clock);
            let progress = self.core.step(now_ns);
            match progress.state {
                // Who answers for it says when it is over.
                CoreState::Lost | CoreState::Deposed => {
                    return self.core.publish(thread_cpu_ns(), self.ladder.take_slept());
                }
                CoreState::NoRings => self.park(),
                CoreState::Serving if progress.is_busy() => {
                    self.ladder.progress(now_ns);
                    self.publish_sometimes();
                }
                CoreState::Serving => self.idle(now_ns, &progress),
            }
        }
        self.core.close_rings();
        self.core.publish(thread_cpu_ns(), self.ladder.take_slept());
        self.core.shared().set_over();
    }

    fn idle(&mut self, now_ns: u64, progress: &Progress) {
        let limit = if progress.in_flight > 0 { SLEEP_MIN } else { SLEEP_MAX };
        match self.ladder.rung(now_ns) {
            Rung::Spin => std::hint::spin_loop(),
            Rung::Yield => std::thread::yield_now(),
            Rung::Sleep => {
                self.publish();
                self.ladder.sleep(limit);
            }
        }
    }

    fn park(&mut self) {
        self.publish();
        self.core.shared().set_parked(true);
        if self.core.shared().ring_count() == 0 && !self.inner.stop.load(Ordering::Acquire) {
            std::thread::park();
        }
        self.core.shared().set_parked(false);
    }

    fn publish_sometimes(&mut self) {
        self.since_publish += 1;
        if self.since_publish >= PUBLISH_STEPS {
            self.publish();
        }
    }

    fn publish(&mut self) {
        self.since_publish = 0;
        self.core.publish(thread_cpu_ns(), self.ladder.take_slept());
    }
}

/// The supervisor's thread.
struct Supervising {
    inner: Arc<Inner>,
    handles: Handles,
    placement: Placement,
    clock: Instant,
}

impl Supervising {
    fn run(self, mut supervisor: Supervisor) {
        while !self.inner.stop.load(Ordering::Acquire) {
            supervisor.step(elapsed_ns(self.clock));
            while let Some(core) = supervisor.take_replacement() {
                // Without a thread the ring stays unserved; the supervisor finds it stalled and
                // tries again.
                let _ =
                    spawn_side_core(&self.inner, core, self.placement, self.clock, &self.handles);
            }
            self.inner.supervisor_cpu_ns.store(thread_cpu_ns(), Ordering::Relaxed);
            if self.inner.cores().iter().all(|core| core.ring_count() == 0) {
                std::thread::park();
            } else {
                std::thread::park_timeout(SUPERVISE_EVERY);
            }
        }
    }
}
