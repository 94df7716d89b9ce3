//! Adds up the bytes of a file on the GPU: `byte_sum FILE`.
//!
//! The host opens the file, registers it and a buffer, makes a ring and launches the kernel of
//! `byte_sum.cu`; the engine's side cores do the rest.
// UNSAFETY: the kernel is a C++ function; naming it is a foreign declaration.
#![expect(unsafe_code, reason = "foreign declaration of the kernel's entry point")]

use std::sync::Arc;
use std::time::Duration;

use abi::ring::{BufferView, RingView, SourceView};
use anyhow::{Context, Result, bail, ensure};
use gpu::{Gpu, Kernel, LaunchShape, SimulatedGpu, SimulatedOptions};
use sidecore::{Engine, Rights, RingConfig};
use storage::{FileOptions, FileStorage};
use zerocopy::{Immutable, IntoBytes};

unsafe extern "C" {
    fn byte_sum(arguments: *const std::ffi::c_void);
}

/// As `ByteSum` in `byte_sum.cu`.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Arguments {
    ring: RingView,
    file: SourceView,
    buffer: BufferView,
    sum: u64,
    errors: u64,
}

const BLOCKS: u32 = 4;
const THREADS: u32 = 64;
const LANES: u32 = BLOCKS * THREADS;

fn main() -> Result<()> {
    let Some(path) = std::env::args_os().nth(1) else { bail!("usage: byte_sum FILE") };
    let gpu: Arc<dyn Gpu> = Arc::new(SimulatedGpu::new(SimulatedOptions::default()));
    let engine = Engine::builder(Arc::clone(&gpu)).start()?;
    let file = FileStorage::open(&path, &FileOptions::default())?;
    let source = engine.register_source(Arc::new(file), Rights::READ)?;
    let memory = gpu.allocate_device(u64::from(LANES) * 4096)?;
    let buffer = engine.register_buffer(memory, Rights::READ)?;
    let ring = engine.create_ring(RingConfig { records: LANES, ..RingConfig::default() })?;
    let results = gpu.allocate_device(16)?;
    let arguments = Arguments {
        ring: ring.view(),
        file: source.view(),
        buffer: buffer.view(),
        sum: results.address,
        errors: results.address + 8,
    };
    let kernel = Kernel { name: "byte_sum", simulated: simt::Entry(byte_sum), source: None };
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
    println!("{} bytes add up to {} (GPU: {})", source.view().bytes, words[0], gpu.describe().name);
    Ok(())
}
