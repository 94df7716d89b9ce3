//! Every fault of the controller's script: the right status, to the right request, in time, and
//! nobody else harmed.

mod support;

use std::sync::atomic::Ordering;
use std::time::Duration;

use ctrl::ResetFault;
use proto::Misbehaved;
use sidecore_driver::{DriverError, DriverState, Op};
use spec::{Completion, Status};
use storage::faults::FaultKind;
use support::{MS, Rig, Setup};

const LIMIT: Duration = Duration::from_millis(50);

fn faulty(faults: &'static str) -> Rig {
    Rig::new(&Setup { faults, ..Setup::default() })
}

fn count(statuses: &[Status], wanted: Status) -> usize {
    statuses.iter().filter(|status| status.is(wanted)).count()
}

#[test]
fn error_statuses_travel_unchanged() {
    let mut rig = faulty("error:n=9,status=2/81");
    let mut queue = rig.queue(16);
    let statuses = rig.read_many(&mut queue, 200, LIMIT);
    assert_eq!(rig.injector.injected(FaultKind::Error), 9);
    assert_eq!(count(&statuses, Status::UNRECOVERED_READ_ERROR), 9);
    assert_eq!(count(&statuses, Status::SUCCESS), 191);
    assert_eq!(queue.counters().recoveries, 0);
}

#[test]
fn lost_completions_end_by_their_deadline_and_harm_nobody() {
    let mut rig = faulty("lost:n=10");
    let mut queue = rig.queue(16);
    let statuses = rig.read_many(&mut queue, 300, LIMIT);
    assert_eq!(rig.injector.injected(FaultKind::Lost), 10);
    assert_eq!(count(&statuses, Status::ABORTED_BY_HOST), 10);
    assert_eq!(count(&statuses, Status::SUCCESS), 290);
    assert!(queue.counters().recoveries > 0, "only a queue deletion proves a command gone");
    assert_eq!(rig.driver.resets(), 0);
}

#[test]
fn completions_that_are_late_but_in_time_are_ordinary() {
    let mut rig = faulty("late:n=10,ms=20");
    let mut queue = rig.queue(16);
    let statuses = rig.read_many(&mut queue, 300, LIMIT);
    assert_eq!(rig.injector.injected(FaultKind::Late), 10);
    assert_eq!(count(&statuses, Status::SUCCESS), 300);
    assert_eq!(queue.counters().recoveries, 0);
}

#[test]
fn completions_that_are_too_late_are_aborted() {
    let mut rig = faulty("late:n=10,ms=10000");
    let mut queue = rig.queue(16);
    let statuses = rig.read_many(&mut queue, 300, LIMIT);
    assert_eq!(rig.injector.injected(FaultKind::Late), 10);
    assert_eq!(count(&statuses, Status::ABORT_REQUESTED), 10, "the drive itself says so");
    assert_eq!(count(&statuses, Status::SUCCESS), 290);
    assert_eq!(queue.counters().recoveries, 0, "an Abort that works needs nothing more");
}

#[test]
fn duplicates_are_reported_and_harm_nobody() {
    let mut rig = faulty("duplicate:n=12");
    let mut queue = rig.queue(16);
    let statuses = rig.read_many(&mut queue, 300, LIMIT);
    assert_eq!(rig.injector.injected(FaultKind::Duplicate), 12);
    assert_eq!(count(&statuses, Status::SUCCESS), 300);
    assert_eq!(queue.counters().misbehaved, 12);
    assert!((1..=12).contains(&rig.misbehaved), "reported as errors of the drive");
    assert_eq!(queue.counters().recoveries, 0);
}

#[test]
fn a_stuck_queue_is_made_again() {
    let mut rig = faulty("stuck:n=2,every=50");
    let mut queue = rig.queue(16);
    let statuses = rig.read_many(&mut queue, 300, LIMIT);
    assert_eq!(rig.injector.injected(FaultKind::Stuck), 2);
    let ended_by_host = count(&statuses, Status::ABORTED_BY_HOST);
    assert!((2..=32).contains(&ended_by_host), "at most what was in flight: {ended_by_host}");
    assert_eq!(count(&statuses, Status::SUCCESS), 300 - ended_by_host);
    assert_eq!(queue.counters().recoveries, 2);
    assert_eq!(rig.driver.resets(), 0);
}

#[test]
fn a_controller_that_fails_or_resets_itself_is_started_again() {
    for reset in [ResetFault::Fatal, ResetFault::SelfReset] {
        let mut rig = Rig::new(&Setup { faults: "reset:n=3,every=60", reset, ..Setup::default() });
        let mut queue = rig.queue(16);
        let statuses = rig.read_many(&mut queue, 300, Duration::from_secs(1));
        assert_eq!(rig.injector.injected(FaultKind::Reset), 3, "{reset:?}");
        assert_eq!(rig.driver.resets(), 3, "{reset:?}");
        assert_eq!(count(&statuses, Status::SUCCESS), 300, "{reset:?}: all are sent again");
        assert!(queue.counters().resubmitted >= 3);
    }
}

#[test]
fn a_request_that_loses_two_queues_ends() {
    let mut rig = Rig::new(&Setup { faults: "reset:n=2,every=1", ..Setup::default() });
    let mut queue = rig.queue(1);
    let statuses = rig.read_many(&mut queue, 3, Duration::from_secs(1));
    assert!(statuses[0].is(Status::ABORTED_QUEUE_DELETION), "{}", statuses[0]);
    assert_eq!(count(&statuses, Status::SUCCESS), 2);
}

#[test]
fn a_reset_of_one_queue_reaches_all() {
    let mut rig = Rig::new(&Setup { faults: "reset:n=1,every=1", ..Setup::default() });
    let (mut first, mut second) = (rig.queue(4), rig.queue(4));
    let request = rig.request(0, Op::Read, 0, 4096, 0);
    rig.submit(&mut first, request);
    rig.run(&mut first, 1000 * MS, |rig, _| rig.driver.resets() == 1);
    rig.run(&mut second, 1000 * MS, |_, queue| queue.is_open());
    rig.run(&mut first, 1000 * MS, |_, queue| queue.in_flight() == 0);
    assert_eq!(rig.status(0), Status::SUCCESS);
    let statuses = rig.read_many(&mut second, 50, LIMIT);
    assert_eq!(count(&statuses, Status::SUCCESS), 50);
}

#[test]
fn a_cancelled_request_ends_once_nothing_can_write_its_buffer() {
    for (faults, wanted) in [
        ("late:n=1,every=1,ms=10000", Status::ABORT_REQUESTED),
        ("lost:n=1,every=1", Status::ABORTED_BY_HOST),
        ("stuck:n=1,every=1", Status::ABORTED_BY_HOST),
    ] {
        let mut setup = Setup { faults, ..Setup::default() };
        setup.driver.drain_limit = Duration::from_millis(100);
        let mut rig = Rig::new(&setup);
        let mut queue = rig.queue(4);
        for token in 0..2 {
            let request = rig.request(token, Op::Read, 4096, 4096, 0);
            rig.submit(&mut queue, request);
        }
        for _ in 0..10 {
            rig.poll(&mut queue);
            rig.tick();
        }
        assert!(queue.cancel(0));
        assert!(!queue.cancel(77));
        rig.run(&mut queue, 200 * MS, |_, queue| queue.in_flight() == 0);
        assert!(rig.status(0).is(wanted), "{faults}: {}", rig.status(0));
        assert_eq!(rig.status(1), Status::SUCCESS, "{faults}");
        assert!(rig.check(1, 4096, 4096, 0));
        rig.poison(0);
        for _ in 0..2000 {
            rig.poll(&mut queue);
            rig.tick();
        }
        let mut after = [0; 4096];
        rig.payload.region().read_bytes(0, &mut after);
        assert_eq!(after, [0xee; 4096], "{faults}: written after it had ended");
    }
}

#[test]
fn a_controller_that_is_not_served_fails_within_a_bound() {
    let mut rig = faulty("");
    let mut queue = rig.queue(4);
    let mut request = rig.request(0, Op::Read, 0, 4096, 0);
    request.deadline_ns = rig.now_ns + 10 * MS;
    rig.submit(&mut queue, request);
    // From here on the controller is never stepped: Abort, then the reset, find nobody.
    let until_ns = rig.now_ns + 40_000 * MS;
    while queue.in_flight() > 0 {
        rig.poll(&mut queue);
        rig.now_ns += MS;
        assert!(rig.now_ns < until_ns, "{queue:?}");
    }
    assert_eq!(rig.status(0), Status::HOST_PATHING_ERROR);
    assert!(matches!(rig.driver.state(), DriverState::Failed(_)), "{:?}", rig.driver);
}

#[test]
fn a_queue_dropped_with_requests_in_flight_leaves_nothing_behind() {
    let mut rig = faulty("late:n=1,every=1,ms=10000");
    for _ in 0..20 {
        let mut queue = rig.queue(4);
        for token in 0..4 {
            let request = rig.request(token, Op::Read, 4096, 4096, 0);
            rig.submit(&mut queue, request);
        }
        rig.poll(&mut queue);
        drop(queue);
        for _ in 0..10 {
            rig.tick();
            rig.driver.step(rig.now_ns);
        }
    }
    let mut queue = rig.queue(4);
    let statuses = rig.read_many(&mut queue, 50, LIMIT);
    assert_eq!(count(&statuses, Status::SUCCESS), 50);
    assert_eq!(rig.driver.resets(), 0);
}

#[test]
fn an_impossible_completion_is_an_error_and_costs_the_queue_not_the_request() {
    let mut rig = faulty("stuck:n=1,every=1");
    let mut queue = rig.queue(4);
    let memory = rig.device.mapped.lock().unwrap().last().unwrap().clone();
    let request = rig.request(0, Op::Read, 4096, 4096, 0);
    rig.submit(&mut queue, request);
    rig.poll(&mut queue);
    rig.tick();
    let status_phase = Completion::join(Status::SUCCESS, true);
    let forged = Completion { sqid: 9, sqhd: 1, status_phase, ..Default::default() };
    // Submission entries have the first page to themselves; completion entries begin the second.
    for (offset, word) in [4096usize, 4104].into_iter().zip(forged.to_words()) {
        memory.u64_at(offset).store(word, Ordering::Release);
    }
    let mut ended = Vec::new();
    let answer = queue.poll(rig.now_ns, &mut ended);
    assert!(
        matches!(answer, Err(DriverError::Misbehaved(Misbehaved::WrongQueue { .. }))),
        "{answer:?}"
    );
    assert!(ended.is_empty());
    rig.run(&mut queue, 100 * MS, |_, queue| queue.in_flight() == 0);
    assert_eq!(rig.status(0), Status::SUCCESS);
    assert!(rig.check(0, 4096, 4096, 0));
    assert_eq!((queue.counters().recoveries, queue.counters().resubmitted), (1, 1));
    assert_eq!(rig.driver.resets(), 0);
}

#[test]
fn what_waits_for_a_reset_still_ends_by_its_deadline() {
    let mut rig = faulty("reset:n=1,every=1");
    let mut queue = rig.queue(4);
    let deadline_ns = rig.now_ns + 50 * MS;
    let mut request = rig.request(0, Op::Read, 4096, 4096, 0);
    request.deadline_ns = deadline_ns;
    rig.submit(&mut queue, request);
    rig.run(&mut queue, 40 * MS, |_, queue| queue.counters().recoveries == 1);
    // The controller has forgotten the request, and from here on is not served.
    while queue.in_flight() > 0 {
        assert!(rig.now_ns <= deadline_ns + MS, "{queue:?}");
        rig.now_ns += MS;
        rig.poll(&mut queue);
    }
    assert!(rig.now_ns >= deadline_ns);
    assert_eq!(rig.status(0), Status::ABORTED_BY_HOST);
}

#[test]
fn a_reset_frees_queues_that_were_dropped_before_it() {
    let mut rig = faulty("reset:n=1,every=1");
    let mut queues: Vec<_> = (0..3).map(|_| rig.queue(4)).collect();
    drop(queues.pop());
    let request = rig.request(0, Op::Read, 4096, 4096, 0);
    rig.submit(&mut queues[0], request);
    rig.run(&mut queues[0], 100 * MS, |_, queue| queue.in_flight() == 0);
    assert_eq!((rig.status(0), rig.driver.resets()), (Status::SUCCESS, 1));
    let mut queue = rig.queue(4);
    let statuses = rig.read_many(&mut queue, 50, LIMIT);
    assert_eq!(count(&statuses, Status::SUCCESS), 50);
}

#[test]
fn a_reset_ends_nothing_before_the_controller_shows_that_it_is_disabled() {
    let mut rig = faulty("");
    let mut queue = rig.queue(4);
    let request = rig.request(0, Op::Read, 4096, 4096, 0);
    rig.submit(&mut queue, request);
    rig.poll(&mut queue);
    assert!(queue.cancel(0));
    // The controller is not served: the Abort is not answered, and a reset is asked for.
    for _ in 0..400 {
        rig.now_ns += MS;
        rig.poll(&mut queue);
    }
    assert_eq!(rig.driver.resets(), 1);
    assert!(rig.ended.is_empty() && queue.in_flight() == 1, "it may still write the buffer");
    rig.run(&mut queue, 100 * MS, |_, queue| queue.in_flight() == 0);
    assert_eq!(rig.status(0), Status::ABORTED_BY_HOST);
    let statuses = rig.read_many(&mut queue, 50, LIMIT);
    assert_eq!(count(&statuses, Status::SUCCESS), 50);
}
