//! Pairs, oracles, conformance and fault scripts for the tests of the other crates.
#![forbid(unsafe_code)]

pub use storage::pattern;

pub mod conformance;

#[cfg(feature = "engine")]
mod fuzz_ring;
#[cfg(feature = "engine")]
pub mod submitter;

#[cfg(feature = "engine")]
pub use fuzz_ring::fuzz_ring;
