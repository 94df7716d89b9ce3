//! The completion queue entry.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::number::{CommandId, QueueId};
use crate::status::Status;

/// A completion queue entry: 16 bytes.
///
/// | bytes | field |
/// | --- | --- |
/// | 0-3 | command specific |
/// | 4-7 | command specific |
/// | 8-9 | submission queue head |
/// | 10-11 | submission queue identifier |
/// | 12-13 | command identifier |
/// | 14-15 | phase tag (bit 0), status (bits 1-15) |
///
/// The last eight bytes hold the phase tag: a controller writes them last, in one store, and a host
/// looks at them first.
///
/// Source: NVMe Base 2.0c, 3.3.3.2.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Completion {
    /// Command specific dword 0.
    pub dw0: u32,
    /// Command specific dword 1.
    pub dw1: u32,
    /// Submission queue head: entries before it have been fetched.
    pub sqhd: u16,
    /// Submission queue of the command.
    pub sqid: u16,
    /// Command identifier.
    pub cid: u16,
    /// Status above phase tag; see [`Completion::status`] and [`Completion::phase`].
    pub status_phase: u16,
}

const _: () = assert!(size_of::<Completion>() == Completion::BYTES);

impl Completion {
    /// Bytes of an entry.
    pub const BYTES: usize = 16;
    /// CC.IOCQES for this size.
    pub const BYTES_LOG2: u8 = 4;
    /// Offset of the half that holds the phase tag.
    pub const PHASE_HALF: usize = 8;

    /// Joins a status and a phase tag as they lie in an entry.
    pub const fn join(status: Status, phase: bool) -> u16 {
        status.bits() << 1 | phase as u16
    }

    /// Phase tag: flips with each turn of the queue.
    pub const fn phase(&self) -> bool {
        self.status_phase & 1 != 0
    }

    /// Status field.
    pub const fn status(&self) -> Status {
        Status::from_bits(self.status_phase >> 1)
    }

    /// Identifier of the completed command.
    pub const fn command_id(&self) -> CommandId {
        CommandId(self.cid)
    }

    /// Submission queue of the completed command.
    pub const fn submission_queue(&self) -> QueueId {
        QueueId(self.sqid)
    }

    /// Phase tag of an entry of which only the second half has been loaded.
    pub const fn phase_of_half(half: u64) -> bool {
        half >> 48 & 1 != 0
    }

    /// The entry as two 64-bit words, in memory order.
    pub fn to_words(&self) -> [u64; 2] {
        zerocopy::transmute!(*self)
    }

    /// The entry from two 64-bit words, in memory order.
    pub fn from_words(words: [u64; 2]) -> Self {
        zerocopy::transmute!(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_the_standard_has_them() {
        let words = [0x0706_0504_0302_0100, 0x8103_0d0c_0b0a_0908];
        let entry = Completion::from_words(words);
        assert_eq!((entry.dw0, entry.dw1), (0x0302_0100, 0x0706_0504));
        assert_eq!((entry.sqhd, entry.sqid, entry.cid), (0x0908, 0x0b0a, 0x0d0c));
        assert!(entry.phase() && Completion::phase_of_half(words[1]));
        assert!(!Completion::phase_of_half(words[1] & !(1 << 48)));
        assert_eq!(entry.status().bits(), 0x8103 >> 1);
        assert_eq!(entry.to_words(), words);
        assert_eq!(Completion::join(entry.status(), true), 0x8103);
    }
}
