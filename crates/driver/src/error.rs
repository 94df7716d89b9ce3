//! What can go wrong, divided by who is at fault.

use std::time::Duration;

use mem::MemError;
use proto::{BringUpError, Misbehaved};
use spec::Status;

/// What can go wrong in starting a controller, opening a queue or polling it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// An admin command did not complete. Cause: the drive. Remedy: it is reset; else replace it.
    #[error("the drive did not complete {operation} within {limit:?}")]
    AdminTimeout {
        /// What it was.
        operation: &'static str,
        /// How long it was waited for.
        limit: Duration,
    },
    /// The controller does not start or stop. Cause: the drive. Remedy: as the source says.
    #[error("{0}")]
    Controller(#[from] BringUpError),
    /// All there is of something is in use. Remedy: use fewer at once.
    #[error("all {limit} {resource} are in use")]
    Exhausted {
        /// What ran out.
        resource: &'static str,
        /// How many there are.
        limit: u32,
    },
    /// No memory for a queue, or the device cannot reach it. Remedy: as the source says.
    #[error("{0}")]
    Memory(#[from] MemError),
    /// The drive said something impossible. Cause: the drive. Remedy: it is recovered from; a drive
    /// that repeats it must be replaced.
    #[error("{0}")]
    Misbehaved(#[from] Misbehaved),
    /// The caller broke the contract. Remedy: fix the call.
    #[error("{0}")]
    Misuse(String),
    /// The driver has been shut down. Remedy: make a new one.
    #[error("the driver has been shut down")]
    Stopped,
    /// The drive refused an admin command. Remedy: see the status.
    #[error("{operation}: {status}")]
    Status {
        /// What it was.
        operation: &'static str,
        /// The drive's status.
        status: Status,
    },
    /// The drive cannot do what was asked. Remedy: as the text says.
    #[error("{what}: {why}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// Why it cannot be had.
        why: String,
    },
}
