//! Opens each path over the data: the one place that knows what a path is made of.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ctrl::TimingModel;
use gpu::{Choice, DeviceMemory, Gpu};
use sidecore::gpu_queues::Polling;
use storage::faults::FaultScript;

use crate::args::{
    Cache, Drive, DrivesArgs, FaultsAt, LimitArgs, Memory, OpName, PathName, QueueMemory,
    RouteName, WaitMode,
};
use crate::bench::data::Data;
use crate::bench::drive::{BLOCK_BYTES, SoftwareDrive};
use crate::bench::lane_runner::{LaneRunner, LaneRunnerOptions};
use crate::bench::queue_runner::{QueueRunner, QueueRunnerOptions};
use crate::bench::ring_runner::{RingRunner, RingRunnerOptions};
use crate::bench::round::{Bill, Description, Destination, Round, RoundOutcome, Runner};
use crate::bench::source::{Source, SourceKind, SourceOptions};
use crate::printer::tell;

/// The driver of the software drive ends a silent command by itself, by a ladder of steps; a worker
/// waits for so many times the limit before it asks too.
const LADDER: u32 = 8;

/// The GPU to use. Where a real one is wanted but not needed, and there is none, says why.
///
/// # Errors
/// A real one was named and cannot be had.
pub fn open_gpu(limits: &LimitArgs) -> Result<Arc<dyn Gpu>> {
    open_choice(limits.gpu, !limits.no_window)
}

/// As [`open_gpu`], of a choice.
///
/// # Errors
/// As [`open_gpu`].
pub fn open_choice(choice: Choice, window: bool) -> Result<Arc<dyn Gpu>> {
    let opened = gpu::open_with(choice, &[kernels::BENCH_RING], window)
        .with_context(|| format!("--gpu {choice}"))?;
    if let Some(why) = opened.why_simulated {
        tell!("no GPU, so one is simulated: {why}");
    }
    if let Some(why) = opened.gpu.describe().no_window {
        tell!("no window, so completions lie in pinned host memory: {why}");
    }
    Ok(opened.gpu)
}

/// How a path is opened.
#[derive(Clone, Debug)]
pub struct PathOptions {
    /// Which.
    pub path: PathName,
    /// What is asked for.
    pub op: OpName,
    /// What answers.
    pub drive: Drive,
    /// What the software drive stands for.
    pub timing: TimingModel,
    /// Whether the page cache is used.
    pub cache: Cache,
    /// Where the payload goes.
    pub memory: Memory,
    /// How it gets there.
    pub route: RouteName,
    /// Queues, threads or rings.
    pub queues: u32,
    /// I/Os in flight a queue, or depth of a ring.
    pub depth: u32,
    /// Blocks of the kernel.
    pub sms: u32,
    /// Warps a block.
    pub warps: u32,
    /// I/Os that a lane has in flight.
    pub batch: u32,
    /// Most requests of a ring in flight at the storage.
    pub storage_depth: u32,
    /// Where the submission and completion queues of lanes lie.
    pub queue_memory: (QueueMemory, QueueMemory),
    /// Whether each read of path `bam` is followed by one of a block.
    pub second_read: bool,
    /// How lanes wait.
    pub wait: WaitMode,
    /// Lanes a block, where they are fewer than a warp's.
    pub few_lanes: Option<u32>,
    /// Device memory to use as the destination; else a path allocates its own.
    pub device: Option<DeviceMemory>,
    /// Bytes an I/O.
    pub io_bytes: u32,
    /// Bytes of destination.
    pub destination_bytes: usize,
    /// An I/O without an answer ends after this.
    pub limit: Duration,
    /// Side cores, if said.
    pub side_cores: Option<u32>,
    /// Limits of the command.
    pub limits: LimitArgs,
    /// How many software drives.
    pub several: DrivesArgs,
    /// What shall go wrong.
    pub faults: Option<FaultScript>,
    /// Where it goes wrong.
    pub faults_at: FaultsAt,
}

impl PathOptions {
    fn source_kind(&self) -> SourceKind {
        match (self.path, self.drive) {
            (PathName::Posix, _) => SourceKind::Posix,
            (PathName::Uring, _) => SourceKind::Uring,
            (PathName::Nvme | PathName::Bam | PathName::Copilot, _)
            | (PathName::Ring, Drive::Software) => SourceKind::Software,
            (PathName::Ring, Drive::Memory) => SourceKind::Memory,
            (PathName::Ring, Drive::Mapped) => SourceKind::Mapped,
            (PathName::Ring, Drive::Auto | Drive::File) => SourceKind::File,
        }
    }

    /// Offsets and lengths that the source takes are multiples of this.
    pub fn block_bytes(&self) -> u64 {
        match self.source_kind() {
            SourceKind::Software => u64::from(BLOCK_BYTES),
            SourceKind::File
            | SourceKind::Mapped
            | SourceKind::Memory
            | SourceKind::Posix
            | SourceKind::Uring => 1,
        }
    }

    /// How its source is opened.
    pub fn source_options(&self) -> SourceOptions {
        SourceOptions {
            writes: self.op != OpName::Read,
            cache: self.cache,
            faults: self.faults.clone(),
            faults_at: self.faults_at,
            timing: self.timing.clone(),
            limit: self.limit,
            queues: self.queues,
            device_cores: self.limits.device_cores.unwrap_or(0),
            several: self.several.clone(),
        }
    }

    fn open_source(
        &self,
        data: &Data,
        gpu: &Arc<dyn Gpu>,
        drive: Option<&Rc<SoftwareDrive>>,
    ) -> Result<Source> {
        Source::open(self.source_kind(), &self.source_options(), data, gpu, drive)
    }
}

/// Opens a path; one over a software drive uses the given one, or one of its own.
///
/// # Errors
/// What opening it may meet.
pub fn open(
    options: &PathOptions,
    data: &Data,
    gpu: &Arc<dyn Gpu>,
    drive: Option<&Rc<SoftwareDrive>>,
) -> Result<Box<dyn Runner>> {
    match options.path {
        PathName::Bam => return Ok(Box::new(open_lanes(options, data, gpu, drive, Polling::Gpu)?)),
        PathName::Copilot => {
            return Ok(Box::new(open_lanes(options, data, gpu, drive, Polling::Cpu)?));
        }
        PathName::Ring => return Ok(Box::new(open_ring(options, data, gpu, drive)?)),
        PathName::Posix | PathName::Uring | PathName::Nvme => {}
    }
    let source = options.open_source(data, gpu, drive)?;
    let ladder = if options.faults_at == FaultsAt::Drive { LADDER } else { 1 };
    let runner = QueueRunner::open(QueueRunnerOptions {
        storage: Arc::clone(&source.storage),
        gpu: (options.memory == Memory::Device).then(|| Arc::clone(gpu)),
        route: options.route,
        queues: options.queues,
        depth: options.depth,
        io_bytes: options.io_bytes,
        destination_bytes: options.destination_bytes,
        limit: options.limit * ladder,
        pinned_max: options.limits.pinned_max,
        drive: source.drive.clone(),
        device_cpu_seconds: source.device_cpu(),
        request_bytes: source.request_bytes,
    })?;
    Ok(Box::new(Counted { runner, source }))
}

/// Opens path `bam` or `copilot`.
///
/// # Errors
/// As [`open`].
pub fn open_lanes(
    options: &PathOptions,
    data: &Data,
    gpu: &Arc<dyn Gpu>,
    drive: Option<&Rc<SoftwareDrive>>,
    polling: Polling,
) -> Result<Counted<LaneRunner>> {
    let source = options.open_source(data, gpu, drive)?;
    let drive = source.software().context("queue pairs of lanes need a software drive")?;
    let kernel = match options.path {
        PathName::Bam => kernels::BENCH_BAM,
        _ if options.wait == WaitMode::Agent => kernels::BENCH_COPILOT_AGENT,
        _ => kernels::BENCH_COPILOT,
    };
    let runner = LaneRunner::open(LaneRunnerOptions {
        drive,
        gpu: Arc::clone(gpu),
        kernel,
        polling,
        sq: options.queue_memory.0,
        cq: options.queue_memory.1,
        second_read: options.second_read && options.path == PathName::Bam,
        queues: options.queues,
        depth: options.depth,
        sms: options.sms,
        warps: options.warps,
        batch: options.batch,
        wait: options.wait,
        io_bytes: options.io_bytes,
        destination_bytes: options.destination_bytes,
        limit: options.limit,
        agents: options.side_cores,
        limits: options.limits.clone(),
    })?;
    Ok(Counted { runner, source })
}

/// Opens path `ring`.
///
/// # Errors
/// As [`open`].
pub fn open_ring(
    options: &PathOptions,
    data: &Data,
    gpu: &Arc<dyn Gpu>,
    drive: Option<&Rc<SoftwareDrive>>,
) -> Result<Counted<RingRunner>> {
    let source = options.open_source(data, gpu, drive)?;
    let runner = RingRunner::open(RingRunnerOptions {
        storage: Arc::clone(&source.storage),
        gpu: Arc::clone(gpu),
        kernel: match options.wait {
            WaitMode::Agent => kernels::BENCH_RING_AGENT,
            WaitMode::Word => kernels::BENCH_RING,
        },
        route: options.route,
        op: options.op,
        rings: options.queues,
        depth: options.depth,
        storage_depth: options.storage_depth,
        sms: options.sms,
        warps: options.warps,
        batch: options.batch,
        wait: options.wait,
        io_bytes: options.io_bytes,
        destination_bytes: options.destination_bytes,
        limit: options.limit,
        side_cores: options.side_cores,
        limits: options.limits.clone(),
        drive: source.drive.clone(),
        device: options.device.clone(),
        few_lanes: options.few_lanes,
        device_cpu_seconds: source.device_cpu(),
    })?;
    Ok(Counted { runner, source })
}

/// A path, and its source, which counts the faults injected there.
pub struct Counted<R> {
    // The path goes before what serves it.
    runner: R,
    source: Source,
}

impl<R> Counted<R> {
    /// The path itself.
    pub fn runner(&self) -> &R {
        &self.runner
    }

    /// The path itself, to change it.
    pub fn runner_mut(&mut self) -> &mut R {
        &mut self.runner
    }
}

impl<R: Runner> Runner for Counted<R> {
    fn run(&mut self, round: &Arc<Round>) -> Result<RoundOutcome> {
        self.runner.run(round)
    }
    fn bill(&self) -> Bill {
        Bill {
            faults_injected: self.source.faults_injected(),
            commands_at_controller: self.source.commands_at_controller(),
            fetch_ns: self.source.at_controllers(|counters| counters.fetch_ns),
            fetch_runs: self.source.at_controllers(|counters| counters.fetch_runs),
            ..self.runner.bill()
        }
    }
    fn describe(&self) -> Description {
        Description {
            device_cores: self.source.device_cores(),
            drives: self.source.drives(),
            ..self.runner.describe()
        }
    }
    fn ticket_word(&self) -> Option<DeviceMemory> {
        self.runner.ticket_word()
    }
    fn destination(&mut self) -> &mut Destination {
        self.runner.destination()
    }
    fn in_flight_max(&self) -> usize {
        self.runner.in_flight_max()
    }
}
