//! Events: marks in a stream that can be asked whether they were reached.
// UNSAFETY: calls the driver.
#![expect(unsafe_code, reason = "calls the driver and keeps its handles")]

use std::ffi::c_uint;
use std::sync::Arc;

use crate::api::{NOT_READY, Opaque, call};
use crate::device::Context;
use crate::error::CudaError;

/// A waiting thread sleeps; no time is taken. Source: `CU_EVENT_BLOCKING_SYNC` and
/// `CU_EVENT_DISABLE_TIMING`.
pub(crate) const SLEEPING: c_uint = 1 | 2;

#[derive(Debug)]
pub(crate) struct Event {
    pub context: Arc<Context>,
    pub handle: Opaque,
}

// SAFETY: events may be used from any thread; the driver locks.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub fn new(context: &Arc<Context>, flags: c_uint) -> Result<Self, CudaError> {
        let _visit = context.visit()?;
        let mut handle = std::ptr::null_mut();
        call!(context.api, event_create(&raw mut handle, flags))?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    /// Puts it behind all that is in the stream.
    pub fn record(&self, stream: Opaque) -> Result<(), CudaError> {
        let _visit = self.context.visit()?;
        call!(self.context.api, event_record(self.handle, stream))
    }

    /// Whether the stream has come to it.
    pub fn is_reached(&self) -> Result<bool, CudaError> {
        let _visit = self.context.visit()?;
        // SAFETY: the event lives as long as `self`, and its context is the thread's.
        let status = unsafe { (self.context.api.event_query)(self.handle) };
        match status {
            NOT_READY => Ok(false),
            status => self.context.api.check("what came before an event", status).map(|()| true),
        }
    }

    /// Sleeps until the stream has come to it.
    pub fn wait(&self) -> Result<(), CudaError> {
        let _visit = self.context.visit()?;
        call!(self.context.api, event_synchronize(self.handle))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_visit) = self.context.visit() {
            let _lost = call!(self.context.api, event_destroy(self.handle));
        }
    }
}
