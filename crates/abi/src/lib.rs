//! Structures shared by host and GPU.
//!
//! Rust is the source. `cargo xtask abi` writes `include/sidecore/impl/abi__types.h`, the C++ twin,
//! which asserts every size and offset; the file is committed and compared in the tests.
//!
//! ```text
//! request ring   pinned host memory   depth x RequestEntry (32 bytes), written by GPU lanes
//! RingControl    device memory        tail (GPU only) | fetched (host writes) | state (host writes)
//! records        device memory        one CompletionRecord (8 bytes) a record, host writes
//! turns          device memory        one u32 a record: turns its owner has issued (GPU only)
//! staging        pinned host memory   `staging_stride` bytes a record (routes pull and push)
//! ```
//!
//! A slot's *turn* is `(ticket >> depth_log2) + 1`; the low 16 bits of it end each half of an
//! entry. A record's *turn* is the low 16 bits of how often its owner has used it. Turns compare by
//! signed difference.
//!
//! Queue pairs that lanes drive themselves are in [`queue`]; the entries in them are NVMe's own and
//! not described here. A status is sixteen bits that travel unchanged. Nothing here knows of CUDA.
#![forbid(unsafe_code)]

pub mod bench;
mod generate;
pub mod queue;
pub mod ring;
pub mod status;

pub use generate::generate;
