//! `pread` and `pwrite` as a storage: each request is one system call, made when polled.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use storage::{
    Completion, Counters, Geometry, Lent, Op, QueueOptions, Rejected, Request, Storage,
    StorageError, StorageQueue,
};

/// A file read and written with one system call an I/O.
pub struct PosixStorage {
    file: Arc<File>,
    path: PathBuf,
    geometry: Geometry,
    direct: bool,
}

impl PosixStorage {
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
        let geometry =
            Geometry { bytes, block_bytes: 1, transfer_bytes_max: 1 << 30, read_only: !writes };
        Ok(Self { file: Arc::new(file), path: path.to_owned(), geometry, direct })
    }
}

impl Storage for PosixStorage {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn StorageQueue>, StorageError> {
        Ok(Box::new(PosixQueue {
            file: Arc::clone(&self.file),
            geometry: self.geometry,
            depth: options.depth as usize,
            waiting: Vec::new(),
            counters: Counters::default(),
        }))
    }

    fn explain(&self) -> String {
        let how = if self.direct { "direct" } else { "buffered" };
        format!("{}: pread and pwrite, {how}", self.path.display())
    }
}

struct PosixQueue {
    file: Arc<File>,
    geometry: Geometry,
    depth: usize,
    waiting: Vec<Request>,
    counters: Counters,
}

impl PosixQueue {
    fn serve(&mut self, request: &Request) -> Completion {
        let mut moved = 0;
        let mut errno = 0;
        while moved < request.bytes as usize {
            self.counters.syscalls += 1;
            match self.call(request, moved) {
                Ok(0) => break,
                Ok(bytes) => moved += bytes,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => {
                    errno = e.raw_os_error().unwrap_or(0);
                    break;
                }
            }
        }
        let bytes = u32::try_from(moved).expect("no more than was asked for");
        match request.op {
            Op::Read => self.counters.bytes_read += u64::from(bytes),
            _ => self.counters.bytes_written += u64::from(bytes),
        }
        self.counters.ios_at_device += 1;
        self.counters.completions_polled += 1;
        let status = match errno {
            0 => spec::Status::SUCCESS,
            _ => spec::Status::from_bits(abi::status::OS),
        };
        Completion { token: request.token, status, bytes, errno }
    }

    fn call(&self, request: &Request, moved: usize) -> std::io::Result<usize> {
        let offset = request.memory_offset + moved;
        let bytes = request.bytes as usize - moved;
        let at = request.offset + moved as u64;
        match request.op {
            Op::Read => uring::read_at(self.file.as_fd(), at, &request.memory, offset, bytes),
            Op::Write => uring::write_at(self.file.as_fd(), at, &request.memory, offset, bytes),
            Op::Flush | Op::WriteZeroes => Err(ErrorKind::Unsupported.into()),
        }
    }
}

impl StorageQueue for PosixQueue {
    fn try_submit(&mut self, request: Lent<'_>) -> Result<(), Rejected> {
        if self.waiting.len() == self.depth {
            return Err(Rejected::QueueFull);
        }
        if request.offset + u64::from(request.bytes) > self.geometry.bytes {
            return Err(Rejected::Invalid(storage::status::LBA_OUT_OF_RANGE));
        }
        self.waiting.push(request.keep());
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let mut waiting = std::mem::take(&mut self.waiting);
        completions.extend(waiting.drain(..).map(|request| self.serve(&request)));
        self.waiting = waiting;
    }

    fn wait_for_completion(&mut self, _limit: Duration) {}

    fn cancel(&mut self, _token: u64) {}

    fn quiesce(&mut self, completions: &mut Vec<Completion>) {
        self.poll(completions);
    }

    fn in_flight(&self) -> u32 {
        u32::try_from(self.waiting.len()).expect("no more than the depth")
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
