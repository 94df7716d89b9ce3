//! One row: one path under one set of parameters, over all its repeats.

use serde::Serialize;

/// A row as JSON and CSV have it. The first nineteen fields are stable; later ones may be added.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// `posix`, `uring`, `nvme`, `bam`, `copilot` or `ring`.
    pub path: String,
    /// How the payload reached its destination.
    pub route: String,
    /// `read`, `write` or `mix`.
    pub op: String,
    /// The GPU; begins with `simulated` where it is, `none` for host memory.
    pub gpu: String,
    /// What held the data; begins with `software` where the drive is.
    pub drive: String,
    /// Bytes an I/O.
    pub io_bytes: u64,
    /// I/Os that ended, with or without an error.
    pub ios: u64,
    /// Requests completed at the lowest layer that sidecore controls.
    pub ios_at_device: u64,
    /// I/Os of which every byte was compared at the destination and was right.
    pub ios_verified: u64,
    /// I/Os that ended with an error.
    pub errors: u64,
    /// Timed seconds, all repeats together.
    pub seconds: f64,
    /// `ios / seconds`.
    pub iops: f64,
    /// Payload bytes of I/Os without error, a second.
    pub bytes_per_s: f64,
    /// Median of the I/Os' own times.
    pub latency_ns_p50: u64,
    /// 99th percentile of the I/Os' own times.
    pub latency_ns_p99: u64,
    /// CPU seconds of this row: the sum of the four below.
    pub cpu_s: f64,
    /// Side cores that served it; 0 where the path has none.
    pub side_cores: u32,
    /// SMs (blocks) whose lanes asked; 0 where the CPU asked.
    pub sms: u32,
    /// Lanes that asked; 0 where the CPU asked.
    pub lanes: u32,

    /// CPU seconds of the path itself, while timed.
    pub cpu_path_s: f64,
    /// CPU seconds of the emulated drive, while timed.
    pub cpu_device_s: f64,
    /// CPU seconds of the simulated GPU, while timed.
    pub cpu_gpu_s: f64,
    /// All other CPU seconds: data, verification, opening, and a share of what rows have in common.
    pub cpu_setup_s: f64,
    /// I/Os that ended without error, were checked, and were wrong; or were not checked at all.
    pub ios_unverified: u64,
    /// I/Os whose first and last 16 bytes were right when they arrived.
    pub ios_edges_right: u64,
    /// `full`, `edges` or `none`.
    pub verify: String,
    /// Timed runs.
    pub repeats: u32,
    /// Slowest repeat.
    pub iops_min: f64,
    /// Fastest repeat.
    pub iops_max: f64,
    /// Lowest median of a repeat.
    pub latency_ns_p50_min: u64,
    /// Highest median of a repeat.
    pub latency_ns_p50_max: u64,
    /// Lowest 99th percentile of a repeat.
    pub latency_ns_p99_min: u64,
    /// Highest 99th percentile of a repeat.
    pub latency_ns_p99_max: u64,
    /// Mean of the I/Os' own times.
    pub latency_ns_mean: f64,
    /// CPU time of the path an I/O, over all repeats.
    pub cpu_path_ns_per_io: f64,
    /// The same, of the cheapest repeat.
    pub cpu_path_ns_per_io_min: f64,
    /// The same, of the dearest repeat.
    pub cpu_path_ns_per_io_max: f64,
    /// CPU time of path, emulated drive and simulated GPU an I/O, over all repeats.
    pub cpu_all_ns_per_io: f64,
    /// The same, of the cheapest repeat.
    pub cpu_all_ns_per_io_min: f64,
    /// The same, of the dearest repeat.
    pub cpu_all_ns_per_io_max: f64,
    /// `device` or `host`.
    pub memory: String,
    /// `random` or `sequential`.
    pub access: String,
    /// Queues, threads (posix) or rings.
    pub queues: u32,
    /// I/Os in flight a queue at most, or depth of a ring.
    pub depth: u32,
    /// I/Os that a lane has in flight.
    pub batch: u32,
    /// Mean number of I/Os in flight while timed.
    pub in_flight_mean: f64,
    /// System calls of the I/O path while timed.
    pub syscalls: u64,
    /// Doorbells rung by the GPU.
    pub doorbells_gpu: u64,
    /// Doorbells rung by the CPU.
    pub doorbells_cpu: u64,
    /// Completions that the GPU found by polling.
    pub completions_polled_gpu: u64,
    /// Completions that the CPU found by polling.
    pub completions_polled_cpu: u64,
    /// Bytes of request that the submitter wrote, an I/O.
    pub request_bytes_per_io: f64,
    /// Payload bytes by route: straight into host memory.
    pub bytes_host: u64,
    /// Payload bytes by route: bounce.
    pub bytes_bounce: u64,
    /// Payload bytes by route: direct.
    pub bytes_direct: u64,
    /// Payload bytes by route: pull.
    pub bytes_pull: u64,
    /// Payload bytes by route: push.
    pub bytes_push: u64,
    /// Payload bytes by route: window.
    pub bytes_window: u64,
    /// Bytes of data that were there to be read.
    pub data_bytes: u64,
    /// Last-level cache of this machine, in bytes; 0 where it cannot be read.
    pub cache_bytes: u64,
    /// Distinct blocks among the I/Os, of as many as could be distinct.
    pub distinct_fraction: f64,
    /// Share of the data in the page cache before the row; -1 where it cannot be told.
    pub cached_before: f64,
    /// Share of the data in the page cache after the row; -1 where it cannot be told.
    pub cached_after: f64,
    /// Faults injected.
    pub faults_injected: u64,
    /// Second reads, as fences: not among the I/Os.
    pub fence_ios: u64,
    /// I/O commands that the software controller fetched; 0 where there is none.
    pub commands_at_controller: u64,
    /// Warps a block; 0 where the CPU asked.
    pub warps: u32,
    /// Where the submission queues of lanes lie: `device`, `host`, or nothing.
    pub sq: String,
    /// Where the completion queues of lanes lie: `device`, `host`, or nothing.
    pub cq: String,
    /// `matched` or `published` in a sweep, else nothing.
    pub setting: String,
    /// Threads of the software drive: equipment, not the path's own cores; 0 where there is none.
    pub device_cores: u32,
    /// Software drives; 0 where there is none.
    pub drives: u32,
    /// Time to fetch a command from its queue's memory, in nanoseconds; 0 where it was not measured.
    pub fetch_ns_per_command: f64,
    /// Commands that were fetched together, in the mean.
    pub commands_per_fetch: f64,
    /// How lanes wait: `word` (each looks at its own), `agent` (a warp a block looks for the others),
    /// `queue` (each looks through the completion queue), or nothing.
    pub wait: String,
    /// Warps that look for ends while something is in flight.
    pub polling_warps: u32,
    /// Looks of lanes at what they wait for; with `agent`, at least those of its warp.
    pub polls: u64,
    /// Registers a thread of the kernel, by the compiler; 0 on the simulated GPU.
    pub registers: u32,
    /// Bytes of local memory a thread of it.
    pub local_bytes: u32,
    /// Blocks of it that an SM holds at once, by the driver.
    pub blocks_per_sm: u32,
    /// Share of time in which the GPU was busy, in percent, by its management library.
    pub gpu_busy_percent: f64,
    /// Bytes a second to the GPU over PCIe, by the same.
    pub pcie_to_gpu_bytes_per_s: f64,
    /// Bytes a second from the GPU over PCIe, by the same.
    pub pcie_from_gpu_bytes_per_s: f64,
    /// How often it was asked, or `n/a: reason`.
    pub nvml: String,
    /// What this drive can do at most, with the same cores; 0 where it was not measured.
    pub plateau_iops: f64,
    /// Whether systems here are as fast as their published code: `valid`, `invalid`, or why it is not
    /// known; nothing where nothing is compared.
    pub baseline: String,
    /// What the system's published code was recorded to reach; 0 where nothing was.
    pub recorded_iops: f64,
    /// Whether GPU or drive is simulated: the rates are then the simulator's.
    pub simulated: bool,
    /// Seed of the run.
    pub seed: u64,
    /// How the storage was read and written, in words.
    pub explain: String,
}

impl Row {
    /// Whether each I/O ended well and, where asked for, was verified.
    pub fn is_clean(&self) -> bool {
        self.errors == 0 && (self.verify == "none" || self.ios_unverified == 0)
    }

    /// Whether any part of it was not real hardware.
    pub fn is_emulated(&self) -> bool {
        self.gpu.starts_with("simulated") || self.drive.starts_with("software")
    }

    /// CPU cores that the path itself kept busy while timed.
    pub fn path_cores(&self) -> f64 {
        if self.seconds > 0.0 { self.cpu_path_s / self.seconds } else { 0.0 }
    }
}
