//! io_uring as a storage: the asynchronous baseline, with registered files and fixed buffers.
//!
//! What is submitted waits until a batch is together, or nothing else is in flight; a wait submits
//! and gathers several completions at once. So a system call carries several I/Os, while the queue
//! stays nearly full.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result};
use storage::{
    Completion, Counters, Geometry, Lent, Op, QueueOptions, Rejected, Storage, StorageError,
    StorageQueue,
};
use uring::{Ended, FileIndex, Kind, Ring, RingOptions, Transfer};

/// How long a wait gathers completions after the first.
const GATHER: Duration = Duration::from_micros(50);
/// Longest that ending everything may take.
const QUIESCE_LIMIT: Duration = Duration::from_secs(5);
/// Alignment that direct I/O may ask for.
const DIRECT_BLOCK_BYTES: u32 = 512;

/// A file read and written through io_uring.
pub struct UringStorage {
    file: Arc<OwnedFd>,
    path: PathBuf,
    geometry: Geometry,
    direct: bool,
}

impl UringStorage {
    /// Opens a file of `bytes` bytes, past the page cache if `direct`.
    ///
    /// # Errors
    /// The system's own, with the file's name.
    pub fn open(path: &Path, bytes: u64, writes: bool, direct: bool) -> Result<Self> {
        let flags = if direct { rustix::fs::OFlags::DIRECT.bits().cast_signed() } else { 0 };
        let file = File::options()
            .read(true)
            .write(writes)
            .custom_flags(flags)
            .open(path)
            .with_context(|| format!("opening {}", path.display()))?;
        let block_bytes = if direct { DIRECT_BLOCK_BYTES } else { 1 };
        let geometry =
            Geometry { bytes, block_bytes, transfer_bytes_max: 1 << 30, read_only: !writes };
        Ok(Self { file: Arc::new(file.into()), path: path.to_owned(), geometry, direct })
    }
}

/// Why this machine has no io_uring, or nothing where it has.
pub fn missing() -> Option<&'static str> {
    static WHY: OnceLock<Option<String>> = OnceLock::new();
    let try_one = || {
        let (files, buffers) = (Vec::new(), Vec::new());
        let options = RingOptions { depth: 1, bound_to_thread: true, files, buffers };
        Ring::new(options).err().map(|error| error.to_string())
    };
    WHY.get_or_init(try_one).as_deref()
}

impl Storage for UringStorage {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn StorageQueue>, StorageError> {
        let ring = Ring::new(RingOptions {
            depth: options.depth,
            bound_to_thread: true,
            files: vec![Arc::clone(&self.file)],
            buffers: options.registered.clone(),
        })
        .map_err(|e| StorageError::Unsupported {
            what: format!("io_uring for {}", self.path.display()),
            why: e.to_string(),
        })?;
        Ok(Box::new(UringQueue {
            ring,
            geometry: self.geometry,
            batch: (options.depth / 4).max(1),
            ended: Vec::new(),
            counters: Counters::default(),
        }))
    }

    fn explain(&self) -> String {
        let how = if self.direct { "direct" } else { "buffered" };
        format!("{}: io_uring, {how}, registered file, fixed buffers", self.path.display())
    }
}

struct UringQueue {
    ring: Ring,
    geometry: Geometry,
    /// Entries that are worth a system call.
    batch: u32,
    ended: Vec<Ended>,
    counters: Counters,
}

impl UringQueue {
    fn reap(&mut self, completions: &mut Vec<Completion>) {
        self.ring.reap(&mut self.ended);
        for ended in self.ended.drain(..) {
            self.counters.ios_at_device += 1;
            self.counters.completions_polled += 1;
            let bytes = u32::try_from(ended.result).unwrap_or(0);
            match ended.transfer.kind {
                Kind::Read => self.counters.bytes_read += u64::from(bytes),
                _ => self.counters.bytes_written += u64::from(bytes),
            }
            let (status, errno) = match ended.result {
                0.. => (spec::Status::SUCCESS, 0),
                error => (spec::Status::from_bits(abi::status::OS), -error),
            };
            completions.push(Completion { token: ended.tag, status, bytes, errno });
        }
    }
}

impl StorageQueue for UringQueue {
    fn try_submit(&mut self, request: Lent<'_>) -> Result<(), Rejected> {
        let kind = match request.op {
            Op::Read => Kind::Read,
            Op::Write => Kind::Write,
            Op::Flush | Op::WriteZeroes => {
                return Err(Rejected::Invalid(storage::status::INVALID_FIELD));
            }
        };
        if request.offset + u64::from(request.bytes) > self.geometry.bytes {
            return Err(Rejected::Invalid(storage::status::LBA_OUT_OF_RANGE));
        }
        let Lent { token, offset, bytes, memory, memory_offset, .. } = request;
        let memory = memory.clone();
        let file = FileIndex(0);
        let transfer = Transfer { file, kind, offset, bytes, memory, memory_offset };
        self.ring.push(token, transfer).map_err(|_| Rejected::QueueFull)
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let waiting = self.ring.unsubmitted();
        if waiting > 0 && (waiting >= self.batch || waiting == self.ring.in_flight()) {
            // A failure shows as requests without an answer, which end by their limit.
            let _ = self.ring.submit();
        }
        self.reap(completions);
    }

    fn wait_for_completion(&mut self, limit: Duration) {
        let want = self.batch.min(self.ring.in_flight());
        // As above.
        let _ = self.ring.wait(want, GATHER, limit);
    }

    fn cancel(&mut self, token: u64) {
        self.ring.cancel(token);
    }

    fn quiesce(&mut self, completions: &mut Vec<Completion>) {
        self.ring.drain(QUIESCE_LIMIT, &mut self.ended);
        self.reap(completions);
    }

    fn in_flight(&self) -> u32 {
        self.ring.in_flight()
    }

    fn counters(&self) -> Counters {
        Counters { syscalls: self.ring.counters().syscalls, ..self.counters }
    }
}
