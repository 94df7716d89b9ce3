//! The driver against the software controller, with nothing going wrong.

mod support;

use sidecore_driver::{Buffer, DriverError, DriverState, Op, Rejected, Request};
use spec::{BlockCount, Status};
use storage::pattern;
use support::{DISK, MS, Rig, Setup};

fn is_refused(answer: Result<(), Rejected>, why: impl Fn(&DriverError) -> bool) -> bool {
    matches!(answer, Err(Rejected::Invalid(_, error)) if why(&error))
}

#[test]
fn a_controller_is_started_and_described() {
    let rig = Rig::new(&Setup::default());
    let controller = rig.driver.controller().unwrap();
    assert_eq!(controller.queues_max, 3, "the least of what is asked for and what is granted");
    assert_eq!(controller.transfer_bytes_max, 1 << 17);
    assert_eq!(controller.depth_max, 1023);
    assert!(controller.write_zeroes);
    let namespaces = rig.driver.namespaces();
    assert_eq!(namespaces.len(), 1);
    assert_eq!((namespaces[0].bytes(), namespaces[0].block_bytes), (DISK as u64, 512));
}

#[test]
fn nothing_opens_before_the_controller_is_ready() {
    let rig = Rig::cold(&Setup::default());
    assert!(matches!(rig.driver.open_queue(4), Err(DriverError::Misuse(_))));
}

#[test]
fn reads_of_every_shape_arrive_whole() {
    let mut rig = Rig::new(&Setup::default());
    let mut queue = rig.queue(8);
    let shapes = [
        (0, 512, 0),
        (512, 4096, 0),
        (1024, 4096, 512),
        (512, 8192, 4),
        (4096, 8192, 4092),
        (0, 12288, 8),
        (7 * 512, 65536, 2048),
        (512, 1 << 17, 0),
        (512, 1 << 17, 3996),
    ];
    for (token, (offset, bytes, within)) in (0..).zip(shapes) {
        rig.poison(token);
        let request = rig.request(token, Op::Read, offset, bytes, within);
        rig.submit(&mut queue, request);
        rig.run(&mut queue, MS, |rig, _| rig.ended.iter().any(|ended| ended.token == token));
        assert_eq!(rig.status(token), Status::SUCCESS);
        assert!(rig.check(token, offset, bytes, within), "{offset} {bytes} {within}");
        let slot = usize::try_from(token).unwrap() * support::SLOT;
        let mut around = [0; 2];
        rig.payload.region().read_bytes(slot + within + bytes, &mut around);
        assert_eq!(around, [0xee; 2], "nothing is written beyond the end");
    }
    let counters = queue.counters();
    assert_eq!(counters.commands, shapes.len() as u64);
    assert_eq!((counters.misbehaved, counters.recoveries), (0, 0));
}

#[test]
fn writes_zeroes_and_flushes_reach_the_disk() {
    let mut rig = Rig::new(&Setup::default());
    let mut queue = rig.queue(8);
    let write = rig.request(0, Op::Write, 8192, 20480, 12);
    pattern::fill_region(rig.payload.region(), 12, 20480, 8192, 2);
    rig.submit(&mut queue, write);
    rig.run(&mut queue, MS, |_, queue| queue.in_flight() == 0);
    let zeroes = rig.request(1, Op::WriteZeroes, 12288, 4096, 0);
    rig.submit(&mut queue, zeroes);
    let flush = rig.request(2, Op::Flush, 0, 0, 0);
    rig.submit(&mut queue, flush);
    rig.run(&mut queue, MS, |_, queue| queue.in_flight() == 0);
    for token in 0..3 {
        assert_eq!(rig.status(token), Status::SUCCESS);
    }
    assert!(pattern::check_region(&rig.disk, 8192, 4096, 8192, 2).is_ok());
    assert!(pattern::check_region(&rig.disk, 16384, 12288, 16384, 2).is_ok());
    let mut zeroed = [1; 4096];
    rig.disk.read_bytes(12288, &mut zeroed);
    assert_eq!(zeroed, [0; 4096]);
    assert!(pattern::check_region(&rig.disk, 0, 8192, 0, 1).is_ok());
    assert!(pattern::check_region(&rig.disk, 28672, DISK - 28672, 28672, 1).is_ok());
}

#[test]
fn small_queues_wrap_and_batch_their_doorbells() {
    for depth in [1, 2, 3, 7] {
        let mut rig = Rig::new(&Setup::default());
        let mut queue = rig.queue(depth);
        let statuses = rig.read_many(&mut queue, 500, std::time::Duration::from_secs(1));
        assert!(statuses.iter().all(|status| status.is_success()));
        let counters = queue.counters();
        assert_eq!((counters.commands, counters.misbehaved), (500, 0));
        let rounds = 500 / u64::from(depth) + 2;
        assert!(counters.doorbells <= 2 * rounds, "{counters:?} at depth {depth}");
    }
}

#[test]
fn the_drive_judges_the_range_and_the_driver_the_memory() {
    let mut rig = Rig::new(&Setup::default());
    let mut queue = rig.queue(4);
    let beyond = rig.request(0, Op::Read, DISK, 512, 0);
    rig.submit(&mut queue, beyond);
    rig.run(&mut queue, MS, |_, queue| queue.in_flight() == 0);
    assert!(rig.status(0).is(Status::LBA_OUT_OF_RANGE), "{}", rig.status(0));

    let good = rig.request(1, Op::Read, 0, 512, 0);
    let foreign = mem::Region::map_anonymous(4096, mem::MemoryKind::Host).unwrap();
    let end = rig.payload.region().len_bytes();
    assert!(Buffer::reach(rig.device.as_ref(), &foreign, 0, 512).is_none());
    assert!(rig.buffer(2, 512).is_none(), "not a multiple of 4");
    assert!(rig.buffer(end - 508, 512).is_none(), "beyond the end");
    let buffer = rig.buffer(0, 1024).unwrap();
    assert!(buffer.slice(1020, 8).is_none() && buffer.slice(2, 8).is_none());
    let bad = [
        Request { blocks: BlockCount(0), ..good.clone() },
        Request { blocks: BlockCount(257), ..good.clone() },
        Request { buffer: None, ..good.clone() },
        Request { buffer: buffer.slice(516, 508), ..good },
    ];
    for request in bad {
        let answer = queue.try_submit(request);
        assert!(is_refused(answer, |error| matches!(error, DriverError::Misuse(_))));
    }
    assert_eq!(queue.in_flight(), 0);
}

#[test]
fn queue_identifiers_come_back_when_queues_are_dropped() {
    let mut rig = Rig::new(&Setup::default());
    let mut queues: Vec<_> = (0..3).map(|_| rig.queue(4)).collect();
    assert!(matches!(rig.driver.open_queue(4), Err(DriverError::Exhausted { limit: 3, .. })));
    assert!(matches!(rig.driver.open_queue(5000), Err(DriverError::Unsupported { .. })));
    for round in 0..5 {
        let dropped = queues.remove(0);
        let id = dropped.id();
        drop(dropped);
        for _ in 0..20 {
            rig.tick();
            rig.driver.step(rig.now_ns);
        }
        let mut queue = rig.queue(4);
        assert_eq!(queue.id(), id);
        let statuses = rig.read_many(&mut queue, 20, std::time::Duration::from_secs(1));
        assert!(statuses.iter().all(|status| status.is_success()), "round {round}");
        queues.push(queue);
    }
    assert_eq!(rig.driver.resets(), 0);
}

#[test]
fn a_shutdown_stops_the_controller_and_everything_on_it() {
    let mut rig = Rig::new(&Setup { faults: "stuck:n=1,every=1", ..Setup::default() });
    let mut queue = rig.queue(4);
    let request = rig.request(0, Op::Read, 0, 4096, 0);
    rig.submit(&mut queue, request);
    rig.poll(&mut queue);
    rig.tick();
    rig.driver.shut_down(rig.now_ns);
    for _ in 0..100 {
        rig.tick();
        rig.driver.step(rig.now_ns);
    }
    assert!(matches!(rig.driver.state(), DriverState::Stopped), "{:?}", rig.driver);
    rig.run(&mut queue, MS, |_, queue| queue.in_flight() == 0);
    assert_eq!(rig.status(0), Status::HOST_PATHING_ERROR);
    let request = rig.request(1, Op::Read, 0, 4096, 0);
    let answer = queue.try_submit(request);
    assert!(is_refused(answer, |error| matches!(error, DriverError::Stopped)));
}

#[test]
fn a_start_that_took_too_long_is_tried_again_but_not_for_ever() {
    let mut setup = Setup::default();
    setup.driver.ready_limit_max = std::time::Duration::from_millis(100);
    for served_after_ms in [150, 250, 1000] {
        let mut rig = Rig::cold(&setup);
        for _ in 0..served_after_ms {
            rig.now_ns += MS;
            rig.driver.step(rig.now_ns);
        }
        for _ in 0..200 {
            rig.tick();
            rig.driver.step(rig.now_ns);
        }
        match rig.driver.state() {
            DriverState::Ready => assert!(served_after_ms < 300),
            DriverState::Failed(error) => {
                assert!(served_after_ms > 300, "{error}");
                assert!(matches!(*error, DriverError::Controller(_)), "{error}");
            }
            other => panic!("{other:?} after {served_after_ms} ms"),
        }
    }
}
