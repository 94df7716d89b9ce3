//! The engine: sources, buffers, rings, side cores, paths.
//!
//! A GPU lane writes a request into a ring; a *side core* (a CPU thread that does nothing else)
//! copies it, checks the copy, does the I/O and answers with one word in device memory.
//!
//! ```text
//! Engine ── sources, buffers (ids with generations)      registry
//!    │   └─ rings (entries, records, staging)             ring, slots
//!    ├── side cores: step(now_ns) over their rings        side_core, service
//!    ├── supervisor: step(now_ns) over the side cores     supervisor
//!    └── threads that call both, with the idle ladder     threads
//! ```
//!
//! [`SideCore`] and [`Supervisor`] have neither threads nor clocks inside: [`EngineBuilder::start`]
//! runs them in threads, [`EngineBuilder::start_stepped`] hands them out to be stepped by a test.
//!
//! What holds at any time:
//! * every fetched request that names a usable record ends with exactly one completion;
//! * nothing the GPU can write is trusted: each entry is copied, then the copy is checked;
//! * nothing is read through the window, and nothing is allocated or registered while serving;
//! * a request is answered only when nothing can write its buffer any more.
//!
//! What this crate does not know: the C ABI, Python, terminals.
#![forbid(unsafe_code)]

mod builder;
mod counters;
mod engine;
mod error;
pub mod gpu_queues;
mod hooks;
mod job;
pub mod paths;
mod queues;
mod registry;
mod ring;
mod service;
mod side_core;
mod slots;
mod software_drive;
mod supervisor;
mod threads;

pub use builder::{EngineBuilder, Stepped};
pub use counters::{RingCounters, SideCoreCounters};
pub use engine::Engine;
pub use error::EngineError;
pub use hooks::{Hooks, Moment};
pub use registry::{Buffer, Retirement, Rights, Source};
pub use ring::{ReadRoute, Ring, RingConfig, RingMemory, WriteRoute};
pub use side_core::{CoreState, Progress, SideCore};
pub use software_drive::SoftwareDrive;
pub use supervisor::Supervisor;
