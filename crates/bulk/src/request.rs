//! How the engine is opened, and what it is asked for.

use std::path::PathBuf;
use std::sync::Arc;

use gpu::Gpu;

use crate::error::BulkError;
use crate::file::{CachePolicy, File};
use crate::interference::Interference;
use crate::knees::{Knees, SLOT_BYTES, SLOTS};
use crate::log::Log;
use crate::place::Place;
use crate::route::{Op, Route};
use crate::store::Store;

/// Most bytes of pinned memory that may be asked for.
pub const POOL_BYTES_MAX: u64 = 512 << 20;
/// Fewest bytes of pinned memory that may be asked for: what one thread and those that wait need.
pub const POOL_BYTES_MIN: u64 = 1 << 20;
/// Most threads that may be asked for.
pub const THREADS_MAX: usize = 256;

/// How the engine is opened.
#[derive(Clone)]
pub struct Options {
    /// The GPU whose memory is meant; without one, host memory only.
    pub gpu: Option<Arc<dyn Gpu>>,
    /// Most threads; by default as many as the knees want.
    pub threads: Option<usize>,
    /// Most bytes of pinned memory, up to 512 MiB. None is made before it is needed.
    pub pool_bytes: u64,
    /// The knees; without them those that were measured and stored, else the defaults.
    pub knees: Option<Knees>,
    /// Where measured knees are looked for, and under which key; by default nowhere.
    pub stored: Option<(Store, String)>,
    /// Refuse whatever would not go this way, before anything is moved.
    pub require: Option<Route>,
    /// When to go around the page cache.
    pub cache: CachePolicy,
    /// Where lines about fallbacks go.
    pub log: Log,
    /// Faults on purpose, for tests.
    pub interference: Option<Arc<dyn Interference>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            gpu: None,
            threads: None,
            pool_bytes: 256 << 20,
            knees: None,
            stored: None,
            require: None,
            cache: CachePolicy::Auto,
            log: Log::default(),
            interference: None,
        }
    }
}

impl Options {
    /// Whether the numbers can be.
    pub(crate) fn check(&self) -> Result<(), BulkError> {
        let inside = |what: &str, is: u64, (least, most): (u64, u64)| {
            let why = || format!("{what}: {is} is not between {least} and {most}");
            if (least..=most).contains(&is) { Ok(()) } else { Err(BulkError::Misuse(why())) }
        };
        inside("bytes of the pool", self.pool_bytes, (POOL_BYTES_MIN, POOL_BYTES_MAX))?;
        let threads = (1, THREADS_MAX as u64);
        if let Some(wanted) = self.threads {
            inside("threads", wanted as u64, threads)?;
        }
        let Some(knees) = &self.knees else { return Ok(()) };
        inside("threads that read from the page cache", knees.threads_cached as u64, threads)?;
        inside("threads that read around it", knees.threads_direct as u64, threads)?;
        inside("threads that write", knees.threads_write as u64, threads)?;
        inside("bytes of a slot", knees.slot_bytes, SLOT_BYTES)?;
        inside("slots of a thread", knees.slots as u64, SLOTS)
    }
}

/// A range of a file, and the memory that it goes to or comes from.
#[derive(Clone, Debug)]
pub struct Request {
    pub(crate) op: Op,
    pub(crate) from: From,
    pub(crate) offset: u64,
    pub(crate) place: Place,
}

/// Which file.
#[derive(Clone, Debug)]
pub(crate) enum From {
    File(File),
    Path(PathBuf),
}

impl Request {
    /// Reads as many bytes as the place has, from an offset on.
    pub fn read(file: &File, offset: u64, place: Place) -> Self {
        Self { op: Op::Read, from: From::File(file.clone()), offset, place }
    }

    /// The same from a file that is opened when its turn comes, by the thread that reads it.
    pub fn read_path(path: impl Into<PathBuf>, offset: u64, place: Place) -> Self {
        Self { op: Op::Read, from: From::Path(path.into()), offset, place }
    }

    /// Looks whether it can be done at all.
    pub(crate) fn check(&self, gpu: Option<&dyn Gpu>) -> Result<(), BulkError> {
        if let From::File(file) = &self.from {
            file.0.check_access(self.op)?;
        }
        check_range(self.offset, self.place.bytes())?;
        self.place.check(gpu)
    }

    /// Writes all bytes of the place, from an offset on.
    pub fn write(file: &File, offset: u64, place: Place) -> Self {
        Self { op: Op::Write, from: From::File(file.clone()), offset, place }
    }
}

/// Whether a file may have such a range.
pub(crate) fn check_range(offset: u64, bytes: u64) -> Result<(), BulkError> {
    let end = offset.checked_add(bytes).and_then(|end| i64::try_from(end).ok());
    let ok = end.is_some_and(|end| end <= i64::MAX - (64 << 20));
    let why = || format!("bytes {offset}..+{bytes}: no file is that long");
    if ok { Ok(()) } else { Err(BulkError::Misuse(why())) }
}
