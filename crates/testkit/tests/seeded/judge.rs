//! What must be true after a run: of every I/O, every byte, every counter.

use abi::ring::{CompletionRecord, OP_READ, OP_WRITE};
use abi::status;
use mem::Region;
use sidecore::Moment;
use sidecore_testkit::pattern;
use sidecore_testkit::submitter::Submitter;
use storage::Op;
use storage::faults::FaultKind;

use crate::case::{Case, GRACE, LANES, LIMIT, STALL, Trouble};
use crate::plan::{Io, MANNER_LEAVE, MANNER_WAIT, POISON, Seen};
use crate::world::{Run, WRITTEN, World};

/// How an I/O stands after the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// It was never asked for.
    Never,
    /// Its lane left while it was in flight.
    Left,
    /// Its lane saw this status.
    Saw(u16),
}

/// Follows each lane through the kernel.
fn fates(case: &Case, plan: &[Io], seen: &[Seen]) -> Vec<Fate> {
    let mut fates = vec![Fate::Never; plan.len()];
    let a_lane = plan.len() / LANES as usize;
    for lane in 0..LANES as usize {
        follow_lane(case.batch as usize, lane * a_lane, a_lane, plan, seen, &mut fates);
    }
    fates
}

fn follow_lane(
    batch: usize,
    start: usize,
    count: usize,
    plan: &[Io],
    seen: &[Seen],
    fates: &mut [Fate],
) {
    for first in (start..start + count).step_by(batch) {
        for at in first..first + batch {
            if plan[at].manner == MANNER_LEAVE {
                return;
            }
            fates[at] = Fate::Left;
        }
        for at in first..first + batch {
            if seen[at].status == status::PENDING {
                return;
            }
            fates[at] = Fate::Saw(seen[at].status);
            assert_eq!(seen[at].ends, 1, "I/O {at} ended {} times", seen[at].ends);
        }
    }
}

fn words(region: &Region, at: u64, bytes: u32) -> Vec<u64> {
    let at = usize::try_from(at).expect("small");
    let load = |word| region.u64_at(at + word * 8).load(std::sync::atomic::Ordering::Relaxed);
    (0..bytes as usize / 8).map(load).collect()
}

fn expected(address: u64, bytes: u32, generation: u64) -> Vec<u64> {
    (0..u64::from(bytes) / 16)
        .flat_map(|unit| {
            let (lo, hi) = pattern::unit_words(address + unit * 16, generation);
            [lo, hi]
        })
        .collect()
}

/// Judges one run.
///
/// # Panics
/// Where anything is not as it must be.
pub fn judge(world: &World, plan: &[Io], run: &Run, again: bool) {
    let case = &world.case;
    let fates = fates(case, plan, &run.seen);
    let mut flipped = 0;
    for (at, io) in plan.iter().enumerate() {
        let told =
            |what: &str| format!("{what}: I/O {at} {io:?} {:?} {:?}", fates[at], run.seen[at]);
        if let Fate::Saw(status) = fates[at] {
            assert!(allowed(case.trouble, status), "{}", told("status"));
            // A slow side core makes lanes wait for a slot, too, which no limit bounds.
            let slow = if case.trouble == Trouble::Slow { 20 } else { 1 };
            let bound = slow * (2 * (LIMIT + GRACE) + 4 * STALL);
            let late = u128::from(run.seen[at].latency_ns) > bound.as_nanos();
            assert!(!late || io.manner != MANNER_WAIT, "{}", told("late"));
            if status == status::SUCCESS && run.seen[at].wrong > 0 {
                assert_eq!(case.trouble, Trouble::Flip, "{}", told("payload as the lane saw it"));
                flipped += 1;
            }
        }
        check_buffer(world, io, fates[at], &told);
        check_source(world, io, fates[at], again, &told);
    }
    if again || case.trouble != Trouble::Closed {
        check_records(world);
    }
    if !again {
        check_struck(world, plan, &fates);
        check_counts(world, &fates, run, flipped);
    } else if case.trouble != Trouble::Deserters {
        let usable = fates.iter().all(|fate| *fate == Fate::Saw(status::SUCCESS));
        assert!(usable && flipped == 0, "the ring is not usable afterwards");
    }
}

/// Judges memory alone once more: nothing was touched after the lanes had their answers.
///
/// # Panics
/// Where something was.
pub fn judge_memory(world: &World, plan: &[Io], run: &Run) {
    let fates = fates(&world.case, plan, &run.seen);
    for (at, io) in plan.iter().enumerate() {
        let told = |what: &str| format!("{what}, later: I/O {at} {io:?} {:?}", fates[at]);
        check_buffer(world, io, fates[at], &told);
        check_source(world, io, fates[at], false, &told);
    }
}

fn allowed(trouble: Trouble, status: u16) -> bool {
    let other = match trouble {
        Trouble::Duplicate | Trouble::Flip | Trouble::Nothing | Trouble::Slow => false,
        // A record whose request the closing left in the ring is busy until the ring opens again.
        Trouble::Closed => {
            matches!(status, status::RING_CLOSED | status::CANCELLED | status::RECORD_BUSY)
        }
        Trouble::Deserters => matches!(status, status::TIMED_OUT | status::CANCELLED),
        Trouble::Drained => status == status::RING_CLOSED,
        Trouble::Error => status == 0x281,
        Trouble::Late | Trouble::Lost => status == status::TIMED_OUT,
        Trouble::Panic(_) | Trouble::Stall => status == status::SIDE_CORE_LOST,
        Trouble::Reset => matches!(status, 0x007 | 0x008),
        Trouble::Stuck => matches!(status, status::TIMED_OUT | 0x007),
        Trouble::Torn => status == 0x280,
    };
    status == status::SUCCESS || other
}

fn check_buffer(world: &World, io: &Io, fate: Fate, told: &dyn Fn(&str) -> String) {
    let found = words(&world.window, io.buffer_offset, io.bytes);
    let poison = vec![POISON; found.len()];
    if io.opcode == u32::from(OP_WRITE) && fate != Fate::Never {
        let filled = expected(io.source_offset, io.bytes, WRITTEN);
        assert_eq!(found, filled, "{}", told("the buffer of a write"));
        return;
    }
    if io.opcode != u32::from(OP_READ) || fate == Fate::Never {
        assert_eq!(found, poison, "{}", told("a buffer that nothing may touch"));
        return;
    }
    let data = expected(io.source_offset, io.bytes, 1);
    match fate {
        Fate::Saw(status::SUCCESS) => {
            let right = found == data || world.case.trouble == Trouble::Flip;
            assert!(right, "{}: {found:x?}", told("the payload at the end"));
        }
        // A torn read ends within a word.
        Fate::Saw(0x280) if world.case.is_direct() => {}
        Fate::Saw(status) if status != status::SIDE_CORE_LOST && !world.case.is_direct() => {
            assert_eq!(found, poison, "{}", told("the buffer of a read that failed"));
        }
        // A drive may have stored what it then did not answer for.
        Fate::Never | Fate::Saw(_) | Fate::Left => {
            let mut pairs = found.iter().zip(&data);
            let each = pairs.all(|(found, data)| *found == POISON || found == data);
            assert!(each, "{}: {found:x?}", told("neither untouched nor the payload"));
        }
    }
}

fn check_source(world: &World, io: &Io, fate: Fate, again: bool, told: &dyn Fn(&str) -> String) {
    let found = words(world.memory.region(), io.source_offset, io.bytes);
    let old = expected(io.source_offset, io.bytes, 1);
    let new = expected(io.source_offset, io.bytes, WRITTEN);
    let asked = io.opcode == u32::from(OP_WRITE) && fate != Fate::Never;
    match fate {
        _ if !asked => assert!(again || found == old, "{}", told("source that nothing may touch")),
        Fate::Saw(status::SUCCESS) => {
            assert_eq!(found, new, "{}, not {old:x?}", told("what was written"))
        }
        // An injected error moves nothing.
        Fate::Saw(0x281) => assert_eq!(found, old, "{}", told("a write that failed")),
        _ => {
            let each = (0..found.len()).all(|at| found[at] == old[at] || found[at] == new[at]);
            // A torn write ends within a word.
            let torn = world.case.trouble == Trouble::Torn;
            assert!(each || torn, "{}: {found:x?}", told("neither old nor new"));
        }
    }
}

/// Nothing is in flight: each record has the turn that its owner issued last.
fn check_records(world: &World) {
    let submitter = Submitter::new(&world.ring);
    for record in 0..world.case.config.records {
        let CompletionRecord { word } = submitter.record(record);
        assert!(
            submitter.completion(record).is_some(),
            "record {record} has {word:#x}, its owner is at turn {}",
            submitter.turn(record)
        );
    }
    assert_eq!(submitter.free(), u64::from(world.case.config.depth), "slots of the ring");
}

/// Each I/O that a fault fell on was answered as that fault is: the right error, to the right lane.
fn check_struck(world: &World, plan: &[Io], fates: &[Fate]) {
    let Some(injector) = &world.injector else { return };
    let (kind, status) = match world.case.trouble {
        Trouble::Error => (FaultKind::Error, 0x281),
        Trouble::Late => (FaultKind::Late, status::TIMED_OUT),
        Trouble::Lost => (FaultKind::Lost, status::TIMED_OUT),
        Trouble::Stuck => (FaultKind::Stuck, status::TIMED_OUT),
        Trouble::Torn => (FaultKind::Torn, 0x280),
        _ => return,
    };
    // A flush has no place of its own.
    for shape in injector.struck(kind).iter().filter(|shape| shape.op != Op::Flush) {
        let one = plan.iter().position(|io| {
            io.source_offset == shape.offset && io.opcode != u32::from(abi::ring::OP_FLUSH)
        });
        let fate = one.map(|at| fates[at]);
        assert_eq!(fate, Some(Fate::Saw(status)), "what a fault fell on: {shape:?}");
    }
}

/// What was injected has surfaced, no more and no less; nothing was lost or doubled.
fn check_counts(world: &World, fates: &[Fate], run: &Run, flipped: u64) {
    let case = &world.case;
    let of = |status| fates.iter().filter(|fate| **fate == Fate::Saw(status)).count() as u64;
    let asked = fates.iter().filter(|fate| **fate != Fate::Never).count() as u64;
    let counters = &run.counters;
    if matches!(case.trouble, Trouble::Closed | Trouble::Drained) {
        // Most of them never reached the ring.
        let (refused, most) = (of(status::RING_CLOSED), asked - asked / 128);
        assert!((1..=most).contains(&refused), "{refused} of {asked} found the ring closed");
        // Who is told so has no other answer, not even one of just before; nor has any later request
        // of the same record, which counts as busy.
        let told = asked - refused - of(status::RECORD_BUSY);
        assert_eq!(told, counters.completions - counters.refused, "{counters:?}");
        return;
    }
    assert_eq!(counters.completions, asked, "one completion a request: {counters:?}");
    if case.trouble != Trouble::Deserters {
        assert_eq!(asked, fates.len() as u64);
        let again = counters.restarts;
        assert!((asked..=asked + again).contains(&counters.requests), "{counters:?}");
    }
    let injected = |kind| world.injector.as_ref().map_or(0, |injector| injector.injected(kind));
    let n = u64::from(case.count);
    let surfaced = |kind, surfaced| {
        assert_eq!((injected(kind), surfaced), (n, n), "{kind:?} injected, surfaced: {counters:?}");
    };
    match case.trouble {
        Trouble::Duplicate => surfaced(FaultKind::Duplicate, counters.stray_completions),
        Trouble::Error => surfaced(FaultKind::Error, of(0x281)),
        Trouble::Flip => surfaced(FaultKind::Flip, flipped),
        Trouble::Late => surfaced(FaultKind::Late, of(status::TIMED_OUT)),
        Trouble::Lost => surfaced(FaultKind::Lost, of(status::TIMED_OUT)),
        Trouble::Torn => surfaced(FaultKind::Torn, of(0x280)),
        Trouble::Reset => {
            assert_eq!(injected(FaultKind::Reset), 2);
            // Each takes its own I/O, and what was in flight beside it: all of them are told.
            let ended = world.injector.as_ref().map_or(0, |injector| injector.ended_by_resets());
            assert!(ended >= 2, "{ended} ended by two resets");
            assert_eq!(of(0x007) + of(0x008), ended, "aborted, as lanes saw it");
        }
        Trouble::Stuck => {
            assert_eq!(injected(FaultKind::Stuck), 2);
            // Each has stopped its queue, which nothing but a quiesce sets going again; what hung
            // beside it and had time left was started again and is no error.
            assert_eq!(counters.storage_quiesced, 2, "{counters:?}");
            // The two themselves are told so (see `check_struck`), and whose limit passed behind them.
            let victims = counters.timed_out.checked_sub(2);
            assert!(victims.is_some(), "{counters:?}");
            assert_eq!(of(status::TIMED_OUT), counters.timed_out, "timed out, as lanes saw it");
        }
        Trouble::Panic(moment) => {
            let panicked = world.panicked.load(std::sync::atomic::Ordering::Relaxed);
            assert_eq!((panicked, world.ring.epoch()), (1, 2), "a panic and a restart");
            let (seen, lost) = (of(status::SIDE_CORE_LOST), counters.side_core_lost);
            // Once words are stored some lanes see the first of two answers to the same request.
            let twice = matches!(moment, Moment::AmidWords | Moment::AfterWords);
            assert!(seen == lost || (twice && seen < lost), "{seen} seen, {lost} lost");
        }
        Trouble::Stall => {
            assert_eq!(world.ring.epoch(), 2, "a stall and a restart");
            assert_eq!(of(status::SIDE_CORE_LOST), counters.side_core_lost);
        }
        Trouble::Nothing | Trouble::Slow => assert_eq!(of(status::SUCCESS), asked),
        Trouble::Deserters => {
            assert!(injected(FaultKind::Late) + injected(FaultKind::Lost) > 0, "{counters:?}");
        }
        Trouble::Closed | Trouble::Drained => {}
    }
}
