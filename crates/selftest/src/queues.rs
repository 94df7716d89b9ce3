//! Queue pairs of a software drive that lanes drive themselves, by `bam` and by `copilot`.

use std::sync::Arc;
use std::time::Duration;

use abi::bench::{ProbeResult, QueueProbeArgs};
use ctrl::{Controller, NamespaceOptions, Options, Server, ServerOptions, SharedCounters};
use driver::RegionDevice;
use gpu::{Gpu, Kernel};
use mem::{AddressMap, Region};
use sidecore::gpu_queues::{AgentPlacement, DmaBuffer, GpuQueues, Placement, QueueOptions};
use storage::faults::{FaultScript, Injector};
use storage::{MemoryStorage, NvmeOptions, NvmeStorage, pattern};
use zerocopy::{FromZeros, IntoBytes};

use crate::bed::{read, shape, sum};
use crate::stuck::{self, Standing};

/// Bytes of the namespace.
const SOURCE_BYTES: usize = 1 << 20;
/// A command's limit on a real GPU, at most.
const LIMIT_REAL: Duration = Duration::from_secs(1);
/// Opening the pairs may take so long.
const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// A drive, and one pair of its queues that lanes drive. Fields are dropped in order.
struct Bed {
    queues: GpuQueues,
    _drive: NvmeStorage,
    _server: Server,
    counters: SharedCounters,
    disk: Region,
    gpu: Arc<dyn Gpu>,
    cq: Placement,
    about: String,
}

impl Bed {
    fn new(gpu: &Arc<dyn Gpu>, options: &QueueOptions, faults: &str) -> Self {
        // Lanes of the simulated GPU share their CPUs with all else.
        let simulated = gpu.describe().simulated;
        let limit = if simulated { options.limit } else { options.limit.min(LIMIT_REAL) };
        let options = &QueueOptions { limit, ..options.clone() };
        let storage = MemoryStorage::new(SOURCE_BYTES).unwrap();
        let disk = storage.region().clone();
        pattern::fill_region(&disk, 0, SOURCE_BYTES, 0, 0);
        let script: FaultScript = faults.parse().unwrap();
        let mut namespace = NamespaceOptions::new(Arc::new(storage));
        namespace.faults = Some(Arc::new(Injector::new(&script, 512)));
        let map = Arc::new(AddressMap::new());
        // Where lanes reach doorbells: in pinned host memory.
        let registers = gpu.allocate_host(0x2000).unwrap();
        let controller = Controller::with_bar(
            Options::new(vec![namespace]),
            Arc::clone(&map),
            registers.clone(),
        );
        let controller = controller.unwrap();
        let counters = controller.counters();
        let server = Server::start(vec![controller], ServerOptions::default()).unwrap();
        let device = Arc::new(RegionDevice::new(registers, map));
        let drive = NvmeStorage::wait_open(device, &NvmeOptions::default()).unwrap();
        let agents = AgentPlacement { agents: 1, first_cpu: None, shared: true };
        let drives = [drive.driver().clone()];
        let queues = GpuQueues::start(gpu, &drives, 1, options, agents, None, OPEN_LIMIT).unwrap();
        let (gpu, cq) = (Arc::clone(gpu), options.cq);
        let about = format!("{options:?}, faults \"{faults}\"");
        Self { queues, _drive: drive, _server: server, counters, disk, gpu, cq, about }
    }

    /// Memory that the drive reaches.
    fn buffer(&self, bytes: u64) -> DmaBuffer {
        self.queues.buffer(&self.gpu.allocate_device(bytes).unwrap()).unwrap()
    }

    /// Two blocks of 64 lanes; what all of them saw.
    fn run(&self, kernel: &Kernel, bytes: u32, batch: u32, rounds: u32) -> ProbeResult {
        let buffer = self.buffer(128 * u64::from(batch * bytes));
        self.run_in(kernel, &buffer, || {}, bytes, batch, rounds)
    }

    /// The same in a buffer, with something that is done just before the kernel.
    fn run_in(
        &self,
        kernel: &Kernel,
        buffer: &DmaBuffer,
        before: impl FnOnce(),
        bytes: u32,
        batch: u32,
        rounds: u32,
    ) -> ProbeResult {
        let shape = shape(2, 64);
        let mut results = vec![ProbeResult::new_zeroed(); 128];
        let memory = self.gpu.allocate_device(results.as_bytes().len() as u64).unwrap();
        let args = QueueProbeArgs {
            queue: self.queues.views()[0],
            buffer: buffer.view(),
            source_bytes: SOURCE_BYTES as u64,
            results: memory.address,
            patience_ns: 15_000_000_000,
            timeout_ns: 15_000_000_000,
            rounds,
            bytes,
            batch,
            seed: 7,
        };
        before();
        let mut launch = self.gpu.launch(kernel, shape, args.as_bytes()).unwrap();
        let [device, host] = &self.queues.memory()[0];
        let view = args.queue;
        let cq = match self.cq {
            Placement::Device => (device, view.cq - view.state),
            Placement::Host => (host, view.cq - host.address()),
        };
        let cq = (cq.0, usize::try_from(cq.1).unwrap());
        let standing = Standing { view: &view, device, cq };
        let at = || {
            let host = self.queues.counters_now();
            format!("{}\n{}\nhost: {host:?}", self.about, standing.tell())
        };
        stuck::finish(&self.gpu, launch.as_mut(), kernel.name, at, || standing.close());
        read(&self.gpu, &memory, results.as_mut_bytes());
        sum(&results)
    }
}

fn both() -> [(QueueOptions, [Kernel; 3]); 2] {
    let bam = [kernels::BAM_READ, kernels::BAM_BATCH, kernels::BAM_WRITE];
    let copilot = [kernels::COPILOT_READ, kernels::COPILOT_BATCH, kernels::COPILOT_WRITE];
    [(QueueOptions::bam(), bam), (QueueOptions::copilot(), copilot)]
}

pub fn lanes_move_every_byte_over_queue_pairs_in_all_placements(gpu: &Arc<dyn Gpu>) {
    for (options, [reads, _, writes]) in both() {
        for (sq, cq) in [
            (Placement::Device, options.cq),
            (Placement::Host, Placement::Host),
            (Placement::Host, Placement::Device),
        ] {
            let options = QueueOptions { depth: 64, sq, cq, ..options.clone() };
            let bed = Bed::new(gpu, &options, "");
            let at = format!("{}, SQ {sq:?}, CQ {cq:?}", reads.name);
            let seen = bed.run(&reads, 4096, 1, 4);
            assert_eq!((seen.failed, seen.wrong_bytes, seen.status), (0, 0, 0), "{at}: {seen:?}");
            assert!(seen.succeeded > 300, "{at}: {seen:?}");
            let seen = bed.run(&writes, 4096, 1, 2);
            assert_eq!((seen.failed, seen.wrong_bytes, seen.status), (0, 0, 0), "{at}: {seen:?}");
            assert_eq!(seen.succeeded, 128 * 2 * 3, "{at}: {seen:?}");
            // At the drive as well: the last round's generation.
            pattern::check_region(&bed.disk, 0, 128 * 4096, 0, 8).expect(&at);
        }
    }
}

pub fn more_in_flight_than_queues_are_deep(gpu: &Arc<dyn Gpu>) {
    for (options, [_, batches, _]) in both() {
        for depth in [2, 4, 16] {
            let options = QueueOptions { depth, command_ids: 2048, ..options.clone() };
            let bed = Bed::new(gpu, &options, "");
            let seen = bed.run(&batches, 512, 8, 2);
            let at = format!("{}, depth {depth}: {seen:?}", batches.name);
            assert_eq!((seen.failed, seen.wrong_bytes, seen.status), (0, 0, 0), "{at}");
            assert_eq!(seen.succeeded, 128 * 8 * 2, "{at}");
            assert!(bed.counters.read().io_commands >= 128 * 8 * 2, "{at}");
        }
    }
}

pub fn faults_of_the_drive_reach_the_lanes_that_they_hit(gpu: &Arc<dyn Gpu>) {
    for (options, [_, batches, _]) in both() {
        let ios = 128 * 4 * 2;
        for (script, failed, wrong) in [
            ("error:n=20,status=2/81", 20, 0),
            ("late:ms=20,n=20", 0, 0),
            ("duplicate:n=20", 0, 0),
            ("flip:n=20", 0, 20),
            ("lost:n=3", 3, 0),
        ] {
            let limit = Duration::from_millis(500);
            let options = QueueOptions { depth: 64, limit, ..options.clone() };
            let bed = Bed::new(gpu, &options, script);
            let seen = bed.run(&batches, 512, 4, 2);
            let at = format!("{}, {script}: {seen:?}", batches.name);
            assert_eq!((seen.failed, seen.wrong_bytes), (failed, wrong), "{at}");
            assert_eq!(seen.succeeded, ios - failed, "{at}");
        }
    }
}

/// The same lanes again and again, twice as many as the queue holds: each I/O meets queues that are full,
/// others that drain, and lanes of its own warp that are elsewhere.
pub fn lanes_write_over_a_queue_that_is_always_full(gpu: &Arc<dyn Gpu>) {
    let rounds = if gpu.describe().simulated { 4 } else { 300 };
    for (options, [_, _, writes]) in both() {
        for (sq, cq) in [(Placement::Device, options.cq), (Placement::Host, Placement::Host)] {
            let options = QueueOptions { depth: 64, sq, cq, ..options.clone() };
            let bed = Bed::new(gpu, &options, "");
            let seen = bed.run(&writes, 4096, 1, rounds);
            let at = format!("{}: {seen:?}", bed.about);
            assert_eq!((seen.failed, seen.wrong_bytes, seen.status), (0, 0, 0), "{at}");
            assert_eq!(seen.succeeded, 128 * rounds * 3, "{at}");
            let last = u64::from(7 + rounds - 1);
            pattern::check_region(&bed.disk, 0, 128 * 4096, 0, last).expect(&at);
        }
    }
}

/// Memory that lanes of a kernel have used goes just before the next kernel: the drive, which may not have
/// heard of it yet, must not be who gives it back, since that waits for the kernel.
pub fn memory_given_back_before_a_kernel_holds_nobody_up(gpu: &Arc<dyn Gpu>) {
    let turns = if gpu.describe().simulated { 4 } else { 200 };
    for (options, [reads, ..]) in both() {
        let bed = Bed::new(gpu, &QueueOptions { depth: 64, ..options }, "");
        let buffer = bed.buffer(128 * 4096);
        for turn in 0..turns {
            let other = bed.buffer(1 << 20);
            let seen = bed.run_in(&reads, &buffer, || drop(other), 4096, 1, 1);
            let at = format!("turn {turn}, {}: {seen:?}", bed.about);
            assert_eq!((seen.failed, seen.wrong_bytes, seen.status), (0, 0, 0), "{at}");
        }
    }
}
