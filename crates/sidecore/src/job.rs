//! One request between its fetch and its end, as the side core keeps it: one a record.

use abi::ring::{OP_READ, OP_WRITE, RequestEntry};
use storage::Op;

/// How far a request has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum JobState {
    /// Storage has it, and was asked to end it early: there is a cause.
    Hastened,
    /// No request uses the record.
    Idle,
    /// Storage has it, and nobody asked for its end.
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

/// A checked copy of a request, and where it stands. One cache line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    /// The entry, as it was copied and checked.
    pub entry: RequestEntry,
    pub begun_ns: u64,
    pub deadline_ns: u64,
    /// Storage's token for this use of the record: record (32, lowest) | serial number (32), which
    /// tells it from earlier ones.
    pub token: u64,
    /// Position of the storage queue.
    pub queue: u16,
    pub op: Op,
    pub state: JobState,
    pub cause: Cause,
    /// Whether storage stores the payload into the buffer itself.
    pub direct: bool,
}
const _: () = assert!(size_of::<Job>() == 64);

impl Job {
    /// A record that was never used.
    pub const fn idle(record: u32) -> Self {
        Self {
            entry: RequestEntry { w: [0; 4] },
            begun_ns: 0,
            deadline_ns: u64::MAX,
            token: record as u64,
            queue: 0,
            op: Op::Flush,
            state: JobState::Idle,
            cause: Cause::None,
            direct: false,
        }
    }

    /// Takes over a checked request. The serial number moves on.
    #[inline]
    pub fn begin(
        &mut self,
        entry: RequestEntry,
        op: Op,
        queue: u16,
        begun_ns: u64,
        deadline_ns: u64,
    ) {
        *self = Self {
            entry,
            begun_ns,
            deadline_ns,
            token: self.token.wrapping_add(1 << 32),
            queue,
            op,
            state: JobState::Waiting,
            cause: Cause::None,
            direct: false,
        };
    }

    /// Whether this use of the record still waits for room in storage.
    #[inline]
    pub fn waits(&self, token: u64) -> bool {
        self.token == token && self.state == JobState::Waiting
    }

    /// Whether storage has it.
    #[inline]
    pub const fn is_at_storage(&self) -> bool {
        matches!(self.state, JobState::Hastened | JobState::Started)
    }

    /// Turn of the record that the request answers to.
    #[inline]
    pub const fn turn(&self) -> u16 {
        self.entry.record_turn()
    }
}

/// The record that storage's token names.
#[inline]
pub(crate) const fn record_of(token: u64) -> u32 {
    (token & 0xffff_ffff) as u32
}

/// What a request asks of storage. One of no known kind asks nothing, as a flush of nothing.
pub(crate) const fn op_of(opcode: u8) -> Op {
    match opcode {
        OP_READ => Op::Read,
        OP_WRITE => Op::Write,
        _ => Op::Flush,
    }
}
