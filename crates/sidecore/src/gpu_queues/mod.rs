//! Queue pairs that GPU lanes drive: the host side of the paths `bam` and `copilot`.
//!
//! ```text
//! lanes --SQ entry, doorbell--> drive --CQ entry--> lanes                       bam
//!                                     `--CQ entry--> Agent --word--> lanes      copilot
//! Recovery: opens the pairs, hears lanes' complaints, aborts, deletes, opens anew
//! ```
//!
//! [`GpuQueues::create_stepped`] makes a set of pairs over one drive or several and hands out who
//! works for them ([`Agent`]s, one [`Recovery`]) to be stepped; [`GpuQueues::start`] runs them in
//! threads. The structures that lanes see, and the rules by which both sides use them, are
//! `abi::queue`.
//!
//! Where this departs from the published systems: completion is a word in the lane's memory, not a
//! hardware barrier, which a CPU cannot signal; a status reaches the caller; every wait is bounded;
//! and agents take several entries of a queue in one pass.

mod agent;
mod copoll;
mod counters;
mod drain;
mod memory;
mod options;
mod pair;
mod recovery;
mod threads;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use abi::queue::{DmaBufferView, QueuePairView};
use driver::{Driver, Mapping};
use gpu::{DeviceMemory, Gpu};
use mem::{Region, fence_payload};
use stats::Page;

use crate::error::EngineError;
use copoll::FlipLog;
use counters::SharedAgentCounters;
use memory::SetMemory;
use pair::Pair;
use threads::Threads;

pub use agent::{Agent, AgentProgress};
pub use copoll::{CopollOptions, Flip, FlipReason, Owner};
pub use counters::{AgentCounters, QueueCounters};
pub use memory::LaneCounters;
pub use options::{Placement, Polling, QueueOptions};
pub use pair::PairState;
pub use recovery::{Recovery, RecoveryProgress};
pub use threads::AgentPlacement;

/// Device memory that lanes and drives reach; kept reachable until it is dropped.
#[derive(Clone, Debug)]
pub struct DmaBuffer {
    view: DmaBufferView,
    memory: DeviceMemory,
    _mappings: Vec<Arc<Mapping>>,
}

impl DmaBuffer {
    /// What kernels are told.
    pub fn view(&self) -> DmaBufferView {
        self.view
    }

    /// The memory.
    pub fn memory(&self) -> &DeviceMemory {
        &self.memory
    }
}

/// A set of queue pairs. Dropping it ends its threads; the drives then forget the pairs.
pub struct GpuQueues {
    pairs: Vec<Arc<Pair>>,
    drivers: Vec<Driver>,
    views: DeviceMemory,
    flips: Arc<FlipLog>,
    agents: Vec<Arc<SharedAgentCounters>>,
    threads: Option<Threads>,
}

/// A set whose agents and recovery are stepped by hand.
pub struct SteppedQueues {
    /// The set.
    pub queues: GpuQueues,
    /// Its agents; none where lanes drain the completion queues.
    pub agents: Vec<Agent>,
    /// Opens the pairs, and cares for them.
    pub recovery: Recovery,
}

impl GpuQueues {
    /// Makes `count` pairs, dealt to the drives in turn; they open as recovery is stepped. Each agent
    /// gets neighbouring pairs.
    ///
    /// # Errors
    /// `Misuse` for impossible options, no drive, no pair, or agents where they are not wanted (or
    /// none where they are), `Drive` where one takes no more queues, `Unsupported`, `Gpu`.
    pub fn create_stepped(
        gpu: &Arc<dyn Gpu>,
        drivers: &[Driver],
        count: u32,
        agents: u32,
        options: &QueueOptions,
        page: Option<&Arc<Page>>,
    ) -> Result<SteppedQueues, EngineError> {
        options.check()?;
        if drivers.is_empty() || count == 0 {
            return Err(EngineError::Misuse("queue pairs need a drive, and a number".into()));
        }
        if (options.polling == Polling::Gpu) != (agents == 0) || agents > count {
            let text = format!("{agents} agents for {count} pairs polled by {:?}", options.polling);
            return Err(EngineError::Misuse(text));
        }
        let flips = Arc::new(FlipLog::default());
        let memory = SetMemory::new(gpu, count, options)?;
        let mut cared = Vec::new();
        for (number, driver) in (0..count).zip(drivers.iter().cycle()) {
            cared.push(Pair::new(&memory, driver, number, &flips)?);
        }
        let pairs: Vec<_> = cared.iter().map(|(pair, _)| Arc::clone(pair)).collect();
        let views = store_views(gpu, &pairs)?;
        let mut set = Self {
            drivers: drivers.to_vec(),
            agents: (0..agents).map(|_| Arc::default()).collect(),
            threads: None,
            pairs,
            views,
            flips,
        };
        let agents = set.deal(page);
        let recovery = Recovery::new(cared);
        Ok(SteppedQueues { queues: set, agents, recovery })
    }

    /// The same with threads; returns when all pairs are open.
    ///
    /// # Errors
    /// As [`GpuQueues::create_stepped`]; `Os` where the system gives no thread; `TimedOut` where the
    /// drives do not open the pairs within `limit`.
    pub fn start(
        gpu: &Arc<dyn Gpu>,
        drivers: &[Driver],
        count: u32,
        options: &QueueOptions,
        placement: AgentPlacement,
        page: Option<&Arc<Page>>,
        limit: Duration,
    ) -> Result<Self, EngineError> {
        let agents = if options.polling == Polling::Gpu { 0 } else { placement.agents };
        let made = Self::create_stepped(gpu, drivers, count, agents, options, page)?;
        let SteppedQueues { mut queues, agents, recovery } = made;
        queues.threads = Some(Threads::start(agents, recovery, placement)?);
        let begun = Instant::now();
        while !queues.is_serving() {
            if begun.elapsed() > limit {
                let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
                return Err(EngineError::TimedOut { what: "opening the queue pairs", limit_ms });
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(queues)
    }

    /// Gives each agent its pairs.
    fn deal(&mut self, page: Option<&Arc<Page>>) -> Vec<Agent> {
        let agents = self.agents.len();
        let mut dealt = Vec::new();
        for (index, shared) in self.agents.iter().enumerate() {
            let (first, end) =
                (index * self.pairs.len() / agents, (index + 1) * self.pairs.len() / agents);
            let writer = page.and_then(|page| page.writer().ok());
            let pairs = self.pairs[first..end].to_vec();
            dealt.push(Agent::new(pairs, Arc::clone(shared), writer));
        }
        dealt
    }

    /// Device address of the array of views, one a pair.
    pub fn views_address(&self) -> u64 {
        self.views.address
    }

    /// The views themselves.
    pub fn views(&self) -> Vec<QueuePairView> {
        self.pairs.iter().map(|pair| pair.view).collect()
    }

    /// Where each pair stands.
    pub fn states(&self) -> Vec<PairState> {
        self.pairs.iter().map(|pair| pair.state()).collect()
    }

    /// Whether all pairs serve commands.
    pub fn is_serving(&self) -> bool {
        self.pairs.iter().all(|pair| pair.state() == PairState::Serving)
    }

    /// Lets all drives of the set reach device memory.
    ///
    /// # Errors
    /// `Unsupported` where one cannot, or where they reach it under different addresses.
    pub fn buffer(&self, memory: &DeviceMemory) -> Result<DmaBuffer, EngineError> {
        let unsupported =
            |why: String| EngineError::Unsupported { what: "a buffer for drives", why };
        let region = memory.window.as_ref();
        let region = region.ok_or_else(|| unsupported("the memory has no window".into()))?;
        let mut mappings = Vec::new();
        for driver in &self.drivers {
            let mapping = driver.device().map(region).map_err(|e| unsupported(e.to_string()))?;
            mappings.push(Arc::new(mapping));
        }
        let bus = mappings[0].address();
        if mappings.iter().any(|mapping| mapping.address() != bus) {
            return Err(unsupported("the drives reach it under different addresses".into()));
        }
        let view = DmaBufferView { address: memory.address, bus, bytes: memory.bytes };
        Ok(DmaBuffer { view, memory: memory.clone(), _mappings: mappings })
    }

    /// What the host did for each pair, as last published.
    pub fn counters(&self) -> Vec<QueueCounters> {
        self.pairs.iter().map(|pair| pair.counters()).collect()
    }

    /// What the host did for each pair, up to now.
    pub fn counters_now(&self) -> Vec<QueueCounters> {
        self.pairs.iter().map(|pair| pair.drain().counts).collect()
    }

    /// What lanes counted at each pair. By the copy engine.
    ///
    /// # Errors
    /// `Gpu`.
    pub fn lane_counters(&self) -> Result<Vec<LaneCounters>, EngineError> {
        self.pairs.iter().map(|pair| pair.memory.lane_counters()).collect()
    }

    /// What each agent did, as last published.
    pub fn agent_counters(&self) -> Vec<AgentCounters> {
        self.agents.iter().map(|shared| shared.read()).collect()
    }

    /// CPU seconds of agents and recovery, as last published.
    pub fn cpu_seconds(&self) -> f64 {
        let agents: u64 = self.agent_counters().iter().map(|counters| counters.cpu_ns).sum();
        let recovery = self.threads.as_ref().map_or(0, Threads::recovery_cpu_ns);
        Duration::from_nanos(agents + recovery).as_secs_f64()
    }

    /// Now, on the clock of [`Flip::at_ns`]; 0 where the set is stepped by hand.
    pub fn elapsed_ns(&self) -> u64 {
        self.threads.as_ref().map_or(0, Threads::elapsed_ns)
    }

    /// Every change of hands of a completion queue, oldest first.
    pub fn flips(&self) -> Vec<Flip> {
        self.flips.read()
    }

    /// The memory of a pair that lanes and host share: device, host. For tests and simulations.
    pub fn memory(&self) -> Vec<[Region; 2]> {
        let parts = |pair: &Arc<Pair>| [pair.memory.window.clone(), pair.memory.host.clone()];
        self.pairs.iter().map(parts).collect()
    }
}

impl Drop for GpuQueues {
    fn drop(&mut self) {
        if let Some(threads) = self.threads.take() {
            threads.join();
        }
    }
}

fn store_views(gpu: &Arc<dyn Gpu>, pairs: &[Arc<Pair>]) -> Result<DeviceMemory, EngineError> {
    let each = size_of::<QueuePairView>();
    let memory = gpu.allocate_device((pairs.len() * each) as u64)?;
    let window = memory.window.as_ref().expect("pairs were made, so this GPU has a window");
    for (index, pair) in pairs.iter().enumerate() {
        let words: [u64; size_of::<QueuePairView>() / 8] = zerocopy::transmute!(pair.view);
        for (n, word) in words.into_iter().enumerate() {
            window.u64_at(index * each + 8 * n).store(word, Ordering::Relaxed);
        }
    }
    fence_payload();
    Ok(memory)
}
