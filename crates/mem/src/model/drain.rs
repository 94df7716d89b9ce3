//! Draining: buffered stores move on, in an order drawn from the seed.

use std::collections::VecDeque;

use super::buffers::{AgentId, Entry, NodeKind, first_to_leave};
use super::machine::Model;

/// Among how many write-combining stores the next to leave is drawn.
const COMBINING_CHOICE: usize = 64;

impl Model {
    /// An access happens: perhaps some buffered store moves on.
    pub(super) fn step(&mut self) {
        if !self.dirty.is_empty() && self.rng.chance(self.policy.drain) {
            self.drain_one();
        }
    }

    /// Lets one buffered store move on, if the one that is drawn may.
    fn drain_one(&mut self) {
        while !self.dirty.is_empty() {
            let at = self.rng.below(self.dirty.len());
            let index = self.dirty[at];
            let node = &self.nodes[index];
            if node.entries.is_empty() && node.combining.is_empty() && node.copies.is_empty() {
                self.nodes[index].dirty = false;
                self.dirty.swap_remove(at);
                continue;
            }
            let agent = AgentId(index);
            if node.kind == NodeKind::Cpu {
                self.drain_cpu(agent);
            } else if node.entries.is_empty() {
                self.carry_out_any(agent);
            } else {
                let chosen = self.rng.below(node.entries.len());
                let first = first_to_leave(&self.nodes[index].entries, chosen);
                self.leave(agent, first);
            }
            return;
        }
    }

    /// Lets one of a CPU's stores leave; `false` where all wait for a fence.
    ///
    /// Stores of one epoch (between two fences) leave before those of the next: ordinary ones in
    /// order, write-combining ones in any.
    pub(super) fn drain_cpu(&mut self, agent: AgentId) -> bool {
        let node = &self.nodes[agent.0];
        let first = |entries: &VecDeque<Entry>| entries.front().map(|entry| entry.epoch);
        let oldest = [first(&node.entries), first(&node.combining)].into_iter().flatten().min();
        let Some(epoch) = oldest else { return false };
        let ordinary = usize::from(first(&node.entries) == Some(epoch));
        let held_back = self.policy.lazy_window && epoch == node.epoch;
        let combining = if held_back {
            0
        } else {
            let same_epoch = node.combining.partition_point(|entry| entry.epoch == epoch);
            same_epoch.min(COMBINING_CHOICE)
        };
        if ordinary + combining == 0 {
            return false;
        }
        let chosen = self.rng.below(ordinary + combining);
        if chosen < ordinary {
            self.leave(agent, 0);
        } else {
            let first = first_to_leave(&self.nodes[agent.0].combining, chosen - ordinary);
            self.leave_combining(agent, first);
        }
        true
    }

    /// Time passes while nobody does anything: some of what is buffered moves on.
    pub fn rest(&mut self) {
        let nodes = self.dirty.iter().map(|&index| &self.nodes[index]);
        let held: usize = nodes.map(|n| n.entries.len() + n.combining.len() + n.copies.len()).sum();
        for _ in 0..self.rng.below(2 * held + 2) {
            self.drain_one();
        }
    }

    /// Everything buffered reaches memory, as before a launch.
    pub fn settle(&mut self) {
        for index in 0..self.nodes.len() {
            self.flush_chain(AgentId(index));
        }
    }

    /// What CPU threads have stored in order, or fenced, reaches memory, as it does when they go on.
    pub fn settle_threads(&mut self) {
        for index in 0..self.nodes.len() {
            if self.nodes[index].kind == NodeKind::Cpu {
                self.flush_cpu(AgentId(index), false);
            }
        }
    }

    /// Everything that lanes have stored reaches memory, as at the end of a kernel.
    pub fn settle_device(&mut self, device: AgentId) {
        for index in 0..self.nodes.len() {
            if self.root(AgentId(index)) == device {
                self.flush_chain(AgentId(index));
            }
        }
    }

    fn flush_chain(&mut self, agent: AgentId) {
        if self.nodes[agent.0].kind == NodeKind::Cpu {
            return self.flush_cpu(agent, true);
        }
        self.finish_copies(agent);
        let mut at = Some(agent);
        while let Some(level) = at {
            self.flush_entries(level);
            at = self.nodes[level.0].parent;
        }
    }
}
