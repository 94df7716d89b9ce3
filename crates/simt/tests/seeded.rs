//! The seeded mode: collectives under any interleaving, what is said when a run is stuck, time.
// UNSAFETY: the kernels are C++ functions.
#![expect(unsafe_code, reason = "names C++ kernels")]

use std::cell::Cell;
use std::sync::atomic::Ordering;

use mem::{MemoryKind, Region};
use sidecore_simt as simt;
use simt::seeded::{AgentStep, Limits, Options, Outcome, Simulation, Stuck, StuckKind};
use simt::{Entry, Shape};

mod kernels {
    use std::ffi::c_void;

    #[link(name = "sidecore_simt_test_kernels", kind = "static")]
    unsafe extern "C" {
        pub fn blocked(args: *const c_void);
        pub fn collectives(args: *const c_void);
        pub fn convergence(args: *const c_void);
        pub fn deadlock(args: *const c_void);
        pub fn early_exit(args: *const c_void);
        pub fn mask_without_caller(args: *const c_void);
        pub fn pauses(args: *const c_void);
        pub fn reduce(args: *const c_void);
    }
}

type Kernel = unsafe extern "C" fn(*const std::ffi::c_void);

const SEEDS: u64 = 200;

/// Results and the gate, in one region.
struct Bed {
    memory: Region,
}

impl Bed {
    fn new(words: usize) -> Self {
        Self { memory: Region::map_anonymous(words * 8 + 16, MemoryKind::Host).unwrap() }
    }

    fn gate(&self) -> usize {
        self.memory.len_bytes() - 16
    }

    fn simulation<'a>(&self, seed: u64, options: Options) -> Simulation<'a> {
        let mut simulation = Simulation::new(seed, options);
        simulation.register("memory", &self.memory);
        simulation
    }

    fn launch(&self, simulation: &mut Simulation<'_>, kernel: Kernel, shape: (u32, u32), n: u64) {
        let out = self.memory.address();
        let args = [out, out + self.gate() as u64, n].map(u64::to_ne_bytes).concat();
        let (blocks, threads_per_block) = shape;
        simulation.launch(Entry(kernel), Shape { blocks, threads_per_block }, &args).unwrap();
    }

    fn run(&self, seed: u64, kernel: Kernel, shape: (u32, u32), n: u64) -> Result<Outcome, Stuck> {
        let mut simulation = self.simulation(seed, Options::default());
        self.launch(&mut simulation, kernel, shape, n);
        simulation.run(Limits { steps: 5_000_000, quiet_ns: 1_000_000 })
    }

    fn word(&self, index: usize) -> u64 {
        self.memory.u64_at(index * 8).load(Ordering::Acquire)
    }
}

#[test]
fn collectives_are_right_under_any_interleaving() {
    for seed in 0..SEEDS {
        let bed = Bed::new(128);
        bed.run(seed, kernels::collectives, (2, 64), 0).unwrap();
        assert!((0..128).all(|thread| bed.word(thread) == 4), "collectives, seed {seed}");

        let bed = Bed::new(64);
        bed.run(seed, kernels::early_exit, (2, 32), 0).unwrap();
        assert!((0..64).all(|i| bed.word(i) == i as u64 % 32 + 1), "early exit, seed {seed}");

        let bed = Bed::new(64);
        bed.run(seed, kernels::convergence, (1, 64), 0).unwrap();
        assert!((0..64).all(|i| bed.word(i) == 1), "convergence, seed {seed}");
    }
}

#[test]
fn a_block_reduces_under_any_interleaving() {
    for seed in 0..20 {
        let bed = Bed::new(200);
        bed.run(seed, kernels::reduce, (2, 100), 0).unwrap();
        assert_eq!(bed.word(0), 97 * 98 / 2, "seed {seed}");
        assert_eq!(bed.word(196), 97 * 98 / 2 + 97, "seed {seed}");
    }
}

#[test]
fn many_lanes_block_at_once() {
    let bed = Bed::new(2);
    let (memory, gate) = (&bed.memory, bed.gate());
    let mut simulation = bed.simulation(3, Options::default());
    // Opens the gate once all lanes wait at it.
    simulation.add_agent("host", move |_| {
        if memory.u64_at(0).load(Ordering::Acquire) < 4096 {
            return AgentStep::Idle;
        }
        memory.u64_at(gate).store(1, Ordering::Release);
        AgentStep::Done
    });
    bed.launch(&mut simulation, kernels::blocked, (32, 128), 0);
    simulation.run(Limits::default()).unwrap();
    assert_eq!(bed.word(1), 4096);
}

#[test]
fn blocks_beyond_the_resident_limit_wait_their_turn() {
    let bed = Bed::new(2);
    let (memory, gate) = (&bed.memory, bed.gate());
    let most = Cell::new(0);
    let options = Options { resident_lanes: 64, ..Options::default() };
    let mut simulation = bed.simulation(5, options);
    simulation.add_agent("host", |now_ns| {
        most.set(most.get().max(memory.u64_at(0).load(Ordering::Acquire)));
        if now_ns < 100_000 {
            return AgentStep::Until(100_000);
        }
        memory.u64_at(gate).store(1, Ordering::Release);
        AgentStep::Done
    });
    bed.launch(&mut simulation, kernels::blocked, (8, 32), 0);
    simulation.run(Limits::default()).unwrap();
    assert_eq!((most.get(), bed.word(1)), (64, 256));
}

#[test]
fn a_closed_gate_is_a_livelock_that_names_everybody() {
    let bed = Bed::new(2);
    let mut simulation = bed.simulation(1, Options::default());
    simulation.add_agent("side core", |_| AgentStep::Idle);
    bed.launch(&mut simulation, kernels::blocked, (1, 40), 0);
    let stuck = simulation.run(Limits { quiet_ns: 300_000, ..Limits::default() }).unwrap_err();
    assert!(matches!(stuck.kind, StuckKind::Livelock), "{stuck}");
    assert!(stuck.report.contains("block 0 warp 1 lanes"), "{stuck}");
    assert!(stuck.report.contains("pause for the gate"), "{stuck}");
    assert!(stuck.report.contains("agent side core: idle"), "{stuck}");
    assert!(stuck.to_string().contains("seed 1: livelock"), "{stuck}");
}

#[test]
fn a_deadlock_names_lanes_and_places() {
    for seed in 0..20 {
        let bed = Bed::new(2);
        let stuck = bed.run(seed, kernels::deadlock, (1, 32), 0).unwrap_err();
        assert!(matches!(stuck.kind, StuckKind::Deadlock), "{stuck}");
        assert!(stuck.report.contains("lanes 0-15: ballot with mask 0xffffffff at"), "{stuck}");
        assert!(stuck.report.contains("lanes 16-31: sync_threads at"), "{stuck}");
    }
}

#[test]
fn broken_masks_and_too_many_steps_are_found() {
    let bed = Bed::new(2);
    let stuck = bed.run(0, kernels::mask_without_caller, (1, 32), 0).unwrap_err();
    assert!(matches!(stuck.kind, StuckKind::Misuse(_)), "{stuck}");

    let mut simulation = bed.simulation(0, Options::default());
    simulation.add_client("busy", |_| AgentStep::Progress);
    let stuck = simulation.run(Limits { steps: 1000, quiet_ns: u64::MAX }).unwrap_err();
    assert!(matches!(stuck.kind, StuckKind::Steps), "{stuck}");
    assert_eq!(stuck.steps, 1000);
}

#[test]
fn time_passes_for_lanes_and_agents() {
    for seed in 0..20 {
        let bed = Bed::new(32);
        let woken = Cell::new(0);
        let mut simulation = bed.simulation(seed, Options::default());
        simulation.add_client("alarm", |now_ns| {
            woken.set(now_ns);
            if now_ns < 7_000_000 { AgentStep::Until(7_000_000) } else { AgentStep::Done }
        });
        bed.launch(&mut simulation, kernels::pauses, (1, 32), 3_000_000);
        let limits = Limits { quiet_ns: 10_000_000, ..Limits::default() };
        let outcome = simulation.run(limits).unwrap();
        assert!(woken.get() >= 7_000_000 && outcome.now_ns >= woken.get());
        assert!(outcome.now_ns < 8_000_000, "{outcome:?}");
        drop(simulation);
        let paused = (0..32).map(|i| bed.word(i));
        assert!(paused.clone().all(|ns| ns >= 3_000_000), "{paused:?}");
    }
}

#[test]
fn a_panic_of_an_agent_reaches_the_caller() {
    let bed = Bed::new(2);
    let run = || {
        let mut simulation = bed.simulation(0, Options::default());
        simulation.add_agent("broken", |_| panic!("a broken invariant"));
        bed.launch(&mut simulation, kernels::blocked, (1, 32), 0);
        let _ = simulation.run(Limits::default());
    };
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"a broken invariant"));
    // The thread's accesses are its own again.
    bed.memory.u64_at(0).store(77, Ordering::Relaxed);
    assert_eq!(bed.word(0), 77);
}
