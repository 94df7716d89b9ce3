//! The litmus kernels under the seeded memory model: the right way is never caught, each broken twin is.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use gpu::Kernel;
use mem::{MemoryKind, Region};
use selftest::litmus::{ACQUIRE, Arguments, CELL_BYTES, FENCE, Looking, PAIRS, Storing, Tally};
use simt::Shape;
use simt::seeded::{AgentStep, Limits, Options, Simulation};
use zerocopy::IntoBytes;

const SEEDS: u64 = 200;
const LIMITS: Limits = Limits { steps: 2_000_000, quiet_ns: 2_000_000 };
const ROUNDS: u64 = 24;

/// Lanes and a CPU thread on one cell, by seed: violations seen by either.
fn violations(
    kernel: &Kernel,
    mode: u32,
    kind: MemoryKind,
    mut cpu: impl FnMut(&Region) -> Box<dyn FnMut() -> Tally>,
    seed: u64,
) -> u64 {
    let cells = Region::map_anonymous(CELL_BYTES, kind).unwrap();
    let words = Region::map_anonymous(64, MemoryKind::Window).unwrap();
    let (seen, mut step, mut left) = (Cell::new(0), cpu(&cells), ROUNDS);
    let mut simulation = Simulation::new(seed, Options::default());
    simulation.register("cells", &cells);
    simulation.register("words", &words);
    let arguments = Arguments {
        cells: cells.address(),
        stop: words.address(),
        results: words.address() + 8,
        cell_count: 1,
        rounds: ROUNDS,
        rounds_max: ROUNDS,
        mode,
        reserved: 0,
    };
    simulation.add_client("cpu", |_| {
        seen.set(seen.get() + step().violations);
        left -= 1;
        if left == 0 { AgentStep::Done } else { AgentStep::Progress }
    });
    let shape = Shape { blocks: 1, threads_per_block: 1 };
    simulation.launch(kernel.simulated, shape, arguments.as_bytes()).unwrap();
    simulation.run(LIMITS).unwrap_or_else(|stuck| panic!("seed {seed}: {stuck}"));
    drop(simulation);
    seen.get() + words.u64_at(24).load(Ordering::Acquire)
}

/// Seeds in which something was violated.
fn caught(of_seed: impl Fn(u64) -> u64) -> usize {
    (0..SEEDS).filter(|seed| of_seed(*seed) > 0).count()
}

fn storing(fenced: bool, pairs: bool) -> impl Fn(&Region) -> Box<dyn FnMut() -> Tally> {
    move |cells| {
        let mut side = Storing { cells: cells.clone(), fenced, pairs, number: 0 };
        Box::new(move || side.step())
    }
}

fn looking(cells: &Region) -> Box<dyn FnMut() -> Tally> {
    let mut side = Looking { cells: cells.clone(), last: vec![0] };
    Box::new(move || side.step())
}

fn received(mode: u32, fenced: bool, pairs: bool) -> usize {
    let kernel = kernels::LITMUS_RECEIVE;
    caught(|seed| violations(&kernel, mode, MemoryKind::Window, storing(fenced, pairs), seed))
}

fn sent(mode: u32) -> usize {
    caught(|seed| violations(&kernels::LITMUS_SEND, mode, MemoryKind::Host, looking, seed))
}

#[test]
fn payload_is_fenced_before_its_flag_and_acquired_after_it() {
    assert_eq!(received(ACQUIRE, true, false), 0);
    let twins = [
        ("no fence", received(ACQUIRE, false, false)),
        ("no acquire", received(0, true, false)),
        ("16 bytes as two stores", received(PAIRS, true, true)),
    ];
    for (twin, seeds) in twins {
        println!("{twin}: caught by {seeds} of {SEEDS} seeds");
        assert!(seeds > 0, "{twin} is never caught");
    }
}

#[test]
fn pushed_payload_is_fenced_before_its_entry() {
    assert_eq!(sent(FENCE), 0);
    let seeds = sent(0);
    println!("no fence: caught by {seeds} of {SEEDS} seeds");
    assert!(seeds > 0, "a missing fence is never caught");
}
