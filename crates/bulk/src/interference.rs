//! Faults on purpose: what tests and `tune` put between the engine and the system.

use std::time::Duration;

use crate::route::Op;

/// What happens to one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strike {
    /// It is made late.
    Delay(Duration),
    /// It fails with this number, and moves nothing.
    Errno(i32),
    /// Nothing.
    Pass,
    /// It moves at most so many bytes.
    Short(usize),
}

/// Decides about each read and write of a file before it is made.
pub trait Interference: Send + Sync {
    /// What happens to this one.
    fn strike(&self, op: Op, offset: u64, bytes: usize) -> Strike;
}
