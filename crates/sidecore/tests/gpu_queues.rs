//! The host side of queue pairs for lanes, with lanes played by the test: agents, recovery,
//! hand-overs, step by step in simulated time.

#[path = "gpu_queues/bed.rs"]
mod bed;

use abi::queue::{
    COMPLETION_DONE, OWNER_CPU, OWNER_GPU, OWNER_RECALL, OwnerWord, QUEUE_CLOSED, QUEUE_OPEN,
    QUEUE_QUIESCED,
};
use abi::status;
use bed::{Bed, DEPTH, IDS, LIMIT_NS};
use sidecore::gpu_queues::{FlipReason, Owner, PairState, Placement, Polling, QueueOptions};

fn options(polling: Polling) -> QueueOptions {
    let options = QueueOptions { polling, ..QueueOptions::copilot() };
    bed::small(options)
}

#[test]
fn an_agent_answers_each_command_with_its_status_and_rings_once_a_pass() {
    for (sq, cq) in [
        (Placement::Device, Placement::Host),
        (Placement::Host, Placement::Device),
        (Placement::Device, Placement::Device),
        (Placement::Host, Placement::Host),
    ] {
        let mut bed = Bed::new("", QueueOptions { sq, cq, ..options(Polling::Cpu) }, 2);
        for pair in 0..2 {
            for id in 0..5 {
                bed.read(pair, id, u64::from(id));
            }
            bed.read(pair, 5, 1 << 40);
        }
        bed.settle();
        assert_eq!(bed.agents[0].step(bed.now_ns).completions, 12);
        for pair in 0..2 {
            for id in 0..5 {
                assert_eq!(bed.status(pair, id), Some(0), "{sq:?} {cq:?} pair {pair}, id {id}");
            }
            assert_eq!(bed.status(pair, 5), Some(0x4080), "LBA out of range, as the drive says it");
            let counters = bed.queues.counters_now()[pair];
            assert_eq!((counters.completions_polled, counters.cpu_doorbells), (6, 1));
            assert_eq!(bed.sq_head(pair), bed.tail(pair), "all entries are free again");
            assert_eq!(bed.cq_doorbell(pair), 6, "the drive may use what was seen, no more");
        }
    }
}

#[test]
fn queues_wrap_many_times_and_at_the_end_of_the_positions() {
    let start = u64::MAX - u64::from(DEPTH) * 3;
    let mut bed = Bed::new("", QueueOptions { start, ..options(Polling::Cpu) }, 1);
    for round in 0..40u64 {
        for id in 0..5 {
            bed.read(0, id, round);
        }
        bed.settle();
        bed.agents[0].step(bed.now_ns);
        for id in 0..5 {
            assert_eq!(bed.status(0, id), Some(0), "round {round}, id {id}");
        }
    }
    assert_eq!(bed.queues.counters_now()[0].completions_polled, 200);
}

#[test]
fn a_second_completion_of_a_command_is_not_taken_for_its_successors() {
    let mut bed = Bed::new("duplicate:n=1,every=1", options(Polling::Cpu), 1);
    bed.read(0, 3, 0);
    bed.settle();
    // The lane is quick: it sees the first completion and uses the id again at once. Here it has
    // done so before the agent comes to the second one, which the drive posted long before.
    bed.agents[0].step(bed.now_ns);
    assert_eq!(bed.status(0, 3), Some(0));
    let counters = bed.queues.counters_now()[0];
    assert_eq!((counters.completions_polled, counters.strays), (2, 1));
    bed.read(0, 3, 1);
    bed.settle();
    bed.agents[0].step(bed.now_ns);
    assert_eq!(bed.status(0, 3), Some(0));
    assert_eq!(bed.queues.counters_now()[0].strays, 1);
}

#[test]
fn a_late_command_is_aborted_and_keeps_the_drives_status() {
    let mut bed = Bed::new("late:n=1,every=1,ms=60000", options(Polling::Cpu), 1);
    bed.read(0, 1, 0);
    bed.read(0, 2, 0);
    bed.settle();
    bed.complain(0, 1);
    bed.run_until(|bed| bed.status(0, 1).is_some());
    assert_eq!(bed.status(0, 1), Some(0x07), "abort requested");
    assert_eq!(bed.status(0, 2), Some(0));
    let counters = bed.queues.counters_now()[0];
    assert_eq!((counters.aborts, counters.aborted, counters.epochs), (1, 1, 0));
    assert_eq!(bed.state(0), (QUEUE_OPEN, 1));
}

#[test]
fn a_lost_command_ends_by_a_new_epoch_and_others_complete_before_it() {
    for polling in [Polling::Cpu, Polling::Gpu] {
        let mut bed = Bed::new("lost:n=1,every=1;late:n=1,every=1,ms=1", options(polling), 1);
        bed.read(0, 1, 0);
        bed.read(0, 2, 0);
        bed.settle();
        bed.complain(0, 1);
        bed.run_until(|bed| bed.state(0) == (QUEUE_OPEN, 2));
        assert_eq!(bed.status_of(0, 1, 1), Some(status::TIMED_OUT));
        assert_eq!(bed.status_of(0, 2, 1), Some(0), "{polling:?}: it was only late");
        let counters = bed.queues.counters_now()[0];
        assert_eq!((counters.aborts, counters.aborted), (1, 0));
        assert_eq!((counters.epochs, counters.timed_out), (1, 1));
        bed.enter_epoch(0);
        bed.read(0, 1, 7);
        bed.settle();
        bed.drain_as_lane_or_agent(0);
        assert_eq!(bed.status(0, 1), Some(0), "{polling:?}: the pair is usable");
    }
}

#[test]
fn an_entry_that_a_lane_took_says_nothing_about_the_next_command_of_its_id() {
    // The second command is lost; the entry of the first is still there when the host drains.
    let mut bed = Bed::new("lost:n=1,every=1,after=1", options(Polling::Gpu), 1);
    bed.read(0, 3, 0);
    bed.settle();
    bed.take_entry(0, 0);
    bed.read(0, 3, 1);
    bed.settle();
    bed.complain(0, 3);
    bed.run_until(|bed| bed.state(0) == (QUEUE_OPEN, 2));
    assert_eq!(bed.status_of(0, 3, 1), Some(status::TIMED_OUT));
}

#[test]
fn lanes_that_are_inside_hold_up_a_new_epoch() {
    let mut bed = Bed::new("lost:n=1,every=1", options(Polling::Cpu), 1);
    bed.read(0, 1, 0);
    bed.settle();
    bed.set_inside(0, 1);
    bed.complain(0, 1);
    bed.run_until(|bed| bed.state(0) == (QUEUE_QUIESCED, 1));
    bed.run(LIMIT_NS * 8);
    assert_eq!(bed.state(0), (QUEUE_QUIESCED, 1), "a lane may still ring a doorbell");
    assert_eq!(bed.status(0, 1), None);
    bed.set_inside(0, 0);
    bed.run_until(|bed| bed.state(0) == (QUEUE_OPEN, 2));
}

#[test]
fn a_reset_takes_all_pairs_into_a_new_epoch_without_an_answer() {
    let mut bed = Bed::new("reset:n=1,every=1", options(Polling::Cpu), 3);
    bed.read(1, 4, 0);
    bed.settle();
    bed.run_until(|bed| (0..3).all(|pair| bed.state(pair) == (QUEUE_OPEN, 2)));
    assert_eq!(bed.status_of(1, 4, 1), None, "its lane sends it again");
    assert!(bed.queues.counters_now().iter().all(|c| c.epochs == 1 && c.timed_out == 0));
    assert_eq!(bed.driver.resets(), 1);
}

#[test]
fn somebody_without_room_for_long_gets_a_new_epoch() {
    let mut bed = Bed::new("stuck:n=1,every=1", options(Polling::Cpu), 1);
    for id in 0..5 {
        bed.read(0, id, 0);
    }
    bed.settle();
    bed.complain(0, IDS);
    bed.run_until(|bed| bed.state(0) == (QUEUE_OPEN, 2));
    // The drive's own "aborted due to SQ deletion" for what it had fetched.
    assert_eq!(bed.status_of(0, 0, 1), Some(0x08));
    for id in 1..5 {
        assert_eq!(bed.status_of(0, id, 1), Some(status::TIMED_OUT), "id {id}");
    }
}

/// Found by a seed whose second stuck queue nobody could take down: a new epoch that came while an Abort
/// was under way left its answer untaken, and the drive allows only a few at a time.
#[test]
fn aborts_that_a_new_epoch_leaves_behind_do_not_use_up_the_drives_limit() {
    const ROUNDS: u32 = 5;
    let faults = format!("lost:n={ROUNDS},every=1;late:n=1,every=1,ms=60000");
    let mut bed = Bed::new(&faults, options(Polling::Cpu), 1);
    for epoch in 1..=ROUNDS {
        bed.read(0, 1, 0);
        bed.settle();
        // Both at once: the Abort is sent, and nobody waits for it.
        bed.complain(0, 1);
        bed.complain(0, IDS);
        bed.run_until(|bed| bed.state(0) == (QUEUE_OPEN, epoch + 1));
        bed.enter_epoch(0);
    }
    assert_eq!(bed.queues.counters_now()[0].aborts, u64::from(ROUNDS));
    bed.read(0, 2, 0);
    bed.settle();
    bed.complain(0, 2);
    bed.run_until(|bed| bed.status(0, 2).is_some());
    assert_eq!(bed.status(0, 2), Some(0x07), "aborted, as any late command is");
}

#[test]
fn stale_complaints_do_nothing() {
    let mut bed = Bed::new("", options(Polling::Cpu), 1);
    bed.read(0, 1, 0);
    bed.settle();
    bed.agents[0].step(bed.now_ns);
    bed.complain(0, 1);
    bed.run(LIMIT_NS);
    let counters = bed.queues.counters_now()[0];
    assert_eq!((counters.aborts, counters.epochs), (0, 0), "it had ended");
}

#[test]
fn a_quiet_queue_goes_to_lanes_and_a_loaded_one_comes_back() {
    let mut bed = Bed::new("", options(Polling::Adaptive(bed::COPOLL)), 1);
    bed.read(0, 1, 0);
    bed.settle();
    bed.run(bed::DWELL_NS + 2 * bed::WINDOW_NS);
    let owner = bed.owner(0);
    assert_eq!((owner.owner(), owner.flip(), owner.head()), (OWNER_GPU, 1, 1));
    bed.read(0, 1, 0);
    bed.settle();
    bed.run(bed::WINDOW_NS / 2);
    assert_eq!(bed.status(0, 1), None, "the agent keeps off what is not its own");
    bed.drain_as_lane_or_agent(0);
    assert_eq!(bed.status(0, 1), Some(0));
    // Load, as the lanes report it.
    bed.run(bed::DWELL_NS);
    bed.set_head_lock(0, 1);
    bed.report(0, OwnerWord::pack(OWNER_GPU, true, 1, 2 + bed::COPOLL.high));
    bed.run(2 * bed::WINDOW_NS);
    assert_eq!(bed.owner(0).owner(), OWNER_RECALL);
    bed.report(0, OwnerWord::pack(OWNER_CPU, true, 1, 2));
    bed.run(bed::WINDOW_NS);
    let owner = bed.owner(0);
    assert_eq!((owner.owner(), owner.flip(), owner.head()), (OWNER_CPU, 2, 2));
    let flips = bed.queues.flips();
    let told: Vec<_> = flips.iter().map(|f| (f.from, f.to, f.reason)).collect();
    let there = (Owner::Cpu, Owner::Gpu, FlipReason::LoadLow);
    assert_eq!(told, [there, (Owner::Gpu, Owner::Cpu, FlipReason::LoadHigh)]);
    bed.read(0, 2, 0);
    bed.settle();
    bed.agents[0].step(bed.now_ns);
    assert_eq!(bed.status(0, 2), Some(0), "the agent goes on where lanes ended");
}

#[test]
fn a_queue_is_not_taken_from_a_lane_that_is_at_it() {
    let mut bed = Bed::new("", options(Polling::Adaptive(bed::COPOLL)), 1);
    bed.run(bed::DWELL_NS + 2 * bed::WINDOW_NS);
    assert_eq!(bed.owner(0).owner(), OWNER_GPU);
    bed.run(bed::DWELL_NS);
    bed.set_head_lock(0, 1);
    bed.report(0, OwnerWord::pack(OWNER_GPU, true, 1, bed::COPOLL.high * 9));
    bed.run(20 * bed::WINDOW_NS);
    assert_eq!(bed.owner(0).owner(), OWNER_RECALL, "its holder has not answered");
    bed.set_head_lock(0, 0);
    bed.run(bed::WINDOW_NS);
    assert_eq!(bed.owner(0).owner(), OWNER_CPU, "nobody is there to answer");
    bed.read(0, 2, 0);
    bed.settle();
    bed.agents[0].step(bed.now_ns);
    assert_eq!(bed.status(0, 2), Some(0));
}

#[test]
fn closing_ends_everything_and_closes_the_pairs() {
    let mut bed = Bed::new("lost:n=1,every=1", options(Polling::Cpu), 2);
    bed.read(0, 1, 0);
    bed.settle();
    bed.recovery.close();
    bed.run_until(|bed| bed.queues.states().iter().all(|state| *state == PairState::Closed));
    assert_eq!(bed.state(0), (QUEUE_CLOSED, 1));
    assert_eq!(bed.status_of(0, 1, 1), Some(status::TIMED_OUT));
    assert!(bed.word(0, 1) >> 48 & u64::from(COMPLETION_DONE) != 0);
}

#[test]
fn impossible_options_are_refused() {
    let good = options(Polling::Cpu);
    for bad in [
        QueueOptions { depth: 3, ..good.clone() },
        QueueOptions { depth: 1, ..good.clone() },
        QueueOptions { command_ids: 1 << 17, ..good.clone() },
        QueueOptions { limit: std::time::Duration::ZERO, ..good.clone() },
        QueueOptions { polling: Polling::Gpu, ..good.clone() },
    ] {
        let refused = bed::Bed::try_new("", bad.clone(), 1, 1).err();
        assert_eq!(refused.map(|error| error.code()), Some(1), "{bad:?}");
    }
}
