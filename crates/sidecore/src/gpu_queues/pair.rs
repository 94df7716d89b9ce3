//! One queue pair as agents, recovery and reports share it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abi::queue::QueuePairView;
use driver::{Driver, LentQueue};

use super::copoll::FlipLog;
use super::counters::{QueueCounters, SharedQueueCounters, report};
use super::drain::{Drain, DrainParts};
use super::memory::{Drive, PairMemory, SetMemory};
use crate::error::EngineError;

/// Where a pair stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PairState {
    /// It has been taken down.
    Closed,
    /// Its controller is gone, or its lanes did not leave it.
    Failed,
    /// It is being made, for the first time or again.
    Opening,
    /// Commands are served.
    Serving,
}

impl PairState {
    const fn number(self) -> u32 {
        self as u32
    }

    const fn of(number: u32) -> Self {
        match number {
            0 => Self::Closed,
            1 => Self::Failed,
            2 => Self::Opening,
            _ => Self::Serving,
        }
    }
}

pub(super) struct Pair {
    pub memory: Arc<PairMemory>,
    pub view: QueuePairView,
    drain: Mutex<Drain>,
    state: AtomicU32,
    counters: SharedQueueCounters,
    reported: Mutex<QueueCounters>,
}

impl Pair {
    /// Allocates a pair and prepares it at the drive; it is not open yet.
    pub fn new(
        set: &SetMemory,
        driver: &Driver,
        number: u32,
        flips: &Arc<FlipLog>,
    ) -> Result<(Arc<Self>, LentQueue), EngineError> {
        let device = Arc::clone(driver.device());
        let memory = Arc::new(PairMemory::new(set, number, device.as_ref())?);
        let lent = driver.lend_queue(memory.lent())?;
        let offsets = [lent.submission_doorbell(), lent.completion_doorbell()];
        let address = |offset| {
            device.doorbell_address(offset).ok_or_else(|| EngineError::Unsupported {
                what: "doorbells for lanes",
                why: "the GPU cannot reach this drive's registers".into(),
            })
        };
        let doorbells = [address(offsets[0])?, address(offsets[1])?];
        let view = memory.view(drive(driver)?, doorbells);
        let parts = DrainParts {
            memory: Arc::clone(&memory),
            device,
            pair: number,
            queue: lent.id(),
            doorbell: offsets[1],
            flips: Arc::clone(flips),
        };
        let pair = Self {
            memory,
            view,
            drain: Mutex::new(Drain::new(parts)),
            state: AtomicU32::new(PairState::Opening.number()),
            counters: SharedQueueCounters::default(),
            reported: Mutex::default(),
        };
        Ok((Arc::new(pair), lent))
    }

    /// The CPU's side of the completion queue.
    #[inline]
    pub fn drain(&self) -> MutexGuard<'_, Drain> {
        self.drain.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn state(&self) -> PairState {
        PairState::of(self.state.load(Ordering::Acquire))
    }

    pub fn set_state(&self, state: PairState) {
        self.state.store(state.number(), Ordering::Release);
    }

    pub fn publish(&self, counts: &QueueCounters) {
        self.counters.publish(counts);
    }

    pub fn counters(&self) -> QueueCounters {
        self.counters.read()
    }

    /// Tells a shared page what was counted since the last time.
    pub fn report(&self, writer: &mut stats::Writer) {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = self.counters();
        report(writer, &counts.since(&reported));
        *reported = counts;
    }
}

fn drive(driver: &Driver) -> Result<Drive, EngineError> {
    let controller = driver.controller();
    let namespace = driver.namespaces().first().copied();
    let (Some(controller), Some(namespace)) = (controller, namespace) else {
        let text = "queue pairs need a controller that is ready and has a namespace";
        return Err(EngineError::Misuse(text.into()));
    };
    Ok(Drive {
        nsid: namespace.nsid.0,
        block_bytes: namespace.block_bytes,
        transfer_bytes_max: controller.transfer_bytes_max,
    })
}
