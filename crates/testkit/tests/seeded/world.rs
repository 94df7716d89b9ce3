//! One engine under the seeded simulation: lanes, side cores and supervisor stepped by one scheduler.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use gpu::{DeviceMemory, Gpu, SimulatedGpu, SimulatedOptions};
use mem::{MemoryKind, Region};
use sidecore::{
    Buffer, CoreState, Engine, Hooks, Rights, Ring, RingCounters, SideCore, Source, Stepped,
    Supervisor,
};
use sidecore_testkit::pattern;
use simt::Shape;
use simt::seeded::{AgentStep, Limits, Outcome, Simulation};
use storage::faults::{FaultScript, Injector};
use storage::{Faulty, MemoryStorage, Storage};
use zerocopy::{FromZeros, IntoBytes};

use crate::case::{Case, IO_BYTES, IOS, IOS_A_LANE, LANES, STALL, Trouble};
use crate::plan::{Args, Io, POISON, Seen};

/// Generation that writes leave.
pub const WRITTEN: u64 = 2;
/// CPU agents for side cores: the first one and its replacements.
const AGENTS: usize = 4;
const LIMITS: Limits = Limits { steps: 20_000_000, quiet_ns: 50_000_000 };
/// How long nothing may move before what lanes left behind counts as ended.
const QUIET_NS: u64 = 5_000_000;

type Cores = Rc<RefCell<Vec<Option<SideCore>>>>;

/// Everything of one seed.
pub struct World {
    pub case: Case,
    pub ring: Ring,
    pub memory: MemoryStorage,
    pub window: Region,
    pub injector: Option<Arc<Injector>>,
    pub panicked: Arc<AtomicU64>,
    source: Source,
    buffer: Buffer,
    // Keeps the engine.
    _engine: Engine,
    cores: Cores,
    supervisor: Rc<RefCell<Supervisor>>,
    now_ns: Arc<AtomicU64>,
}

/// What one launch came to.
pub struct Run {
    pub seen: Vec<Seen>,
    pub outcome: Outcome,
    pub counters: RingCounters,
}

/// A hook that panics once, quietly.
fn panicking(case: &Case, panicked: &Arc<AtomicU64>) -> Hooks {
    let Trouble::Panic(moment) = case.trouble else { return Hooks::default() };
    let left = AtomicI64::new(i64::from(case.after));
    let panicked = Arc::clone(panicked);
    Hooks::new(move |at| {
        if at == moment && left.fetch_sub(1, Ordering::Relaxed) == 0 {
            panicked.fetch_add(1, Ordering::Relaxed);
            std::panic::resume_unwind(Box::new("injected"));
        }
    })
}

impl World {
    pub fn new(case: Case) -> Self {
        let gpu: Arc<dyn Gpu> = Arc::new(SimulatedGpu::new(SimulatedOptions::default()));
        let panicked = Arc::new(AtomicU64::new(0));
        let builder = Engine::builder(gpu).side_cores(1).hooks(panicking(&case, &panicked));
        let stepped = builder.stall(STALL).start_stepped().expect("an engine");
        let Stepped { engine, side_cores, supervisor } = stepped;
        let bytes = (IOS * IO_BYTES) as usize;
        let mut memory = MemoryStorage::new(bytes).expect("memory");
        if case.lends {
            memory = memory.with_lending();
        }
        if case.is_direct() {
            memory = memory.with_reach();
        }
        pattern::fill_region(memory.region(), 0, bytes, 0, 1);
        let now_ns = Arc::new(AtomicU64::new(0));
        let mut storage: Arc<dyn Storage> = Arc::new(memory.clone());
        let mut injector = None;
        let script = case.script();
        if !script.is_empty() {
            let script: FaultScript = script.parse().expect("a fault script");
            let clock = Arc::clone(&now_ns);
            let clock = Arc::new(move || clock.load(Ordering::Relaxed));
            let faulty = Faulty::new(storage, &script, clock);
            injector = Some(Arc::clone(faulty.injector()));
            storage = Arc::new(faulty);
        }
        let source = engine.register_source(storage, Rights::READ_WRITE).expect("a source");
        let window = Region::map_anonymous(bytes, MemoryKind::Window).expect("memory");
        let device = DeviceMemory {
            address: window.address(),
            bytes: bytes as u64,
            window: Some(window.clone()),
            keeper: None,
        };
        let buffer = engine.register_buffer(device, Rights::READ_WRITE).expect("a buffer");
        let ring = engine.create_ring(case.config.clone()).expect("a ring");
        Self {
            case,
            ring,
            memory,
            window,
            injector,
            panicked,
            source,
            buffer,
            _engine: engine,
            cores: Rc::new(RefCell::new(side_cores.into_iter().map(Some).collect())),
            supervisor: Rc::new(RefCell::new(supervisor)),
            now_ns,
        }
    }

    /// Poisons the whole buffer.
    pub fn poison(&self) {
        for word in 0..self.window.len_bytes() / 8 {
            self.window.u64_at(word * 8).store(POISON, Ordering::Relaxed);
        }
    }

    fn arguments(&self, plan: &[Io], results: &Region) -> (Args, Region) {
        let memory = Region::map_anonymous(plan.as_bytes().len(), MemoryKind::Host);
        let memory = memory.expect("memory");
        memory.write_bytes(0, plan.as_bytes());
        let args = Args {
            ring: self.ring.view(),
            source: self.source.view(),
            buffer: self.buffer.view(),
            plan: memory.address(),
            results: results.address(),
            ios_a_lane: u32::try_from(plan.len()).expect("small") / LANES,
            batch: self.case.batch,
            alone: u32::from(self.case.alone),
            generation: u32::try_from(WRITTEN).expect("small"),
        };
        (args, memory)
    }

    /// Launches the kernel on a plan, runs it to its end and then until the ring is quiet.
    ///
    /// # Panics
    /// Where it does not end, with what is stuck where.
    pub fn run(&self, seed: u64, plan: &[Io]) -> Run {
        self.poison();
        let results = Region::map_anonymous(plan.len() * size_of::<Seen>(), MemoryKind::Host);
        let results = results.expect("memory");
        let (args, _plan) = self.arguments(plan, &results);
        let mut simulation = self.simulation(seed);
        if self.ring.epoch() == 1 && self.ring.counters().requests == 0 {
            self.add_host(&mut simulation);
        }
        let shape = Shape { blocks: LANES / 32, threads_per_block: 32 };
        let entry = kernels::TRIAL.simulated;
        simulation.launch(entry, shape, args.as_bytes()).expect("a possible shape");
        if let Err(stuck) = simulation.run(LIMITS) {
            panic!("{stuck}");
        }
        self.add_quiet_client(&mut simulation);
        let outcome = match simulation.run(LIMITS) {
            Ok(outcome) => outcome,
            Err(stuck) => panic!("after the kernel: {stuck}"),
        };
        let mut seen = vec![Seen::new_zeroed(); plan.len()];
        results.read_bytes(0, seen.as_mut_slice().as_mut_bytes());
        Run { seen, outcome, counters: self.ring.counters() }
    }

    /// Opens a drained or closed ring again, and lets it refuse what was published meanwhile.
    ///
    /// # Panics
    /// Where that does not end.
    pub fn reopen(&self, seed: u64) {
        self.ring.restart().expect("its tail can be read");
        let mut simulation = self.simulation(seed);
        self.add_quiet_client(&mut simulation);
        if let Err(stuck) = simulation.run(LIMITS) {
            panic!("after the restart: {stuck}");
        }
    }

    fn simulation(&self, seed: u64) -> Simulation<'_> {
        let mut simulation = Simulation::new(seed, simt::seeded::Options::default());
        let memory = self.ring.memory();
        simulation.register("entries", &memory.entries);
        simulation.register("staging", &memory.staging);
        simulation.register("control", &memory.device);
        simulation.register("buffer", &self.window);
        if self.case.lends {
            simulation.register("source", self.memory.region());
        }
        let offset = self.now_ns.load(Ordering::Relaxed);
        self.add_agents(&mut simulation, offset);
        simulation
    }

    /// The host, which drains or closes the ring after a while.
    fn add_host<'a>(&'a self, simulation: &mut Simulation<'a>) {
        let (ring, trouble) = (&self.ring, self.case.trouble);
        if !matches!(trouble, Trouble::Closed | Trouble::Drained) {
            return;
        }
        let at_ns = 30_000 + 2_000 * u64::from(self.case.after);
        simulation.add_agent("host", move |time_ns| match trouble {
            _ if time_ns < at_ns => AgentStep::Until(at_ns),
            Trouble::Closed => {
                ring.close();
                AgentStep::Done
            }
            _ => {
                ring.drain();
                AgentStep::Done
            }
        });
    }

    /// Waits until nothing has moved for a while: what lanes left behind has ended.
    fn add_quiet_client<'a>(&'a self, simulation: &mut Simulation<'a>) {
        let (ring, now) = (&self.ring, &self.now_ns);
        let (mut since, mut before) = (0, None);
        simulation.add_client("quiet", move |_| {
            let now_ns = now.load(Ordering::Relaxed);
            let state = (ring.counters().requests, ring.in_flight());
            if before != Some(state) || state.1 != 0 {
                before = Some(state);
                since = now_ns;
            }
            if now_ns - since >= QUIET_NS { AgentStep::Done } else { AgentStep::Idle }
        });
    }

    fn add_agents(&self, simulation: &mut Simulation<'_>, offset: u64) {
        for index in 0..AGENTS {
            let cores = Rc::clone(&self.cores);
            let now = Arc::clone(&self.now_ns);
            let trouble = self.case.trouble;
            let mut stall = Stall::new(&self.case, index);
            simulation.add_agent(&format!("side core {index}"), move |time_ns| {
                let now_ns = offset + time_ns;
                now.store(now_ns, Ordering::Relaxed);
                let core = cores.borrow_mut().get_mut(index).and_then(Option::take);
                let Some(mut core) = core else { return AgentStep::Until(time_ns + 20_000) };
                if let Some(until) = stall.strike(time_ns) {
                    cores.borrow_mut()[index] = Some(core);
                    return AgentStep::Until(until);
                }
                let progress = core.step(now_ns);
                let over = matches!(progress.state, CoreState::Lost | CoreState::Deposed);
                if over {
                    return AgentStep::Until(time_ns + 1_000_000);
                }
                cores.borrow_mut()[index] = Some(core);
                match trouble {
                    Trouble::Slow => AgentStep::Until(time_ns + 15_000),
                    _ if progress.is_busy() => AgentStep::Progress,
                    _ => AgentStep::Idle,
                }
            });
        }
        let supervisor = Rc::clone(&self.supervisor);
        let cores = Rc::clone(&self.cores);
        simulation.add_agent("supervisor", move |time_ns| {
            let mut supervisor = supervisor.borrow_mut();
            supervisor.step(offset + time_ns);
            while let Some(core) = supervisor.take_replacement() {
                cores.borrow_mut().push(Some(core));
            }
            AgentStep::Until(time_ns + 10_000)
        });
    }
}

/// When the first side core stands still, and for how long.
struct Stall {
    left: Option<u32>,
    length_ns: u64,
}

impl Stall {
    fn new(case: &Case, index: usize) -> Self {
        let left = (case.trouble == Trouble::Stall && index == 0).then_some(case.after);
        Self { left, length_ns: if case.after.is_multiple_of(2) { 700_000 } else { 3_000_000 } }
    }

    fn strike(&mut self, time_ns: u64) -> Option<u64> {
        let left = self.left.as_mut()?;
        if *left > 0 {
            *left -= 1;
            return None;
        }
        self.left = None;
        Some(time_ns + self.length_ns)
    }
}

const _: () = assert!(IOS == LANES * IOS_A_LANE);
