//! What the lanes are asked to do and what they say of it: the twin of the structures in
//! crates/kernels/kernels/trial.cu.

use abi::ring::{BufferView, RingView, SourceView};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Waits until the end.
pub const MANNER_WAIT: u32 = 0;
/// Waits for its patience, then cancels and waits on.
pub const MANNER_CANCEL: u32 = 1;
/// Waits for its patience, then leaves the kernel with the request in flight.
pub const MANNER_ABANDON: u32 = 2;
/// Leaves the kernel instead.
pub const MANNER_LEAVE: u32 = 3;

/// What a lane stores into the buffer of a read before it asks.
pub const POISON: u64 = 0xdead_beef_dead_beef;

/// One I/O of one lane.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Io {
    pub source_offset: u64,
    pub buffer_offset: u64,
    pub patience_ns: u64,
    pub bytes: u32,
    pub opcode: u32,
    pub manner: u32,
    pub limit_ms: u32,
}

/// What became of it, as its lane saw it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Seen {
    pub latency_ns: u64,
    pub detail: u32,
    /// Words of a successful read that were not the source's.
    pub wrong: u32,
    pub status: u16,
    /// How often it ended.
    pub ends: u16,
    pub reserved: u32,
}

/// Arguments of the kernel.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct Args {
    pub ring: RingView,
    pub source: SourceView,
    pub buffer: BufferView,
    pub plan: u64,
    pub results: u64,
    pub ios_a_lane: u32,
    pub batch: u32,
    pub alone: u32,
    pub generation: u32,
}
