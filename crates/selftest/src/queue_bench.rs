//! The benchmark kernels over queue pairs do every planned I/O once, check its edges, and count what
//! they did; how many doorbells an I/O costs is printed.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use abi::bench::{
    BENCH_ASLEEP, BENCH_CHECK_EDGES, BENCH_EDGES_RIGHT, BENCH_SUBMITTED, BenchEdges, BenchIo,
    BenchResult, FmaArgs, QueueBenchArgs, QueueBenchTotals,
};
use abi::queue::{DmaBufferView, QueuePairView, QueueState};
use abi::ring::OP_READ;
use gpu::{Gpu, Kernel, LaunchShape};
use mem::Region;
use storage::pattern;
use zerocopy::{FromZeros, IntoBytes};

use crate::queue_bed::{Config, QueueBed, SOURCE_BYTES};
use crate::stuck::{self, Standing, Until};

const IO_BYTES: usize = 4096;
const IOS: usize = 2000;

struct Ran {
    results: Vec<BenchResult>,
    totals: QueueBenchTotals,
    agent: u64,
}

fn edges(address: u64) -> BenchEdges {
    let pair = |at| <[u64; 2]>::from(pattern::unit_words(at, 0));
    BenchEdges { first: pair(address), last: pair(address + IO_BYTES as u64 - 16) }
}

fn host(gpu: &Arc<dyn Gpu>, bytes: &[u8]) -> Region {
    let region = gpu.allocate_host(bytes.len() as u64).unwrap();
    region.write_bytes(0, bytes);
    region
}

fn run(bed: &mut QueueBed, kernel: &Kernel, batch: u32) -> Ran {
    run_on(bed, kernel, batch, 64)
}

fn run_on(bed: &mut QueueBed, kernel: &Kernel, batch: u32, threads_per_block: u32) -> Ran {
    let gpu = Arc::clone(&bed.gpu);
    let buffer = gpu.allocate_device((IOS * IO_BYTES) as u64).unwrap();
    let window = buffer.window.clone().expect("the drive stores through a window");
    window.fill(0, IOS * IO_BYTES, 0xa5);
    mem::fence_payload();
    bed.map.register(window.clone()).unwrap();
    let blocks = SOURCE_BYTES / IO_BYTES;
    let plan: Vec<_> = (0..IOS)
        .map(|io| BenchIo {
            source_offset: (io * 97 % blocks * IO_BYTES) as u64,
            opcode: OP_READ.into(),
            generation: 0,
        })
        .collect();
    let all_edges: Vec<_> = plan.iter().map(|io| edges(io.source_offset)).collect();
    let mut results = vec![BenchResult::new_zeroed(); IOS];
    let mut totals = QueueBenchTotals::new_zeroed();
    let views = host(&gpu, <[QueuePairView]>::as_bytes(&[bed.view()]));
    let (plan, all_edges) = (host(&gpu, plan.as_bytes()), host(&gpu, all_edges.as_bytes()));
    let (results_at, totals_at) = (host(&gpu, results.as_bytes()), host(&gpu, totals.as_bytes()));
    let args = QueueBenchArgs {
        queues: views.address(),
        plan: plan.address(),
        edges: all_edges.address(),
        results: results_at.address(),
        totals: totals_at.address(),
        ios: IOS as u64,
        buffer: DmaBufferView {
            address: buffer.address,
            bus: window.address(),
            bytes: (IOS * IO_BYTES) as u64,
        },
        io_bytes: u32::try_from(IO_BYTES).unwrap(),
        queue_count: 1,
        batch,
        flags: BENCH_CHECK_EDGES,
    };
    let shape = LaunchShape { blocks: 2, threads_per_block, shared_bytes: 0 };
    let mut launch = gpu.launch(kernel, shape, args.as_bytes()).unwrap();
    let over = AtomicBool::new(false);
    let (view, device, cq) = (bed.view(), bed.device.clone(), bed.cq.clone());
    let about = format!("{:?}, batch {batch}", bed.config);
    let agent = std::thread::scope(|scope| {
        let service = scope.spawn(|| {
            let mut agent = bed.agent();
            let clock = Instant::now();
            while !over.load(Ordering::Relaxed) {
                let now_ns = 1_000_000 + u64::try_from(clock.elapsed().as_nanos()).unwrap();
                let worked = bed.controller.step(now_ns) == ctrl::Progress::Worked;
                if !((!bed.config.scan && agent.step()) || worked) {
                    std::thread::sleep(Duration::from_micros(20));
                }
            }
            agent.drained
        });
        let until = Until(&over);
        let standing = Standing { view: &view, device: &device, cq: (&cq, 0) };
        let at = || format!("{about}\n{}", standing.tell());
        stuck::finish(&gpu, launch.as_mut(), kernel.name, at, || standing.close());
        drop(until);
        service.join().unwrap()
    });
    results_at.read_bytes(0, results.as_mut_bytes());
    totals_at.read_bytes(0, totals.as_mut_bytes());
    Ran { results, totals, agent }
}

pub fn every_planned_io_is_done_once_and_counted_where_it_happens(gpu: &Arc<dyn Gpu>) {
    for (config, kernel) in
        [(Config::bam(6), kernels::BENCH_BAM), (Config::copilot(6), kernels::BENCH_COPILOT)]
    {
        for batch in [1, 4, 16] {
            let mut bed =
                QueueBed::on(gpu, Config { prp_lists: false, cid_log2: 12, ..config.clone() });
            let ran = run(&mut bed, &kernel, batch);
            let at = format!("{}, batch {batch}", kernel.name);
            let flags = BENCH_EDGES_RIGHT | BENCH_SUBMITTED;
            for (io, result) in ran.results.iter().enumerate() {
                assert_eq!((result.status, result.flags), (0, flags), "{at}: {io} {result:?}");
                assert_eq!(result.detail as usize, IO_BYTES, "{at}: {io}");
            }
            let ios = IOS as u64;
            let (gpu, cpu) = if bed.config.scan { (ios, 0) } else { (0, ios) };
            assert_eq!((ran.totals.polled_by_gpu, ran.totals.polled_by_cpu), (gpu, cpu), "{at}");
            assert_eq!((ran.agent, ran.totals.request_bytes), (cpu, ios * 64), "{at}");
            assert_eq!(bed.controller.counters().read().io_commands, ios, "{at}");
            let sq = bed.state(offset_of!(QueueState, sq_doorbells));
            let cq = bed.state(offset_of!(QueueState, cq_doorbells));
            assert!(sq <= ios && cq <= gpu, "{at}: {sq} {cq}");
            eprintln!("{at}: {sq} SQ and {cq} CQ doorbells by lanes for {ios} I/Os");
        }
    }
}

/// Two warps of each block ask, the third waits for them: all ends are seen, by fewer looks than when
/// each warp looks for itself.
pub fn an_agent_sees_the_ends_of_commands_for_the_warps_of_its_block(gpu: &Arc<dyn Gpu>) {
    let config = Config { prp_lists: false, cid_log2: 12, ..Config::copilot(6) };
    let mut bed = QueueBed::on(gpu, config.clone());
    let watched = run_on(&mut bed, &kernels::BENCH_COPILOT_AGENT, 1, 96);
    for (io, result) in watched.results.iter().enumerate() {
        let flags = BENCH_EDGES_RIGHT | BENCH_SUBMITTED;
        assert_eq!((result.status, result.flags), (0, flags), "{io} {result:?}");
    }
    assert_eq!(watched.totals.polled_by_cpu, IOS as u64);
    let mut bed = QueueBed::on(gpu, config);
    let alone = run_on(&mut bed, &kernels::BENCH_COPILOT, 1, 64);
    assert!(watched.totals.polls > 0 && alone.totals.polls >= IOS as u64);
}

/// A kernel that is asleep does nothing until it is told that there is nothing to do.
pub fn a_kernel_asleep_touches_nothing_and_ends_when_told(gpu: &Arc<dyn Gpu>) {
    let totals = gpu.allocate_host(4096).unwrap();
    let mut args = QueueBenchArgs::new_zeroed();
    (args.totals, args.ios, args.batch) = (totals.address(), 1000, 1);
    args.flags = BENCH_ASLEEP;
    for kernel in [kernels::BENCH_BAM, kernels::BENCH_COPILOT, kernels::BENCH_COPILOT_AGENT] {
        totals.u64_at(0).store(0, Ordering::Relaxed);
        let shape = LaunchShape { blocks: 2, threads_per_block: 64, shared_bytes: 0 };
        let mut launch = gpu.launch(&kernel, shape, args.as_bytes()).unwrap();
        assert!(launch.wait(Duration::from_millis(30)).is_none(), "{} ended", kernel.name);
        assert_eq!(totals.u64_at(0).load(Ordering::Relaxed), 2, "{}: its blocks", kernel.name);
        totals.u64_at(0).store(1000, Ordering::Relaxed);
        stuck::finish(gpu, launch.as_mut(), kernel.name, String::new, || {});
    }
}

/// Every thread's sums are right, and each block has said where it ran.
pub fn the_neighbour_that_computes_is_right(gpu: &Arc<dyn Gpu>) {
    let results = gpu.allocate_host(4096).unwrap();
    for kernel in [kernels::FMA_2, kernels::FMA_4] {
        results.fill(0, 4096, 0xff);
        results.u64_at(0).store(0, Ordering::Relaxed);
        let args = FmaArgs { results: results.address(), rounds: 500, reserved: 0 };
        let shape = LaunchShape { blocks: 3, threads_per_block: 64, shared_bytes: 0 };
        let mut launch = gpu.launch(&kernel, shape, args.as_bytes()).unwrap();
        stuck::finish(gpu, launch.as_mut(), kernel.name, String::new, || {});
        let words: Vec<_> = (0..5).map(|n| results.u64_at(8 * n).load(Ordering::Relaxed)).collect();
        let at = format!("{}: {words:?}", kernel.name);
        assert_eq!((words[0], words[4]), (192, u64::MAX), "{at}");
        // Simulated blocks are their own processors; real ones have some hundred.
        let simulated = gpu.describe().simulated;
        let mut places = (0..3).zip(&words[1..4]);
        assert!(places.all(|(n, at)| if simulated { *at == n } else { *at < 1024 }), "{at}");
    }
}
