//! An engine on a simulated GPU, a source full of pattern, a buffer, a ring and the lanes' results.
#![allow(dead_code, reason = "not every test file uses all of it")]

use std::sync::Arc;
use std::time::Duration;

use abi::bench::{ProbeArgs, ProbeResult};
use abi::ring::RingView;
use gpu::{DeviceMemory, Gpu, Kernel, LaunchShape, SimulatedGpu, SimulatedOptions};
use mem::Region;
use sidecore::{Engine, Rights, Ring, RingConfig};
use storage::{MemoryStorage, Storage, pattern};
use zerocopy::{FromZeros, IntoBytes};

/// Bytes of the source.
pub const SOURCE_BYTES: usize = 1 << 20;
/// Longest that a launch may take.
pub const LIMIT: Duration = Duration::from_secs(120);

/// What a test launches.
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
    pub fn new(config: RingConfig) -> Self {
        Self::over(config, |memory| memory)
    }

    /// With something around the memory, say faults.
    pub fn over(
        config: RingConfig,
        wrap: impl FnOnce(Arc<dyn Storage>) -> Arc<dyn Storage>,
    ) -> Self {
        let options = SimulatedOptions { threads: 2, ..SimulatedOptions::default() };
        let gpu: Arc<dyn Gpu> = Arc::new(SimulatedGpu::new(options));
        let engine = Engine::builder(Arc::clone(&gpu)).side_cores(1).start().unwrap();
        let storage = MemoryStorage::new(SOURCE_BYTES).unwrap();
        let memory = storage.region().clone();
        pattern::fill_region(&memory, 0, SOURCE_BYTES, 0, 0);
        let source = engine.register_source(wrap(Arc::new(storage)), Rights::READ_WRITE).unwrap();
        let ring = engine.create_ring(config).unwrap();
        Self { ring, engine, gpu, source, memory }
    }

    pub fn allocate(&self, bytes: usize) -> (DeviceMemory, Region) {
        let memory = self.gpu.allocate_device(bytes as u64).unwrap();
        let window = memory.window.clone().unwrap();
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
        let (memory, _) = self.allocate(lanes * stride + 64);
        let buffer = self.engine.register_buffer(memory, Rights::READ_WRITE).unwrap();
        let mut results = vec![ProbeResult::new_zeroed(); lanes];
        let (results_memory, results_window) = self.allocate(results.as_bytes().len());
        let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap();
        let args = ProbeArgs {
            ring,
            source: self.source.view(),
            buffer: buffer.view(),
            results: results_memory.address,
            patience_ns: ns(probe.patience),
            timeout_ns: ns(probe.timeout),
            rounds: probe.rounds,
            bytes: probe.bytes,
            shift: probe.shift,
            seed: probe.seed,
        };
        self.launch(kernel, probe.shape, args.as_bytes());
        results_window.read_bytes(0, results.as_mut_bytes());
        for (lane, result) in results.iter().enumerate() {
            assert_eq!(result.finished, 1, "lane {lane} of {}: {result:?}", kernel.name);
        }
        results
    }

    pub fn launch(&self, kernel: &Kernel, shape: LaunchShape, arguments: &[u8]) {
        let mut launch = self.gpu.launch(kernel, shape, arguments).unwrap();
        launch.wait(LIMIT).unwrap_or_else(|| panic!("{} hangs", kernel.name)).unwrap();
    }
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
