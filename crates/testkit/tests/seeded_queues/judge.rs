//! What must be true after a run: of every I/O, every byte, every counter.

use abi::ring::{OP_READ, OP_WRITE};
use abi::status;
use mem::Region;
use sidecore::gpu_queues::Polling;
use sidecore_testkit::pattern;
use storage::Op;
use storage::faults::FaultKind;

use crate::case::{Case, LANES, Trouble};
use crate::plan::{Io, MANNER_ABANDON, Seen};
use crate::world::{POISON, Run, WRITTEN, World};

/// The drive's "abort requested" and "aborted due to SQ deletion".
const ABORTED: u16 = 0x07;
const DELETED: u16 = 0x08;

/// How an I/O stands after the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// It was never asked for.
    Never,
    /// Its lane left while it was in flight, or without asking how it stands.
    Left,
    /// Its lane saw this status.
    Saw(u16),
}

/// Follows each lane through the kernel.
fn fates(case: &Case, plan: &[Io], seen: &[Seen]) -> Vec<Fate> {
    let mut fates = vec![Fate::Never; plan.len()];
    let (a_lane, batch) = (plan.len() / LANES as usize, case.batch as usize);
    for start in (0..plan.len()).step_by(a_lane) {
        'lane: for first in (start..start + a_lane).step_by(batch) {
            fates[first..first + batch].fill(Fate::Left);
            for at in first..first + batch {
                if seen[at].status != status::PENDING {
                    fates[at] = Fate::Saw(seen[at].status);
                    assert_eq!(seen[at].ends, 1, "I/O {at} ended {} times", seen[at].ends);
                }
                if plan[at].manner == MANNER_ABANDON {
                    break 'lane;
                }
                assert_ne!(fates[at], Fate::Left, "I/O {at}: a wait without an end");
            }
        }
    }
    fates
}

fn is_right(region: &Region, at: u64, bytes: u32, address: u64, generation: u64) -> bool {
    let at = usize::try_from(at).expect("small");
    pattern::check_region(region, at, bytes as usize, address, generation).is_ok()
}

fn is_poison(region: &Region, at: u64, bytes: u32) -> bool {
    let mut found = vec![0; bytes as usize];
    region.read_bytes(usize::try_from(at).expect("small"), &mut found);
    found.chunks(8).all(|word| word == POISON.to_ne_bytes())
}

fn allowed(trouble: Trouble, status: u16) -> bool {
    let other = match trouble {
        Trouble::Duplicate | Trouble::Flip | Trouble::Nothing => false,
        Trouble::Error => status == 0x281,
        Trouble::Deserters | Trouble::Stuck | Trouble::Late | Trouble::Lost => {
            matches!(status, status::TIMED_OUT | ABORTED | DELETED)
        }
        // Where two resets, or a slow one, took a command beyond its limit.
        Trouble::Reset => matches!(status, DELETED | status::TIMED_OUT),
        Trouble::Torn => status == 0x280,
    };
    status == status::SUCCESS || other
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
        let (fate, seen) = (fates[at], &run.seen[at]);
        let counts = (&run.host, &run.lanes);
        let told = |what: &str| format!("{what}: I/O {at} {io:?} {fate:?} {seen:?} {counts:?}");
        if let Fate::Saw(status) = fate {
            assert!(allowed(case.trouble, status), "{}", told("status"));
        }
        match (fate, u16::try_from(io.opcode).ok()) {
            (Fate::Never, _) => {
                assert!(is_poison(&world.window, io.buffer_offset, io.bytes), "{}", told("poison"));
            }
            (Fate::Saw(status::SUCCESS), Some(op)) if op == u16::from(OP_READ) => {
                let right = is_right(&world.window, io.buffer_offset, io.bytes, io.offset, 1);
                assert!(right || case.trouble == Trouble::Flip, "{}", told("payload"));
                let early = seen.wrong > 0 && right;
                assert!(!early, "{}", told("the lane looked before its payload was there"));
                flipped += u64::from(!right);
            }
            (Fate::Saw(status::SUCCESS), Some(op)) if op == u16::from(OP_WRITE) => {
                let right = is_right(&world.disk, io.offset, io.bytes, io.offset, WRITTEN);
                assert!(right, "{}", told("the namespace after a write"));
            }
            _ => {}
        }
        if io.opcode != u32::from(OP_WRITE) && !again {
            let untouched = is_right(&world.disk, io.offset, io.bytes, io.offset, 1);
            assert!(untouched, "{}", told("the namespace"));
        }
    }
    if again {
        let usable = fates.iter().all(|fate| *fate == Fate::Saw(status::SUCCESS));
        let deserted = case.trouble == Trouble::Deserters;
        assert!(usable && flipped == 0 || deserted, "the pairs are not usable afterwards");
    } else {
        check_struck(world, plan, &fates);
        check_counts(world, &fates, run, flipped);
    }
}

/// Each I/O that a fault fell on was answered as that fault is: the right error, to the right lane.
fn check_struck(world: &World, plan: &[Io], fates: &[Fate]) {
    let (kind, statuses): (_, &[u16]) = match world.case.trouble {
        Trouble::Error => (FaultKind::Error, &[0x281]),
        Trouble::Late => (FaultKind::Late, &[status::TIMED_OUT, ABORTED, DELETED]),
        Trouble::Lost => (FaultKind::Lost, &[status::TIMED_OUT, DELETED]),
        Trouble::Stuck => (FaultKind::Stuck, &[DELETED]),
        Trouble::Torn => (FaultKind::Torn, &[0x280]),
        _ => return,
    };
    // A flush has no place of its own.
    for shape in world.injector.struck(kind).iter().filter(|shape| shape.op != Op::Flush) {
        let one = plan.iter().position(|io| {
            io.offset == shape.offset && io.opcode != u32::from(abi::ring::OP_FLUSH)
        });
        let fate = one.map(|at| fates[at]);
        let right = matches!(fate, Some(Fate::Saw(status)) if statuses.contains(&status));
        assert!(right, "what a fault fell on: {shape:?} {fate:?}");
    }
}

fn check_counts(world: &World, fates: &[Fate], run: &Run, flipped: u64) {
    let case = &world.case;
    let injected = |kind| world.injector.injected(kind);
    let count = |good: &dyn Fn(u16) -> bool| {
        fates.iter().filter(|fate| matches!(fate, Fate::Saw(s) if good(*s))).count() as u64
    };
    let failed = count(&|s| s != status::SUCCESS);
    let told = format!("{:?}: {:?}, {:?}, failed {failed}", case.trouble, run.host, run.lanes);
    let n = u64::from(case.count);
    let surfaced = |kind, surfaced| {
        assert_eq!((injected(kind), surfaced), (n, n), "{kind:?} injected, surfaced: {told}");
    };
    match case.trouble {
        Trouble::Duplicate => {
            // One that is drained while its lane has taken the first but not yet given back the id counts
            // as an end, and the last ones may stay in the queue.
            let strays = run.host.strays + run.lanes.strays;
            assert_eq!(injected(FaultKind::Duplicate), n, "{told}");
            assert!(strays <= n, "{told}");
        }
        Trouble::Error => surfaced(FaultKind::Error, failed),
        Trouble::Flip => surfaced(FaultKind::Flip, flipped),
        Trouble::Late => surfaced(FaultKind::Late, failed),
        Trouble::Lost => {
            surfaced(FaultKind::Lost, failed);
            assert!(run.host.epochs > 0, "{told}");
        }
        Trouble::Nothing => assert_eq!((failed, run.host.epochs, run.host.aborts), (0, 0, 0)),
        Trouble::Reset => {
            assert_eq!((injected(FaultKind::Reset), world.driver.resets()), (2, 2), "{told}");
        }
        Trouble::Stuck => {
            // Each has stopped its queue. The drive says of the command itself that it went with the
            // queue; whoever stood behind it was never fetched, and is told by the host.
            let stuck = injected(FaultKind::Stuck);
            assert_eq!((stuck, count(&|s| s == DELETED)), (2, stuck), "{told}");
            let behind = count(&|s| s == status::TIMED_OUT);
            assert_eq!((behind, failed), (run.drive.io_left, stuck + behind), "{told}");
            assert_eq!(run.host.epochs, stuck, "{told}");
        }
        Trouble::Torn => surfaced(FaultKind::Torn, failed),
        Trouble::Deserters => {}
    }
    let (by_cpu, by_gpu) = (run.host.completions_polled, run.lanes.drained);
    match case.options.polling {
        Polling::Cpu => assert_eq!(by_gpu, 0, "{told}"),
        // The host drains in the lanes' stead only while they are kept off.
        Polling::Gpu => assert!(by_cpu == 0 || run.host.epochs > 0, "{told}"),
        Polling::Adaptive(_) => {
            assert_eq!(by_cpu + by_gpu, fates.len() as u64, "{told}");
        }
    }
    let fences = run.lanes.fence_ios;
    assert_eq!(fences > 0, case.options.second_read, "{told}");
    if case.trouble == Trouble::Nothing {
        let strays = run.host.strays + run.lanes.strays;
        let ended = by_cpu + by_gpu - strays;
        // Fence I/Os are counted apart: the drive has seen them too, the lanes asked for none of them.
        assert_eq!(ended - fences, fates.len() as u64, "{told}");
        assert_eq!(run.drive.io_commands - fences, fates.len() as u64, "{told}");
    }
}
