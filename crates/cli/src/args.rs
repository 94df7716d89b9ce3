//! The command line: one vocabulary for every path.

mod bulk;
mod forms;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;

use crate::units::{parse_bytes, parse_duration};

pub use bulk::{BulkBenchArgs, EngineArgs, PeerSpec, SaveArgs, TuneArgs, Work};
pub use forms::{
    BaselineArgs, CompareArgs, CopollArgs, DriveLayout, DrivesArgs, InterferenceArgs, Key,
    Override, PlacementArgs, Setting, ShapeArgs, SuiteArgs, SweepArgs, published_memory,
};

/// Brings bytes from storage into GPU memory, and says what it cost.
#[derive(Parser, Debug)]
#[command(name = "sidecore", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run every path there is on this machine and report rates, latencies and the bill.
    Bench(Box<BenchCommand>),
    /// Load a file into GPU memory and print route, rate and the SHA-256 of what arrived.
    Load(LoadArgs),
    /// Bring a file into GPU memory, and save that as another file: complete, or not at all.
    Save(SaveArgs),
    /// Measure at which thread counts and sizes bulk transfers change their ways here, and store it.
    Tune(TuneArgs),
    /// Run the device side's tests on this machine's GPU, or its litmus kernels.
    Selftest(crate::commands::selftest::SelftestArgs),
}

/// `bench`, or one of its special forms.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchCommand {
    /// A special form.
    #[command(subcommand)]
    pub form: Option<BenchForm>,
    /// Options of the plain form.
    #[command(flatten)]
    pub bench: BenchArgs,
}

/// Special forms of `bench`.
#[derive(Subcommand, Debug)]
pub enum BenchForm {
    /// Measure what attached rings cost while no lane asks, and how soon the first request is served.
    Idle(IdleArgs),
    /// Compare bam, copilot and ring over SM counts on one software drive: a table in which all are
    /// matched, and one with each system as its authors ran it.
    Sweep(Box<SweepArgs>),
    /// Run rows that a file lists, one repeat of each in turn, over one data file.
    Suite(SuiteArgs),
    /// Compare submission and completion queues in device and host memory: all four ways.
    Placement(Box<PlacementArgs>),
    /// Step the load of copilot's queues between 10 % and 100 % and check who polls them.
    Copoll(Box<CopollArgs>),
    /// Compare bulk transfers: the bulk engine, plain loops, and what Python users have, in turns, each in
    /// a process of its own whose CPU time is taken from outside.
    Bulk(Box<BulkBenchArgs>),
    /// The same for rows of a file at random.
    Rows(Box<BulkBenchArgs>),
    /// Run bam and copilot as their published code was run on an H200, and compare with what was
    /// recorded of it.
    Baseline(Box<BaselineArgs>),
    /// Measure how much a kernel that only computes is slowed by lanes that do I/O, or wait for it.
    Interference(Box<InterferenceArgs>),
    /// Measure the ceilings that payload meets: stores through the window, GPU loads from and stores to
    /// pinned host memory, and the copy engine.
    Window(WindowArgs),
}

/// A path: who submits and who completes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PathName {
    /// CPU threads with pread and pwrite.
    Posix,
    /// CPU threads with io_uring.
    Uring,
    /// CPU threads with the user-space NVMe driver, here on the software controller.
    Nvme,
    /// GPU lanes drive NVMe queue pairs of the software controller, and poll them.
    Bam,
    /// GPU lanes drive NVMe queue pairs of the software controller, CPU agents poll them.
    Copilot,
    /// GPU lanes ask, side cores answer.
    Ring,
}

impl PathName {
    /// All, in the order of the table.
    pub const ALL: [Self; 6] =
        [Self::Posix, Self::Uring, Self::Nvme, Self::Bam, Self::Copilot, Self::Ring];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Posix => "posix",
            Self::Uring => "uring",
            Self::Nvme => "nvme",
            Self::Bam => "bam",
            Self::Copilot => "copilot",
            Self::Ring => "ring",
        }
    }

    /// Whether GPU lanes ask.
    pub fn has_lanes(self) -> bool {
        matches!(self, Self::Bam | Self::Copilot | Self::Ring)
    }

    /// Whether GPU lanes drive the queues of a drive.
    pub fn has_lane_queues(self) -> bool {
        matches!(self, Self::Bam | Self::Copilot)
    }
}

/// Which memory a queue of lanes lies in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueMemory {
    /// GPU memory.
    Device,
    /// Pinned host memory.
    Host,
}

impl QueueMemory {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Host => "host",
        }
    }
}

/// What is asked of storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OpName {
    /// Storage to GPU.
    Read,
    /// GPU to storage.
    Write,
    /// Both, as `--read-percent` says.
    Mix,
}

impl OpName {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Mix => "mix",
        }
    }
}

/// In which order blocks are visited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// A seeded permutation: each block once before any twice.
    Random,
    /// Ascending.
    Sequential,
}

/// What answers path `ring`; the other paths have their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Drive {
    /// The software drive where a model of it is given, else the file.
    Auto,
    /// The file.
    File,
    /// A copy of the file in memory, made before the first row.
    Memory,
    /// The file made for the run, mapped into memory.
    Mapped,
    /// The software NVMe drive over the file.
    Software,
}

/// Where faults strike.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultsAt {
    /// Inside the software drive.
    Drive,
    /// In front of the storage.
    Storage,
}

/// Whether files are read through the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// Through it where most of the data is in it.
    Auto,
    /// Always through it.
    Cached,
    /// Never through it.
    Direct,
}

/// How lanes wait for what they asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WaitMode {
    /// One warp a block looks for the others, and releases each through a barrier in shared memory.
    Agent,
    /// Each lane looks at its own word, with growing pauses.
    #[default]
    Word,
}

impl WaitMode {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Word => "word",
        }
    }

    /// Warps of a block in which so many ask.
    pub fn warps(self, asking: u32) -> u32 {
        asking.saturating_add(u32::from(self == Self::Agent))
    }

    /// Warps that look for ends, where so many ask in each of so many blocks.
    pub fn polling_warps(self, blocks: u32, asking: u32) -> u32 {
        if self == Self::Agent { blocks } else { blocks * asking }
    }
}

/// How much is checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verify {
    /// Edges while timed, then every byte at the destination.
    Full,
    /// Every byte, by a kernel after each round: for real GPUs, whose rounds are large. What lanes
    /// wrote is read back by the CPU.
    Device,
    /// Only the first and last 16 bytes.
    Edges,
    /// Nothing: for comparing with tools that check nothing. Such rows are marked.
    None,
}

/// Where the payload goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Memory {
    /// GPU memory.
    Device,
    /// Host memory: only for posix, uring and nvme.
    Host,
}

/// How the payload reaches GPU memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteName {
    /// The default of the path.
    Auto,
    /// Pinned host memory, then the copy engine.
    Bounce,
    /// The drive writes GPU memory itself.
    Direct,
    /// GPU lanes load from pinned host memory.
    Pull,
    /// GPU lanes store into pinned host memory (writes).
    Push,
    /// A CPU core stores through its mapping of GPU memory.
    Window,
}

impl RouteName {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Bounce => "bounce",
            Self::Direct => "direct",
            Self::Pull => "pull",
            Self::Push => "push",
            Self::Window => "window",
        }
    }
}

fn count(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(n) => Ok(n),
        Err(_) => Err(format!("'{text}' is not a whole number of at least 1")),
    }
}

/// More threads than any machine has CPUs would only take them from each other.
fn side_core_count(text: &str) -> Result<u32, String> {
    match count(text)? {
        n @ ..=1024 => Ok(n),
        n => Err(format!("{n} are too many: at most 1024 are possible")),
    }
}

/// Options of `bench`.
#[derive(Args, Debug, Clone)]
pub struct BenchArgs {
    /// Paths to run, comma separated [default: every path there is].
    #[arg(long, value_enum, value_delimiter = ',')]
    pub path: Vec<PathName>,
    /// File to read (and, with --overwrite, to write) instead of one made for the run.
    #[arg(long, value_name = "FILE", conflicts_with = "size")]
    pub file: Option<PathBuf>,
    /// Size of the data file that is made [default: more than 4 x the last-level cache].
    #[arg(long, value_parser = parse_bytes)]
    pub size: Option<u64>,
    /// Where to make it [default: the system's directory for temporary files].
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Bytes an I/O; a list makes one row each [default: 4k,64k].
    #[arg(long, value_parser = parse_bytes, value_delimiter = ',')]
    pub io_size: Vec<u64>,
    /// What to ask for.
    #[arg(long, value_enum, default_value = "read")]
    pub op: OpName,
    /// Share of reads of `--op mix`.
    #[arg(long, value_name = "PERCENT", default_value_t = 70,
          value_parser = clap::value_parser!(u8).range(1..=99))]
    pub read_percent: u8,
    /// Order in which blocks are visited.
    #[arg(long, value_enum, default_value = "random")]
    pub access: Access,
    /// Blocks of the kernel: one an SM. A list makes one row each
    /// [default: 4, fewer where staging would take more than 128 MiB].
    #[arg(long, value_parser = count, value_delimiter = ',')]
    pub sms: Vec<u32>,
    /// Lanes that ask, where they are fewer than one warp's 32.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=31), conflicts_with = "warps")]
    pub lanes: Option<u32>,
    /// Warps an SM, of 32 lanes each [default: 8, fewer where staging would take more than 128 MiB].
    #[arg(long, value_parser = count)]
    pub warps: Option<u32>,
    /// I/Os that each lane has in flight: 1 waits for each, more is asynchronous.
    #[arg(long, value_parser = count, default_value = "1")]
    pub batch: u32,
    /// Queues (or threads, for posix) [default: posix 32, bam and copilot 4, others 1]; for ring:
    /// rings.
    #[arg(long, value_parser = count)]
    pub queues: Option<u32>,
    /// I/Os in flight a queue (for ring: its depth); a list makes one row each
    /// [default: posix 1, uring 32, nvme 64, bam, copilot and ring 1024].
    #[arg(long, value_parser = count, value_delimiter = ',')]
    pub depth: Vec<u32>,
    /// Side cores of ring, polling agents of copilot [default: the CPUs of this process's cgroup
    /// less one, at least 1].
    #[arg(long, value_parser = side_core_count)]
    pub side_cores: Option<u32>,
    /// Memory of the submission queues of bam and copilot [default: device].
    #[arg(long, value_enum)]
    pub sq: Option<QueueMemory>,
    /// Memory of the completion queues of bam and copilot [default: bam device, copilot host].
    #[arg(long, value_enum)]
    pub cq: Option<QueueMemory>,
    /// How lanes of ring and copilot wait: agent needs --batch 1, and adds a warp to each block.
    #[arg(long, value_enum, default_value = "word")]
    pub wait: WaitMode,
    /// Follow each read of bam by one of a block, as a fence; counted apart from I/Os.
    #[arg(long)]
    pub second_read: bool,
    /// Timed part of each repeat, as 2s or 300ms [default: 700ms].
    #[arg(long, value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// End each repeat after this many I/Os, if that comes first.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub ios: Option<u64>,
    /// What answers path ring; paths nvme, bam and copilot always have the software drive.
    #[arg(long, value_enum, default_value = "auto")]
    pub drive: Drive,
    /// Model of the software drive: I/Os a second.
    #[arg(long, value_name = "IOPS")]
    pub drive_iops: Option<u64>,
    /// Model of the software drive: bytes a second.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub drive_bandwidth: Option<u64>,
    /// Model of the software drive: latency, as 80us, uniform:60us:100us, lognormal:MEDIAN:SIGMA,
    /// or points:50:80us:99:200us:100:1ms (percentile, time, ...).
    #[arg(long, value_name = "LATENCY")]
    pub drive_latency: Option<String>,
    /// Faults to inject, as `KIND[:key=value,...][;KIND...]`: error, late, lost, duplicate, flip,
    /// stuck, reset, torn. Examples: flip:n=64   lost:n=100   late:ms=10,rate=0.02.
    #[arg(long, value_name = "SCRIPT")]
    pub faults: Option<String>,
    /// Where they strike: in front of the storage, the same for every path; or inside the software
    /// drive, whose driver then aborts, resets and sends again what it can.
    #[arg(long, value_enum, default_value = "storage", requires = "faults")]
    pub faults_at: FaultsAt,
    /// Milliseconds after which an I/O without an answer ends as an error.
    #[arg(long, value_name = "MS", value_parser = count, default_value = "1000")]
    pub limit_ms: u32,
    /// How much is checked.
    #[arg(long, value_enum, default_value = "full")]
    pub verify: Verify,
    /// Whether the page cache is used.
    #[arg(long, value_enum, default_value = "auto")]
    pub cache: Cache,
    /// Where the payload goes.
    #[arg(long, value_enum, default_value = "device")]
    pub memory: Memory,
    /// How it gets there.
    #[arg(long, value_enum, default_value = "auto")]
    pub route: RouteName,
    /// Bytes of GPU memory that a round fills [default: 64M]; larger ones make longer rounds.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub destination: Option<u64>,
    /// Runs of each row: tables have all of them together, the report their range too.
    #[arg(long, value_parser = count, default_value = "3")]
    pub repeats: u32,
    /// Seed of order, latencies and faults.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON object a line a row instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Write the rows as CSV.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write a report that needs no other file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Replace report files that exist, and allow writing to --file.
    #[arg(long)]
    pub overwrite: bool,
    /// Several drives.
    #[command(flatten)]
    pub several: DrivesArgs,
    /// Limits that hold for all commands.
    #[command(flatten)]
    pub limits: LimitArgs,
}

impl BenchArgs {
    /// All as when nobody says anything.
    pub fn defaults() -> Self {
        /// Nothing but these options.
        #[derive(Parser)]
        struct Bare {
            #[command(flatten)]
            args: BenchArgs,
        }
        Bare::parse_from(["bench"]).args
    }
}

/// Limits on what a command may use.
#[derive(Args, Debug, Clone)]
pub struct LimitArgs {
    /// Most CPUs to plan for.
    #[arg(long, value_name = "N", value_parser = count)]
    pub cpu_max: Option<u32>,
    /// Most pinned host memory.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "1G")]
    pub pinned_max: u64,
    /// Threads of the software drive, each with a controller of its own, all of them one drive
    /// [default: 1; 8 for a real GPU, at most half of the CPUs].
    #[arg(long, value_name = "N", value_parser = count)]
    pub device_cores: Option<u32>,
    /// Pin side cores to CPUs, from this one up.
    #[arg(long, value_name = "CPU")]
    pub pin: Option<u32>,
    /// The GPU: auto (a real one where there is one, else the simulated one), simulated, or a real
    /// one's number.
    #[arg(long, value_name = "GPU", default_value = "auto")]
    pub gpu: gpu::Choice,
    /// Do without the CPU's mapping of GPU memory: completions lie in pinned host memory.
    #[arg(long)]
    pub no_window: bool,
}

/// Options of `bench idle`.
#[derive(Args, Debug, Clone)]
pub struct IdleArgs {
    /// Seconds without a request.
    #[arg(long, value_parser = parse_duration, default_value = "10s")]
    pub duration: Duration,
    /// First requests after a pause that are timed.
    #[arg(long, value_parser = count, default_value = "10")]
    pub samples: u32,
    /// The pause before each of them.
    #[arg(long, value_parser = parse_duration, default_value = "1s")]
    pub pause: Duration,
    /// Rings to attach.
    #[arg(long, value_parser = count, default_value = "1")]
    pub queues: u32,
    /// Side cores [default: the CPUs of this process's cgroup less one, at least 1].
    #[arg(long, value_parser = side_core_count)]
    pub side_cores: Option<u32>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Limits that hold for all commands.
    #[command(flatten)]
    pub limits: LimitArgs,
}

/// Options of `bench window`.
#[derive(Args, Debug, Clone)]
pub struct WindowArgs {
    /// Bytes of memory on each side.
    #[arg(long, value_parser = parse_bytes, default_value = "1G")]
    pub size: u64,
    /// Seconds of each measurement.
    #[arg(long, value_parser = parse_duration, default_value = "300ms")]
    pub duration: Duration,
    /// Only measurements whose names begin so, comma separated [default: all].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Print one JSON object a line.
    #[arg(long)]
    pub json: bool,
    /// Limits that hold for all commands.
    #[command(flatten)]
    pub limits: LimitArgs,
}

impl WindowArgs {
    /// Whether a measurement of this name is wanted.
    pub fn wants(&self, what: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|begin| what.starts_with(begin.as_str()))
    }
}

/// Options of `load`.
#[derive(Args, Debug, Clone)]
pub struct LoadArgs {
    /// File to load.
    pub file: PathBuf,
    /// Path to load it by [default: none, but the bulk engine].
    #[arg(long, value_enum)]
    pub path: Option<PathName>,
    /// How the bulk engine is opened.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Say which way the bytes will go, and why not a better one.
    #[arg(long)]
    pub explain: bool,
    /// Bytes an I/O.
    #[arg(long, value_parser = parse_bytes, default_value = "64k")]
    pub io_size: u64,
    /// I/Os in flight.
    #[arg(long, value_parser = count, default_value = "32")]
    pub depth: u32,
    /// How the payload reaches GPU memory.
    #[arg(long, value_enum, default_value = "auto")]
    pub route: RouteName,
    /// Faults to inject, as for bench.
    #[arg(long, value_name = "SCRIPT")]
    pub faults: Option<String>,
    /// Milliseconds after which an I/O without an answer ends as an error.
    #[arg(long, value_name = "MS", value_parser = count, default_value = "1000")]
    pub limit_ms: u32,
    /// Side cores [default: the CPUs of this process's cgroup less one, at least 1].
    #[arg(long, value_parser = side_core_count)]
    pub side_cores: Option<u32>,
    /// Seed of faults.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Limits that hold for all commands.
    #[command(flatten)]
    pub limits: LimitArgs,
}
