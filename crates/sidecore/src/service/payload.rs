//! Payload through the window: all of a step at a stretch, each block asked for while the one before it
//! is stored, and its page a block earlier.
//!
//! What is stored here was claimed, so that nobody else has answered it; its buffer was looked up in
//! the same tables in the same step.

use mem::Region;

use super::outbox::Done;
use super::{Service, ending};
use crate::registry::Tables;
use crate::ring::RingShared;

/// Where a payload is and where it goes.
struct Payload<'a> {
    window: &'a Region,
    window_at: usize,
    source: &'a Region,
    source_at: usize,
    bytes: usize,
}

impl Service {
    /// Stores what this step delivers through the window; the caller fences.
    pub(super) fn store_payloads(&self, ring: &RingShared, tables: &Tables) {
        if !self.done.carries() {
            return;
        }
        let mut payloads =
            self.done.all().iter().filter_map(|done| self.payload(ring, tables, done));
        let mut present = payloads.next();
        let mut next = payloads.next();
        while let Some(payload) = present {
            let later = payloads.next();
            if let Some(later) = &later {
                // Its page will be known to the processor when all of it is asked for.
                later.source.ask_for_line(later.source_at);
            }
            let ahead = next.as_ref().map(|next| (next.source, next.source_at));
            let Payload { window, window_at, source, source_at, bytes } = payload;
            window.copy_from_ahead(window_at, source, source_at, bytes, ahead);
            (present, next) = (next, later);
        }
    }

    #[inline]
    fn payload<'a>(
        &'a self,
        ring: &'a RingShared,
        tables: &'a Tables,
        done: &Done,
    ) -> Option<Payload<'a>> {
        if done.payload == 0 {
            return None;
        }
        // The record is claimed: its job is as it was when it was answered.
        let job = &self.jobs[done.record as usize];
        let window = tables.buffer(job.entry.buffer()).ok()?.memory.window.as_ref()?;
        let window_at = usize::try_from(job.entry.buffer_offset()).ok()?;
        let (source, source_at) = if done.lent {
            // What is lent is answered in the step that took it: its queue is where it was.
            let queue = &self.queues.list[usize::from(job.queue)];
            queue.lends(job.entry.source_offset(), job.entry.length())?
        } else {
            (&ring.staging, ending::staging_at(ring, done.record))
        };
        Some(Payload { window, window_at, source, source_at, bytes: done.payload as usize })
    }
}
