//! Reads a drive on the GPU by commands that lanes build: `read_sync FILE`; see `read_sync.cu`.
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use gpu::{Gpu, LaunchShape, SimulatedGpu, SimulatedOptions};
use sidecore::{SoftwareDrive, gpu_queues::QueueOptions};
use storage::{FileOptions, FileStorage};
use zerocopy::IntoBytes;

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

fn main() -> Result<()> {
    let path = std::env::args_os().nth(1).context("usage: read_sync FILE")?;
    let gpu: Arc<dyn Gpu> = Arc::new(SimulatedGpu::new(SimulatedOptions::default()));
    let file = FileStorage::open(path, &FileOptions::default())?;
    let drive = SoftwareDrive::start(&gpu, Arc::new(file))?;
    let queues = drive.queues(1, &QueueOptions::copilot())?;
    let buffer = queues.buffer(&gpu.allocate_device(drive.bytes())?)?;
    let results = gpu.allocate_device(16)?;
    let at = buffer.view();
    let arguments = [queues.views_address(), at.address, at.bus, at.bytes, results.address];
    let shape = LaunchShape::new(u32::try_from(at.bytes.div_ceil(64 * 4096))?, 64);
    let limit = std::time::Duration::from_secs(60);
    gpu::run(&*gpu, &READ_SYNC, shape, arguments.as_bytes(), limit)?;
    let [sum, failed]: [u64; 2] = gpu::fetch(&*gpu, &results)?;
    ensure!(failed == 0, "{failed} reads failed");
    println!("{} blocks add up to {sum:#x}", at.bytes / 4096);
    Ok(())
}
