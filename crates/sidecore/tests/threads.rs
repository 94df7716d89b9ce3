//! An engine with its own threads: service, loss, replacement, idling and the shared page.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use abi::ring::{OP_READ, Request};
use abi::status;
use gpu::{Gpu, SimulatedGpu, SimulatedOptions};
use sidecore::{Engine, EngineBuilder, Hooks, Moment, Rights, Ring, RingConfig};
use storage::{Faulty, MemoryStorage, Storage};
use testkit::pattern;
use testkit::submitter::Submitter;

const BLOCK: u32 = 4096;

fn builder() -> EngineBuilder {
    let gpu: Arc<dyn Gpu> = Arc::new(SimulatedGpu::new(SimulatedOptions::default()));
    Engine::builder(gpu).side_cores(1)
}

struct World {
    // First, so that it goes first.
    ring: Ring,
    engine: Engine,
    submitter: Submitter,
    request: Request,
    window: mem::Region,
}

fn world(builder: EngineBuilder) -> World {
    let engine = builder.start().expect("an engine");
    let memory = MemoryStorage::new(16 * BLOCK as usize).expect("memory");
    pattern::fill_region(memory.region(), 0, 16 * BLOCK as usize, 0, 1);
    let source = engine.register_source(Arc::new(memory), Rights::READ).expect("a source");
    let device = engine.gpu().allocate_device(u64::from(BLOCK)).expect("device memory");
    let window = device.window.clone().expect("simulated memory has one");
    let buffer = engine.register_buffer(device, Rights::READ).expect("a buffer");
    let ring = engine.create_ring(RingConfig { depth: 8, records: 8, ..RingConfig::default() });
    let ring = ring.expect("a ring");
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
    let submitter = Submitter::new(&ring);
    World { ring, engine, submitter, request, window }
}

impl World {
    fn serve(&mut self, block: u64) -> u16 {
        self.request.source_offset = block * u64::from(BLOCK);
        self.submitter.submit(self.request).expect("room");
        let start = Instant::now();
        loop {
            if let Some(end) = self.submitter.completion(0) {
                return end.status();
            }
            assert!(start.elapsed() < Duration::from_secs(10), "no end of a read");
            std::thread::yield_now();
        }
    }

    fn check(&self, block: u64) {
        let address = block * u64::from(BLOCK);
        pattern::check_region(&self.window, 0, BLOCK as usize, address, 1).expect("its bytes");
    }
}

#[test]
fn threads_serve_and_a_panicking_side_core_is_replaced() {
    let left = Arc::new(AtomicI64::new(40));
    let hooks = Hooks::new(move |at| {
        if at == Moment::BeforeWords && left.fetch_sub(1, Ordering::Relaxed) == 0 {
            std::panic::resume_unwind(Box::new("injected"));
        }
    });
    let page = Arc::new(stats::Page::private().expect("a page"));
    let mut world = world(builder().hooks(hooks).stats(Arc::clone(&page)));
    let mut lost = 0;
    for round in 0..200 {
        match world.serve(round % 16) {
            status::SUCCESS => world.check(round % 16),
            status::SIDE_CORE_LOST => lost += 1,
            other => panic!("status {other:#x}"),
        }
    }
    assert!(lost <= 1, "{lost} requests were in flight in the one panic");
    assert_eq!(world.ring.epoch(), 2);
    world.ring.wait_quiet(Duration::from_secs(5)).expect("quiet");
    let start = Instant::now();
    loop {
        let snapshot = page.snapshot().expect("a snapshot");
        let (fetched, bytes) = (
            snapshot.count(stats::Event::RequestFetched),
            snapshot.count(stats::Event::RequestByte),
        );
        if fetched == 200 && bytes == 200 * 32 {
            assert_eq!(snapshot.count(stats::Event::SideCoreLost), lost);
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(5), "{fetched} fetched, {bytes} bytes");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_ring_is_not_quiet_before_what_was_published_is_answered() {
    let mut world = world(builder());
    for round in 0..100 {
        // Asleep for up to a millisecond, the side core has not seen what is published now.
        std::thread::sleep(Duration::from_micros(1500));
        world.request.source_offset = round % 16 * u64::from(BLOCK);
        world.submitter.submit(world.request).expect("room");
        world.ring.wait_quiet(Duration::from_secs(5)).expect("quiet");
        let end = world.submitter.completion(0).expect("quiet, and not answered");
        assert_eq!(end.status(), status::SUCCESS);
        world.check(round % 16);
    }
}

#[test]
fn a_side_core_stuck_inside_its_ring_is_replaced_and_its_records_come_back() {
    let (left, gate) = (Arc::new(AtomicI64::new(20)), Arc::new(AtomicI64::new(0)));
    let open = Arc::clone(&gate);
    let hooks = Hooks::new(move |at| {
        if at == Moment::BeforePoll && left.fetch_sub(1, Ordering::Relaxed) == 0 {
            while open.load(Ordering::Acquire) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let mut world = world(builder().hooks(hooks).stall(Duration::from_millis(100)));
    let mut lost = 0;
    while lost == 0 {
        match world.serve(3) {
            status::SUCCESS => world.check(3),
            status::SIDE_CORE_LOST => lost += 1,
            other => panic!("status {other:#x}"),
        }
    }
    assert_eq!(world.serve(3), status::BUFFER_POISONED, "storage may still write its staging");
    let mut served = 0;
    gate.store(1, Ordering::Release);
    let start = Instant::now();
    while served < 10 {
        match world.serve(5) {
            status::SUCCESS => {
                world.check(5);
                served += 1;
            }
            status::BUFFER_POISONED => {}
            other => panic!("status {other:#x}"),
        }
        assert!(start.elapsed() < Duration::from_secs(5), "the record stays poisoned");
    }
}

#[test]
fn an_idle_side_core_rests_and_wakes_soon() {
    let mut world = world(builder());
    world.serve(1);
    std::thread::sleep(Duration::from_millis(50));
    let before = world.engine.cpu_seconds();
    std::thread::sleep(Duration::from_millis(500));
    let spent = world.engine.cpu_seconds() - before;
    assert!(spent < 0.1, "an idle side core used {spent} s of 0.5 s");
    let start = Instant::now();
    world.serve(2);
    world.check(2);
    assert!(start.elapsed() < Duration::from_millis(500), "{:?} after idling", start.elapsed());
}

#[test]
fn a_pin_that_cannot_be_had_is_refused() {
    let refused = builder().pin_from(100_000).start();
    assert_eq!(refused.err().map(|error| error.code()), Some(2));
}

/// Whoever waited in a ring whose engine had gone waited for ever.
#[test]
fn an_engine_that_ends_answers_what_is_in_flight_and_closes_its_rings() {
    let World { ring, engine, mut submitter, mut request, .. } = world(builder());
    let memory: Arc<dyn Storage> = Arc::new(MemoryStorage::new(BLOCK as usize).expect("memory"));
    let silent = "lost:rate=1".parse().expect("a script");
    let faulty = Faulty::new(memory, &silent, Arc::new(|| 0));
    let source = engine.register_source(Arc::new(faulty), Rights::READ).expect("a source");
    request.source = source.id();
    submitter.submit(request).expect("room");
    let start = Instant::now();
    while ring.in_flight() == 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "nobody fetched it");
        std::thread::yield_now();
    }
    assert!(submitter.completion(0).is_none());
    drop(engine);
    let end = submitter.completion(0).expect("it has ended");
    assert_ne!(end.status(), status::SUCCESS);
    assert_eq!(ring.in_flight(), 0);
    assert!(ring.restart().is_err(), "nobody would serve it");
}
