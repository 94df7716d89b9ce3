//! Fences and barriers: what must have happened before what.

use super::buffers::{AgentId, NodeKind};
use super::machine::{Model, Order, Scope};

impl Model {
    /// Orders an agent's accesses before the fence before those after it.
    pub fn fence(&mut self, agent: AgentId, order: Order, scope: Scope) {
        self.finish_copies(agent);
        self.step();
        self.accesses += 1;
        self.note((agent.0 as u64) << 40 ^ 4 << 60 ^ order as u64 ^ (scope as u64) << 8);
        if order.releases() {
            self.release(agent, scope);
        }
        let now = self.space.now;
        let node = &mut self.nodes[agent.0];
        match order {
            Order::Full => {
                node.horizon = now;
                node.read_newest = now;
                if scope == Scope::System {
                    node.seen.clear();
                }
            }
            Order::Acquire => node.horizon = node.horizon.max(node.read_newest),
            Order::Relaxed | Order::Release => {}
        }
    }

    /// Orders all earlier stores of a CPU before all later ones, write-combining ones too.
    ///
    /// They leave in the end, even under the lazy policy; but they need not have left now.
    pub fn fence_stores(&mut self, agent: AgentId) {
        self.step();
        self.accesses += 1;
        self.note((agent.0 as u64) << 40 ^ 5 << 60);
        self.nodes[agent.0].epoch += 1;
    }

    /// Makes an agent's earlier stores visible to the scope.
    pub(super) fn release(&mut self, agent: AgentId, scope: Scope) {
        if self.nodes[agent.0].kind == NodeKind::Cpu {
            return self.flush_cpu(agent, true);
        }
        self.finish_copies(agent);
        self.flush_entries(agent);
        let Some(block) = self.nodes[agent.0].parent else { return };
        if scope == Scope::Block {
            return;
        }
        self.flush_entries(block);
        let Some(device) = self.nodes[block.0].parent else { return };
        for entry in &mut self.nodes[device.0].entries {
            entry.device_wide = true;
        }
        if scope == Scope::System {
            self.flush_entries(device);
        }
    }

    pub(super) fn flush_entries(&mut self, agent: AgentId) {
        let entries = std::mem::take(&mut self.nodes[agent.0].entries);
        let parent = self.nodes[agent.0].parent;
        let device_wide = self.nodes[agent.0].kind == NodeKind::Block;
        for mut entry in entries {
            entry.device_wide |= device_wide;
            match parent {
                Some(parent) => self.push(parent, entry, false),
                None => self.install(agent, entry),
            }
        }
    }

    /// Sends a CPU's stores to memory; write-combining ones that no fence has followed if asked to.
    pub(super) fn flush_cpu(&mut self, agent: AgentId, unfenced: bool) {
        let epoch = self.nodes[agent.0].epoch;
        let mut combining = std::mem::take(&mut self.nodes[agent.0].combining);
        for entry in std::mem::take(&mut self.nodes[agent.0].entries) {
            let before = combining.partition_point(|other| other.epoch < entry.epoch);
            for other in combining.drain(..before) {
                self.install(agent, other);
            }
            self.install(agent, entry);
        }
        let leave = if unfenced {
            combining.len()
        } else {
            combining.partition_point(|other| other.epoch < epoch)
        };
        for other in combining.drain(..leave) {
            self.install(agent, other);
        }
        self.nodes[agent.0].combining = combining;
    }

    /// A CPU thread runs; another one that ran before it may have handed something over.
    pub(super) fn take_turn(&mut self, agent: AgentId) {
        let Some(before) = self.last_cpu.replace(agent) else { return };
        if before == agent {
            return;
        }
        self.flush_cpu(before, false);
        let seen = std::mem::take(&mut self.nodes[before.0].seen);
        let (horizon, newest) = (self.nodes[before.0].horizon, self.nodes[before.0].read_newest);
        let node = &mut self.nodes[agent.0];
        node.horizon = node.horizon.max(horizon);
        node.read_newest = node.read_newest.max(newest);
        for (&word, &value) in &seen {
            let known = node.seen.entry(word).or_insert(value);
            *known = value.max(*known);
        }
        self.nodes[before.0].seen = seen;
        self.prune(agent);
    }

    /// A lane arrives at a barrier of its block: what it stored, the block may see.
    pub fn arrive(&mut self, lane: AgentId) {
        self.release(lane, Scope::Block);
        let Some(block) = self.nodes[lane.0].parent else { return };
        let seen = std::mem::take(&mut self.nodes[lane.0].seen);
        for (&word, &value) in &seen {
            let known = self.nodes[block.0].seen.entry(word).or_insert(value);
            *known = value.max(*known);
        }
        self.nodes[lane.0].seen = seen;
        self.prune(block);
    }

    /// The lanes of a barrier go on: what one has seen, all have seen.
    pub fn meet(&mut self, lanes: &[AgentId]) {
        let horizon = lanes.iter().map(|lane| self.nodes[lane.0].horizon).max();
        let newest = lanes.iter().map(|lane| self.nodes[lane.0].read_newest).max();
        let (Some(horizon), Some(newest)) = (horizon, newest) else { return };
        for lane in lanes {
            self.nodes[lane.0].horizon = horizon;
            self.nodes[lane.0].read_newest = newest;
        }
    }
}
