//! What an observer of a simulation is told.

/// A lane: its block in the order of starts, and its thread in the block.
pub type LaneId = (usize, u32);

/// Something that lanes did, in the order in which each lane did it.
#[derive(Clone, Copy, Debug)]
pub enum Observed<'a> {
    /// A lane has made an access.
    Access {
        /// Which lane.
        lane: LaneId,
        /// What it did.
        access: LaneAccess,
    },
    /// Lanes have met at a barrier.
    Barrier {
        /// Those that met.
        lanes: &'a [LaneId],
    },
}

/// An access of a lane.
#[derive(Clone, Copy, Debug)]
pub struct LaneAccess {
    /// What kind.
    pub kind: AccessKind,
    /// Where; of a copy, its target.
    pub address: u64,
    /// What it stores or adds; expected and wanted value of a swap; a copy's source.
    pub given: [u64; 2],
    /// What it found there, where it reads.
    pub found: u64,
}

/// Kinds of accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "named as in `impl/arch.h`")]
pub enum AccessKind {
    Add,
    CompareSwap,
    Copy,
    Fence { kind: FenceKind, system: bool },
    Load,
    Store,
}

/// Kinds of fences, each of which orders what those before it order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FenceKind {
    /// Earlier loads before later accesses.
    Acquire,
    /// Earlier accesses before later ones.
    Full,
    /// The same, in one order that all such fences share.
    Total,
}
