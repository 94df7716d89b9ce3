//! Arguments and results of the benchmark kernel: the host plans every I/O, lanes only do them.
//!
//! A *round* is `ios` I/Os. I/O `i` moves `io_bytes` between `source_offset` of its [`BenchIo`] and
//! byte `i * io_bytes` of the buffer, so that after the round every byte of every read is still
//! there to be compared. The host poisons the buffer (reads) or fills it (writes) before the launch,
//! and knows what the first and last 16 bytes of each read must be ([`BenchEdges`]).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::ring::{BufferView, SourceView};

/// Flag of [`BenchArgs`]: compare the first and last 16 bytes of each read with its [`BenchEdges`].
pub const BENCH_CHECK_EDGES: u32 = 1;

/// Flag of [`BenchResult`]: both edges were compared and are right.
pub const BENCH_EDGES_RIGHT: u16 = 1;
/// Flag of [`BenchResult`]: the request was published (an I/O without it never reached the ring).
pub const BENCH_SUBMITTED: u16 = 2;

/// One planned I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BenchIo {
    /// Byte offset in the source.
    pub source_offset: u64,
    /// One of the `OP_` constants.
    pub opcode: u32,
    /// Zero.
    pub reserved: u32,
}
const _: () = assert!(size_of::<BenchIo>() == 16);

/// What the first and last 16 bytes of one read must be (of an I/O shorter than 32 they overlap).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BenchEdges {
    /// The first 16 bytes.
    pub first: [u64; 2],
    /// The last 16 bytes.
    pub last: [u64; 2],
}
const _: () = assert!(size_of::<BenchEdges>() == 32);

/// How one I/O ended; written by the lane that did it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BenchResult {
    /// From before its ticket was reserved to after its last byte was read, in ns.
    pub latency_ns: u64,
    /// Status as the completion record has it, or a device-only one.
    pub status: u16,
    /// `BENCH_EDGES_RIGHT`, `BENCH_SUBMITTED`.
    pub flags: u16,
    /// Detail as the completion record has it.
    pub detail: u32,
}
const _: () = assert!(size_of::<BenchResult>() == 16);

/// What the lanes of one launch count together, where it happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BenchTotals {
    /// Next I/O that no warp has taken; the host stores 0 before the launch.
    pub next: u64,
    /// Completions that lanes found by polling.
    pub completions_polled: u64,
    /// Doorbells that lanes rang (none, with a ring).
    pub doorbells: u64,
    /// Bytes of requests that lanes stored.
    pub request_bytes: u64,
}
const _: () = assert!(size_of::<BenchTotals>() == 32);

/// Arguments of the benchmark kernel.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BenchArgs {
    /// Device address of `ring_count` [`crate::ring::RingView`]s; block `b` uses ring `b % ring_count`.
    pub rings: u64,
    /// Device address of `ios` [`BenchIo`]s.
    pub plan: u64,
    /// Device address of `ios` [`BenchEdges`], or 0.
    pub edges: u64,
    /// Device address of `ios` [`BenchResult`]s.
    pub results: u64,
    /// Device address of one [`BenchTotals`].
    pub totals: u64,
    /// I/Os of this round.
    pub ios: u64,
    /// The source.
    pub source: SourceView,
    /// The buffer.
    pub buffer: BufferView,
    /// Bytes an I/O.
    pub io_bytes: u32,
    /// Number of rings.
    pub ring_count: u32,
    /// I/Os that a lane has in flight: 1 waits for each.
    pub batch: u32,
    /// `BENCH_CHECK_EDGES`.
    pub flags: u32,
    /// Each request's own limit in ms; 0: the ring's default.
    pub limit_ms: u32,
    /// Zero.
    pub reserved: u32,
}
const _: () = assert!(size_of::<BenchArgs>() == 112);
