//! Seeded mode: one scheduler steps lanes, CPU agents, memory and time; a seed replays a run.
//!
//! Every access of a lane is a point where somebody else may go first. A CPU agent is a closure that
//! takes one step at a time; its accesses to registered regions (through `mem`) are its own in the
//! memory model, so they are delayed, reordered and stale like a lane's. Who goes next, what leaves a
//! store buffer, what a load sees and how long things take are drawn from the seed; so are the
//! policies behind these draws.
//!
//! Time is simulated: it advances a little with each step, and to the next sleeper when nobody can
//! run. The lanes' timer has an offset of its own, since GPU and CPU clocks must not be compared.

mod access;
mod observed;
mod schedule;
mod simulation;

pub use mem::model::Policy;
pub use observed::{AccessKind, FenceKind, LaneAccess, LaneId, Observed};
pub use schedule::Interleaving;
pub use simulation::Simulation;

use crate::report::LaunchError;

/// What a CPU agent did in a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AgentStep {
    /// Something; it wants to go on.
    Progress,
    /// Nothing; it looks again soon.
    Idle,
    /// Nothing; it looks again at that simulated time, or soon after.
    Until(u64),
    /// It has ended for good.
    Done,
}

/// How a simulation is run, where the seed shall not decide.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How adverse memory is; by default drawn from the seed.
    pub memory: Option<Policy>,
    /// Who goes next; by default drawn from the seed.
    pub interleaving: Option<Interleaving>,
    /// Lanes that are resident at once; blocks beyond them wait for others to end.
    pub resident_lanes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { memory: None, interleaving: None, resident_lanes: 4096 }
    }
}

/// When a run is given up.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Steps of lanes and agents.
    pub steps: u64,
    /// Simulated time in which no word of registered memory changes and no lane returns.
    pub quiet_ns: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { steps: 50_000_000, quiet_ns: 100_000_000 }
    }
}

/// What a finished run was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Hash of all accesses by everybody, in their order, by region name and offset.
    pub hash: u64,
    /// How many accesses there were.
    pub accesses: u64,
    /// How many steps lanes and agents took.
    pub steps: u64,
    /// The simulated time at its end.
    pub now_ns: u64,
}

/// Why a run did not finish.
#[derive(Debug, thiserror::Error)]
#[error("seed {seed}: {kind} after {steps} steps at {now_ns} ns\n{report}")]
pub struct Stuck {
    /// The seed that replays it.
    pub seed: u64,
    /// What kind of end it was.
    pub kind: StuckKind,
    /// Steps taken.
    pub steps: u64,
    /// Simulated time.
    pub now_ns: u64,
    /// Who waits where; lanes by block and warp, agents by name.
    pub report: String,
}

/// In which way a run did not finish.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StuckKind {
    /// All lanes of a block wait for each other.
    #[error("deadlock")]
    Deadlock,
    /// Everybody looks, nothing changes.
    #[error("livelock")]
    Livelock,
    /// A kernel broke a collective's contract, or could not run.
    #[error("misuse: {0}")]
    Misuse(LaunchError),
    /// The limit of steps is reached.
    #[error("too many steps")]
    Steps,
}
