//! Pairs, oracles, conformance and fault scripts for the tests of the other crates.
#![forbid(unsafe_code)]

pub use storage::pattern;

pub mod conformance;
mod fuzz_controller;

mod fuzz_driver;
#[cfg(feature = "engine")]
mod fuzz_ring;
pub mod pair;
pub mod seeds;
#[cfg(feature = "engine")]
pub mod submitter;

pub use fuzz_controller::fuzz_controller;
pub use fuzz_driver::fuzz_driver;
#[cfg(feature = "engine")]
pub use fuzz_ring::fuzz_ring;
