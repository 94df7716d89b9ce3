//! Pairs, oracles, conformance and fault scripts for the tests of the other crates.
#![forbid(unsafe_code)]

pub use storage::pattern;
