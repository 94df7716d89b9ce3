//! The two traits that every kind of storage implements, and the words they share.

use std::time::Duration;

use mem::Region;
use spec::Status;

/// What can be asked of storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Storage to memory.
    Read,
    /// Memory to storage.
    Write,
    /// Make completed writes durable. Offset, length and memory are ignored.
    Flush,
    /// Make a range read as zeros. Memory is ignored.
    WriteZeroes,
}

/// One request. `memory_offset + bytes` must lie inside `memory`, which is owned, or lent as a
/// [`Lent`] request does.
#[derive(Clone, Copy, Debug)]
pub struct Request<Memory = Region> {
    /// Returned unchanged in the [`Completion`]; unique among those in flight on one queue.
    pub token: u64,
    /// What to do.
    pub op: Op,
    /// Byte offset in the storage.
    pub offset: u64,
    /// Bytes to move.
    pub bytes: u32,
    /// Memory to fill or empty.
    pub memory: Memory,
    /// First byte in `memory`.
    pub memory_offset: usize,
}

/// A request as a queue takes it. Who must reach its memory after `try_submit` keeps it.
pub type Lent<'a> = Request<&'a Region>;

impl<Memory> Request<Memory> {
    /// The same with other memory.
    #[inline]
    pub fn with_memory<Other>(self, memory: Other) -> Request<Other> {
        let Self { token, op, offset, bytes, memory_offset, .. } = self;
        Request { token, op, offset, bytes, memory, memory_offset }
    }
}

impl Request {
    /// The same, lent.
    #[inline]
    pub fn lend(&self) -> Lent<'_> {
        let Self { token, op, offset, bytes, memory_offset, .. } = *self;
        Request { token, op, offset, bytes, memory: &self.memory, memory_offset }
    }
}

impl Lent<'_> {
    /// The same, with a share in its memory.
    #[inline]
    pub fn keep(self) -> Request {
        let memory = self.memory.clone();
        self.with_memory(memory)
    }
}

/// The end of one request. Every accepted request ends with exactly one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Token of the request.
    pub token: u64,
    /// Status; a drive's own where a drive answered.
    pub status: Status,
    /// Bytes moved. Fewer than asked for with a success status only where the storage ended.
    pub bytes: u32,
    /// The errno where the operating system refused, else 0.
    pub errno: i32,
}

/// Size and rules of a storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Length in bytes.
    pub bytes: u64,
    /// Offsets and lengths must be multiples of this; 1 where any byte can be addressed.
    pub block_bytes: u32,
    /// Largest single request, in bytes.
    pub transfer_bytes_max: u32,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// Who did how much at the lowest layer that sidecore controls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Requests completed by that layer: controller commands, SQEs, preads.
    pub ios_at_device: u64,
    /// System calls made.
    pub syscalls: u64,
    /// Payload bytes read.
    pub bytes_read: u64,
    /// Payload bytes written.
    pub bytes_written: u64,
    /// Doorbells rung by the CPU.
    pub doorbells: u64,
    /// Completions found by a polling CPU.
    pub completions_polled: u64,
}

/// How a queue is opened.
#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// Most requests in flight.
    pub depth: u32,
    /// Memory that will often be used: registered with the kernel where that helps.
    pub registered: Vec<Region>,
}

/// Why a request was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rejected {
    /// The queue is full: poll, then try again.
    QueueFull,
    /// The request can never succeed here; the status says why.
    Invalid(Status),
}

/// What can go wrong in opening storage or a queue on it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The operating system refused. Remedy: see the source error and the named target.
    #[error("{operation} {target}: {source}")]
    Os {
        /// What was tried, as a verb.
        operation: &'static str,
        /// What it was tried on.
        target: String,
        /// The system's own error.
        source: std::io::Error,
    },
    /// This machine or this file cannot do what was asked. Remedy: as the text says.
    #[error("{what}: {why}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// Why it cannot be had, and what to do.
        why: String,
    },
    /// The caller broke the contract. Remedy: fix the call.
    #[error("{0}")]
    Misuse(String),
}

/// Something with bytes or blocks.
pub trait Storage: Send + Sync {
    /// Size and rules.
    fn geometry(&self) -> Geometry;
    /// Opens a queue for the calling thread.
    ///
    /// # Errors
    /// `Os` where the system refuses, `Unsupported` where `options` ask for too much.
    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn StorageQueue>, StorageError>;
    /// The bytes themselves, where reads may be served out of them without asking a queue.
    fn lent(&self) -> Option<Region> {
        None
    }
    /// One line for people: what this is and how it will be read and written, and why so.
    fn explain(&self) -> String;
}

/// One thread's way into a [`Storage`].
pub trait StorageQueue: Send {
    /// Takes a request, or says why not. May only buffer it until the next `poll`.
    ///
    /// # Errors
    /// [`Rejected`]; then nothing has happened.
    fn try_submit(&mut self, request: Lent<'_>) -> Result<(), Rejected>;
    /// Starts what is buffered and appends what has ended. Never blocks.
    fn poll(&mut self, completions: &mut Vec<Completion>);
    /// Waits until at least one completion is there to `poll`, or `limit` has passed.
    fn wait_for_completion(&mut self, limit: Duration);
    /// Asks for an early end of a request in flight; its completion still arrives by `poll`.
    fn cancel(&mut self, token: u64);
    /// Ends everything in flight. After return nothing of it touches memory or storage any more,
    /// and every request has its completion in `completions`. May block for a bounded time.
    fn quiesce(&mut self, completions: &mut Vec<Completion>);
    /// Whether reads may name this window to a device's memory, the storage moving their payload there
    /// itself. It may keep a share in it until [`StorageQueue::forget`].
    fn reach(&mut self, _window: &Region) -> bool {
        false
    }
    /// Ends what `reach` began. Nothing in flight names it.
    fn forget(&mut self, _window: &Region) {}
    /// Requests accepted and not yet returned by `poll`.
    fn in_flight(&self) -> u32;
    /// What this queue has done since it was opened.
    fn counters(&self) -> Counters;
}
