//! Submits and completes N commands on one queue pair, for counting instructions an I/O.
//!
//! The slope between N and 2N under `valgrind --tool=callgrind` is the cost of one command without
//! its memory accesses. Usage: `instructions N`.
#![forbid(unsafe_code)]

use std::hint::black_box;

use sidecore_proto::{Completed, QueuePair, QueuePairShape};
use spec::{CommandId, Completion, QueueId, Status};

const DEPTH: u32 = 32;

fn main() {
    let count: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(100_000);
    let shape = QueuePairShape::for_commands(QueueId(1), DEPTH);
    let mut pair = QueuePair::<u64>::new(shape).expect("a depth of 32 is legal");
    let (mut submitted, mut ended, mut contexts) = (0u64, 0u64, 0u64);
    let mut sent = [CommandId(0); 32];
    let mut overdue = Vec::new();
    while ended < count {
        for slot in &mut sent {
            let reservation = pair.reserve().expect("the queue is empty");
            black_box(reservation.index());
            let command = reservation.commit(submitted, submitted + 1_000_000_000);
            submitted += 1;
            *slot = command;
        }
        let tail = black_box(pair.take_submission_doorbell()).unwrap_or(0);
        for command in sent {
            let status_phase = Completion::join(Status::SUCCESS, pair.completion_phase());
            let entry = Completion {
                sqhd: tail,
                sqid: 1,
                cid: command.0,
                status_phase,
                ..Default::default()
            };
            match pair.complete(black_box(&entry)) {
                Some(Ok(Completed::Ended { context, .. })) => contexts += context,
                other => panic!("an honest completion is taken: {other:?}"),
            }
        }
        ended += u64::from(DEPTH);
        black_box(pair.take_completion_doorbell());
        pair.take_overdue(submitted, &mut overdue);
    }
    assert!(overdue.is_empty(), "no deadline passed");
    assert_eq!(contexts, (0..ended).sum(), "each command ended once");
    println!("{ended} commands submitted and completed");
}
