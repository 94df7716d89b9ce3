//! The server rests when there is nothing to do, contains panics and stops within its bound.

use std::sync::atomic::{AtomicBool, Ordering};

use mem::{AddressMap, MemoryKind, Region};
use storage::{
    Completion, Counters, Geometry, Lent, MemoryStorage, QueueOptions, Rejected, Storage,
    StorageError, StorageQueue,
};

use super::*;
use crate::config::Options;

const CC: usize = 0x14;
const CSTS: usize = 0x1c;
const ENABLED: u32 = 0x0046_0001;
const LIMIT: Duration = Duration::from_secs(20);

/// A controller whose admin queues are set up, with its registers and its admin queue memory.
struct Machine {
    bar: Region,
    queues: Region,
    _map: Arc<AddressMap>,
}

fn machine(storage: Arc<dyn Storage>) -> (Controller, Machine) {
    let map = Arc::new(AddressMap::new());
    let queues = Region::map_anonymous(8192, MemoryKind::Host).expect("memory");
    map.register(queues.clone()).expect("no overlap");
    let controller = Controller::new(Options::over(storage), Arc::clone(&map)).expect("options");
    let bar = controller.bar();
    bar.u32_at(0x24).store(15 << 16 | 15, Ordering::Relaxed);
    bar.u64_at(0x28).store(queues.address(), Ordering::Relaxed);
    bar.u64_at(0x30).store(queues.address() + 4096, Ordering::Relaxed);
    (controller, Machine { bar, queues, _map: map })
}

fn memory() -> Arc<dyn Storage> {
    Arc::new(MemoryStorage::new(1 << 20).expect("memory"))
}

impl Machine {
    fn store(&self, offset: usize, value: u32) {
        self.bar.u32_at(offset).store(value, Ordering::Release);
    }

    /// Waits for a value under a mask; the machine may be busy with other tests.
    fn wait(&self, mask: u32, value: u32) {
        let start = Instant::now();
        while self.bar.u32_at(CSTS).load(Ordering::Acquire) & mask != value {
            assert!(start.elapsed() < LIMIT, "CSTS never becomes {value:#x}");
            thread::sleep(Duration::from_micros(200));
        }
    }

    /// Sends an admin command that asks for a feature, and waits for its completion.
    fn ask(&self, slot: u32) {
        let at = slot as usize * 64;
        self.queues.u64_at(at).store(0x0a | u64::from(slot) << 16, Ordering::Relaxed);
        self.queues.u64_at(at + 40).store(7, Ordering::Relaxed);
        self.store(0x1000, slot + 1);
        let start = Instant::now();
        let upper = self.queues.u64_at(4096 + slot as usize * 16 + 8);
        while upper.load(Ordering::Acquire) >> 48 & 1 == 0 {
            assert!(start.elapsed() < LIMIT, "no completion");
            thread::sleep(Duration::from_micros(200));
        }
        assert_eq!(upper.load(Ordering::Acquire) >> 32, 1 << 16 | u64::from(slot));
    }
}

#[test]
fn several_controllers_are_served_and_stopped() {
    let (first, one) = machine(memory());
    let (second, other) = machine(memory());
    let server = Server::start(vec![first, second], ServerOptions::default()).expect("a thread");
    one.store(CC, ENABLED);
    other.store(CC, ENABLED);
    server.wake();
    one.wait(1, 1);
    other.wait(1, 1);
    for slot in 0..10 {
        one.ask(slot);
        other.ask(slot);
    }
    assert_eq!(server.failure(), None);
    assert!(server.stop(LIMIT).expect("stops") > 0.0, "CPU time is counted");
    one.wait(!0, 0);
    assert_eq!(other.bar.u32_at(CC).load(Ordering::Acquire), 0, "the host sees a disabled one");
}

#[test]
fn idle_costs_little_and_wakes_soon() {
    let (controller, machine) = machine(memory());
    let server = Server::start(vec![controller], ServerOptions::default()).expect("a thread");
    machine.store(CC, ENABLED);
    machine.wait(1, 1);
    let before = server.cpu_seconds();
    let start = Instant::now();
    thread::sleep(Duration::from_millis(500));
    let share = (server.cpu_seconds() - before) / start.elapsed().as_secs_f64();
    assert!(share < 0.08, "{share} of a core while idle");
    machine.ask(0);
    machine.store(CC, 0);
    machine.wait(1, 0);
    let before = server.cpu_seconds();
    let start = Instant::now();
    thread::sleep(Duration::from_millis(500));
    let share = (server.cpu_seconds() - before) / start.elapsed().as_secs_f64();
    assert!(share < 0.03, "{share} of a core while disabled");
    server.stop(LIMIT).expect("stops");
}

/// The ladder, without a clock: what it does next is a function of what it was told.
#[test]
fn the_ladder_steps_down_and_starts_anew_at_work() {
    let options = ServerOptions { spin_steps: 3, ..ServerOptions::default() };
    let mut ladder = Ladder::new(&options);
    let us = |us| Rest::Sleep(Duration::from_micros(us));
    assert_eq!(ladder.rest(Progress::Worked, 0), Rest::None);
    assert_eq!(ladder.rest(Progress::Idle, 1_000), Rest::Spin);
    assert_eq!(ladder.rest(Progress::Idle, 2_000), Rest::Spin);
    assert_eq!(ladder.rest(Progress::Idle, 3_000), Rest::Yield);
    assert_eq!(ladder.rest(Progress::Idle, 100_000), Rest::Yield);
    let sleeps: Vec<Rest> = (0..7).map(|_| ladder.rest(Progress::Idle, 200_000)).collect();
    assert_eq!(sleeps, [50, 100, 200, 400, 800, 1000, 1000].map(us));
    let due = |ns| Progress::Waiting { until_ns: Some(ns) };
    assert_eq!(ladder.rest(due(700_000), 200_000), us(420), "shortly before it is due");
    assert_eq!(ladder.rest(due(250_000), 200_000), Rest::Yield, "too near to sleep");
    assert_eq!(ladder.rest(due(9_000_000), 200_000), us(1000), "commands may come");
    assert_eq!(ladder.rest(Progress::Waiting { until_ns: None }, 200_000), us(50));
    assert_eq!(ladder.rest(Progress::Worked, 300_000), Rest::None);
    assert_eq!(ladder.rest(Progress::Idle, 300_000), Rest::Spin);
    for _ in 0..12 {
        ladder.rest(Progress::Stopped, 900_000);
    }
    assert_eq!(ladder.rest(Progress::Stopped, 900_000), us(10_000));
    assert_eq!(ladder.rest(Progress::Idle, 900_000), us(1000), "enabled: no longer than 1 ms");
}

#[test]
fn the_busiest_finding_decides() {
    use Progress::{Idle, Stopped, Waiting, Worked};
    let due = |ns| Waiting { until_ns: Some(ns) };
    assert_eq!(busier(Idle, Worked), Worked);
    assert_eq!(busier(due(9), due(4)), due(4));
    assert_eq!(busier(due(9), Waiting { until_ns: None }), Waiting { until_ns: None });
    assert_eq!(busier(Stopped, due(4)), due(4));
    assert_eq!(busier(Stopped, Idle), Idle);
}

/// Storage that panics when it is asked, or that never lets go.
struct Bad {
    panics: bool,
    release: Arc<AtomicBool>,
}

struct BadQueue {
    panics: bool,
    release: Arc<AtomicBool>,
}

impl Storage for Bad {
    fn geometry(&self) -> Geometry {
        Geometry { bytes: 1 << 20, block_bytes: 1, transfer_bytes_max: 1 << 20, read_only: false }
    }

    fn open_queue(&self, _: &QueueOptions) -> Result<Box<dyn StorageQueue>, StorageError> {
        assert!(!self.panics, "a panic on purpose");
        Ok(Box::new(BadQueue { panics: self.panics, release: Arc::clone(&self.release) }))
    }

    fn explain(&self) -> String {
        "bad".to_owned()
    }
}

impl StorageQueue for BadQueue {
    fn try_submit(&mut self, _: Lent<'_>) -> Result<(), Rejected> {
        assert!(!self.panics, "a panic on purpose");
        Err(Rejected::QueueFull)
    }

    fn poll(&mut self, _: &mut Vec<Completion>) {}

    fn wait_for_completion(&mut self, _: Duration) {}

    fn cancel(&mut self, _: u64) {}

    fn quiesce(&mut self, _: &mut Vec<Completion>) {
        while !self.release.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn in_flight(&self) -> u32 {
        0
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

#[test]
fn a_panic_is_contained_and_told() {
    let release = Arc::new(AtomicBool::new(true));
    let (bad, broken) = machine(Arc::new(Bad { panics: true, release }));
    let (good, healthy) = machine(memory());
    let server = Server::start(vec![bad, good], ServerOptions::default()).expect("a thread");
    broken.store(CC, ENABLED);
    broken.wait(2, 2);
    healthy.store(CC, ENABLED);
    healthy.wait(1, 1);
    healthy.ask(0);
    assert_eq!(server.failure().as_deref(), Some("a panic on purpose"));
    let error = server.stop(LIMIT).expect_err("it says so");
    assert!(matches!(error, ServerError::Panicked(_)), "{error}");
}

#[test]
fn stopping_is_bounded_by_its_limit() {
    let release = Arc::new(AtomicBool::new(false));
    let bad = Bad { panics: false, release: Arc::clone(&release) };
    let (controller, machine) = machine(Arc::new(bad));
    let server = Server::start(vec![controller], ServerOptions::default()).expect("a thread");
    machine.store(CC, ENABLED);
    machine.wait(1, 1);
    let start = Instant::now();
    let error = server.stop(Duration::from_millis(50)).expect_err("its storage holds it");
    assert!(matches!(error, ServerError::Stuck(_)), "{error}");
    assert!(start.elapsed() < LIMIT);
    release.store(true, Ordering::Release);
}
