//! What the lanes are asked to do and what they say of it: the twin of the structures in
//! crates/kernels/kernels/queue_trial.cu.

use abi::queue::DmaBufferView;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Waits until the end.
pub const MANNER_WAIT: u32 = 0;
/// Waits for its patience first, then until the end.
pub const MANNER_LOOK: u32 = 1;
/// Waits for its patience, then leaves the kernel with its commands in flight.
pub const MANNER_ABANDON: u32 = 2;

/// One I/O of one lane.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Io {
    pub offset: u64,
    pub buffer_offset: u64,
    pub patience_ns: u64,
    pub bytes: u32,
    pub opcode: u32,
    pub manner: u32,
    pub reserved: u32,
}

/// What became of it, as its lane saw it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Seen {
    pub latency_ns: u64,
    /// Words at the ends of a successful read that were not the namespace's.
    pub wrong: u32,
    pub status: u16,
    /// How often it ended.
    pub ends: u16,
}

/// Arguments of the kernels.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct Args {
    pub views: u64,
    pub plan: u64,
    pub results: u64,
    pub buffer: DmaBufferView,
    pub view_count: u32,
    pub ios_a_lane: u32,
    pub batch: u32,
    pub alone: u32,
    pub generation: u32,
    pub reserved: u32,
}
