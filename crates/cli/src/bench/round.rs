//! A round: so many I/Os as the destination holds, done while timed, then compared in every byte.

use std::sync::Arc;

use abi::bench::{BenchEdges, BenchIo, BenchResult};
use anyhow::{Context, Result};
use gpu::{DeviceMemory, Gpu, KernelFacts};
use mem::{MemoryKind, Region};

/// What every byte of the destination is before an I/O: nothing that data could be by chance for long.
pub const POISON: u8 = 0xdb;

/// Bytes that go between device memory and the host at once when filling and comparing.
const PIECE_BYTES: usize = 1 << 20;

/// The I/Os of a round. I/O `i` uses the destination from `place(i)` on.
#[derive(Debug)]
pub struct Round {
    /// What to do.
    pub plan: Vec<BenchIo>,
    /// What the edges of reads must be; empty where nothing is checked.
    pub edges: Vec<BenchEdges>,
    /// Whether kernels put the data there before it and compare it after it.
    pub on_device: bool,
    /// Whether lanes are only there, and do nothing.
    pub asleep: bool,
    /// Bytes an I/O.
    pub io_bytes: u32,
    /// Slots of the destination; fewer than I/Os only where nothing is compared afterwards.
    pub slots: usize,
    /// First byte of the destination that the round uses.
    pub base: usize,
}

impl Round {
    /// First byte of an I/O's place in the destination.
    pub fn place(&self, index: usize) -> usize {
        self.base + index % self.slots * self.io_bytes as usize
    }
}

/// How a round went.
#[derive(Debug, Default)]
pub struct RoundOutcome {
    /// How each I/O ended, in the order of the plan.
    pub results: Vec<BenchResult>,
    /// From the first ticket to the last byte.
    pub seconds: f64,
}

/// What a runner has done since it was opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bill {
    /// Requests completed at the lowest layer that sidecore controls.
    pub ios_at_device: u64,
    /// System calls of the I/O path.
    pub syscalls: u64,
    /// Doorbells rung by the GPU.
    pub doorbells_gpu: u64,
    /// Doorbells rung by the CPU.
    pub doorbells_cpu: u64,
    /// Completions found by a polling GPU.
    pub completions_polled_gpu: u64,
    /// Completions found by a polling CPU.
    pub completions_polled_cpu: u64,
    /// Bytes of requests that the submitter wrote.
    pub request_bytes: u64,
    /// Payload bytes: straight into host memory.
    pub bytes_host: u64,
    /// Payload bytes: bounce.
    pub bytes_bounce: u64,
    /// Payload bytes: direct.
    pub bytes_direct: u64,
    /// Payload bytes: pull.
    pub bytes_pull: u64,
    /// Payload bytes: push.
    pub bytes_push: u64,
    /// Payload bytes: window.
    pub bytes_window: u64,
    /// CPU seconds of the path while timed.
    pub cpu_path_s: f64,
    /// CPU seconds of the emulated drive while timed.
    pub cpu_device_s: f64,
    /// CPU seconds of the simulated GPU while timed.
    pub cpu_gpu_s: f64,
    /// Sum over I/Os of the time for which each was in flight, in ns.
    pub in_flight_ns: u64,
    /// Faults injected.
    pub faults_injected: u64,
    /// Second reads, as fences: beside the I/Os.
    pub fence_ios: u64,
    /// I/O commands that the software controller fetched, whatever they were for.
    pub commands_at_controller: u64,
    /// Time that it took to fetch them, in ns, and how many runs of them there were.
    pub fetch_ns: u64,
    /// Runs of commands fetched together.
    pub fetch_runs: u64,
    /// Looks of waiting lanes.
    pub polls: u64,
}

impl Bill {
    /// Adds what was done between two bills.
    pub fn add_between(&mut self, before: &Self, after: &Self) {
        self.ios_at_device += after.ios_at_device - before.ios_at_device;
        self.syscalls += after.syscalls - before.syscalls;
        self.doorbells_gpu += after.doorbells_gpu - before.doorbells_gpu;
        self.doorbells_cpu += after.doorbells_cpu - before.doorbells_cpu;
        self.completions_polled_gpu += after.completions_polled_gpu - before.completions_polled_gpu;
        self.completions_polled_cpu += after.completions_polled_cpu - before.completions_polled_cpu;
        self.request_bytes += after.request_bytes - before.request_bytes;
        self.bytes_host += after.bytes_host - before.bytes_host;
        self.bytes_bounce += after.bytes_bounce - before.bytes_bounce;
        self.bytes_direct += after.bytes_direct - before.bytes_direct;
        self.bytes_pull += after.bytes_pull - before.bytes_pull;
        self.bytes_push += after.bytes_push - before.bytes_push;
        self.bytes_window += after.bytes_window - before.bytes_window;
        self.cpu_path_s += after.cpu_path_s - before.cpu_path_s;
        self.cpu_device_s += after.cpu_device_s - before.cpu_device_s;
        self.cpu_gpu_s += after.cpu_gpu_s - before.cpu_gpu_s;
        self.in_flight_ns += after.in_flight_ns - before.in_flight_ns;
        self.faults_injected += after.faults_injected - before.faults_injected;
        self.fence_ios += after.fence_ios - before.fence_ios;
        self.commands_at_controller += after.commands_at_controller - before.commands_at_controller;
        self.fetch_ns += after.fetch_ns - before.fetch_ns;
        self.fetch_runs += after.fetch_runs - before.fetch_runs;
        self.polls += after.polls - before.polls;
    }

    /// CPU seconds of path, emulated drive and simulated GPU.
    pub fn cpu_timed_s(&self) -> f64 {
        self.cpu_path_s + self.cpu_device_s + self.cpu_gpu_s
    }
}

/// What a runner is, for the row.
#[derive(Clone, Debug, Default)]
pub struct Description {
    /// How the payload reaches its destination.
    pub route: String,
    /// The GPU, or `none`.
    pub gpu: String,
    /// What holds the data.
    pub drive: String,
    /// How storage is read and written.
    pub explain: String,
    /// Queues, threads or rings.
    pub queues: u32,
    /// I/Os in flight a queue.
    pub depth: u32,
    /// Side cores.
    pub side_cores: u32,
    /// SMs.
    pub sms: u32,
    /// Lanes.
    pub lanes: u32,
    /// Warps a block.
    pub warps: u32,
    /// Where submission queues of lanes lie; empty where lanes have none.
    pub sq: &'static str,
    /// Where completion queues of lanes lie; empty where lanes have none.
    pub cq: &'static str,
    /// How lanes wait; empty where none do.
    pub wait: &'static str,
    /// Warps that look for ends.
    pub polling_warps: u32,
    /// Threads of the software drive.
    pub device_cores: u32,
    /// Software drives.
    pub drives: u32,
    /// What compiler and driver say of the kernel, where it was compiled for a GPU.
    pub kernel: Option<KernelFacts>,
    /// Where a real GPU is on PCI.
    pub pci: Option<String>,
}

/// A path that is open and can do rounds.
pub trait Runner {
    /// Does a round; returns when every I/O has ended.
    ///
    /// # Errors
    /// The path itself broke; a failed I/O is a result, not an error.
    fn run(&mut self, round: &Arc<Round>) -> Result<RoundOutcome>;
    /// What has been done since opening.
    fn bill(&self) -> Bill;
    /// What it is.
    fn describe(&self) -> Description;
    /// The word from which lanes take I/Os by number, where there is one.
    fn ticket_word(&self) -> Option<DeviceMemory> {
        None
    }
    /// Where the payload goes.
    fn destination(&mut self) -> &mut Destination;
    /// I/Os that can be in flight together.
    fn in_flight_max(&self) -> usize;
}

/// Memory that reads fill and writes empty.
#[derive(Debug)]
pub enum Destination {
    /// Host memory.
    Host(Region),
    /// Device memory, and pinned memory to see it through.
    Device(DeviceDestination),
}

/// Device memory as a destination.
pub struct DeviceDestination {
    /// The memory.
    pub memory: DeviceMemory,
    gpu: Arc<dyn Gpu>,
    mirror: Region,
}

impl std::fmt::Debug for DeviceDestination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceDestination").field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl Destination {
    /// Host memory.
    ///
    /// # Errors
    /// No memory.
    pub fn host(bytes: usize) -> Result<Self> {
        let region = Region::map_anonymous(bytes, MemoryKind::Host)
            .with_context(|| format!("{bytes} bytes of host memory for the payload"))?;
        Ok(Self::Host(region))
    }

    /// Device memory.
    ///
    /// # Errors
    /// No memory.
    pub fn device(gpu: &Arc<dyn Gpu>, bytes: usize) -> Result<Self> {
        Self::over(gpu, gpu.allocate_device(bytes as u64)?)
    }

    /// Device memory that is there.
    ///
    /// # Errors
    /// No memory to see it through.
    pub fn over(gpu: &Arc<dyn Gpu>, memory: DeviceMemory) -> Result<Self> {
        let mirror = gpu.allocate_host(PIECE_BYTES as u64)?;
        Ok(Self::Device(DeviceDestination { memory, gpu: Arc::clone(gpu), mirror }))
    }

    /// Sets `bytes` bytes from the start to [`POISON`].
    ///
    /// # Errors
    /// The copy engine's.
    pub fn poison(&mut self, bytes: usize) -> Result<()> {
        match self {
            Self::Host(region) => region.fill(0, bytes, POISON),
            Self::Device(device) => {
                device.mirror.fill(0, PIECE_BYTES, POISON);
                for start in (0..bytes).step_by(PIECE_BYTES) {
                    device.to_device(start, PIECE_BYTES.min(bytes - start))?;
                }
            }
        }
        Ok(())
    }

    /// Copies bytes out of the destination.
    ///
    /// # Errors
    /// The copy engine's.
    pub fn read(&mut self, offset: usize, target: &mut [u8]) -> Result<()> {
        match self {
            Self::Host(region) => region.read_bytes(offset, target),
            Self::Device(device) => {
                let mut at = offset;
                for piece in target.chunks_mut(PIECE_BYTES) {
                    device.gpu.copy_to_host(device.copy(at, piece.len()))?;
                    device.mirror.read_bytes(0, piece);
                    at += piece.len();
                }
            }
        }
        Ok(())
    }

    /// Copies bytes into the destination, to be written from there.
    ///
    /// # Errors
    /// The copy engine's.
    pub fn write(&mut self, offset: usize, source: &[u8]) -> Result<()> {
        match self {
            Self::Host(region) => region.write_bytes(offset, source),
            Self::Device(device) => {
                let mut at = offset;
                for piece in source.chunks(PIECE_BYTES) {
                    device.mirror.write_bytes(0, piece);
                    device.to_device(at, piece.len())?;
                    at += piece.len();
                }
            }
        }
        Ok(())
    }
}

impl DeviceDestination {
    fn copy(&self, offset: usize, bytes: usize) -> gpu::Copy<'_> {
        gpu::Copy {
            host: &self.mirror,
            host_offset: 0,
            device: &self.memory,
            device_offset: offset as u64,
            bytes,
        }
    }

    fn to_device(&self, offset: usize, bytes: usize) -> Result<()> {
        Ok(self.gpu.copy_to_device(self.copy(offset, bytes))?)
    }
}
