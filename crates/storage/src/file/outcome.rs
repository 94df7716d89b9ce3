//! What an errno means in the words of storage.

use rustix::io::Errno;
use spec::Status;

use crate::admit::status;
use crate::queue::Op;

/// The status that an errno (a positive number) stands for.
pub(super) fn status_of(errno: i32, op: Op) -> Status {
    match Errno::from_raw_os_error(errno) {
        Errno::CANCELED => status::ABORT_REQUESTED,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => status::CAPACITY_EXCEEDED,
        Errno::ROFS | Errno::PERM | Errno::ACCESS => status::WRITE_PROTECTED,
        Errno::IO | Errno::NODATA | Errno::ILSEQ => match op {
            Op::Read => status::UNRECOVERED_READ,
            Op::Write | Op::WriteZeroes | Op::Flush => status::WRITE_FAULT,
        },
        _ => status::INTERNAL_ERROR,
    }
}

/// Whether the same call may succeed if it is only made again.
pub(super) fn is_transient(errno: i32) -> bool {
    matches!(Errno::from_raw_os_error(errno), Errno::INTR | Errno::AGAIN)
}

/// Whether a direct transfer was refused for what it is, so that a buffered one can do it.
pub(super) fn refuses_direct(errno: i32) -> bool {
    matches!(Errno::from_raw_os_error(errno), Errno::INVAL | Errno::FAULT | Errno::OPNOTSUPP)
}

/// Whether a way to make a range read as zeros is not known here, so that the next is tried.
pub(super) fn refuses_zeroing(errno: i32) -> bool {
    matches!(
        Errno::from_raw_os_error(errno),
        Errno::INVAL | Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS | Errno::NODEV
    )
}
