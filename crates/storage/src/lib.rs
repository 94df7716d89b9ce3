//! Storage and its kinds: anything with bytes or blocks that a side core can read and write.
//!
//! A [`Storage`] is shared by all who use it; each user thread opens a [`StorageQueue`] of its own,
//! submits requests with tokens and polls for completions. Nothing here blocks, except where a name
//! begins with `wait_`. One conformance suite (`testkit::conformance`) runs over every kind.
//!
//! [`Striped`] and [`Replicated`] make one storage of several.
//!
//! [`pattern`] is the self-describing data that everything here is tested with; [`faults`] decides
//! what shall go wrong.
//!
//! What this crate does not know: GPUs, rings, paths. Payload goes from and to `mem::Region`s.
#![forbid(unsafe_code)]

mod admit;
pub mod faults;
mod faulty;
mod file;
mod memory;
mod nvme;
pub mod pattern;
mod queue;
mod replicated;
mod several;
mod striped;

pub use admit::status;
pub use faulty::{Clock, Faulty};
pub use file::{
    Alignment, Direct, Engine, FileOptions, FileStorage, NO_IO_URING_VARIABLE, Residency,
    open_direct,
};
pub use memory::MemoryStorage;
pub use nvme::{NvmeOptions, NvmeStorage};
pub use queue::{
    Completion, Counters, Geometry, Lent, Op, QueueOptions, Rejected, Request, Storage,
    StorageError, StorageQueue,
};
pub use replicated::Replicated;
pub use striped::Striped;
