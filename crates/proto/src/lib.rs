//! State machines of NVMe without I/O: queue pair, controller bring-up, PRP building.
//!
//! Nothing here reads a clock, touches foreign memory or blocks. Whoever drives a machine passes in
//! what was read (a completion entry, the status register, the time in nanoseconds) and carries out
//! what comes back (write this entry, ring this doorbell, write this register):
//!
//! | machine | goes in | comes out |
//! | --- | --- | --- |
//! | [`QueuePair`] | commands to send, completion entries | slots, command ids, doorbells, ended commands |
//! | [`BringUp`], [`Shutdown`] | CAP, CSTS, time | register writes |
//! | [`prp::build`] | pages of a transfer | PRP1, PRP2, list entries |
//!
//! What a drive says is never trusted: a completion that cannot be is a [`Misbehaved`] value, never
//! a panic. What the caller says is checked once, where a machine is made.
#![forbid(unsafe_code)]

mod bring_up;
pub mod prp;
mod queue_pair;

pub use bring_up::{Action, BringUp, BringUpError, BringUpOptions, Phase, Shutdown};
pub use queue_pair::{
    COMMANDS_MAX, Completed, Lost, Misbehaved, QueuePair, QueuePairShape, Reservation, ShapeError,
};
