//! The submission queue entry.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::number::{CommandId, Nsid};

/// A submission queue entry: 64 bytes.
///
/// | bytes | field |
/// | --- | --- |
/// | 0 | opcode |
/// | 1 | fused operation (bits 0-1), PRP or SGL (bits 6-7) |
/// | 2-3 | command identifier |
/// | 4-7 | namespace identifier |
/// | 16-23 | metadata pointer |
/// | 24-39 | data pointer: two PRP entries |
/// | 40-63 | command dwords 10-15 |
///
/// Source: NVMe Base 2.0c, 3.3.3.1.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Command {
    /// Opcode: [`crate::admin::Opcode`] or [`crate::io::Opcode`] by queue.
    pub opcode: u8,
    /// Fused operation and data pointer kind; 0 is neither fused nor SGL.
    pub flags: u8,
    /// Command identifier.
    pub cid: u16,
    /// Namespace identifier.
    pub nsid: u32,
    /// Command dword 2.
    pub cdw2: u32,
    /// Command dword 3.
    pub cdw3: u32,
    /// Metadata pointer.
    pub mptr: u64,
    /// PRP entry 1.
    pub prp1: u64,
    /// PRP entry 2: a page, a list, or nothing, by the length of the transfer.
    pub prp2: u64,
    /// Command dword 10.
    pub cdw10: u32,
    /// Command dword 11.
    pub cdw11: u32,
    /// Command dword 12.
    pub cdw12: u32,
    /// Command dword 13.
    pub cdw13: u32,
    /// Command dword 14.
    pub cdw14: u32,
    /// Command dword 15.
    pub cdw15: u32,
}

const _: () = assert!(size_of::<Command>() == Command::BYTES);

impl Command {
    /// Bytes of an entry.
    pub const BYTES: usize = 64;
    /// CC.IOSQES for this size.
    pub const BYTES_LOG2: u8 = 6;
    /// `flags` bits that choose fused operations.
    pub const FLAGS_FUSE: u8 = 0b0000_0011;
    /// `flags` bits that choose scatter-gather lists.
    pub const FLAGS_PSDT: u8 = 0b1100_0000;

    /// An entry with its opcode and namespace, everything else zero.
    pub const fn new(opcode: u8, nsid: Nsid) -> Self {
        Self {
            opcode,
            flags: 0,
            cid: 0,
            nsid: nsid.0,
            cdw2: 0,
            cdw3: 0,
            mptr: 0,
            prp1: 0,
            prp2: 0,
            cdw10: 0,
            cdw11: 0,
            cdw12: 0,
            cdw13: 0,
            cdw14: 0,
            cdw15: 0,
        }
    }

    /// The same command under an identifier.
    #[must_use]
    pub const fn with_command_id(mut self, id: CommandId) -> Self {
        self.cid = id.0;
        self
    }

    /// The same command with its data pointer.
    #[must_use]
    pub const fn with_prps(mut self, prp1: u64, prp2: u64) -> Self {
        self.prp1 = prp1;
        self.prp2 = prp2;
        self
    }

    /// Its identifier.
    pub const fn command_id(&self) -> CommandId {
        CommandId(self.cid)
    }

    /// Its namespace.
    pub const fn namespace(&self) -> Nsid {
        Nsid(self.nsid)
    }

    /// The entry as eight 64-bit words, in memory order.
    pub fn to_words(&self) -> [u64; 8] {
        zerocopy::transmute!(*self)
    }

    /// The entry from eight 64-bit words, in memory order.
    pub fn from_words(words: [u64; 8]) -> Self {
        zerocopy::transmute!(words)
    }
}

/// Sixteen bits of a dword, from bit `shift`.
pub(crate) const fn half(dword: u32, shift: u32) -> u16 {
    ((dword >> shift) & 0xffff) as u16
}

/// The low byte of a dword.
pub(crate) const fn byte(dword: u32) -> u8 {
    (dword & 0xff) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_the_standard_has_them() {
        let mut bytes = [0u8; Command::BYTES];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::try_from(index).unwrap();
        }
        let command = Command::read_from_bytes(&bytes).unwrap();
        assert_eq!((command.opcode, command.flags, command.cid), (0, 1, 0x0302));
        assert_eq!(command.namespace(), Nsid(0x0706_0504));
        assert_eq!(command.mptr, 0x1716_1514_1312_1110);
        assert_eq!(command.prp1, 0x1f1e_1d1c_1b1a_1918);
        assert_eq!(command.prp2, 0x2726_2524_2322_2120);
        assert_eq!(command.cdw10, 0x2b2a_2928);
        assert_eq!(command.cdw15, 0x3f3e_3d3c);
        assert_eq!(Command::from_words(command.to_words()), command);
        assert_eq!(command.to_words()[1], 0x0f0e_0d0c_0b0a_0908);
    }
}
