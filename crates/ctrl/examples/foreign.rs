//! Serves a controller to a program that knows nothing of sidecore.
//!
//! Registers and memory are files; the program maps them, finds memory at bus address 4 GiB, and
//! drives the controller like a drive. What it prints is printed, how it ends is how this ends.
//!
//! ```text
//! foreign FOLDER PROGRAM      runs: PROGRAM files FOLDER/bar FOLDER/memory 0x100000000
//! ```
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use mem::{AddressMap, Region};
use sidecore_ctrl::{Controller, Options, Server, ServerOptions};
use storage::MemoryStorage;

/// As much as the program maps.
const BAR_BYTES: usize = 0x2000;
const MEMORY_BYTES: usize = 1 << 20;
const BUS: u64 = 1 << 32;
/// The same as the drive that it is compared with.
const DRIVE_BYTES: usize = 64 << 20;

fn file(path: &Path, bytes: usize) -> Result<File, Box<dyn Error>> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
    file.set_len(bytes as u64)?;
    Ok(file)
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [folder, program] = words.as_slice() else { return Err("FOLDER PROGRAM".into()) };
    let (bar, memory) = (Path::new(folder).join("bar"), Path::new(folder).join("memory"));
    let registers = Region::map_file(file(&bar, BAR_BYTES)?, BAR_BYTES)?;
    let map = Arc::new(AddressMap::new());
    map.register_at(BUS, Region::map_file(file(&memory, MEMORY_BYTES)?, MEMORY_BYTES)?)?;
    let mut options = Options::over(Arc::new(MemoryStorage::new(DRIVE_BYTES)?));
    options.transfer_bytes_max = 512 << 10;
    options.queue_entries_max = 2048;
    let controller = Controller::with_bar(options, map, registers)?;
    let server = Server::start(vec![controller], ServerOptions::default())?;
    let status = Command::new(program)
        .arg("files")
        .args([&bar, &memory])
        .arg(format!("{BUS:#x}"))
        .status()?;
    server.stop(Duration::from_secs(5))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
