//! Which pages of a file are in the page cache.
//!
//! Two ways to ask, neither of which starts any I/O. `cachestat` asks the inode that the descriptor
//! names; on a stacked file system (overlayfs) that is an empty one, and only the pages that a
//! mapping would show, by `mincore`, tell the truth.
// UNSAFETY: cachestat has no wrapper; mincore needs a mapping of the file.
#![expect(unsafe_code, reason = "two system calls without safe wrappers")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// Pages of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pages {
    /// All pages that the range touches.
    pub total: u64,
    /// Those in the page cache.
    pub cached: u64,
}

/// Number of the cachestat system call, the same on all architectures. Source: Linux 6.5.
const SYS_CACHESTAT: libc::c_long = 451;
const PAGE_BYTES: u64 = 4096;

#[repr(C)]
struct CachestatRange {
    offset: u64,
    len: u64,
}

#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

fn total(offset: u64, bytes: u64) -> u64 {
    if bytes == 0 {
        return 0;
    }
    (offset + bytes).div_ceil(PAGE_BYTES) - offset / PAGE_BYTES
}

/// `TMPFS_MAGIC` and `RAMFS_MAGIC`. Source: Linux uapi magic.h.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Whether the file system keeps its files in memory, so that nothing goes past the page cache, even where
/// the kernel takes `O_DIRECT` for it (tmpfs since Linux 6.6).
pub fn is_in_memory(file: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|s| IN_MEMORY.contains(&s.f_type.cast_unsigned()))
}

/// Asks by `cachestat`.
///
/// # Errors
/// `ENOSYS` before Linux 6.5, `EPERM` where it is filtered, `EOPNOTSUPP` on hugetlbfs.
pub fn by_cachestat(file: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<Pages> {
    let total = total(offset, bytes);
    if total == 0 {
        return Ok(Pages::default());
    }
    let range = CachestatRange { offset, len: bytes };
    let mut answer = Cachestat::default();
    // SAFETY: both structures are as the kernel declares them and live across the call.
    let result = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut answer, 0)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Pages { total, cached: answer.cached.min(total) })
}

/// Asks by `mincore` on a mapping made for the purpose.
///
/// # Errors
/// What `mmap` and `mincore` refuse, such as `ENODEV` for a file that cannot be mapped.
pub fn by_mincore(file: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<Pages> {
    let total = total(offset, bytes);
    if total == 0 {
        return Ok(Pages::default());
    }
    let start = offset - offset % PAGE_BYTES;
    let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
    let len = usize::try_from(total * PAGE_BYTES).map_err(|_| invalid())?;
    let start = libc::off_t::try_from(start).map_err(|_| invalid())?;
    // SAFETY: a new shared mapping at an address of the kernel's choice, never read through.
    let pointer = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            start,
        )
    };
    if pointer == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let mapping = Mapping { base: NonNull::new(pointer).expect("mmap never returns null"), len };
    let mut present = vec![0u8; usize::try_from(total).map_err(|_| invalid())?];
    // SAFETY: the mapping spans `len` bytes, and the vector has a byte for each of its pages.
    let result = unsafe { libc::mincore(mapping.base.as_ptr(), len, present.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // Bit 0 is presence; the others are reserved.
    let cached = present.iter().filter(|p| **p & 1 == 1).count() as u64;
    Ok(Pages { total, cached })
}

struct Mapping {
    base: NonNull<libc::c_void>,
    len: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what mmap returned, and nobody else knows the address.
        let result = unsafe { libc::munmap(self.base.as_ptr(), self.len) };
        debug_assert!(result == 0, "munmap of our own mapping succeeds");
    }
}
