//! The kernel's file I/O behind a safe interface: io_uring, its blocking stand-in, the page cache.
//!
//! [`Ring`] owns everything that the kernel may touch: each operation in flight keeps its
//! `mem::Region` alive inside the ring until its completion has been reaped, and a ring that is
//! dropped waits for its operations, within a bound, before it lets their memory go. So no use of
//! the safe interface lets the kernel write into memory that is somebody else's by then.
//!
//! * [`Ring`]: registered files and buffers, batched submission, one system call for "submit all and
//!   wait a little", cancellation, and a count of system calls.
//! * [`read_at`] and [`write_at`]: the same into the same memory without io_uring.
//! * [`residency`]: which pages of a file are in the page cache.
//!
//! What this crate does not do: decide. Which file descriptor, which batch, what an errno means and
//! what to try next is the business of `storage`.

mod positioned;
pub mod residency;
mod ring;

pub use positioned::{read_at, write_at};
pub use ring::{
    Ended, FileIndex, Kind, Mode, Ring, RingCounters, RingOptions, Transfer, UringError,
};

#[cfg(test)]
mod tests;
