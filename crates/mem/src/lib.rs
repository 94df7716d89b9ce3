//! The one place that touches foreign memory.
//!
//! Foreign memory is memory that somebody else writes or reads at the same time: a GPU, a drive, a
//! kernel, another thread that is not bound by Rust's rules. It is never a `&T`, `&mut T` or
//! `&[u8]`; all access goes through [`Region`]: typed atomic cells at an offset, and copies.
//!
//! [`AddressMap`] is what a device's DMA engine sees: registered regions by address.
//!
//! The fences are named by what they order (payload, completion words, requests). Under the
//! feature `model` every access and fence first asks the thread's memory model, so that a simulator
//! can delay and reorder stores; without it each is one machine instruction.

mod address_map;
mod cell;
mod fence;
#[cfg(feature = "model")]
pub mod model;
mod region;
mod streaming;
mod streaming_loads;

pub use address_map::{AddressMap, RegionId, Snapshot};
pub use cell::{SharedRows, SharedU32, SharedU64, SharedWords};
pub use fence::{fence_acquire, fence_full, fence_payload};
pub use region::{MemError, MemoryKind, Region, WeakRegion};
