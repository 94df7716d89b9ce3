//! A drive made of software, ready for queue pairs: a controller over a storage, the thread that
//! serves it, and the driver that has started it.

use std::sync::Arc;
use std::time::Duration;

use ctrl::{Controller, Counters, Server, ServerOptions, SharedCounters};
use driver::{Driver, RegionDevice};
use gpu::Gpu;
use mem::AddressMap;
use storage::{NvmeOptions, NvmeStorage, Storage};

use crate::error::EngineError;
use crate::gpu_queues::{AgentPlacement, GpuQueues, QueueOptions};

/// How long opening queue pairs may take.
const QUEUES_LIMIT: Duration = Duration::from_secs(10);

/// A software NVMe controller and its driver. What uses its driver must be gone before it is dropped:
/// then its thread ends, and no command is answered any more.
pub struct SoftwareDrive {
    gpu: Arc<dyn Gpu>,
    nvme: NvmeStorage,
    counters: SharedCounters,
    // Dropped after the driver.
    _server: Server,
}

impl SoftwareDrive {
    /// Serves `storage` as the one namespace of a drive with default options.
    ///
    /// # Errors
    /// As [`SoftwareDrive::start_with`].
    pub fn start(gpu: &Arc<dyn Gpu>, storage: Arc<dyn Storage>) -> Result<Self, EngineError> {
        Self::start_with(gpu, ctrl::Options::over(storage), &NvmeOptions::default())
    }

    /// Serves what `options` say, with registers that lanes of `gpu` reach.
    ///
    /// # Errors
    /// `Misuse` for options that no controller can have, `Gpu` without memory for its registers,
    /// `Unsupported` without a thread, `Storage` where the driver does not start it.
    pub fn start_with(
        gpu: &Arc<dyn Gpu>,
        options: ctrl::Options,
        how: &NvmeOptions,
    ) -> Result<Self, EngineError> {
        let map = Arc::new(AddressMap::new());
        let registers = gpu.allocate_host(Controller::bar_bytes(&options) as u64)?;
        let controller = Controller::with_bar(options, Arc::clone(&map), registers.clone())
            .map_err(|error| EngineError::Misuse(error.to_string()))?;
        let counters = controller.counters();
        let server = Server::start(vec![controller], ServerOptions::default());
        let _server = server.map_err(|error| EngineError::Unsupported {
            what: "a thread for a software drive",
            why: error.to_string(),
        })?;
        let nvme = NvmeStorage::wait_open(Arc::new(RegionDevice::new(registers, map)), how)?;
        Ok(Self { gpu: Arc::clone(gpu), nvme, counters, _server })
    }

    /// Makes `count` queue pairs of it for lanes of its GPU, with one agent where lanes do not drain them.
    /// [`GpuQueues::start`] has more to choose.
    ///
    /// # Errors
    /// As there.
    pub fn queues(&self, count: u32, options: &QueueOptions) -> Result<GpuQueues, EngineError> {
        let (drivers, agents) = ([self.driver().clone()], AgentPlacement::default());
        GpuQueues::start(&self.gpu, &drivers, count, options, agents, None, QUEUES_LIMIT)
    }

    /// Bytes of its namespace.
    pub fn bytes(&self) -> u64 {
        self.nvme.geometry().bytes
    }

    /// Its driver, for queue pairs of lanes.
    pub fn driver(&self) -> &Driver {
        self.nvme.driver()
    }

    /// The drive as a storage of CPU threads.
    pub fn storage(&self) -> &NvmeStorage {
        &self.nvme
    }

    /// What the controller has counted.
    pub fn counters(&self) -> Counters {
        self.counters.read()
    }
}
