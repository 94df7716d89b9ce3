//! An open file or block device.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use storage::{Alignment, Residency};

use crate::error::BulkError;
use crate::knees::PAGE_BYTES;
use crate::route::Op;

/// What a file is opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reading. It must exist.
    Read,
    /// Both. It must exist.
    ReadWrite,
    /// Writing.
    Write {
        /// Made where it does not exist, with mode 0666 less the umask.
        create: bool,
        /// Emptied first.
        truncate: bool,
    },
}

/// When to go around the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CachePolicy {
    /// Reads go through it where the pages are in it, else around it. Writes go through it.
    #[default]
    Auto,
    /// Always through it.
    Cached,
    /// Around it wherever the file system allows.
    Direct,
}

/// An open file or block device; clones share it.
#[derive(Clone)]
pub struct File(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    path: PathBuf,
    pub buffered: Arc<OwnedFd>,
    flags: OFlags,
    direct: OnceLock<Option<(Arc<OwnedFd>, Alignment)>>,
    pub residency: Residency,
    kind: FileType,
    pub access: Access,
}

fn os(operation: &'static str, path: &Path, error: rustix::io::Errno) -> BulkError {
    BulkError::os(operation, path.display().to_string(), &io::Error::from(error))
}

/// The alignment by which direct I/O is done here; `None` where it wants whole blocks that are longer than
/// a page, or memory that is aligned beyond one: slots and chunks are made for pages.
fn usable(alignment: Alignment) -> Option<Alignment> {
    let fits = |bytes: u64| bytes.is_power_of_two() && bytes <= PAGE_BYTES;
    if !fits(alignment.offset_bytes) || !fits(alignment.memory_bytes) {
        return None;
    }
    // A page belongs to one way only, so that the two never write the same one.
    Some(Alignment { offset_bytes: PAGE_BYTES, ..alignment })
}

impl Inner {
    /// Opens a file. `residency` knows how cached pages are found out on a device number.
    pub fn open(
        path: &Path,
        access: Access,
        residency: impl FnOnce(u64, FileType, BorrowedFd<'_>) -> Residency,
    ) -> Result<Self, BulkError> {
        let flags = OFlags::CLOEXEC
            | match access {
                Access::Read => OFlags::RDONLY,
                Access::ReadWrite | Access::Write { .. } => OFlags::RDWR,
            };
        let mut once = OFlags::NONBLOCK;
        if let Access::Write { create, truncate } = access {
            once.set(OFlags::CREATE, create);
            once.set(OFlags::TRUNC, truncate);
        }
        // A pipe in the file's place must not block; for files the flag means nothing.
        let buffered = rustix::fs::open(path, flags | once, Mode::from_raw_mode(0o666))
            .map_err(|e| os("opening", path, e))?;
        let stat = rustix::fs::fstat(&buffered).map_err(|e| os("looking at", path, e))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            // For reading the system opens it.
            return Err(os("opening", path, rustix::io::Errno::ISDIR));
        }
        if !matches!(kind, FileType::RegularFile | FileType::BlockDevice) {
            let what = format!("opening {}", path.display());
            let why = "it is neither a file nor a block device; name one".to_owned();
            return Err(BulkError::Unsupported { what, why });
        }
        let residency = residency(stat.st_dev, kind, buffered.as_fd());
        let (path, buffered) = (path.to_owned(), Arc::new(buffered));
        Ok(Self { path, buffered, flags, direct: OnceLock::new(), residency, kind, access })
    }

    /// The twin for direct I/O, opened when it is first asked for.
    pub fn direct(&self) -> Option<&(Arc<OwnedFd>, Alignment)> {
        let opened = self.direct.get_or_init(|| {
            if self.residency == Residency::AlwaysCached {
                // A kernel may take the flag there; the bytes come out of memory all the same.
                return None;
            }
            let (fd, alignment) = storage::open_direct(&self.buffered, self.flags)?;
            Some((Arc::new(fd), usable(alignment)?))
        });
        opened.as_ref()
    }

    pub fn is_regular(&self) -> bool {
        self.kind == FileType::RegularFile
    }

    /// Whether it was opened for this.
    pub fn check_access(&self, op: Op) -> Result<(), BulkError> {
        match (op, self.access) {
            (Op::Write, Access::Read) => {
                Err(BulkError::Misuse(format!("{} was opened for reading only", self.name())))
            }
            _ => Ok(()),
        }
    }

    pub fn bytes(&self) -> io::Result<u64> {
        if self.kind == FileType::BlockDevice {
            // No offset of ours depends on the file position.
            return Ok(rustix::fs::seek(&self.buffered, SeekFrom::End(0))?);
        }
        let bytes = rustix::fs::fstat(&self.buffered)?.st_size;
        Ok(u64::try_from(bytes).unwrap_or(0))
    }

    /// Its name, with an offset.
    pub fn at(&self, offset: u64) -> String {
        format!("{} at byte {offset}", self.path.display())
    }

    pub fn name(&self) -> String {
        self.path.display().to_string()
    }
}

impl File {
    /// Its length now.
    ///
    /// # Errors
    /// [`BulkError::Os`].
    pub fn bytes(&self) -> Result<u64, BulkError> {
        self.0.bytes().map_err(|e| BulkError::os("measuring", self.0.name(), &e))
    }

    /// The open file itself, for what is neither reading nor writing in bulk.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.buffered.as_fd()
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Makes what was written durable: data, length and times (`fsync`). Waits for the drive.
    ///
    /// # Errors
    /// [`BulkError::Os`]: some of it may be lost.
    pub fn sync(&self) -> Result<(), BulkError> {
        rustix::fs::fsync(&self.0.buffered).map_err(|e| os("syncing", &self.0.path, e))
    }

    /// Sets its length.
    ///
    /// # Errors
    /// [`BulkError::Os`].
    pub fn set_bytes(&self, bytes: u64) -> Result<(), BulkError> {
        rustix::fs::ftruncate(&self.0.buffered, bytes).map_err(|e| os("resizing", &self.0.path, e))
    }

    /// How it can be read and written here, and why not better, for people.
    pub fn explain(&self) -> String {
        let cached = self.0.residency.name();
        match self.0.direct() {
            Some((_, alignment)) => format!(
                "{}: cached pages {cached}; direct I/O at multiples of {} bytes, memory of {}",
                self.0.name(),
                alignment.offset_bytes,
                alignment.memory_bytes
            ),
            None => format!(
                "{}: cached pages {cached}; no direct I/O on its file system, or none by pages",
                self.0.name()
            ),
        }
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "File({}, {:?})", self.0.name(), self.0.access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_io_by_more_than_pages_is_none() {
        let usable = |offset_bytes, memory_bytes| {
            usable(Alignment { offset_bytes, memory_bytes })
                .map(|a| (a.offset_bytes, a.memory_bytes))
        };
        assert_eq!(usable(512, 4), Some((4096, 4)));
        assert_eq!(usable(4096, 4096), Some((4096, 4096)));
        for (offset, memory) in [(8192, 512), (65536, 4), (512, 8192), (0, 4), (3000, 4), (512, 0)]
        {
            assert_eq!(usable(offset, memory), None, "{offset} {memory}");
        }
    }
}
