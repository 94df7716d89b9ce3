//! The copy engine: a few streams of their own, made once, so that copying allocates nothing.
//!
//! A copy takes whichever stream nobody uses, else waits for one. The streams do not wait for the
//! NULL stream, nor it for them: a kernel that waits for a side core never holds up a copy that the side
//! core needs for it.
// UNSAFETY: calls the driver.
#![expect(unsafe_code, reason = "calls the driver and keeps its handles")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mem::Region;

use crate::api::{Opaque, call};
use crate::device::{Context, Device};
use crate::error::CudaError;

/// Does not wait for the NULL stream. Source: `CU_STREAM_NON_BLOCKING`.
pub(crate) const NON_BLOCKING: u32 = 1;

/// One stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub context: Arc<Context>,
    pub handle: Opaque,
}

// SAFETY: streams may be used from any thread; the driver locks.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        let _visit = context.visit()?;
        let mut handle = std::ptr::null_mut();
        call!(context.api, stream_create(&raw mut handle, NON_BLOCKING))?;
        Ok(Self { context: Arc::clone(context), handle })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(_visit) = self.context.visit() {
            let _lost = call!(self.context.api, stream_destroy(self.handle));
        }
    }
}

/// Streams that copies and fills go through.
#[derive(Debug)]
pub struct Streams {
    context: Arc<Context>,
    streams: Vec<Mutex<Stream>>,
    next: AtomicUsize,
}

impl Streams {
    /// Makes `count` streams, at least one.
    ///
    /// # Errors
    /// `Call`.
    pub fn new(device: &Device, count: usize) -> Result<Self, CudaError> {
        let context = Arc::clone(&device.context);
        let streams = (0..count.max(1)).map(|_| Stream::new(&context).map(Mutex::new));
        let streams = streams.collect::<Result<_, _>>()?;
        Ok(Self { context, streams, next: AtomicUsize::new(0) })
    }

    /// A stream that is free, else the next one once it is.
    fn take(&self) -> MutexGuard<'_, Stream> {
        for stream in &self.streams {
            if let Ok(stream) = stream.try_lock() {
                return stream;
            }
        }
        let at = self.next.fetch_add(1, Ordering::Relaxed) % self.streams.len();
        self.streams[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies from pinned host memory to a device address, and waits for it.
    ///
    /// The device address is taken on trust, as one in a kernel's arguments is.
    ///
    /// # Errors
    /// `Misuse` where the range is not inside the region, `Call`.
    pub fn copy_to_device(&self, to: u64, from: HostRange<'_>) -> Result<(), CudaError> {
        self.copy(to, from.address()?, from.bytes)
    }

    /// Copies from a device address to pinned host memory, and waits for it.
    ///
    /// # Errors
    /// As [`Streams::copy_to_device`].
    pub fn copy_to_host(&self, to: HostRange<'_>, from: u64) -> Result<(), CudaError> {
        self.copy(to.address()?, from, to.bytes)
    }

    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), CudaError> {
        self.context.enter()?;
        let stream = self.take();
        call!(self.context.api, copy(to, from, bytes, stream.handle))?;
        call!(self.context.api, stream_synchronize(stream.handle))
    }

    /// Sets bytes at a device address, and waits for it.
    ///
    /// # Errors
    /// `Call`.
    pub fn fill(&self, at: u64, bytes: usize, value: u8) -> Result<(), CudaError> {
        self.context.enter()?;
        let stream = self.take();
        call!(self.context.api, fill(at, value, bytes, stream.handle))?;
        call!(self.context.api, stream_synchronize(stream.handle))
    }
}

/// A range of pinned host memory.
#[derive(Clone, Copy, Debug)]
pub struct HostRange<'a> {
    /// The memory.
    pub region: &'a Region,
    /// First byte.
    pub offset: usize,
    /// How many.
    pub bytes: usize,
}

impl HostRange<'_> {
    pub(crate) fn address(&self) -> Result<u64, CudaError> {
        let checked = self.region.check(self.offset, self.bytes);
        checked.map_err(|e| CudaError::Misuse(format!("host side of a copy: {e}")))?;
        Ok(self.region.address() + self.offset as u64)
    }
}
