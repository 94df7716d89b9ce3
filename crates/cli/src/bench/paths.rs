//! Opens each path over the data: the one place that knows what a path is made of.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};
use gpu::{Gpu, SimulatedGpu, SimulatedOptions};
use storage::faults::FaultScript;
use storage::{Faulty, Storage};

use crate::args::{Memory, PathName};
use crate::bench::data::Data;
use crate::bench::posix::PosixStorage;
use crate::bench::queue_runner::{QueueRunner, QueueRunnerOptions};
use crate::bench::round::{Bill, Description, Destination, Round, RoundOutcome, Runner};
use crate::bench::settings::{Point, Settings};

/// The GPU of this machine: here always the simulated one.
pub fn open_gpu() -> Arc<dyn Gpu> {
    Arc::new(SimulatedGpu::new(SimulatedOptions::default()))
}

/// Opens a path for a row.
///
/// # Errors
/// What opening it may meet.
pub fn open(
    settings: &Settings,
    point: &Point,
    data: &Data,
    gpu: &Arc<dyn Gpu>,
) -> Result<Box<dyn Runner>> {
    match point.path {
        PathName::Posix => {
            let storage = PosixStorage::open(data.path(), data.bytes(), settings.writes())?;
            let drive = format!("file {} (pread)", kind_of(data));
            cpu_path(settings, point, gpu, Arc::new(storage), drive, 0)
        }
        other => bail!("path {} is not here yet", other.name()),
    }
}

fn kind_of(data: &Data) -> &'static str {
    if data.is_made() { "made for the run" } else { "given" }
}

/// A path of CPU threads over a storage that may misbehave.
fn cpu_path(
    settings: &Settings,
    point: &Point,
    gpu: &Arc<dyn Gpu>,
    storage: Arc<dyn Storage>,
    drive: String,
    request_bytes: u64,
) -> Result<Box<dyn Runner>> {
    let faulty = settings.faults.as_ref().map(|script| misbehaving(Arc::clone(&storage), script));
    let storage = match &faulty {
        Some(faulty) => Arc::clone(faulty) as Arc<dyn Storage>,
        None => storage,
    };
    let runner = QueueRunner::open(QueueRunnerOptions {
        storage,
        gpu: (settings.args.memory == Memory::Device).then(|| Arc::clone(gpu)),
        route: settings.args.route,
        queues: point.queues,
        depth: point.depth,
        io_bytes: point.io_bytes,
        destination_bytes: settings.destination_bytes(point),
        limit: settings.limit,
        pinned_max: settings.args.limits.pinned_max,
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
