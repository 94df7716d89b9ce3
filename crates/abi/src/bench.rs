//! Arguments and results of the benchmark kernel: the host plans every I/O, lanes only do them.
//!
//! A *round* is `ios` I/Os. I/O `i` moves `io_bytes` between `source_offset` of its [`BenchIo`] and
//! byte `i * io_bytes` of the buffer, so that after the round every byte of every read is still
//! there to be compared. The host poisons the buffer (reads) or fills it (writes) before the launch,
//! and knows what the first and last 16 bytes of each read must be ([`BenchEdges`]).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::queue::{DmaBufferView, QueuePairView};
use crate::ring::{BufferView, RingView, SourceView};

/// Flag of [`BenchArgs`]: compare the first and last 16 bytes of each read with its [`BenchEdges`].
pub const BENCH_CHECK_EDGES: u32 = 1;

/// Flag of [`BenchArgs`]: no lane does anything, until the host stores `ios` in `next` of the totals:
/// what the kernel costs a neighbour by being there alone. Each block adds 1 to `next` once it is there.
pub const BENCH_ASLEEP: u32 = 2;

/// Most I/Os that a lane has in flight, whatever [`BenchArgs::batch`] says.
pub const BENCH_BATCH_MAX: u32 = 64;

/// Flag of [`BenchResult`]: both edges were compared and are right.
pub const BENCH_EDGES_RIGHT: u16 = 1;
/// Flag of [`BenchResult`]: the request was published (an I/O without it never reached the ring).
pub const BENCH_SUBMITTED: u16 = 2;

/// Flag of [`BenchResult`]: every byte was compared on the device and is right.
pub const BENCH_ALL_RIGHT: u16 = 4;

/// One planned I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BenchIo {
    /// Byte offset in the source.
    pub source_offset: u64,
    /// One of the `OP_` constants.
    pub opcode: u32,
    /// Generation of the bytes read, or to be written, for kernels that know the data's pattern; else
    /// anything.
    pub generation: u32,
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
    /// `BENCH_EDGES_RIGHT`, `BENCH_SUBMITTED`, `BENCH_ALL_RIGHT`.
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
    /// Looks of lanes that waited, in vain or not.
    pub polls: u64,
}
const _: () = assert!(size_of::<BenchTotals>() == 40);

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
    /// I/Os that a lane has in flight, 1 to [`BENCH_BATCH_MAX`]: 1 waits for each.
    pub batch: u32,
    /// `BENCH_CHECK_EDGES`.
    pub flags: u32,
    /// Each request's own limit in ms; 0: the ring's default.
    pub limit_ms: u32,
    /// Zero.
    pub reserved: u32,
}
const _: () = assert!(size_of::<BenchArgs>() == 120);

/// What the lanes of one launch over queue pairs count together, where it happens.
///
/// Doorbells and second reads are counted by the queue pairs ([`crate::queue::QueueState`]), which
/// cannot tell launches apart: the host takes differences.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueueBenchTotals {
    /// Next I/O that no warp has taken; the host stores 0 before the launch.
    pub next: u64,
    /// I/Os whose completion a lane drained from the CQ.
    pub polled_by_gpu: u64,
    /// I/Os whose completion a CPU agent drained from the CQ.
    pub polled_by_cpu: u64,
    /// Bytes of submission entries that lanes stored.
    pub request_bytes: u64,
    /// Looks of lanes that waited, in vain or not.
    pub polls: u64,
}
const _: () = assert!(size_of::<QueueBenchTotals>() == 40);

/// Arguments of the benchmark kernels over queue pairs; as [`BenchArgs`] otherwise.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueueBenchArgs {
    /// Device address of `queue_count` [`QueuePairView`]s; block `b` uses pair `b % queue_count`.
    pub queues: u64,
    /// Device address of `ios` [`BenchIo`]s.
    pub plan: u64,
    /// Device address of `ios` [`BenchEdges`], or 0.
    pub edges: u64,
    /// Device address of `ios` [`BenchResult`]s.
    pub results: u64,
    /// Device address of one [`QueueBenchTotals`].
    pub totals: u64,
    /// I/Os of this round.
    pub ios: u64,
    /// The buffer: I/O `i` has byte `i * io_bytes`.
    pub buffer: DmaBufferView,
    /// Bytes an I/O; a multiple of the block.
    pub io_bytes: u32,
    /// Number of queue pairs.
    pub queue_count: u32,
    /// I/Os that a lane has in flight, 1 to [`BENCH_BATCH_MAX`]: 1 waits for each.
    pub batch: u32,
    /// `BENCH_CHECK_EDGES`.
    pub flags: u32,
}
const _: () = assert!(size_of::<QueueBenchArgs>() == 88);

/// Arguments of the kernels that only compute, beside which others are measured.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FmaArgs {
    /// Device address of a `u64`, to which each thread adds 1 whose sums are right, and behind it one a
    /// block, where the block stores the number of the SM it ran on.
    pub results: u64,
    /// Rounds of 64 multiply-adds a thread; at least 500.
    pub rounds: u32,
    /// Zero.
    pub reserved: u32,
}
const _: () = assert!(size_of::<FmaArgs>() == 16);

/// Arguments of the kernels that probe a queue pair in the tests.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueueProbeArgs {
    /// The queue pair.
    pub queue: QueuePairView,
    /// The buffer; a lane uses `bytes` of it from `lane * bytes` on.
    pub buffer: DmaBufferView,
    /// Bytes of the namespace; byte `a` has the test pattern's value for `a` and generation 0.
    pub source_bytes: u64,
    /// Device address of one [`ProbeResult`] a lane.
    pub results: u64,
    /// How long to try for a slot, in ns.
    pub patience_ns: u64,
    /// How long to wait for an end, in ns.
    pub timeout_ns: u64,
    /// Requests of each lane, one after the other.
    pub rounds: u32,
    /// Bytes of each request; a multiple of the block.
    pub bytes: u32,
    /// Requests that a lane has in flight at once.
    pub batch: u32,
    /// Different for each launch: decides which offsets are used, and who leaves early.
    pub seed: u32,
}
const _: () = assert!(size_of::<QueueProbeArgs>() == 240);

/// Arguments of the kernels that probe a ring in the tests; each lane has one request at a time, in
/// the record of its own number.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ProbeArgs {
    /// The ring.
    pub ring: RingView,
    /// The source; its byte `a` has the test pattern's value for `a` and generation 0.
    pub source: SourceView,
    /// The buffer; a lane uses `bytes + 64` of it from `lane * (bytes + 64) + shift` on.
    pub buffer: BufferView,
    /// Device address of one [`ProbeResult`] a lane.
    pub results: u64,
    /// How long to try for a slot, in ns.
    pub patience_ns: u64,
    /// How long to wait for an end, in ns.
    pub timeout_ns: u64,
    /// Requests of each lane, one after the other.
    pub rounds: u32,
    /// Bytes of each request.
    pub bytes: u32,
    /// Moves buffers off their alignment.
    pub shift: u32,
    /// Different for each launch: decides which offsets are used, and who leaves early.
    pub seed: u32,
}
const _: () = assert!(size_of::<ProbeArgs>() == 168);

/// What a lane of a probing kernel saw.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ProbeResult {
    /// Requests that ended with success.
    pub succeeded: u32,
    /// Requests that ended otherwise.
    pub failed: u32,
    /// Bytes, of those that ended with success, that are not what they should be; and bytes beside
    /// them that changed.
    pub wrong_bytes: u32,
    /// Calls that found no slot in time.
    pub not_submitted: u32,
    /// Waits that were given up.
    pub pending: u32,
    /// Calls that found their record in flight.
    pub busy: u32,
    /// The last status that was no success, or 0.
    pub status: u32,
    /// 1 once the lane has come to its end.
    pub finished: u32,
}
const _: () = assert!(size_of::<ProbeResult>() == 32);
