//! Long random sequences against the plain model, and drives that answer anything.

mod support;

use proptest::prelude::*;
use sidecore_proto::{Completed, Misbehaved, QueuePair, QueuePairShape};
use spec::{Completion, QueueId, Status};
use support::{Model, Step};

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => Just(Step::Submit),
        1 => Just(Step::Abandon),
        4 => Just(Step::RingSubmission),
        6 => Just(Step::Fetch),
        6 => (0usize..8).prop_map(Step::Complete),
        6 => Just(Step::Poll),
        4 => Just(Step::RingCompletion),
        1 => (0usize..8).prop_map(Step::Retire),
    ];
    let restart = 400u32;
    prop::collection::vec(prop_oneof![restart => step, 1 => Just(Step::Restart)], 1..400)
}

fn shapes() -> impl Strategy<Value = QueuePairShape> {
    (2u32..40, 2u32..40).prop_flat_map(|(submission_entries, completion_entries)| {
        (1..submission_entries.min(completion_entries)).prop_map(move |commands_max| {
            QueuePairShape {
                queue: QueueId(1),
                submission_entries,
                completion_entries,
                commands_max,
            }
        })
    })
}

proptest! {
    #[test]
    fn long_sequences_agree(shape in shapes(), start in 0usize..80, steps in steps()) {
        let mut model = Model::new(shape);
        model.advance(start);
        for step in steps {
            model.step(step);
        }
    }

    /// A drive that answers arbitrary words: every answer is a value, ids are never invented, and
    /// as many commands end as were accepted.
    #[test]
    fn arbitrary_answers_are_values(
        commands in 1u32..20,
        answers in prop::collection::vec((any::<[u64; 2]>(), 0u8..6), 1..300),
    ) {
        let shape = QueuePairShape::for_commands(QueueId(1), commands);
        let mut pair = QueuePair::<u64>::new(shape).unwrap();
        let (mut submitted, mut ended) = (0u64, Vec::new());
        for (words, honesty) in answers {
            while let Some(reservation) = pair.reserve() {
                reservation.commit(submitted, u64::MAX);
                submitted += 1;
            }
            pair.take_submission_doorbell();
            let mut entry = Completion::from_words(words);
            let phase = pair.completion_phase();
            entry.status_phase = Completion::join(entry.status(), phase);
            if honesty > 0 { entry.sqid = 1; }
            if honesty > 1 { entry.cid &= 0x1f; }
            if honesty > 2 { entry.sqhd %= 32; }
            match pair.complete(&entry) {
                Some(Ok(Completed::Ended { command, context, status, .. })) => {
                    prop_assert_eq!(command, entry.command_id());
                    prop_assert_eq!(status, entry.status());
                    ended.push(context);
                }
                Some(Err(_)) => {}
                other => prop_assert!(false, "{:?}", other),
            }
        }
        let left = pair.restart();
        ended.extend(left.iter().map(|lost| lost.context));
        ended.sort_unstable();
        prop_assert_eq!(ended, (0..submitted).collect::<Vec<_>>());
    }
}

/// Sixteen-bit indices and generations both go round: the largest ring, moved past its end twice.
#[test]
fn the_largest_queue_wraps() {
    let shape = QueuePairShape {
        queue: QueueId(1),
        submission_entries: 65536,
        completion_entries: 65535,
        commands_max: 4096,
    };
    let mut model = Model::new(shape);
    model.advance(65530);
    for _ in 0..12 {
        model.step(Step::Submit);
    }
    model.step(Step::RingSubmission);
    for n in 0..12 {
        model.step(Step::Fetch);
        model.step(Step::Complete(n));
        model.step(Step::Poll);
        model.step(Step::RingCompletion);
    }
    model.advance(66000);
}

fn honest(pair: &QueuePair<u64>, cid: u16, sqhd: u16) -> Completion {
    let status_phase = Completion::join(Status::SUCCESS, pair.completion_phase());
    Completion { sqhd, sqid: 1, cid, status_phase, ..Default::default() }
}

fn pair_with_two() -> (QueuePair<u64>, u16) {
    let mut pair = QueuePair::new(QueuePairShape::for_commands(QueueId(1), 3)).unwrap();
    let first = pair.reserve().unwrap().commit(10, 1000);
    pair.reserve().unwrap().commit(11, 500);
    assert_eq!(pair.take_submission_doorbell(), Some(2));
    (pair, first.0)
}

#[test]
fn a_duplicate_is_stale_before_and_after_the_slot_is_used_again() {
    let (mut pair, first) = pair_with_two();
    let entry = honest(&pair, first, 2);
    assert!(matches!(pair.complete(&entry), Some(Ok(Completed::Ended { context: 10, .. }))));
    let entry = honest(&pair, first, 2);
    let stale = |answer| matches!(answer, Some(Err(Misbehaved::StaleCommand { .. })));
    assert!(stale(pair.complete(&entry)));
    let again = pair.reserve().unwrap().commit(12, u64::MAX);
    assert_ne!(again.0, first);
    let entry = honest(&pair, first, 2);
    assert!(stale(pair.complete(&entry)));
    assert!(pair.is_in_flight(again));
}

#[test]
fn an_entry_is_not_written_again_before_the_drive_has_fetched_it() {
    let mut pair = QueuePair::new(QueuePairShape::for_commands(QueueId(1), 2)).unwrap();
    for (context, sqhd, full) in [(10, 0, false), (11, 0, true)] {
        let command = pair.reserve().unwrap().commit(context, u64::MAX);
        pair.take_submission_doorbell();
        let entry = honest(&pair, command.0, sqhd);
        assert!(matches!(pair.complete(&entry), Some(Ok(Completed::Ended { .. }))));
        assert_eq!(pair.reserve().is_none(), full, "{context}");
    }
}

#[test]
fn impossible_completions_are_named() {
    let (mut pair, first) = pair_with_two();
    let entry = Completion { sqid: 7, ..honest(&pair, first, 2) };
    let answer = pair.complete(&entry);
    assert!(matches!(answer, Some(Err(Misbehaved::WrongQueue { reported: QueueId(7), .. }))));
    let entry = honest(&pair, first, 3);
    let answer = pair.complete(&entry);
    let tail = Misbehaved::SubmissionHead { queue: QueueId(1), reported: 3, head: 0, tail: 2 };
    assert_eq!(answer, Some(Err(tail)));
    let entry = honest(&pair, 3, 2);
    assert!(matches!(pair.complete(&entry), Some(Err(Misbehaved::UnknownCommand { .. }))));
    assert_eq!(pair.in_flight(), 2);
}

#[test]
fn deadlines_are_reported_once_and_in_time() {
    let (mut pair, first) = pair_with_two();
    let mut overdue = Vec::new();
    pair.take_overdue(499, &mut overdue);
    assert!(overdue.is_empty());
    pair.take_overdue(500, &mut overdue);
    assert_eq!(overdue.len(), 1);
    pair.take_overdue(999, &mut overdue);
    assert_eq!(overdue.len(), 1);
    assert!(pair.retire(overdue[0]));
    pair.take_overdue(5000, &mut overdue);
    assert_eq!(overdue.last().map(|command| command.0), Some(first));
    assert_eq!(overdue.len(), 2);
    assert_eq!(pair.deadline_bound_ns(), u64::MAX);
}

#[test]
fn impossible_shapes_are_refused() {
    let good = QueuePairShape {
        queue: QueueId(1),
        submission_entries: 65536,
        completion_entries: 65536,
        commands_max: 4096,
    };
    assert!(QueuePair::<()>::new(good).is_ok());
    for bad in [
        QueuePairShape { submission_entries: 1, commands_max: 1, ..good },
        QueuePairShape { completion_entries: 65537, ..good },
        QueuePairShape { commands_max: 0, ..good },
        QueuePairShape { commands_max: 4097, ..good },
        QueuePairShape { completion_entries: 8, commands_max: 8, ..good },
    ] {
        assert!(QueuePair::<()>::new(bad).is_err(), "{bad:?}");
    }
}
