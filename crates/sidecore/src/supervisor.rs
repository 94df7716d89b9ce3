//! The supervisor: answers for the requests of a side core that panicked or stalled.
//!
//! It owns the end of every request in flight whose side core is gone: each is claimed in the
//! in-flight table and ends as `SIDE_CORE_LOST`, and the ring goes on in a new epoch with a new
//! side core, from the ticket that the lost one had reached.
//!
//! It also frees the memory of rings and buffers that a side core has let go while others are attached:
//! freeing may wait for a kernel that waits for the side core.
//!
//! Where it can take the lost core's storage queues (always after a panic), it quiesces them first,
//! so that nothing of the lost requests touches memory any more. Where it cannot, since the core
//! hangs inside a call, the records in flight stay poisoned until that call returns or the host
//! quiesces the ring, and so do buffers that a drive may store to itself, which the answer tells; a
//! request that the core has claimed already is ended by that core.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};

use abi::ring::{CompletionRecord, DETAIL_UNSETTLED};
use abi::status::SIDE_CORE_LOST;
use mem::fence_payload;

use crate::engine::Inner;
use crate::ring::{FETCHED_AT, RingShared};
use crate::service::Service;
use crate::side_core::{CoreShared, SideCore};
use crate::slots::{Slot, SlotState};

/// What the supervisor knows of one side core.
struct Watched {
    core: Arc<CoreShared>,
    beat: u64,
    since_ns: Option<u64>,
}

/// Watches side cores. Exactly one caller steps it.
pub struct Supervisor {
    inner: Arc<Inner>,
    watched: Vec<Watched>,
    replacements: VecDeque<SideCore>,
    stall_ns: u64,
}

impl Supervisor {
    pub(crate) fn new(inner: Arc<Inner>, stall_ns: u64) -> Self {
        let watched = inner.cores().into_iter().map(Watched::new).collect();
        Self { inner, watched, replacements: VecDeque::new(), stall_ns }
    }

    /// Looks at each side core once; how many it gave up and replaced.
    pub fn step(&mut self, now_ns: u64) -> u32 {
        let mut replaced = 0;
        for index in 0..self.watched.len() {
            drop(self.watched[index].core.take_left());
            let gone = self.watched[index].is_gone(now_ns, self.stall_ns);
            if gone {
                self.replace(index);
                replaced += 1;
            }
        }
        replaced
    }

    /// The next side core that stands in for a lost one; somebody must step it.
    pub fn take_replacement(&mut self) -> Option<SideCore> {
        self.replacements.pop_front()
    }

    fn replace(&mut self, index: usize) {
        let lost = Arc::clone(&self.watched[index].core);
        lost.deposed.store(true, Ordering::Release);
        let rings = lost.rings();
        let mut quiet = true;
        for ring in &rings {
            quiet &= take_over(ring);
        }
        if quiet && lost.lost.load(Ordering::Acquire) {
            lost.set_over();
        }
        let core = CoreShared::new(lost.index, rings);
        self.inner.replace_core(&lost, &core);
        self.watched[index] = Watched::new(Arc::clone(&core));
        self.replacements.push_back(self.inner.side_core(core));
    }
}

impl Watched {
    fn new(core: Arc<CoreShared>) -> Self {
        Self { core, beat: 0, since_ns: None }
    }

    /// Whether the side core panicked, or has not moved for as long as is allowed.
    fn is_gone(&mut self, now_ns: u64, stall_ns: u64) -> bool {
        if self.core.lost.load(Ordering::Acquire) {
            return true;
        }
        let beat = self.core.beat.load(Ordering::Acquire);
        let excused = self.core.is_parked() || self.core.ring_count() == 0;
        match self.since_ns {
            Some(since) if beat == self.beat && !excused => {
                now_ns.saturating_sub(since) >= stall_ns
            }
            _ => {
                self.beat = beat;
                self.since_ns = Some(now_ns);
                false
            }
        }
    }
}

/// Ends the lost core's requests of one ring and prepares the ring for its successor; whether nothing of
/// them runs any more.
fn take_over(ring: &Arc<RingShared>) -> bool {
    // From here on the lost core can neither begin nor claim a request.
    let epoch = ring.epoch.fetch_add(1, Ordering::AcqRel) + 1;
    let service = ring.service();
    let held = match service.try_lock() {
        Ok(held) => Some(held),
        Err(TryLockError::Poisoned(held)) => Some(held.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    };
    let mut quiet = false;
    if let Some(mut held) = held {
        // Storage that made the side core panic may panic again: then its records stay poisoned.
        let ending = AssertUnwindSafe(|| {
            held.publish_counts(ring);
            held.abandon();
        });
        quiet = catch_unwind(ending).is_ok();
    }
    let lost = end_requests(ring, epoch, quiet);
    ring.lost.fetch_add(lost, Ordering::Relaxed);
    ring.restarts.fetch_add(1, Ordering::Relaxed);
    let head = ring.head.load(Ordering::Acquire);
    ring.window.u64_at(FETCHED_AT).store(head, Ordering::Relaxed);
    // The completion words before the new epoch.
    fence_payload();
    ring.store_state(ring.mode());
    fence_payload();
    ring.in_flight.store(0, Ordering::Release);
    ring.replace_service(Service::resume(ring, epoch));
    quiet
}

/// Answers every request in flight; how many. `quiet`: nothing touches their staging any more.
fn end_requests(ring: &RingShared, epoch: u32, quiet: bool) -> u64 {
    let mut lost = 0;
    let detail = if ring.is_direct() && !quiet { DETAIL_UNSETTLED } else { 0 };
    for record in 0..ring.config.records {
        let found = ring.slots.load(record);
        let answer = match found.state {
            SlotState::InFlight => true,
            // Claimed and not answered, by a core that does not run any more.
            SlotState::Claimed => quiet,
            SlotState::Free | SlotState::Poisoned => false,
        };
        let state = match found.state {
            SlotState::InFlight | SlotState::Poisoned if !quiet => SlotState::Poisoned,
            SlotState::Claimed if !quiet => continue,
            _ => SlotState::Free,
        };
        // Where it fails, the lost core has claimed the request just now and ends it itself.
        let kept_epoch = if state == SlotState::Poisoned { found.epoch } else { epoch };
        let changed = ring.slots.change(record, found, Slot { state, epoch: kept_epoch, ..found });
        if changed && answer {
            ring.store_record(record, CompletionRecord::pack(found.turn, SIDE_CORE_LOST, detail));
            lost += 1;
        }
    }
    lost
}
