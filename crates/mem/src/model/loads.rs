//! Loads: what an agent sees, at least and at best.

use super::buffers::{AgentId, BUFFERED, NodeKind};
use super::machine::{Model, Order, mask_of, word_of};
use super::space::{STALE_MAX, Word};

/// Words an agent remembers having seen before it forgets those that no longer matter.
pub(super) const SEEN_MAX: usize = 512;

impl Model {
    /// Loads 1, 2, 4, 8 or 16 naturally aligned bytes; `None` where they are not registered.
    pub fn load(
        &mut self,
        agent: AgentId,
        address: u64,
        bytes: usize,
        order: Order,
    ) -> Option<[u64; 2]> {
        let (region, offset) = self.space.find(address, bytes)?;
        self.finish_copies_at(agent, address);
        self.step();
        let word = word_of(region, offset);
        let moment = if self.draws_stale() {
            self.moment(agent, word, bytes == 16, order)
        } else {
            self.space.now
        };
        let mut values = [0; 2];
        values[0] = self.load_word(agent, word, moment, order) >> (offset % 8 * 8) & mask_of(bytes);
        if bytes == 16 {
            values[1] = self.load_word(agent, word.next(), moment, order);
        }
        self.note_access(agent, 0, word, values);
        Some(values)
    }

    /// What an agent has seen at least, of one word.
    fn floor(&self, agent: AgentId, word: Word) -> u64 {
        let now = self.space.now;
        let mut floor = self.nodes[agent.0].horizon.max(now - STALE_MAX);
        let mut at = Some(agent);
        while let Some(AgentId(i)) = at {
            let node = &self.nodes[i];
            match node.seen.get(&word) {
                Some(&BUFFERED) => return now,
                Some(&seen) => floor = floor.max(seen),
                None => {}
            }
            at = node.parent;
        }
        floor
    }

    pub(super) fn draws_stale(&mut self) -> bool {
        self.rng.chance(self.policy.stale)
    }

    /// Draws the moment whose memory a load sees.
    pub(super) fn moment(&mut self, agent: AgentId, word: Word, pair: bool, order: Order) -> u64 {
        let now = self.space.now;
        // Loads through a window are not cached.
        if order == Order::Full || self.combines(agent, word.region) {
            return now;
        }
        let mut floor = self.floor(agent, word);
        let mut chosen = word;
        if pair {
            floor = floor.max(self.floor(agent, word.next()));
            if self.rng.chance(128) {
                chosen = word.next();
            }
        }
        let choices = self.space.past_since(chosen, floor);
        match self.rng.below(choices + 1) {
            0 => now,
            nth => self.space.past_until(chosen, nth - 1).max(floor),
        }
    }

    /// Loads a word of memory as it was at `moment`, under what is buffered for this agent.
    pub(super) fn load_word(
        &mut self,
        agent: AgentId,
        word: Word,
        moment: u64,
        order: Order,
    ) -> u64 {
        let version = self.space.at(word, moment);
        let horizon = self.nodes[agent.0].horizon;
        if version.since <= horizon && order != Order::Full && self.buffers_nothing(agent) {
            return version.value;
        }
        let mut value = version.value;
        let (mut covered, mut foreign) = (0, false);
        let mut chain = [None; 3];
        let mut at = Some(agent);
        for link in &mut chain {
            *link = at;
            at = at.and_then(|AgentId(i)| self.nodes[i].parent);
        }
        for AgentId(i) in chain.into_iter().rev().flatten() {
            for entry in &self.nodes[i].entries {
                if let Some((stored, mask)) = entry.part(word) {
                    value = value & !mask | stored & mask;
                    covered |= mask;
                    foreign |= entry.origin != agent;
                }
            }
        }
        let now = self.space.now;
        let read = if foreign { now } else { version.since };
        let node = &mut self.nodes[agent.0];
        node.read_newest = node.read_newest.max(read);
        if order == Order::Acquire {
            node.horizon = node.horizon.max(read);
        } else if order == Order::Full {
            node.horizon = now;
        }
        if covered != 0 {
            node.seen.insert(word, BUFFERED);
        } else if version.since > node.horizon {
            node.seen.insert(word, version.since);
        } else if !node.seen.is_empty() {
            node.seen.remove(&word);
        }
        self.prune(agent);
        value
    }

    /// Forgets what no longer matters, when it has become much.
    pub(super) fn prune(&mut self, agent: AgentId) {
        let AgentId(index) = agent;
        if self.nodes[index].seen.len() <= self.nodes[index].seen_limit {
            return;
        }
        let now = self.space.now;
        let mut floor = now - STALE_MAX;
        let mut seen = std::mem::take(&mut self.nodes[index].seen);
        if matches!(self.nodes[index].kind, NodeKind::Cpu | NodeKind::Lane) {
            floor = floor.max(self.nodes[index].horizon);
        }
        seen.retain(|&word, value| {
            if *value == BUFFERED && !self.is_buffered(agent, word) {
                *value = now;
            }
            *value > floor
        });
        self.nodes[index].seen_limit = SEEN_MAX.max(2 * seen.len());
        self.nodes[index].seen = seen;
    }

    /// Whether nothing is buffered for an agent, in its own buffer or above.
    fn buffers_nothing(&self, agent: AgentId) -> bool {
        let node = &self.nodes[agent.0];
        node.entries.is_empty() && node.parent.is_none_or(|parent| self.buffers_nothing(parent))
    }

    fn is_buffered(&self, agent: AgentId, word: Word) -> bool {
        let node = &self.nodes[agent.0];
        node.entries.iter().any(|entry| entry.part(word).is_some())
            || node.parent.is_some_and(|parent| self.is_buffered(parent, word))
    }
}
