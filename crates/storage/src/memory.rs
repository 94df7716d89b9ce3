//! Storage in memory: the bytes of a `mem::Region`.
//!
//! Every request is carried out by a copy on the submitting thread, as it is submitted or (what goes past
//! the caches) by the next `poll`, which returns its completion.
//! Cheap enough that what is measured over it is the layer above. Queues on one storage share the
//! bytes without locks, as the queues of a drive do: who reads what another writes at the same
//! moment sees old or new bytes.

use std::time::Duration;

use mem::{MemError, MemoryKind, Region};
use spec::Status;

use crate::admit::admit;
use crate::queue::{
    Completion, Counters, Geometry, Lent, Op, QueueOptions, Rejected, Request, Storage,
    StorageError, StorageQueue,
};

/// Writes of so many bytes go past the caches, as reads into windows do: at random over a large memory, what
/// is written is read late, and reading each line before it is overwritten costs half as much again.
const STREAM_BYTES_MIN: usize = 4096;
/// Largest request: what a drive with 4 KiB pages and one PRP list page could take, 2 MiB.
const TRANSFER_BYTES_MAX: u32 = 2 << 20;

/// Storage whose bytes lie in a region.
#[derive(Clone, Debug)]
pub struct MemoryStorage {
    bytes: Region,
    block_bytes: u32,
    read_only: bool,
    lending: bool,
    reaching: bool,
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
        Self { bytes, block_bytes: 1, read_only: false, lending: false, reaching: false }
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

    /// Lets reads be served out of the memory itself, see [`Storage::lent`].
    #[must_use]
    pub fn with_lending(mut self) -> Self {
        self.lending = true;
        self
    }

    /// Moves payload of reads into windows too, as a drive does, see [`StorageQueue::reach`].
    #[must_use]
    pub fn with_reach(mut self) -> Self {
        self.reaching = true;
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
        Ok(Box::new(MemoryQueue {
            bytes: self.bytes.clone(),
            geometry: self.geometry(),
            ended: vec![NOTHING; options.depth as usize].into_boxed_slice(),
            ended_count: 0,
            held: None,
            reaching: self.reaching,
            counters: Counters::default(),
        }))
    }

    fn lent(&self) -> Option<Region> {
        self.lending.then(|| self.bytes.clone())
    }

    fn explain(&self) -> String {
        format!(
            "memory: {} bytes of host memory, copied by the submitting CPU{}{}",
            self.bytes.len_bytes(),
            if self.lending { ", reads by the window out of it directly" } else { "" },
            if self.read_only { ", read only" } else { "" }
        )
    }
}

/// The place of an admitted request's first byte.
fn at(offset: u64) -> usize {
    usize::try_from(offset).expect("admitted")
}

const NOTHING: Completion = Completion { token: 0, status: Status::SUCCESS, bytes: 0, errno: 0 };

struct MemoryQueue {
    bytes: Region,
    geometry: Geometry,
    /// What the next poll returns, and behind that room up to the depth.
    ended: Box<[Completion]>,
    ended_count: usize,
    /// A long copy past the caches that is carried out when the next one is known, which is asked for
    /// meanwhile, or by the next poll.
    held: Option<Request>,
    reaching: bool,
    counters: Counters,
}

impl MemoryQueue {
    /// Takes a request with bytes, for which there is room.
    #[inline(never)]
    fn transfer(&mut self, request: &Lent<'_>) -> Result<(), Rejected> {
        let bytes = admit(&self.geometry, request).map_err(Rejected::Invalid)?;
        let past_caches = match request.op {
            Op::Read => request.memory.kind() == MemoryKind::Window,
            Op::Write => true,
            Op::Flush | Op::WriteZeroes => false,
        };
        if past_caches && bytes as usize >= STREAM_BYTES_MIN {
            self.hold(request, bytes);
        } else if bytes > 0 {
            self.carry_out_held();
            self.execute(request, bytes);
        }
        self.ended[self.ended_count] = Completion { token: request.token, bytes, ..NOTHING };
        self.ended_count += 1;
        Ok(())
    }

    /// Keeps an admitted request until the next one; the one before is carried out.
    fn hold(&mut self, request: &Lent<'_>, bytes: u32) {
        let mut memory = None;
        if let Some(before) = self.held.take() {
            let ahead = match request.op {
                Op::Read => (&self.bytes, at(request.offset)),
                _ => (request.memory, request.memory_offset),
            };
            self.stream(&before, Some(ahead));
            self.count(&before);
            // Mostly the same memory again: no share to be given back and taken anew.
            memory = before.memory.is_same(request.memory).then_some(before.memory);
        }
        let memory = memory.unwrap_or_else(|| request.memory.clone());
        self.held = Some(Request { bytes, ..request.with_memory(memory) });
    }

    fn carry_out_held(&mut self) {
        if let Some(request) = self.held.take() {
            self.stream(&request, None);
            self.count(&request);
            // Whoever hears of it finds it.
            mem::fence_payload();
        }
    }

    /// Carries out a request that was kept, past the caches.
    fn stream(&self, request: &Request, ahead: Option<(&Region, usize)>) {
        let (len, here) = (request.bytes as usize, at(request.offset));
        let (memory, there) = (&request.memory, request.memory_offset);
        match request.op {
            Op::Read => memory.copy_from_ahead(there, &self.bytes, here, len, ahead),
            _ => self.bytes.stream_from(here, memory, there, len, ahead),
        }
    }

    fn count(&mut self, request: &Request) {
        match request.op {
            Op::Read => self.counters.bytes_read += u64::from(request.bytes),
            _ => self.counters.bytes_written += u64::from(request.bytes),
        }
    }

    /// Moves the bytes of an admitted request.
    fn execute(&mut self, request: &Lent<'_>, bytes: u32) {
        let len = bytes as usize;
        let at = at(request.offset);
        match request.op {
            Op::Read => {
                request.memory.copy_from(request.memory_offset, &self.bytes, at, len);
                self.counters.bytes_read += u64::from(bytes);
            }
            Op::Write => {
                self.bytes.copy_from(at, request.memory, request.memory_offset, len);
                self.counters.bytes_written += u64::from(bytes);
            }
            Op::WriteZeroes => self.bytes.fill(at, len, 0),
            Op::Flush => {}
        }
    }
}

impl StorageQueue for MemoryQueue {
    #[inline]
    fn try_submit(&mut self, request: Lent<'_>) -> Result<(), Rejected> {
        let Some(end) = self.ended.get_mut(self.ended_count) else {
            return Err(Rejected::QueueFull);
        };
        if request.op != Op::Flush {
            return self.transfer(&request);
        }
        *end = Completion { token: request.token, ..NOTHING };
        self.ended_count += 1;
        Ok(())
    }

    #[inline]
    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.carry_out_held();
        completions.extend_from_slice(&self.ended[..self.ended_count]);
        self.counters.ios_at_device += self.ended_count as u64;
        self.counters.completions_polled += self.ended_count as u64;
        self.ended_count = 0;
    }

    fn wait_for_completion(&mut self, _limit: Duration) {}

    /// Comes too late for every request: it has been carried out.
    fn cancel(&mut self, _token: u64) {}

    fn quiesce(&mut self, completions: &mut Vec<Completion>) {
        self.poll(completions);
    }

    fn reach(&mut self, _window: &Region) -> bool {
        self.reaching
    }

    fn in_flight(&self) -> u32 {
        u32::try_from(self.ended_count).expect("at most the depth")
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
