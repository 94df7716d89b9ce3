//! Asynchronous events, and the log pages that tell more about them.
//!
//! Sources: NVMe Base 2.0c, 5.2 (Asynchronous Event Request), 5.16 (Get Log Page).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::command::{Command, byte, half};
use crate::number::Nsid;
use crate::status::Status;

/// Completion dword 0 of an Asynchronous Event Request.
///
/// | bits | field |
/// | --- | --- |
/// | 0-2 | event type |
/// | 8-15 | what happened, by type |
/// | 16-23 | log page that says more; reading it lets the next event of the type through |
///
/// Source: NVMe Base 2.0c, 5.2.1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AsyncEvent {
    /// Event type: [`AsyncEvent::TYPE_ERROR`] is an error.
    pub event_type: u8,
    /// What happened.
    pub what: u8,
    /// Log page to read.
    pub log_page: u8,
}

impl AsyncEvent {
    /// Event type: an error that belongs to no command.
    pub const TYPE_ERROR: u8 = 0;
    /// Event type: the health of the drive has changed.
    pub const TYPE_HEALTH: u8 = 1;
    /// Error event: a doorbell of a queue that does not exist was written.
    pub const INVALID_DOORBELL_REGISTER: u8 = 0x00;
    /// Error event: a doorbell was given a value that cannot be.
    pub const INVALID_DOORBELL_VALUE: u8 = 0x01;
    /// Health event: the temperature has crossed a threshold.
    pub const TEMPERATURE_THRESHOLD: u8 = 0x01;

    /// The dword.
    pub const fn encode(self) -> u32 {
        (self.log_page as u32) << 16 | (self.what as u32) << 8 | self.event_type as u32 & 7
    }

    /// From the dword.
    pub const fn decode(dword: u32) -> Self {
        Self { event_type: byte(dword) & 7, what: byte(dword >> 8), log_page: byte(dword >> 16) }
    }
}

/// An entry of the Error Information log: 64 bytes, the youngest first.
///
/// Source: NVMe Base 2.0c, 5.16.1.2.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ErrorEntry {
    /// Which error this is, counted from 1; 0 marks an entry without one.
    pub count: u64,
    /// Submission queue of the command; `NONE` where the error belongs to none.
    pub submission_queue: u16,
    /// Command identifier; `NONE` as before.
    pub command: u16,
    /// Status in bits 1-15.
    pub status: u16,
    /// Where in the command the error lies; `NONE` as before.
    pub location: u16,
    reserved: [u64; 6],
}

impl ErrorEntry {
    /// Bytes of an entry.
    pub const BYTES: usize = 64;
    /// What fields about a command hold where there was none.
    pub const NONE: u16 = u16::MAX;

    /// An error that belongs to no command.
    pub fn of_no_command(count: u64, status: Status) -> Self {
        let (submission_queue, command, location) = (Self::NONE, Self::NONE, Self::NONE);
        let status = status.bits() << 1;
        Self { count, submission_queue, command, status, location, ..Self::default() }
    }
}

const _: () = assert!(size_of::<ErrorEntry>() == ErrorEntry::BYTES);

/// Log page identifiers. Source: NVMe Base 2.0c, 5.16.1.
pub struct LogPage;

impl LogPage {
    /// Error Information.
    pub const ERRORS: u8 = 0x01;
    /// SMART / Health Information.
    pub const HEALTH: u8 = 0x02;
    /// Firmware Slot Information.
    pub const FIRMWARE: u8 = 0x03;
}

/// Get Log Page: dwords 10-13; PRP1 and PRP2 name the memory to fill.
///
/// Source: NVMe Base 2.0c, 5.16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GetLogPage {
    /// Which page; see [`LogPage`].
    pub page: u8,
    /// Whether events that the page would let through stay masked.
    pub retain_event: bool,
    /// Dwords to transfer, counted from zero.
    pub dwords_z: u32,
    /// First byte of the page to transfer.
    pub offset: u64,
}

impl GetLogPage {
    /// The command.
    pub fn encode(self) -> Command {
        let mut command = Command::new(crate::admin::Opcode::LOG_PAGE, Nsid::BROADCAST);
        command.cdw10 = self.dwords_z << 16 | u32::from(self.page);
        command.cdw10 |= u32::from(self.retain_event) << 15;
        command.cdw11 = self.dwords_z >> 16;
        let [low, high] = zerocopy::transmute!(self.offset);
        command.cdw12 = low;
        command.cdw13 = high;
        command
    }

    /// The dwords of a command.
    pub fn decode(command: &Command) -> Self {
        let high = u32::from(half(command.cdw11, 0));
        Self {
            page: byte(command.cdw10),
            retain_event: command.cdw10 >> 15 & 1 != 0,
            dwords_z: high << 16 | u32::from(half(command.cdw10, 16)),
            offset: u64::from(command.cdw13) << 32 | u64::from(command.cdw12),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_and_log_pages_match_the_dwords_of_the_standard() {
        let event = AsyncEvent {
            event_type: AsyncEvent::TYPE_ERROR,
            what: AsyncEvent::INVALID_DOORBELL_VALUE,
            log_page: LogPage::ERRORS,
        };
        assert_eq!(event.encode(), 0x0001_0100);
        assert_eq!(AsyncEvent::decode(0x0001_0100), event);
        let entry = ErrorEntry::of_no_command(0x0807, Status::INVALID_QUEUE_ID);
        assert_eq!(
            entry.as_bytes()[..16],
            *b"\x07\x08\0\0\0\0\0\0\xff\xff\xff\xff\x02\x02\xff\xff"
        );
        assert!(entry.as_bytes()[16..].iter().all(|byte| *byte == 0));
        let log = GetLogPage { page: 2, retain_event: true, dwords_z: 0x1_0002, offset: 1 << 33 };
        let command = log.encode();
        assert_eq!((command.opcode, command.cdw10, command.cdw11), (2, 0x0002_8002, 1));
        assert_eq!((command.cdw12, command.cdw13), (0, 2));
        assert_eq!(GetLogPage::decode(&command), log);
    }
}
