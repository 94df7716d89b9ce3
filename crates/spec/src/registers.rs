//! Controller registers ("properties") and doorbells.
//!
//! | offset | bytes | register | type |
//! | --- | --- | --- | --- |
//! | 0x00 | 8 | CAP | [`Capabilities`] |
//! | 0x08 | 4 | VS | [`Version`] |
//! | 0x14 | 4 | CC | [`Configuration`] |
//! | 0x1c | 4 | CSTS | [`ControllerStatus`] |
//! | 0x24 | 4 | AQA | [`AdminQueueAttributes`] |
//! | 0x28 | 8 | ASQ | address of the admin submission queue |
//! | 0x30 | 8 | ACQ | address of the admin completion queue |
//! | 0x1000 | 4 each | SQyTDBL, CQyHDBL | [`submission_doorbell`], [`completion_doorbell`] |
//!
//! Source: NVMe Base 2.0c, 3.1.3; NVMe over PCIe Transport 1.0c, 3.1.2 (doorbells).

use core::fmt;
use core::time::Duration;

use bitfield_struct::bitfield;

use crate::number::QueueId;

/// Offset of CAP, controller capabilities. Source: 3.1.3.1.
pub const CAP: usize = 0x00;
/// Offset of VS, version. Source: 3.1.3.2.
pub const VS: usize = 0x08;
/// Offset of INTMS, interrupt mask set. Source: 3.1.3.3.
pub const INTMS: usize = 0x0c;
/// Offset of INTMC, interrupt mask clear. Source: 3.1.3.4.
pub const INTMC: usize = 0x10;
/// Offset of CC, controller configuration. Source: 3.1.3.5.
pub const CC: usize = 0x14;
/// Offset of CSTS, controller status. Source: 3.1.3.6.
pub const CSTS: usize = 0x1c;
/// Offset of NSSR, subsystem reset. Source: 3.1.3.7.
pub const NSSR: usize = 0x20;
/// Offset of AQA, admin queue attributes. Source: 3.1.3.8.
pub const AQA: usize = 0x24;
/// Offset of ASQ, admin submission queue base address. Source: 3.1.3.9.
pub const ASQ: usize = 0x28;
/// Offset of ACQ, admin completion queue base address. Source: 3.1.3.10.
pub const ACQ: usize = 0x30;
/// Offset of the first doorbell. Source: NVMe over PCIe Transport 1.0c, 3.1.2.
pub const DOORBELLS: usize = 0x1000;

/// CAP: what the controller can do. Read only.
///
/// Source: NVMe Base 2.0c, 3.1.3.1.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Capabilities {
    /// MQES: largest I/O queue, in entries, counted from zero. At least 1.
    pub mqes_z: u16,
    /// CQR: I/O queues must be physically contiguous.
    pub cqr: bool,
    /// AMS: arbitration mechanisms beyond round robin.
    #[bits(2)]
    pub ams: u8,
    #[bits(5)]
    __: u8,
    /// TO: worst time for CSTS.RDY to follow CC.EN, in units of 500 ms.
    pub to: u8,
    /// DSTRD: doorbells lie `4 << dstrd` bytes apart.
    #[bits(4)]
    pub dstrd: u8,
    /// NSSRS: subsystem reset is supported.
    pub nssrs: bool,
    /// CSS: command sets; bit 0 is the NVM command set.
    #[bits(8)]
    pub css: u8,
    /// BPS: boot partitions are supported.
    pub bps: bool,
    /// CPS: scope of power control.
    #[bits(2)]
    pub cps: u8,
    /// MPSMIN: smallest memory page is `4096 << mpsmin`.
    #[bits(4)]
    pub mpsmin: u8,
    /// MPSMAX: largest memory page is `4096 << mpsmax`.
    #[bits(4)]
    pub mpsmax: u8,
    /// PMRS: a persistent memory region is supported.
    pub pmrs: bool,
    /// CMBS: a controller memory buffer is supported.
    pub cmbs: bool,
    /// NSSS: subsystem shutdown is supported.
    pub nsss: bool,
    /// CRMS: controller ready modes.
    #[bits(2)]
    pub crms: u8,
    #[bits(3)]
    __: u8,
}

impl Capabilities {
    /// Bit of `css` that says the NVM command set is supported.
    pub const CSS_NVM: u8 = 1;

    /// Largest I/O queue, in entries.
    pub fn queue_entries_max(self) -> u32 {
        u32::from(self.mqes_z()) + 1
    }

    /// Worst time for CSTS.RDY to follow CC.EN.
    pub fn ready_timeout(self) -> Duration {
        Duration::from_millis(500) * u32::from(self.to())
    }

    /// Smallest memory page, in bytes.
    pub fn page_bytes_min(self) -> usize {
        4096 << self.mpsmin()
    }
}

/// VS: version of the base specification. Source: NVMe Base 2.0c, 3.1.3.2.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Version {
    /// TER: third number.
    pub ter: u8,
    /// MNR: second number.
    pub mnr: u8,
    /// MJR: first number.
    pub mjr: u16,
}

impl Version {
    /// NVMe Base 2.0.
    pub const V2_0: Self = Self::new().with_mjr(2);
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.mjr(), self.mnr(), self.ter())
    }
}

/// CC: what the host wants. Read and written.
///
/// Source: NVMe Base 2.0c, 3.1.3.5.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Configuration {
    /// EN: 1 starts the controller, 1 to 0 resets it.
    pub en: bool,
    #[bits(3)]
    __: u8,
    /// CSS: the command set chosen; 0 is NVM.
    #[bits(3)]
    pub css: u8,
    /// MPS: memory page is `4096 << mps`.
    #[bits(4)]
    pub mps: u8,
    /// AMS: arbitration; 0 is round robin.
    #[bits(3)]
    pub ams: u8,
    /// SHN: shutdown notification.
    #[bits(2)]
    pub shn: u8,
    /// IOSQES: I/O submission entries are `1 << iosqes` bytes.
    #[bits(4)]
    pub iosqes: u8,
    /// IOCQES: I/O completion entries are `1 << iocqes` bytes.
    #[bits(4)]
    pub iocqes: u8,
    /// CRIME: controller ready independent of media.
    pub crime: bool,
    #[bits(7)]
    __: u8,
}

impl Configuration {
    /// `shn`: no notification.
    pub const SHN_NONE: u8 = 0;
    /// `shn`: normal shutdown.
    pub const SHN_NORMAL: u8 = 1;
    /// `shn`: abrupt shutdown.
    pub const SHN_ABRUPT: u8 = 2;

    /// Memory page, in bytes.
    pub fn page_bytes(self) -> usize {
        4096 << self.mps()
    }
}

/// CSTS: what the controller does. Read only.
///
/// Source: NVMe Base 2.0c, 3.1.3.6.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ControllerStatus {
    /// RDY: follows CC.EN.
    pub rdy: bool,
    /// CFS: a fatal error that only a reset ends.
    pub cfs: bool,
    /// SHST: progress of a shutdown.
    #[bits(2)]
    pub shst: u8,
    /// NSSRO: a subsystem reset occurred.
    pub nssro: bool,
    /// PP: processing is paused.
    pub pp: bool,
    /// ST: the shutdown is of the whole subsystem.
    pub st: bool,
    #[bits(25)]
    __: u32,
}

impl ControllerStatus {
    /// What reads as all ones: the device has gone from the bus.
    pub const GONE: Self = Self::from_bits(u32::MAX);
    /// `shst`: no shutdown asked for.
    pub const SHST_NONE: u8 = 0;
    /// `shst`: shutting down.
    pub const SHST_OCCURRING: u8 = 1;
    /// `shst`: done; power may go.
    pub const SHST_COMPLETE: u8 = 2;
}

/// AQA: sizes of the admin queues. Source: NVMe Base 2.0c, 3.1.3.8.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct AdminQueueAttributes {
    /// ASQS: submission entries, counted from zero.
    #[bits(12)]
    pub asqs_z: u16,
    #[bits(4)]
    __: u8,
    /// ACQS: completion entries, counted from zero.
    #[bits(12)]
    pub acqs_z: u16,
    #[bits(4)]
    __: u8,
}

impl AdminQueueAttributes {
    /// Most entries of an admin queue.
    pub const ENTRIES_MAX: u32 = 4096;
}

/// Byte distance between doorbells, from CAP.DSTRD.
pub const fn doorbell_stride(dstrd: u8) -> usize {
    4 << (dstrd & 0xf)
}

/// Offset of a submission queue's tail doorbell.
///
/// Source: NVMe over PCIe Transport 1.0c, 3.1.2.1.
pub const fn submission_doorbell(queue: QueueId, stride: usize) -> usize {
    DOORBELLS + 2 * queue.0 as usize * stride
}

/// Offset of a completion queue's head doorbell.
///
/// Source: NVMe over PCIe Transport 1.0c, 3.1.2.2.
pub const fn completion_doorbell(queue: QueueId, stride: usize) -> usize {
    DOORBELLS + (2 * queue.0 as usize + 1) * stride
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_decode_as_a_real_drive_has_them() {
        // CAP of a common data-centre drive: 1024 entries, 60 s, stride 0, NVM, 4 KiB pages.
        let cap = Capabilities::from_bits(0x0000_0020_7801_03ff);
        assert_eq!(cap.queue_entries_max(), 1024);
        assert_eq!(cap.ready_timeout(), Duration::from_secs(60));
        assert!(cap.cqr());
        assert_eq!((cap.dstrd(), cap.css(), cap.mpsmin(), cap.mpsmax()), (0, 1, 0, 0));
        assert_eq!(Version::from_bits(0x0001_0400).to_string(), "1.4.0");
        let cc = Configuration::new().with_en(true).with_iosqes(6).with_iocqes(4);
        assert_eq!(cc.into_bits(), 0x0046_0001);
        assert_eq!(cc.with_shn(1).into_bits(), 0x0046_4001);
        assert_eq!(ControllerStatus::from_bits(0x9).shst(), ControllerStatus::SHST_COMPLETE);
        let aqa = AdminQueueAttributes::new().with_asqs_z(31).with_acqs_z(63);
        assert_eq!(aqa.into_bits(), 0x003f_001f);
    }

    #[test]
    fn doorbells_alternate_by_the_stride() {
        assert_eq!(submission_doorbell(QueueId(0), 4), 0x1000);
        assert_eq!(completion_doorbell(QueueId(0), 4), 0x1004);
        assert_eq!(submission_doorbell(QueueId(3), doorbell_stride(2)), 0x1000 + 6 * 16);
        assert_eq!(completion_doorbell(QueueId(3), doorbell_stride(2)), 0x1000 + 7 * 16);
    }
}
