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
/// 14: do not retry. Travels unchanged from the drive to the caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Status(u16);

impl Status {
    /// The command completed without error.
    pub const SUCCESS: Self = Self(0);

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
        self.0 & 0x7ff == 0
    }

    /// Status code type, 0-7.
    pub const fn code_type(self) -> u8 {
        ((self.0 >> 8) & 7) as u8
    }

    /// Status code.
    pub const fn code(self) -> u8 {
        (self.0 & 0xff) as u8
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({:#x}/{:#04x})", self.code_type(), self.code())
    }
}
