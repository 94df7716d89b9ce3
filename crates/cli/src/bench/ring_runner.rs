//! Path `ring`: lanes of a kernel ask, side cores answer; the host only plans and checks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::bench::{BenchArgs, BenchTotals};
use abi::ring::{BufferView, Id, RingView, SourceView};
use anyhow::{Context, Result, bail, ensure};
use gpu::{DeviceMemory, Gpu, GpuError, Keeper, Kernel, KernelFacts, LaunchShape};
use sidecore::{Engine, ReadRoute, Rights, Ring, RingConfig, RingCounters, WriteRoute};
use storage::Storage;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::args::{LimitArgs, OpName, RouteName, WaitMode};
use crate::bench::cpu;
use crate::bench::kernel_work::{self, KernelWork, LANES, Parts, check_warps};
use crate::bench::round::{Bill, Description, Destination, Round, RoundOutcome, Runner};

/// How long the rings may take to count what they did, after the kernel has ended.
const SETTLE: Duration = Duration::from_millis(500);

/// How the path is opened.
pub struct RingRunnerOptions {
    /// Where the data is.
    pub storage: Arc<dyn Storage>,
    /// The GPU.
    pub gpu: Arc<dyn Gpu>,
    /// The benchmark kernel.
    pub kernel: Kernel,
    /// How the payload goes.
    pub route: RouteName,
    /// What is asked for.
    pub op: OpName,
    /// Rings.
    pub rings: u32,
    /// Depth of a ring.
    pub depth: u32,
    /// Most requests of a ring in flight at the storage.
    pub storage_depth: u32,
    /// Blocks.
    pub sms: u32,
    /// Warps a block.
    pub warps: u32,
    /// I/Os that a lane has in flight.
    pub batch: u32,
    /// How lanes wait.
    pub wait: WaitMode,
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
    /// What holds the data, for the row.
    pub drive: String,
    /// Device memory to use as the destination; else it is allocated.
    pub device: Option<DeviceMemory>,
    /// Lanes a block, where they are fewer than a warp's.
    pub few_lanes: Option<u32>,
    /// CPU seconds of the emulated drive so far, where there is one.
    pub device_cpu_seconds: Box<dyn Fn() -> f64>,
}

impl RingRunnerOptions {
    fn destination(&self) -> Result<Destination> {
        let bytes = self.destination_bytes;
        match &self.device {
            Some(memory) => Destination::over(&self.gpu, memory.slice(0, bytes as u64)?),
            None => Destination::device(&self.gpu, bytes),
        }
    }

    fn threads_per_block(&self) -> u32 {
        self.few_lanes.unwrap_or(self.wait.warps(self.warps) * LANES)
    }
}

/// An engine, its rings and a kernel.
pub struct RingRunner {
    // Rings go before the engine that serves them.
    rings: Vec<Ring>,
    engine: Engine,
    /// Keeps the source within the lanes' reach; or why it is not.
    reach: Option<Result<Keeper, GpuError>>,
    options: RingRunnerOptions,
    destination: Destination,
    work: KernelWork,
    source: SourceView,
    buffer: BufferView,
    kernel: Option<KernelFacts>,
    bill: Bill,
    read_route: ReadRoute,
    write_route: WriteRoute,
    /// Why reads do not go through the window, where they were to.
    reason: Option<String>,
}

impl RingRunner {
    /// Starts side cores, registers data and memory, attaches the rings.
    ///
    /// # Errors
    /// Impossible options, no memory, no threads.
    pub fn open(options: RingRunnerOptions) -> Result<Self> {
        check_warps(options.warps, options.wait)?;
        ensure!(
            options.depth.is_power_of_two() && options.depth >= 2,
            "--depth {}: a ring's depth is a power of two from 2 up",
            options.depth
        );
        let threads = options.wait.warps(options.warps) * LANES;
        let kernel = options.gpu.kernel_facts(&options.kernel, threads)?;
        let reach = reach(&options);
        let engine = start_engine(&options)?;
        let writes = options.op != OpName::Read;
        let rights = if writes { Rights::READ_WRITE } else { Rights::READ };
        let source = engine.register_source(Arc::clone(&options.storage), rights)?.view();
        // The rings' words first: they need little of a small window, and gain most by it.
        let (mut routes, mut reason) = (routes(options.route), None);
        let mut rings = attach_rings(&engine, &options, routes)?;
        let destination = options.destination()?;
        let Destination::Device(device) = &destination else { bail!("the ring needs a GPU") };
        if let Some(why) = without_window(&options, &device.memory, routes.0)? {
            (routes.0, reason) = (ReadRoute::Pull, Some(why));
            rings.clear();
            rings = attach_rings(&engine, &options, routes)?;
        }
        let buffer = engine.register_buffer(device.memory.clone(), Rights::READ_WRITE)?.view();
        let ios = options.destination_bytes / options.io_bytes as usize;
        let views_bytes = options.rings as usize * size_of::<RingView>();
        let mut work = KernelWork::new(&options.gpu, views_bytes, size_of::<BenchTotals>(), ios)?;
        let views: Vec<RingView> = rings.iter().map(Ring::view).collect();
        work.write_views(views.as_bytes())?;
        Ok(Self {
            rings,
            engine,
            reach,
            reason,
            destination,
            work,
            source,
            buffer,
            kernel,
            bill: Bill::default(),
            read_route: routes.0,
            write_route: routes.1,
            options,
        })
    }

    /// The part of the destination that a round uses, as a buffer of its own where it is not all.
    fn buffer_of(&self, round: &Round) -> Result<BufferView> {
        let Destination::Device(device) = &self.destination else { bail!("the ring needs a GPU") };
        if round.base == 0 {
            return Ok(self.buffer);
        }
        let base = round.base as u64;
        let part = device.memory.slice(base, device.memory.bytes - base)?;
        Ok(self.engine.register_buffer(part, Rights::READ_WRITE)?.view())
    }

    fn arguments(&self, round: &Round, parts: Parts, buffer: BufferView) -> BenchArgs {
        BenchArgs {
            rings: parts.views,
            plan: parts.plan,
            edges: parts.edges,
            results: parts.results,
            totals: parts.totals,
            ios: round.plan.len() as u64,
            source: self.source,
            buffer,
            io_bytes: round.io_bytes,
            ring_count: self.options.rings,
            batch: self.options.batch,
            flags: kernel_work::flags(round),
            limit_ms: 0,
            reserved: 0,
        }
    }

    /// Launches the kernel and waits for its end; the seconds that it took.
    fn launch(&mut self, round: &Round, parts: Parts) -> Result<f64> {
        let o = &self.options;
        let threads_per_block = o.threads_per_block();
        let shape = LaunchShape { blocks: o.sms, threads_per_block, shared_bytes: 0 };
        let buffer = self.buffer_of(round)?;
        let arguments = self.arguments(round, parts, buffer);
        let limit = kernel_work::bound(o.limit, round.plan.len(), self.in_flight_max());
        let bytes = arguments.as_bytes();
        let seconds = kernel_work::launch(&o.gpu, &o.kernel, shape, bytes, limit, &mut self.bill)?;
        if buffer.id != self.buffer.id {
            // The kernel has ended: nothing names it any more.
            let _retirement = self.engine.deregister_buffer(Id::from_bits(buffer.id))?;
        }
        Ok(seconds)
    }

    /// CPU seconds of side cores and supervisor so far.
    pub fn engine_cpu_seconds(&self) -> f64 {
        self.engine.cpu_seconds()
    }

    /// Has a kernel put a round's data there, or compare it, where the round asks for that.
    fn data(&self, round: &Round, kernel: &Kernel) -> Result<()> {
        let Destination::Device(device) = &self.destination else { bail!("the ring needs a GPU") };
        let address = device.memory.address + round.base as u64;
        if !round.on_device {
            return Ok(());
        }
        self.work.data(&self.options.gpu, kernel, round, address)
    }

    fn lanes(&self) -> u32 {
        let o = &self.options;
        o.sms * o.few_lanes.unwrap_or(o.warps * LANES)
    }

    fn ring_counters(&self) -> RingCounters {
        let mut sum = RingCounters::default();
        for ring in &self.rings {
            sum.add(&ring.counters());
        }
        sum
    }

    /// Refuses a route `direct` that a drive did not take.
    fn check_direct(&self) -> Result<()> {
        let detour = self.ring_counters().window_bytes;
        ensure!(
            self.read_route != ReadRoute::Direct || detour == 0,
            "--route direct: {detour} bytes went through the window instead: {} does not store to device \
             memory itself; take --drive software, or another route",
            self.options.storage.explain()
        );
        Ok(())
    }

    /// Waits until the rings have counted what they did.
    fn settle(&self, completions: u64) {
        let start = Instant::now();
        while self.ring_counters().completions < completions && start.elapsed() < SETTLE {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

fn start_engine(options: &RingRunnerOptions) -> Result<Engine> {
    let mut builder =
        Engine::builder(Arc::clone(&options.gpu)).pinned_max(options.limits.pinned_max);
    if let Some(count) = options.side_cores {
        builder = builder.side_cores(count);
    }
    if let Some(cpus) = options.limits.cpu_max {
        builder = builder.cpu_max(cpus);
    }
    if let Some(cpu) = options.limits.pin {
        builder = builder.pin_from(cpu);
    }
    if let Some(page) = kernel_work::statistics_page() {
        builder = builder.stats(page);
    }
    Ok(builder.start()?)
}

/// Why reads are pulled, where nobody said how they go and there is no window to their destination.
fn without_window(
    options: &RingRunnerOptions,
    memory: &DeviceMemory,
    route: ReadRoute,
) -> Result<Option<String>> {
    if !matches!(route, ReadRoute::Direct | ReadRoute::Window) || memory.window.is_some() {
        return Ok(None);
    }
    let why = options.gpu.no_window_for(memory.bytes).unwrap_or_else(|| "unknown".to_owned());
    let named = [RouteName::Direct, RouteName::Window].contains(&options.route);
    ensure!(!named, "--route {}: {why}", options.route.name());
    Ok(Some(why))
}

/// Registers what the source lends, so that lanes can load it: only route `pull` has them do so.
fn reach(options: &RingRunnerOptions) -> Option<Result<Keeper, GpuError>> {
    let lent = options.storage.lent().filter(|_| options.route == RouteName::Pull)?;
    Some(options.gpu.register_host(&lent))
}

/// Makes the rings, served from now on.
fn attach_rings(
    engine: &Engine,
    o: &RingRunnerOptions,
    (read_route, write_route): (ReadRoute, WriteRoute),
) -> Result<Vec<Ring>> {
    let records = o.sms * o.warps * LANES * o.batch;
    let config = RingConfig {
        depth: o.depth,
        records,
        staging_stride: o.io_bytes,
        read_route,
        write_route,
        limit: o.limit,
        storage_depth: records.min(o.storage_depth),
        ..RingConfig::default()
    };
    let one = |_| {
        engine.create_ring(config.clone()).with_context(|| {
            format!(
                "a ring of {records} records with {} bytes of staging each (see --sms, --warps, \
                 --batch, --io-size, --pinned-max)",
                o.io_bytes
            )
        })
    };
    (0..o.rings).map(one).collect()
}

fn routes(route: RouteName) -> (ReadRoute, WriteRoute) {
    match route {
        RouteName::Bounce => (ReadRoute::Bounce, WriteRoute::Bounce),
        RouteName::Pull => (ReadRoute::Pull, WriteRoute::Push),
        RouteName::Direct => (ReadRoute::Direct, WriteRoute::Push),
        RouteName::Auto | RouteName::Push | RouteName::Window => {
            (ReadRoute::Window, WriteRoute::Push)
        }
    }
}

impl Runner for RingRunner {
    fn run(&mut self, round: &Arc<Round>) -> Result<RoundOutcome> {
        let ios = round.plan.len();
        let none = BenchTotals::new_zeroed();
        let parts = self.work.prepare(round, none.as_bytes())?;
        self.data(round, &kernels::BENCH_PREPARE)?;
        let before = self.ring_counters();
        let engine_before = self.engine.cpu_seconds();
        let device_before = (self.options.device_cpu_seconds)();
        let launcher_before = cpu::thread_seconds();
        let seconds = self.launch(round, parts)?;
        let launcher = cpu::thread_seconds() - launcher_before;
        self.data(round, &kernels::BENCH_CHECK)?;
        let mut totals = [0; size_of::<BenchTotals>()];
        let results = self.work.collect(ios, &mut totals)?;
        let totals = BenchTotals::read_from_bytes(&totals).ok().context("totals of their size")?;
        self.settle(before.completions + totals.completions_polled);
        self.check_direct()?;
        self.bill.cpu_path_s += self.engine.cpu_seconds() - engine_before + launcher;
        self.bill.cpu_device_s += (self.options.device_cpu_seconds)() - device_before;
        self.bill.completions_polled_gpu += totals.completions_polled;
        self.bill.polls += totals.polls;
        self.bill.doorbells_gpu += totals.doorbells;
        self.bill.in_flight_ns += results.iter().map(|result| result.latency_ns).sum::<u64>();
        Ok(RoundOutcome { results, seconds })
    }

    fn bill(&self) -> Bill {
        let counters = self.ring_counters();
        Bill {
            ios_at_device: counters.ios_at_device,
            syscalls: counters.syscalls,
            doorbells_cpu: counters.cpu_doorbells,
            completions_polled_cpu: counters.completions_polled,
            request_bytes: counters.request_bytes,
            bytes_bounce: counters.bounce_bytes,
            bytes_direct: counters.direct_bytes,
            bytes_pull: counters.pull_bytes,
            bytes_push: counters.push_bytes,
            bytes_window: counters.window_bytes,
            ..self.bill
        }
    }

    fn describe(&self) -> Description {
        let o = &self.options;
        let (read, write) = (self.read_route.route().name(), self.write_route.route().name());
        let route = match o.op {
            OpName::Read => read.to_owned(),
            OpName::Write => write.to_owned(),
            OpName::Mix if read == write => read.to_owned(),
            OpName::Mix => format!("{read}+{write}"),
        };
        let complaints: Vec<String> = self.rings.iter().flat_map(Ring::complaints).collect();
        let mut explain = o.storage.explain();
        if let Some(complaint) = complaints.first() {
            explain = format!("{explain}; {complaint}");
        }
        if let Some(reason) = &self.reason {
            explain.push_str(&format!("; pull, since there is no window: {reason}"));
        }
        match &self.reach {
            Some(Ok(_)) => explain.push_str("; registered: lanes load it themselves"),
            Some(Err(why)) => explain.push_str(&format!("; not in the lanes' reach: {why}")),
            None => {}
        }
        Description {
            route,
            gpu: o.gpu.describe().name,
            drive: o.drive.clone(),
            explain,
            queues: o.rings,
            depth: o.depth,
            side_cores: self.engine.side_cores(),
            sms: o.sms,
            lanes: self.lanes(),
            warps: o.warps,
            wait: o.wait.name(),
            polling_warps: o.wait.polling_warps(o.sms, o.warps),
            kernel: self.kernel,
            pci: o.gpu.pci(),
            ..Description::default()
        }
    }

    fn ticket_word(&self) -> Option<DeviceMemory> {
        self.work.ticket_word().ok()
    }

    fn destination(&mut self) -> &mut Destination {
        &mut self.destination
    }

    fn in_flight_max(&self) -> usize {
        (self.lanes() * self.options.batch) as usize
    }
}
