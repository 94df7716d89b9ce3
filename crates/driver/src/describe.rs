//! What a controller says about itself, checked once, in this project's words.

use spec::identify::{IdentifyController, IdentifyNamespace, unpad_ascii};
use spec::registers::{Capabilities, Version};
use spec::{BlockCount, Nsid};

use crate::error::DriverError;

/// Largest single transfer that this driver builds: its list fits in one page.
const TRANSFER_BYTES_MAX: usize = 1 << 20;

/// A controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Controller {
    /// Model, for people.
    pub model: String,
    /// Serial number, for people.
    pub serial: String,
    /// Firmware revision, for people.
    pub firmware: String,
    /// Version of the base specification.
    pub version: Version,
    /// Largest single transfer: the drive's limit, or this driver's.
    pub transfer_bytes_max: u32,
    /// Most requests in flight on one queue.
    pub depth_max: u32,
    /// Most entries of a queue.
    pub entries_max: u32,
    /// I/O queue pairs that can be open at once.
    pub queues_max: u16,
    /// Abort commands at once.
    pub aborts_max: u32,
    /// Whether Write Zeroes may be used.
    pub write_zeroes: bool,
    /// Whether writes are lost with the power unless flushed.
    pub volatile_cache: bool,
}

impl Controller {
    pub(crate) fn decode(
        cap: Capabilities,
        version: Version,
        page: &IdentifyController,
    ) -> Result<Self, DriverError> {
        let entry_sizes_fit = |range: u8, log2: u8| (range & 0xf) <= log2 && log2 <= (range >> 4);
        if !entry_sizes_fit(page.sqes, spec::Command::BYTES_LOG2)
            || !entry_sizes_fit(page.cqes, spec::Completion::BYTES_LOG2)
        {
            return Err(DriverError::Unsupported {
                what: "queue entries of 64 and 16 bytes",
                why: format!("the drive reports SQES {:#x}, CQES {:#x}", page.sqes, page.cqes),
            });
        }
        let limit = page.transfer_bytes_max(cap.page_bytes_min()).unwrap_or(usize::MAX);
        let transfer = limit.min(TRANSFER_BYTES_MAX);
        let depth = (cap.queue_entries_max() - 1).min(proto::COMMANDS_MAX);
        let depth = if page.maxcmd == 0 { depth } else { depth.min(u32::from(page.maxcmd)) };
        Ok(Self {
            model: unpad_ascii(&page.mn),
            serial: unpad_ascii(&page.sn),
            firmware: unpad_ascii(&page.fr),
            version,
            transfer_bytes_max: u32::try_from(transfer).expect("at most 1 MiB by the line above"),
            depth_max: depth,
            entries_max: cap.queue_entries_max(),
            queues_max: 0,
            aborts_max: u32::from(page.acl_z) + 1,
            write_zeroes: page.oncs & IdentifyController::ONCS_WRITE_ZEROES != 0,
            volatile_cache: page.vwc & IdentifyController::VWC_PRESENT != 0,
        })
    }
}

/// A namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Namespace {
    /// Its identifier.
    pub nsid: Nsid,
    /// Length in blocks.
    pub blocks: u64,
    /// Bytes of a block: a power of two, 512 or more.
    pub block_bytes: u32,
    /// Whether writes are refused.
    pub read_only: bool,
}

impl Namespace {
    pub(crate) fn decode(nsid: Nsid, page: &IdentifyNamespace) -> Result<Self, DriverError> {
        let unsupported = |why| DriverError::Unsupported { what: "the namespace's format", why };
        let format = page.format();
        if !(9..=16).contains(&format.lbads) {
            let why = format!("{nsid} has blocks of 2^{} bytes, not 2^9 to 2^16", format.lbads);
            return Err(unsupported(why));
        }
        if format.ms != 0 {
            let why = format!("{nsid} has {} bytes of metadata a block, not 0", format.ms);
            return Err(unsupported(why));
        }
        let block_bytes = 1u32 << format.lbads;
        if page.nsze.checked_mul(u64::from(block_bytes)).is_none() {
            return Err(unsupported(format!("{nsid} claims {} blocks", page.nsze)));
        }
        let read_only = page.nsattr & IdentifyNamespace::NSATTR_WRITE_PROTECTED != 0;
        Ok(Self { nsid, blocks: page.nsze, block_bytes, read_only })
    }

    /// Length in bytes.
    pub const fn bytes(&self) -> u64 {
        self.blocks * self.block_bytes as u64
    }

    /// The most blocks that one command of `transfer_bytes_max` moves; at least one.
    pub fn transfer_blocks_max(&self, transfer_bytes_max: u32) -> BlockCount {
        let blocks = (transfer_bytes_max / self.block_bytes).max(1);
        BlockCount(blocks.min(BlockCount::COMMAND_MAX.0))
    }
}
