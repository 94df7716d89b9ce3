//! What lanes may do to a request ring, against the engine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::status;
use gpu::Gpu;
use sidecore::{ReadRoute, RingConfig, WriteRoute};
use storage::{Faulty, faults::FaultScript, pattern};

use crate::bed::{self, Bed, Probe, shape, sum};

fn config(depth: u32) -> RingConfig {
    RingConfig { depth, records: 1024, staging_stride: 4096, ..RingConfig::default() }
}

pub fn shallow_rings_serve_whole_warps_from_below_every_wrap(gpu: &Arc<dyn Gpu>) {
    for depth in [2u32, 4, 8, 16] {
        let log2 = depth.trailing_zeros();
        let starts = [
            (0, 0),
            // The slots' tags wrap, then the low half of the ticket, then all of it.
            ((1u64 << (16 + log2)) - 5, (1 << 16) - 3),
            ((1 << 32) - 5, u32::MAX - 3),
            (u64::MAX - 5, u32::MAX - 1),
        ];
        for (start_ticket, start_turn) in starts {
            let bed = Bed::new(gpu, RingConfig { start_ticket, start_turn, ..config(depth) });
            let seen =
                sum(&bed.run(&kernels::PROBE_READ, &Probe { rounds: 4, ..Probe::default() }));
            let at = format!("depth {depth}, ticket {start_ticket:#x}, turn {start_turn:#x}");
            assert_eq!((seen.failed, seen.wrong_bytes, seen.status), (0, 0, 0), "{at}: {seen:?}");
            assert!(seen.succeeded > 300, "{at}: {seen:?}");
            assert_eq!(bed.ring.counters().completions, u64::from(seen.succeeded), "{at}");
        }
    }
}

pub fn every_route_moves_any_length_at_any_alignment(gpu: &Arc<dyn Gpu>) {
    for (read_route, write_route) in [
        (ReadRoute::Window, WriteRoute::Push),
        (ReadRoute::Pull, WriteRoute::Push),
        (ReadRoute::Bounce, WriteRoute::Bounce),
    ] {
        for (bytes, shift) in [(1, 0), (15, 3), (512, 0), (513, 1), (4095, 15), (4096, 8)] {
            let bed = Bed::new(gpu, RingConfig { read_route, write_route, ..config(32) });
            // A partial last warp, and a block of a single lane's warp.
            let probe = Probe { shape: shape(2, 45), rounds: 2, bytes, shift, ..Probe::default() };
            let at = format!("{read_route:?}, {write_route:?}, {bytes} bytes, shift {shift}");
            for kernel in [kernels::PROBE_READ, kernels::PROBE_ALONE] {
                let seen = sum(&bed.run(&kernel, &probe));
                assert_eq!((seen.failed, seen.wrong_bytes), (0, 0), "{at}: {seen:?}");
                assert!(seen.succeeded > 100, "{at}: {seen:?}");
            }
            let seen = sum(&bed.run(&kernels::PROBE_WRITE, &Probe { seed: 7, ..probe }));
            assert_eq!((seen.failed, seen.wrong_bytes), (0, 0), "{at}, writes: {seen:?}");
            assert_eq!(seen.succeeded, 90 * 2 * 3, "{at}, writes: {seen:?}");
            // At the destination of the writes as well.
            for lane in 0..90 {
                let place = lane * bytes as usize;
                pattern::check_region(&bed.memory, place, bytes as usize, place as u64, 8)
                    .expect(&at);
            }
        }
    }
}

pub fn requests_that_are_refused_end_with_the_reason(gpu: &Arc<dyn Gpu>) {
    let bed = Bed::new(gpu, RingConfig { read_route: ReadRoute::Pull, ..config(16) });
    let long = Probe { rounds: 2, bytes: 4097, ..Probe::default() };
    let seen = sum(&bed.run(&kernels::PROBE_ALONE, &long));
    assert_eq!((seen.succeeded, seen.status), (0, status::BAD_LENGTH.into()), "{seen:?}");
    bed.ring.drain();
    let seen = sum(&bed.run(&kernels::PROBE_READ, &Probe::default()));
    assert_eq!((seen.succeeded, seen.status), (0, status::RING_CLOSED.into()), "{seen:?}");
}

pub fn lanes_give_up_and_their_records_stay_theirs(gpu: &Arc<dyn Gpu>) {
    for depth in [2, 8] {
        let bed = Bed::new(gpu, config(depth));
        let none = Duration::ZERO;
        let probe = Probe { patience: none, timeout: none, rounds: 20, ..Probe::default() };
        let seen = sum(&bed.run(&kernels::PROBE_GIVE_UP, &probe));
        assert_eq!((seen.failed, seen.wrong_bytes), (0, 0), "{seen:?}");
        assert!(
            seen.not_submitted > 0,
            "32 lanes at depth {depth} cannot all get a slot: {seen:?}"
        );
        assert!(seen.pending > 0, "{seen:?}");
        // All records are free again, whatever was given up.
        let seen = sum(&bed.run(&kernels::PROBE_READ, &Probe::default()));
        assert_eq!((seen.failed, seen.busy, seen.wrong_bytes), (0, 0, 0), "{seen:?}");
    }
}

pub fn a_silent_drive_makes_records_busy_until_they_are_cancelled(gpu: &Arc<dyn Gpu>) {
    let script: FaultScript = "lost:every=2,n=1000000".parse().unwrap();
    let limit = Duration::from_secs(60);
    let config = RingConfig { limit, grace: Duration::from_millis(20), ..config(64) };
    let bed = Bed::over(gpu, config, |inner| Arc::new(Faulty::new(inner, &script, Arc::new(|| 0))));
    let timeout = Duration::from_millis(20);
    let probe = Probe { shape: shape(1, 32), rounds: 3, timeout, ..Probe::default() };
    let seen = sum(&bed.run(&kernels::PROBE_GIVE_UP, &probe));
    assert!(seen.pending > 0 && seen.busy > 0, "{seen:?}");
    assert_eq!(seen.wrong_bytes, 0, "{seen:?}");
    assert_eq!(seen.status, status::CANCELLED.into(), "{seen:?}");
    assert!(seen.failed > 0, "those that were cancelled: {seen:?}");
    assert_eq!(seen.succeeded + seen.failed, 32 * 3, "each request ends once: {seen:?}");
}

pub fn lanes_that_leave_with_requests_in_flight_harm_nobody(gpu: &Arc<dyn Gpu>) {
    let bed = Bed::new(gpu, config(8));
    let probe = Probe { shape: shape(4, 32), ..Probe::default() };
    let left = sum(&bed.run(&kernels::PROBE_ABANDON, &probe));
    assert_eq!(left.pending, 128, "{left:?}");
    // Some may not even have been fetched yet, so that a quiet ring says nothing.
    let start = Instant::now();
    while bed.ring.counters().completions < 128 {
        assert!(start.elapsed() < bed::LIMIT, "{:?}", bed.ring.counters());
        std::thread::sleep(Duration::from_millis(1));
    }
    let seen = sum(&bed.run(&kernels::PROBE_READ, &probe));
    assert_eq!((seen.failed, seen.busy, seen.wrong_bytes), (0, 0, 0), "{seen:?}");
}

pub fn a_view_of_another_version_is_refused(gpu: &Arc<dyn Gpu>) {
    let bed = Bed::new(gpu, config(8));
    let mut view = bed.ring.view();
    view.version += 1;
    let seen = bed.run_with_view(&kernels::PROBE_READ, &Probe::default(), view);
    let seen = sum(&seen);
    assert_eq!((seen.succeeded, seen.status), (0, status::RING_CLOSED.into()), "{seen:?}");
}

/// Fewer slots than lanes in the one warp: those that got one must not wait for the others.
pub fn one_warp_goes_on_at_every_depth(gpu: &Arc<dyn Gpu>) {
    for depth in [2, 4, 8, 16] {
        let bed = Bed::new(gpu, config(depth));
        let probe = Probe { shape: shape(1, 32), rounds: 50, ..Probe::default() };
        for kernel in [kernels::PROBE_READ, kernels::PROBE_ALONE, kernels::PROBE_WRITE] {
            let seen = sum(&bed.run(&kernel, &probe));
            let at = format!("depth {depth}, {}", kernel.name);
            assert_eq!((seen.failed, seen.wrong_bytes, seen.status), (0, 0, 0), "{at}: {seen:?}");
            assert!(seen.succeeded > 100, "{at}: {seen:?}");
        }
    }
}
