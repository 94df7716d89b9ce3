//! The sum of all shards at one moment.

use crate::histogram::Histogram;
use crate::{Event, Op, Role, Route, layout};

/// Counters of a page, summed over its writers. Each writer's part is consistent in itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    words: Vec<u64>,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self { words: vec![0; layout::WORDS] }
    }
}

impl Snapshot {
    pub(crate) fn add_shard(&mut self, shard: &[u64]) {
        for (sum, word) in self.words.iter_mut().zip(shard) {
            *sum = sum.wrapping_add(*word);
        }
    }

    /// What happened between `earlier` and now.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let pairs = self.words.iter().zip(&earlier.words);
        Self { words: pairs.map(|(now, before)| now.wrapping_sub(*before)).collect() }
    }

    /// How often an event happened.
    pub fn count(&self, event: Event) -> u64 {
        self.words[layout::event(event)]
    }
    /// CPU time of a role in nanoseconds.
    pub fn cpu_ns(&self, role: Role) -> u64 {
        self.words[layout::role(role)]
    }
    /// I/Os that ended on a route, errors included.
    pub fn ios(&self, route: Route, op: Op) -> u64 {
        self.words[layout::traffic(route, op)]
    }
    /// Payload bytes that a route moved.
    pub fn bytes(&self, route: Route, op: Op) -> u64 {
        self.words[layout::traffic(route, op) + 1]
    }
    /// I/Os that ended with an error.
    pub fn errors(&self, route: Route, op: Op) -> u64 {
        self.words[layout::traffic(route, op) + 2]
    }
    /// Latencies of an operation.
    pub fn latency(&self, op: Op) -> Histogram {
        Histogram::from_counts(&self.words[layout::latency(op)..])
    }
}
