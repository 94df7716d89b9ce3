//! I/O commands of the NVM command set: opcodes, and what their dwords mean.
//!
//! Source: NVM Command Set 1.0c, 3.2; NVMe Base 2.0c, 7 (Flush).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::command::{Command, byte, half};
use crate::number::{BlockCount, Lba, Nsid};

/// I/O opcodes. Source: NVM Command Set 1.0c, 3.2.
pub struct Opcode;

impl Opcode {
    /// Flush. Source: NVMe Base 2.0c, 7.1.
    pub const FLUSH: u8 = 0x00;
    /// Write. Source: 3.2.6.
    pub const WRITE: u8 = 0x01;
    /// Read. Source: 3.2.4.
    pub const READ: u8 = 0x02;
    /// Compare. Source: 3.2.1.
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes. Source: 3.2.8.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management. Source: 3.2.3.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
}

/// The range of Read, Write, Compare and Write Zeroes: dwords 10-12.
///
/// | dword | bits | meaning |
/// | --- | --- | --- |
/// | 10, 11 | all | first logical block |
/// | 12 | 0-15 | blocks, counted from zero |
/// | 12 | 30 | force unit access |
///
/// Source: NVM Command Set 1.0c, 3.2.4, 3.2.6, 3.2.8.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockRange {
    /// First block.
    pub lba: Lba,
    /// How many, 1..=65536.
    pub blocks: BlockCount,
    /// Whether the media itself must be read or written.
    pub force_unit_access: bool,
}

impl BlockRange {
    const FUA: u32 = 1 << 30;

    /// A range with ordinary access.
    pub const fn new(lba: Lba, blocks: BlockCount) -> Self {
        Self { lba, blocks, force_unit_access: false }
    }

    /// A command over this range.
    ///
    /// # Panics
    /// Where `blocks` is not in 1..=65536.
    pub fn encode(self, opcode: u8, nsid: Nsid) -> Command {
        let blocks_z = self.blocks.0.wrapping_sub(1);
        assert!(blocks_z < BlockCount::COMMAND_MAX.0, "{:?} in one command", self.blocks);
        let mut command = Command::new(opcode, nsid);
        let [low, high] = zerocopy::transmute!(self.lba.0);
        command.cdw10 = low;
        command.cdw11 = high;
        command.cdw12 = blocks_z | if self.force_unit_access { Self::FUA } else { 0 };
        command
    }

    /// The range of a command.
    pub fn decode(command: &Command) -> Self {
        Self {
            lba: Lba(u64::from(command.cdw11) << 32 | u64::from(command.cdw10)),
            blocks: BlockCount(u32::from(half(command.cdw12, 0)) + 1),
            force_unit_access: command.cdw12 & Self::FUA != 0,
        }
    }
}

/// Dataset Management: dwords 10 and 11; PRP1 and PRP2 name the list of [`DatasetRange`]s.
///
/// Source: NVM Command Set 1.0c, 3.2.3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatasetManagement {
    /// Ranges in the list, 1..=256.
    pub ranges: u16,
    /// Whether the ranges may be deallocated.
    pub deallocate: bool,
}

impl DatasetManagement {
    const DEALLOCATE: u32 = 1 << 2;

    /// The command.
    ///
    /// # Panics
    /// Where `ranges` is not in 1..=256.
    pub fn encode(self, nsid: Nsid) -> Command {
        assert!((1..=256).contains(&self.ranges), "{} ranges in one command", self.ranges);
        let mut command = Command::new(Opcode::DATASET_MANAGEMENT, nsid);
        command.cdw10 = u32::from(self.ranges) - 1;
        command.cdw11 = if self.deallocate { Self::DEALLOCATE } else { 0 };
        command
    }

    /// The dwords of a command.
    pub fn decode(command: &Command) -> Self {
        Self {
            ranges: u16::from(byte(command.cdw10)) + 1,
            deallocate: command.cdw11 & Self::DEALLOCATE != 0,
        }
    }
}

/// One range of a Dataset Management command: 16 bytes of the list.
///
/// Source: NVM Command Set 1.0c, 3.2.3, range definition.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct DatasetRange {
    /// Context attributes: hints that may be ignored.
    pub attributes: u32,
    /// Blocks; none is legal.
    pub blocks: u32,
    /// First block.
    pub lba: u64,
}

impl DatasetRange {
    /// Bytes of a range in the list.
    pub const BYTES: usize = 16;
}

const _: () = assert!(size_of::<DatasetRange>() == DatasetRange::BYTES);

/// Flush. Source: NVMe Base 2.0c, 7.1.
pub const fn flush(nsid: Nsid) -> Command {
    Command::new(Opcode::FLUSH, nsid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_match_the_dwords_of_the_standard() {
        let range = BlockRange::new(Lba(0x1_2345_6789), BlockCount(65536));
        let command = range.encode(Opcode::READ, Nsid(1));
        assert_eq!((command.opcode, command.nsid), (2, 1));
        assert_eq!((command.cdw10, command.cdw11, command.cdw12), (0x2345_6789, 1, 0xffff));
        assert_eq!(BlockRange::decode(&command), range);
        let range = BlockRange { force_unit_access: true, blocks: BlockCount(1), ..range };
        assert_eq!(range.encode(Opcode::WRITE, Nsid(1)).cdw12, 0x4000_0000);
        assert_eq!(BlockRange::decode(&range.encode(Opcode::WRITE, Nsid(1))), range);
    }

    #[test]
    fn dataset_management_matches_the_dwords_of_the_standard() {
        let command = DatasetManagement { ranges: 256, deallocate: true };
        let encoded = command.encode(Nsid(1));
        assert_eq!((encoded.opcode, encoded.cdw10, encoded.cdw11), (9, 0xff, 4));
        assert_eq!(DatasetManagement::decode(&encoded), command);
        let range = DatasetRange { attributes: 1, blocks: 2, lba: 3 };
        assert_eq!(range.as_bytes(), [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    #[should_panic(expected = "in one command")]
    fn no_command_moves_nothing() {
        BlockRange::new(Lba(0), BlockCount(0)).encode(Opcode::READ, Nsid(1));
    }
}
