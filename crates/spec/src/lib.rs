//! The words of NVMe: registers, commands, completions, status and identify structures.
//!
//! Everything here is a name for something that the specification defines, with the layout that it
//! defines. There is no behaviour beyond encoding and decoding: queues live in `proto`, memory in
//! `mem`, and time nowhere here.
//!
//! | module | words | source |
//! | --- | --- | --- |
//! | [`registers`] | CAP, VS, CC, CSTS, AQA, ASQ, ACQ, doorbells | Base 2.0c, 3.1.3; PCIe 1.0c, 3.1.2 |
//! | [`Command`], [`Completion`] | the two queue entries | Base 2.0c, 3.3.3 |
//! | [`admin`], [`io`] | opcodes, and what command dwords 10-12 mean | Base 2.0c, 5, 7; NVM 1.0c, 3.2 |
//! | [`event`] | asynchronous events, log pages | Base 2.0c, 5.2, 5.16 |
//! | [`identify`] | controller, namespace, active list | Base 2.0c, 5.17.2; NVM 1.0c, 4.1.5 |
//! | [`Status`] | the status field, by name | Base 2.0c, 3.3.3.2.1 |
//!
//! Names from the standard stay in this crate. Fields that count from zero end in `_z`; the methods
//! beside them speak in counts. All structures are little-endian, as the standard has them, and
//! this crate refuses to build for a big-endian machine.
//!
//! What it does not have: fabrics, zones, key-value commands, metadata, protection information,
//! scatter-gather lists. They come when something uses them.
#![forbid(unsafe_code)]

pub mod admin;
mod command;
mod completion;
pub mod event;
pub mod identify;
pub mod io;
mod number;
pub mod registers;
mod status;

pub use command::Command;
pub use completion::Completion;
pub use number::{BlockCount, CommandId, Lba, Nsid, QueueId};
pub use status::Status;

const _: () = assert!(cfg!(target_endian = "little"), "fields are stored as the machine has them");
