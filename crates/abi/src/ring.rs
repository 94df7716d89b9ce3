//! The request ring: entry, completion record, control block and the view that a kernel is given.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of everything in this module; checked when a ring is attached.
pub const ABI_VERSION: u32 = 2;
/// First word of a [`RingView`]: "SCRG" in little-endian ASCII.
pub const RING_MAGIC: u32 = 0x4752_4353;

/// Operation: read from the source into the buffer.
pub const OP_READ: u8 = 1;
/// Operation: write from the buffer to the source.
pub const OP_WRITE: u8 = 2;
/// Operation: make earlier completed writes to the source durable.
pub const OP_FLUSH: u8 = 3;
/// Operation: ask for an early end of the request that uses the named record in the named turn.
/// Has no completion of its own: the named request ends, in its usual way or as cancelled.
pub const OP_CANCEL: u8 = 4;

/// Route number of `window`: a CPU core stores the payload through its mapping of device memory.
pub const ROUTE_WINDOW: u32 = 1;
/// Route number of `pull`: GPU lanes load the payload from the record's staging area.
pub const ROUTE_PULL: u32 = 2;
/// Route number of `push`: GPU lanes store the payload into the record's staging area.
pub const ROUTE_PUSH: u32 = 3;
/// Route number of `bounce`: staging in host memory, then the GPU's copy engine.
pub const ROUTE_BOUNCE: u32 = 4;
/// The drive stores payload into the buffer itself.
pub const ROUTE_DIRECT: u32 = 5;

/// Ring state: requests are served.
pub const STATE_OPEN: u32 = 1;
/// Ring state: what is in flight ends; new requests are refused.
pub const STATE_DRAINING: u32 = 2;
/// Ring state: nothing is served.
pub const STATE_CLOSED: u32 = 3;

/// Largest transfer of one request: 16 MiB (24 bits, zero-based).
pub const TRANSFER_BYTES_MAX: u32 = 1 << 24;
/// Sources are addressed by 48-bit byte offsets.
pub const SOURCE_OFFSET_MAX: u64 = (1 << 48) - 1;
/// Buffers are addressed by 40-bit byte offsets.
pub const BUFFER_OFFSET_MAX: u64 = (1 << 40) - 1;
/// Records of a ring are numbered with 24 bits.
pub const RECORDS_MAX: u32 = 1 << 24;
/// The limit field's unit is one millisecond; 0 means the ring's own default.
pub const LIMIT_MS_MAX: u16 = u16::MAX;

/// Bit of a successful completion's detail, beside the bytes moved: the payload of this pulled read is
/// not in staging, it stayed where the source has it, from [`SourceView::address`] on.
pub const DETAIL_LENT: u32 = 1 << 31;
/// In the detail of a read by route `direct` that failed: the drive may still store to its buffer, until the
/// host has quiesced the ring.
pub const DETAIL_UNSETTLED: u32 = 1 << 30;

/// Id of a source or buffer: 12-bit index, 12-bit generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct Id(u32);

impl Id {
    /// Ids have 12 bits of index.
    pub const INDEX_MAX: u32 = 0xfff;

    /// Builds an id; both parts are cut to 12 bits.
    pub const fn new(index: u32, generation: u32) -> Self {
        Self((generation & 0xfff) << 12 | (index & 0xfff))
    }
    /// Takes 24 bits as an entry carries them.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits & 0xff_ffff)
    }
    /// The 24 bits.
    pub const fn bits(self) -> u32 {
        self.0
    }
    /// Index into the engine's table.
    pub const fn index(self) -> u32 {
        self.0 & 0xfff
    }
    /// Generation of that table entry.
    pub const fn generation(self) -> u32 {
        self.0 >> 12
    }
}

/// A request as it lies in the ring: two 16-byte halves, each ending in the slot's tag.
///
/// ```text
/// w0  source offset, bytes (48) | record turn (16)
/// w1  length - 1, bytes (24) | opcode (8) | limit, ms (16) | tag (16)
/// w2  buffer offset, bytes (40) | buffer id (24)
/// w3  record (24) | source id (24) | tag (16)
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(32))]
pub struct RequestEntry {
    /// The four words, lowest bits first as in the table above.
    pub w: [u64; 4],
}
const _: () = assert!(size_of::<RequestEntry>() == 32);

/// A request, unpacked. `length` is 1..=[`TRANSFER_BYTES_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// One of the `OP_` constants, or anything that a broken kernel wrote.
    pub opcode: u8,
    /// Source to read or write.
    pub source: Id,
    /// Byte offset in the source.
    pub source_offset: u64,
    /// Buffer to fill or empty.
    pub buffer: Id,
    /// Byte offset in the buffer.
    pub buffer_offset: u64,
    /// Bytes to move.
    pub length: u32,
    /// Record that the completion goes to (for [`OP_CANCEL`]: of the request to end).
    pub record: u32,
    /// Turn of that record.
    pub record_turn: u16,
    /// The request's own limit from when it is fetched, in ms; 0: the ring's default.
    pub limit_ms: u16,
}

impl RequestEntry {
    /// Packs a request with the slot's tag. Fields that are too wide are cut.
    pub const fn pack(request: &Request, tag: u16) -> Self {
        let r = request;
        let length_z = (r.length.wrapping_sub(1) & 0xff_ffff) as u64;
        Self {
            w: [
                (r.source_offset & SOURCE_OFFSET_MAX) | (r.record_turn as u64) << 48,
                length_z | (r.opcode as u64) << 24 | (r.limit_ms as u64) << 32 | (tag as u64) << 48,
                (r.buffer_offset & BUFFER_OFFSET_MAX) | (r.buffer.bits() as u64) << 40,
                (r.record as u64 & 0xff_ffff) | (r.source.bits() as u64) << 24 | (tag as u64) << 48,
            ],
        }
    }

    /// Tags of the two halves.
    pub const fn tags(&self) -> (u16, u16) {
        ((self.w[1] >> 48) as u16, (self.w[3] >> 48) as u16)
    }

    /// Unpacks; every bit pattern is some request.
    pub const fn unpack(&self) -> Request {
        Request {
            opcode: self.opcode(),
            source: self.source(),
            source_offset: self.source_offset(),
            buffer: self.buffer(),
            buffer_offset: self.buffer_offset(),
            length: self.length(),
            record: self.record(),
            record_turn: self.record_turn(),
            limit_ms: self.limit_ms(),
        }
    }

    /// [`Request::opcode`].
    #[inline]
    pub const fn opcode(&self) -> u8 {
        (self.w[1] >> 24 & 0xff) as u8
    }
    /// [`Request::source`].
    #[inline]
    pub const fn source(&self) -> Id {
        Id::from_bits((self.w[3] >> 24 & 0xff_ffff) as u32)
    }
    /// [`Request::source_offset`].
    #[inline]
    pub const fn source_offset(&self) -> u64 {
        self.w[0] & SOURCE_OFFSET_MAX
    }
    /// [`Request::buffer`].
    #[inline]
    pub const fn buffer(&self) -> Id {
        Id::from_bits((self.w[2] >> 40) as u32)
    }
    /// [`Request::buffer_offset`].
    #[inline]
    pub const fn buffer_offset(&self) -> u64 {
        self.w[2] & BUFFER_OFFSET_MAX
    }
    /// [`Request::length`].
    #[inline]
    pub const fn length(&self) -> u32 {
        (self.w[1] & 0xff_ffff) as u32 + 1
    }
    /// [`Request::record`].
    #[inline]
    pub const fn record(&self) -> u32 {
        (self.w[3] & 0xff_ffff) as u32
    }
    /// [`Request::record_turn`].
    #[inline]
    pub const fn record_turn(&self) -> u16 {
        (self.w[0] >> 48) as u16
    }
    /// [`Request::limit_ms`].
    #[inline]
    pub const fn limit_ms(&self) -> u16 {
        (self.w[1] >> 32 & 0xffff) as u16
    }
}

/// A completion record: turn (16, lowest) | status (16) | detail (32), one aligned 8-byte store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CompletionRecord {
    /// The packed word.
    pub word: u64,
}
const _: () = assert!(size_of::<CompletionRecord>() == 8);

impl CompletionRecord {
    /// Packs turn, status and detail (bytes moved, or an errno: see [`crate::status`]).
    pub const fn pack(turn: u16, status: u16, detail: u32) -> Self {
        Self { word: turn as u64 | (status as u64) << 16 | (detail as u64) << 32 }
    }
    /// Turn that this completion answers.
    pub const fn turn(self) -> u16 {
        (self.word & 0xffff) as u16
    }
    /// Status, unchanged from where it arose.
    pub const fn status(self) -> u16 {
        (self.word >> 16 & 0xffff) as u16
    }
    /// Bytes moved (for a pulled read perhaps with [`DETAIL_LENT`]), or an errno.
    pub const fn detail(self) -> u32 {
        (self.word >> 32) as u32
    }
}

/// What of a ring lies in device memory besides its records: each hot word on a line of its own.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(128))]
pub struct RingControl {
    /// Next ticket to reserve. Only GPU lanes touch it.
    pub tail: u64,
    /// Keeps `fetched` on its own line.
    pub pad0: [u64; 15],
    /// Tickets below this were copied out of the ring. Only the side core stores it.
    pub fetched: u64,
    /// Keeps `state` on its own line.
    pub pad1: [u64; 15],
    /// State (low 32 bits, a `STATE_` constant) and epoch (high 32 bits). Only the host stores it.
    pub state: u64,
    /// Fills the line.
    pub pad2: [u64; 15],
}
const _: () = assert!(size_of::<RingControl>() == 384);

/// All that a kernel needs to use a ring; passed by value in a kernel's arguments.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RingView {
    /// [`RING_MAGIC`].
    pub magic: u32,
    /// [`ABI_VERSION`].
    pub version: u32,
    /// `size_of::<RingView>()`.
    pub bytes: u32,
    /// Depth of the ring as a power of two.
    pub depth_log2: u32,
    /// Device address of `depth` [`RequestEntry`]s in pinned host memory.
    pub entries: u64,
    /// Device address of the [`RingControl`] in device memory.
    pub control: u64,
    /// Device address of `records` [`CompletionRecord`]s in device memory.
    pub records: u64,
    /// Device address of `records` `u32`s in device memory: turns issued, per record.
    pub turns: u64,
    /// Device address of the staging area in pinned host memory, or 0.
    pub staging: u64,
    /// Bytes of staging that belong to one record.
    pub staging_stride: u32,
    /// Number of records.
    pub record_count: u32,
    /// Route of reads: window, pull or bounce.
    pub read_route: u32,
    /// Route of writes: push or bounce.
    pub write_route: u32,
    /// Default limit of a request in ms, for the device's own bound on waiting.
    pub limit_ms: u32,
    /// Zero.
    pub reserved: u32,
}
const _: () = assert!(size_of::<RingView>() == 80);

/// A registered buffer as a kernel sees it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BufferView {
    /// Device address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// [`Id`] bits.
    pub id: u32,
    /// Zero.
    pub reserved: u32,
}
const _: () = assert!(size_of::<BufferView>() == 24);

/// An open source as a kernel sees it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SourceView {
    /// Length in bytes.
    pub bytes: u64,
    /// Device address of the first byte where lanes may load the source itself, else 0.
    pub address: u64,
    /// [`Id`] bits.
    pub id: u32,
    /// Offsets and lengths must be multiples of this many bytes (1 for files).
    pub block_bytes: u32,
}
const _: () = assert!(size_of::<SourceView>() == 24);
