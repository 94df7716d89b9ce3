//! Real device code against the engine, by seed: every fault, synchronous and asynchronous lanes,
//! small rings, counters below their wraps, deserting lanes, lost side cores.
//!
//! One scheduler steps lanes, side cores, supervisor and time; stores sit in buffers that drain in
//! seeded order. Each seed does 1,024 I/Os and then some more to show that the ring is usable; all
//! bytes are checked, by the lanes as they see them and at the end.
//!
//! `SIDECORE_SEEDS=N` tries the first N seeds; `SIDECORE_SEED=S` replays one.

#[path = "seeded/case.rs"]
mod case;
#[path = "seeded/judge.rs"]
mod judge;
#[path = "seeded/plan.rs"]
mod plan;
#[path = "seeded/world.rs"]
mod world;

use abi::ring::OP_WRITE;
use sidecore_testkit::seeds;

use case::{Case, LANES, Trouble};
use plan::{Io, MANNER_WAIT};
use world::World;

/// Seeds of a plain `cargo test`: each kind of trouble with synchronous and asynchronous lanes.
const SEEDS: u64 = 32;

/// Reads of what nobody has written, one batch a lane.
fn calm_plan(case: &Case) -> Vec<Io> {
    let quiet = case.plan.iter().filter(|io| io.opcode != u32::from(OP_WRITE));
    let reads = quiet.map(|io| Io {
        opcode: u32::from(abi::ring::OP_READ),
        manner: MANNER_WAIT,
        patience_ns: 0,
        limit_ms: 0,
        ..*io
    });
    reads.cycle().take((LANES * case.batch) as usize).collect()
}

/// Runs one case; the hash of all accesses.
fn try_case(case: Case) -> u64 {
    let seed = case.seed;
    let world = World::new(case);
    let run = world.run(seed, &world.case.plan);
    judge::judge(&world, &world.case.plan, &run, false);
    if matches!(world.case.trouble, Trouble::Closed | Trouble::Drained) {
        world.reopen(seed);
        judge::judge_memory(&world, &world.case.plan, &run);
    }
    let calm = calm_plan(&world.case);
    let second = world.run(!seed, &calm);
    judge::judge(&world, &calm, &second, true);
    run.outcome.hash ^ second.outcome.hash.rotate_left(1)
}

fn try_and_tell(seed: u64) -> u64 {
    let case = Case::draw(seed);
    let about = format!("{:?}, batch {}, {:?}", case.trouble, case.batch, case.config);
    seeds::try_and_tell(seed, &about, "seeded every_seed", || try_case(case))
}

#[test]
fn every_seed() {
    if let Some(seed) = seeds::alone() {
        println!("seed {seed}: hash {:#x}", try_and_tell(seed));
        return;
    }
    seeds::each(seeds::count().unwrap_or(SEEDS), |seed| {
        try_and_tell(seed);
    });
}

#[test]
fn a_seed_replays_and_seeds_differ() {
    let first = try_and_tell(1);
    assert_eq!(first, try_and_tell(1), "seed 1 run twice");
    assert_ne!(first, try_and_tell(2), "seeds 1 and 2");
}

#[test]
fn a_ring_closed_under_its_lanes_opens_again() {
    for seed in 0..16 {
        for trouble in [Trouble::Closed, Trouble::Drained] {
            let case = Case::with(seed, trouble);
            let about = format!("{trouble:?}, {:?}", case.config);
            seeds::try_and_tell(seed, &about, "seeded a_ring_closed", || try_case(case));
        }
    }
}

#[test]
fn words_of_a_lost_side_core_do_not_come_late() {
    for seed in 0..24 {
        let trouble = Trouble::Panic(sidecore::Moment::AmidWords);
        let case = Case::with(seed, trouble);
        let about = format!("{trouble:?}, {:?}", case.config);
        seeds::try_and_tell(seed, &about, "seeded words_of_a_lost", || try_case(case));
    }
}
