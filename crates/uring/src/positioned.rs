//! Blocking reads and writes between a file and foreign memory.
// UNSAFETY: pread and pwrite on memory that is no Rust slice.
#![expect(unsafe_code, reason = "system calls on foreign memory; bounds are checked here")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use mem::Region;

fn offset_of(offset: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn checked(memory: &Region, memory_offset: usize, bytes: usize) -> io::Result<*mut u8> {
    if memory.check(memory_offset, bytes).is_err() {
        return Err(io::Error::from_raw_os_error(libc::EFAULT));
    }
    Ok(memory.as_ptr().wrapping_add(memory_offset))
}

/// Reads once from a file into memory; fewer bytes than asked for are no error.
///
/// # Errors
/// The system's, or `EFAULT` where the range lies outside the memory.
pub fn read_at(
    file: BorrowedFd<'_>,
    offset: u64,
    memory: &Region,
    memory_offset: usize,
    bytes: usize,
) -> io::Result<usize> {
    let pointer = checked(memory, memory_offset, bytes)?;
    let offset = offset_of(offset)?;
    // SAFETY: `checked` keeps the range inside the region, which `memory` keeps mapped; the region
    // is never lent as a Rust reference, so the kernel may write it.
    let count = unsafe { libc::pread(file.as_raw_fd(), pointer.cast(), bytes, offset) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Writes once from memory to a file; fewer bytes than asked for are no error.
///
/// # Errors
/// The system's, or `EFAULT` where the range lies outside the memory.
pub fn write_at(
    file: BorrowedFd<'_>,
    offset: u64,
    memory: &Region,
    memory_offset: usize,
    bytes: usize,
) -> io::Result<usize> {
    let pointer = checked(memory, memory_offset, bytes)?;
    let offset = offset_of(offset)?;
    // SAFETY: as in `read_at`; the kernel only reads.
    let count = unsafe { libc::pwrite(file.as_raw_fd(), pointer.cast(), bytes, offset) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}
