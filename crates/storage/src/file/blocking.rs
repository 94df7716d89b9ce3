//! One request from beginning to end by blocking system calls.

use mem::{MemoryKind, Region};
use rustix::fs::FallocateFlags;
use spec::Status;

use super::outcome;
use super::target::{Route, Target};
use crate::queue::{Completion, Lent, Op};

/// Bytes of zeros that are written at once where nothing better is offered.
pub(super) const ZEROS_BYTES: usize = 256 << 10;

/// The ways to make a range read as zeros without writing it, best first.
pub(super) const ZEROING: [FallocateFlags; 2] = [
    FallocateFlags::ZERO_RANGE.union(FallocateFlags::KEEP_SIZE),
    FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE),
];

/// Memory full of zeros, for the case that there is no way but writing them.
pub(super) fn zeros() -> Result<Region, i32> {
    Region::map_anonymous(ZEROS_BYTES, MemoryKind::Host)
        .map_err(|_| rustix::io::Errno::NOMEM.raw_os_error())
}

/// Carries a request out. Adds the system calls that it took.
pub(super) fn execute(
    target: &Target,
    request: &Lent<'_>,
    route: Route,
    syscalls: &mut u64,
) -> Completion {
    let (bytes, errno) = match request.op {
        Op::Flush => {
            *syscalls += 1;
            (0, rustix::fs::fdatasync(target.buffered()).err().map_or(0, |e| e.raw_os_error()))
        }
        Op::Read | Op::Write => transfer(target, request, route, syscalls),
        Op::WriteZeroes => write_zeroes(target, request, syscalls),
    };
    let status = if errno == 0 { Status::SUCCESS } else { outcome::status_of(errno, request.op) };
    Completion { token: request.token, status, bytes, errno }
}

fn transfer(target: &Target, request: &Lent<'_>, route: Route, syscalls: &mut u64) -> (u32, i32) {
    let mut route = route;
    let mut done = 0u32;
    while done < request.bytes {
        let offset = request.offset + u64::from(done);
        let at = request.memory_offset + done as usize;
        let left = request.bytes - done;
        route = target.still(route, offset, left, request.memory, at);
        let fd = target.descriptor(route);
        *syscalls += 1;
        let result = if request.op == Op::Read {
            uring::read_at(fd, offset, request.memory, at, left as usize)
        } else {
            uring::write_at(fd, offset, request.memory, at, left as usize)
        };
        match result {
            Ok(0) => break,
            Ok(count) => done += u32::try_from(count).expect("no more than asked for"),
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(0);
                if route == Route::Direct && outcome::refuses_direct(errno) {
                    route = Route::Buffered;
                } else if !outcome::is_transient(errno) {
                    return (done, errno);
                }
            }
        }
    }
    (done, 0)
}

fn write_zeroes(target: &Target, request: &Lent<'_>, syscalls: &mut u64) -> (u32, i32) {
    for flags in ZEROING {
        *syscalls += 1;
        let bytes = u64::from(request.bytes);
        match rustix::fs::fallocate(target.buffered(), flags, request.offset, bytes) {
            Ok(()) => return (request.bytes, 0),
            Err(error) if outcome::refuses_zeroing(error.raw_os_error()) => {}
            Err(error) => return (0, error.raw_os_error()),
        }
    }
    let zeros = match zeros() {
        Ok(zeros) => zeros,
        Err(errno) => return (0, errno),
    };
    let mut done = 0;
    while done < request.bytes {
        let bytes = (request.bytes - done).min(u32::try_from(ZEROS_BYTES).expect("small"));
        let piece = Lent {
            op: Op::Write,
            offset: request.offset + u64::from(done),
            bytes,
            memory: &zeros,
            memory_offset: 0,
            token: request.token,
        };
        let (count, errno) = transfer(target, &piece, Route::Buffered, syscalls);
        done += count;
        if errno != 0 || count < bytes {
            return (done, errno);
        }
    }
    (done, 0)
}
