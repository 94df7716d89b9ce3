//! The status field of a completion.
//!
//! Fifteen bits as the specification lays them out above the phase tag: status code (8), status
//! code type (3), command retry delay (2), more (1), do not retry (1).
//!
//! Source: NVMe Base Specification 2.0c, 3.3.3.2.1 (completion queue entry: status field).

use core::fmt;

/// The status field of a completion, without its phase tag.
///
/// Bits 0-7: status code; 8-10: status code type; 11-12: command retry delay; 13: more;
/// 14: do not retry. Travels unchanged from the drive to the caller. `{}` gives code type, code and
/// name; `{:?}` only the numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Status(u16);

impl Status {
    /// Code type: generic command status.
    pub const TYPE_GENERIC: u8 = 0;
    /// Code type: command specific status.
    pub const TYPE_COMMAND: u8 = 1;
    /// Code type: media and data integrity errors.
    pub const TYPE_MEDIA: u8 = 2;
    /// Code type: path related status.
    pub const TYPE_PATH: u8 = 3;

    const DO_NOT_RETRY: u16 = 1 << 14;
    const TYPE_AND_CODE: u16 = 0x7ff;

    /// Builds a status from its code type (0-7) and code.
    pub const fn new(code_type: u8, code: u8) -> Self {
        Self(((code_type as u16 & 7) << 8) | code as u16)
    }

    /// Takes the fifteen bits as a completion carries them (already shifted past the phase tag).
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & 0x7fff)
    }

    /// The fifteen bits.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Whether code and code type say that the command completed without error.
    pub const fn is_success(self) -> bool {
        self.0 & Self::TYPE_AND_CODE == 0
    }

    /// Status code type, 0-7.
    pub const fn code_type(self) -> u8 {
        ((self.0 >> 8) & 7) as u8
    }

    /// Status code.
    pub const fn code(self) -> u8 {
        (self.0 & 0xff) as u8
    }

    /// Whether the same command would fail again.
    pub const fn do_not_retry(self) -> bool {
        self.0 & Self::DO_NOT_RETRY != 0
    }

    /// The same status, saying that the same command would fail again.
    #[must_use]
    pub const fn with_do_not_retry(self) -> Self {
        Self(self.0 | Self::DO_NOT_RETRY)
    }

    /// Whether type and code are the same, whatever is said about retrying.
    pub const fn is(self, other: Self) -> bool {
        self.0 & Self::TYPE_AND_CODE == other.0 & Self::TYPE_AND_CODE
    }

    /// The code type's name.
    pub const fn type_name(self) -> &'static str {
        match self.code_type() {
            Self::TYPE_GENERIC => "generic command status",
            Self::TYPE_COMMAND => "command specific status",
            Self::TYPE_MEDIA => "media and data integrity error",
            Self::TYPE_PATH => "path related status",
            7 => "vendor specific status",
            _ => "reserved status type",
        }
    }
}

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code_type:literal, $code:literal, $text:literal;)*) => {
        impl Status {
            $(
                #[doc = concat!($text, ".")]
                $(#[$doc])*
                pub const $name: Self = Self::new($code_type, $code);
            )*

            /// Every status that has a name here.
            pub const NAMED: &'static [Self] = &[$(Self::$name),*];

            /// The specification's name, where this crate knows it.
            pub const fn name(self) -> Option<&'static str> {
                match (self.code_type(), self.code()) {
                    $(($code_type, $code) => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    // Generic command status.
    SUCCESS = 0, 0x00, "Successful Completion";
    INVALID_OPCODE = 0, 0x01, "Invalid Command Opcode";
    INVALID_FIELD = 0, 0x02, "Invalid Field in Command";
    COMMAND_ID_CONFLICT = 0, 0x03, "Command ID Conflict";
    DATA_TRANSFER_ERROR = 0, 0x04, "Data Transfer Error";
    ABORTED_POWER_LOSS = 0, 0x05, "Commands Aborted due to Power Loss Notification";
    INTERNAL_ERROR = 0, 0x06, "Internal Error";
    ABORT_REQUESTED = 0, 0x07, "Command Abort Requested";
    ABORTED_QUEUE_DELETION = 0, 0x08, "Command Aborted due to SQ Deletion";
    ABORTED_FAILED_FUSED = 0, 0x09, "Command Aborted due to Failed Fused Command";
    ABORTED_MISSING_FUSED = 0, 0x0a, "Command Aborted due to Missing Fused Command";
    INVALID_NAMESPACE = 0, 0x0b, "Invalid Namespace or Format";
    COMMAND_SEQUENCE_ERROR = 0, 0x0c, "Command Sequence Error";
    INVALID_USE_OF_CMB = 0, 0x12, "Invalid Use of Controller Memory Buffer";
    PRP_OFFSET_INVALID = 0, 0x13, "PRP Offset Invalid";
    ATOMIC_WRITE_UNIT_EXCEEDED = 0, 0x14, "Atomic Write Unit Exceeded";
    OPERATION_DENIED = 0, 0x15, "Operation Denied";
    SANITIZE_IN_PROGRESS = 0, 0x1d, "Sanitize In Progress";
    NAMESPACE_WRITE_PROTECTED = 0, 0x20, "Namespace is Write Protected";
    COMMAND_INTERRUPTED = 0, 0x21, "Command Interrupted";
    TRANSIENT_TRANSPORT_ERROR = 0, 0x22, "Transient Transport Error";
    LBA_OUT_OF_RANGE = 0, 0x80, "LBA Out of Range";
    CAPACITY_EXCEEDED = 0, 0x81, "Capacity Exceeded";
    NAMESPACE_NOT_READY = 0, 0x82, "Namespace Not Ready";
    RESERVATION_CONFLICT = 0, 0x83, "Reservation Conflict";
    FORMAT_IN_PROGRESS = 0, 0x84, "Format In Progress";
    // Command specific status.
    COMPLETION_QUEUE_INVALID = 1, 0x00, "Completion Queue Invalid";
    INVALID_QUEUE_ID = 1, 0x01, "Invalid Queue Identifier";
    INVALID_QUEUE_SIZE = 1, 0x02, "Invalid Queue Size";
    ABORT_LIMIT_EXCEEDED = 1, 0x03, "Abort Command Limit Exceeded";
    EVENT_REQUEST_LIMIT_EXCEEDED = 1, 0x05, "Asynchronous Event Request Limit Exceeded";
    INVALID_INTERRUPT_VECTOR = 1, 0x08, "Invalid Interrupt Vector";
    INVALID_LOG_PAGE = 1, 0x09, "Invalid Log Page";
    INVALID_FORMAT = 1, 0x0a, "Invalid Format";
    INVALID_QUEUE_DELETION = 1, 0x0c, "Invalid Queue Deletion";
    FEATURE_NOT_SAVEABLE = 1, 0x0d, "Feature Identifier Not Saveable";
    FEATURE_NOT_CHANGEABLE = 1, 0x0e, "Feature Not Changeable";
    FEATURE_NOT_NAMESPACE_SPECIFIC = 1, 0x0f, "Feature Not Namespace Specific";
    /// Of an I/O command.
    CONFLICTING_ATTRIBUTES = 1, 0x80, "Conflicting Attributes";
    /// Of an I/O command.
    INVALID_PROTECTION = 1, 0x81, "Invalid Protection Information";
    /// Of an I/O command.
    WRITE_TO_READ_ONLY_RANGE = 1, 0x82, "Attempted Write to Read Only Range";
    // Media and data integrity errors.
    WRITE_FAULT = 2, 0x80, "Write Fault";
    UNRECOVERED_READ_ERROR = 2, 0x81, "Unrecovered Read Error";
    GUARD_CHECK_ERROR = 2, 0x82, "End-to-end Guard Check Error";
    APPLICATION_TAG_CHECK_ERROR = 2, 0x83, "End-to-end Application Tag Check Error";
    REFERENCE_TAG_CHECK_ERROR = 2, 0x84, "End-to-end Reference Tag Check Error";
    COMPARE_FAILURE = 2, 0x85, "Compare Failure";
    ACCESS_DENIED = 2, 0x86, "Access Denied";
    DEALLOCATED_BLOCK = 2, 0x87, "Deallocated or Unwritten Logical Block";
    // Path related status.
    INTERNAL_PATH_ERROR = 3, 0x00, "Internal Path Error";
    CONTROLLER_PATHING_ERROR = 3, 0x60, "Controller Pathing Error";
    HOST_PATHING_ERROR = 3, 0x70, "Host Pathing Error";
    /// What a driver of ours reports for a command that it gave up itself.
    ABORTED_BY_HOST = 3, 0x71, "Command Aborted By Host";
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({:#x}/{:#04x})", self.code_type(), self.code())
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name().unwrap_or("no name known");
        write!(f, "{} {:#x}, code {:#04x}, {name}", self.type_name(), self.code_type(), self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_gives_type_code_and_name() {
        assert_eq!(
            Status::LBA_OUT_OF_RANGE.with_do_not_retry().to_string(),
            "generic command status 0x0, code 0x80, LBA Out of Range"
        );
        assert_eq!(
            Status::UNRECOVERED_READ_ERROR.to_string(),
            "media and data integrity error 0x2, code 0x81, Unrecovered Read Error"
        );
        assert_eq!(
            Status::new(7, 0x42).to_string(),
            "vendor specific status 0x7, code 0x42, no name known"
        );
    }

    #[test]
    fn only_type_and_code_decide() {
        let retry = Status::from_bits(0x4281);
        assert!(retry.do_not_retry() && retry.is(Status::UNRECOVERED_READ_ERROR));
        assert_ne!(retry, Status::UNRECOVERED_READ_ERROR);
        assert!(Status::from_bits(0x4000).is_success());
        assert_eq!(Status::NAMED.iter().filter(|status| status.is_success()).count(), 1);
        for status in Status::NAMED {
            assert_eq!(Status::new(status.code_type(), status.code()), *status);
            assert!(status.name().is_some());
        }
    }
}
