//! Paths `bam` and `copilot`: lanes drive NVMe queue pairs of the software drive themselves; lanes
//! or CPU agents find the completions.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::bench::{QueueBenchArgs, QueueBenchTotals};
use abi::queue::DmaBufferView;
use anyhow::{Context, Result, bail, ensure};
use gpu::{DeviceMemory, Gpu, Kernel, KernelFacts, LaunchShape};
use sidecore::gpu_queues::{
    AgentPlacement, DmaBuffer, Flip, GpuQueues, LaneCounters, Placement, Polling, QueueCounters,
    QueueOptions,
};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::args::{LimitArgs, QueueMemory, WaitMode};
use crate::bench::cpu;
use crate::bench::drive::SoftwareDrive;
use crate::bench::kernel_work::{self, KernelWork, LANES, Parts, check_warps};
use crate::bench::round::{Bill, Description, Destination, Round, RoundOutcome, Runner};

/// How long the drive may take to open all pairs.
const OPEN_LIMIT: Duration = Duration::from_secs(20);
/// How long agents may take to publish what they counted, after the kernel has ended.
const SETTLE: Duration = Duration::from_millis(100);
/// Transfers beyond so many bytes need a PRP list.
const TWO_PAGES: u32 = 8192;

/// How the path is opened.
pub struct LaneRunnerOptions {
    /// The drive.
    pub drive: Rc<SoftwareDrive>,
    /// The GPU.
    pub gpu: Arc<dyn Gpu>,
    /// The benchmark kernel.
    pub kernel: Kernel,
    /// Who drains completion queues.
    pub polling: Polling,
    /// Where submission entries lie.
    pub sq: QueueMemory,
    /// Where completion entries lie.
    pub cq: QueueMemory,
    /// Whether each read is followed by one of a block.
    pub second_read: bool,
    /// Queue pairs.
    pub queues: u32,
    /// Entries of each queue.
    pub depth: u32,
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
    /// CPU agents, if said.
    pub agents: Option<u32>,
    /// Limits of the command.
    pub limits: LimitArgs,
}

/// Queue pairs, a kernel, and who cares for them.
pub struct LaneRunner {
    // Pairs go before the drive that serves them.
    queues: GpuQueues,
    buffer: DmaBuffer,
    destination: Destination,
    work: KernelWork,
    options: LaneRunnerOptions,
    agents: u32,
    kernel: Option<KernelFacts>,
    bill: Bill,
}

impl LaneRunner {
    /// Makes the pairs, and waits until the drive serves them.
    ///
    /// # Errors
    /// Impossible options, no memory, no threads, a drive that takes no more queues.
    pub fn open(options: LaneRunnerOptions) -> Result<Self> {
        check_warps(options.warps, options.wait)?;
        ensure!(
            options.depth.is_power_of_two() && (2..=1 << 15).contains(&options.depth),
            "--depth {}: a queue's depth is a power of two from 2 to 32768",
            options.depth
        );
        let threads = options.wait.warps(options.warps) * LANES;
        let kernel = options.gpu.kernel_facts(&options.kernel, threads)?;
        let agents = agents(&options)?;
        let placement = AgentPlacement {
            agents,
            first_cpu: options.limits.pin,
            shared: agents >= usable_cpus(),
        };
        let queues = GpuQueues::start(
            &options.gpu,
            options.drive.drivers(),
            options.queues,
            &queue_options(&options),
            placement,
            kernel_work::statistics_page().as_ref(),
            OPEN_LIMIT,
        )
        .with_context(|| format!("{} queue pairs of {}", options.queues, options.depth))?;
        let destination = Destination::device(&options.gpu, options.destination_bytes)?;
        let Destination::Device(device) = &destination else { bail!("lanes need a GPU") };
        let buffer = queues.buffer(&device.memory)?;
        let ios = options.destination_bytes / options.io_bytes as usize;
        let work = KernelWork::new(&options.gpu, 0, size_of::<QueueBenchTotals>(), ios)?;
        Ok(Self {
            queues,
            buffer,
            destination,
            work,
            options,
            agents,
            kernel,
            bill: Bill::default(),
        })
    }

    fn arguments(&self, round: &Round, parts: Parts) -> QueueBenchArgs {
        let DmaBufferView { address, bus, bytes } = self.buffer.view();
        let base = round.base as u64;
        QueueBenchArgs {
            queues: self.queues.views_address(),
            plan: parts.plan,
            edges: parts.edges,
            results: parts.results,
            totals: parts.totals,
            ios: round.plan.len() as u64,
            buffer: DmaBufferView {
                address: address + base,
                bus: bus + base,
                bytes: bytes.saturating_sub(base),
            },
            io_bytes: round.io_bytes,
            queue_count: self.options.queues,
            batch: self.options.batch,
            flags: kernel_work::flags(round),
        }
    }

    fn launch(&mut self, round: &Round, parts: Parts) -> Result<f64> {
        let arguments = self.arguments(round, parts);
        let in_flight_max = self.in_flight_max();
        let o = &self.options;
        let shape = LaunchShape {
            blocks: o.sms,
            threads_per_block: o.wait.warps(o.warps) * LANES,
            shared_bytes: 0,
        };
        // A command may be sent a second time after a new epoch, and then have its limit again.
        let limit = kernel_work::bound(o.limit * 4, round.plan.len(), in_flight_max);
        let bytes = arguments.as_bytes();
        kernel_work::launch(&o.gpu, &o.kernel, shape, bytes, limit, &mut self.bill)
    }

    /// CPU seconds of agents alone, as last published.
    pub fn agent_cpu_seconds(&self) -> f64 {
        let counters = self.queues.agent_counters();
        let ns: u64 = counters.iter().map(|counters| counters.cpu_ns).sum();
        Duration::from_nanos(ns).as_secs_f64()
    }

    /// Now, on the clock of flips.
    pub fn elapsed_ns(&self) -> u64 {
        self.queues.elapsed_ns()
    }

    /// Every change of hands so far.
    pub fn flips(&self) -> Vec<Flip> {
        self.queues.flips()
    }

    /// Sets how many warps a block has from now on, at most as many as when opened.
    pub fn set_warps(&mut self, warps: u32) {
        self.options.warps = warps;
    }

    /// What lanes counted, all pairs together.
    ///
    /// # Errors
    /// The copy engine's.
    pub fn lanes_counted(&self) -> Result<LaneCounters> {
        let mut sum = LaneCounters::default();
        for one in self.queues.lane_counters()? {
            sum.sq_doorbells += one.sq_doorbells;
            sum.cq_doorbells += one.cq_doorbells;
            sum.drained += one.drained;
            sum.fence_ios += one.fence_ios;
            sum.strays += one.strays;
        }
        Ok(sum)
    }

    /// What the host counted, all pairs together.
    pub fn host_counted(&self) -> QueueCounters {
        let mut sum = QueueCounters::default();
        for one in self.queues.counters_now() {
            sum.add(&one);
        }
        sum
    }

    /// Waits until the drive has counted all that it fetched and agents what they did.
    fn settle(&self, before: f64) {
        let start = Instant::now();
        while self.agents > 0 && self.agent_cpu_seconds() <= before && start.elapsed() < SETTLE {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Has a kernel put a round's data there, or compare it, where the round asks for that.
    fn data(&self, round: &Round, kernel: &Kernel) -> Result<()> {
        if !round.on_device {
            return Ok(());
        }
        let address = self.buffer.view().address + round.base as u64;
        self.work.data(&self.options.gpu, kernel, round, address)
    }

    fn lanes(&self) -> u32 {
        self.options.sms * self.options.warps * LANES
    }
}

fn usable_cpus() -> u32 {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u32::try_from(cpus).unwrap_or(u32::MAX)
}

/// As many agents as asked for, at most one a pair; none where lanes drain the queues.
fn agents(options: &LaneRunnerOptions) -> Result<u32> {
    if options.polling == Polling::Gpu {
        return Ok(0);
    }
    let cpus = options.limits.cpu_max.map_or(usable_cpus(), |most| most.min(usable_cpus()));
    let wanted = options.agents.unwrap_or(cpus.saturating_sub(1).max(1));
    ensure!(
        options.agents.is_none() || options.limits.cpu_max.is_none_or(|most| wanted <= most),
        "--side-cores {wanted} is more than --cpu-max"
    );
    Ok(wanted.min(options.queues))
}

fn queue_options(options: &LaneRunnerOptions) -> QueueOptions {
    let placement = |memory| match memory {
        QueueMemory::Device => Placement::Device,
        QueueMemory::Host => Placement::Host,
    };
    // Each command in flight has an id of its own; more of them let lanes ask ahead of a full queue.
    let blocks = options.sms.div_ceil(options.queues);
    let asked = blocks.saturating_mul(options.warps * LANES * options.batch);
    let command_ids = asked.max(options.depth).min(1 << 16).next_power_of_two().min(1 << 16);
    QueueOptions {
        depth: options.depth,
        command_ids,
        sq: placement(options.sq),
        cq: placement(options.cq),
        polling: options.polling,
        second_read: options.second_read,
        limit: options.limit,
        prp_lists: options.io_bytes > TWO_PAGES,
        ..QueueOptions::bam()
    }
}

impl Runner for LaneRunner {
    fn run(&mut self, round: &Arc<Round>) -> Result<RoundOutcome> {
        let ios = round.plan.len();
        let none = QueueBenchTotals::new_zeroed();
        let parts = self.work.prepare(round, none.as_bytes())?;
        self.data(round, &kernels::BENCH_PREPARE)?;
        let (path_before, agents_before) = (self.queues.cpu_seconds(), self.agent_cpu_seconds());
        let device_before = self.options.drive.cpu_seconds();
        let launcher_before = cpu::thread_seconds();
        let seconds = self.launch(round, parts)?;
        let launcher = cpu::thread_seconds() - launcher_before;
        self.data(round, &kernels::BENCH_CHECK)?;
        self.settle(agents_before);
        self.bill.cpu_path_s += self.queues.cpu_seconds() - path_before + launcher;
        self.bill.cpu_device_s += self.options.drive.cpu_seconds() - device_before;
        let mut totals = [0; size_of::<QueueBenchTotals>()];
        let results = self.work.collect(ios, &mut totals)?;
        let totals = QueueBenchTotals::read_from_bytes(&totals).ok();
        let totals = totals.context("totals of their size")?;
        self.bill.completions_polled_gpu += totals.polled_by_gpu;
        self.bill.completions_polled_cpu += totals.polled_by_cpu;
        self.bill.request_bytes += totals.request_bytes;
        self.bill.polls += totals.polls;
        self.bill.bytes_direct += moved(&results, round.io_bytes);
        self.bill.in_flight_ns += results.iter().map(|result| result.latency_ns).sum::<u64>();
        let lanes = self.lanes_counted()?;
        self.bill.doorbells_gpu = lanes.sq_doorbells + lanes.cq_doorbells;
        self.bill.fence_ios = lanes.fence_ios;
        Ok(RoundOutcome { results, seconds })
    }

    fn bill(&self) -> Bill {
        let commands = self.options.drive.io_commands();
        Bill {
            doorbells_cpu: self.host_counted().cpu_doorbells,
            ios_at_device: commands.saturating_sub(self.bill.fence_ios),
            commands_at_controller: commands,
            ..self.bill
        }
    }

    fn describe(&self) -> Description {
        let o = &self.options;
        let host = self.host_counted();
        let mut explain = format!(
            "lanes write NVMe commands; SQ in {} memory, CQ in {} memory; the drive reads and \
             writes GPU memory itself",
            o.sq.name(),
            o.cq.name()
        );
        if host.epochs > 0 || host.timed_out > 0 {
            explain = format!(
                "{explain}; {} aborts, {} commands ended by the host, {} new epochs",
                host.aborts, host.timed_out, host.epochs
            );
        }
        Description {
            route: "direct".to_owned(),
            gpu: o.gpu.describe().name,
            drive: o.drive.name().to_owned(),
            explain,
            queues: o.queues,
            depth: o.depth,
            side_cores: self.agents,
            sms: o.sms,
            lanes: self.lanes(),
            warps: o.warps,
            sq: o.sq.name(),
            cq: o.cq.name(),
            wait: if o.polling == Polling::Gpu { "queue" } else { o.wait.name() },
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

/// Payload bytes of the I/Os that ended well.
fn moved(results: &[abi::bench::BenchResult], io_bytes: u32) -> u64 {
    let good = results.iter().filter(|result| result.status == abi::status::SUCCESS).count();
    good as u64 * u64::from(io_bytes)
}
