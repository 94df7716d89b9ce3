//! Several storages with the same content: writes go to all, reads to each in turn.
//!
//! A read that one member fails is tried on the others, and fails where all did. A write succeeds
//! only where every member took it; after one that failed, members may differ in its range until
//! it is written again. So may they where two writes to one range are in flight at once: like a
//! drive, nothing here orders them, and each member may do it its own way.

use std::sync::Arc;

use crate::queue::{Geometry, Lent, Op, QueueOptions, Storage, StorageError, StorageQueue};
use crate::several::{Layout, Part, SeveralQueue, common_geometry};

/// Storages that hold the same.
pub struct Replicated {
    members: Vec<Arc<dyn Storage>>,
    geometry: Geometry,
}

impl Replicated {
    /// Takes `members` as holding the same: what is written from here on is on all of them.
    ///
    /// # Errors
    /// `Misuse` without members.
    pub fn new(members: Vec<Arc<dyn Storage>>) -> Result<Self, StorageError> {
        let geometry = common_geometry(&members)?;
        Ok(Self { members, geometry })
    }
}

impl Storage for Replicated {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn StorageQueue>, StorageError> {
        let replicas = Replicas { members: self.members.len(), next: 0 };
        let queue = SeveralQueue::open(replicas, self.geometry, &self.members, options)?;
        Ok(Box::new(queue))
    }

    fn explain(&self) -> String {
        let members: Vec<String> = self.members.iter().map(|m| m.explain()).collect();
        format!("replicas, read in turn: [{}]", members.join("] ["))
    }
}

struct Replicas {
    members: usize,
    /// The member of the next read.
    next: usize,
}

impl Layout for Replicas {
    fn split(&mut self, request: &Lent<'_>, bytes: u32, parts: &mut Vec<Part>) {
        let part = |member| Part::new(member, request.offset, 0, bytes);
        match request.op {
            // It begins beyond the end of the storage.
            Op::Read if bytes == 0 => {}
            Op::Read => {
                parts.push(part(self.next));
                self.next = (self.next + 1) % self.members;
            }
            Op::Flush | Op::Write | Op::WriteZeroes => parts.extend((0..self.members).map(part)),
        }
    }

    fn retry(&self, op: Op, last: usize, tries: usize) -> Option<usize> {
        (op == Op::Read && tries < self.members).then(|| (last + 1) % self.members)
    }
}
