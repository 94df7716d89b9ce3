//! Opens each path over the data: the one place that knows what a path is made of.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use ctrl::TimingModel;
use gpu::{Gpu, SimulatedGpu, SimulatedOptions};
use storage::faults::FaultScript;

use crate::args::{Cache, Drive, FaultsAt, LimitArgs, Memory, OpName, PathName, RouteName};
use crate::bench::data::Data;
use crate::bench::queue_runner::{QueueRunner, QueueRunnerOptions};
use crate::bench::ring_runner::{RingRunner, RingRunnerOptions};
use crate::bench::round::{Bill, Description, Destination, Round, RoundOutcome, Runner};
use crate::bench::source::{BLOCK_BYTES, Source, SourceKind, SourceOptions};

/// The driver of the software drive ends a silent command by itself, by a ladder of steps; a worker
/// waits for so many times the limit before it asks too.
const LADDER: u32 = 8;

/// The GPU of this machine: here always the simulated one.
pub fn open_gpu() -> Arc<dyn Gpu> {
    Arc::new(SimulatedGpu::new(SimulatedOptions::default()))
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
            (PathName::Nvme, _) | (PathName::Ring, Drive::Software) => SourceKind::Software,
            (PathName::Ring, Drive::Auto | Drive::File) => SourceKind::File,
        }
    }

    /// Offsets and lengths that the source takes are multiples of this.
    pub fn block_bytes(&self) -> u64 {
        match self.source_kind() {
            SourceKind::Software => u64::from(BLOCK_BYTES),
            SourceKind::File | SourceKind::Posix | SourceKind::Uring => 1,
        }
    }

    fn open_source(&self, data: &Data) -> Result<Source> {
        let options = SourceOptions {
            writes: self.op != OpName::Read,
            cache: self.cache,
            faults: self.faults.clone(),
            faults_at: self.faults_at,
            timing: self.timing.clone(),
            limit: self.limit,
        };
        Source::open(self.source_kind(), &options, data)
    }
}

/// Opens a path.
///
/// # Errors
/// What opening it may meet.
pub fn open(options: &PathOptions, data: &Data, gpu: &Arc<dyn Gpu>) -> Result<Box<dyn Runner>> {
    if options.path == PathName::Ring {
        return Ok(Box::new(open_ring(options, data, gpu)?));
    }
    let source = options.open_source(data)?;
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

/// Opens path `ring`.
///
/// # Errors
/// As [`open`].
pub fn open_ring(
    options: &PathOptions,
    data: &Data,
    gpu: &Arc<dyn Gpu>,
) -> Result<Counted<RingRunner>> {
    let source = options.open_source(data)?;
    let runner = RingRunner::open(RingRunnerOptions {
        storage: Arc::clone(&source.storage),
        gpu: Arc::clone(gpu),
        kernel: kernels::BENCH_RING,
        route: options.route,
        op: options.op,
        rings: options.queues,
        depth: options.depth,
        sms: options.sms,
        warps: options.warps,
        batch: options.batch,
        io_bytes: options.io_bytes,
        destination_bytes: options.destination_bytes,
        limit: options.limit,
        side_cores: options.side_cores,
        limits: options.limits.clone(),
        drive: source.drive.clone(),
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
}

impl<R: Runner> Runner for Counted<R> {
    fn run(&mut self, round: &Arc<Round>) -> Result<RoundOutcome> {
        self.runner.run(round)
    }
    fn bill(&self) -> Bill {
        Bill { faults_injected: self.source.faults_injected(), ..self.runner.bill() }
    }
    fn describe(&self) -> Description {
        self.runner.describe()
    }
    fn destination(&mut self) -> &mut Destination {
        self.runner.destination()
    }
    fn in_flight_max(&self) -> usize {
        self.runner.in_flight_max()
    }
}
