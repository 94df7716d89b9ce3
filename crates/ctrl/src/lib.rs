//! The software NVMe controller: a complete drive, served by a CPU, over any storage.
//!
//! [`Controller`] is a state machine. Its registers and doorbells are plain memory
//! ([`Controller::bar`]) that [`Controller::step`] polls; its queues and payloads lie wherever the
//! host registered memory in a `mem::AddressMap`. It has no thread, no clock and never blocks: time
//! comes in as an argument, so that a simulator can drive it. [`Server`] puts a thread around one or
//! several of them.
//!
//! ```text
//! host memory                          BAR (a Region)
//!   SQ entries  <--- fetch ----+         CAP VS CC CSTS AQA ASQ ACQ
//!   CQ entries  <--- post ---+ |         doorbells  <--- polled
//!   PRP pages   <--- move -+ | |
//!                          | | |
//!   Storage  <----------- Controller::step(now_ns) ----> Progress
//! ```
//!
//! | module | duty |
//! | --- | --- |
//! | `controller` | enable, reset, shutdown, the order of a step |
//! | `serve` | doorbells, fetching, posting |
//! | `admin`, `identify`, `features`, `events` | admin commands |
//! | `io`, `rare`, `detour`, `flight` | I/O commands from check to completion |
//! | `inject` | injected faults |
//! | `dma`, `queues` | PRPs and rings in registered memory |
//! | `timing` | the drive that is stood for: rate, bandwidth, latency |
//! | `server` | threads, idle ladder, CPU time |
//!
//! What it refuses, it refuses with the status that the specification names; the tests hold the
//! table. What it does not have: interrupts, scatter-gather lists, fused commands, metadata,
//! namespace management, subsystem reset, a controller memory buffer.
//!
//! Sources: NVMe Base Specification 2.0c, NVM Command Set 1.0c, NVMe over PCIe Transport 1.0c. The
//! controller reports version 1.4, whose mandatory commands are all there.
#![forbid(unsafe_code)]

mod admin;
mod bar;
mod config;
mod controller;
mod counters;
mod detour;
mod dma;
mod events;
mod features;
mod flight;
mod identify;
mod inject;
mod io;
mod queues;
mod random;
mod rare;
mod serve;
mod server;
mod timing;

pub use config::{ControllerError, NamespaceOptions, Options, ResetFault};
pub use controller::{Controller, Progress};
pub use counters::{Counters, SharedCounters};
pub use server::{Server, ServerError, ServerOptions};
pub use timing::{Latency, Pacer, TimingModel, TimingModelError};
