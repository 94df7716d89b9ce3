//! Checks of a request's copy: everything in it may be what a broken kernel wrote.

use abi::ring::{OP_FLUSH, OP_READ, OP_WRITE, Request};
use abi::status;

use crate::queues::{Leads, Queues};
use crate::registry::{BufferEntry, Rights, SourceEntry, Tables, Unnamed};
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

/// The storage queue that a request may go to, or why it may not.
pub(super) fn check(
    ring: &RingShared,
    tables: &Tables,
    queues: &Queues,
    r: &Request,
) -> Result<u16, Refusal> {
    let right = match r.opcode {
        OP_READ => Rights::READ,
        OP_WRITE => Rights::WRITE,
        OP_FLUSH => return check_source(tables, queues, r).map(|(_, queue)| queue),
        _ => return Err(status::BAD_OPCODE.into()),
    };
    let (source, queue) = check_source(tables, queues, r)?;
    let buffer = tables.buffer(r.buffer).map_err(|why| named(why, status::BAD_BUFFER))?;
    if !source.rights.allow(right) || !buffer.rights.allow(right) {
        return Err(status::RIGHTS.into());
    }
    check_length(ring, source, r)?;
    check_ranges(source, buffer, r)?;
    let by_window = right == Rights::READ && ring.config.read_route == ReadRoute::Window;
    if by_window && buffer.memory.window.is_none() {
        return Err(status::BAD_BUFFER.into());
    }
    Ok(queue)
}

fn named(why: Unnamed, never: u16) -> Refusal {
    match why {
        Unnamed::Never => never.into(),
        Unnamed::Stale => status::STALE_ID.into(),
    }
}

fn check_source<'a>(
    tables: &'a Tables,
    queues: &Queues,
    r: &Request,
) -> Result<(&'a SourceEntry, u16), Refusal> {
    let source = tables.source(r.source).map_err(|why| named(why, status::BAD_SOURCE))?;
    match queues.leads(r.source) {
        Leads::To(queue) => Ok((source, queue)),
        Leads::Failed(errno) => Err(Refusal { status: status::OS, detail: errno.unsigned_abs() }),
        Leads::Nowhere => Err(status::BAD_SOURCE.into()),
    }
}

fn check_length(ring: &RingShared, source: &SourceEntry, r: &Request) -> Result<(), Refusal> {
    let geometry = &source.geometry;
    if r.length > ring.config.staging_stride
        || r.length > geometry.transfer_bytes_max
        || !r.length.is_multiple_of(geometry.block_bytes)
    {
        return Err(status::BAD_LENGTH.into());
    }
    Ok(())
}

fn check_ranges(source: &SourceEntry, buffer: &BufferEntry, r: &Request) -> Result<(), Refusal> {
    let geometry = &source.geometry;
    let length = u64::from(r.length);
    let source_end = r.source_offset.checked_add(length);
    if source_end.is_none_or(|end| end > geometry.bytes)
        || !r.source_offset.is_multiple_of(u64::from(geometry.block_bytes))
    {
        return Err(status::SOURCE_RANGE.into());
    }
    let buffer_end = r.buffer_offset.checked_add(length);
    if buffer_end.is_none_or(|end| end > buffer.memory.bytes) {
        return Err(status::BUFFER_RANGE.into());
    }
    Ok(())
}
