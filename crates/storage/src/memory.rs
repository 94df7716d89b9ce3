//! Storage in memory: the bytes of a `mem::Region`.
//!
//! Every request completes within the `poll` that follows it, by a plain copy on the polling thread.
//! Cheap enough that what is measured over it is the layer above. Queues on one storage share the
//! bytes without locks, as the queues of a drive do: who reads what another writes at the same
//! moment sees old or new bytes.

use std::collections::VecDeque;
use std::time::Duration;

use mem::{MemError, MemoryKind, Region};
use spec::Status;

use crate::admit::{admit, status};
use crate::queue::{
    Completion, Counters, Geometry, Op, QueueOptions, Rejected, Request, Storage, StorageError,
    StorageQueue,
};

/// Largest request: what a drive with 4 KiB pages and one PRP list page could take, 2 MiB.
const TRANSFER_BYTES_MAX: u32 = 2 << 20;

/// Storage whose bytes lie in a region.
#[derive(Clone, Debug)]
pub struct MemoryStorage {
    bytes: Region,
    block_bytes: u32,
    read_only: bool,
}

impl MemoryStorage {
    /// Storage of `bytes` zero bytes in new memory, byte addressable.
    ///
    /// # Errors
    /// [`MemError::Map`] where the system has no room.
    pub fn new(bytes: usize) -> Result<Self, MemError> {
        Ok(Self::over(Region::map_anonymous(bytes, MemoryKind::Host)?))
    }

    /// Storage over memory that exists, byte addressable.
    pub fn over(bytes: Region) -> Self {
        Self { bytes, block_bytes: 1, read_only: false }
    }

    /// Changes the block size; a last partial block is cut off.
    ///
    /// # Panics
    /// Where `block_bytes` is not a power of two.
    #[must_use]
    pub fn with_block_bytes(mut self, block_bytes: u32) -> Self {
        assert!(block_bytes.is_power_of_two(), "block size {block_bytes} is not a power of two");
        self.block_bytes = block_bytes;
        self
    }

    /// Refuses writes from now on.
    #[must_use]
    pub fn with_read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// The memory itself: what is written here is read through the queues.
    pub fn region(&self) -> &Region {
        &self.bytes
    }
}

impl Storage for MemoryStorage {
    fn geometry(&self) -> Geometry {
        let bytes = self.bytes.len_bytes() as u64;
        Geometry {
            bytes: bytes - bytes % u64::from(self.block_bytes),
            block_bytes: self.block_bytes,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            read_only: self.read_only,
        }
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn StorageQueue>, StorageError> {
        if options.depth == 0 {
            return Err(StorageError::Misuse("a queue of depth 0 can take no request".into()));
        }
        let depth = options.depth as usize;
        Ok(Box::new(MemoryQueue {
            bytes: self.bytes.clone(),
            geometry: self.geometry(),
            depth,
            pending: VecDeque::with_capacity(depth),
            counters: Counters::default(),
        }))
    }

    fn explain(&self) -> String {
        format!(
            "memory: {} bytes of host memory, copied by the polling CPU{}",
            self.bytes.len_bytes(),
            if self.read_only { ", read only" } else { "" }
        )
    }
}

struct MemoryQueue {
    bytes: Region,
    geometry: Geometry,
    depth: usize,
    /// Accepted requests, each with the bytes that it will move or the status that ends it.
    pending: VecDeque<(Request, Result<u32, Status>)>,
    counters: Counters,
}

impl MemoryQueue {
    fn execute(&mut self, request: &Request, bytes: u32) -> Completion {
        let len = bytes as usize;
        // A read at or beyond the end moves nothing, so its offset need not fit.
        let at = if len == 0 { 0 } else { usize::try_from(request.offset).expect("admitted") };
        match request.op {
            Op::Read => {
                request.memory.copy_from(request.memory_offset, &self.bytes, at, len);
                self.counters.bytes_read += u64::from(bytes);
            }
            Op::Write => {
                self.bytes.copy_from(at, &request.memory, request.memory_offset, len);
                self.counters.bytes_written += u64::from(bytes);
            }
            Op::WriteZeroes => self.bytes.fill(at, len, 0),
            Op::Flush => {}
        }
        self.counters.ios_at_device += 1;
        Completion { token: request.token, status: Status::SUCCESS, bytes, errno: 0 }
    }
}

fn ended(request: &Request, status: Status) -> Completion {
    Completion { token: request.token, status, bytes: 0, errno: 0 }
}

impl StorageQueue for MemoryQueue {
    #[inline]
    fn try_submit(&mut self, request: Request) -> Result<(), Rejected> {
        if self.pending.len() >= self.depth {
            return Err(Rejected::QueueFull(request));
        }
        match admit(&self.geometry, &request) {
            Ok(bytes) => self.pending.push_back((request, Ok(bytes))),
            Err(status) => return Err(Rejected::Invalid(request, status)),
        }
        Ok(())
    }

    #[inline]
    fn poll(&mut self, completions: &mut Vec<Completion>) {
        while let Some((request, outcome)) = self.pending.pop_front() {
            completions.push(match outcome {
                Ok(bytes) => self.execute(&request, bytes),
                Err(status) => ended(&request, status),
            });
            self.counters.completions_polled += 1;
        }
    }

    fn wait_for_completion(&mut self, _limit: Duration) {}

    fn cancel(&mut self, token: u64) {
        // What has not been polled has not begun.
        if let Some((_, outcome)) = self.pending.iter_mut().find(|(r, _)| r.token == token) {
            *outcome = Err(status::ABORT_REQUESTED);
        }
    }

    fn quiesce(&mut self, completions: &mut Vec<Completion>) {
        let aborted = self.pending.drain(..).map(|(r, _)| ended(&r, status::ABORT_REQUESTED));
        completions.extend(aborted);
    }

    fn in_flight(&self) -> u32 {
        u32::try_from(self.pending.len()).expect("at most the depth")
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
