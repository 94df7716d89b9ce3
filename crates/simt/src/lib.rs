//! The simulated GPU: warps of 32 lanes as fibers.
// UNSAFETY: calls into C++ device code and switches stacks.

use std::ffi::c_void;

/// A kernel's entry point, called once a lane with the argument structure's address.
///
/// It must be a device function compiled for the simulator (`SIDECORE_SIMT`).
#[derive(Clone, Copy, Debug)]
pub struct Entry(pub unsafe extern "C" fn(*const c_void));
