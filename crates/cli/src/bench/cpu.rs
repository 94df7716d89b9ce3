//! CPU time: of this process, of this thread.

use rustix::time::{ClockId, clock_gettime};

/// CPU seconds of the whole process so far, user and system.
pub fn process_seconds() -> f64 {
    seconds(ClockId::ProcessCPUTime)
}

/// CPU seconds of the calling thread so far, user and system.
pub fn thread_seconds() -> f64 {
    seconds(ClockId::ThreadCPUTime)
}

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
