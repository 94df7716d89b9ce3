//! What Identify returns: 4096-byte structures.
//!
//! Only fields that sidecore fills or reads have names; the rest is reserved space here and must be
//! zero in what sidecore writes.
//!
//! Source: NVMe Base 2.0c, 5.17.2; NVM Command Set 1.0c, 4.1.5.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::number::{Lba, Nsid};

/// Bytes of every Identify structure.
pub const IDENTIFY_BYTES: usize = 4096;

/// What an Identify command asks about. Source: NVMe Base 2.0c, 5.17.1.
pub struct Cns;

impl Cns {
    /// [`IdentifyNamespace`] of the namespace named.
    pub const NAMESPACE: u8 = 0x00;
    /// [`IdentifyController`].
    pub const CONTROLLER: u8 = 0x01;
    /// [`ActiveNamespaces`] above the namespace named.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Identification descriptors of the namespace named.
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
}

/// Identify Controller.
///
/// Source: NVMe Base 2.0c, 5.17.2.1.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IdentifyController {
    /// VID: PCI vendor.
    pub vid: u16,
    /// SSVID: PCI subsystem vendor.
    pub ssvid: u16,
    /// SN: serial number, ASCII, padded with spaces.
    pub sn: [u8; 20],
    /// MN: model number, ASCII, padded with spaces.
    pub mn: [u8; 40],
    /// FR: firmware revision, ASCII, padded with spaces.
    pub fr: [u8; 8],
    /// RAB: recommended arbitration burst, as a power of two.
    pub rab: u8,
    /// IEEE: vendor's identifier.
    pub ieee: [u8; 3],
    /// CMIC: several ports, controllers, functions.
    pub cmic: u8,
    /// MDTS: largest transfer is `page_bytes_min << mdts`; 0 is no limit.
    pub mdts: u8,
    /// CNTLID: this controller within its subsystem.
    pub cntlid: u16,
    /// VER: version, as register VS has it.
    pub ver: u32,
    reserved_84: [u8; 27],
    /// CNTRLTYPE: 1 is an I/O controller.
    pub cntrltype: u8,
    reserved_112: [u8; 144],
    /// OACS: optional admin commands.
    pub oacs: u16,
    /// ACL: Abort commands at once, counted from zero.
    pub acl_z: u8,
    /// AERL: event requests at once, counted from zero.
    pub aerl_z: u8,
    /// FRMW: firmware slots.
    pub frmw: u8,
    /// LPA: log page attributes.
    pub lpa: u8,
    /// ELPE: error log entries, counted from zero.
    pub elpe_z: u8,
    /// NPSS: power states, counted from zero.
    pub npss_z: u8,
    reserved_264: [u8; 248],
    /// SQES: submission entry sizes, smallest (bits 0-3) and largest (bits 4-7), as powers of two.
    pub sqes: u8,
    /// CQES: completion entry sizes, as SQES.
    pub cqes: u8,
    /// MAXCMD: most commands at once on one queue; 0 is not reported.
    pub maxcmd: u16,
    /// NN: largest namespace identifier.
    pub nn: u32,
    /// ONCS: optional I/O commands.
    pub oncs: u16,
    /// FUSES: fused operations.
    pub fuses: u16,
    /// FNA: format attributes.
    pub fna: u8,
    /// VWC: volatile write cache; bit 0 says that there is one.
    pub vwc: u8,
    /// AWUN: blocks written atomically, counted from zero.
    pub awun_z: u16,
    /// AWUPF: blocks written atomically across power failures, counted from zero.
    pub awupf_z: u16,
    reserved_530: [u8; 6],
    /// SGLS: scatter-gather lists.
    pub sgls: u32,
    reserved_540: [u8; 228],
    /// SUBNQN: subsystem name, UTF-8, ending in zeros.
    pub subnqn: [u8; 256],
    reserved_1024: [u8; 3072],
}

const _: () = assert!(size_of::<IdentifyController>() == IDENTIFY_BYTES);

impl IdentifyController {
    /// ONCS bit: Compare is supported.
    pub const ONCS_COMPARE: u16 = 1 << 0;
    /// ONCS bit: Dataset Management is supported.
    pub const ONCS_DATASET_MANAGEMENT: u16 = 1 << 2;
    /// ONCS bit: Write Zeroes is supported.
    pub const ONCS_WRITE_ZEROES: u16 = 1 << 3;
    /// VWC bit: there is a volatile write cache.
    pub const VWC_PRESENT: u8 = 1;
    /// CNTRLTYPE of an I/O controller.
    pub const CNTRLTYPE_IO: u8 = 1;

    /// Largest transfer in bytes, where there is a limit.
    ///
    /// `page_bytes_min` is from CAP.MPSMIN. A limit beyond the machine's range is none.
    pub fn transfer_bytes_max(&self, page_bytes_min: usize) -> Option<usize> {
        match self.mdts {
            0 => None,
            mdts => {
                let factor = 1usize.checked_shl(u32::from(mdts))?;
                page_bytes_min.checked_mul(factor)
            }
        }
    }
}

impl Default for IdentifyController {
    fn default() -> Self {
        Self::new_zeroed()
    }
}

/// One way to format a namespace.
///
/// Source: NVM Command Set 1.0c, 4.1.5.1 (LBA format).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LbaFormat {
    /// MS: metadata bytes a block.
    pub ms: u16,
    /// LBADS: a block is `1 << lbads` bytes; below 9 means not supported.
    pub lbads: u8,
    /// RP: relative performance, 0 the best.
    pub rp: u8,
}

/// Identify Namespace, NVM command set.
///
/// Source: NVM Command Set 1.0c, 4.1.5.1.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// NSZE: blocks.
    pub nsze: u64,
    /// NCAP: blocks that may be in use at once.
    pub ncap: u64,
    /// NUSE: blocks in use.
    pub nuse: u64,
    /// NSFEAT: features.
    pub nsfeat: u8,
    /// NLBAF: formats, counted from zero.
    pub nlbaf_z: u8,
    /// FLBAS: format in use (bits 0-3, and 5-6 above them).
    pub flbas: u8,
    /// MC: metadata capabilities.
    pub mc: u8,
    /// DPC: protection capabilities.
    pub dpc: u8,
    /// DPS: protection in use.
    pub dps: u8,
    /// NMIC: sharing.
    pub nmic: u8,
    /// RESCAP: reservations.
    pub rescap: u8,
    /// FPI: format progress.
    pub fpi: u8,
    /// DLFEAT: what deallocated blocks read as; 1 is zeros.
    pub dlfeat: u8,
    reserved_34: [u8; 65],
    /// NSATTR: attributes; bit 0 says that it is write protected now.
    pub nsattr: u8,
    reserved_100: [u8; 28],
    /// LBAF: the formats.
    pub lbaf: [LbaFormat; 64],
    reserved_384: [u8; 3712],
}

const _: () = assert!(size_of::<IdentifyNamespace>() == IDENTIFY_BYTES);

impl IdentifyNamespace {
    /// NSATTR bit: writes are refused.
    pub const NSATTR_WRITE_PROTECTED: u8 = 1;

    /// Index of the format in use.
    pub const fn format_index(&self) -> usize {
        (self.flbas & 0xf) as usize | ((self.flbas >> 5 & 3) as usize) << 4
    }

    /// The format in use.
    pub const fn format(&self) -> LbaFormat {
        self.lbaf[self.format_index()]
    }

    /// First block that is outside.
    pub const fn end(&self) -> Lba {
        Lba(self.nsze)
    }
}

impl Default for IdentifyNamespace {
    fn default() -> Self {
        Self::new_zeroed()
    }
}

/// Active Namespace ID list: up to 1024 identifiers, ascending, then zeros.
///
/// Source: NVMe Base 2.0c, 5.17.2.2.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ActiveNamespaces {
    /// The identifiers as they lie there.
    pub nsid: [u32; 1024],
}

const _: () = assert!(size_of::<ActiveNamespaces>() == IDENTIFY_BYTES);

impl ActiveNamespaces {
    /// The identifiers before the first zero.
    pub fn iter(&self) -> impl Iterator<Item = Nsid> + '_ {
        self.nsid.iter().copied().take_while(|nsid| *nsid != 0).map(Nsid)
    }
}

impl Default for ActiveNamespaces {
    fn default() -> Self {
        Self::new_zeroed()
    }
}

/// Copies text into a field as the standard pads it: ASCII, cut or filled with spaces.
pub fn pad_ascii(field: &mut [u8], text: &str) {
    field.fill(b' ');
    let printable = text.bytes().filter(|byte| (0x20..0x7f).contains(byte));
    for (target, byte) in field.iter_mut().zip(printable) {
        *target = byte;
    }
}

/// Reads a padded field for people: printable ASCII without the padding.
pub fn unpad_ascii(field: &[u8]) -> String {
    let text: String = field
        .iter()
        .map(|byte| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { ' ' })
        .collect();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    #[test]
    fn fields_lie_where_the_standard_has_them() {
        assert_eq!(offset_of!(IdentifyController, mdts), 77);
        assert_eq!(offset_of!(IdentifyController, ver), 80);
        assert_eq!(offset_of!(IdentifyController, cntrltype), 111);
        assert_eq!(offset_of!(IdentifyController, oacs), 256);
        assert_eq!(offset_of!(IdentifyController, acl_z), 258);
        assert_eq!(offset_of!(IdentifyController, sqes), 512);
        assert_eq!(offset_of!(IdentifyController, nn), 516);
        assert_eq!(offset_of!(IdentifyController, vwc), 525);
        assert_eq!(offset_of!(IdentifyController, sgls), 536);
        assert_eq!(offset_of!(IdentifyController, subnqn), 768);
        assert_eq!(offset_of!(IdentifyNamespace, flbas), 26);
        assert_eq!(offset_of!(IdentifyNamespace, dlfeat), 33);
        assert_eq!(offset_of!(IdentifyNamespace, nsattr), 99);
        assert_eq!(offset_of!(IdentifyNamespace, lbaf), 128);
    }

    #[test]
    fn limits_and_formats_decode() {
        let mut controller = IdentifyController::default();
        assert_eq!(controller.transfer_bytes_max(4096), None);
        controller.mdts = 5;
        assert_eq!(controller.transfer_bytes_max(4096), Some(131_072));
        controller.mdts = 255;
        assert_eq!(controller.transfer_bytes_max(4096), None);
        let mut namespace = IdentifyNamespace { flbas: 0b0010_0001, ..Default::default() };
        namespace.lbaf[17].lbads = 12;
        assert_eq!(namespace.format().lbads, 12);
        let mut list = ActiveNamespaces::default();
        list.nsid[..3].copy_from_slice(&[1, 5, 0]);
        list.nsid[3] = 9;
        assert_eq!(list.iter().collect::<Vec<_>>(), [Nsid(1), Nsid(5)]);
    }

    #[test]
    fn text_is_padded_with_spaces() {
        let mut field = [0; 8];
        pad_ascii(&mut field, "ab\u{e9}c");
        assert_eq!(&field, b"abc     ");
        assert_eq!(unpad_ascii(&field), "abc");
        pad_ascii(&mut field, "0123456789");
        assert_eq!(&field, b"01234567");
    }
}
