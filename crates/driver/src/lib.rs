//! A user-space NVMe driver: small, polled, over a [`Device`].
//!
//! [`Driver`] starts a controller, describes it and its namespaces, and opens [`IoQueue`]s, one for
//! each thread that does I/O. Everything is stepped by its users with the time as an argument:
//! there are no threads, no interrupts and no clocks here.
//!
//! ```text
//! Driver::new -> step* -> Ready -> open_queue -> IoQueue: try_submit, poll, cancel
//! ```
//!
//! A request that does not end by its deadline, or that is cancelled, climbs a ladder, each rung
//! bounded in time:
//!
//! 1. Abort, and the completion of the command itself;
//! 2. delete the queue pair (after which the drive touches none of its buffers) and make it again;
//! 3. reset the controller.
//!
//! It is reported when nothing can write its buffer any more, not before. Other requests that lose
//! their queue under them are sent again, once each. A drive that says impossible things is an error
//! value ([`DriverError::Misbehaved`]), never a panic. Where even a reset fails, what was in flight
//! ends with an error and its memory stays mapped and allocated until the queue is dropped.
//!
//! Queue pairs at memory of the caller's choice, whose entries others write and read, are lent
//! ([`Driver::lend_queue`]): the driver makes, deletes and aborts, and touches no entry.
//!
//! What this crate does not do: interrupts, scatter-gather lists, metadata, namespace management,
//! power management, several controllers as one. It asks for no asynchronous event: no Asynchronous
//! Event Request is ever sent, so a controller keeps its events to itself (what of them would matter
//! here, a failed controller, is seen in `CSTS` and in commands that do not end).
#![forbid(unsafe_code)]

mod admin;
mod describe;
mod device;
mod driver;
mod error;
mod io_queue;
mod lent_queue;
mod lifecycle;
mod memory;
mod recovery;

pub use describe::{Controller, Namespace};
pub use device::{Device, Mapping, RegionDevice};
pub use driver::{Driver, DriverOptions, DriverState};
pub use error::DriverError;
pub use io_queue::{Buffer, Ended, IoQueue, Op, QueueCounters, Rejected, Request};
pub use lent_queue::{AbortAnswer, AbortTicket, LentMemory, LentQueue, LentState};
