//! Peers of `bench bulk`: each in a process of its own, asked for one repeat after the other.
//!
//! A peer prints `ready`, then for each line that it reads does its work once and prints one JSON object a
//! line: seconds, bytes, and whether the bytes were right where it checked them (in its first repeat). What
//! its opening costs is not timed, and its CPU time is taken from outside between two lines.

mod loops;
mod peer;
mod remote;

pub use peer::{Files, Peer, Repeat, Task, serve};
pub use remote::Remote;
