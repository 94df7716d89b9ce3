//! `sidecore bench window`: the ceilings that payload meets on its way into GPU memory.
//!
//! | what | how |
//! | --- | --- |
//! | `window-sequential` | CPU threads store 4 KiB blocks through the window, in order from order |
//! | `window-random` | from anywhere to anywhere, with a fence after each |
//! | `window-unasked` | from anywhere in order, as a side core does but for: |
//! | `window-side-core` | and asking the caches for the next block meanwhile: what one can do |
//! | `zero-copy-load` | the GPU's threads load from pinned host memory |
//! | `zero-copy-store` | the GPU's threads store to pinned host memory |
//! | `copy-to-device`, `copy-to-host` | the copy engine |
//! | `gpu-clock` | the smallest step of the clock by which kernels time I/Os |

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gpu::{DeviceMemory, Gpu, LaunchShape};
use mem::Region;
use serde::Serialize;
use zerocopy::IntoBytes;

use crate::args::WindowArgs;
use crate::bench::paths;
use crate::interrupt;
use crate::printer::print;

/// Bytes of a block.
const BLOCK: usize = 4096;
/// Threads that store through the window.
const THREADS: [u32; 5] = [1, 2, 4, 8, 12];
/// Blocks of 1,024 threads.
const BLOCKS: [u32; 6] = [1, 4, 8, 16, 32, 64];

/// Readings of the clock.
const CLOCK_READINGS: u64 = 10_000;
/// Blocks between two fences of a side core that has much to do.
const FENCE_EVERY: u64 = 128;

/// A way to store blocks through the window.
#[derive(Clone, Copy)]
struct Way {
    what: &'static str,
    random_from: bool,
    random_to: bool,
    /// Blocks between two fences.
    fence_every: u64,
    /// Whether the caches are asked for the next block.
    ahead: bool,
}

impl Way {
    /// As a side core does it.
    const SIDE_CORE: Self = Self {
        what: "window-side-core",
        random_from: true,
        random_to: false,
        fence_every: FENCE_EVERY,
        ahead: true,
    };
}

const WAYS: [Way; 4] = [
    Way { what: "window-sequential", random_from: false, ahead: false, ..Way::SIDE_CORE },
    Way { what: "window-random", random_to: true, fence_every: 1, ahead: false, ..Way::SIDE_CORE },
    Way { what: "window-unasked", ahead: false, ..Way::SIDE_CORE },
    Way::SIDE_CORE,
];

/// One ceiling.
#[derive(Debug, Serialize)]
pub struct Ceiling {
    gpu: String,
    what: &'static str,
    /// CPU threads, or GPU blocks.
    n: u32,
    bytes: u64,
    seconds: f64,
    bytes_per_s: f64,
    /// Of a clock: its smallest step.
    #[serde(skip_serializing_if = "Option::is_none")]
    step_ns: Option<u64>,
}

/// Runs it.
///
/// # Errors
/// No memory, a GPU that refuses.
pub fn run(args: &WindowArgs) -> Result<ExitCode> {
    let gpu = paths::open_gpu(&args.limits)?;
    measure(&*gpu, args, &mut |ceiling| {
        ceiling.show(args.json)?;
        ensure!(!interrupt::asked(), "what comes after {} was not measured", ceiling.what);
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Measures, and shows each figure as it comes.
///
/// # Errors
/// As [`run`], and those of `show`.
pub fn measure(
    gpu: &dyn Gpu,
    args: &WindowArgs,
    show: &mut dyn FnMut(&Ceiling) -> Result<()>,
) -> Result<()> {
    let bytes = usize::try_from(args.size).context("--size")? / BLOCK * BLOCK;
    ensure!(bytes >= BLOCK, "--size must be at least one block of {BLOCK} bytes");
    let device = gpu.allocate_device(bytes as u64)?;
    let host = gpu.allocate_host(bytes as u64)?;
    host.fill(0, bytes, 0xa5);
    let bench = Bench { gpu, device: &device, host: &host, bytes, limit: args.duration };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let source = Region::map_private(bytes)?;
    source.fill(0, bytes, 0x5a);
    for n in THREADS.into_iter().filter(|n| *n as usize <= cpus) {
        for way in WAYS.into_iter().filter(|way| args.wants(way.what)) {
            show(&bench.window(n, way, &source)?)?;
        }
    }
    drop(source);
    let kernels = [
        ("zero-copy-load", device.address, host.address()),
        ("zero-copy-store", host.address(), device.address),
    ];
    for n in BLOCKS {
        for (what, to, from) in kernels.into_iter().filter(|(what, ..)| args.wants(what)) {
            show(&bench.kernel(what, n, to, from)?)?;
        }
    }
    for what in ["copy-to-device", "copy-to-host"].into_iter().filter(|what| args.wants(what)) {
        show(&bench.engine(what)?)?;
    }
    if args.wants("gpu-clock") {
        show(&bench.clock()?)?;
    }
    Ok(())
}

impl Ceiling {
    fn show(&self, json: bool) -> Result<()> {
        let text = if json {
            serde_json::to_string(self)?
        } else if let Some(step_ns) = self.step_ns {
            format!("{:18} {:3}  {step_ns:5} ns", self.what, self.n)
        } else {
            format!("{:18} {:3}  {:8.2} GB/s", self.what, self.n, self.bytes_per_s * 1e-9)
        };
        print(&text)
    }
}

struct Bench<'a> {
    gpu: &'a dyn Gpu,
    device: &'a DeviceMemory,
    host: &'a Region,
    bytes: usize,
    limit: Duration,
}

impl Bench<'_> {
    fn ceiling(&self, what: &'static str, n: u32, bytes: u64, seconds: f64) -> Ceiling {
        let gpu = self.gpu.describe().name;
        let bytes_per_s = bytes as f64 / seconds;
        Ceiling { gpu, what, n, bytes, seconds, bytes_per_s, step_ns: None }
    }

    fn window(&self, threads: u32, way: Way, source: &Region) -> Result<Ceiling> {
        let window = self.device.window.as_ref().context("there is no window to measure")?;
        let moved = AtomicU64::new(0);
        let start = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let moved = &moved;
                scope.spawn(move || {
                    let blocks = self.store(window, source, u64::from(thread), way, start);
                    moved.fetch_add(blocks * BLOCK as u64, Ordering::Relaxed);
                });
            }
        });
        let seconds = start.elapsed().as_secs_f64();
        Ok(self.ceiling(way.what, threads, moved.into_inner(), seconds))
    }

    /// Stores blocks until the time is over; how many.
    fn store(
        &self,
        window: &Region,
        source: &Region,
        thread: u64,
        way: Way,
        start: Instant,
    ) -> u64 {
        let all = (self.bytes / BLOCK) as u64;
        let mut state = storage::pattern::mix(thread + 1);
        let mut at = all / 16 * thread;
        // Where to, and where from.
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            at = (at + 1) % all;
            let place = |random: bool, shift: u32| {
                let block = if random { (state >> shift) % all } else { at };
                usize::try_from(block).unwrap_or(0) * BLOCK
            };
            (place(way.random_to, 32), place(way.random_from, 20))
        };
        let mut stored = 0;
        let mut this = next();
        while start.elapsed() < self.limit {
            for _ in 0..FENCE_EVERY {
                let following = next();
                let ahead = way.ahead.then_some((source, following.1));
                window.copy_from_ahead(this.0, source, this.1, BLOCK, ahead);
                this = following;
                stored += 1;
                if stored % way.fence_every == 0 {
                    mem::fence_payload();
                }
            }
        }
        stored
    }

    fn kernel(&self, what: &'static str, blocks: u32, to: u64, from: u64) -> Result<Ceiling> {
        let arguments = [to, from, self.bytes as u64];
        let shape = LaunchShape { blocks, threads_per_block: 1024, shared_bytes: 0 };
        let once = || -> Result<()> {
            let mut launch = self.gpu.launch(&kernels::COPY, shape, arguments.as_bytes())?;
            launch.wait(Duration::from_secs(60)).context("the copy does not end")??;
            Ok(())
        };
        once()?;
        let start = Instant::now();
        let mut moved = 0;
        while start.elapsed() < self.limit {
            once()?;
            moved += self.bytes as u64;
        }
        Ok(self.ceiling(what, blocks, moved, start.elapsed().as_secs_f64()))
    }

    /// The smallest step of the GPU's clock.
    fn clock(&self) -> Result<Ceiling> {
        let words = self.gpu.allocate_device(8)?;
        let arguments = [words.address, CLOCK_READINGS];
        let shape = LaunchShape { blocks: 1, threads_per_block: 1, shared_bytes: 0 };
        let start = Instant::now();
        let mut launch = self.gpu.launch(&kernels::CLOCK, shape, arguments.as_bytes())?;
        launch.wait(Duration::from_secs(60)).context("the clock's kernel does not end")??;
        let host = self.gpu.allocate_host(8)?;
        let copy =
            gpu::Copy { host: &host, host_offset: 0, device: &words, device_offset: 0, bytes: 8 };
        self.gpu.copy_to_host(copy)?;
        let step = host.u64_at(0).load(Ordering::Relaxed);
        let ceiling = self.ceiling("gpu-clock", 1, 0, start.elapsed().as_secs_f64());
        Ok(Ceiling { step_ns: Some(step), ..ceiling })
    }

    fn engine(&self, what: &'static str) -> Result<Ceiling> {
        let copy = gpu::Copy {
            host: self.host,
            host_offset: 0,
            device: self.device,
            device_offset: 0,
            bytes: self.bytes,
        };
        let start = Instant::now();
        let mut moved = 0;
        while start.elapsed() < self.limit {
            match what {
                "copy-to-device" => self.gpu.copy_to_device(copy)?,
                _ => self.gpu.copy_to_host(copy)?,
            }
            moved += self.bytes as u64;
        }
        Ok(self.ceiling(what, 1, moved, start.elapsed().as_secs_f64()))
    }
}
