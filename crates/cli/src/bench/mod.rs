//! Measuring: data, rounds, paths, and the rows made of them.

mod copier;
pub mod cpu;
pub mod data;
pub mod faults;
pub mod machine;
pub mod measure;
mod order;
mod padded;
pub mod paths;
mod posix;
mod queue_runner;
mod ring_runner;
pub mod round;
pub mod settings;
pub mod source;
mod summary;
pub mod uring;
mod worker;
