//! The software NVMe drive over the data: its controllers, their threads, and the drivers that started
//! them. Several paths can use one drive one after the other.
//!
//! A drive may have several controllers, each with a thread (a *device core*) of its own: they share
//! the data, and rate and bandwidth of the timing model, so that together they are one drive. Queue
//! pairs are dealt to them in turn.

use std::fs::OpenOptions;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ctrl::{
    Controller, Counters, NamespaceOptions, Options, Pacer, Server, ServerOptions, SharedCounters,
    TimingModel,
};
use driver::{Driver, DriverOptions, RegionDevice};
use gpu::Gpu;
use mem::{AddressMap, Region};
use storage::faults::{FaultScript, Injector};
use storage::{
    FileOptions, FileStorage, MemoryStorage, NvmeOptions, NvmeStorage, Replicated, Storage, Striped,
};

use crate::args::{DriveLayout, DrivesArgs};
use crate::bench::data::Data;
use crate::bench::dealt::Dealt;
use crate::bench::padded::Padded;
use crate::bench::stripe::{STRIPE_BYTES, StripeShare};

/// Bytes of a logical block of the software drive.
pub const BLOCK_BYTES: u32 = 512;
/// Queue pairs that the drive has besides those that a run needs.
const SPARE_QUEUES: u16 = 64;
/// Device cores that a drive for a real GPU has where nobody says, at most half of the CPUs.
const DEVICE_CORES: u32 = 8;

/// Commands that a controller has at work at most; with a real GPU, of which many lanes may wait for a
/// slow drive, more.
const COMMANDS_MAX: u32 = 1024;
const REAL_COMMANDS_MAX: u32 = 8192;

/// How a drive is made.
#[derive(Clone, Debug)]
pub struct DriveOptions {
    /// How the file is opened.
    pub file: FileOptions,
    /// What it stands for.
    pub timing: TimingModel,
    /// What shall go wrong inside it.
    pub faults: Option<FaultScript>,
    /// A command of the driver's own queues without an answer ends after this.
    pub limit: Duration,
    /// Queue pairs that a run needs at most.
    pub queues: u32,
    /// Controllers of a drive, each with a thread; 0: one, or for a real GPU several.
    pub device_cores: u32,
    /// How many drives, and how the data lies on them.
    pub several: DrivesArgs,
}

/// One controller at work.
struct Unit {
    driver: Driver,
    server: Server,
    counters: SharedCounters,
}

/// A drive that is ready, or several.
pub struct SoftwareDrive {
    units: Vec<Unit>,
    /// Of all drives, one after the other.
    drivers: Vec<Driver>,
    several: DrivesArgs,
    injector: Option<Arc<Injector>>,
    how: NvmeOptions,
    name: String,
}

/// What all controllers of a drive have in common.
struct Common<'a> {
    options: &'a DriveOptions,
    namespace: NamespaceOptions,
    queues: u16,
    commands_max: u32,
    pacer: Option<Pacer>,
    origin: Instant,
    gpu: &'a Arc<dyn Gpu>,
    how: NvmeOptions,
}

impl SoftwareDrive {
    /// Makes controllers over the data, starts their threads, and starts them with the driver. A real
    /// GPU reaches their doorbells.
    ///
    /// # Errors
    /// The system's own, with the file's name; a drive that does not start.
    pub fn open(options: &DriveOptions, data: &Data, gpu: &Arc<dyn Gpu>) -> Result<Rc<Self>> {
        let real = !gpu.describe().simulated;
        let DrivesArgs { drives, layout } = options.several;
        check_device_cores(options.device_cores.saturating_mul(drives))?;
        let cores = device_cores(options.device_cores, real);
        let striped = drives > 1 && layout == DriveLayout::Striped;
        if striped {
            check_stripes(data, drives)?;
        }
        let (below, held) = storage(options, data, real)?;
        let script = options.faults.as_ref();
        let injector = script.map(|script| Arc::new(Injector::new(script, BLOCK_BYTES)));
        let needed = u16::try_from(options.queues).context("too many queue pairs")?;
        let queues = needed.checked_add(SPARE_QUEUES).context("too many queue pairs")?;
        let how = NvmeOptions {
            command_limit: options.limit,
            driver: DriverOptions { queues_max: queues, ..DriverOptions::default() },
            ..NvmeOptions::default()
        };
        let origin = Instant::now();
        let mut units = Vec::new();
        for drive in 0..drives {
            let storage: Arc<dyn Storage> = match striped {
                true => Arc::new(StripeShare::new(Arc::clone(&below), drive, drives)),
                false => Arc::clone(&below),
            };
            let faults = injector.clone();
            let common = Common {
                options,
                namespace: NamespaceOptions { storage, block_bytes: BLOCK_BYTES, faults },
                queues,
                commands_max: if real { REAL_COMMANDS_MAX } else { COMMANDS_MAX },
                pacer: (cores > 1).then(|| Pacer::new(&options.timing)),
                origin,
                gpu,
                how: how.clone(),
            };
            for core in 0..cores {
                units.push(common.unit(drive * cores + core)?);
            }
        }
        let model = if options.timing.is_unlimited() {
            "no timing model".to_owned()
        } else {
            options.timing.to_string()
        };
        let threads = match cores {
            1 => String::new(),
            n => format!(", {n} controllers with a thread each as one drive"),
        };
        let number = match (drives, layout) {
            (1, _) => String::new(),
            (n, DriveLayout::Replicated) => {
                format!("s on {n} drives, replicated (in the same file)")
            }
            (n, DriveLayout::Striped) => {
                format!("s on {n} drives, striped by {STRIPE_BYTES} bytes")
            }
        };
        Ok(Rc::new(Self {
            drivers: units.iter().map(|unit| unit.driver.clone()).collect(),
            units,
            several: options.several.clone(),
            injector,
            how,
            name: format!("software NVMe controller{number} ({model}{threads}) over {held}"),
        }))
    }

    /// Its first namespace as storage for the CPU: each queue on the next controllers.
    ///
    /// # Errors
    /// A controller failed meanwhile.
    pub fn storage(&self) -> Result<Arc<dyn Storage>> {
        let cores = self.drivers.len() / self.several.drives as usize;
        let each = self.drivers.chunks(cores).map(|drivers| self.drive(drivers));
        let mut drives = each.collect::<Result<Vec<_>>>()?;
        Ok(match self.several.layout {
            _ if drives.len() == 1 => drives.remove(0),
            DriveLayout::Replicated => Arc::new(Replicated::new(drives)?),
            DriveLayout::Striped => Arc::new(Striped::new(drives, STRIPE_BYTES)?),
        })
    }

    /// One drive as storage for the CPU.
    fn drive(&self, drivers: &[Driver]) -> Result<Arc<dyn Storage>> {
        let one = |driver: &Driver| NvmeStorage::over(driver.clone(), &self.how);
        let mut all = drivers.iter().map(one).collect::<Result<Vec<_>, _>>()?;
        Ok(match all.pop() {
            Some(only) if all.is_empty() => Arc::new(only),
            last => Arc::new(Dealt::new(all.into_iter().chain(last).collect())),
        })
    }

    /// How many drives there are.
    pub fn drives(&self) -> u32 {
        self.several.drives
    }

    /// The drivers, one a controller.
    pub fn drivers(&self) -> &[Driver] {
        &self.drivers
    }

    /// Threads that serve it.
    pub fn device_cores(&self) -> u32 {
        u32::try_from(self.units.len()).unwrap_or(u32::MAX)
    }

    /// What it is, for the row.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// I/O commands that the controllers have fetched.
    pub fn io_commands(&self) -> u64 {
        self.counted(|counters| counters.io_commands)
    }

    /// The sum of one counter over all controllers.
    pub fn counted(&self, value: fn(&Counters) -> u64) -> u64 {
        self.units.iter().map(|unit| value(&unit.counters.read())).sum()
    }

    /// CPU seconds of the controllers' threads.
    pub fn cpu_seconds(&self) -> f64 {
        self.units.iter().map(|unit| unit.server.cpu_seconds()).sum()
    }

    /// What decides about faults inside it.
    pub fn injector(&self) -> Option<&Arc<Injector>> {
        self.injector.as_ref()
    }
}

/// How many, as asked for or as the machine has room for.
fn device_cores(asked: u32, real: bool) -> u32 {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let half = u32::try_from(cpus / 2).unwrap_or(u32::MAX).max(1);
    match (asked, real) {
        (0, true) => DEVICE_CORES.min(half),
        (0, false) => 1,
        (asked, _) => asked,
    }
}

/// Where the drive's blocks lie, and that in words. A real GPU is fast enough to see what reading a
/// file costs, so a drive for it has the file mapped, where only this run can change its length.
fn storage(
    options: &DriveOptions,
    data: &Data,
    real: bool,
) -> Result<(Arc<dyn Storage>, &'static str)> {
    let file = if data.is_made() { "file made for the run" } else { "file given" };
    if real && data.is_made() {
        let named = || format!("mapping {}", data.path().display());
        let opened =
            OpenOptions::new().read(true).write(true).open(data.path()).with_context(named)?;
        let region =
            Region::map_file(&opened, usize::try_from(data.bytes())?).with_context(named)?;
        data.enter(&region);
        let whole: Arc<dyn Storage> = Arc::new(MemoryStorage::over(region));
        return Ok((Arc::new(Padded::new(whole, BLOCK_BYTES)), "file made for the run, mapped"));
    }
    let below = FileStorage::open(data.path(), &options.file)?;
    Ok((Arc::new(Padded::new(Arc::new(below), BLOCK_BYTES)), file))
}

/// Nanoseconds since the first call, for counting how long fetches take.
fn fetch_clock() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let elapsed = START.get_or_init(Instant::now).elapsed();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}

impl Common<'_> {
    /// Makes a controller, its thread and its driver.
    fn unit(&self, number: u32) -> Result<Unit> {
        let mut timing = self.options.timing.clone();
        timing.seed = timing.seed.wrapping_add(u64::from(number));
        let settings = Options {
            timing,
            pacer: self.pacer.clone(),
            queue_pairs_max: self.queues,
            commands_max: self.commands_max,
            fetch_clock: Some(fetch_clock),
            ..Options::new(vec![self.namespace.clone()])
        };
        let map = Arc::new(AddressMap::new());
        let bar = self.gpu.allocate_host(Controller::bar_bytes(&settings) as u64)?;
        let controller = Controller::with_bar(settings, Arc::clone(&map), bar.clone())?;
        let counters = controller.counters();
        let name = format!("nvme-software-{number}");
        let how = ServerOptions { name, origin: self.origin, ..ServerOptions::default() };
        let server = Server::start(vec![controller], how)?;
        let device = Arc::new(RegionDevice::new(bar, map));
        let nvme =
            NvmeStorage::wait_open(device, &self.how).context("starting the software drive")?;
        Ok(Unit { driver: nvme.driver().clone(), server, counters })
    }
}

/// Refuses data that is no whole number of stripes on each drive.
///
/// # Errors
/// It is not.
fn check_stripes(data: &Data, drives: u32) -> Result<()> {
    let row = u64::from(STRIPE_BYTES) * u64::from(drives);
    ensure!(
        data.bytes().is_multiple_of(row),
        "--layout striped: {} bytes are no whole number of stripes of {STRIPE_BYTES} bytes on each of \
         {drives} drives; name a --size that {row} divides",
        data.bytes()
    );
    Ok(())
}

/// Refuses more device cores than there are CPUs.
///
/// # Errors
/// There are not so many.
fn check_device_cores(asked: u32) -> Result<()> {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    ensure!(
        asked as usize <= cpus.max(2),
        "--device-cores {asked}: there are {cpus} CPUs, and the drive's threads never rest"
    );
    Ok(())
}
