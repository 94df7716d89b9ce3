//! A queue pair that lanes drive, made by hand over a software controller that is stepped beside them.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use abi::bench::{ProbeResult, QueueProbeArgs};
use abi::queue::{DmaBufferView, QueueState};
use abi::status;
use gpu::{Gpu, Kernel};
use mem::MemoryKind;
use zerocopy::{FromZeros, IntoBytes};

use crate::bed;
use crate::queue_bed::{Config, QueueBed, SOURCE_BYTES, Turn};
use crate::stuck::{self, Standing, Until};

/// What a test launches.
#[derive(Clone, Copy)]
struct Probe {
    blocks: u32,
    threads: u32,
    rounds: u32,
    bytes: u32,
    batch: u32,
    seed: u32,
    patience: Duration,
    timeout: Duration,
    /// Completions that each side drains before a hand-over; 0: none.
    flip_after: u64,
    /// Whether anything is served.
    served: bool,
}

impl Default for Probe {
    fn default() -> Self {
        Self {
            blocks: 2,
            threads: 64,
            rounds: 4,
            bytes: 512,
            batch: 1,
            seed: 1,
            patience: Duration::from_secs(60),
            timeout: Duration::from_secs(60),
            flip_after: 0,
            served: true,
        }
    }
}

#[derive(Default)]
struct Ran {
    seen: ProbeResult,
    agent_drained: u64,
    flips: u64,
}

/// Launches a kernel and serves it from this thread; what all lanes saw together.
fn run(pair: &mut QueueBed, kernel: &Kernel, probe: Probe) -> Ran {
    let gpu = Arc::clone(&pair.gpu);
    let lanes = (probe.blocks * probe.threads) as usize;
    let bytes = lanes * (probe.batch * probe.bytes) as usize;
    let buffer = gpu.allocate_device(bytes as u64).unwrap();
    let window = buffer.window.clone().expect("the drive stores through a window");
    pair.map.register(window.clone()).unwrap();
    let results = gpu.allocate_host(lanes as u64 * 32).unwrap();
    results.fill(0, lanes * 32, 0);
    let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap();
    let args = QueueProbeArgs {
        queue: pair.view(),
        buffer: DmaBufferView {
            address: buffer.address,
            bus: window.address(),
            bytes: bytes as u64,
        },
        source_bytes: SOURCE_BYTES as u64,
        results: results.address(),
        patience_ns: ns(probe.patience),
        timeout_ns: ns(probe.timeout),
        rounds: probe.rounds,
        bytes: probe.bytes,
        batch: probe.batch,
        seed: probe.seed,
    };
    let shape = bed::shape(probe.blocks, probe.threads);
    let mut launch = gpu.launch(kernel, shape, args.as_bytes()).unwrap();
    let over = AtomicBool::new(false);
    let (view, device, cq) = (args.queue, pair.device.clone(), pair.cq.clone());
    let placement = format!("{:?}", pair.config);
    let served = std::thread::scope(|scope| {
        let service = scope.spawn(|| serve(pair, probe, &over));
        // Also where it panics: the service would go on for ever.
        let until = Until(&over);
        let standing = Standing { view: &view, device: &device, cq: (&cq, 0) };
        let at = || format!("{placement}\n{}", standing.tell());
        stuck::finish(&gpu, launch.as_mut(), kernel.name, at, || standing.close());
        drop(until);
        service.join().unwrap()
    });
    let mut all = vec![ProbeResult::new_zeroed(); lanes];
    results.read_bytes(0, all.as_mut_bytes());
    let mut ran = served;
    for (lane, r) in all.iter().enumerate() {
        assert_eq!(r.finished, 1, "lane {lane}");
        ran.seen.succeeded += r.succeeded;
        ran.seen.failed += r.failed;
        ran.seen.wrong_bytes += r.wrong_bytes;
        ran.seen.not_submitted += r.not_submitted;
        ran.seen.pending += r.pending;
        ran.seen.busy += r.busy;
        ran.seen.status = if r.status == 0 { ran.seen.status } else { r.status };
    }
    ran
}

/// Controller and agent, until the kernel is over and nothing is left to do.
fn serve(bed: &mut QueueBed, probe: Probe, over: &AtomicBool) -> Ran {
    let mut agent = bed.agent();
    let clock = Instant::now();
    let (mut idle, mut at_flip) = (0, 0);
    while !(over.load(Ordering::Relaxed) && (idle > 200 || !probe.served)) {
        if !probe.served {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let now_ns = 1_000_000 + u64::try_from(clock.elapsed().as_nanos()).unwrap();
        let mut busy = bed.controller.step(now_ns) == ctrl::Progress::Worked;
        if !bed.config.scan {
            busy |= agent.step();
            let drained = agent.drained + bed.state(offset_of!(QueueState, drained));
            if probe.flip_after != 0 && drained - at_flip >= probe.flip_after {
                at_flip = drained;
                match agent.turn {
                    Turn::Cpu if !over.load(Ordering::Relaxed) => agent.give(),
                    Turn::Gpu => agent.recall(),
                    _ => {}
                }
            }
            if over.load(Ordering::Relaxed) && agent.turn == Turn::Gpu {
                agent.recall();
            }
        }
        idle = if busy { 0 } else { idle + 1 };
        if idle > 20 {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
    Ran { agent_drained: agent.drained, flips: agent.flips, ..Ran::default() }
}

/// Both protocols with everything that a test of both needs.
fn both(depth_log2: u32) -> [(Config, [Kernel; 4]); 2] {
    let bam = [kernels::BAM_READ, kernels::BAM_BATCH, kernels::BAM_WRITE, kernels::BAM_GIVE_UP];
    let copilot = [
        kernels::COPILOT_READ,
        kernels::COPILOT_BATCH,
        kernels::COPILOT_WRITE,
        kernels::COPILOT_GIVE_UP,
    ];
    [(Config::bam(depth_log2), bam), (Config::copilot(depth_log2), copilot)]
}

pub fn shallow_queues_serve_whole_warps_from_below_every_wrap(gpu: &Arc<dyn Gpu>) {
    for depth_log2 in [1, 2, 3, 6] {
        for start in [0, 0xffff, 0xffff_ffff, u64::MAX - (4 << depth_log2)] {
            for (config, [read, ..]) in both(depth_log2) {
                let config = Config { start: start - (2 << depth_log2).min(start), ..config };
                let mut bed = QueueBed::on(gpu, config);
                let ran = run(&mut bed, &read, Probe::default());
                let at = format!("depth 2^{depth_log2}, start {start:#x}, {}", read.name);
                let seen = ran.seen;
                assert_eq!(
                    (seen.failed, seen.wrong_bytes, seen.status),
                    (0, 0, 0),
                    "{at}: {seen:?}"
                );
                assert!(seen.succeeded > 300 && seen.busy > 0, "{at}: {seen:?}");
                let commands = bed.controller.counters().read().io_commands;
                assert_eq!(commands, u64::from(seen.succeeded + seen.busy), "{at}");
                let doorbells = bed.state(offset_of!(QueueState, sq_doorbells));
                assert!(doorbells > 0 && doorbells <= commands, "{at}: {doorbells}");
                if !bed.config.scan {
                    assert_eq!(ran.agent_drained, commands, "{at}");
                }
            }
        }
    }
}

pub fn more_in_flight_than_the_queue_is_deep(gpu: &Arc<dyn Gpu>) {
    for depth_log2 in [1, 2, 4] {
        for (config, [_, batch, ..]) in both(depth_log2) {
            let mut bed = QueueBed::on(gpu, Config { cid_log2: 11, prp_lists: false, ..config });
            let probe = Probe { batch: 16, threads: 48, rounds: 2, ..Probe::default() };
            let ran = run(&mut bed, &batch, probe);
            let at = format!("depth 2^{depth_log2}, {}", batch.name);
            assert_eq!((ran.seen.failed, ran.seen.wrong_bytes), (0, 0), "{at}: {:?}", ran.seen);
            assert_eq!(ran.seen.succeeded, 2 * 48 * 16 * 2, "{at}: {:?}", ran.seen);
            // Nothing is left behind in the CQ, and the drive knows.
            if bed.config.scan {
                let head = bed.state(offset_of!(QueueState, cq_head));
                assert_eq!(head, bed.state(offset_of!(QueueState, in_ticket)), "{at}");
                let rung = bed.bar.u32_at(0x100c).load(Ordering::Acquire);
                assert_eq!(u64::from(rung), head & ((1 << depth_log2) - 1), "{at}");
            }
        }
    }
}

pub fn writes_and_flushes_over_lists_of_pages_in_all_placements(gpu: &Arc<dyn Gpu>) {
    for sq in [MemoryKind::Host, MemoryKind::Window] {
        for cq in [MemoryKind::Host, MemoryKind::Window] {
            for bytes in [512, 4096, 8192, 20480] {
                for (config, [read, _, write, _]) in both(5) {
                    let mut bed = QueueBed::on(gpu, Config { sq, cq, cid_log2: 6, ..config });
                    let probe =
                        Probe { blocks: 1, threads: 40, rounds: 2, bytes, ..Probe::default() };
                    let ran = run(&mut bed, &write, Probe { seed: 7, ..probe });
                    let at = format!("{sq:?} {cq:?} {bytes} {}", write.name);
                    assert_eq!(
                        (ran.seen.failed, ran.seen.wrong_bytes),
                        (0, 0),
                        "{at}: {:?}",
                        ran.seen
                    );
                    assert_eq!(ran.seen.succeeded, 40 * 2 * 3, "{at}: {:?}", ran.seen);
                    let mut fresh = QueueBed::on(gpu, Config { sq, cq, cid_log2: 6, ..bed.config });
                    let ran = run(&mut fresh, &read, probe);
                    assert_eq!(
                        (ran.seen.failed, ran.seen.wrong_bytes),
                        (0, 0),
                        "{at}: {:?}",
                        ran.seen
                    );
                }
            }
        }
    }
}

pub fn a_drives_status_reaches_the_lane(gpu: &Arc<dyn Gpu>) {
    for (config, [_, batch, ..]) in both(3) {
        let mut bed =
            QueueBed::on(gpu, Config { faults: "error:n=20,status=2/81".into(), ..config });
        let probe = Probe { batch: 4, rounds: 2, ..Probe::default() };
        let seen = run(&mut bed, &batch, probe).seen;
        assert_eq!((seen.failed, seen.status & 0x7ff), (20, 0x281), "{}: {seen:?}", batch.name);
        assert_eq!((seen.succeeded, seen.wrong_bytes), (2 * 64 * 4 * 2 - 20, 0), "{seen:?}");
    }
}

pub fn command_ids_of_lanes_that_left_come_back(gpu: &Arc<dyn Gpu>) {
    for (config, [read, ..]) in both(4) {
        let mut bed = QueueBed::on(gpu, Config { cid_log2: 2, ..config });
        let seen = run(&mut bed, &read, Probe { rounds: 16, ..Probe::default() }).seen;
        assert!(seen.busy > 16, "{}: {seen:?}", read.name);
        assert_eq!((seen.failed, seen.wrong_bytes, seen.status), (0, 0, 0), "{seen:?}");
    }
}

pub fn duplicates_end_nothing(gpu: &Arc<dyn Gpu>) {
    for (config, [_, batch, ..]) in both(5) {
        let mut bed = QueueBed::on(gpu, Config { faults: "duplicate:n=20".into(), ..config });
        let probe = Probe { batch: 4, rounds: 2, ..Probe::default() };
        let seen = run(&mut bed, &batch, probe).seen;
        let at = batch.name;
        assert_eq!((seen.failed, seen.wrong_bytes), (0, 0), "{at}: {seen:?}");
        assert_eq!(seen.succeeded, 2 * 64 * 4 * 2, "{at}: {seen:?}");
    }
}

pub fn without_an_answer_every_wait_ends_and_the_host_hears_of_it(gpu: &Arc<dyn Gpu>) {
    for (config, [read, batch, _, give_up]) in both(3) {
        for kernel in [read, batch, give_up] {
            let mut bed = QueueBed::on(gpu, Config { limit_ms: 10, ..config.clone() });
            let probe = Probe {
                served: false,
                rounds: 1,
                blocks: 1,
                threads: 32,
                patience: Duration::from_millis(30),
                timeout: Duration::from_millis(5),
                ..Probe::default()
            };
            let started = Instant::now();
            let seen = run(&mut bed, &kernel, probe).seen;
            let at = format!("{}: {seen:?}", kernel.name);
            assert!(started.elapsed() < Duration::from_secs(20), "{at}");
            assert_eq!((seen.succeeded, seen.failed), (0, 0), "{at}");
            assert!(seen.pending > 0 && seen.not_submitted > 0, "{at}");
            assert!(seen.pending + seen.busy >= 7, "{at}");
            assert_ne!(bed.host.u64_at(8).load(Ordering::Acquire), 0, "{at}: no alarm");
            let complaints = (0..1 << bed.config.cid_log2)
                .filter(|cid| bed.host.u64_at(16 + cid * 8).load(Ordering::Acquire) != 0);
            assert!(complaints.count() > 0, "{at}: no complaint");
        }
    }
}

pub fn a_closed_queue_serves_nobody(gpu: &Arc<dyn Gpu>) {
    for (config, kernels) in both(3) {
        for kernel in kernels {
            let mut bed = QueueBed::on(gpu, config.clone());
            bed.store_state(u64::from(abi::queue::QUEUE_CLOSED) | 1 << 32);
            let seen = run(&mut bed, &kernel, Probe { served: false, ..Probe::default() }).seen;
            assert_eq!((seen.succeeded, seen.pending), (0, 0), "{}: {seen:?}", kernel.name);
            assert_eq!(seen.status, status::RING_CLOSED.into(), "{}: {seen:?}", kernel.name);
        }
    }
}

pub fn a_lane_attaches_only_to_a_pair_of_its_protocol(gpu: &Arc<dyn Gpu>) {
    let mut bed = QueueBed::on(gpu, Config::bam(3));
    let seen = run(&mut bed, &kernels::COPILOT_READ, Probe::default()).seen;
    assert_eq!((seen.succeeded, seen.status), (0, status::RING_CLOSED.into()), "{seen:?}");
}

pub fn the_completion_queue_changes_hands(gpu: &Arc<dyn Gpu>) {
    for (depth_log2, flip_after) in [(2, 3), (4, 10), (6, 100)] {
        let mut bed = QueueBed::on(gpu, Config::copilot(depth_log2));
        let probe = Probe { rounds: 40, flip_after, ..Probe::default() };
        let ran = run(&mut bed, &kernels::COPILOT_READ, probe);
        let seen = ran.seen;
        assert_eq!((seen.failed, seen.wrong_bytes, seen.status), (0, 0, 0), "{seen:?}");
        let by_gpu = bed.state(offset_of!(QueueState, drained));
        let commands = bed.controller.counters().read().io_commands;
        assert_eq!(commands, u64::from(seen.succeeded + seen.busy), "{seen:?}");
        assert_eq!(by_gpu + ran.agent_drained, commands, "{} flips", ran.flips);
        assert!(ran.flips > 1 && by_gpu > 0 && ran.agent_drained > 0, "{} {by_gpu}", ran.flips);
    }
}

pub fn second_reads_are_shared_and_counted_apart(gpu: &Arc<dyn Gpu>) {
    for (config, [_, batch, ..]) in both(5) {
        let mut bed = QueueBed::on(gpu, Config { second_read: true, ..config });
        let seen = run(&mut bed, &batch, Probe { batch: 2, ..Probe::default() }).seen;
        assert_eq!((seen.failed, seen.wrong_bytes), (0, 0), "{}: {seen:?}", batch.name);
        let fences = bed.state(offset_of!(QueueState, fence_ios));
        let commands = bed.controller.counters().read().io_commands;
        assert_eq!(commands, u64::from(seen.succeeded) + fences, "{}", batch.name);
        assert!(fences > 0 && fences <= u64::from(seen.succeeded), "{fences}");
    }
}

/// The lane that holds the lock goes on for as long as others ask it to; lanes of its warp that cannot
/// take their ends until it has done with that are drained for.
pub fn who_drains_for_others_leaves_nothing_to_lanes_that_wait_for_it(gpu: &Arc<dyn Gpu>) {
    for (depth_log2, threads) in [(2, 2), (3, 4), (6, 32)] {
        let mut bed = QueueBed::on(gpu, Config { cid_log2: 9, ..Config::bam(depth_log2) });
        let probe = Probe { blocks: 6, threads, rounds: 16, ..Probe::default() };
        let seen = run(&mut bed, &kernels::BAM_TURNS, probe).seen;
        assert_eq!(
            (seen.succeeded, seen.failed, seen.wrong_bytes),
            (16 * threads, 0, 0),
            "{seen:?}"
        );
    }
}
