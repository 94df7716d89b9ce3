//! The clocks that the bench mode reads: the lanes' timer and the CPU time of a worker.

use rustix::time::{ClockId, clock_gettime};

fn read_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let rest = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds * 1_000_000_000 + rest
}

/// A monotonic clock.
pub(crate) fn now_ns() -> u64 {
    read_ns(ClockId::Monotonic)
}

/// CPU time of the calling OS thread.
pub(crate) fn thread_cpu_ns() -> u64 {
    read_ns(ClockId::ThreadCPUTime)
}
