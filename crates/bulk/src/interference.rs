//! Faults on purpose: what tests and `tune` put between the engine and the system.

use std::time::Duration;

use crate::route::Op;

/// A call that is about to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// Read or write.
    pub op: Op,
    /// Where in the file.
    pub offset: u64,
    /// How many bytes.
    pub bytes: usize,
    /// Whether it goes around the page cache.
    pub direct: bool,
}

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

/// Something that the system may refuse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// To know which pages are cached.
    Residency,
    /// An io_uring.
    Ring,
    /// A thread.
    Thread,
}

/// Decides about calls before they are made.
pub trait Interference: Send + Sync {
    /// What happens to this read or write of a file.
    fn strike(&self, call: Call) -> Strike;
    /// Whether the system refuses this.
    fn refuses(&self, need: Need) -> bool {
        let _ = need;
        false
    }
}
