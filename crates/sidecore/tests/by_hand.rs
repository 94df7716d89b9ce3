//! Storage whose every answer is given by hand: late, twice, or not at all; and entries published
//! by halves.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use abi::ring::{DETAIL_LENT, OP_READ, Request, RequestEntry};
use abi::status;
use gpu::{SimulatedGpu, SimulatedOptions};
use sidecore::{
    Buffer, Engine, Hooks, Moment, ReadRoute, Rights, Ring, RingConfig, Source, Stepped,
};
use storage::{
    Completion, Counters, Geometry, MemoryStorage, QueueOptions, Rejected, Storage, StorageError,
    StorageQueue,
};
use testkit::pattern;
use testkit::submitter::Submitter;

const BLOCK: u32 = 4096;
const MS: u64 = 1_000_000;

/// What storage was given, and what it shall answer at the next poll.
#[derive(Default)]
struct Desk {
    given: Vec<storage::Request>,
    answers: Vec<Completion>,
    cancelled: Vec<u64>,
}

#[derive(Clone, Default)]
struct ByHand(Arc<Mutex<Desk>>);

impl ByHand {
    fn desk(&self) -> std::sync::MutexGuard<'_, Desk> {
        self.0.lock().expect("no test panics with it")
    }

    /// Answers a request that was given, its payload stored first.
    fn answer(&self, request: &storage::Request) {
        let bytes = request.bytes as usize;
        pattern::fill_region(&request.memory, request.memory_offset, bytes, request.offset, 1);
        let (token, bytes) = (request.token, request.bytes);
        let status = spec::Status::SUCCESS;
        self.desk().answers.push(Completion { token, status, bytes, errno: 0 });
    }

    /// The requests given since the last call.
    fn take(&self) -> Vec<storage::Request> {
        std::mem::take(&mut self.desk().given)
    }
}

impl Storage for ByHand {
    fn geometry(&self) -> Geometry {
        Geometry { bytes: 1 << 20, block_bytes: 1, transfer_bytes_max: 1 << 20, read_only: true }
    }

    fn open_queue(&self, _: &QueueOptions) -> Result<Box<dyn StorageQueue>, StorageError> {
        Ok(Box::new(self.clone()))
    }

    fn explain(&self) -> String {
        "answered by hand".to_owned()
    }
}

impl StorageQueue for ByHand {
    fn try_submit(&mut self, request: storage::Lent<'_>) -> Result<(), Rejected> {
        self.desk().given.push(request.keep());
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.desk().answers);
    }

    fn wait_for_completion(&mut self, _: Duration) {}

    fn cancel(&mut self, token: u64) {
        self.desk().cancelled.push(token);
    }

    fn quiesce(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.desk().answers);
    }

    fn in_flight(&self) -> u32 {
        0
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

struct World {
    stepped: Stepped,
    ring: Ring,
    source: Source,
    buffer: Buffer,
    storage: ByHand,
    submitter: Submitter,
    now_ns: u64,
}

impl World {
    fn new() -> Self {
        let gpu = Arc::new(SimulatedGpu::new(SimulatedOptions::default()));
        let stepped = Engine::builder(gpu).side_cores(1).start_stepped().expect("an engine");
        let storage = ByHand::default();
        let engine = &stepped.engine;
        let source = engine.register_source(Arc::new(storage.clone()), Rights::READ);
        let source = source.expect("a source");
        let device = engine.gpu().allocate_device(u64::from(4 * BLOCK)).expect("device memory");
        let buffer = engine.register_buffer(device, Rights::READ_WRITE).expect("a buffer");
        let limit = Duration::from_millis(10);
        let grace = Duration::from_millis(1000);
        let config = RingConfig {
            depth: 4,
            records: 4,
            staging_stride: BLOCK,
            limit,
            grace,
            ..RingConfig::default()
        };
        let ring = engine.create_ring(config).expect("a ring");
        let submitter = Submitter::new(&ring);
        Self { stepped, ring, source, buffer, storage, submitter, now_ns: MS }
    }

    fn read(&self, record: u32, block: u32) -> Request {
        Request {
            opcode: OP_READ,
            source: self.source.id(),
            source_offset: u64::from(block * BLOCK),
            buffer: self.buffer.id(),
            buffer_offset: u64::from(record * BLOCK),
            length: BLOCK,
            record,
            record_turn: 0,
            limit_ms: 0,
        }
    }

    fn step(&mut self, ms: u64) {
        self.now_ns += ms * MS;
        self.stepped.side_cores[0].step(self.now_ns);
    }

    fn status(&self, record: u32) -> Option<u16> {
        self.submitter.completion(record).map(|end| end.status())
    }

    fn check(&self, record: u32, block: u32) {
        let window = self.buffer.memory().window.clone().expect("simulated memory has one");
        let (at, address) = ((record * BLOCK) as usize, u64::from(block * BLOCK));
        pattern::check_region(&window, at, BLOCK as usize, address, 1).expect("the block's bytes");
    }
}

#[test]
fn half_an_entry_is_not_served() {
    for first_half in [0, 16] {
        let mut world = World::new();
        let request = Request { record_turn: world.submitter.turn(0) + 1, ..world.read(0, 1) };
        let tag = u16::try_from((world.submitter.tail() >> 2) + 1).expect("a new ring");
        let words = RequestEntry::pack(&request, tag).w;
        let entries = world.submitter.memory().entries.clone();
        let store = |half: usize| {
            let word = half / 8;
            entries.u64_at(half).store(words[word], Ordering::Relaxed);
            entries.u64_at(half + 8).store(words[word + 1], Ordering::Release);
        };
        store(first_half);
        world.step(1);
        assert!(world.storage.take().is_empty(), "served by the half at {first_half}");
        store(16 - first_half);
        world.step(1);
        let given = world.storage.take();
        assert_eq!(given.len(), 1);
        assert_eq!(given[0].offset, u64::from(BLOCK));
    }
}

#[test]
fn a_request_ends_only_when_storage_can_no_longer_write_for_it() {
    let mut world = World::new();
    let request = world.read(1, 3);
    world.submitter.submit(request).expect("room");
    world.step(1);
    let given = world.storage.take();
    for _ in 0..20 {
        world.step(10);
        assert_eq!(world.status(1), None, "storage was asked to end it, and has not answered");
    }
    assert_eq!(world.storage.desk().cancelled, [given[0].token], "asked once");
    world.storage.answer(&given[0]);
    world.step(1);
    assert_eq!(world.status(1), Some(status::TIMED_OUT));
    world.step(1);
    assert!(world.ring.is_quiet());
}

#[test]
fn a_second_completion_does_not_end_the_next_use_of_its_record() {
    let mut world = World::new();
    world.submitter.submit(world.read(2, 5)).expect("room");
    world.step(1);
    let first = world.storage.take();
    world.storage.answer(&first[0]);
    world.step(1);
    assert_eq!(world.status(2), Some(status::SUCCESS));
    world.check(2, 5);

    world.submitter.submit(world.read(2, 6)).expect("room");
    world.step(1);
    let second = world.storage.take();
    world.storage.answer(&first[0]);
    world.step(1);
    assert_eq!(world.status(2), None, "ended by the completion of the request before");
    assert_eq!(world.ring.in_flight(), 1);
    world.storage.answer(&second[0]);
    world.step(1);
    assert_eq!(world.status(2), Some(status::SUCCESS));
    world.check(2, 6);
}

/// What is to be done at a side core's next look at its rings.
type Task = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// A lane names a buffer as soon as it is registered, which may be while a side core is in a step that
/// began with the tables of before.
#[test]
fn what_is_registered_during_a_step_is_not_refused_in_it() {
    let task = Task::default();
    let taken = Arc::clone(&task);
    let hooks = Hooks::new(move |at| {
        let act = match at {
            Moment::BeforeFetch => taken.lock().expect("no panic with it").take(),
            _ => None,
        };
        if let Some(act) = act {
            act();
        }
    });
    let gpu = Arc::new(SimulatedGpu::new(SimulatedOptions::default()));
    let stepped = Engine::builder(gpu).side_cores(1).hooks(hooks).start_stepped();
    let Stepped { engine, mut side_cores, .. } = stepped.expect("an engine");
    let engine = Arc::new(engine);
    let memory = MemoryStorage::new(BLOCK as usize).expect("memory");
    let source = engine.register_source(Arc::new(memory), Rights::READ).expect("a source");
    let ring = engine.create_ring(RingConfig { depth: 4, records: 4, ..RingConfig::default() });
    let ring = ring.expect("a ring");
    side_cores[0].step(MS);
    let submitter = Arc::new(Mutex::new(Submitter::new(&ring)));
    let (later, lanes) = (Arc::clone(&engine), Arc::clone(&submitter));
    *task.lock().expect("no panic with it") = Some(Box::new(move || {
        let device = later.gpu().allocate_device(u64::from(BLOCK)).expect("device memory");
        let buffer = later.register_buffer(device, Rights::READ).expect("a buffer");
        let request = Request {
            opcode: OP_READ,
            source: source.id(),
            source_offset: 0,
            buffer: buffer.id(),
            buffer_offset: 0,
            length: BLOCK,
            record: 0,
            record_turn: 0,
            limit_ms: 0,
        };
        lanes.lock().expect("no panic with it").submit(request).expect("room");
    }));
    for step in 2..6 {
        side_cores[0].step(step * MS);
    }
    let end = submitter.lock().expect("no panic with it").completion(0).expect("an end");
    assert_eq!(end.status(), status::SUCCESS);
}

/// Pulled reads stay where lanes can load them themselves; else they are in staging.
#[test]
fn a_pulled_read_stays_in_memory_that_lanes_reach() {
    for lends in [true, false] {
        let gpu = Arc::new(SimulatedGpu::new(SimulatedOptions::default()));
        let stepped = Engine::builder(gpu).side_cores(1).start_stepped();
        let Stepped { engine, mut side_cores, .. } = stepped.expect("an engine");
        let mut memory = MemoryStorage::new(4 * BLOCK as usize).expect("memory");
        let bytes = memory.region().clone();
        pattern::fill_region(&bytes, 0, 4 * BLOCK as usize, 0, 1);
        if lends {
            memory = memory.with_lending();
        }
        let source = engine.register_source(Arc::new(memory), Rights::READ).expect("a source");
        let address = if lends { bytes.address() } else { 0 };
        assert_eq!(source.view().address, address);
        let device = engine.gpu().allocate_device(u64::from(BLOCK)).expect("device memory");
        let buffer = engine.register_buffer(device, Rights::READ).expect("a buffer");
        let read_route = ReadRoute::Pull;
        let config = RingConfig { depth: 4, records: 4, read_route, ..RingConfig::default() };
        let ring = engine.create_ring(config).expect("a ring");
        let mut submitter = Submitter::new(&ring);
        let request = Request {
            opcode: OP_READ,
            source: source.id(),
            source_offset: u64::from(2 * BLOCK),
            buffer: buffer.id(),
            buffer_offset: 0,
            length: BLOCK,
            record: 1,
            record_turn: 0,
            limit_ms: 0,
        };
        submitter.submit(request).expect("room");
        side_cores[0].step(MS);
        let end = submitter.completion(1).expect("an end");
        let told = if lends { DETAIL_LENT } else { 0 };
        assert_eq!((end.status(), end.detail()), (status::SUCCESS, BLOCK | told));
        let (staging, at) = (&submitter.memory().staging, submitter.staging_at(1));
        let there = pattern::check_region(staging, at, BLOCK as usize, u64::from(2 * BLOCK), 1);
        assert_eq!(there.is_ok(), !lends, "{there:?}");
    }
}
