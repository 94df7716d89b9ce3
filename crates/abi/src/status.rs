//! Status codes that sidecore itself puts into a completion record.
//!
//! A record's status is the drive's own status field, unchanged, wherever a drive answered. What
//! sidecore itself has to say uses the status code type that NVMe leaves to vendors (7), so that the
//! two never collide.

/// Success: all bytes asked for were moved.
pub const SUCCESS: u16 = 0;

/// Base of sidecore's own codes: NVMe status code type 7 (vendor specific).
pub const VENDOR: u16 = 7 << 8;

/// The side core that had fetched the request panicked or stalled; the ring restarts.
pub const SIDE_CORE_LOST: u16 = VENDOR | 0x01;
/// The request's own limit passed; nothing writes its buffer any more.
pub const TIMED_OUT: u16 = VENDOR | 0x02;
/// Cancelled on request; nothing writes its buffer any more.
pub const CANCELLED: u16 = VENDOR | 0x03;
/// No source with that id is registered.
pub const BAD_SOURCE: u16 = VENDOR | 0x04;
/// No buffer with that id is registered.
pub const BAD_BUFFER: u16 = VENDOR | 0x05;
/// Buffer offset and length do not lie inside the buffer.
pub const BUFFER_RANGE: u16 = VENDOR | 0x06;
/// Source offset and length do not lie inside the source.
pub const SOURCE_RANGE: u16 = VENDOR | 0x07;
/// The opcode is none that this ring serves.
pub const BAD_OPCODE: u16 = VENDOR | 0x08;
/// Source or buffer was registered without the right to do this.
pub const RIGHTS: u16 = VENDOR | 0x09;
/// The id's generation is stale: what it named was deregistered.
pub const STALE_ID: u16 = VENDOR | 0x0a;
/// The ring is draining or closed.
pub const RING_CLOSED: u16 = VENDOR | 0x0b;
/// The length exceeds what this ring or its staging area carries in one request.
pub const BAD_LENGTH: u16 = VENDOR | 0x0c;
/// The buffer may still be written by an earlier request; the host must quiesce the ring.
pub const BUFFER_POISONED: u16 = VENDOR | 0x0d;
/// The operating system refused; the record's detail is its errno.
pub const OS: u16 = VENDOR | 0x0e;
/// The record is in flight already (seen on the device only; never sent).
pub const RECORD_BUSY: u16 = VENDOR | 0x0f;
/// The wait's deadline passed; the request is still in flight (device only; never sent).
pub const PENDING: u16 = VENDOR | 0x10;
/// Nothing was submitted: the ring had no free slot within the deadline (device only; never sent).
pub const NOT_SUBMITTED: u16 = VENDOR | 0x11;
/// The source ended early; the record's detail is the number of bytes moved.
pub const SHORT: u16 = VENDOR | 0x12;
