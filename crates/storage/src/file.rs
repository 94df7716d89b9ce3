//! Files and block devices.
//!
//! A file is opened once for buffered I/O and, where file system and machine allow, once more for
//! direct I/O. Each request takes one of the two: direct where it is aligned and most pages around
//! it are not in the page cache, buffered everywhere else (`residency` says how that is known).
//! Whatever is odd about a request or a file (unaligned ranges, a length that is no multiple of
//! anything, memory behind a window) is legal and goes buffered.
//!
//! The work is done by io_uring, or by a bounded pool of threads where io_uring is refused;
//! [`FileStorage::explain`] says which and why. Both loop over short reads and writes, so that a
//! completion with fewer bytes than asked for means the end of the file, or an error.
//!
//! A file may change its length while it is open: reads see what is there, `geometry` asks again.
//! Writes do not make a file longer.

mod blocking;
mod outcome;
mod pool;
mod residency;
mod ring;
mod target;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::target::Target;

pub use self::residency::Method as Residency;
pub use self::target::{Alignment, open_direct};
use crate::queue::{Geometry, QueueOptions, Storage, StorageError, StorageQueue};

/// Set to anything but `0`, keeps [`Engine::Auto`] from using io_uring.
pub const NO_IO_URING_VARIABLE: &str = "SIDECORE_NO_IO_URING";

/// Threads of a pool: enough to keep a drive busy, few enough for a small machine.
const POOL_THREADS: usize = 8;

/// Who does the I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Engine {
    /// io_uring where the kernel lets us, else threads.
    #[default]
    Auto,
    /// Only io_uring: opening fails where it is refused.
    IoUring,
    /// Only threads.
    ThreadPool,
}

/// When to go around the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Direct {
    /// Wherever a request is aligned.
    Always,
    /// Where a request is aligned and its pages are not cached.
    #[default]
    Auto,
    /// Never.
    Never,
}

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileOptions {
    /// Whether writes are allowed.
    pub writable: bool,
    /// Who does the I/O.
    pub engine: Engine,
    /// When to go around the page cache.
    pub direct: Direct,
    /// Promises that each queue is used only by the thread that opened it, until it is dropped
    /// there; completions are cheaper then.
    pub bound_to_thread: bool,
}

enum Driver {
    Ring(uring::Mode),
    Pool { pool: Arc<pool::Pool>, why: String },
}

/// A file or a block device.
pub struct FileStorage {
    path: PathBuf,
    options: FileOptions,
    target: Arc<Target>,
    driver: Driver,
}

impl FileStorage {
    /// Opens a regular file or a block device.
    ///
    /// # Errors
    /// `Os` where it cannot be opened as asked; `Unsupported` where it is something else (a
    /// directory, a pipe), where `Direct::Always` meets a file without direct I/O, or
    /// `Engine::IoUring` a kernel that refuses it.
    pub fn open(path: impl AsRef<Path>, options: &FileOptions) -> Result<Self, StorageError> {
        let path = path.as_ref();
        let target = Target::open(path, options)?;
        let driver = choose(path, options)?;
        let (path, options) = (path.to_owned(), *options);
        Ok(Self { path, options, target: Arc::new(target), driver })
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether io_uring does the I/O.
    pub fn uses_io_uring(&self) -> bool {
        matches!(self.driver, Driver::Ring(_))
    }

    /// Share of the file's pages that are in the page cache, 0 to 1, where that can be known.
    pub fn cached_share(&self) -> Option<f64> {
        self.target.residency.cached_share(&self.target)
    }
}

fn choose(path: &Path, options: &FileOptions) -> Result<Driver, StorageError> {
    let forbidden = std::env::var_os(NO_IO_URING_VARIABLE).is_some_and(|v| v != "0");
    let why = match options.engine {
        Engine::ThreadPool => "asked for".to_owned(),
        Engine::Auto if forbidden => format!("{NO_IO_URING_VARIABLE} is set"),
        Engine::Auto | Engine::IoUring => match try_ring(options) {
            Ok(mode) => return Ok(Driver::Ring(mode)),
            Err(error) if options.engine == Engine::IoUring => {
                return Err(StorageError::Unsupported {
                    what: format!("io_uring for {}", path.display()),
                    why: format!("{error}; leave the choice open to use threads instead"),
                });
            }
            Err(error) => error.to_string(),
        },
    };
    let pool = pool::Pool::start(POOL_THREADS).map_err(|source| StorageError::Os {
        operation: "starting a thread for",
        target: path.display().to_string(),
        source,
    })?;
    Ok(Driver::Pool { pool, why })
}

/// Sets up a ring and throws it away: the only sure way to know.
fn try_ring(options: &FileOptions) -> Result<uring::Mode, uring::UringError> {
    let mut ring = uring::Ring::new(uring::RingOptions {
        depth: 1,
        bound_to_thread: options.bound_to_thread,
        files: Vec::new(),
        buffers: Vec::new(),
    })?;
    // A filter may allow the set-up and not the use.
    ring.submit()?;
    Ok(ring.mode())
}

impl Storage for FileStorage {
    fn geometry(&self) -> Geometry {
        self.target.geometry()
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn StorageQueue>, StorageError> {
        if options.depth == 0 {
            return Err(StorageError::Misuse("a queue of depth 0 can take no request".into()));
        }
        let target = Arc::clone(&self.target);
        if let Driver::Pool { pool, .. } = &self.driver {
            return Ok(Box::new(pool::PoolQueue::new(Arc::clone(pool), target, options)));
        }
        let bound = self.options.bound_to_thread;
        let queue = ring::RingQueue::new(target, options, bound).map_err(|error| {
            StorageError::Unsupported {
                what: format!("a queue of depth {} on {}", options.depth, self.path.display()),
                why: format!("{error}; ask for less depth, or force the thread pool"),
            }
        })?;
        Ok(Box::new(queue))
    }

    fn explain(&self) -> String {
        let how = match &self.driver {
            Driver::Ring(mode) => format!("io_uring ({mode:?} completions)").to_lowercase(),
            Driver::Pool { why, .. } => format!("{POOL_THREADS} threads ({why})"),
        };
        format!("{}: {}, {how}, {}", self.path.display(), self.target.what(), self.target.route())
    }
}

#[cfg(test)]
mod tests;
