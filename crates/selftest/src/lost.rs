//! What must not be lost when something else is: side cores that panic or stand still while lanes wait,
//! drives that fail, memory that is given back while completions are late.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use abi::bench::ProbeResult;
use abi::status;
use gpu::{Copy, DeviceMemory, Gpu};
use sidecore::{Engine, Hooks, Moment, ReadRoute, Rights, RingConfig};
use storage::faults::FaultScript;
use storage::{Faulty, Storage};
use zerocopy::IntoBytes;

use crate::bed::{Bed, Probe, launch, read, shape, sum};

/// A request's limit.
const LIMIT: Duration = Duration::from_millis(200);
/// How long a side core may stand still.
const STALL: Duration = Duration::from_millis(100);
/// What a limit may be exceeded by.
const SLACK: Duration = Duration::from_millis(10);

fn config() -> RingConfig {
    RingConfig {
        depth: 64,
        records: 1024,
        limit: LIMIT,
        grace: Duration::from_millis(20),
        ..RingConfig::default()
    }
}

/// By the real clock; for late completions.
fn faulty(inner: Arc<dyn Storage>, script: &str) -> Arc<dyn Storage> {
    let script: FaultScript = script.parse().unwrap();
    let start = Instant::now();
    let clock = move || u64::try_from(start.elapsed().as_nanos()).unwrap();
    Arc::new(Faulty::new(inner, &script, Arc::new(clock)))
}

/// A moment that comes to a side core once, after it has come some times.
fn once(at: Moment, after: i64, act: impl Fn() + Send + Sync + 'static) -> Hooks {
    let left = AtomicI64::new(after);
    Hooks::new(move |moment| {
        if moment == at && left.fetch_sub(1, Ordering::Relaxed) == 0 {
            act();
        }
    })
}

/// Runs a probe on an engine with hooks: what lanes saw, and by how much the kernel took longer than one
/// that nothing happens to.
fn disturbed(gpu: &Arc<dyn Gpu>, hooks: Hooks) -> (Bed, ProbeResult, Duration) {
    let probe = Probe { rounds: 12, ..Probe::default() };
    let plain = Bed::new(gpu, config());
    plain.run(&kernels::PROBE_READ, &probe);
    let start = Instant::now();
    assert_eq!(sum(&plain.run(&kernels::PROBE_READ, &probe)).failed, 0);
    let usual = start.elapsed();
    drop(plain);
    let builder = Engine::builder(Arc::clone(gpu)).side_cores(1).stall(STALL).hooks(hooks);
    let bed = Bed::with(builder, config(), |memory| memory);
    let start = Instant::now();
    let seen = sum(&bed.run(&kernels::PROBE_READ, &probe));
    (bed, seen, start.elapsed().saturating_sub(usual))
}

/// The simulated GPU shares its CPUs with the side cores, so its time says little.
fn in_time(gpu: &Arc<dyn Gpu>, longer: Duration, bound: Duration) {
    let slack = if gpu.describe().simulated { Duration::from_secs(5) } else { SLACK };
    assert!(longer <= bound + slack, "the kernel took {longer:?} longer; {bound:?} are allowed");
}

pub fn a_panicking_side_core_is_heard_of_within_the_limit(gpu: &Arc<dyn Gpu>) {
    let panics = || std::panic::resume_unwind(Box::new("injected"));
    let (bed, seen, longer) = disturbed(gpu, once(Moment::BeforeWords, 5, panics));
    assert_eq!(seen.status, status::SIDE_CORE_LOST.into(), "{seen:?}");
    assert!(seen.failed > 0 && seen.succeeded > 300 && seen.wrong_bytes == 0, "{seen:?}");
    in_time(gpu, longer, LIMIT);
    assert_eq!(bed.ring.epoch(), 2);
    let next = sum(&bed.run(&kernels::PROBE_READ, &Probe::default()));
    assert_eq!((next.failed, next.busy, next.wrong_bytes), (0, 0, 0), "the next kernel: {next:?}");
}

pub fn a_side_core_that_stands_still_is_heard_of_within_the_limit(gpu: &Arc<dyn Gpu>) {
    let gate = Arc::new(AtomicI64::new(0));
    let open = Arc::clone(&gate);
    let waits = move || {
        let start = Instant::now();
        while open.load(Ordering::Acquire) == 0 && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let (bed, seen, longer) = disturbed(gpu, once(Moment::BeforePoll, 5, waits));
    assert!(seen.failed > 0 && seen.wrong_bytes == 0, "{seen:?}");
    // Lanes hear at the latest after twice the limit from when the side core is given up.
    in_time(gpu, longer, STALL + 2 * LIMIT);
    gate.store(1, Ordering::Release);
    let start = Instant::now();
    loop {
        // Records whose staging the old side core may still write stay poisoned until it is gone.
        let next = sum(&bed.run(&kernels::PROBE_READ, &Probe::default()));
        assert_eq!(next.wrong_bytes, 0, "{next:?}");
        if next.failed == 0 && next.busy == 0 {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "no kernel works again: {next:?}");
    }
}

pub fn injected_faults_reach_the_lanes_that_they_hit(gpu: &Arc<dyn Gpu>) {
    let probe = Probe { rounds: 4, ..Probe::default() };
    let run = |script: &str, kernel, route| {
        let config = RingConfig { read_route: route, ..config() };
        let bed = Bed::over(gpu, config, |inner| faulty(inner, script));
        let seen = sum(&bed.run(&kernel, &probe));
        assert!(seen.succeeded > 0, "{script}: {seen:?}");
        seen
    };
    for route in [ReadRoute::Window, ReadRoute::Pull, ReadRoute::Bounce] {
        for (script, failed, wrong) in [
            ("error:n=10,status=2/81", 10, 0),
            ("late:ms=20,n=10", 0, 0),
            ("lost:n=10", 10, 0),
            ("duplicate:n=10", 0, 0),
            ("flip:n=10", 0, 10),
        ] {
            let seen = run(script, kernels::PROBE_READ, route);
            let found = (seen.failed, seen.wrong_bytes);
            assert_eq!(found, (failed, wrong), "{script}, {route:?}: {seen:?}");
        }
    }
    let torn = run("torn:n=10", kernels::PROBE_WRITE, ReadRoute::Pull);
    assert!(torn.failed == 10 && torn.wrong_bytes > 0, "torn: {torn:?}");
    let reset = run("reset:n=1,after=100", kernels::PROBE_READ, ReadRoute::Window);
    assert!(reset.failed > 0 && reset.wrong_bytes == 0, "reset: {reset:?}");
    let stuck = run("stuck:n=1,after=100", kernels::PROBE_READ, ReadRoute::Pull);
    assert!(stuck.failed > 0 && stuck.wrong_bytes == 0, "stuck: {stuck:?}");
}

/// Memory of a buffer, filled by the copy engine.
fn filled(gpu: &Arc<dyn Gpu>, bytes: usize, value: u8) -> DeviceMemory {
    let memory = gpu.allocate_device(bytes as u64).unwrap();
    let host = gpu.allocate_host(bytes as u64).unwrap();
    host.fill(0, bytes, value);
    let copy = Copy { host: &host, host_offset: 0, device: &memory, device_offset: 0, bytes };
    gpu.copy_to_device(copy).unwrap();
    memory
}

/// Lanes leave with a second's worth of completions behind them; the buffer is given back, and what comes
/// to lie there stays as it is.
pub fn late_payload_never_lands_in_memory_that_is_used_again(gpu: &Arc<dyn Gpu>) {
    const BYTES: usize = 4 << 20;
    for route in [ReadRoute::Window, ReadRoute::Bounce] {
        let config = RingConfig { read_route: route, limit: Duration::from_secs(5), ..config() };
        let bed = Bed::over(gpu, config, |inner| faulty(inner, "late:ms=1000,rate=1"));
        let results = gpu.allocate_device(256 * 32).unwrap();
        drop(filled(gpu, BYTES, 0));
        let before = gpu.free_bytes();
        let memory = gpu.allocate_device(BYTES as u64).unwrap();
        let address = memory.address;
        let buffer = bed.engine.register_buffer(memory, Rights::READ_WRITE).unwrap();
        let probe = Probe { shape: shape(4, 64), ..Probe::default() };
        let args = bed.arguments(&probe, bed.ring.view(), &buffer, results.address);
        launch(gpu, &kernels::PROBE_ABANDON, probe.shape, args.as_bytes());
        // The kernel is over, 256 requests are not.
        bed.ring.quiesce();
        bed.ring.wait_quiet(Duration::from_secs(5)).unwrap();
        let retirement = bed.engine.deregister_buffer(buffer.id()).unwrap();
        retirement.wait(Duration::from_secs(5)).unwrap();
        drop(buffer);
        let again = filled(gpu, BYTES, 0x5a);
        // It need not, but mostly does.
        let place = if again.address == address { "the same" } else { "another" };
        eprintln!("{route:?}: what was allocated next lies at {place} place");
        std::thread::sleep(Duration::from_secs(2));
        let mut bytes = vec![0; BYTES];
        read(gpu, &again, &mut bytes);
        let wrong = bytes.iter().filter(|byte| **byte != 0x5a).count();
        assert_eq!(wrong, 0, "{route:?}: late payload came down on other data");
        drop(again);
        assert_eq!(gpu.free_bytes(), before, "{route:?}: device memory is not back");
    }
}
