//! One file a command.

pub mod baseline;
pub mod bench;
pub mod bulk_bench;
pub mod copoll;
pub mod engine;
pub mod idle;
pub mod interference;
pub mod load;
mod load_bulk;
pub mod placement;
pub mod save;
pub mod selftest;
pub mod suite;
pub mod sweep;
pub mod tune;
pub mod window;

use crate::printer::tell;

/// Exit code of a run in which an I/O failed or was wrong.
pub const NOT_CLEAN: u8 = 3;

/// Says which rows were not right, and chooses the exit code.
pub fn verdict(rows: &[crate::report::Row]) -> std::process::ExitCode {
    let mut clean = true;
    for row in rows.iter().filter(|row| !row.is_clean()) {
        clean = false;
        tell!(
            "{} with {} an I/O: {} of {} I/Os not verified, {} errors",
            row.path,
            crate::units::bytes(row.io_bytes),
            crate::units::thousands(row.ios_unverified),
            crate::units::thousands(row.ios),
            crate::units::thousands(row.errors)
        );
    }
    if clean { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::from(NOT_CLEAN) }
}
