//! Route `direct`: storage stores payload to buffers itself, so that no answer comes and no buffer goes
//! while it may still do so.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use abi::ring::{DETAIL_UNSETTLED, OP_READ, Request};
use abi::status;
use gpu::{SimulatedGpu, SimulatedOptions};
use mem::Region;
use sidecore::{
    Buffer, CoreState, Engine, Hooks, Moment, ReadRoute, Rights, Ring, RingConfig, SideCore,
    Source, Stepped, Supervisor,
};
use spec::Status;
use storage::{
    Completion, Counters, Geometry, QueueOptions, Rejected, Storage, StorageError, StorageQueue,
};
use testkit::pattern;
use testkit::submitter::Submitter;

const BLOCK: u32 = 4096;
const MS: u64 = 1_000_000;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a drive has, and what it shall do at its next polls.
#[derive(Default)]
struct Desk {
    given: Vec<storage::Request>,
    answers: Vec<Completion>,
    quiesced: u32,
    panics: bool,
}

/// A drive that moves payload when it is told to, and reaches windows or not.
#[derive(Clone)]
struct Drive {
    desk: Arc<Mutex<Desk>>,
    reaches: bool,
}

impl Drive {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        lock(&self.desk)
    }

    fn given(&self) -> Vec<storage::Request> {
        self.desk().given.clone()
    }

    fn store(&self, request: &storage::Request) {
        let bytes = request.bytes as usize;
        pattern::fill_region(&request.memory, request.memory_offset, bytes, request.offset, 1);
    }

    fn answer(&self, request: &storage::Request, status: Status) {
        let (token, bytes) = (request.token, request.bytes);
        let mut desk = self.desk();
        desk.given.retain(|given| given.token != token);
        desk.answers.push(Completion { token, status, bytes, errno: 0 });
    }
}

impl Storage for Drive {
    fn geometry(&self) -> Geometry {
        Geometry { bytes: 1 << 20, block_bytes: 1, transfer_bytes_max: 1 << 20, read_only: true }
    }

    fn open_queue(&self, _: &QueueOptions) -> Result<Box<dyn StorageQueue>, StorageError> {
        Ok(Box::new(self.clone()))
    }

    fn explain(&self) -> String {
        "a drive told what to do".to_owned()
    }
}

impl StorageQueue for Drive {
    fn try_submit(&mut self, request: storage::Lent<'_>) -> Result<(), Rejected> {
        self.desk().given.push(request.keep());
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let mut desk = self.desk();
        assert!(!std::mem::take(&mut desk.panics), "injected");
        completions.append(&mut desk.answers);
    }

    fn wait_for_completion(&mut self, _: Duration) {}

    fn cancel(&mut self, _: u64) {}

    /// It stores once more what it has, and then never again.
    fn quiesce(&mut self, completions: &mut Vec<Completion>) {
        for request in self.given() {
            self.store(&request);
            self.answer(&request, storage::status::ABORT_REQUESTED);
        }
        let mut desk = self.desk();
        desk.quiesced += 1;
        completions.append(&mut desk.answers);
    }

    fn reach(&mut self, _: &Region) -> bool {
        self.reaches
    }

    fn in_flight(&self) -> u32 {
        u32::try_from(self.desk().given.len()).expect("a few")
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

/// What is to be done at a side core's next look at its storage.
type Task = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

struct World {
    engine: Engine,
    side_cores: Vec<SideCore>,
    supervisor: Arc<Mutex<Supervisor>>,
    task: Task,
    ring: Ring,
    source: Source,
    buffer: Buffer,
    drive: Drive,
    submitter: Submitter,
    now_ns: u64,
}

impl World {
    fn new(reaches: bool) -> Self {
        let gpu = Arc::new(SimulatedGpu::new(SimulatedOptions::default()));
        let stall = Duration::from_millis(50);
        let task = Task::default();
        let taken = Arc::clone(&task);
        let hooks = Hooks::new(move |at| {
            let task = (at == Moment::BeforePoll).then(|| lock(&taken).take()).flatten();
            if let Some(task) = task {
                task();
            }
        });
        let builder = Engine::builder(gpu).side_cores(1).stall(stall).hooks(hooks);
        let Stepped { engine, side_cores, supervisor } =
            builder.start_stepped().expect("an engine");
        let drive = Drive { desk: Arc::default(), reaches };
        let source = engine.register_source(Arc::new(drive.clone()), Rights::READ);
        let source = source.expect("a source");
        let device = engine.gpu().allocate_device(u64::from(4 * BLOCK)).expect("device memory");
        let buffer = engine.register_buffer(device, Rights::READ_WRITE).expect("a buffer");
        let config = RingConfig {
            depth: 4,
            records: 4,
            staging_stride: BLOCK,
            read_route: ReadRoute::Direct,
            limit: Duration::from_millis(10),
            grace: Duration::from_millis(1000),
            ..RingConfig::default()
        };
        let ring = engine.create_ring(config).expect("a ring");
        let submitter = Submitter::new(&ring);
        let supervisor = Arc::new(Mutex::new(supervisor));
        let now_ns = MS;
        let mut world = Self {
            engine,
            side_cores,
            supervisor,
            task,
            ring,
            source,
            buffer,
            drive,
            submitter,
            now_ns,
        };
        world.step(1);
        world
    }

    fn read(&mut self, record: u32, block: u32) {
        let request = Request {
            opcode: OP_READ,
            source: self.source.id(),
            source_offset: u64::from(block * BLOCK),
            buffer: self.buffer.id(),
            buffer_offset: u64::from(record * BLOCK),
            length: BLOCK,
            record,
            record_turn: 0,
            limit_ms: 0,
        };
        self.submitter.submit(request).expect("room");
        self.step(1);
    }

    fn step(&mut self, ms: u64) -> CoreState {
        self.now_ns += ms * MS;
        self.side_cores[0].step(self.now_ns).state
    }

    fn end(&self, record: u32) -> Option<(u16, u32)> {
        self.submitter.completion(record).map(|end| (end.status(), end.detail()))
    }

    fn window(&self) -> Region {
        self.buffer.memory().window.clone().expect("simulated memory has one")
    }

    fn has(&self, record: u32, block: u32) -> bool {
        let (at, address) = ((record * BLOCK) as usize, u64::from(block * BLOCK));
        pattern::check_region(&self.window(), at, BLOCK as usize, address, 1).is_ok()
    }
}

#[test]
fn the_drive_is_given_the_buffer_itself() {
    let mut world = World::new(true);
    world.read(2, 7);
    let given = world.drive.given();
    assert!(given[0].memory.is_same(&world.window()), "not the buffer");
    assert_eq!(given[0].memory_offset, 2 * BLOCK as usize);
    world.drive.store(&given[0]);
    world.drive.answer(&given[0], Status::SUCCESS);
    world.step(1);
    assert_eq!(world.end(2), Some((status::SUCCESS, BLOCK)));
    assert!(world.has(2, 7));
    world.step(1);
    let counters = world.ring.counters();
    assert_eq!((counters.direct_bytes, counters.window_bytes), (u64::from(BLOCK), 0));
}

#[test]
fn what_the_drive_does_not_reach_goes_by_the_window_and_is_said() {
    let mut world = World::new(false);
    world.read(2, 7);
    let given = world.drive.given();
    assert!(given[0].memory.is_same(&world.ring.memory().staging), "not staging");
    world.drive.store(&given[0]);
    world.drive.answer(&given[0], Status::SUCCESS);
    world.step(1);
    assert_eq!(world.end(2), Some((status::SUCCESS, BLOCK)));
    assert!(world.has(2, 7));
    world.step(1);
    let counters = world.ring.counters();
    assert_eq!((counters.direct_bytes, counters.window_bytes), (0, u64::from(BLOCK)));
    assert!(world.ring.complaints()[0].contains("does not reach"), "{:?}", world.ring.complaints());
}

#[test]
fn a_read_whose_limit_passed_ends_once_the_drive_has_let_go() {
    let mut world = World::new(true);
    world.read(0, 3);
    let given = world.drive.given();
    for _ in 0..20 {
        world.step(10);
        assert_eq!(world.end(0), None, "the drive may still store");
    }
    world.drive.store(&given[0]);
    world.drive.answer(&given[0], storage::status::ABORT_REQUESTED);
    world.step(1);
    assert_eq!(world.end(0), Some((status::TIMED_OUT, 0)));
}

#[test]
fn a_buffer_goes_once_the_drive_has_let_go_and_others_are_served_on() {
    let mut world = World::new(true);
    world.read(0, 3);
    let gone = world.buffer.clone();
    let device = world.engine.gpu().allocate_device(u64::from(4 * BLOCK));
    let device = device.expect("device memory");
    world.buffer = world.engine.register_buffer(device, Rights::READ).expect("a buffer");
    world.step(1);
    world.read(1, 4);
    assert_eq!(world.drive.given().len(), 2);
    let retirement = world.engine.deregister_buffer(gone.id()).expect("registered");
    assert!(!retirement.is_complete(), "the drive may still store");
    assert_eq!(world.drive.desk().quiesced, 0);
    world.step(1);
    assert!(retirement.is_complete());
    assert_eq!(world.drive.desk().quiesced, 1, "nothing of the drive's is under way now");
    // Both went again: the one whose buffer is gone not to the buffer, the other one as before.
    let given = world.drive.given();
    let gone = gone.memory().window.clone().expect("simulated memory has one");
    assert!(given.len() == 2 && given.iter().all(|given| !given.memory.is_same(&gone)));
    for given in &given {
        world.drive.store(given);
        world.drive.answer(given, Status::SUCCESS);
    }
    world.step(1);
    assert_eq!(world.end(0), Some((status::STALE_ID, 0)));
    assert_eq!(world.end(1), Some((status::SUCCESS, BLOCK)));
    assert!(world.has(1, 4));
}

#[test]
fn a_panic_ends_what_the_drive_has_before_anybody_is_told() {
    let mut world = World::new(true);
    world.read(0, 3);
    world.drive.desk().panics = true;
    assert_eq!(world.step(1), CoreState::Lost);
    let retirement = world.engine.deregister_buffer(world.buffer.id());
    let retirement = retirement.expect("registered");
    assert!(!retirement.is_complete(), "the drive may still store");
    lock(&world.supervisor).step(world.now_ns);
    assert_eq!(world.drive.desk().quiesced, 1);
    assert_eq!(world.end(0), Some((status::SIDE_CORE_LOST, 0)), "and nothing is unsettled");
    drop(world.side_cores.remove(0));
    let core = lock(&world.supervisor).take_replacement().expect("another one");
    world.side_cores.push(core);
    world.step(1);
    assert!(retirement.is_complete());
}

#[test]
fn a_drive_that_nothing_stops_is_told_of() {
    let mut world = World::new(true);
    world.read(0, 3);
    let given = world.drive.given();
    world.drive.answer(&given[0], Status::HOST_PATHING_ERROR);
    world.step(1);
    let (status, detail) = world.end(0).expect("an end");
    assert_eq!(status, Status::HOST_PATHING_ERROR.bits());
    assert_ne!(detail & DETAIL_UNSETTLED, 0);
}

#[test]
fn a_side_core_that_hangs_leaves_its_reads_unsettled() {
    let mut world = World::new(true);
    world.read(0, 3);
    let (supervisor, now_ns) = (Arc::clone(&world.supervisor), world.now_ns);
    *lock(&world.task) = Some(Box::new(move || {
        // While this side core is in its step, which it does not leave.
        lock(&supervisor).step(now_ns);
        lock(&supervisor).step(now_ns + 60 * MS);
    }));
    world.step(1);
    let (status, detail) = world.end(0).expect("an end");
    assert_eq!(status, status::SIDE_CORE_LOST);
    assert_ne!(detail & DETAIL_UNSETTLED, 0, "the drive may still store");
    let retirement = world.engine.deregister_buffer(world.buffer.id()).expect("registered");
    let core = lock(&world.supervisor).take_replacement().expect("another one");
    let mut lost = std::mem::replace(&mut world.side_cores[0], core);
    world.step(1);
    assert!(!retirement.is_complete(), "the drive may still store");
    lost.step(world.now_ns);
    assert_eq!(world.drive.desk().quiesced, 1);
    assert!(retirement.is_complete());
}
