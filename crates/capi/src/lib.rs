//! The C interface: what a program in C, C++ or CUDA needs to use sidecore's controller, queue pairs,
//! memory and rings without Rust.
//!
//! `include/sidecore.h` is generated from this crate by `cargo xtask capi --header`; the shared library is
//! `libsidecore.so.0`. Objects are opaque handles; every call returns a code (0 is success) and keeps a
//! text for [`sidecore_last_error`]. Nothing panics across the edge.
//!
//! ```text
//! gpu ── memory ── bus (addresses as a drive sees them)
//!  │                └─ controller (a software drive over a storage) ── driver ── queue pairs, lanes' queues
//!  └─ engine (side cores) ── sources (storages), buffers (memory) ── rings
//! ```
//!
//! A handle keeps what it was made of: handles may be destroyed in any order.
//!
//! What pointers must be, for every function: a handle is null or one that this library gave out for
//! that type and that was not destroyed; a place for a result is null or writable; a text is null or
//! a C string. Null where something is needed is an error, not a crash. Functions may be called from
//! any thread; a handle must not be destroyed while a call uses it.
//!
//! What this crate does not do: it decides nothing. What a controller, a queue or a ring is, the crates
//! below say.
// UNSAFETY: exported C functions.
#![expect(unsafe_code, reason = "functions that C calls")]
#![allow(non_camel_case_types, reason = "names as C programs write them")]
#![allow(clippy::missing_safety_doc, reason = "one rule for all pointers, above")]

mod bus;
mod controller;
mod driver_edge;
mod engine;
mod failure;
mod gpu_edge;
mod handle;
mod lanes;
mod memory;
mod ring;
mod storage_edge;

use std::ffi::c_char;

pub use bus::*;
pub use controller::*;
pub use driver_edge::*;
pub use engine::*;
pub use failure::{
    SIDECORE_DRIVE, SIDECORE_EXHAUSTED, SIDECORE_GPU, SIDECORE_MISUSE, SIDECORE_OK, SIDECORE_OS,
    SIDECORE_PANIC, SIDECORE_STORAGE, SIDECORE_TIMED_OUT, SIDECORE_UNSUPPORTED,
};
pub use gpu_edge::*;
pub use lanes::*;
pub use memory::*;
pub use ring::*;
pub use storage_edge::*;

/// Version of the structures that host and GPU share; that of the device headers must be the same
/// (`sidecore::abi::ABI_VERSION`).
#[unsafe(no_mangle)]
pub extern "C" fn sidecore_abi_version() -> u32 {
    abi::ring::ABI_VERSION
}

/// Why the last call of this thread that failed did so; "" where none has. Valid until this thread's
/// next call.
#[unsafe(no_mangle)]
pub extern "C" fn sidecore_last_error() -> *const c_char {
    failure::last()
}

/// Bytes of a structure of the device headers, for programs that cannot include them: "ring", "source",
/// "buffer", "queue pair", "dma buffer"; 0 for any other name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_view_bytes(name: *const c_char) -> usize {
    // SAFETY: the rule for pointers, see the crate's documentation.
    match unsafe { handle::text(name, "name") } {
        Ok("ring") => size_of::<abi::ring::RingView>(),
        Ok("source") => size_of::<abi::ring::SourceView>(),
        Ok("buffer") => size_of::<abi::ring::BufferView>(),
        Ok("queue pair") => size_of::<abi::queue::QueuePairView>(),
        Ok("dma buffer") => size_of::<abi::queue::DmaBufferView>(),
        _ => 0,
    }
}
