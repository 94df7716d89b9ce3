//! What every kind of storage checks before it takes a request, and the statuses it answers with.
//!
//! The rules are the same everywhere, so that callers and the conformance suite need to know one
//! set: a range of zero bytes, beyond `transfer_bytes_max`, off the block grid or outside the
//! memory is `INVALID_FIELD`; a write to read-only storage is `WRITE_PROTECTED`; a write that leaves
//! the storage is `LBA_OUT_OF_RANGE`. A read that leaves the storage is legal and ends short.

use spec::Status;

use crate::queue::{Geometry, Lent, Op};

/// Statuses that storage answers with itself. Source: NVMe Base 2.0c, 3.3.3.2.1, figures 95-97.
pub mod status {
    use spec::Status;

    /// A field of the request is illegal.
    pub const INVALID_FIELD: Status = Status::new(0, 0x02);
    /// The storage failed inside.
    pub const INTERNAL_ERROR: Status = Status::new(0, 0x06);
    /// The request was ended by `cancel` or `quiesce`.
    pub const ABORT_REQUESTED: Status = Status::new(0, 0x07);
    /// The request was ended because its queue went away (a reset).
    pub const ABORTED_QUEUE_DELETED: Status = Status::new(0, 0x08);
    /// The storage is read only.
    pub const WRITE_PROTECTED: Status = Status::new(0, 0x20);
    /// The range leaves the storage.
    pub const LBA_OUT_OF_RANGE: Status = Status::new(0, 0x80);
    /// No room is left behind the storage.
    pub const CAPACITY_EXCEEDED: Status = Status::new(0, 0x81);
    /// The medium did not take the data.
    pub const WRITE_FAULT: Status = Status::new(2, 0x80);
    /// The medium did not give the data.
    pub const UNRECOVERED_READ: Status = Status::new(2, 0x81);
}

/// Checks a request and says how many bytes it will move: less than asked for where a read leaves
/// the storage, none for `Flush`.
///
/// # Errors
/// The status that refuses the request, by the rules at the top of this file.
#[inline]
pub(crate) fn admit(geometry: &Geometry, request: &Lent<'_>) -> Result<u32, Status> {
    if request.op == Op::Flush {
        return Ok(0);
    }
    let block = u64::from(geometry.block_bytes);
    let aligned = block == 1
        || (request.offset.is_multiple_of(block) && u64::from(request.bytes).is_multiple_of(block));
    if request.bytes == 0 || request.bytes > geometry.transfer_bytes_max || !aligned {
        return Err(status::INVALID_FIELD);
    }
    let in_memory = || request.memory.check(request.memory_offset, request.bytes as usize).is_ok();
    if request.op != Op::WriteZeroes && !in_memory() {
        return Err(status::INVALID_FIELD);
    }
    let Some(end) = request.offset.checked_add(u64::from(request.bytes)) else {
        return Err(status::LBA_OUT_OF_RANGE);
    };
    if request.op == Op::Read {
        let there = geometry.bytes.saturating_sub(request.offset);
        return Ok(u32::try_from(there).map_or(request.bytes, |there| request.bytes.min(there)));
    }
    if geometry.read_only {
        return Err(status::WRITE_PROTECTED);
    }
    if end > geometry.bytes {
        return Err(status::LBA_OUT_OF_RANGE);
    }
    Ok(request.bytes)
}
