//! What Identify and Get Log Page return.
//!
//! Sources: NVMe Base Specification 2.0c, 5.16.1 and 5.17.2; NVM Command Set 1.0c, 4.1.5.

use spec::admin::Identify;
use spec::event::LogPage;
use spec::identify::{
    ActiveNamespaces, Cns, IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, LbaFormat,
    pad_ascii,
};
use spec::registers::Version;
use spec::{Command, Nsid, Status};
use zerocopy::IntoBytes;

use crate::config::PAGE_BYTES_MIN;
use crate::controller::{Controller, Namespace};
use crate::events::{ERRORS_MAX, REQUESTS_MAX, TEMPERATURE_KELVIN};

/// Abort commands that may wait at once.
pub(crate) const ABORTS_MAX: u8 = 4;

/// Bytes of the health page, and of the firmware page.
const HEALTH_BYTES: usize = 512;

/// VWC: bit 0, a volatile write cache; bits 1-2, Flush for all namespaces works.
const WRITE_CACHE: u8 = 0b111;

impl Controller {
    /// The structure that an Identify command asks for.
    pub(crate) fn identify(&self, command: &Command) -> Result<Vec<u8>, Status> {
        let identify = Identify::decode(command);
        match identify.cns {
            Cns::NAMESPACE => Ok(describe_namespace(self.namespace(identify.nsid)?)),
            Cns::CONTROLLER => Ok(self.describe_controller().as_bytes().to_vec()),
            Cns::ACTIVE_NAMESPACES => self.list_namespaces(identify.nsid),
            Cns::NAMESPACE_DESCRIPTORS => {
                self.namespace(identify.nsid)?;
                Ok(describe_identifiers(&self.options.serial, identify.nsid))
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// The namespace of this identifier.
    pub(crate) fn namespace(&self, nsid: Nsid) -> Result<&Namespace, Status> {
        let index = usize::try_from(nsid.0).ok().and_then(|nsid| nsid.checked_sub(1));
        index.and_then(|index| self.namespaces.get(index)).ok_or(Status::INVALID_NAMESPACE)
    }

    fn list_namespaces(&self, above: Nsid) -> Result<Vec<u8>, Status> {
        if above.0 >= Nsid::MAX.0 {
            return Err(Status::INVALID_NAMESPACE);
        }
        let mut list = ActiveNamespaces::default();
        let last = u32::try_from(self.namespaces.len()).expect("at most 1024");
        for (target, nsid) in list.nsid.iter_mut().zip(above.0 + 1..=last) {
            *target = nsid;
        }
        Ok(list.as_bytes().to_vec())
    }

    fn describe_controller(&self) -> IdentifyController {
        let mut page = IdentifyController::default();
        pad_ascii(&mut page.sn, &self.options.serial);
        pad_ascii(&mut page.mn, "sidecore software NVMe controller");
        pad_ascii(&mut page.fr, env!("CARGO_PKG_VERSION"));
        let pages = self.options.transfer_bytes_max / PAGE_BYTES_MIN;
        page.mdts = u8::try_from(pages.trailing_zeros()).expect("below 32");
        page.ver = Version::new().with_mjr(1).with_mnr(4).into_bits();
        page.cntrltype = IdentifyController::CNTRLTYPE_IO;
        page.acl_z = ABORTS_MAX - 1;
        page.aerl_z = u8::try_from(REQUESTS_MAX - 1).expect("a small number");
        page.elpe_z = u8::try_from(ERRORS_MAX - 1).expect("a small number");
        // One firmware slot, read only.
        page.frmw = 0b11;
        // Extended data for Get Log Page: offsets and 32-bit lengths.
        page.lpa = 0b100;
        page.sqes = Command::BYTES_LOG2 << 4 | Command::BYTES_LOG2;
        page.cqes = spec::Completion::BYTES_LOG2 << 4 | spec::Completion::BYTES_LOG2;
        page.nn = u32::try_from(self.namespaces.len()).expect("at most 1024");
        page.oncs = IdentifyController::ONCS_COMPARE
            | IdentifyController::ONCS_DATASET_MANAGEMENT
            | IdentifyController::ONCS_WRITE_ZEROES;
        page.vwc = WRITE_CACHE;
        let name = format!("nqn.2014-08.org.nvmexpress:sidecore:{}", self.options.serial);
        for (target, byte) in page.subnqn.iter_mut().zip(name.bytes().take(223)) {
            *target = byte;
        }
        page
    }

    /// A log page, whole.
    pub(crate) fn log_page(&self, page: u8) -> Result<Vec<u8>, Status> {
        match page {
            LogPage::ERRORS => Ok(self.events.error_log()),
            LogPage::HEALTH => Ok(self.health()),
            LogPage::FIRMWARE => {
                let mut log = vec![0; HEALTH_BYTES];
                // Slot 1 is active; its revision.
                log[0] = 1;
                pad_ascii(&mut log[8..16], env!("CARGO_PKG_VERSION"));
                Ok(log)
            }
            _ => Err(Status::INVALID_LOG_PAGE),
        }
    }

    /// SMART / Health Information. Source: 5.16.1.3.
    fn health(&self) -> Vec<u8> {
        let mut log = vec![0; HEALTH_BYTES];
        let mut put = |at: usize, value: u64| log[at..at + 8].copy_from_slice(&value.to_le_bytes());
        let counters = &self.counters;
        // Critical warnings (byte 0; bit 1 is the temperature), temperature in kelvin (1-2), spare
        // and its threshold in percent (3, 4).
        let warning = u64::from(self.events.is_too_warm()) << 1;
        put(0, warning | u64::from(TEMPERATURE_KELVIN) << 8 | 100 << 24 | 10 << 32);
        // Units are thousands of 512 bytes, rounded up.
        put(32, counters.bytes_read.div_ceil(512_000));
        put(48, counters.bytes_written.div_ceil(512_000));
        put(64, counters.io_succeeded);
        put(176, counters.stray_errors);
        log
    }
}

fn describe_namespace(namespace: &Namespace) -> Vec<u8> {
    let mut page = IdentifyNamespace::default();
    (page.nsze, page.ncap, page.nuse) = (namespace.blocks, namespace.blocks, namespace.blocks);
    page.nlbaf_z = 0;
    page.dlfeat = 1;
    let lbads = u8::try_from(namespace.block_shift).expect("9 or 12");
    page.lbaf[0] = LbaFormat { ms: 0, lbads, rp: 0 };
    let mut bytes = page.as_bytes().to_vec();
    // NSATTR bit 0: write protected. Source: NVM Command Set 1.0c, figure 97, byte 99.
    bytes[99] = u8::from(namespace.read_only);
    bytes
}

/// One descriptor: a UUID (type 3) made of the serial number and the identifier.
fn describe_identifiers(serial: &str, nsid: Nsid) -> Vec<u8> {
    let mut list = vec![0; IDENTIFY_BYTES];
    (list[0], list[1]) = (3, 16);
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in serial.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    list[4..12].copy_from_slice(&hash.to_be_bytes());
    list[16..20].copy_from_slice(&nsid.0.to_be_bytes());
    // Version 8 (custom), variant 1. Source: RFC 9562, 5.8.
    list[10] = list[10] & 0x0f | 0x80;
    list[12] = list[12] & 0x3f | 0x80;
    list
}
