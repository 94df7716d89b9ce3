//! Adaptive co-polling: who polls a completion queue, and when that changes.
//!
//! ```text
//!         completions in a window >= high, dwell over
//!  GPU  ---------------------------------------------->  CPU
//!       <----------------------------------------------
//!         completions in a window <= low, dwell over
//! ```
//!
//! Polling by the CPU keeps lanes off a busy queue; of a quiet queue it costs a core that finds
//! nothing. So a loaded queue belongs to a CPU agent, a quiet one to the GPU. Only the present owner
//! gives a queue away, after it has finished its pass and rung the doorbell. The paper leaves the
//! thresholds open: they are options here.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use spec::QueueId;

/// Who polls a completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// A CPU agent.
    Cpu,
    /// GPU lanes.
    Gpu,
}

/// When a queue changes hands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopollOptions {
    /// Completions in a window from which on the GPU gives a queue to the CPU.
    pub high: u32,
    /// Completions in a window up to which the CPU gives a queue to the GPU; below `high`.
    pub low: u32,
    /// How long completions are counted before it is decided.
    pub window: Duration,
    /// How long an owner keeps a queue at least.
    pub dwell: Duration,
}

impl Default for CopollOptions {
    fn default() -> Self {
        let (window, dwell) = (Duration::from_millis(2), Duration::from_millis(20));
        Self { high: 64, low: 16, window, dwell }
    }
}

/// Why a queue changed hands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlipReason {
    /// At least `high` completions in a window.
    LoadHigh,
    /// At most `low` completions in a window.
    LoadLow,
    /// The queue was made again, and begins with its first owner.
    Recovery,
}

impl FlipReason {
    /// Its word in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LoadHigh => "load_high",
            Self::LoadLow => "load_low",
            Self::Recovery => "recovery",
        }
    }
}

/// One change of hands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flip {
    /// When the CPU did it or saw it.
    pub at_ns: u64,
    /// Number of the pair in its set.
    pub pair: u32,
    /// Which queue of the drive.
    pub queue: QueueId,
    /// Who had it.
    pub from: Owner,
    /// Who has it.
    pub to: Owner,
    /// Why.
    pub reason: FlipReason,
    /// Completions in the window before it, as its giver counted them.
    pub pending: u32,
}

/// Flips kept, at most.
const FLIPS_MAX: usize = 1 << 16;

/// All flips of a set of pairs, in the order in which the CPU saw them.
#[derive(Debug, Default)]
pub(super) struct FlipLog(Mutex<VecDeque<Flip>>);

impl FlipLog {
    pub(super) fn push(&self, flip: Flip) {
        let mut flips = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if flips.len() == FLIPS_MAX {
            flips.pop_front();
        }
        flips.push_back(flip);
    }

    pub(super) fn read(&self) -> Vec<Flip> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}

/// Counts a queue's completions by windows, on the side of the CPU.
#[derive(Debug)]
pub(super) struct Meter {
    since_ns: u64,
    count: u32,
    owned_since_ns: u64,
}

impl Meter {
    pub(super) fn new(now_ns: u64) -> Self {
        Self { since_ns: now_ns, count: 0, owned_since_ns: now_ns }
    }

    /// Takes in what a pass found. The count of the window where it is over and says that the CPU
    /// is to give the queue away.
    pub(super) fn note(&mut self, now_ns: u64, found: u32, options: &CopollOptions) -> Option<u32> {
        self.count += found;
        let window_ns = u64::try_from(options.window.as_nanos()).unwrap_or(u64::MAX);
        if now_ns.saturating_sub(self.since_ns) < window_ns {
            return None;
        }
        let count = std::mem::take(&mut self.count);
        // A pass that comes late covers several windows: what counts is the rate.
        let windows = (now_ns.saturating_sub(self.since_ns) / window_ns.max(1)).max(1);
        self.since_ns = now_ns;
        let dwell_ns = u64::try_from(options.dwell.as_nanos()).unwrap_or(u64::MAX);
        let stayed = now_ns.saturating_sub(self.owned_since_ns) >= dwell_ns;
        let rate = u64::from(count) / windows;
        (stayed && rate <= u64::from(options.low)).then_some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: CopollOptions = CopollOptions {
        high: 8,
        low: 2,
        window: Duration::from_nanos(100),
        dwell: Duration::from_nanos(1000),
    };

    #[test]
    fn a_quiet_queue_is_given_away_after_the_dwell_and_not_before() {
        let mut meter = Meter::new(0);
        for now_ns in (100..1000).step_by(100) {
            assert_eq!(meter.note(now_ns, 0, &OPTIONS), None, "at {now_ns}");
        }
        assert_eq!(meter.note(1000, 1, &OPTIONS), Some(1));
    }

    #[test]
    fn a_busy_queue_stays_and_thresholds_are_inclusive() {
        let mut meter = Meter::new(0);
        assert_eq!(meter.note(2000, 60, &OPTIONS), None, "3 in each of 20 windows");
        assert_eq!(meter.note(2099, 0, &OPTIONS), None, "the window is not over");
        assert_eq!(meter.note(2100, 3, &OPTIONS), None);
        assert_eq!(meter.note(2200, 2, &OPTIONS), Some(2));
    }
}
