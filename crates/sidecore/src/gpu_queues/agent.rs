//! A CPU agent: polls the completion queues of several pairs, several entries a pass.
//!
//! `copilot`'s paper has the agent release a hardware barrier on which the waiting warp sleeps. A CPU
//! cannot signal such a barrier; here it stores one aligned 8-byte word for each command, and the
//! lane polls that word in its own memory.

use std::sync::Arc;

use stats::{Role, Writer};

use super::counters::{AgentCounters, SharedAgentCounters};
use super::pair::Pair;

/// What a step of an agent found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AgentProgress {
    /// Completions drained.
    pub completions: u32,
    /// Queues that lanes have at present.
    pub with_lanes: u32,
}

/// A CPU agent. Exactly one caller steps it.
pub struct Agent {
    pairs: Vec<Arc<Pair>>,
    counts: AgentCounters,
    shared: Arc<SharedAgentCounters>,
    writer: Option<Writer>,
}

impl Agent {
    pub(super) fn new(
        pairs: Vec<Arc<Pair>>,
        shared: Arc<SharedAgentCounters>,
        writer: Option<Writer>,
    ) -> Self {
        Self { pairs, counts: AgentCounters::default(), shared, writer }
    }

    /// Looks at each of its queues once. Never blocks for longer than recovery holds a queue, which
    /// is short.
    pub fn step(&mut self, now_ns: u64) -> AgentProgress {
        let mut progress = AgentProgress { completions: 0, with_lanes: 0 };
        for pair in &self.pairs {
            let mut drain = pair.drain();
            progress.completions += drain.step(now_ns);
            progress.with_lanes += u32::from(drain.is_lanes());
        }
        self.counts.passes += 1;
        self.counts.busy_passes += u64::from(progress.completions > 0);
        progress
    }

    /// Number of its queues.
    pub fn queues(&self) -> usize {
        self.pairs.len()
    }

    /// Publishes all counters, to a shared page too where there is one. `cpu_ns` is the CPU time of
    /// its thread, or 0; `slept` is how often it slept since the last time.
    pub fn publish(&mut self, cpu_ns: u64, slept: u64) {
        let charged = cpu_ns.saturating_sub(self.counts.cpu_ns);
        self.counts.cpu_ns = cpu_ns;
        self.counts.sleeps += slept;
        self.shared.publish(&self.counts);
        for pair in &self.pairs {
            let counts = pair.drain().counts;
            pair.publish(&counts);
        }
        if let Some(writer) = &mut self.writer {
            writer.cpu(Role::Path, charged);
            for pair in &self.pairs {
                pair.report(writer);
            }
            writer.publish();
        }
    }
}
