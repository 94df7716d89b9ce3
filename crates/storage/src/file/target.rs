//! An open file: its descriptors, its length, and what direct I/O demands of a request.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mem::{MemoryKind, Region};
use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use spec::Status;

use super::residency::{Map, Method};
use super::{Direct, FileOptions};
use crate::admit::{admit, status};
use crate::queue::{Geometry, Lent, Op, StorageError};

/// Largest request: well below the kernel's own limit of 2 GiB less a page.
const TRANSFER_BYTES_MAX: u32 = 1 << 30;

/// Which descriptor a transfer uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Route {
    Buffered,
    Direct,
}

/// What direct I/O demands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alignment {
    /// Of addresses.
    pub memory_bytes: u64,
    /// Of file offsets and lengths.
    pub offset_bytes: u64,
}

pub(super) struct Target {
    buffered: Arc<OwnedFd>,
    direct: Option<(Arc<OwnedFd>, Alignment)>,
    /// Why there is no direct descriptor.
    no_direct: &'static str,
    preference: Direct,
    pub(super) residency: Method,
    kind: FileType,
    writable: bool,
    bytes: AtomicU64,
}

fn os(operation: &'static str, path: &Path, error: rustix::io::Errno) -> StorageError {
    StorageError::Os { operation, target: path.display().to_string(), source: error.into() }
}

impl Target {
    pub(super) fn open(path: &Path, options: &FileOptions) -> Result<Self, StorageError> {
        let stat = rustix::fs::stat(path).map_err(|e| os("opening", path, e))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let unsupported = |why: &str| StorageError::Unsupported {
            what: format!("opening {}", path.display()),
            why: why.to_owned(),
        };
        if !matches!(kind, FileType::RegularFile | FileType::BlockDevice) {
            let why = match kind {
                FileType::Directory => "it is a directory; name a file in it",
                _ => "it is neither a regular file nor a block device",
            };
            return Err(unsupported(why));
        }
        let access = if options.writable { OFlags::RDWR } else { OFlags::RDONLY };
        let flags = access | OFlags::CLOEXEC;
        // Should a pipe have taken the file's place meanwhile, opening it must not block.
        let buffered = rustix::fs::open(path, flags | OFlags::NONBLOCK, Mode::empty())
            .map_err(|e| os("opening", path, e))?;
        let magic = rustix::fs::fstatfs(&buffered).map_or(0, |s| s.f_type.cast_unsigned());
        let residency = Method::choose(magic, kind, buffered.as_fd());
        let (direct, no_direct) = match (options.direct, residency) {
            (Direct::Never, _) => (None, "not wanted"),
            (_, Method::AlwaysCached) => (None, "pages are always in memory"),
            _ => match open_direct(&buffered, flags) {
                Some(direct) => (Some(direct), ""),
                None => (None, "not offered by the file system"),
            },
        };
        if options.direct == Direct::Always && direct.is_none() {
            return Err(unsupported(&format!("direct I/O is demanded, and {no_direct}")));
        }
        let direct = direct.map(|(fd, alignment)| (Arc::new(fd), alignment));
        let target = Self {
            buffered: Arc::new(buffered),
            direct,
            no_direct,
            preference: options.direct,
            residency,
            kind,
            writable: options.writable,
            bytes: AtomicU64::new(0),
        };
        let bytes = target.measure().map_err(|e| os("measuring", path, e))?;
        target.bytes.store(bytes, Ordering::Relaxed);
        Ok(target)
    }

    fn measure(&self) -> rustix::io::Result<u64> {
        if self.kind == FileType::BlockDevice {
            // No offset of ours depends on the file position.
            return rustix::fs::seek(&self.buffered, SeekFrom::End(0));
        }
        let bytes = rustix::fs::fstat(&self.buffered)?.st_size;
        Ok(u64::try_from(bytes).expect("a length is not negative"))
    }

    /// Length when it was last asked for.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Size and rules, with the length as it is now.
    pub(super) fn geometry(&self) -> Geometry {
        if let Ok(bytes) = self.measure() {
            self.bytes.store(bytes, Ordering::Relaxed);
        }
        self.known_geometry()
    }

    /// Size and rules, with the length as it was last seen.
    pub(super) fn known_geometry(&self) -> Geometry {
        Geometry {
            bytes: self.bytes(),
            block_bytes: 1,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            read_only: !self.writable,
        }
    }

    /// Checks a request against the file.
    pub(super) fn admit(&self, request: &Lent<'_>) -> Result<(), Status> {
        let known = self.known_geometry();
        // A read asks the file itself where it ends; a write behind the end that we know may be
        // legal by now, which is worth a second look.
        let geometry = match request.op {
            Op::Read | Op::Flush => Geometry { bytes: u64::MAX, ..known },
            Op::Write | Op::WriteZeroes => known,
        };
        match admit(&geometry, request) {
            Err(status::LBA_OUT_OF_RANGE) => admit(&self.geometry(), request).map(drop),
            answer => answer.map(drop),
        }
    }

    pub(super) fn buffered(&self) -> BorrowedFd<'_> {
        self.buffered.as_fd()
    }

    /// The descriptors in the order of [`Route`]; the buffered one twice where there is no other.
    pub(super) fn descriptors(&self) -> Vec<Arc<OwnedFd>> {
        let buffered = Arc::clone(&self.buffered);
        let direct = self.direct.as_ref().map_or(&self.buffered, |(fd, _)| fd);
        vec![buffered, Arc::clone(direct)]
    }

    pub(super) fn descriptor(&self, route: Route) -> BorrowedFd<'_> {
        match (route, &self.direct) {
            (Route::Direct, Some((fd, _))) => fd.as_fd(),
            _ => self.buffered(),
        }
    }

    /// Chooses the descriptor for a request.
    pub(super) fn choose(&self, request: &Lent<'_>, map: &mut Map, syscalls: &mut u64) -> Route {
        if !matches!(request.op, Op::Read | Op::Write) || !self.allows_direct(request) {
            return Route::Buffered;
        }
        if self.preference != Direct::Always && map.is_cached(self, request.offset, syscalls) {
            return Route::Buffered;
        }
        Route::Direct
    }

    fn allows_direct(&self, request: &Lent<'_>) -> bool {
        let Some((_, alignment)) = &self.direct else { return false };
        aligned(alignment, request.offset, request.bytes, request.memory, request.memory_offset)
    }

    /// Whether the rest of a transfer may go on as it began.
    pub(super) fn still(
        &self,
        route: Route,
        offset: u64,
        bytes: u32,
        memory: &Region,
        memory_offset: usize,
    ) -> Route {
        match (&self.direct, route) {
            (Some((_, alignment)), Route::Direct)
                if aligned(alignment, offset, bytes, memory, memory_offset) =>
            {
                Route::Direct
            }
            _ => Route::Buffered,
        }
    }

    /// What this is, for people.
    pub(super) fn what(&self) -> String {
        let kind = if self.kind == FileType::BlockDevice { "block device" } else { "regular file" };
        let rights = if self.writable { "writable" } else { "read only" };
        format!("{kind} of {} bytes, {rights}", self.bytes())
    }

    /// How it is read and written, for people.
    pub(super) fn route(&self) -> String {
        let cached = match self.residency.cached_share(self) {
            Some(share) => {
                format!("{:.0} % of its pages cached ({})", share * 100.0, self.residency.name())
            }
            None => format!("cached pages {}", self.residency.name()),
        };
        let Some((_, alignment)) = &self.direct else {
            return format!("buffered: {cached}; direct I/O {}", self.no_direct);
        };
        let rule = match (self.preference, self.residency) {
            (Direct::Always, _) => "direct",
            (_, Method::Unknown) => "buffered",
            _ => "direct where most pages around are not cached, else buffered",
        };
        format!(
            "{rule}: {cached}; direct I/O needs offsets and lengths of {} bytes, memory of {}",
            alignment.offset_bytes, alignment.memory_bytes
        )
    }
}

fn aligned(
    alignment: &Alignment,
    offset: u64,
    bytes: u32,
    memory: &Region,
    memory_offset: usize,
) -> bool {
    let address = memory.address() + memory_offset as u64;
    memory.kind() == MemoryKind::Host
        && offset.is_multiple_of(alignment.offset_bytes)
        && u64::from(bytes).is_multiple_of(alignment.offset_bytes)
        && address.is_multiple_of(alignment.memory_bytes)
}

/// Opens the very file behind `buffered` once more, for direct I/O; `None` where it has none.
pub fn open_direct(buffered: &OwnedFd, flags: OFlags) -> Option<(OwnedFd, Alignment)> {
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(buffered));
    let direct = rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()).ok()?;
    let alignment = stated(&direct).or_else(|| tried(&direct))?;
    Some((direct, alignment))
}

/// The alignment that the kernel states (Linux 6.1); `None` where it says nothing.
fn stated(direct: &OwnedFd) -> Option<Alignment> {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    let stat = statx(direct, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let told = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    let memory_bytes = u64::from(stat.stx_dio_mem_align);
    let offset_bytes = u64::from(stat.stx_dio_offset_align);
    (told && memory_bytes > 0 && offset_bytes > 0)
        .then_some(Alignment { memory_bytes, offset_bytes })
}

/// The alignment that reading shows: the smallest of the usual ones that works.
fn tried(direct: &OwnedFd) -> Option<Alignment> {
    let memory = Region::map_anonymous(8192, MemoryKind::Host).ok()?;
    [512usize, 4096].into_iter().find_map(|bytes| {
        uring::read_at(direct.as_fd(), bytes as u64, &memory, bytes, bytes).ok()?;
        let bytes = bytes as u64;
        Some(Alignment { memory_bytes: bytes, offset_bytes: bytes })
    })
}
