//! A ring served by a side core that is stepped by hand, against a host thread that plays the GPU.

use std::sync::Arc;
use std::time::Duration;

use abi::ring::{
    Id, OP_CANCEL, OP_FLUSH, OP_READ, OP_WRITE, Request, STATE_CLOSED, STATE_DRAINING,
};
use abi::status;
use gpu::{Gpu, SimulatedGpu, SimulatedOptions};
use sidecore::{
    Buffer, CoreState, Engine, Hooks, Moment, ReadRoute, Rights, Ring, RingConfig, Source, Stepped,
    WriteRoute,
};
use storage::faults::FaultScript;
use storage::{Faulty, MemoryStorage, Storage};
use testkit::pattern;
use testkit::submitter::Submitter;

const BLOCK: u32 = 4096;
const BLOCKS: u64 = 64;
const MS: u64 = 1_000_000;

struct World {
    stepped: Stepped,
    ring: Ring,
    source: Source,
    buffer: Buffer,
    memory: MemoryStorage,
    submitter: Submitter,
    now_ns: Arc<std::sync::atomic::AtomicU64>,
}

fn simulated() -> Arc<dyn Gpu> {
    Arc::new(SimulatedGpu::new(SimulatedOptions::default()))
}

impl World {
    fn new(config: RingConfig, faults: Option<&str>, hooks: Hooks) -> Self {
        let builder = Engine::builder(simulated()).side_cores(1).hooks(hooks);
        let stepped = builder.stall(Duration::from_millis(50)).start_stepped().expect("an engine");
        let memory = MemoryStorage::new(64 * BLOCK as usize).expect("memory");
        let bytes = memory.region().len_bytes();
        pattern::fill_region(memory.region(), 0, bytes, 0, 1);
        let now_ns = Arc::new(std::sync::atomic::AtomicU64::new(MS));
        let mut storage: Arc<dyn Storage> = Arc::new(memory.clone());
        if let Some(script) = faults {
            let script: FaultScript = script.parse().expect("a fault script");
            let clock = Arc::clone(&now_ns);
            let clock = Arc::new(move || clock.load(std::sync::atomic::Ordering::Relaxed));
            storage = Arc::new(Faulty::new(storage, &script, clock));
        }
        let engine = &stepped.engine;
        let source = engine.register_source(storage, Rights::READ_WRITE).expect("a source");
        let device = engine.gpu().allocate_device(bytes as u64).expect("device memory");
        let buffer = engine.register_buffer(device, Rights::READ_WRITE).expect("a buffer");
        let ring = engine.create_ring(config).expect("a ring");
        let submitter = Submitter::new(&ring);
        Self { stepped, ring, source, buffer, memory, submitter, now_ns }
    }

    fn request(&self, opcode: u8, record: u32, block: u64) -> Request {
        Request {
            opcode,
            source: self.source.id(),
            source_offset: block * u64::from(BLOCK),
            buffer: self.buffer.id(),
            buffer_offset: u64::from(record) * u64::from(BLOCK),
            length: BLOCK,
            record,
            record_turn: 0,
            limit_ms: 0,
        }
    }

    fn step(&mut self, ns: u64) -> CoreState {
        let now = self.now_ns.fetch_add(ns, std::sync::atomic::Ordering::Relaxed) + ns;
        let state = self.stepped.side_cores[0].step(now).state;
        self.stepped.supervisor.step(now);
        if let Some(core) = self.stepped.supervisor.take_replacement() {
            self.stepped.side_cores[0] = core;
        }
        state
    }

    /// Steps until a record's request has ended; its status and detail.
    fn end_of(&mut self, record: u32, steps: u32) -> (u16, u32) {
        for _ in 0..steps {
            if let Some(end) = self.submitter.completion(record) {
                return (end.status(), end.detail());
            }
            self.step(MS);
        }
        panic!("record {record} has no end after {steps} ms");
    }

    fn check_read(&self, record: u32, block: u64) {
        let window = self.buffer.memory().window.clone().expect("simulated memory has one");
        let at = (record * BLOCK) as usize;
        let address = block * u64::from(BLOCK);
        pattern::check_region(&window, at, BLOCK as usize, address, 1).expect("the block's bytes");
    }
}

fn small(depth: u32, records: u32) -> RingConfig {
    RingConfig { depth, records, staging_stride: BLOCK, ..RingConfig::default() }
}

#[test]
fn reads_arrive_by_every_route_and_across_every_wrap() {
    for route in [ReadRoute::Window, ReadRoute::Bounce, ReadRoute::Pull] {
        for start_ticket in [0, (1 << 16) - 3, (1 << 32) - 3, u64::MAX - 3] {
            let start_turn = (start_ticket & 0xffff_ffff) as u32;
            let config = RingConfig { read_route: route, start_ticket, start_turn, ..small(4, 8) };
            let mut world = World::new(config, None, Hooks::default());
            for round in 0..12 {
                for record in 0..8 {
                    let block = (round * 8 + u64::from(record)) % BLOCKS;
                    let request = world.request(OP_READ, record, block);
                    while world.submitter.submit(request).is_none() {
                        world.step(1000);
                    }
                }
                for record in 0..8 {
                    assert_eq!(world.end_of(record, 5), (status::SUCCESS, BLOCK));
                    let block = (round * 8 + u64::from(record)) % BLOCKS;
                    if route == ReadRoute::Pull {
                        let staging = &world.submitter.memory().staging;
                        let at = world.submitter.staging_at(record);
                        let address = block * u64::from(BLOCK);
                        pattern::check_region(staging, at, BLOCK as usize, address, 1)
                            .expect("the block's bytes in staging");
                    } else {
                        world.check_read(record, block);
                    }
                }
            }
            world.step(MS);
            let counters = world.ring.counters();
            assert_eq!((counters.requests, counters.completions), (96, 96));
            assert_eq!(counters.request_bytes, 96 * 32);
            assert_eq!(counters.ios_at_device, 96);
            let moved = counters.window_bytes + counters.pull_bytes + counters.bounce_bytes;
            assert_eq!(moved, 96 * u64::from(BLOCK));
        }
    }
}

#[test]
fn writes_arrive_by_every_route() {
    for route in [WriteRoute::Push, WriteRoute::Bounce] {
        let config = RingConfig { write_route: route, ..small(4, 4) };
        let mut world = World::new(config, None, Hooks::default());
        let window = world.buffer.memory().window.clone().expect("simulated memory has one");
        let address = 7 * u64::from(BLOCK);
        pattern::fill_region(&window, BLOCK as usize, BLOCK as usize, address, 2);
        let staging = &world.submitter.memory().staging;
        if route == WriteRoute::Push {
            let at = world.submitter.staging_at(1);
            pattern::fill_region(staging, at, BLOCK as usize, address, 2);
        }
        world.submitter.submit(world.request(OP_WRITE, 1, 7)).expect("room");
        assert_eq!(world.end_of(1, 5), (status::SUCCESS, BLOCK));
        pattern::check_region(world.memory.region(), 7 * 4096, 4096, address, 2).expect("written");
        world.submitter.submit(world.request(OP_FLUSH, 1, 0)).expect("room");
        assert_eq!(world.end_of(1, 5), (status::SUCCESS, 0));
    }
}

#[test]
fn bad_requests_are_refused_with_their_reason() {
    let mut world = World::new(small(8, 4), None, Hooks::default());
    let good = world.request(OP_READ, 0, 0);
    let cases = [
        (Request { opcode: 77, ..good }, status::BAD_OPCODE),
        (Request { source: Id::new(9, 1), ..good }, status::BAD_SOURCE),
        (Request { source: Id::new(0, 9), ..good }, status::STALE_ID),
        (Request { buffer: Id::new(9, 1), ..good }, status::BAD_BUFFER),
        (Request { buffer: Id::new(0, 9), ..good }, status::STALE_ID),
        (Request { length: BLOCK + 1, ..good }, status::BAD_LENGTH),
        (Request { source_offset: BLOCKS * 4096 - 1, ..good }, status::SOURCE_RANGE),
        (Request { source_offset: (1 << 48) - 1, ..good }, status::SOURCE_RANGE),
        (Request { buffer_offset: BLOCKS * 4096 - 4095, ..good }, status::BUFFER_RANGE),
        (Request { buffer_offset: (1 << 40) - 1, ..good }, status::BUFFER_RANGE),
        (good, status::SUCCESS),
    ];
    for (request, expected) in cases {
        world.submitter.submit(request).expect("room");
        assert_eq!(world.end_of(0, 5).0, expected, "{request:?}");
    }
    world.step(MS);
    assert_eq!(world.ring.counters().refused, 10);
}

#[test]
fn storage_faults_end_as_errors_in_the_right_hand() {
    for (script, expected) in [
        ("error:n=4,status=2/81", 0x281),
        ("lost:n=4", status::TIMED_OUT),
        ("late:n=4,ms=200", status::TIMED_OUT),
        ("stuck:n=1,every=3", status::TIMED_OUT),
    ] {
        let limit = Duration::from_millis(100);
        let grace = Duration::from_millis(20);
        let config = RingConfig { limit, grace, ..small(4, 32) };
        let mut world = World::new(config, Some(script), Hooks::default());
        let (mut failed, mut succeeded) = (0, 0);
        for _round in 0..4 {
            for record in 0..32 {
                let request = world.request(OP_READ, record, u64::from(record));
                while world.submitter.submit(request).is_none() {
                    world.step(1000);
                }
            }
            for record in 0..32 {
                match world.end_of(record, 400).0 {
                    status::SUCCESS => {
                        world.check_read(record, u64::from(record));
                        succeeded += 1;
                    }
                    other => {
                        assert_eq!(other, expected, "{script}");
                        failed += 1;
                    }
                }
            }
        }
        assert!(failed > 0 && failed + succeeded == 128, "{script}: {failed} failed");
        if script.starts_with("stuck") {
            assert!(failed <= 32, "{failed} failed: the queue goes on after the round it stuck in");
        } else {
            assert_eq!(failed, 4, "{script}");
        }
        world.step(MS);
        assert!(world.ring.is_quiet());
    }
}

#[test]
fn a_cancelled_request_ends_once_and_early() {
    let config = RingConfig { limit: Duration::from_secs(60), ..small(4, 4) };
    let mut world = World::new(config, Some("lost:n=1,every=1"), Hooks::default());
    let request = world.request(OP_READ, 2, 5);
    let turn = world.submitter.submit(request).expect("room");
    for _ in 0..10 {
        world.step(MS);
    }
    assert!(world.submitter.completion(2).is_none(), "storage is silent");
    let entry = Request { opcode: OP_CANCEL, record_turn: turn, ..request };
    assert!(world.submitter.publish(abi::ring::RequestEntry::pack(&entry, 0).w));
    assert_eq!(world.end_of(2, 300).0, status::CANCELLED);
    world.submitter.submit(request).expect("room");
    assert_eq!(world.end_of(2, 10), (status::SUCCESS, BLOCK));
    world.check_read(2, 5);
}

#[test]
fn a_draining_ring_refuses_and_a_closed_one_is_silent() {
    let mut world = World::new(small(4, 4), None, Hooks::default());
    let request = world.request(OP_READ, 0, 1);
    world.ring.drain();
    assert_eq!(world.submitter.state(), (STATE_DRAINING, 1));
    world.submitter.submit(request).expect("room");
    assert_eq!(world.end_of(0, 5).0, status::RING_CLOSED);
    world.ring.close();
    assert_eq!(world.submitter.state(), (STATE_DRAINING, 1), "the side core has not closed it");
    world.step(MS);
    assert_eq!(world.submitter.state(), (STATE_CLOSED, 1));
    world.submitter.submit(request).expect("room");
    for _ in 0..5 {
        world.step(MS);
    }
    assert!(world.submitter.completion(0).is_none());
    world.ring.restart().expect("a restart");
    assert_eq!(world.end_of(0, 5).0, status::RING_CLOSED, "its lane was told so");
    world.submitter.submit(request).expect("room");
    assert_eq!(world.end_of(0, 5), (status::SUCCESS, BLOCK));
    world.check_read(0, 1);
}

#[test]
fn closing_a_ring_ends_what_is_in_flight_first() {
    let config = RingConfig { limit: Duration::from_secs(60), ..small(4, 4) };
    let mut world = World::new(config, Some("lost:n=2,every=1"), Hooks::default());
    for record in 0..2 {
        world.submitter.submit(world.request(OP_READ, record, 1)).expect("room");
    }
    world.step(MS);
    assert!(!world.ring.is_quiet());
    world.ring.close();
    world.step(MS);
    assert_eq!(world.end_of(0, 1).0, status::CANCELLED);
    assert_eq!(world.end_of(1, 1).0, status::CANCELLED);
    assert_eq!(world.submitter.state().0, STATE_CLOSED);
    world.step(MS);
    assert!(world.ring.is_quiet());
}

#[test]
fn a_panic_at_any_moment_ends_what_was_in_flight_and_the_ring_goes_on() {
    let moments = [
        Moment::BeforeFetch,
        Moment::BeforePoll,
        Moment::BeforeWords,
        Moment::AmidWords,
        Moment::AfterWords,
    ];
    for moment in moments {
        for skip in 0..4 {
            let left = Arc::new(std::sync::atomic::AtomicI64::new(skip));
            let hooks = Hooks::new(move |at| {
                let due =
                    at == moment && left.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) == 0;
                assert!(!due, "injected");
            });
            let mut world = World::new(small(4, 8), None, hooks);
            let (mut lost, mut succeeded) = (0, 0);
            for _round in 0..6 {
                for record in 0..8 {
                    let request = world.request(OP_READ, record, u64::from(record));
                    while world.submitter.submit(request).is_none() {
                        world.step(1000);
                    }
                }
                for record in 0..8 {
                    match world.end_of(record, 20).0 {
                        status::SUCCESS => {
                            world.check_read(record, u64::from(record));
                            succeeded += 1;
                        }
                        status::SIDE_CORE_LOST => lost += 1,
                        other => panic!("status {other:#x}"),
                    }
                }
            }
            assert_eq!(lost + succeeded, 48);
            assert_eq!(world.ring.epoch(), 2, "{moment:?} {skip}");
            assert_eq!(world.submitter.state().1, 2);
            world.step(MS);
            assert_eq!(world.ring.counters().restarts, 1);
        }
    }
}

#[test]
fn a_side_core_that_stands_still_is_replaced() {
    let mut world = World::new(small(4, 8), Some("lost:n=1,every=1"), Hooks::default());
    world.submitter.submit(world.request(OP_READ, 3, 3)).expect("room");
    world.step(MS);
    let stalled = std::mem::take(&mut world.stepped.side_cores);
    for ms in 0..200 {
        world.stepped.supervisor.step((2 + ms) * MS);
        if let Some(core) = world.stepped.supervisor.take_replacement() {
            world.stepped.side_cores.push(core);
            break;
        }
    }
    assert_eq!(world.end_of(3, 1).0, status::SIDE_CORE_LOST);
    world.submitter.submit(world.request(OP_READ, 3, 4)).expect("room");
    let mut old = stalled.into_iter().next().expect("the one side core");
    assert_eq!(old.step(300 * MS).state, CoreState::Deposed);
    assert_eq!(world.end_of(3, 10), (status::SUCCESS, BLOCK));
    world.check_read(3, 4);
    assert_eq!(old.step(301 * MS).state, CoreState::Deposed);
}

#[test]
fn deregistered_ids_are_stale_and_retire() {
    let mut world = World::new(small(4, 4), None, Hooks::default());
    let request = world.request(OP_READ, 0, 1);
    let retirement = world.stepped.engine.deregister_buffer(world.buffer.id()).expect("live");
    assert!(!retirement.is_complete(), "the side core has not looked yet");
    world.step(MS);
    assert!(retirement.is_complete());
    world.submitter.submit(request).expect("room");
    assert_eq!(world.end_of(0, 5).0, status::STALE_ID);
    let again = world.stepped.engine.deregister_buffer(world.buffer.id());
    assert_eq!(again.err().map(|e| e.code()), Some(1));
}

#[test]
fn limits_of_the_engine_are_kept() {
    let stepped = Engine::builder(simulated()).side_cores(3).cpu_max(2).pinned_max(100_000);
    let stepped = stepped.start_stepped().expect("an engine");
    assert_eq!(stepped.side_cores.len(), 2);
    let ring = stepped.engine.create_ring(small(8, 16)).expect("fits");
    assert_eq!(stepped.engine.pinned_bytes(), 8 * 32 + 16 * 4096);
    let refused = stepped.engine.create_ring(small(8, 16)).err().map(|e| e.code());
    assert_eq!(refused, Some(3));
    drop(ring);
    assert_eq!(stepped.engine.pinned_bytes(), 0);
    for config in [small(3, 8), small(8, 0), RingConfig { staging_stride: 0, ..small(8, 8) }] {
        assert_eq!(stepped.engine.create_ring(config).err().map(|e| e.code()), Some(1));
    }
}
