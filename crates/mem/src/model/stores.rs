//! Stores and updates: into a buffer, out of it, into memory.

use super::buffers::{AgentId, BUFFERED, Entry, NodeKind, first_to_leave};
use super::machine::{Model, Order, Scope, mask_of, word_of};
use super::space::Word;
use crate::region::MemoryKind;

/// Stores a buffer holds before it must let one go. A CPU core's store buffer holds about as many.
const ENTRIES_MAX: usize = 64;
/// The same for write-combining stores; far more than any core has, for the lazy policy's sake.
const COMBINING_MAX: usize = 4096;

impl Model {
    /// Stores 1, 2, 4, 8 or 16 naturally aligned bytes; `false` where they are not registered.
    pub fn store(
        &mut self,
        agent: AgentId,
        address: u64,
        bytes: usize,
        values: [u64; 2],
        order: Order,
    ) -> bool {
        let Some((region, offset)) = self.space.find(address, bytes) else { return false };
        self.finish_copies_at(agent, address);
        self.step();
        let window = self.combines(agent, region);
        // A CPU's stores to ordinary memory leave in order anyway, and to a window in none.
        if order.releases() && self.nodes[agent.0].kind != NodeKind::Cpu {
            self.release(agent, Scope::System);
        }
        let word = word_of(region, offset);
        let shift = offset % 8 * 8;
        let mut entry = Entry::single(word, values[0] << shift, mask_of(bytes) << shift, agent);
        if bytes == 16 {
            entry.values[1] = values[1];
            entry.masks[1] = u64::MAX;
        }
        self.note_access(agent, 1, word, values);
        self.push(agent, entry, window);
        if order == Order::Full {
            self.fence(agent, Order::Full, Scope::System);
        }
        true
    }

    /// Whether an agent's stores to a region pass through write-combining buffers.
    pub(super) fn combines(&self, agent: AgentId, region: u32) -> bool {
        self.nodes[agent.0].kind == NodeKind::Cpu && self.space.kind(region) == MemoryKind::Window
    }

    pub(super) fn push(&mut self, agent: AgentId, mut entry: Entry, combining: bool) {
        let node = &mut self.nodes[agent.0];
        entry.epoch = node.epoch;
        if combining {
            // A load does not look into this buffer: the line must be fenced first.
            node.combining.push_back(entry);
        } else {
            node.entries.push_back(entry);
            if matches!(node.kind, NodeKind::Cpu | NodeKind::Lane) {
                node.seen.insert(entry.word, BUFFERED);
                if entry.masks[1] != 0 {
                    node.seen.insert(entry.word.next(), BUFFERED);
                }
            }
        }
        self.mark_dirty(agent);
        self.make_room(agent);
    }

    /// Notes that a node holds something that moves on by itself.
    pub(super) fn mark_dirty(&mut self, agent: AgentId) {
        let node = &mut self.nodes[agent.0];
        if !node.dirty {
            node.dirty = true;
            self.dirty.push(agent.0);
        }
    }

    /// Lets the oldest entry go where a buffer is too full.
    fn make_room(&mut self, agent: AgentId) {
        let node = &self.nodes[agent.0];
        if node.kind == NodeKind::Cpu {
            let full = node.entries.len() > ENTRIES_MAX || node.combining.len() > COMBINING_MAX;
            if full && !self.drain_cpu(agent) {
                // All that is left waits for a fence that does not come.
                self.leave_combining(agent, 0);
            }
        } else if node.entries.len() > ENTRIES_MAX {
            self.leave(agent, 0);
        }
    }

    /// Moves one entry a level down.
    pub(super) fn leave(&mut self, from: AgentId, index: usize) {
        let entry = self.nodes[from.0].entries.remove(index).expect("an entry in the buffer");
        match self.nodes[from.0].parent {
            Some(parent) => self.push(parent, entry, false),
            None => self.install(from, entry),
        }
    }

    pub(super) fn leave_combining(&mut self, from: AgentId, index: usize) {
        let entry = self.nodes[from.0].combining.remove(index).expect("an entry in the buffer");
        self.install(from, entry);
    }

    pub(super) fn install(&mut self, from: AgentId, entry: Entry) {
        self.space.now += 1;
        let now = self.space.now;
        self.space.install(entry.word, entry.values[0], entry.masks[0]);
        let pair = entry.masks[1] != 0;
        if pair {
            self.space.install(entry.word.next(), entry.values[1], entry.masks[1]);
        }
        for word in [Some(entry.word), pair.then(|| entry.word.next())].into_iter().flatten() {
            if let Some(seen) = self.nodes[entry.origin.0].seen.get_mut(&word) {
                *seen = now;
            }
        }
        if self.nodes[from.0].kind == NodeKind::Device {
            // The block's lanes may know of it through a barrier, the device's through a fence.
            let block = self.nodes[entry.origin.0].parent;
            let levels = [block, entry.device_wide.then_some(from)];
            for level in levels.into_iter().flatten() {
                let seen = &mut self.nodes[level.0].seen;
                seen.insert(entry.word, now);
                if pair {
                    seen.insert(entry.word.next(), now);
                }
                self.prune(level);
            }
        }
        let value = self.space.value_identity(entry.values[0]);
        self.note(self.space.identity(entry.word) ^ value ^ 3 << 60);
    }

    /// Reads, changes and writes 4 or 8 bytes at once; `None` where they are not registered.
    ///
    /// `change` gets the present value and returns the new one, or `None` to leave it.
    ///
    /// # Panics
    /// On a CPU's view of a window: there are no locked instructions there.
    pub fn update(
        &mut self,
        agent: AgentId,
        address: u64,
        bytes: usize,
        order: Order,
        change: impl FnOnce(u64) -> Option<u64>,
    ) -> Option<u64> {
        let (region, offset) = self.space.find(address, bytes)?;
        self.finish_copies_at(agent, address);
        assert!(!self.combines(agent, region), "a locked instruction on a window");
        self.step();
        let word = word_of(region, offset);
        if self.nodes[agent.0].kind == NodeKind::Cpu {
            self.flush_cpu(agent, false);
        } else if order.releases() {
            self.release(agent, Scope::System);
        }
        self.flush_word(agent, word);
        let shift = offset % 8 * 8;
        let before = self.space.present(word);
        let old = before.value >> shift & mask_of(bytes);
        let new = change(old);
        self.note_access(agent, 2, word, [old, new.unwrap_or(0)]);
        if let Some(new) = new {
            let entry = Entry::single(word, new << shift, mask_of(bytes) << shift, agent);
            self.install(self.root(agent), entry);
        }
        let (now, since) = (self.space.now, self.space.since(word));
        let node = &mut self.nodes[agent.0];
        node.seen.insert(word, since);
        node.read_newest = node.read_newest.max(before.since);
        if order == Order::Full {
            node.horizon = now;
        } else if order.acquires() {
            node.horizon = node.horizon.max(before.since);
        }
        self.prune(agent);
        Some(old)
    }

    pub(super) fn root(&self, mut agent: AgentId) -> AgentId {
        while let Some(parent) = self.nodes[agent.0].parent {
            agent = parent;
        }
        agent
    }

    /// Sends what an agent's chain of buffers holds for one word to memory.
    fn flush_word(&mut self, agent: AgentId, word: Word) {
        let parent = self.nodes[agent.0].parent;
        if let Some(parent) = parent {
            self.flush_word(parent, word);
        }
        let holds = |entry: &Entry| entry.part(word).is_some();
        while let Some(index) = self.nodes[agent.0].entries.iter().position(holds) {
            let index = first_to_leave(&self.nodes[agent.0].entries, index);
            self.leave(agent, index);
            if let Some(parent) = parent {
                self.flush_word(parent, word);
            }
        }
    }
}
