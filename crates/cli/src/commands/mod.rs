//! One file a command.

pub mod bench;
pub mod idle;
pub mod load;

/// Exit code of a run in which an I/O failed or was wrong.
pub const NOT_CLEAN: u8 = 3;
