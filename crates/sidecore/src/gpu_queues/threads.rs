//! The threads of a set of queue pairs: agents on the idle ladder of side cores, and recovery.
//!
//! An agent whose queues are all with lanes has nothing to find: it goes down the ladder to its
//! longest sleeps, from which it looks at what lanes report.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use stats::thread_cpu_ns;

use super::agent::Agent;
use super::recovery::{Recovery, RecoveryProgress};
use crate::error::EngineError;
use crate::threads::{Ladder, Rung, SLEEP_MAX, check_cpus, elapsed_ns, os_error};

/// Busy passes between two publications.
const PUBLISH_PASSES: u32 = 4096;
/// Sleeps between two publications of an agent that finds nothing: reading its CPU time costs more
/// than a look at its queues.
const PUBLISH_SLEEPS: u32 = 16;
/// Longest sleep of an agent all of whose queues are with lanes.
const SLEEP_WITH_LANES: Duration = Duration::from_millis(2);
/// How often recovery looks while all is well, and while something is under way.
const LOOK_EVERY: Duration = Duration::from_millis(1);
const LOOK_BUSY: Duration = Duration::from_micros(50);
/// How long taking the pairs down may last when the set is dropped.
const CLOSE_MAX: Duration = Duration::from_secs(10);

/// Where agents run.
#[derive(Clone, Copy, Debug)]
pub struct AgentPlacement {
    /// How many there are (where lanes do not drain the queues themselves).
    pub agents: u32,
    /// The first one's CPU, where they are pinned.
    pub first_cpu: Option<u32>,
    /// Whether others need the same CPUs: an idle agent then yields at once.
    pub shared: bool,
}

impl Default for AgentPlacement {
    /// One, on any CPU, that yields to others.
    fn default() -> Self {
        Self { agents: 1, first_cpu: None, shared: true }
    }
}

#[derive(Default)]
struct Common {
    stop_agents: AtomicBool,
    stop_recovery: AtomicBool,
    recovery_cpu_ns: AtomicU64,
}

/// All threads of one set.
pub(super) struct Threads {
    common: Arc<Common>,
    clock: Instant,
    agents: Vec<JoinHandle<()>>,
    recovery: Mutex<Option<JoinHandle<()>>>,
}

impl Threads {
    pub fn start(
        agents: Vec<Agent>,
        recovery: Recovery,
        placement: AgentPlacement,
    ) -> Result<Self, EngineError> {
        if let Some(first) = placement.first_cpu {
            check_cpus(first, agents.len())?;
        }
        let clock = Instant::now();
        let common = Arc::new(Common::default());
        let mut threads = Self {
            common: Arc::clone(&common),
            clock,
            agents: Vec::new(),
            recovery: Mutex::new(None),
        };
        for (index, agent) in (0u32..).zip(agents) {
            let common = Arc::clone(&common);
            let cpu = placement.first_cpu.map(|first| first + index);
            let ladder = Ladder::new(placement.shared);
            let run = move || {
                let polling = Polling {
                    common,
                    agent,
                    clock,
                    ladder,
                    since_publish: 0,
                    found: false,
                    sleeps: 0,
                };
                polling.run(cpu);
            };
            let handle = Builder::new().name(format!("copilot-{index}")).spawn(run);
            let handle = handle.map_err(os_error(format!("agent {index}'s thread")));
            threads.agents.push(handle.inspect_err(|_| threads.stop_agents())?);
        }
        let run = move || recover(&common, recovery, clock);
        let handle = Builder::new().name("queue-recovery".into()).spawn(run);
        let handle = handle.map_err(os_error("recovery's thread".into()));
        let handle = handle.inspect_err(|_| threads.stop_agents())?;
        *threads.recovery.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
        Ok(threads)
    }

    fn stop_agents(&self) {
        self.common.stop_agents.store(true, Ordering::Release);
    }

    /// Now, on the clock of agents and recovery.
    pub fn elapsed_ns(&self) -> u64 {
        elapsed_ns(self.clock)
    }

    pub fn recovery_cpu_ns(&self) -> u64 {
        self.common.recovery_cpu_ns.load(Ordering::Relaxed)
    }

    /// Takes the pairs down and ends all threads.
    pub fn join(self) {
        self.common.stop_recovery.store(true, Ordering::Release);
        let recovery = self.recovery.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A panic of one of them has been reported where it happened.
        let _ = recovery.map(JoinHandle::join);
        self.stop_agents();
        for handle in self.agents {
            let _ = handle.join();
        }
    }
}

/// One agent's thread.
struct Polling {
    common: Arc<Common>,
    agent: Agent,
    clock: Instant,
    ladder: Ladder,
    since_publish: u32,
    /// Whether completions were found since the last publication.
    found: bool,
    sleeps: u32,
}

impl Polling {
    fn run(mut self, cpu: Option<u32>) {
        if let Some(cpu) = cpu {
            let mut cpus = CpuSet::new();
            cpus.set(cpu as usize);
            // Checked at the start; where it fails since, the scheduler decides.
            let _ = sched_setaffinity(None, &cpus);
        }
        while !self.common.stop_agents.load(Ordering::Acquire) {
            let now_ns = elapsed_ns(self.clock);
            let progress = self.agent.step(now_ns);
            self.since_publish += 1;
            if progress.completions > 0 {
                self.found = true;
                self.ladder.progress(now_ns);
                if self.since_publish >= PUBLISH_PASSES {
                    self.publish();
                }
                continue;
            }
            match self.ladder.rung(now_ns) {
                Rung::Spin => std::hint::spin_loop(),
                Rung::Yield => std::thread::yield_now(),
                Rung::Sleep => {
                    self.sleeps += 1;
                    if self.found || self.sleeps >= PUBLISH_SLEEPS {
                        self.publish();
                    }
                    let all_with_lanes = progress.with_lanes as usize == self.agent.queues();
                    self.ladder.sleep(if all_with_lanes { SLEEP_WITH_LANES } else { SLEEP_MAX });
                }
            }
        }
        self.publish();
    }

    fn publish(&mut self) {
        self.since_publish = 0;
        self.found = false;
        self.sleeps = 0;
        self.agent.publish(thread_cpu_ns(), self.ladder.take_slept());
    }
}

/// Recovery's thread.
fn recover(common: &Common, mut recovery: Recovery, clock: Instant) {
    let mut closing: Option<Instant> = None;
    loop {
        if closing.is_none() && common.stop_recovery.load(Ordering::Acquire) {
            recovery.close();
            closing = Some(Instant::now());
        }
        let progress = recovery.step(elapsed_ns(clock));
        common.recovery_cpu_ns.store(thread_cpu_ns(), Ordering::Relaxed);
        if progress == RecoveryProgress::Over && closing.is_some()
            || closing.is_some_and(|since| since.elapsed() > CLOSE_MAX)
        {
            return;
        }
        let busy = progress == RecoveryProgress::Busy;
        std::thread::sleep(if busy { LOOK_BUSY } else { LOOK_EVERY });
    }
}
