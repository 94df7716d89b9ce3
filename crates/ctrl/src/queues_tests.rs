//! Doorbells and positions, exhaustively for small depths, against counters that never wrap.

use super::*;

fn memory(bytes: usize) -> Region {
    Region::map_anonymous(bytes, MemoryKind::Host).expect("memory")
}

fn answer(command: u16) -> Answer {
    Answer { submission_queue: 3, command, result: 9, status: Status::INVALID_FIELD }
}

/// Every state of a completion queue and every doorbell value: accepted exactly where it consumes no
/// more than was posted.
#[test]
fn a_completion_doorbell_is_taken_where_it_can_be() {
    for depth in 2..=5_u32 {
        for start in 0..depth {
            for posted in 0..depth {
                for value in 0..depth + 2 {
                    let mut queue = CompletionQueue::new(memory(4096), depth);
                    for _ in 0..start {
                        queue.post(&answer(0), 0);
                        let tail = queue.tail;
                        assert_eq!(queue.ring(tail), Ring::Moved);
                    }
                    for _ in 0..posted {
                        queue.post(&answer(0), 0);
                    }
                    let consumed = (value + depth - start) % depth;
                    let wanted = match value {
                        v if v >= depth || consumed > posted => Ring::Invalid,
                        v if v == start => Ring::Same,
                        _ => Ring::Moved,
                    };
                    let what = format!("depth {depth}, head {start}, {posted} posted, {value}");
                    assert_eq!(queue.ring(value), wanted, "{what}");
                    let head = if wanted == Ring::Moved { value } else { start };
                    assert_eq!(queue.head, head, "{what}");
                    assert_eq!(queue.ring(value), Ring::Same, "once is enough: {what}");
                }
            }
        }
    }
}

/// Entries lie where they should, with the phase of their turn and the head of their moment.
#[test]
fn entries_carry_the_phase_of_their_turn() {
    for depth in 2..=5_u32 {
        let memory = memory(4096);
        let mut queue = CompletionQueue::new(memory.clone(), depth);
        for total in 0..5 * depth {
            assert!(!queue.is_full());
            queue.post(&answer(u16::try_from(total).expect("small")), 0x1_2345);
            let at = (total % depth) as usize * COMPLETION_BYTES;
            assert_eq!(memory.u64_at(at).load(Ordering::Relaxed), 9);
            let phase = u64::from(total / depth % 2 == 0);
            let upper = (u64::from(Status::INVALID_FIELD.bits()) << 1 | phase) << 48
                | u64::from(total) << 32
                | 3 << 16
                | 0x2345;
            assert_eq!(memory.u64_at(at + 8).load(Ordering::Relaxed), upper);
            assert_eq!(queue.is_full(), depth == 2, "two entries hold one");
            assert_eq!(queue.ring((total + 1) % depth), Ring::Moved);
        }
    }
}

#[test]
fn a_submission_queue_gives_each_entry_once_and_refuses_a_value_once() {
    for depth in 2..=5_u32 {
        let memory = memory(4096);
        let mut queue = SubmissionQueue::new(memory.clone(), depth, 1);
        for total in 0..4 * u64::from(depth) {
            let slot = total % u64::from(depth);
            let at = usize::try_from(slot).expect("small") * SUBMISSION_BYTES;
            memory.u64_at(at).store(total, Ordering::Relaxed);
            let tail = u32::try_from((slot + 1) % u64::from(depth)).expect("small");
            assert_eq!(queue.ring(tail), Ring::Moved);
            let entry = queue.fetch().expect("one entry");
            assert_eq!(entry[..8], total.to_le_bytes());
            assert_eq!((queue.fetch(), queue.head), (None, tail));
            assert_eq!(queue.ring(tail), Ring::Same);
        }
        assert_eq!(queue.ring(depth), Ring::Invalid);
        assert_eq!(queue.ring(depth), Ring::Same);
        assert_eq!(queue.ring(depth + 1), Ring::Invalid);
    }
}

/// Several at once, over the end of the memory too; what is stored behind the doorbell is not taken.
#[test]
fn a_submission_queue_fetches_what_was_announced_and_no_more() {
    for depth in [2_u32, 3, 5, 64, 200] {
        let memory = memory(200 * SUBMISSION_BYTES);
        let mut queue = SubmissionQueue::new(memory.clone(), depth, 1);
        let (mut stored, mut taken, mut runs) = (0_u64, 0_u64, 0);
        for round in 1..40_u32 {
            let count = round * 7 % depth;
            for _ in 0..count {
                let at = usize::try_from(stored % u64::from(depth)).expect("small");
                memory.u64_at(at * SUBMISSION_BYTES).store(stored, Ordering::Relaxed);
                stored += 1;
            }
            let tail = u32::try_from(stored % u64::from(depth)).expect("small");
            assert_eq!(queue.ring(tail), if count == 0 { Ring::Same } else { Ring::Moved });
            loop {
                runs += u32::from(queue.wants_run());
                let Some(entry) = queue.fetch() else { break };
                assert_eq!(entry[..8], taken.to_le_bytes(), "depth {depth}");
                taken += 1;
            }
            assert_eq!(taken, stored);
        }
        let needed = u64::from(runs) * u64::from(RUN);
        assert!(
            needed >= taken && (depth < 64 || u64::from(runs) * 8 < taken),
            "{runs} for {taken}"
        );
    }
}

#[test]
fn command_identifiers_are_claimed_and_released_one_by_one() {
    let mut queue = SubmissionQueue::new(memory(4096), 2, 1);
    for id in [0, 63, 64, 0xffff] {
        assert!(queue.claim_id(id));
        assert!(!queue.claim_id(id));
    }
    assert_eq!(queue.outstanding, 4);
    queue.release_id(63);
    assert!(queue.claim_id(63) && !queue.claim_id(64));
    assert_eq!(queue.outstanding, 4);
}
