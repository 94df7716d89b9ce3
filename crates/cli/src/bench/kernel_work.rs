//! The memory of a benchmark kernel, and its launch: the same for every path on which lanes ask.

use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::bench::{BENCH_ASLEEP, BENCH_CHECK_EDGES, BenchEdges, BenchIo, BenchResult};
use anyhow::{Result, bail, ensure};
use gpu::{DeviceMemory, Gpu, Kernel, LaunchShape};
use zerocopy::IntoBytes;

use crate::args::WaitMode;
use crate::bench::round::{Bill, Destination, Round};
use crate::interrupt;

/// Lanes of a warp.
pub const LANES: u32 = 32;
/// Threads of a block at most.
const BLOCK_THREADS_MAX: u32 = 1024;
/// How long a round's data may take to be put there or compared.
const DATA_LIMIT: Duration = Duration::from_secs(60);
/// What a result says before its lane has come to it.
const UNSET: BenchResult =
    BenchResult { latency_ns: 0, status: abi::status::NOT_SUBMITTED, flags: 0, detail: 0 };

/// Refuses blocks that no SM can hold.
///
/// # Errors
/// Too many warps.
pub fn check_warps(warps: u32, wait: WaitMode) -> Result<()> {
    let most = BLOCK_THREADS_MAX / LANES;
    ensure!(
        wait.warps(warps) <= most,
        "--warps {warps}: an SM's block has at most {most} warps{}",
        if wait == WaitMode::Agent { ", and one of them is the agent" } else { "" }
    );
    Ok(())
}

/// Where others may watch the run; where no page can be made, the run counts all the same.
pub fn statistics_page() -> Option<Arc<stats::Page>> {
    let page = stats::Page::create().ok()?;
    if let Some(path) = page.path() {
        interrupt::note_made(path);
    }
    Some(Arc::new(page))
}

/// Device addresses of the parts.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// Views of rings or queue pairs.
    pub views: u64,
    /// What lanes count together.
    pub totals: u64,
    /// The plan.
    pub plan: u64,
    /// What edges must be; 0 where the round checks none.
    pub edges: u64,
    /// One result an I/O.
    pub results: u64,
}

/// Where the parts of the kernel's memory begin.
#[derive(Clone, Copy, Debug)]
struct Layout {
    totals: usize,
    plan: usize,
    edges: usize,
    results: usize,
    bytes: usize,
}

impl Layout {
    fn new(views_bytes: usize, totals_bytes: usize, ios: usize) -> Self {
        let line = |bytes: usize| bytes.next_multiple_of(128);
        let totals = line(views_bytes);
        let plan = totals + line(totals_bytes);
        let edges = plan + line(ios * size_of::<BenchIo>());
        let results = edges + line(ios * size_of::<BenchEdges>());
        let bytes = results + line(ios * size_of::<BenchResult>());
        Self { totals, plan, edges, results, bytes }
    }
}

/// Views, plan, edges, results and totals of a kernel.
pub struct KernelWork {
    memory: Destination,
    address: u64,
    layout: Layout,
}

impl KernelWork {
    /// Memory for rounds of at most `ios` I/Os.
    ///
    /// # Errors
    /// No memory.
    pub fn new(
        gpu: &Arc<dyn Gpu>,
        views_bytes: usize,
        totals_bytes: usize,
        ios: usize,
    ) -> Result<Self> {
        let layout = Layout::new(views_bytes, totals_bytes, ios);
        let memory = Destination::device(gpu, layout.bytes)?;
        let Destination::Device(device) = &memory else { bail!("a kernel needs a GPU") };
        Ok(Self { address: device.memory.address, memory, layout })
    }

    /// Puts the views there.
    ///
    /// # Errors
    /// The copy engine's.
    pub fn write_views(&mut self, views: &[u8]) -> Result<()> {
        self.memory.write(0, views)
    }

    /// Puts a round and fresh totals there; where everything lies.
    ///
    /// # Errors
    /// The copy engine's.
    pub fn prepare(&mut self, round: &Round, totals: &[u8]) -> Result<Parts> {
        let layout = self.layout;
        self.memory.write(layout.plan, round.plan.as_bytes())?;
        self.memory.write(layout.edges, round.edges.as_bytes())?;
        self.memory.write(layout.results, vec![UNSET; round.plan.len()].as_bytes())?;
        self.memory.write(layout.totals, totals)?;
        let at = |offset: usize| self.address + offset as u64;
        Ok(Parts {
            views: at(0),
            totals: at(layout.totals),
            plan: at(layout.plan),
            edges: if round.edges.is_empty() { 0 } else { at(layout.edges) },
            results: at(layout.results),
        })
    }

    /// Runs a kernel that puts a round's data there, or compares it; `address` is where I/O 0 has its
    /// place. The round's plan must be there.
    ///
    /// # Errors
    /// It did not end well.
    pub fn data(
        &self,
        gpu: &Arc<dyn Gpu>,
        kernel: &Kernel,
        round: &Round,
        address: u64,
    ) -> Result<()> {
        let at = |offset: usize| self.address + offset as u64;
        let arguments = [
            at(self.layout.plan),
            at(self.layout.results),
            address,
            round.plan.len() as u64,
            u64::from(round.io_bytes),
        ];
        let shape = match gpu.describe().simulated {
            true => LaunchShape { blocks: 2, threads_per_block: 32, shared_bytes: 0 },
            false => LaunchShape { blocks: 264, threads_per_block: 512, shared_bytes: 0 },
        };
        let mut nobodys = Bill::default();
        launch(gpu, kernel, shape, arguments.as_bytes(), DATA_LIMIT, &mut nobodys).map(|_| ())
    }

    /// The first word of the totals, which says which I/O is taken next.
    ///
    /// # Errors
    /// None that can be: it lies inside.
    pub fn ticket_word(&self) -> Result<DeviceMemory> {
        let Destination::Device(device) = &self.memory else { bail!("a kernel needs a GPU") };
        Ok(device.memory.slice(self.layout.totals as u64, 8)?)
    }

    /// What lanes have written.
    ///
    /// # Errors
    /// The copy engine's.
    pub fn collect(&mut self, ios: usize, totals: &mut [u8]) -> Result<Vec<BenchResult>> {
        let mut results = vec![UNSET; ios];
        self.memory.read(self.layout.results, results.as_mut_bytes())?;
        self.memory.read(self.layout.totals, totals)?;
        Ok(results)
    }
}

/// Flags of a launch for a round.
pub fn flags(round: &Round) -> u32 {
    let check = if round.edges.is_empty() { 0 } else { BENCH_CHECK_EDGES };
    check | if round.asleep { BENCH_ASLEEP } else { 0 }
}

/// How long a kernel may run that does `ios` I/Os, so many of them at once, each of which ends by
/// `limit`: lanes do them one after the other at worst.
pub fn bound(limit: Duration, ios: usize, in_flight_max: usize) -> Duration {
    let turns = u32::try_from(ios / in_flight_max.max(1) + 2).unwrap_or(u32::MAX);
    limit.saturating_mul(turns) + Duration::from_secs(30)
}

/// Launches a kernel and waits for its end; the seconds that it took.
///
/// # Errors
/// It did not end well, or not within `limit`.
pub fn launch(
    gpu: &Arc<dyn Gpu>,
    kernel: &Kernel,
    shape: LaunchShape,
    arguments: &[u8],
    limit: Duration,
    bill: &mut Bill,
) -> Result<f64> {
    let start = Instant::now();
    let mut launch = gpu.launch(kernel, shape, arguments)?;
    let ended = launch.wait(limit);
    let seconds = start.elapsed().as_secs_f64();
    bill.cpu_gpu_s += launch.simulation_cpu_seconds();
    match ended {
        Some(result) => result?,
        None => {
            launch.abort();
            bail!("the benchmark kernel did not end within {limit:?}");
        }
    }
    Ok(seconds)
}
