//! Submits and completes N commands on one queue pair, for counting instructions an I/O.
//!
//! The slope between N and 2N under `valgrind --tool=callgrind` is the cost of one command without
//! its memory accesses. Usage: `instructions N`.
#![forbid(unsafe_code)]

use std::hint::black_box;

use sidecore_proto::{Completed, QueuePair, QueuePairShape};
use spec::{Completion, QueueId, Status};

const DEPTH: u32 = 32;

fn main() {
    let count: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(100_000);
    let shape = QueuePairShape::for_commands(QueueId(1), DEPTH);
    let mut pair = QueuePair::<u64>::new(shape).expect("a depth of 32 is legal");
    let (mut submitted, mut ended) = (0u64, 0u64);
    let mut sent = Vec::with_capacity(32);
    let mut overdue = Vec::new();
    while ended < count {
        while let Some(reservation) = pair.reserve() {
            black_box(reservation.index());
            let command = reservation.commit(submitted, submitted + 1_000_000_000);
            submitted += 1;
            sent.push(command);
        }
        let tail = black_box(pair.take_submission_doorbell()).unwrap_or(0);
        for command in sent.drain(..) {
            let status_phase = Completion::join(Status::SUCCESS, pair.completion_phase());
            let entry = Completion {
                sqhd: tail,
                sqid: 1,
                cid: command.0,
                status_phase,
                ..Default::default()
            };
            match pair.complete(black_box(&entry)) {
                Some(Ok(Completed::Ended { context, .. })) => {
                    ended += u64::from(context < submitted)
                }
                other => panic!("an honest completion is taken: {other:?}"),
            }
        }
        black_box(pair.take_completion_doorbell());
        pair.take_overdue(submitted, &mut overdue);
    }
    assert!(overdue.is_empty(), "no deadline passed");
    println!("{ended} commands submitted and completed");
}
