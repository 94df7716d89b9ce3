//! Reads a drive on the GPU, by commands that lanes build themselves: `read_drive sync|async FILE`.
//!
//! The drive is a software controller over the file. The host makes queue pairs that lanes may use,
//! with a CPU agent that drains their completion queues, and launches a kernel.
// UNSAFETY: kernels are C++ functions; naming them is a foreign declaration.
#![expect(unsafe_code, reason = "foreign declarations of the kernels' entry points")]

use std::sync::Arc;
use std::time::Duration;

use abi::queue::DmaBufferView;
use anyhow::{Context, Result, bail, ensure};
use gpu::{Gpu, Kernel, LaunchShape, SimulatedGpu, SimulatedOptions};
use sidecore::gpu_queues::{AgentPlacement, GpuQueues, QueueOptions};
use storage::{FileOptions, FileStorage, NvmeOptions, NvmeStorage, Storage};
use zerocopy::{Immutable, IntoBytes};

unsafe extern "C" {
    fn read_sync(arguments: *const std::ffi::c_void);
    fn read_async(arguments: *const std::ffi::c_void);
}

/// As `Reads` in the kernels' files.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Arguments {
    queues: u64,
    queue_count: u64,
    buffer: DmaBufferView,
    blocks: u64,
    sum: u64,
    errors: u64,
}

const BLOCKS: u32 = 4;
const THREADS: u32 = 64;
/// Bytes a lane: eight blocks.
const LANE_BYTES: u64 = 8 * 4096;
const PAIRS: u32 = 2;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let (kernel, path) = match &arguments[..] {
        [_, how, path] if how == "sync" => {
            (Kernel { name: "read_sync", simulated: simt::Entry(read_sync), source: None }, path)
        }
        [_, how, path] if how == "async" => {
            (Kernel { name: "read_async", simulated: simt::Entry(read_async), source: None }, path)
        }
        _ => bail!("usage: read_drive sync|async FILE"),
    };
    // The drive: a controller in a thread of its own, and the driver that starts it.
    let file = FileStorage::open(path, &FileOptions::default())?;
    let map = Arc::new(mem::AddressMap::new());
    let controller = ctrl::Controller::new(ctrl::Options::over(Arc::new(file)), Arc::clone(&map))?;
    let device = Arc::new(driver::RegionDevice::new(controller.bar(), map));
    let _server = ctrl::Server::start(vec![controller], ctrl::ServerOptions::default())?;
    let drive = NvmeStorage::wait_open(device, &NvmeOptions::default())?;
    // Queue pairs for lanes, and a buffer that lanes and drive reach.
    let gpu: Arc<dyn Gpu> = Arc::new(SimulatedGpu::new(SimulatedOptions::default()));
    let agents = AgentPlacement { agents: 1, first_cpu: None, shared: true };
    let drives = [drive.driver().clone()];
    let options = QueueOptions { command_ids: 4096, prp_lists: false, ..QueueOptions::copilot() };
    let limit = Duration::from_secs(10);
    let queues = GpuQueues::start(&gpu, &drives, PAIRS, &options, agents, None, limit)?;
    let lanes = u64::from(BLOCKS * THREADS);
    let buffer = queues.buffer(&gpu.allocate_device(lanes * LANE_BYTES)?)?;
    let results = gpu.allocate_device(16)?;
    let blocks = drive.geometry().bytes / 4096;
    let arguments = Arguments {
        queues: queues.views_address(),
        queue_count: PAIRS.into(),
        buffer: buffer.view(),
        blocks,
        sum: results.address,
        errors: results.address + 8,
    };
    let shape = LaunchShape { blocks: BLOCKS, threads_per_block: THREADS, shared_bytes: 0 };
    let mut launch = gpu.launch(&kernel, shape, arguments.as_bytes())?;
    launch.wait(Duration::from_secs(60)).context("the kernel does not end")??;
    let host = gpu.allocate_host(16)?;
    let copy =
        gpu::Copy { host: &host, host_offset: 0, device: &results, device_offset: 0, bytes: 16 };
    gpu.copy_to_host(copy)?;
    let mut words = [0u64; 2];
    host.read_bytes(0, words.as_mut_bytes());
    ensure!(words[1] == 0, "{} reads failed", words[1]);
    let polled: u64 = queues.counters_now().iter().map(|pair| pair.completions_polled).sum();
    println!("{blocks} blocks add up to {:#x}; the CPU saw {polled} completions", words[0]);
    Ok(())
}
