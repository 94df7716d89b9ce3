//! Measuring: data, rounds, paths, and the rows made of them.

pub mod baseline;
pub mod bulk;
pub mod compare;
mod copier;
pub mod cpu;
pub mod data;
pub mod drive;
pub mod faults;
pub mod gpu_load;
mod kernel_work;
pub mod lane_runner;
pub mod machine;
pub mod measure;
pub mod neighbour;
pub mod order;
mod padded;
pub mod paths;
mod posix;
mod queue_runner;
mod ring_runner;
pub mod round;
pub mod settings;
pub mod source;
pub mod stripe;
mod summary;
pub mod uring;
mod worker;
