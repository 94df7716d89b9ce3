//! Checks of a request's copy: everything in it may be what a broken kernel wrote.

use abi::ring::{Id, OP_FLUSH, OP_READ, OP_WRITE, RequestEntry};
use abi::status;
use storage::Op;

use crate::queues::{Lead, Queues};
use crate::registry::{BufferEntry, Rights, Tables, Unnamed};
use crate::ring::{ReadRoute, RingShared};

/// Why a request is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    pub status: u16,
    pub detail: u32,
}

impl From<u16> for Refusal {
    fn from(status: u16) -> Self {
        Self { status, detail: 0 }
    }
}

/// What a request that may be served asks of storage, and at which queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub op: Op,
    pub queue: u16,
}

/// The way that a request takes, or why it is refused.
#[inline(always)]
pub(super) fn check(
    ring: &RingShared,
    tables: &Tables,
    queues: &Queues,
    r: &RequestEntry,
) -> Result<Way, Refusal> {
    let op = match r.opcode() {
        OP_FLUSH => Op::Flush,
        OP_READ => Op::Read,
        OP_WRITE => Op::Write,
        _ => return Err(status::BAD_OPCODE.into()),
    };
    let source = find_source(tables, queues, r)?;
    if op != Op::Flush {
        check_transfer(ring, tables, source, r, op)?;
    }
    Ok(Way { op, queue: source.queue })
}

/// Checks what only requests with payload have.
#[inline]
fn check_transfer(
    ring: &RingShared,
    tables: &Tables,
    source: &Lead,
    r: &RequestEntry,
    op: Op,
) -> Result<(), Refusal> {
    let right = if op == Op::Read { Rights::READ } else { Rights::WRITE };
    let buffer = tables.buffer(r.buffer()).map_err(|why| named(why, status::BAD_BUFFER))?;
    if !source.rights.allow(right) || !buffer.rights.allow(right) {
        return Err(status::RIGHTS.into());
    }
    check_length(ring, source, r)?;
    check_ranges(source, buffer, r)?;
    let by_window = matches!(ring.config.read_route, ReadRoute::Direct | ReadRoute::Window);
    if by_window && op == Op::Read && buffer.memory.window.is_none() {
        return Err(status::BAD_BUFFER.into());
    }
    Ok(())
}

fn named(why: Unnamed, never: u16) -> Refusal {
    match why {
        Unnamed::Never => never.into(),
        Unnamed::Stale => status::STALE_ID.into(),
    }
}

#[inline]
fn find_source<'a>(
    tables: &Tables,
    queues: &'a Queues,
    r: &RequestEntry,
) -> Result<&'a Lead, Refusal> {
    queues.lead(r.source()).ok_or_else(|| no_source(tables, queues, r.source()))
}

/// Why a source cannot be had.
#[cold]
#[inline(never)]
fn no_source(tables: &Tables, queues: &Queues, source: Id) -> Refusal {
    match (tables.source(source), queues.failure(source)) {
        (Err(why), _) => named(why, status::BAD_SOURCE),
        (Ok(_), Some(errno)) => Refusal { status: status::OS, detail: errno.unsigned_abs() },
        (Ok(_), None) => status::BAD_SOURCE.into(),
    }
}

fn check_length(ring: &RingShared, source: &Lead, r: &RequestEntry) -> Result<(), Refusal> {
    let (geometry, length) = (&source.geometry, r.length());
    if length > ring.config.staging_stride
        || length > geometry.transfer_bytes_max
        || !length.is_multiple_of(geometry.block_bytes)
    {
        return Err(status::BAD_LENGTH.into());
    }
    Ok(())
}

fn check_ranges(source: &Lead, buffer: &BufferEntry, r: &RequestEntry) -> Result<(), Refusal> {
    let geometry = &source.geometry;
    let length = u64::from(r.length());
    let source_end = r.source_offset().checked_add(length);
    if source_end.is_none_or(|end| end > geometry.bytes)
        || !r.source_offset().is_multiple_of(u64::from(geometry.block_bytes))
    {
        return Err(status::SOURCE_RANGE.into());
    }
    let buffer_end = r.buffer_offset().checked_add(length);
    if buffer_end.is_none_or(|end| end > buffer.memory.bytes) {
        return Err(status::BUFFER_RANGE.into());
    }
    Ok(())
}
