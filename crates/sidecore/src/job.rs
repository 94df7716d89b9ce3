//! One request between its fetch and its end, as the side core keeps it: one a record.

use abi::ring::{Id, OP_READ, Request};

/// How far a request has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum JobState {
    /// No request uses the record.
    Idle,
    /// Storage has it.
    Started,
    /// Storage had no room for it yet.
    Waiting,
}

/// Why a request was asked to end early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    /// The host quiesces the ring, or what it uses was deregistered.
    Host,
    /// It was not.
    None,
    /// Its own limit passed.
    Limit,
    /// A lane cancelled it.
    Lane,
}

/// A checked copy of a request, and where it stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub begun_ns: u64,
    pub deadline_ns: u64,
    pub source_offset: u64,
    pub buffer_offset: u64,
    pub length: u32,
    /// Tells this use of the record from earlier ones, in storage's tokens.
    pub serial: u32,
    pub buffer: Id,
    pub turn: u16,
    /// Position of the storage queue.
    pub queue: u16,
    pub opcode: u8,
    pub state: JobState,
    pub cause: Cause,
}

impl Job {
    pub const IDLE: Self = Self {
        begun_ns: 0,
        deadline_ns: u64::MAX,
        source_offset: 0,
        buffer_offset: 0,
        length: 0,
        serial: 0,
        buffer: Id::from_bits(0),
        turn: 0,
        queue: 0,
        opcode: OP_READ,
        state: JobState::Idle,
        cause: Cause::None,
    };

    /// Takes over a checked request. The serial moves on.
    #[inline]
    pub fn begin(&mut self, request: &Request, queue: u16, begun_ns: u64, deadline_ns: u64) {
        *self = Self {
            begun_ns,
            deadline_ns,
            source_offset: request.source_offset,
            buffer_offset: request.buffer_offset,
            length: request.length,
            serial: self.serial.wrapping_add(1),
            buffer: request.buffer,
            turn: request.record_turn,
            queue,
            opcode: request.opcode,
            state: JobState::Waiting,
            cause: Cause::None,
        };
    }

    /// Storage's token for this use of `record`.
    #[inline]
    pub const fn token(&self, record: u32) -> u64 {
        record as u64 | (self.serial as u64) << 32
    }
}
