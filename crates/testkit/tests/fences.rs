//! Fences of the ring, one by one, each in a case of its own that goes wrong without it.
//!
//! Under the memory model: a core's write-combining stores leave in any order and, where nothing
//! fences them, only when the test says so; lanes take payload late.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abi::bench::{ProbeArgs, ProbeResult};
use abi::ring::{OP_READ, Request, STATE_CLOSED, STATE_DRAINING, STATE_OPEN};
use abi::status;
use gpu::{DeviceMemory, Gpu, SimulatedGpu, SimulatedOptions};
use mem::model::{AgentId, Model, Order, Policy, with_agent};
use mem::{MemoryKind, Region};
use sidecore::{
    Buffer, Engine, Hooks, Moment, ReadRoute, Rights, Ring, RingConfig, SideCore, Source, Stepped,
    Supervisor,
};
use sidecore_testkit::pattern;
use sidecore_testkit::submitter::Submitter;
use simt::Shape;
use simt::seeded::{AgentStep, Limits, Options, Simulation};
use storage::{Faulty, MemoryStorage, Storage};
use zerocopy::{FromZeros, IntoBytes};

const BLOCK: u32 = 512;
const BLOCKS: usize = 128;
const RECORDS: u32 = 8;

/// An engine that is stepped by hand, and a ring.
struct Bed {
    ring: Ring,
    source: Source,
    buffer: Buffer,
    window: Region,
    cores: Vec<SideCore>,
    supervisor: Supervisor,
    /// Whether the side core panics where it can.
    panics: Arc<AtomicBool>,
    // Keeps the engine.
    _engine: Engine,
}

impl Bed {
    /// A side core of it panics at `moment` once it was told to.
    fn new(moment: Moment, config: RingConfig) -> Self {
        Self::over(moment, config, |memory| memory)
    }

    /// The same, with something around the storage.
    fn over(
        moment: Moment,
        config: RingConfig,
        wrap: impl FnOnce(Arc<dyn Storage>) -> Arc<dyn Storage>,
    ) -> Self {
        let panics = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&panics);
        let hooks = Hooks::new(move |at| {
            if at == moment && told.swap(false, Ordering::Relaxed) {
                std::panic::resume_unwind(Box::new("on purpose"));
            }
        });
        let gpu: Arc<dyn Gpu> = Arc::new(SimulatedGpu::new(SimulatedOptions::default()));
        let builder = Engine::builder(gpu).side_cores(1).hooks(hooks);
        let stepped = builder.stall(Duration::from_secs(1)).start_stepped().expect("an engine");
        let Stepped { engine, side_cores, supervisor } = stepped;
        let bytes = BLOCKS * BLOCK as usize;
        let storage = MemoryStorage::new(bytes).expect("memory");
        pattern::fill_region(storage.region(), 0, bytes, 0, 0);
        let source = engine.register_source(wrap(Arc::new(storage)), Rights::READ_WRITE);
        let window = Region::map_anonymous(bytes, MemoryKind::Window).expect("memory");
        let device = DeviceMemory {
            address: window.address(),
            bytes: bytes as u64,
            window: Some(window.clone()),
            keeper: None,
        };
        let buffer = engine.register_buffer(device, Rights::READ_WRITE).expect("a buffer");
        let ring = engine.create_ring(config).expect("a ring");
        let source = source.expect("a source");
        let cores = side_cores;
        Self { ring, source, buffer, window, cores, supervisor, panics, _engine: engine }
    }

    fn regions(&self) -> [(&'static str, Region); 4] {
        let memory = self.ring.memory();
        [
            ("entries", memory.entries),
            ("staging", memory.staging),
            ("control", memory.device),
            ("buffer", self.window.clone()),
        ]
    }

    /// A request for a block of the source.
    fn read(&self, record: u32, block: u64) -> Request {
        Request {
            opcode: OP_READ,
            source: self.source.id(),
            source_offset: block * u64::from(BLOCK),
            buffer: self.buffer.id(),
            buffer_offset: u64::from(record * BLOCK),
            length: BLOCK,
            record,
            record_turn: 0,
            limit_ms: 0,
        }
    }
}

fn config() -> RingConfig {
    RingConfig { depth: 16, records: RECORDS, staging_stride: BLOCK, ..RingConfig::default() }
}

/// Who accesses memory in a test.
struct Stage {
    model: Rc<RefCell<Model>>,
    lane: AgentId,
    host: AgentId,
    core: AgentId,
    successor: AgentId,
    supervisor: AgentId,
}

impl Stage {
    fn new(bed: &Bed, seed: u64, drain: u32) -> Self {
        let policy = Policy { drain, stale: 0, lazy_window: true, late_copies: 0 };
        let mut model = Model::new(seed, policy);
        for (name, region) in bed.regions() {
            model.register(name, &region);
        }
        let device = model.add_device();
        let block = model.add_block(device);
        let lane = model.add_lane(block);
        let [host, core, successor, supervisor] = [0; 4].map(|_| model.add_cpu());
        let model = Rc::new(RefCell::new(model));
        Self { model, lane, host, core, successor, supervisor }
    }

    fn as_agent<R>(&self, agent: AgentId, work: impl FnOnce() -> R) -> R {
        with_agent(&self.model, agent, work)
    }

    /// A lane's turn, before and after which everything of its own is ordered.
    fn as_lane<R>(&self, work: impl FnOnce() -> R) -> R {
        self.as_agent(self.lane, || {
            mem::fence_full();
            let result = work();
            mem::fence_full();
            result
        })
    }
}

/// Submits a read a record, as a lane.
fn submit(stage: &Stage, bed: &Bed, lanes: &mut Submitter, records: u32) {
    stage.as_lane(|| {
        for record in 0..records {
            lanes.submit(bed.read(record, u64::from(record) + 1)).expect("room in the ring");
        }
    });
}

fn status_of(stage: &Stage, lanes: &Submitter, record: u32) -> Option<u16> {
    stage.as_lane(|| lanes.completion(record)).map(|word| word.status())
}

#[test]
fn what_the_host_says_of_a_ring_leaves_its_core() {
    let bed = Bed::new(Moment::BeforePoll, config());
    let stage = Stage::new(&bed, 1, 0);
    let lanes = Submitter::new(&bed.ring);
    let seen = |said: &str, state| {
        assert_eq!(stage.as_lane(|| lanes.state()).0, state, "after the host's {said}");
    };
    seen("creation", STATE_OPEN);
    stage.as_agent(stage.host, || bed.ring.drain());
    seen("drain", STATE_DRAINING);
    stage.as_agent(stage.host, || bed.ring.restart().expect("its tail can be read"));
    seen("restart", STATE_OPEN);
    stage.as_agent(stage.host, || bed.ring.close());
    seen("close", STATE_DRAINING);
}

#[test]
fn what_a_lost_core_left_of_its_words_is_out_before_anybody_answers_for_it() {
    let mut bed = Bed::new(Moment::AmidWords, config());
    let stage = Stage::new(&bed, 1, 0);
    let mut lanes = Submitter::new(&bed.ring);
    submit(&stage, &bed, &mut lanes, 1);
    bed.panics.store(true, Ordering::Relaxed);
    stage.as_agent(stage.core, || bed.cores[0].step(1));
    stage.as_agent(stage.supervisor, || bed.supervisor.step(2));
    assert_eq!(status_of(&stage, &lanes, 0), Some(status::SIDE_CORE_LOST));
    submit(&stage, &bed, &mut lanes, 1);
    let mut successor = bed.supervisor.take_replacement().expect("a new side core");
    stage.as_agent(stage.successor, || successor.step(3));
    assert_eq!(status_of(&stage, &lanes, 0), Some(status::SUCCESS));
    // What still lay in the lost core would come now, over the record's newer word.
    stage.model.borrow_mut().settle();
    assert_eq!(status_of(&stage, &lanes, 0), Some(status::SUCCESS));
}

#[test]
fn what_the_supervisor_says_leaves_its_core() {
    let mut bed = Bed::new(Moment::BeforePoll, config());
    let stage = Stage::new(&bed, 1, 0);
    let mut lanes = Submitter::new(&bed.ring);
    submit(&stage, &bed, &mut lanes, 1);
    bed.panics.store(true, Ordering::Relaxed);
    stage.as_agent(stage.core, || bed.cores[0].step(1));
    stage.as_agent(stage.supervisor, || bed.supervisor.step(2));
    assert_eq!(stage.as_lane(|| lanes.state()), (STATE_OPEN, 2), "state and epoch");
    assert_eq!(status_of(&stage, &lanes, 0), Some(status::SIDE_CORE_LOST));
}

/// A lane that finds the ring closed looks at its record once more, and then no longer.
#[test]
fn who_sees_a_ring_closed_sees_the_answers_for_a_lost_core() {
    for seed in 0..32 {
        let mut bed = Bed::new(Moment::BeforePoll, config());
        let stage = Stage::new(&bed, seed, 256);
        let mut lanes = Submitter::new(&bed.ring);
        submit(&stage, &bed, &mut lanes, RECORDS);
        bed.panics.store(true, Ordering::Relaxed);
        stage.as_agent(stage.core, || bed.cores[0].step(1));
        stage.as_agent(stage.host, || bed.ring.close());
        stage.as_agent(stage.supervisor, || bed.supervisor.step(2));
        let control = bed.ring.view().control;
        let state_at = control + std::mem::offset_of!(abi::ring::RingControl, state) as u64;
        let load = |address, order| {
            let found = stage.model.borrow_mut().load(stage.lane, address, 8, order);
            found.expect("registered")[0]
        };
        let closed = u64::from(STATE_CLOSED);
        let looks = (0..1000).take_while(|_| load(state_at, Order::Acquire) % (1 << 32) != closed);
        assert!(looks.count() < 1000, "seed {seed}: the ring is not seen closed");
        for record in 0..u64::from(RECORDS) {
            let word = load(bed.ring.view().records + record * 8, Order::Relaxed);
            let word = abi::ring::CompletionRecord { word };
            let at = format!("seed {seed}, record {record}");
            assert_eq!((word.turn(), word.status()), (1, status::SIDE_CORE_LOST), "{at}");
        }
    }
}

/// Launches `PROBE_AGAIN` beside an agent, by a seed; what each lane saw.
fn probe(
    bed: &Bed,
    seed: u64,
    lanes: u32,
    rounds: u32,
    agent: impl FnMut(u64) -> AgentStep,
) -> Vec<ProbeResult> {
    let mut results = vec![ProbeResult::new_zeroed(); lanes as usize];
    let memory = Region::map_anonymous(results.as_bytes().len(), MemoryKind::Host);
    let memory = memory.expect("memory");
    let args = ProbeArgs {
        ring: bed.ring.view(),
        source: bed.source.view(),
        buffer: bed.buffer.view(),
        results: memory.address(),
        patience_ns: u64::MAX,
        timeout_ns: u64::MAX,
        rounds,
        bytes: BLOCK,
        shift: 0,
        seed: u32::try_from(seed).expect("small"),
    };
    let mut simulation = Simulation::new(seed, Options::default());
    for (name, region) in bed.regions() {
        simulation.register(name, &region);
    }
    simulation.add_agent("side core", agent);
    let shape = Shape { blocks: 1, threads_per_block: lanes };
    let entry = kernels::PROBE_AGAIN.simulated;
    simulation.launch(entry, shape, args.as_bytes()).expect("a possible shape");
    let limits = Limits { steps: 2_000_000, quiet_ns: 50_000_000 };
    simulation.run(limits).unwrap_or_else(|stuck| panic!("seed {seed}: {stuck}"));
    memory.read_bytes(0, results.as_mut_slice().as_mut_bytes());
    results
}

fn step(core: &mut SideCore, now_ns: u64) -> AgentStep {
    if core.step(now_ns).is_busy() { AgentStep::Progress } else { AgentStep::Idle }
}

/// Nothing but the fence behind the payload keeps a lane from taking it only when its next request
/// has already filled the record's staging area.
#[test]
fn a_pulled_payload_is_taken_before_its_record_is_used_again() {
    for seed in 0..48 {
        let config = RingConfig { read_route: ReadRoute::Pull, ..config() };
        let mut bed = Bed::new(Moment::BeforePoll, config);
        let mut core = bed.cores.pop().expect("one");
        let results = probe(&bed, seed, RECORDS, 8, |now_ns| step(&mut core, now_ns));
        for (lane, seen) in results.iter().enumerate() {
            let at = format!("seed {seed}, lane {lane}: {seen:?}");
            assert_eq!((seen.succeeded, seen.wrong_bytes), (8, 0), "{at}");
        }
    }
}

/// Answers and the closing come in one step, so that lanes find both at once.
#[test]
fn a_lane_that_sees_its_ring_closed_has_seen_its_answer() {
    const LANES: u32 = 64;
    for seed in 0..32 {
        let config = RingConfig { depth: 64, records: LANES, ..config() };
        let script = "lost:n=1000,every=1".parse().expect("a fault script");
        let mut bed = Bed::over(Moment::BeforePoll, config, |memory| {
            Arc::new(Faulty::new(memory, &script, Arc::new(|| 0)))
        });
        let mut core = bed.cores.pop().expect("one");
        let ring = &bed.ring;
        let results = probe(&bed, seed, LANES, 1, |now_ns| {
            if ring.in_flight() > LANES / 2 {
                ring.close();
            }
            step(&mut core, now_ns)
        });
        let told = results.iter().filter(|seen| seen.status == status::CANCELLED.into()).count();
        let cancelled = bed.ring.counters().cancelled;
        assert!(cancelled > u64::from(LANES / 2), "seed {seed}: {cancelled} cancelled");
        assert_eq!(told as u64, cancelled, "seed {seed}: lanes that saw their answer");
    }
}
