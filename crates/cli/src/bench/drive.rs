//! The software NVMe drive over the data: one controller, its thread, and the driver that started
//! it. Several paths can use one drive one after the other.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use ctrl::{
    Controller, NamespaceOptions, Options, Server, ServerOptions, SharedCounters, TimingModel,
};
use driver::{Driver, DriverOptions, RegionDevice};
use mem::AddressMap;
use storage::faults::{FaultScript, Injector};
use storage::{FileOptions, FileStorage, NvmeOptions, NvmeStorage, Storage};

use crate::bench::data::Data;
use crate::bench::padded::Padded;

/// Bytes of a logical block of the software drive.
pub const BLOCK_BYTES: u32 = 512;
/// Queue pairs that the drive has besides those that a run needs.
const SPARE_QUEUES: u16 = 64;

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
}

/// A drive that is ready.
pub struct SoftwareDrive {
    driver: Driver,
    server: Server,
    counters: SharedCounters,
    injector: Option<Arc<Injector>>,
    how: NvmeOptions,
    name: String,
}

impl SoftwareDrive {
    /// Makes a controller over the data, starts its thread, and starts it with the driver.
    ///
    /// # Errors
    /// The system's own, with the file's name; a drive that does not start.
    pub fn open(options: &DriveOptions, data: &Data) -> Result<Rc<Self>> {
        let below = FileStorage::open(data.path(), &options.file)?;
        let below: Arc<dyn Storage> = Arc::new(Padded::new(Arc::new(below), BLOCK_BYTES));
        let script = options.faults.as_ref();
        let injector = script.map(|script| Arc::new(Injector::new(script, BLOCK_BYTES)));
        let namespace =
            NamespaceOptions { storage: below, block_bytes: BLOCK_BYTES, faults: injector.clone() };
        let needed = u16::try_from(options.queues).context("too many queue pairs")?;
        let queues = needed.checked_add(SPARE_QUEUES).context("too many queue pairs")?;
        let settings = Options {
            timing: options.timing.clone(),
            queue_pairs_max: queues,
            ..Options::new(vec![namespace])
        };
        let map = Arc::new(AddressMap::new());
        let controller = Controller::new(settings, Arc::clone(&map))?;
        let (bar, counters) = (controller.bar(), controller.counters());
        let server = Server::start(vec![controller], ServerOptions::default())?;
        let device = Arc::new(RegionDevice::new(bar, map));
        let how = NvmeOptions {
            command_limit: options.limit,
            driver: DriverOptions { queues_max: queues, ..DriverOptions::default() },
            ..NvmeOptions::default()
        };
        let nvme = NvmeStorage::wait_open(device, &how).context("starting the software drive")?;
        let file = if data.is_made() { "file made for the run" } else { "file given" };
        let model = if options.timing.is_unlimited() {
            "no timing model".to_owned()
        } else {
            options.timing.to_string()
        };
        Ok(Rc::new(Self {
            driver: nvme.driver().clone(),
            server,
            counters,
            injector,
            how,
            name: format!("software NVMe controller ({model}) over {file}"),
        }))
    }

    /// Its first namespace as storage for the CPU.
    ///
    /// # Errors
    /// The controller failed meanwhile.
    pub fn storage(&self) -> Result<NvmeStorage> {
        Ok(NvmeStorage::over(self.driver.clone(), &self.how)?)
    }

    /// The driver.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// What it is, for the row.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// I/O commands that the controller has fetched.
    pub fn io_commands(&self) -> u64 {
        self.counters.read().io_commands
    }

    /// CPU seconds of the controller's thread.
    pub fn cpu_seconds(&self) -> f64 {
        self.server.cpu_seconds()
    }

    /// What decides about faults inside it.
    pub fn injector(&self) -> Option<&Arc<Injector>> {
        self.injector.as_ref()
    }
}
