//! Adds up the bytes of a file on the GPU: `byte_sum FILE`.
//!
//! The host opens the file, registers it and a buffer, makes a ring and launches the kernel of
//! `byte_sum.cu`; the engine's side cores do the rest.

use std::sync::Arc;
use std::time::Duration;

use abi::ring::{BufferView, RingView, SourceView};
use anyhow::{Result, bail, ensure};
use gpu::{Gpu, LaunchShape, SimulatedGpu, SimulatedOptions};
use sidecore::{Engine, Rights, RingConfig};
use storage::{FileOptions, FileStorage};
use zerocopy::{Immutable, IntoBytes};

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

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
    let shape = LaunchShape::new(BLOCKS, THREADS);
    gpu::run(&*gpu, &BYTE_SUM, shape, arguments.as_bytes(), Duration::from_secs(60))?;
    let [sum, failed]: [u64; 2] = gpu::fetch(&*gpu, &results)?;
    ensure!(failed == 0, "{failed} reads failed");
    println!("{} bytes add up to {sum} (GPU: {})", source.view().bytes, gpu.describe().name);
    Ok(())
}
