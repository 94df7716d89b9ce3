//! A stream of one user: copies that go on by themselves, in order, with marks between them.
//!
//! A mark is a number that the stream writes into a word of pinned host memory, so that asking whether it
//! was reached costs a load and no call. Where streams cannot write words, marks are events.
// UNSAFETY: calls the driver.
#![expect(unsafe_code, reason = "calls the driver and keeps its handles")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mem::Region;

use crate::api::{CopyAttributes, NOT_READY, call};
use crate::device::Device;
use crate::error::CudaError;
use crate::event::{Event, SLEEPING};
use crate::memory::HostBlock;
use crate::streams::{HostRange, Stream};

/// How long a waiting thread looks again and again before it sleeps.
const SPIN: Duration = Duration::from_micros(10);
/// How long it sleeps between two looks then: below what a large copy takes.
const NAP: Duration = Duration::from_micros(20);
/// `CUDA_ERROR_NOT_SUPPORTED`: the device's streams do not write words.
const NOT_SUPPORTED: i32 = 801;

/// Copies of one user, in order.
#[derive(Debug)]
pub struct CopyQueue {
    stream: Stream,
    /// The word that marks are written to; `None` where marks are events.
    word: Option<Region>,
    /// Events that are not in use.
    spare: Vec<Event>,
    /// Events not yet known to be reached, oldest first.
    events: VecDeque<(u64, Event)>,
    last: u64,
    /// The last mark that is known to be reached.
    reached: u64,
    /// Host memory of copies, by the mark that comes after them.
    memory: VecDeque<(u64, Region)>,
    batch: Batch,
}

/// The lists of the last batch, kept for their memory.
#[derive(Debug, Default)]
struct Batch {
    to: Vec<u64>,
    from: Vec<u64>,
    bytes: Vec<usize>,
}

impl Batch {
    fn clear(&mut self) {
        self.to.clear();
        self.from.clear();
        self.bytes.clear();
    }
}

impl CopyQueue {
    /// A queue with a stream of its own.
    ///
    /// # Errors
    /// `Call`.
    pub fn new(device: &Device) -> Result<Self, CudaError> {
        let stream = Stream::new(&device.context)?;
        // Without pinned memory for it, events will do.
        let word = HostBlock::allocate(device, 64).ok();
        Ok(Self {
            stream,
            word,
            spare: Vec::new(),
            events: VecDeque::new(),
            last: 0,
            reached: 0,
            memory: VecDeque::new(),
            batch: Batch::default(),
        })
    }

    /// Starts a copy to a device address, which is taken on trust, as one in a kernel's arguments is. The
    /// host memory is kept until a later mark is reached.
    ///
    /// # Errors
    /// `Misuse` where the range is not inside the region, `Call`.
    pub fn start_to_device(&mut self, to: u64, from: HostRange<'_>) -> Result<(), CudaError> {
        let address = from.address()?;
        self.start(to, address, from)
    }

    /// Starts a copy from a device address.
    ///
    /// # Errors
    /// As [`CopyQueue::start_to_device`].
    pub fn start_to_host(&mut self, to: HostRange<'_>, from: u64) -> Result<(), CudaError> {
        let address = to.address()?;
        self.start(address, from, to)
    }

    /// Starts several copies to device addresses, in any order among themselves: by one call where the
    /// driver has one for that. Where this fails, none was started.
    ///
    /// # Errors
    /// As [`CopyQueue::start_to_device`]; `Unavailable` where the driver has no such call.
    pub fn start_batch(&mut self, copies: &[(u64, HostRange<'_>)]) -> Result<(), CudaError> {
        let in_order = CopyAttributes { source_order: 1, hints: [0; 4], flags: 0 };
        let context = Arc::clone(&self.stream.context);
        let batch = context.api.copy_batch.ok_or_else(|| {
            let remedy = "use a driver of CUDA 13 or newer";
            CudaError::unavailable("copies in batches", "the driver has none", remedy)
        })?;
        self.batch.clear();
        for (to, from) in copies {
            self.batch.to.push(*to);
            self.batch.from.push(from.address()?);
            self.batch.bytes.push(from.bytes);
        }
        let _visit = context.visit()?;
        for (_, from) in copies {
            self.keep(from.region);
        }
        let (first, handle) = (0, self.stream.handle);
        let Batch { to, from, bytes } = &self.batch;
        let (to, from, bytes) = (to.as_ptr(), from.as_ptr(), bytes.as_ptr());
        let (attributes, first) = (&raw const in_order, &raw const first);
        // SAFETY: three lists of the same length, and one set of attributes from the first copy on; the
        // driver reads them during the call. The host ranges were checked and are kept.
        let status = unsafe { batch(to, from, bytes, copies.len(), attributes, first, 1, handle) };
        context.api.check("cuMemcpyBatchAsync", status)
    }

    /// Keeps host memory until a later mark is reached.
    fn keep(&mut self, region: &Region) {
        let next = self.last + 1;
        let mut kept = self.memory.iter().rev().take_while(|(mark, _)| *mark == next);
        if !kept.any(|(_, kept)| kept.address() == region.address()) {
            self.memory.push_back((next, region.clone()));
        }
    }

    fn start(&mut self, to: u64, from: u64, host: HostRange<'_>) -> Result<(), CudaError> {
        let context = Arc::clone(&self.stream.context);
        let _visit = context.visit()?;
        self.keep(host.region);
        call!(context.api, copy(to, from, host.bytes, self.stream.handle))
    }

    /// Puts a mark behind all copies that were started.
    ///
    /// # Errors
    /// `Call`.
    pub fn mark(&mut self) -> Result<u64, CudaError> {
        if let Some(word) = &self.word {
            let context = &self.stream.context;
            let _visit = context.visit()?;
            let (address, value) = (word.address(), low_half(self.last + 1));
            let stream = self.stream.handle;
            match call!(context.api, stream_write_value(stream, address, value, 0)) {
                Ok(()) => {
                    self.last += 1;
                    return Ok(self.last);
                }
                Err(CudaError::Call { code: NOT_SUPPORTED, .. }) if self.last == 0 => {}
                Err(error) => return Err(error),
            }
        }
        self.word = None;
        let event = match self.spare.pop() {
            Some(event) => event,
            None => Event::new(&self.stream.context, SLEEPING)?,
        };
        event.record(self.stream.handle)?;
        self.last += 1;
        self.events.push_back((self.last, event));
        Ok(self.last)
    }

    /// Whether everything before a mark has ended.
    ///
    /// # Errors
    /// `Call`: a copy failed.
    pub fn is_done(&mut self, mark: u64) -> Result<bool, CudaError> {
        if mark <= self.reached {
            return Ok(true);
        }
        if let Some(word) = &self.word {
            // Pairs with the stream's own write, which follows the copies before it.
            let value = word.u32_at(0).load(Ordering::Acquire);
            // Marks in flight are few, so the low half says which one it was.
            let behind = low_half(self.last).wrapping_sub(value);
            self.reached = self.last - u64::from(behind);
        } else {
            while let Some((first, event)) = self.events.front() {
                if !event.is_reached()? {
                    break;
                }
                self.reached = *first;
                self.spare.extend(self.events.pop_front().map(|(_, event)| event));
            }
        }
        while self.memory.front().is_some_and(|(until, _)| *until <= self.reached) {
            self.memory.pop_front();
        }
        Ok(mark <= self.reached)
    }

    /// Handle of its stream, which others may put gates into.
    pub fn stream(&self) -> u64 {
        self.stream.handle.expose_provenance() as u64
    }

    /// Waits until everything before a mark has ended.
    ///
    /// # Errors
    /// As [`CopyQueue::is_done`].
    pub fn wait(&mut self, mark: u64) -> Result<(), CudaError> {
        let begin = Instant::now();
        while !self.is_done(mark)? {
            if begin.elapsed() < SPIN {
                std::hint::spin_loop();
            } else if let Some((_, event)) = self.events.iter().find(|(at, _)| *at == mark) {
                event.wait()?;
            } else {
                std::thread::sleep(NAP);
                self.check()?;
            }
        }
        Ok(())
    }

    /// Whether something in the stream has failed, so that its word will never be written.
    fn check(&self) -> Result<(), CudaError> {
        let context = &self.stream.context;
        let _visit = context.visit()?;
        // SAFETY: the stream lives as long as `self`, and its context is the thread's.
        let status = unsafe { (context.api.stream_query)(self.stream.handle) };
        if status == NOT_READY {
            return Ok(());
        }
        context.api.check("copies", status)
    }
}

/// The half of a mark that fits into a word.
fn low_half(mark: u64) -> u32 {
    u32::try_from(mark & u64::from(u32::MAX)).expect("masked")
}

impl Drop for CopyQueue {
    fn drop(&mut self) {
        let context = Arc::clone(&self.stream.context);
        let ended = context
            .visit()
            .is_ok_and(|_visit| call!(context.api, stream_synchronize(self.stream.handle)).is_ok());
        if !ended {
            // Whether the device still touches the memory is not known: it stays for good.
            std::mem::forget(std::mem::take(&mut self.memory));
            std::mem::forget(self.word.take());
        }
    }
}
