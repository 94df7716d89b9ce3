//! An engine on a GPU, a source full of pattern, a buffer, a ring and the lanes' results.

use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::bench::{ProbeArgs, ProbeResult};
use abi::ring::RingView;
use gpu::{Copy, DeviceMemory, Gpu, Kernel, LaunchShape};
use mem::Region;
use sidecore::{Buffer, Engine, EngineBuilder, Rights, Ring, RingConfig};
use storage::{MemoryStorage, Storage, pattern};
use zerocopy::{FromZeros, IntoBytes};

use crate::stuck;

/// Bytes of the source.
pub const SOURCE_BYTES: usize = 1 << 20;
/// Longest that a launch may take.
pub const LIMIT: Duration = Duration::from_secs(120);
/// The same on a real GPU, where time is dear.
const LIMIT_REAL: Duration = Duration::from_secs(10);

/// What a test launches.
#[derive(Clone, Copy)]
pub struct Probe {
    /// Lanes of the launch.
    pub shape: LaunchShape,
    /// Rounds of each lane.
    pub rounds: u32,
    /// Bytes a request.
    pub bytes: u32,
    /// Misalignment of the buffers.
    pub shift: u32,
    /// Decides offsets and early exits.
    pub seed: u32,
    /// For a slot.
    pub patience: Duration,
    /// For an end.
    pub timeout: Duration,
}

impl Default for Probe {
    fn default() -> Self {
        Self {
            shape: shape(2, 64),
            rounds: 8,
            bytes: 512,
            shift: 0,
            seed: 1,
            patience: Duration::from_secs(30),
            timeout: Duration::from_secs(30),
        }
    }
}

pub fn shape(blocks: u32, threads_per_block: u32) -> LaunchShape {
    LaunchShape { blocks, threads_per_block, shared_bytes: 0 }
}

/// Everything that a ring test needs.
pub struct Bed {
    // First, so that it goes first.
    pub ring: Ring,
    pub engine: Engine,
    pub gpu: Arc<dyn Gpu>,
    pub source: sidecore::Source,
    pub memory: Region,
}

impl Bed {
    pub fn new(gpu: &Arc<dyn Gpu>, config: RingConfig) -> Self {
        Self::over(gpu, config, |memory| memory)
    }

    /// With something around the memory, say faults.
    pub fn over(
        gpu: &Arc<dyn Gpu>,
        config: RingConfig,
        wrap: impl FnOnce(Arc<dyn Storage>) -> Arc<dyn Storage>,
    ) -> Self {
        Self::with(Engine::builder(Arc::clone(gpu)).side_cores(1), config, wrap)
    }

    /// With an engine that is made otherwise.
    pub fn with(
        builder: EngineBuilder,
        config: RingConfig,
        wrap: impl FnOnce(Arc<dyn Storage>) -> Arc<dyn Storage>,
    ) -> Self {
        let engine = builder.start().unwrap();
        let gpu = Arc::clone(engine.gpu());
        let storage = MemoryStorage::new(SOURCE_BYTES).unwrap();
        let memory = storage.region().clone();
        pattern::fill_region(&memory, 0, SOURCE_BYTES, 0, 0);
        let source = engine.register_source(wrap(Arc::new(storage)), Rights::READ_WRITE).unwrap();
        let ring = engine.create_ring(config).unwrap();
        Self { ring, engine, gpu, source, memory }
    }

    /// Device memory that the CPU has a mapping of.
    pub fn allocate(&self, bytes: usize) -> (DeviceMemory, Region) {
        let memory = self.gpu.allocate_device(bytes as u64).unwrap();
        let window = memory.window.clone().expect("a window: the test stores through it");
        (memory, window)
    }

    /// Launches a probe; what each lane saw.
    pub fn run(&self, kernel: &Kernel, probe: &Probe) -> Vec<ProbeResult> {
        self.run_with_view(kernel, probe, self.ring.view())
    }

    /// As `run`, with another view of the ring.
    pub fn run_with_view(
        &self,
        kernel: &Kernel,
        probe: &Probe,
        ring: RingView,
    ) -> Vec<ProbeResult> {
        let lanes = (probe.shape.blocks * probe.shape.threads_per_block) as usize;
        let stride = probe.bytes as usize + 64;
        let memory = self.gpu.allocate_device((lanes * stride + 64) as u64).unwrap();
        let buffer = self.engine.register_buffer(memory, Rights::READ_WRITE).unwrap();
        let mut results = vec![ProbeResult::new_zeroed(); lanes];
        let results_memory = self.gpu.allocate_device(results.as_bytes().len() as u64).unwrap();
        let args = self.arguments(probe, ring, &buffer, results_memory.address);
        self.launch(kernel, probe.shape, args.as_bytes());
        read(&self.gpu, &results_memory, results.as_mut_bytes());
        for (lane, result) in results.iter().enumerate() {
            assert_eq!(result.finished, 1, "lane {lane} of {}: {result:?}", kernel.name);
        }
        results
    }

    /// Arguments of a probe.
    pub fn arguments(
        &self,
        probe: &Probe,
        ring: RingView,
        buffer: &Buffer,
        results: u64,
    ) -> ProbeArgs {
        let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap();
        ProbeArgs {
            ring,
            source: self.source.view(),
            buffer: buffer.view(),
            results,
            patience_ns: ns(probe.patience),
            timeout_ns: ns(probe.timeout),
            rounds: probe.rounds,
            bytes: probe.bytes,
            shift: probe.shift,
            seed: probe.seed,
        }
    }

    pub fn launch(&self, kernel: &Kernel, shape: LaunchShape, arguments: &[u8]) {
        launch(&self.gpu, kernel, shape, arguments);
    }
}

/// Longest that a launch may take.
pub fn limit(gpu: &Arc<dyn Gpu>) -> Duration {
    if gpu.describe().simulated { LIMIT } else { LIMIT_REAL }
}

/// Launches a kernel and waits for its end; how long it took.
pub fn launch(
    gpu: &Arc<dyn Gpu>,
    kernel: &Kernel,
    shape: LaunchShape,
    arguments: &[u8],
) -> Duration {
    let start = Instant::now();
    let mut launch = gpu.launch(kernel, shape, arguments).unwrap();
    stuck::finish(gpu, launch.as_mut(), kernel.name, String::new, || {});
    start.elapsed()
}

/// Reads device memory from its first byte on, by the copy engine.
pub fn read(gpu: &Arc<dyn Gpu>, memory: &DeviceMemory, to: &mut [u8]) {
    let host = gpu.allocate_host(to.len() as u64).unwrap();
    let bytes = to.len();
    let copy = Copy { host: &host, host_offset: 0, device: memory, device_offset: 0, bytes };
    gpu.copy_to_host(copy).unwrap();
    host.read_bytes(0, to);
}

/// Adds up what lanes saw; the status is that of some lane that has one.
pub fn sum(results: &[ProbeResult]) -> ProbeResult {
    results.iter().fold(ProbeResult::new_zeroed(), |sum, r| ProbeResult {
        succeeded: sum.succeeded + r.succeeded,
        failed: sum.failed + r.failed,
        wrong_bytes: sum.wrong_bytes + r.wrong_bytes,
        not_submitted: sum.not_submitted + r.not_submitted,
        pending: sum.pending + r.pending,
        busy: sum.busy + r.busy,
        status: if r.status == 0 { sum.status } else { r.status },
        finished: sum.finished + r.finished,
    })
}
