//! Options of the special forms of `bench` that compare GPU-driven queues, and of its suite of rows.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{LimitArgs, OpName, PathName, QueueMemory, Verify, count};
use crate::units::{parse_bytes, parse_duration};

/// How data lies on several drives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DriveLayout {
    /// Each has all of it: reads go to each in turn, writes to all.
    Replicated,
    /// Stripe by stripe in turn.
    Striped,
}

/// Several software drives instead of one.
#[derive(Args, Debug, Clone)]
pub struct DrivesArgs {
    /// Software drives, each with controllers and a timing model of its own.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    #[arg(default_value_t = 1)]
    pub drives: u32,
    /// How the data lies on several drives.
    #[arg(long, value_enum, default_value = "replicated")]
    pub layout: DriveLayout,
}

impl DrivesArgs {
    /// A single drive.
    pub const ONE: Self = Self { drives: 1, layout: DriveLayout::Replicated };
}

/// What every row of a comparison has in common.
#[derive(Args, Debug, Clone)]
pub struct CompareArgs {
    /// Size of the data file that is made [default: more than 4 x the last-level cache].
    #[arg(long, value_parser = parse_bytes)]
    pub size: Option<u64>,
    /// Where to make it [default: the system's directory for temporary files].
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Bytes an I/O.
    #[arg(long, value_parser = parse_bytes, default_value = "4k")]
    pub io_size: u64,
    /// What to ask for.
    #[arg(long, value_enum, default_value = "read")]
    pub op: OpName,
    /// Timed seconds of each repeat.
    #[arg(long, value_parser = parse_duration, default_value = "500ms")]
    pub duration: Duration,
    /// End each repeat after this many I/Os, if that comes first.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub ios: Option<u64>,
    /// Runs of each row; tables show all of them together, the JSON the range.
    #[arg(long, value_parser = count, default_value = "3")]
    pub repeats: u32,
    /// Model of the software drive: I/Os a second; 0 for as many as the emulation can. Below what
    /// that is, so that a row says something about the system and not about the emulation.
    #[arg(long, value_name = "IOPS", default_value_t = 20_000)]
    pub drive_iops: u64,
    /// Model of the software drive: bytes a second.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub drive_bandwidth: Option<u64>,
    /// Model of the software drive: latency, as for bench.
    #[arg(long, value_name = "LATENCY", default_value = "lognormal:80us:0.3")]
    pub drive_latency: String,
    /// Milliseconds after which an I/O without an answer ends as an error.
    #[arg(long, value_name = "MS", value_parser = count, default_value = "5000")]
    pub limit_ms: u32,
    /// How much is checked.
    #[arg(long, value_enum, default_value = "full")]
    pub verify: Verify,
    /// Bytes of GPU memory that a round fills [default: 64M; 1G on a real GPU].
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub destination: Option<u64>,
    /// What `bench baseline --out` wrote in the same run: whether the systems compared are as fast as
    /// their published code, and what the drive can do at most.
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
    /// Seed of order and latencies.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON object a line a row instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Replace files that exist.
    #[arg(long)]
    pub overwrite: bool,
    /// Several drives.
    #[command(flatten)]
    pub several: DrivesArgs,
    /// Limits that hold for all commands.
    #[command(flatten)]
    pub limits: LimitArgs,
}

/// The shape that all systems of a matched comparison have.
#[derive(Args, Debug, Clone, Copy)]
pub struct ShapeArgs {
    /// Warps an SM, of 32 lanes each.
    #[arg(long, value_parser = count, default_value = "2")]
    pub warps: u32,
    /// I/Os that each lane has in flight: 1 waits for each, more is asynchronous.
    #[arg(long, value_parser = count, default_value = "1")]
    pub batch: u32,
    /// Queue pairs; for ring: rings, each with a queue pair of the drive.
    #[arg(long, value_parser = count, default_value = "8")]
    pub queues: u32,
    /// Entries of each of them.
    #[arg(long, value_parser = count, default_value = "1024")]
    pub depth: u32,
    /// CPU cores that may poll: agents of copilot, side cores of ring; bam needs none
    /// [default: the CPUs of this process's cgroup less one, at least 1].
    #[arg(long, value_parser = count)]
    pub host_cores: Option<u32>,
}

/// Which tables a sweep makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Setting {
    /// All systems with the same warps, batch, in flight, queues, depth and host cores.
    Matched,
    /// Each system as its authors ran it.
    Published,
}

impl Setting {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Matched => "matched",
            Self::Published => "published",
        }
    }
}

/// Options of `bench sweep`.
#[derive(Args, Debug, Clone)]
pub struct SweepArgs {
    /// Systems to compare.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "bam,copilot,ring")]
    pub path: Vec<PathName>,
    /// SM counts: blocks of the kernel, one an SM.
    #[arg(long, value_parser = count, value_delimiter = ',',
          default_value = "1,2,4,8,12,24,48,96")]
    pub sms: Vec<u32>,
    /// Tables to make.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "matched,published")]
    pub table: Vec<Setting>,
    /// The matched shape.
    #[command(flatten)]
    pub shape: ShapeArgs,
    /// One system's own value, as PATH:KEY=VALUE with KEY one of warps, batch, queues, depth,
    /// host-cores. A matched table in which these then differ is refused.
    #[arg(long, value_name = "PATH:KEY=VALUE")]
    pub set: Vec<Override>,
    /// Folder for results_PATH_OP_bw.csv with columns sms,bandwidth_gibs,iops_m, in a folder
    /// `matched` or `published` of it, and for the plots.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// What rows have in common.
    #[command(flatten)]
    pub compare: CompareArgs,
}

/// Options of `bench placement`.
#[derive(Args, Debug, Clone)]
pub struct PlacementArgs {
    /// Systems to compare.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "bam,copilot")]
    pub path: Vec<PathName>,
    /// Blocks of the kernel, one an SM.
    #[arg(long, value_parser = count, default_value = "4")]
    pub sms: u32,
    /// Where completion queues lie: device or host memory, or both.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "device,host")]
    pub cq: Vec<QueueMemory>,
    /// The shape of each row.
    #[command(flatten)]
    pub shape: ShapeArgs,
    /// What rows have in common.
    #[command(flatten)]
    pub compare: CompareArgs,
}

fn chains(text: &str) -> Result<u32, String> {
    match text {
        "2" | "4" => count(text),
        _ => Err("2 or 4".to_owned()),
    }
}

/// Options of `bench interference`.
#[derive(Args, Debug, Clone)]
pub struct InterferenceArgs {
    /// Systems to run beside the compute kernel.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "ring,copilot,bam")]
    pub path: Vec<PathName>,
    /// Threads a block of the compute kernel, one block an SM.
    #[arg(long, value_parser = count, value_delimiter = ',', default_value = "256,1024")]
    pub threads: Vec<u32>,
    /// Independent chains of multiply-adds of each of its threads: 2 or 4. With 4 a single warp can keep
    /// its scheduler busy, which then lets others in but rarely.
    #[arg(long, default_value_t = 2, value_parser = chains)]
    pub chains: u32,
    /// How long the compute kernel takes alone.
    #[arg(long, value_parser = parse_duration, default_value = "400ms")]
    pub compute: Duration,
    /// Runs of each kind, in turn: alone, beside the sleeping kernel, beside the I/O kernel.
    #[arg(long, value_parser = count, default_value = "3")]
    pub repeats: u32,
    /// Lanes wait for a drive that stands still, each for one I/O: 128 SMs of 8 warps.
    #[arg(long)]
    pub stalled: bool,
    /// What answers path ring: the software drive, or memory (as fast as it goes).
    #[arg(long, value_enum, default_value = "software")]
    pub drive: super::Drive,
    /// Blocks of the I/O kernel [default: ring 96, copilot and bam 12].
    #[arg(long, value_parser = count)]
    pub sms: Option<u32>,
    /// Warps of each [default: 1; bam 32].
    #[arg(long, value_parser = count)]
    pub warps: Option<u32>,
    /// I/Os that each lane has in flight [default: 1].
    #[arg(long, value_parser = count)]
    pub batch: Option<u32>,
    /// Rings or queue pairs [default: ring 4, copilot and bam 16].
    #[arg(long, value_parser = count)]
    pub queues: Option<u32>,
    /// Entries of each [default: ring and bam 1024, copilot 4096].
    #[arg(long, value_parser = count)]
    pub depth: Option<u32>,
    /// Side cores of ring, agents of copilot [default: 4].
    #[arg(long, value_parser = count)]
    pub side_cores: Option<u32>,
    /// How lanes of ring and copilot wait; agent needs --batch 1.
    #[arg(long, value_enum, default_value = "word")]
    pub wait: super::WaitMode,
    /// Size of the data file that is made.
    #[arg(long, value_parser = parse_bytes, default_value = "256M")]
    pub size: u64,
    /// Where to make it [default: the system's directory for temporary files].
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Bytes an I/O.
    #[arg(long, value_parser = parse_bytes, default_value = "4k")]
    pub io_size: u64,
    /// Model of the software drive: I/Os a second [default: 1,400,000; 20,000 where the GPU is simulated].
    #[arg(long, value_name = "IOPS")]
    pub drive_iops: Option<u64>,
    /// Model of the software drive: latency [default: 60us; with --stalled 700ms].
    #[arg(long, value_name = "LATENCY")]
    pub drive_latency: Option<String>,
    /// Milliseconds after which an I/O without an answer ends as an error.
    #[arg(long, value_name = "MS", value_parser = count, default_value = "10000")]
    pub limit_ms: u32,
    /// What `bench baseline --out` wrote in the same run.
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
    /// Seed of order and latencies.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON object a line a row instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Limits that hold for all commands.
    #[command(flatten)]
    pub limits: LimitArgs,
}

/// Options of `bench baseline`.
#[derive(Args, Debug, Clone)]
pub struct BaselineArgs {
    /// Leave out rows with more SMs.
    #[arg(long, value_parser = count)]
    pub sms_max: Option<u32>,
    /// Only these rows, say bam-4-1-q16-limit,copilot-96-1-q16-unlimited [default: all].
    #[arg(long, value_name = "ROW", value_delimiter = ',', conflicts_with = "sms_max")]
    pub only: Vec<String>,
    /// Write the verdict there, for other comparisons of the same run.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// What rows have in common; the drive's model is the recorded one.
    #[command(flatten)]
    pub compare: CompareArgs,
}

/// Options of `bench copoll`.
#[derive(Args, Debug, Clone)]
pub struct CopollArgs {
    /// How often the load steps from 10 % to 100 % and back.
    #[arg(long, value_parser = count, default_value = "3")]
    pub steps: u32,
    /// How long each load lasts.
    #[arg(long, value_parser = parse_duration, default_value = "4s")]
    pub hold: Duration,
    /// How soon after a step the load counts as steady.
    #[arg(long, value_parser = parse_duration, default_value = "1s")]
    pub settle: Duration,
    /// Blocks of the kernel, one an SM.
    #[arg(long, value_parser = count, default_value = "4")]
    pub sms: u32,
    /// Warps an SM at 10 %; at 100 % there are ten times as many.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3))]
    pub warps: u32,
    /// Queue pairs.
    #[arg(long, value_parser = count, default_value = "4")]
    pub queues: u32,
    /// Entries of each queue.
    #[arg(long, value_parser = count, default_value = "1024")]
    pub depth: u32,
    /// CPU agents [default: 1].
    #[arg(long, value_parser = count, default_value = "1")]
    pub agents: u32,
    /// Completions a window and queue from which on the CPU takes it over
    /// [default: 45 % of what full load is measured to bring].
    #[arg(long)]
    pub high: Option<u32>,
    /// Completions a window and queue up to which the GPU takes it over [default: 25 %].
    #[arg(long)]
    pub low: Option<u32>,
    /// How long completions are counted before it is decided.
    #[arg(long, value_parser = parse_duration, default_value = "100ms")]
    pub window: Duration,
    /// How long an owner keeps a queue at least.
    #[arg(long, value_parser = parse_duration, default_value = "250ms")]
    pub dwell: Duration,
    /// Bytes an I/O.
    #[arg(long, value_parser = parse_bytes, default_value = "512")]
    pub io_size: u64,
    /// Latency of the software drive, which bounds the load of so many lanes.
    #[arg(long, value_name = "LATENCY", default_value = "uniform:10ms:30ms")]
    pub drive_latency: String,
    /// Milliseconds after which an I/O without an answer ends as an error.
    #[arg(long, value_name = "MS", value_parser = count, default_value = "10000")]
    pub limit_ms: u32,
    /// Seed of order and latencies.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Limits that hold for all commands.
    #[command(flatten)]
    pub limits: LimitArgs,
}

/// What a system's own value is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    /// Warps an SM.
    Warps,
    /// I/Os that a lane has in flight.
    Batch,
    /// Queue pairs.
    Queues,
    /// Entries of each.
    Depth,
    /// Cores that may poll.
    HostCores,
}

/// One system's own value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Override {
    /// Whose.
    pub path: PathName,
    /// What.
    pub key: Key,
    /// How much.
    pub value: u32,
}

impl FromStr for Override {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let whole = || format!("'{text}' is not PATH:KEY=VALUE");
        let (path, rest) = text.split_once(':').ok_or_else(whole)?;
        let (key, value) = rest.split_once('=').ok_or_else(whole)?;
        let path = PathName::ALL.into_iter().find(|known| known.name() == path);
        let path = path.ok_or_else(|| format!("'{text}' names no path"))?;
        let key = match key {
            "warps" => Key::Warps,
            "batch" => Key::Batch,
            "queues" => Key::Queues,
            "depth" => Key::Depth,
            "host-cores" => Key::HostCores,
            other => {
                return Err(format!(
                    "'{other}' is none of warps, batch, queues, depth, host-cores"
                ));
            }
        };
        Ok(Self { path, key, value: count(value)? })
    }
}

/// Where a system's queues lie as its authors had them.
pub fn published_memory(path: PathName) -> (QueueMemory, QueueMemory) {
    match path {
        PathName::Copilot => (QueueMemory::Host, QueueMemory::Host),
        _ => (QueueMemory::Device, QueueMemory::Device),
    }
}

/// Options of `bench suite`.
#[derive(Args, Debug, Clone)]
pub struct SuiteArgs {
    /// The rows, one a line: a name, then options of `bench` (or `window` and options of that).
    pub rows: PathBuf,
    /// Only rows whose names begin so, comma separated [default: all].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Repeats: all rows once, then all rows again.
    #[arg(long, value_parser = count, default_value = "5")]
    pub repeats: u32,
    /// Timed part of a row that names no --duration.
    #[arg(long, value_parser = parse_duration, default_value = "3s")]
    pub duration: Duration,
    /// Begin no row after so long; what is missing then is said.
    #[arg(long, value_parser = parse_duration)]
    pub limit: Option<Duration>,
    /// Size of the data file that is made.
    #[arg(long, value_parser = parse_bytes, default_value = "4G")]
    pub size: u64,
    /// Where to make it [default: the system's directory for temporary files].
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Limits that hold for all commands, here for all rows.
    #[command(flatten)]
    pub limits: LimitArgs,
}
