//! What the host does for queue pairs, counted where it happens.

use std::sync::atomic::{AtomicU64, Ordering};

use stats::{Event, Writer};

use crate::counters::counters;

counters! {
    /// What the host did for one queue pair.
    QueueCounters / SharedQueueCounters {
        /// Completions that CPU agents (or recovery, in their stead) drained.
        completions_polled,
        /// Completion queue doorbells rung by the CPU.
        cpu_doorbells,
        /// Completions of commands that had ended before.
        strays,
        /// Completions that name no command or another queue.
        misbehaved,
        /// Changes of hands between CPU and lanes.
        flips,
        /// Abort commands sent.
        aborts,
        /// Aborts that the drive answered with success.
        aborted,
        /// Commands that never ended, and were answered by the host.
        timed_out,
        /// New epochs: queues made again, alone or by a reset of their controller.
        epochs,
    }
}

counters! {
    /// What one agent did.
    AgentCounters / SharedAgentCounters {
        /// CPU time of its thread, in nanoseconds.
        cpu_ns,
        /// Passes over its queues.
        passes,
        /// Passes that found completions.
        busy_passes,
        /// Times it slept.
        sleeps,
    }
}

/// Adds what was done for a pair since the last time to a shared page.
pub(super) fn report(writer: &mut Writer, since: &QueueCounters) {
    writer.count(Event::CompletionPolledByCpu, since.completions_polled);
    writer.count(Event::DoorbellByCpu, since.cpu_doorbells);
}
