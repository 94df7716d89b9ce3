//! The words of NVMe: registers, commands, completions, status and identify structures.
//!
//! Everything here is a name for something that the specification defines, with the layout that it
//! defines. There is no behaviour beyond encoding and decoding: queues live in `proto`, memory in
//! `mem`, and time nowhere here.
#![forbid(unsafe_code)]

mod status;

pub use status::Status;
