//! The benchmark kernel over a ring does every planned I/O once, checks its edges, and counts what it did.

use std::sync::Arc;
use std::time::Instant;

use abi::bench::{
    BENCH_CHECK_EDGES, BENCH_EDGES_RIGHT, BENCH_SUBMITTED, BenchArgs, BenchEdges, BenchIo,
    BenchResult, BenchTotals,
};
use abi::ring::{OP_READ, OP_WRITE, RingView};
use abi::status;
use gpu::{Copy, Gpu, LaunchShape};
use mem::Region;
use sidecore::{ReadRoute, Rights, RingConfig};
use storage::{Faulty, Storage, faults::FaultScript, pattern};
use zerocopy::{FromZeros, IntoBytes};

use crate::bed::{Bed, SOURCE_BYTES, read, shape};

/// Threads of a block of two warps and one that waits for them.
const WATCHED: u32 = 96;
const IO_BYTES: u32 = 4096;
const IOS: usize = 1000;

struct Ran {
    results: Vec<BenchResult>,
    totals: BenchTotals,
    plan: Vec<BenchIo>,
    buffer: Region,
}

fn edges(address: u64) -> BenchEdges {
    let pair = |at| {
        let (lo, hi) = pattern::unit_words(at, 0);
        [lo, hi]
    };
    BenchEdges { first: pair(address), last: pair(address + u64::from(IO_BYTES) - 16) }
}

/// Blocks in an order that visits each once before any twice; every `write_every`-th is a write.
fn plan(write_every: usize) -> Vec<BenchIo> {
    let blocks = (SOURCE_BYTES / IO_BYTES as usize) as u64;
    let opcode = |i: usize| if (i + 1).is_multiple_of(write_every) { OP_WRITE } else { OP_READ };
    (0..IOS)
        .map(|i| BenchIo {
            source_offset: (i as u64 * 97 % blocks) * u64::from(IO_BYTES),
            opcode: opcode(i).into(),
            generation: 0,
        })
        .collect()
}

fn run(bed: &Bed, batch: u32, plan: Vec<BenchIo>) -> Ran {
    run_on(bed, shape(2, 64), batch, plan)
}

fn run_on(bed: &Bed, shape: LaunchShape, batch: u32, plan: Vec<BenchIo>) -> Ran {
    let (buffer_memory, buffer) = bed.allocate(IOS * IO_BYTES as usize);
    let moved = buffer_memory.clone();
    buffer.fill(0, IOS * IO_BYTES as usize, 0xa5);
    for (i, io) in plan.iter().enumerate().filter(|(_, io)| io.opcode == u32::from(OP_WRITE)) {
        // Writes bring what is there already, so that reads of any order stay right.
        pattern::fill_region(
            &buffer,
            i * IO_BYTES as usize,
            IO_BYTES as usize,
            io.source_offset,
            0,
        );
    }
    let registered = bed.engine.register_buffer(buffer_memory, Rights::READ_WRITE).unwrap();
    let place = |bytes: &[u8]| {
        let (memory, window) = bed.allocate(bytes.len());
        window.write_bytes(0, bytes);
        (memory, window)
    };
    let mut results = vec![BenchResult::new_zeroed(); plan.len()];
    let mut totals = BenchTotals::new_zeroed();
    let all_edges: Vec<_> = plan.iter().map(|io| edges(io.source_offset)).collect();
    let (rings, _r) = place(<[RingView]>::as_bytes(&[bed.ring.view()]));
    let (plan_memory, _p) = place(plan.as_bytes());
    let (edges_memory, _e) = place(all_edges.as_bytes());
    let (results_memory, _w) = place(results.as_bytes());
    let (totals_memory, _t) = place(totals.as_bytes());
    mem::fence_payload();
    let args = BenchArgs {
        rings: rings.address,
        plan: plan_memory.address,
        edges: edges_memory.address,
        results: results_memory.address,
        totals: totals_memory.address,
        ios: plan.len() as u64,
        source: bed.source.view(),
        buffer: registered.view(),
        io_bytes: IO_BYTES,
        ring_count: 1,
        batch,
        flags: BENCH_CHECK_EDGES,
        limit_ms: 0,
        reserved: 0,
    };
    let kernel = if shape.threads_per_block == WATCHED {
        kernels::BENCH_RING_AGENT
    } else {
        kernels::BENCH_RING
    };
    bed.launch(&kernel, shape, args.as_bytes());
    read(&bed.gpu, &results_memory, results.as_mut_bytes());
    read(&bed.gpu, &totals_memory, totals.as_mut_bytes());
    let bytes = IOS * IO_BYTES as usize;
    let arrived = bed.gpu.allocate_host(bytes as u64).unwrap();
    let copy = Copy { host: &arrived, host_offset: 0, device: &moved, device_offset: 0, bytes };
    bed.gpu.copy_to_host(copy).unwrap();
    Ran { results, totals, plan, buffer: arrived }
}

fn bed_of(
    gpu: &Arc<dyn Gpu>,
    route: ReadRoute,
    batch: u32,
    script: Option<&str>,
) -> (Bed, Option<Arc<Faulty>>) {
    let config = RingConfig {
        depth: 64,
        records: 4 * 32 * batch,
        read_route: route,
        ..RingConfig::default()
    };
    let mut faulty = None;
    let wrap = |inner| -> Arc<dyn Storage> {
        let Some(script) = script else { return inner };
        let script: FaultScript = script.parse().unwrap();
        let start = Instant::now();
        let clock = move || u64::try_from(start.elapsed().as_nanos()).unwrap();
        let wrapped = Arc::new(Faulty::new(inner, &script, Arc::new(clock)));
        faulty = Some(Arc::clone(&wrapped));
        wrapped
    };
    let bed = Bed::over(gpu, config, wrap);
    (bed, faulty)
}

pub fn every_planned_io_is_done_once_and_checked(gpu: &Arc<dyn Gpu>) {
    for (route, batch) in [(ReadRoute::Window, 1), (ReadRoute::Pull, 5), (ReadRoute::Window, 12)] {
        let (bed, _) = bed_of(gpu, route, batch, None);
        let ran = run(&bed, batch, plan(4));
        let at = format!("{route:?}, batch {batch}");
        for (i, (result, io)) in ran.results.iter().zip(&ran.plan).enumerate() {
            let read = io.opcode == u32::from(OP_READ);
            let flags = BENCH_SUBMITTED | if read { BENCH_EDGES_RIGHT } else { 0 };
            assert_eq!((result.status, result.flags), (status::SUCCESS, flags), "{at}, I/O {i}");
            assert_eq!(result.detail, IO_BYTES, "{at}, I/O {i}");
            assert!(result.latency_ns > 0, "{at}, I/O {i}");
            let place = i * IO_BYTES as usize;
            pattern::check_region(&ran.buffer, place, IO_BYTES as usize, io.source_offset, 0)
                .unwrap();
        }
        assert_eq!(ran.totals.completions_polled, IOS as u64, "{at}");
        assert_eq!(ran.totals.request_bytes, IOS as u64 * 32, "{at}");
        assert_eq!(ran.totals.doorbells, 0, "{at}");
        assert_eq!(bed.ring.counters().completions, IOS as u64, "{at}");
    }
}

/// The same where a third warp of each block waits for the other two, also for what comes late.
pub fn an_agent_sees_every_end_for_the_warps_of_its_block(gpu: &Arc<dyn Gpu>) {
    for script in [None, Some("late:ms=5,every=50,n=8")] {
        let (bed, _) = bed_of(gpu, ReadRoute::Window, 1, script);
        let ran = run_on(&bed, shape(2, WATCHED), 1, plan(usize::MAX));
        for (i, result) in ran.results.iter().enumerate() {
            let flags = BENCH_SUBMITTED | BENCH_EDGES_RIGHT;
            assert_eq!((result.status, result.flags), (status::SUCCESS, flags), "I/O {i}");
        }
        assert_eq!(ran.totals.completions_polled, IOS as u64);
        assert!(ran.totals.polls > 0);
    }
}

pub fn injected_faults_are_counted_where_they_hit(gpu: &Arc<dyn Gpu>) {
    // Statuses are the drive's own: unrecovered read error.
    let (bed_errors, faulty) = bed_of(gpu, ReadRoute::Window, 4, Some("error:status=2/81,n=40"));
    let ran = run(&bed_errors, 4, plan(usize::MAX));
    let failed = ran.results.iter().filter(|r| r.status == 0x281).count();
    let good = ran.results.iter().filter(|r| r.flags & BENCH_EDGES_RIGHT != 0).count();
    assert_eq!((failed, good), (40, IOS - 40), "{:?}", faulty.unwrap().injector());
    // A flipped byte is found by the full compare; by the edges only if it hits one.
    let (bed_flips, _) = bed_of(gpu, ReadRoute::Pull, 4, Some("flip:n=40"));
    let ran = run(&bed_flips, 4, plan(usize::MAX));
    let wrong = |i: usize| {
        let (place, io) = (i * IO_BYTES as usize, &ran.plan[i]);
        pattern::check_region(&ran.buffer, place, IO_BYTES as usize, io.source_offset, 0).is_err()
    };
    assert_eq!((0..IOS).filter(|i| wrong(*i)).count(), 40);
    for (i, result) in ran.results.iter().enumerate() {
        let right = result.flags & BENCH_EDGES_RIGHT != 0;
        let place = i * IO_BYTES as usize;
        let address = ran.plan[i].source_offset;
        let ends = pattern::check_ends(&ran.buffer, place, IO_BYTES as usize, address, 0).is_ok();
        assert_eq!(right, ends, "I/O {i}");
    }
}

/// A few late answers are those I/Os' own samples: lanes beside them, and other I/Os of the same
/// lane, do not wait for them.
pub fn a_late_answer_is_one_sample(gpu: &Arc<dyn Gpu>) {
    const LATE_NS: u64 = 200_000_000;
    for (route, batch) in [(ReadRoute::Window, 1), (ReadRoute::Pull, 8)] {
        let (bed, faulty) = bed_of(gpu, route, batch, Some("late:ms=200,every=100,n=8"));
        let ran = run_on(&bed, shape(1, 64), batch, plan(usize::MAX));
        let mut samples: Vec<_> = ran.results.iter().map(|r| r.latency_ns).collect();
        samples.sort_unstable();
        let late = samples.iter().filter(|ns| **ns >= LATE_NS / 2).count();
        let at = format!("{route:?}, batch {batch}: {:?}", faulty.unwrap().injector());
        assert!((8..=20).contains(&late), "{late} samples, {at}");
        assert!(samples[IOS / 2] < LATE_NS / 2, "median {} ns, {at}", samples[IOS / 2]);
    }
}
