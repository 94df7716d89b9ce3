//! A stream of one user: copies that go on by themselves, in order, with marks between them.
// UNSAFETY: calls the driver.
#![expect(unsafe_code, reason = "calls the driver and keeps its handles")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mem::Region;

use crate::api::call;
use crate::device::Device;
use crate::error::CudaError;
use crate::event::{Event, SLEEPING};
use crate::streams::{HostRange, Stream};

/// How long a waiting thread looks again and again before it sleeps.
const SPIN: Duration = Duration::from_micros(15);

/// Copies of one user, in order.
#[derive(Debug)]
pub struct CopyQueue {
    stream: Stream,
    /// Events that are not in use.
    spare: Vec<Event>,
    /// Marks not yet known to be reached, oldest first.
    marks: VecDeque<(u64, Event)>,
    last: u64,
    /// Host memory of copies, by the mark that comes after them.
    memory: VecDeque<(u64, Region)>,
}

impl CopyQueue {
    /// A queue with a stream of its own.
    ///
    /// # Errors
    /// `Call`.
    pub fn new(device: &Device) -> Result<Self, CudaError> {
        let stream = Stream::new(&device.context)?;
        Ok(Self {
            stream,
            spare: Vec::new(),
            marks: VecDeque::new(),
            last: 0,
            memory: VecDeque::new(),
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

    fn start(&mut self, to: u64, from: u64, host: HostRange<'_>) -> Result<(), CudaError> {
        let context = Arc::clone(&self.stream.context);
        let _visit = context.visit()?;
        let same = |(mark, kept): &(u64, Region)| {
            *mark == self.last + 1 && kept.address() == host.region.address()
        };
        if !self.memory.back().is_some_and(same) {
            self.memory.push_back((self.last + 1, host.region.clone()));
        }
        call!(context.api, copy(to, from, host.bytes, self.stream.handle))
    }

    /// Puts a mark behind all copies that were started.
    ///
    /// # Errors
    /// `Call`.
    pub fn mark(&mut self) -> Result<u64, CudaError> {
        let event = match self.spare.pop() {
            Some(event) => event,
            None => Event::new(&self.stream.context, SLEEPING)?,
        };
        event.record(self.stream.handle)?;
        self.last += 1;
        self.marks.push_back((self.last, event));
        Ok(self.last)
    }

    /// Whether everything before a mark has ended.
    ///
    /// # Errors
    /// `Call`: a copy failed.
    pub fn is_done(&mut self, mark: u64) -> Result<bool, CudaError> {
        while let Some((first, event)) = self.marks.front() {
            if *first > mark {
                break;
            }
            if !event.is_reached()? {
                return Ok(false);
            }
            self.retire();
        }
        Ok(true)
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
        while begin.elapsed() < SPIN {
            if self.is_done(mark)? {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        if let Some((_, event)) = self.marks.iter().find(|(at, _)| *at == mark) {
            event.wait()?;
        }
        self.is_done(mark).map(drop)
    }

    /// Takes the oldest mark, which was reached, and lets the memory before it go.
    fn retire(&mut self) {
        let Some((mark, event)) = self.marks.pop_front() else { return };
        self.spare.push(event);
        while self.memory.front().is_some_and(|(until, _)| *until <= mark) {
            self.memory.pop_front();
        }
    }
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
        }
    }
}
