//! One drive and its queue pairs under the seeded simulation: lanes, drive, agents and recovery
//! stepped by one scheduler.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use ctrl::{Controller, NamespaceOptions, Options, Progress, ResetFault};
use driver::{Device, Driver, DriverOptions, DriverState, Mapping, RegionDevice};
use gpu::{DeviceMemory, Gpu, SimulatedGpu, SimulatedOptions};
use mem::{AddressMap, MemError, MemoryKind, Region, RegionId};
use sidecore::gpu_queues::{
    Agent, DmaBuffer, GpuQueues, LaneCounters, Polling, QueueCounters, Recovery, RecoveryProgress,
    SteppedQueues,
};
use sidecore_testkit::pattern;
use simt::Shape;
use simt::seeded::{AgentStep, Limits, Outcome, Simulation};
use storage::MemoryStorage;
use storage::faults::{FaultScript, Injector};
use zerocopy::{FromZeros, IntoBytes};

use crate::case::{Case, IO_BYTES, IOS, LANES, LIMIT};
use crate::plan::{Args, Io, Seen};

/// Generation that writes leave.
pub const WRITTEN: u64 = 2;
/// What a buffer holds before.
pub const POISON: u64 = 0xdead_beef_dead_beef;

/// A device whose DMA addresses are the same in every run, and not those of the process.
struct Placed {
    inner: RegionDevice,
    map: Arc<AddressMap>,
    /// Each region that was ever mapped, and where.
    places: Mutex<Vec<(Region, u64)>>,
}

/// Ends a registration.
struct Registered(Arc<AddressMap>, RegionId);

impl Drop for Registered {
    fn drop(&mut self) {
        self.0.deregister(self.1);
    }
}

impl Placed {
    fn new(bar: Region, map: Arc<AddressMap>) -> Self {
        let inner = RegionDevice::new(bar, Arc::clone(&map));
        Self { inner, map, places: Mutex::default() }
    }
}

impl Device for Placed {
    fn load32(&self, offset: usize) -> u32 {
        self.inner.load32(offset)
    }
    fn load64(&self, offset: usize) -> u64 {
        self.inner.load64(offset)
    }
    fn store32(&self, offset: usize, value: u32) {
        self.inner.store32(offset, value);
    }
    fn store64(&self, offset: usize, value: u64) {
        self.inner.store64(offset, value);
    }
    fn ring(&self, offset: usize, value: u32) {
        self.inner.ring(offset, value);
    }
    fn doorbell_address(&self, offset: usize) -> Option<u64> {
        self.inner.doorbell_address(offset)
    }

    fn map(&self, region: &Region) -> Result<Mapping, MemError> {
        let mut places = self.places.lock().expect("no panic");
        let address = (places.len() as u64 + 1) << 32;
        let id = self.map.register_at(address, region.clone())?;
        places.push((region.clone(), address));
        let guard = Registered(Arc::clone(&self.map), id);
        Ok(Mapping::new(region.clone(), address, Some(Box::new(guard))))
    }

    fn bus_address(&self, region: &Region, offset: usize, bytes: usize) -> Option<u64> {
        let first = region.address().checked_add(offset as u64)?;
        let places = self.places.lock().expect("no panic");
        places.iter().rev().find_map(|(there, address)| {
            let at = address + first.checked_sub(there.address())?;
            self.map.snapshot().resolve(at, bytes).map(|_| at)
        })
    }
}

/// Everything of one seed.
pub struct World {
    pub case: Case,
    pub disk: Region,
    pub window: Region,
    pub injector: Arc<Injector>,
    pub driver: Driver,
    pub queues: GpuQueues,
    buffer: DmaBuffer,
    pub bar: Region,
    controller: RefCell<Controller>,
    agents: Vec<RefCell<Agent>>,
    recovery: RefCell<Recovery>,
    now_ns: Cell<u64>,
}

/// What one launch came to.
pub struct Run {
    pub seen: Vec<Seen>,
    pub outcome: Outcome,
    pub host: QueueCounters,
    pub lanes: LaneCounters,
    pub drive: ctrl::Counters,
}

impl World {
    pub fn new(case: Case) -> Self {
        let bytes = (IOS * IO_BYTES) as usize;
        let disk = Region::map_anonymous(bytes, MemoryKind::Host).expect("memory");
        pattern::fill_region(&disk, 0, bytes, 0, 1);
        let script: FaultScript = case.script().parse().expect("a fault script");
        let injector = Arc::new(Injector::new(&script, 512));
        let mut namespace = NamespaceOptions::new(Arc::new(MemoryStorage::over(disk.clone())));
        namespace.faults = Some(Arc::clone(&injector));
        let mut of_controller = Options::new(vec![namespace]);
        of_controller.queue_pairs_max = 4;
        of_controller.reset_fault =
            if case.self_reset { ResetFault::SelfReset } else { ResetFault::Fatal };
        let map = Arc::new(AddressMap::new());
        let mut controller =
            Controller::new(of_controller, Arc::clone(&map)).expect("good options");
        let bar = controller.bar();
        let device: Arc<dyn Device> = Arc::new(Placed::new(bar.clone(), map));
        let of_driver = DriverOptions { admin_limit: LIMIT, ..DriverOptions::default() };
        let driver = Driver::new(device, of_driver).expect("a controller that suffices");
        let mut now_ns = 0;
        while !matches!(driver.step(now_ns), DriverState::Ready) {
            now_ns += 10_000;
            controller.step(now_ns);
            assert!(now_ns < 1_000_000_000, "not ready: {:?}", driver.state());
        }
        let gpu: Arc<dyn Gpu> = Arc::new(SimulatedGpu::new(SimulatedOptions::default()));
        let agents = if case.options.polling == Polling::Gpu { 0 } else { 1 };
        let drivers = [driver.clone()];
        let made =
            GpuQueues::create_stepped(&gpu, &drivers, case.pairs, agents, &case.options, None);
        let SteppedQueues { queues, agents, mut recovery } = made.expect("pairs");
        while !queues.is_serving() {
            now_ns += 10_000;
            recovery.step(now_ns);
            controller.step(now_ns);
        }
        let window = Region::map_anonymous(bytes, MemoryKind::Window).expect("memory");
        let memory = DeviceMemory {
            address: window.address(),
            bytes: bytes as u64,
            window: Some(window.clone()),
            keeper: None,
        };
        let buffer = queues.buffer(&memory).expect("a buffer");
        Self {
            case,
            disk,
            window,
            injector,
            driver,
            queues,
            buffer,
            bar,
            controller: RefCell::new(controller),
            agents: agents.into_iter().map(RefCell::new).collect(),
            recovery: RefCell::new(recovery),
            now_ns: Cell::new(now_ns),
        }
    }

    /// Poisons the whole buffer.
    fn poison(&self) {
        for word in 0..self.window.len_bytes() / 8 {
            self.window.u64_at(word * 8).store(POISON, Ordering::Relaxed);
        }
    }

    /// Launches the kernel on a plan and runs it to its end.
    ///
    /// # Panics
    /// Where it does not end, with what is stuck where.
    pub fn run(&self, seed: u64, plan: &[Io]) -> Run {
        self.poison();
        let host = |bytes| Region::map_anonymous(bytes, MemoryKind::Host).expect("memory");
        let results = host(plan.len() * size_of::<Seen>());
        let planned = host(plan.as_bytes().len());
        planned.write_bytes(0, plan.as_bytes());
        let args = Args {
            views: self.queues.views_address(),
            plan: planned.address(),
            results: results.address(),
            buffer: self.buffer.view(),
            view_count: self.case.pairs,
            ios_a_lane: u32::try_from(plan.len()).expect("small") / LANES,
            batch: self.case.batch,
            alone: u32::from(self.case.alone),
            generation: u32::try_from(WRITTEN).expect("small"),
            reserved: 0,
        };
        let mut simulation = Simulation::new(seed, simt::seeded::Options::default());
        simulation.register("bar", &self.bar);
        simulation.register("buffer", &self.window);
        for (pair, [window, memory]) in self.queues.memory().iter().enumerate() {
            simulation.register(&format!("window {pair}"), window);
            simulation.register(&format!("host {pair}"), memory);
        }
        self.add_agents(&mut simulation);
        let shape = Shape { blocks: LANES / 32, threads_per_block: 32 };
        let kernel = match self.case.options.polling {
            Polling::Gpu => kernels::QUEUE_TRIAL_BAM,
            _ => kernels::QUEUE_TRIAL_COPILOT,
        };
        simulation.launch(kernel.simulated, shape, args.as_bytes()).expect("a possible shape");
        let limits = Limits { steps: 40_000_000, quiet_ns: 100_000_000 };
        let outcome = simulation.run(limits).unwrap_or_else(|stuck| panic!("{stuck}"));
        let (mut of_host, mut lanes) = (QueueCounters::default(), LaneCounters::default());
        self.queues.counters_now().iter().for_each(|counters| of_host.add(counters));
        for counters in self.queues.lane_counters().expect("a copy") {
            lanes.drained += counters.drained;
            lanes.strays += counters.strays;
            lanes.fence_ios += counters.fence_ios;
            lanes.sq_doorbells += counters.sq_doorbells;
            lanes.cq_doorbells += counters.cq_doorbells;
        }
        let mut seen = vec![Seen::new_zeroed(); plan.len()];
        results.read_bytes(0, seen.as_mut_slice().as_mut_bytes());
        let drive = self.controller.borrow().counters().read();
        Run { seen, outcome, host: of_host, lanes, drive }
    }

    fn add_agents<'a>(&'a self, simulation: &mut Simulation<'a>) {
        let offset = self.now_ns.get();
        let clock = Rc::new(move |time_ns: u64| {
            let now_ns = offset + time_ns;
            self.now_ns.set(now_ns.max(self.now_ns.get()));
            now_ns
        });
        let now = Rc::clone(&clock);
        simulation.add_agent("drive", move |time_ns| {
            match self.controller.borrow_mut().step(now(time_ns)) {
                Progress::Worked => AgentStep::Progress,
                _ => AgentStep::Idle,
            }
        });
        for (index, agent) in self.agents.iter().enumerate() {
            let now = Rc::clone(&clock);
            simulation.add_agent(&format!("agent {index}"), move |time_ns| {
                let found = agent.borrow_mut().step(now(time_ns)).completions;
                if found > 0 { AgentStep::Progress } else { AgentStep::Idle }
            });
        }
        simulation.add_agent("recovery", move |time_ns| {
            match self.recovery.borrow_mut().step(clock(time_ns)) {
                RecoveryProgress::Busy => AgentStep::Until(time_ns + 5_000),
                _ => AgentStep::Until(time_ns + 50_000),
            }
        });
    }
}
