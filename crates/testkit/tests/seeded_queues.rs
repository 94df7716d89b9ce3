//! Real device code over real queue pairs, by seed: every fault of the drive, `bam` and `copilot`,
//! synchronous and asynchronous lanes, small queues, positions below their wraps, deserting lanes,
//! queues that change hands.
//!
//! One scheduler steps lanes, drive, agents, recovery and time. Each seed does 1,024 I/Os and then
//! some more to show that the pairs are usable; all bytes are checked.
//!
//! `SIDECORE_SEEDS=N` tries the first N seeds; `SIDECORE_SEED=S` replays one.

#[path = "seeded_queues/case.rs"]
mod case;
#[path = "seeded_queues/judge.rs"]
mod judge;
#[path = "seeded_queues/plan.rs"]
mod plan;
#[path = "seeded_queues/world.rs"]
mod world;

use std::sync::atomic::{AtomicU64, Ordering};

use abi::ring::OP_WRITE;
use sidecore_testkit::seeds;

use case::{CELLS, Case, LANES};
use plan::{Io, MANNER_WAIT};
use world::World;

/// Seeds of a plain `cargo test` for queues that change hands.
const COPOLL_SEEDS: u64 = 8;

/// Reads of what nobody has written, one batch a lane.
fn calm_plan(case: &Case) -> Vec<Io> {
    let quiet = case.plan.iter().filter(|io| io.opcode != u32::from(OP_WRITE));
    let opcode = u32::from(abi::ring::OP_READ);
    let reads = quiet.map(|io| Io { opcode, manner: MANNER_WAIT, ..*io });
    reads.cycle().take((LANES * case.batch) as usize).collect()
}

/// Runs one seed; the hash of all accesses, and how often queues changed hands.
fn try_case(case: Case) -> (u64, u64) {
    let seed = case.seed;
    let world = World::new(case);
    let run = world.run(seed, &world.case.plan);
    judge::judge(&world, &world.case.plan, &run, false);
    let calm = calm_plan(&world.case);
    let second = world.run(!seed, &calm);
    judge::judge(&world, &calm, &second, true);
    let hash = run.outcome.hash ^ second.outcome.hash.rotate_left(1);
    (hash, run.host.flips)
}

fn try_and_tell(test: &str, case: Case) -> (u64, u64) {
    let (seed, what) = (case.seed, format!("{:?}, batch {}", case.trouble, case.batch));
    let about = format!("{what}, {} pairs, {:?}", case.pairs, case.options);
    seeds::try_and_tell(seed, &about, &format!("seeded_queues {test}"), || try_case(case))
}

/// Tries all seeds below `seeds`, or the one that was asked for; the sum of the changes of hands.
fn try_all(test: &str, seeds: u64, draw: impl Fn(u64) -> Case + Sync) -> u64 {
    if let Some(seed) = seeds::alone() {
        let (hash, flips) = try_and_tell(test, draw(seed));
        println!("seed {seed}: hash {hash:#x}");
        return flips;
    }
    let flips = AtomicU64::new(0);
    seeds::each(seeds, |seed| {
        flips.fetch_add(try_and_tell(test, draw(seed)).1, Ordering::Relaxed);
    });
    flips.into_inner()
}

#[test]
fn every_seed() {
    try_all("every_seed", seeds::count().unwrap_or(CELLS), Case::draw);
}

#[test]
fn queues_that_change_hands() {
    let seeds = seeds::count().map_or(COPOLL_SEEDS, |seeds| (seeds / 4).max(4));
    let flips = try_all("queues_that_change_hands", seeds, Case::draw_copoll);
    assert!(flips > 0, "no queue changed hands");
}

#[test]
fn a_seed_replays_and_seeds_differ() {
    let first = try_and_tell("every_seed", Case::draw(3));
    assert_eq!(first, try_and_tell("every_seed", Case::draw(3)), "seed 3 run twice");
    assert_ne!(first.0, try_and_tell("every_seed", Case::draw(4)).0, "seeds 3 and 4");
    let copoll = try_and_tell("queues_that_change_hands", Case::draw_copoll(1));
    assert_eq!(copoll, try_and_tell("queues_that_change_hands", Case::draw_copoll(1)));
}
