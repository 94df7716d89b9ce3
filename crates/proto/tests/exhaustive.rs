//! Every sequence of four steps, on every queue of 2 to 4 entries, from just before each wrap; and
//! every seventeenth from every other index and phase.

mod support;

use sidecore_proto::QueuePairShape;
use spec::QueueId;
use support::{Model, Step};

const STEPS: [Step; 10] = [
    Step::Submit,
    Step::RingSubmission,
    Step::Fetch,
    Step::Complete(0),
    Step::Complete(1),
    Step::Poll,
    Step::RingCompletion,
    Step::Retire(0),
    Step::Abandon,
    Step::Restart,
];
const LENGTH: u32 = 4;

fn shapes() -> impl Iterator<Item = QueuePairShape> {
    (2..=4u32).flat_map(|submission_entries| {
        (2..=4u32).flat_map(move |completion_entries| {
            let commands = submission_entries.min(completion_entries) - 1;
            (1..=commands).map(move |commands_max| QueuePairShape {
                queue: QueueId(5),
                submission_entries,
                completion_entries,
                commands_max,
            })
        })
    })
}

/// Full rings are reached by a prefix that fills them, so that few further steps suffice.
fn run(shape: QueuePairShape, start: usize, filled: bool, mut number: u32) {
    let mut model = Model::new(shape);
    model.advance(start);
    if filled {
        for _ in 0..shape.commands_max {
            model.step(Step::Submit);
        }
        model.step(Step::RingSubmission);
        model.step(Step::Fetch);
    }
    for _ in 0..LENGTH {
        let choice = usize::try_from(number % 10).unwrap();
        number /= 10;
        model.step(STEPS[choice]);
    }
    // Whatever happened, the queue ends empty and usable.
    for _ in 0..2 * shape.commands_max {
        for step in
            [Step::RingSubmission, Step::Fetch, Step::Complete(0), Step::Poll, Step::RingCompletion]
        {
            model.step(step);
        }
    }
    model.advance(2);
}

#[test]
fn every_sequence_from_every_index_and_phase() {
    let mut runs = 0u32;
    for shape in shapes() {
        let entries = shape.submission_entries.max(shape.completion_entries);
        for start in 0..usize::try_from(2 * entries).unwrap() {
            for filled in [false, true] {
                let at_wrap = (start + 1).is_multiple_of(usize::try_from(entries).unwrap());
                let stride = if at_wrap { 1 } else { 17 };
                for number in (0..10u32.pow(LENGTH)).step_by(stride) {
                    run(shape, start, filled, number);
                    runs += 1;
                }
            }
        }
    }
    assert!(runs > 500_000, "{runs} sequences");
}
