//! Copies that a lane makes by weak accesses: perhaps later than it asks for them.
//!
//! What a copy loads nobody but its own store waits for; so both may happen after what the lane
//! does next, even after a store that it made visible meanwhile. A fence ends that, a barrier, and
//! an access of the same lane to one of the two places.

use super::buffers::{AgentId, NodeKind};
use super::machine::{Model, Order};

/// Bytes of a copy; it is aligned to them.
const COPY_BYTES: usize = 16;

/// A copy that has not happened yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    to: u64,
    from: u64,
}

/// The aligned place that an access is in.
fn place(address: u64) -> u64 {
    address & !(COPY_BYTES as u64 - 1)
}

impl Model {
    /// Copies 16 aligned bytes from registered to registered memory; `false` where either is not.
    pub fn copy(&mut self, lane: AgentId, to: u64, from: u64) -> bool {
        let known = [to, from].map(|at| self.space.find(at, COPY_BYTES).is_some());
        if known != [true, true] {
            return false;
        }
        self.finish_copies_at(lane, to);
        self.finish_copies_at(lane, from);
        let copy = Copy { to, from };
        let may_be_late = self.nodes[lane.0].kind == NodeKind::Lane && self.policy.late_copies > 0;
        if may_be_late && self.rng.chance(self.policy.late_copies) {
            self.nodes[lane.0].copies.push(copy);
            self.mark_dirty(lane);
        } else {
            self.carry_out(lane, copy);
        }
        true
    }

    fn carry_out(&mut self, lane: AgentId, copy: Copy) {
        let values = self.load(lane, copy.from, COPY_BYTES, Order::Relaxed);
        let values = values.expect("registered when it was asked for");
        self.store(lane, copy.to, COPY_BYTES, values, Order::Relaxed);
    }

    /// Lets one late copy happen; `false` where there is none.
    pub(super) fn carry_out_any(&mut self, lane: AgentId) -> bool {
        let count = self.nodes[lane.0].copies.len();
        if count == 0 {
            return false;
        }
        let chosen = self.rng.below(count);
        let copy = self.nodes[lane.0].copies.swap_remove(chosen);
        self.carry_out(lane, copy);
        true
    }

    /// Lets all of a lane's late copies happen.
    #[inline]
    pub(super) fn finish_copies(&mut self, lane: AgentId) {
        while let Some(copy) = self.nodes[lane.0].copies.pop() {
            self.carry_out(lane, copy);
        }
    }

    /// The same, where one of them has to do with an address.
    #[inline]
    pub(super) fn finish_copies_at(&mut self, lane: AgentId, address: u64) {
        let at = place(address);
        if self.nodes[lane.0].copies.iter().any(|copy| copy.to == at || copy.from == at) {
            self.finish_copies(lane);
        }
    }
}
