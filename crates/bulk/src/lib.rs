//! Files and block devices to and from GPU memory, or host memory, in bulk.
//!
//! ```text
//! request -> planner -> chunks -> workers: fill a pinned slot | copy engine | end of the chunk
//!                                          slot 1 being filled while slots 0, 3, 2 are copied
//! ```
//!
//! | part | duty |
//! | --- | --- |
//! | [`Bulk`] | the engine: worker threads, pinned slots, counters; shared, cheap to clone |
//! | [`File`] | an open file or block device, its direct twin, and how its cached pages are known |
//! | [`Place`] | where bytes go to or come from: device memory or host memory |
//! | [`Request`], [`Transfer`], [`Batch`] | what is asked for, and its end |
//! | [`Plan`], [`Route`], [`Cause`] | which way a request goes and why; what was not possible |
//! | [`Knees`] | where the planner switches; measured by [`tune()`], kept in a [`Store`] |
//! | [`save_atomically`] | whole files: complete or not there |
//!
//! What holds for every transfer:
//!
//! * Any offset, length and alignment. A read is short only where the file ended. A write is whole or an
//!   error.
//! * When a transfer has ended, its bytes are at the destination: a kernel that is launched afterwards, on
//!   any stream, sees them. Until a transfer has ended, its memory belongs to it.
//! * Pages that are in the page cache are read through it, others around it, where the file system allows
//!   both; a range that is half and half is read half and half.
//! * Written bytes are in the page cache, or on the drive's side of it where they went around; durable
//!   they are after [`File::sync`].
//! * Pinned memory is bounded, and made when it is first needed. So are threads, rings and streams.
//! * Nothing falls back in silence: a fallback has a [`Cause`], is counted, and its first time is logged.
//!
//! What it does not do: decide what is in the files, retry what a drive gave up, or keep any cache.
#![forbid(unsafe_code)]

mod batch;
mod counters;
mod courier;
mod engine;
mod error;
mod file;
mod interference;
mod job;
mod knees;
mod log;
mod numa;
mod place;
mod plan;
mod request;
mod route;
mod runs;
mod save;
mod seat;
mod store;
mod threads;
mod transfer;
mod tune;

pub use batch::Batch;
pub use counters::{Counters, RouteCount};
pub use engine::Bulk;
pub use error::BulkError;
pub use file::{Access, CachePolicy, File};
pub use interference::{Call, Interference, Need, Strike};
pub use knees::Knees;
pub use log::Log;
pub use place::Place;
pub use plan::{Part, Plan};
pub use request::{Options, POOL_BYTES_MAX, POOL_BYTES_MIN, Request, THREADS_MAX};
pub use route::{Cause, Op, Route};
pub use save::{Part as SavePart, end_of_links, save_atomically, save_atomically_unless};
pub use store::Store;
pub use transfer::Transfer;
pub use tune::{Measured, TuneOptions, Tuned, tune};
