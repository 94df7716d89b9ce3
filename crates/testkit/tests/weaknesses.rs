//! The published weaknesses of BaM and of CoPilotIO's artifact, each as a case in which the original
//! goes wrong. The twin of each that has the weakness is among the mutants.

#![allow(dead_code, reason = "the world has more than is needed here")]

#[path = "seeded_queues/case.rs"]
mod case;
#[path = "seeded_queues/judge.rs"]
mod judge;
#[path = "seeded_queues/plan.rs"]
mod plan;
#[path = "seeded_queues/world.rs"]
mod world;

use std::sync::atomic::Ordering;

use case::{Case, LANES, Trouble};
use sidecore::gpu_queues::Polling;
use world::{Run, World};

const SEEDS: u64 = 6;

/// Runs and judges the seeds' case after a change to it; then `also` is asked.
fn each_seed(
    trouble: Trouble,
    polling: Polling,
    asynchronous: bool,
    change: impl Fn(&mut Case),
    also: impl Fn(&World, &Run),
) {
    for seed in 0..SEEDS {
        let mut case = Case::of(seed, trouble, polling, asynchronous);
        change(&mut case);
        println!("seed {seed}: {trouble:?}, batch {}, {:?}", case.batch, case.options);
        let world = World::new(case);
        let run = world.run(seed, &world.case.plan);
        judge::judge(&world, &world.case.plan, &run, false);
        also(&world, &run);
    }
}

/// The artifact stores that an entry is ready before it stores what the entry says. Here both are one
/// word: whoever sees that a command has ended sees how.
#[test]
fn a_notify_entry_is_never_torn() {
    for asynchronous in [false, true] {
        let many = |case: &mut Case| case.count = 60;
        each_seed(Trouble::Error, Polling::Cpu, asynchronous, many, |_, _| {});
    }
}

/// BaM's lanes leave the draining to whoever holds the lock, who may just have looked for the last
/// time. Here the holder looks again for those who came meanwhile: the drive hears of every entry.
#[test]
fn the_last_completions_are_not_stranded_by_a_lock_that_was_only_tried() {
    for seed in 0..2 * SEEDS {
        let mut case = Case::of(seed, Trouble::Nothing, Polling::Gpu, false);
        case.pairs = 1;
        println!("seed {seed}: {:?}", case.options);
        let world = World::new(case);
        // Each launch is one I/O a lane, so that there are many last ones.
        for (launch, plan) in (0..).zip(world.case.plan.chunks(LANES as usize)) {
            let run = world.run(seed << 8 | launch, plan);
            let ended = run.seen.iter().filter(|seen| seen.status == abi::status::SUCCESS);
            assert_eq!(ended.count(), plan.len(), "launch {launch}");
            let at = |doorbell: usize| {
                let word = world.bar.u32_at(0x1000 + 4 * doorbell);
                word.load(Ordering::Relaxed)
            };
            // Both positions of the pair began as one.
            assert_eq!(at(2), at(3), "launch {launch}: the drive was told of all");
        }
    }
}

/// BaM's lanes wait for room in the queue without draining it. Here who finds no room makes some.
#[test]
fn more_in_flight_than_the_queue_is_deep_ends_in_success() {
    let shallow = |case: &mut Case| {
        case.options.depth = 4;
        case.pairs = 1;
    };
    each_seed(Trouble::Nothing, Polling::Gpu, true, shallow, |world, _| {
        assert!(64 * world.case.batch > 4 * world.case.options.depth, "more than it holds");
    });
}

/// Neither of the two looks at the status that the drive gives. Here it reaches the lane.
#[test]
fn the_status_of_the_drive_is_not_ignored() {
    for polling in [Polling::Gpu, Polling::Cpu] {
        each_seed(Trouble::Error, polling, false, |_| {}, |_, _| {});
    }
}
