//! Litmus tests of the memory model: what is right is never caught, its broken twin always is.
// UNSAFETY: the kernels are C++ functions.
#![expect(unsafe_code, reason = "names C++ kernels")]

use std::sync::atomic::Ordering;

use mem::{MemoryKind, Region};
use sidecore_simt as simt;
use simt::seeded::{AgentStep, Limits, Options, Simulation, Stuck, StuckKind};
use simt::{Entry, Shape};

mod kernels {
    use std::ffi::c_void;

    #[link(name = "sidecore_simt_test_kernels", kind = "static")]
    unsafe extern "C" {
        pub fn coherence(args: *const c_void);
        pub fn locked_counter(args: *const c_void);
        pub fn own_stores(args: *const c_void);
        pub fn pairs(args: *const c_void);
        pub fn pass_fenced(args: *const c_void);
        pub fn pass_unfenced_receiver(args: *const c_void);
        pub fn pass_unfenced_sender(args: *const c_void);
        pub fn publish_16(args: *const c_void);
        pub fn publish_8_8(args: *const c_void);
        pub fn receive_acquired(args: *const c_void);
        pub fn receive_by_acquire_load(args: *const c_void);
        pub fn receive_by_block(args: *const c_void);
        pub fn receive_by_block_unacquired(args: *const c_void);
        pub fn receive_unacquired(args: *const c_void);
        pub fn send_by_warp(args: *const c_void);
        pub fn send_by_warp_unsynced(args: *const c_void);
        pub fn send_fenced(args: *const c_void);
        pub fn send_fenced_for_device(args: *const c_void);
        pub fn send_released(args: *const c_void);
        pub fn send_unfenced(args: *const c_void);
        pub fn store_buffering_fenced(args: *const c_void);
        pub fn store_buffering_unfenced(args: *const c_void);
        pub fn unlocked_counter(args: *const c_void);
    }
}

type Kernel = unsafe extern "C" fn(*const std::ffi::c_void);

const SEEDS: u64 = 200;
const WORDS: usize = 16;
const LIMITS: Limits = Limits { steps: 2_000_000, quiet_ns: 2_000_000 };

fn payload(index: usize) -> u64 {
    0x1122_3344_5566_7788_u64.wrapping_mul(index as u64 + 1)
}

/// Memory that a test shares: payload, two flag words, results.
struct Bed {
    data: Region,
    flag: Region,
    out: Region,
}

impl Bed {
    fn new(kind: MemoryKind) -> Self {
        let map = || Region::map_anonymous(4096, kind).unwrap();
        Self { data: map(), flag: map(), out: map() }
    }

    fn simulation<'a>(&self, seed: u64) -> Simulation<'a> {
        let mut simulation = Simulation::new(seed, Options::default());
        simulation.register("data", &self.data);
        simulation.register("flag", &self.flag);
        simulation.register("out", &self.out);
        simulation
    }

    fn launch(&self, simulation: &mut Simulation<'_>, kernel: Kernel, blocks: u32, threads: u32) {
        self.launch_words(simulation, kernel, blocks, threads, WORDS as u64);
    }

    fn launch_words(
        &self,
        simulation: &mut Simulation<'_>,
        kernel: Kernel,
        blocks: u32,
        threads: u32,
        words: u64,
    ) {
        let args = [self.data.address(), self.flag.address(), self.out.address(), words];
        let args = args.map(u64::to_ne_bytes).concat();
        let shape = Shape { blocks, threads_per_block: threads };
        simulation.launch(Entry(kernel), shape, &args).unwrap();
    }

    fn out(&self, index: usize) -> u64 {
        self.out.u64_at(index * 8).load(Ordering::Acquire)
    }

    fn received(&self) -> bool {
        (0..WORDS).all(|i| self.out(i) == payload(i))
    }
}

/// Counts the seeds for which `is_right` fails.
fn count_wrong(is_right: impl Fn(u64) -> bool) -> u64 {
    (0..SEEDS).filter(|&seed| !is_right(seed)).count() as u64
}

fn assert_right(name: &str, is_right: impl Fn(u64) -> bool) {
    if let Some(seed) = (0..SEEDS).find(|&seed| !is_right(seed)) {
        panic!("{name} is right, but seed {seed} caught it");
    }
}

fn assert_broken(name: &str, is_right: impl Fn(u64) -> bool) {
    let wrong = count_wrong(is_right);
    assert!(wrong > 0, "{name} is broken, but {SEEDS} seeds did not catch it");
    println!("{name}: caught by {wrong} of {SEEDS} seeds");
}

fn finished(result: Result<simt::seeded::Outcome, Stuck>) {
    result.unwrap_or_else(|stuck| panic!("{stuck}"));
}

/// A kernel sends, a CPU thread receives; true when what it received is whole.
fn lane_to_cpu(kernel: Kernel, threads: u32, acquires: bool, seed: u64) -> bool {
    let bed = Bed::new(MemoryKind::Host);
    let (data, flag) = (&bed.data, &bed.flag);
    let received = std::cell::RefCell::new(Vec::new());
    let mut simulation = bed.simulation(seed);
    simulation.add_client("receiver", |_| {
        let mut bytes = vec![0; WORDS * 8];
        if flag.u64_at(0).load(Ordering::Relaxed) == 0 {
            // What is seen before may not be taken for what comes after.
            data.read_bytes(0, &mut bytes);
            return AgentStep::Idle;
        }
        if acquires {
            mem::fence_acquire();
        }
        data.read_bytes(0, &mut bytes);
        *received.borrow_mut() = bytes;
        AgentStep::Done
    });
    bed.launch(&mut simulation, kernel, 1, threads);
    finished(simulation.run(LIMITS));
    drop(simulation);
    let words: Vec<u8> = (0..WORDS).flat_map(|i| payload(i).to_le_bytes()).collect();
    received.into_inner() == words
}

#[test]
fn payload_then_flag_from_lane_to_cpu() {
    assert_right("fence_system", |s| lane_to_cpu(kernels::send_fenced, 1, true, s));
    assert_right("store_release", |s| lane_to_cpu(kernels::send_released, 1, true, s));
    assert_right("a warp's fence", |s| lane_to_cpu(kernels::send_by_warp, 32, true, s));
    assert_broken("no fence", |s| lane_to_cpu(kernels::send_unfenced, 1, true, s));
    assert_broken("fence_device", |s| lane_to_cpu(kernels::send_fenced_for_device, 1, true, s));
    assert_broken("no sync_warp", |s| lane_to_cpu(kernels::send_by_warp_unsynced, 32, true, s));
    assert_broken("no acquire", |s| lane_to_cpu(kernels::send_fenced, 1, false, s));
}

/// What a sending CPU thread leaves out.
#[derive(Clone, Copy, PartialEq)]
enum Sender {
    Right,
    FirstFenceMissing,
    LastFenceMissing,
}

/// A CPU thread sends, a kernel receives.
fn cpu_to_lane(kernel: Kernel, threads: u32, sender: Sender, seed: u64) -> Result<bool, Stuck> {
    let bed = Bed::new(MemoryKind::Window);
    let mut simulation = bed.simulation(seed);
    let (data, flag) = (bed.data.clone(), bed.flag.clone());
    let mut waits = seed % 7;
    simulation.add_agent("sender", move |_| {
        if waits > 0 {
            waits -= 1;
            return AgentStep::Idle;
        }
        let bytes: Vec<u8> = (0..WORDS).flat_map(|i| payload(i).to_le_bytes()).collect();
        data.write_bytes(0, &bytes);
        if sender != Sender::FirstFenceMissing {
            mem::fence_payload();
        }
        flag.u64_at(0).store(1, Ordering::Relaxed);
        if sender != Sender::LastFenceMissing {
            mem::fence_payload();
        }
        AgentStep::Done
    });
    bed.launch(&mut simulation, kernel, 1, threads);
    simulation.run(LIMITS)?;
    Ok(bed.received())
}

#[test]
fn payload_then_flag_from_cpu_through_the_window_to_lane() {
    let run = |kernel: Kernel, threads, sender| {
        move |seed| cpu_to_lane(kernel, threads, sender, seed).unwrap_or_else(|e| panic!("{e}"))
    };
    assert_right("acquire fence", run(kernels::receive_acquired, 1, Sender::Right));
    assert_right("acquire load", run(kernels::receive_by_acquire_load, 1, Sender::Right));
    assert_right("one acquires for the block", run(kernels::receive_by_block, 64, Sender::Right));
    let no_acquire = run(kernels::receive_unacquired, 1, Sender::Right);
    assert_broken("no acquire", no_acquire);
    let no_acquire = run(kernels::receive_by_block_unacquired, 64, Sender::Right);
    assert_broken("no acquire in the block", no_acquire);
    // Without its own fence the payload may leave after the flag, be it at the fence that follows.
    let first = run(kernels::receive_acquired, 1, Sender::FirstFenceMissing);
    assert_broken("no fence before the flag", first);
}

#[test]
fn a_window_store_without_its_fence_is_found_as_a_livelock() {
    let mut livelocks = 0;
    for seed in 0..SEEDS {
        match cpu_to_lane(kernels::receive_acquired, 1, Sender::LastFenceMissing, seed) {
            Ok(right) => assert!(right, "seed {seed}: the payload was fenced"),
            Err(stuck) => {
                assert!(matches!(stuck.kind, StuckKind::Livelock), "{stuck}");
                assert!(stuck.report.contains("block 0 warp 0 lanes 0"), "{stuck}");
                assert!(stuck.report.contains("pause for the flag"), "{stuck}");
                assert!(stuck.report.contains("agent sender: done"), "{stuck}");
                livelocks += 1;
            }
        }
    }
    assert!(livelocks > SEEDS / 10, "only {livelocks} seeds keep the store back");
}

/// Runs a kernel of several blocks on memory of its own, and checks it.
fn among_lanes(
    kernel: Kernel,
    (blocks, threads): (u32, u32),
    words: u64,
    check: impl Fn(&Bed) -> bool,
) -> impl Fn(u64) -> bool {
    move |seed| {
        let bed = Bed::new(MemoryKind::Window);
        let mut simulation = bed.simulation(seed);
        bed.launch_words(&mut simulation, kernel, blocks, threads, words);
        finished(simulation.run(LIMITS));
        check(&bed)
    }
}

#[test]
fn payload_then_flag_between_blocks() {
    let run = |kernel| among_lanes(kernel, (2, 1), WORDS as u64, Bed::received);
    assert_right("both fences", run(kernels::pass_fenced));
    assert_broken("no fence before the flag", run(kernels::pass_unfenced_sender));
    assert_broken("no fence after the flag", run(kernels::pass_unfenced_receiver));
}

#[test]
fn store_buffering() {
    let one_sees = |bed: &Bed| bed.out(0) + bed.out(1) > 0;
    let run = |kernel| among_lanes(kernel, (2, 1), 0, one_sees);
    assert_right("fences", run(kernels::store_buffering_fenced));
    assert_broken("no fences", run(kernels::store_buffering_unfenced));
}

#[test]
fn one_address_is_coherent() {
    let all =
        |range: std::ops::Range<usize>| move |bed: &Bed| range.clone().all(|i| bed.out(i) == 1);
    assert_right("counts go up", among_lanes(kernels::coherence, (4, 8), 40, all(8..32)));
    assert_right("own stores are seen", among_lanes(kernels::own_stores, (1, 40), 0, all(0..40)));
    assert_right("pairs are whole", among_lanes(kernels::pairs, (2, 1), 40, all(0..1)));
}

#[test]
fn a_lock_needs_its_fences() {
    let counted = |bed: &Bed| bed.data.u64_at(0).load(Ordering::Acquire) == 48 && bed.out(0) == 48;
    assert_right("fenced", among_lanes(kernels::locked_counter, (3, 16), 0, counted));
    assert_broken("unfenced", among_lanes(kernels::unlocked_counter, (3, 16), 0, counted));
}

/// A CPU thread must never see the second word of a pair without the first.
fn publish(kernel: Kernel, seed: u64) -> bool {
    let bed = Bed::new(MemoryKind::Host);
    let flag = &bed.flag;
    let torn = std::cell::Cell::new(false);
    let mut simulation = bed.simulation(seed);
    simulation.add_client("reader", |_| {
        if flag.u64_at(8).load(Ordering::Acquire) == 0 {
            return AgentStep::Progress;
        }
        torn.set(flag.u64_at(0).load(Ordering::Relaxed) != 7);
        AgentStep::Done
    });
    bed.launch(&mut simulation, kernel, 1, 1);
    finished(simulation.run(LIMITS));
    drop(simulation);
    !torn.get()
}

#[test]
fn sixteen_bytes_stored_at_once_are_never_torn() {
    assert_right("one 16-byte store", |seed| publish(kernels::publish_16, seed));
    assert_broken("two 8-byte stores", |seed| publish(kernels::publish_8_8, seed));
}

#[test]
fn a_seed_replays_and_seeds_differ() {
    let run = |seed| {
        let bed = Bed::new(MemoryKind::Host);
        let mut simulation = bed.simulation(seed);
        let (flag, out) = (bed.flag.clone(), bed.out.clone());
        simulation.add_client("receiver", move |_| {
            if flag.u64_at(0).load(Ordering::Acquire) == 0 {
                return AgentStep::Idle;
            }
            out.write_bytes(3, b"received");
            AgentStep::Done
        });
        bed.launch(&mut simulation, kernels::send_by_warp, 1, 32);
        simulation.run(LIMITS).unwrap_or_else(|stuck| panic!("{stuck}"))
    };
    let mut hashes = std::collections::HashSet::new();
    for seed in 0..50 {
        let (first, second) = (run(seed), run(seed));
        assert_eq!(first, second, "seed {seed} run twice");
        assert!(first.accesses > 0);
        hashes.insert(first.hash);
    }
    assert_eq!(hashes.len(), 50, "each seed is a run of its own");
}

/// One CPU thread hands over to another through a lock, which is no part of registered memory.
fn handed_over(kernel: Kernel, seed: u64) -> bool {
    let bed = Bed::new(MemoryKind::Host);
    let (data, flag, out) = (&bed.data, &bed.flag, &bed.out);
    let lock = std::cell::Cell::new(false);
    let mut simulation = bed.simulation(seed);
    simulation.add_client("first", |_| {
        data.read_bytes(0, &mut [0; WORDS * 8]);
        if flag.u64_at(0).load(Ordering::Acquire) == 0 {
            return AgentStep::Idle;
        }
        flag.u64_at(8).store(1, Ordering::Relaxed);
        lock.set(true);
        AgentStep::Done
    });
    simulation.add_client("second", |_| {
        data.read_bytes(0, &mut [0; WORDS * 8]);
        if !lock.get() {
            return AgentStep::Idle;
        }
        out.copy_from(0, data, 0, WORDS * 8);
        assert_eq!(flag.u64_at(8).load(Ordering::Relaxed), 1, "what the first stored");
        AgentStep::Done
    });
    bed.launch(&mut simulation, kernel, 1, 1);
    finished(simulation.run(LIMITS));
    simulation.on_host(|| ());
    drop(simulation);
    bed.received()
}

#[test]
fn what_a_thread_has_seen_it_hands_over_with_a_lock() {
    assert_right("a lock", |seed| handed_over(kernels::send_fenced, seed));
    assert_broken("a lock, no fence", |seed| handed_over(kernels::send_unfenced, seed));
}
