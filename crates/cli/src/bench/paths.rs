//! Opens each path over the data: the one place that knows what a path is made of.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use gpu::{Gpu, SimulatedGpu, SimulatedOptions};
use storage::faults::FaultScript;
use storage::{Faulty, Storage};

use crate::args::{Cache, LimitArgs, Memory, OpName, PathName, RouteName};
use crate::bench::data::Data;
use crate::bench::posix::PosixStorage;
use crate::bench::queue_runner::{QueueRunner, QueueRunnerOptions};
use crate::bench::ring_runner::{RingRunner, RingRunnerOptions};
use crate::bench::round::{Bill, Description, Destination, Round, RoundOutcome, Runner};
use crate::bench::uring::UringStorage;

/// Bytes of an io_uring submission entry.
const SQE_BYTES: u64 = 64;

/// The GPU of this machine: here always the simulated one.
pub fn open_gpu() -> Arc<dyn Gpu> {
    Arc::new(SimulatedGpu::new(SimulatedOptions::default()))
}

/// The paths that there are.
pub fn available() -> Vec<PathName> {
    vec![PathName::Posix, PathName::Uring]
}

/// How a path is opened.
#[derive(Clone, Debug)]
pub struct PathOptions {
    /// Which.
    pub path: PathName,
    /// What is asked for.
    pub op: OpName,
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
}

/// Opens a path.
///
/// # Errors
/// What opening it may meet.
pub fn open(options: &PathOptions, data: &Data, gpu: &Arc<dyn Gpu>) -> Result<Box<dyn Runner>> {
    match options.path {
        PathName::Posix => {
            let writes = options.op != OpName::Read;
            let direct = options.cache == Cache::Direct;
            let storage = Arc::new(PosixStorage::open(data.path(), data.bytes(), writes, direct)?);
            cpu_path(options, gpu, storage, format!("file {}", kind_of(data)), 0)
        }
        PathName::Uring => {
            let writes = options.op != OpName::Read;
            let direct = is_direct(options, data);
            let storage = UringStorage::open(data.path(), data.bytes(), writes, direct)?;
            let drive = format!("file {}", kind_of(data));
            cpu_path(options, gpu, Arc::new(storage), drive, SQE_BYTES)
        }
        PathName::Ring => Ok(Box::new(open_ring(options, data, gpu)?)),
        other => bail!("path {} is not here yet", other.name()),
    }
}

/// Whether to go past the page cache: as asked, or where less than half of the data is in it.
fn is_direct(options: &PathOptions, data: &Data) -> bool {
    match options.cache {
        Cache::Auto => (0.0..0.5).contains(&data.cached_share()),
        Cache::Cached => false,
        Cache::Direct => true,
    }
}

fn kind_of(data: &Data) -> &'static str {
    if data.is_made() { "made for the run" } else { "given" }
}

/// Opens path `ring`.
///
/// # Errors
/// As [`open`].
pub fn open_ring(options: &PathOptions, data: &Data, gpu: &Arc<dyn Gpu>) -> Result<RingRunner> {
    let Some(kernel) = bench_kernel() else { bail!("path ring is not here yet") };
    let writes = options.op != OpName::Read;
    let storage: Arc<dyn Storage> =
        Arc::new(PosixStorage::open(data.path(), data.bytes(), writes, false)?);
    RingRunner::open(RingRunnerOptions {
        storage,
        gpu: Arc::clone(gpu),
        kernel,
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
        drive: format!("file {}", kind_of(data)),
        device_cpu_seconds: Box::new(|| 0.0),
    })
}

fn bench_kernel() -> Option<gpu::Kernel> {
    None
}

/// A path of CPU threads over a storage that may misbehave.
fn cpu_path(
    options: &PathOptions,
    gpu: &Arc<dyn Gpu>,
    storage: Arc<dyn Storage>,
    drive: String,
    request_bytes: u64,
) -> Result<Box<dyn Runner>> {
    let faulty = options.faults.as_ref().map(|script| misbehaving(Arc::clone(&storage), script));
    let storage = match &faulty {
        Some(faulty) => Arc::clone(faulty) as Arc<dyn Storage>,
        None => storage,
    };
    let runner = QueueRunner::open(QueueRunnerOptions {
        storage,
        gpu: (options.memory == Memory::Device).then(|| Arc::clone(gpu)),
        route: options.route,
        queues: options.queues,
        depth: options.depth,
        io_bytes: options.io_bytes,
        destination_bytes: options.destination_bytes,
        limit: options.limit,
        pinned_max: options.limits.pinned_max,
        drive,
        device_cpu_seconds: Box::new(|| 0.0),
        request_bytes,
    })?;
    Ok(Box::new(WithFaults { runner, faulty }))
}

fn misbehaving(storage: Arc<dyn Storage>, script: &FaultScript) -> Arc<Faulty> {
    let start = Instant::now();
    let clock = move || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Arc::new(Faulty::new(storage, script, Arc::new(clock)))
}

/// A path, and the count of faults injected below it.
struct WithFaults<R> {
    runner: R,
    faulty: Option<Arc<Faulty>>,
}

impl<R: Runner> Runner for WithFaults<R> {
    fn run(&mut self, round: &Arc<Round>) -> Result<RoundOutcome> {
        self.runner.run(round)
    }
    fn bill(&self) -> Bill {
        let injected = self.faulty.as_ref().map_or(0, |faulty| faulty.injector().injected_total());
        Bill { faults_injected: injected, ..self.runner.bill() }
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
