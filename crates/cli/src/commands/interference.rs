//! `sidecore bench interference`: how much a kernel that only computes is slowed by lanes that do I/O
//! beside it, or wait for a drive that stands still.
//!
//! Three times are taken in turn, by the GPU's own events: the compute kernel alone, beside the I/O
//! kernel resident but asleep (the control: what its registers and threads cost by being there), and
//! beside it at work. The slowdown is the last over the control.

use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use abi::bench::{BENCH_ALL_RIGHT, BENCH_SUBMITTED, BenchIo};
use abi::ring::OP_READ;
use anyhow::{Context, Result, ensure};
use gpu::Gpu;
use serde::Serialize;

use crate::args::{BenchArgs, Drive, InterferenceArgs, PathName};
use crate::bench::baseline::Baseline;
use crate::bench::data::Data;
use crate::bench::drive::SoftwareDrive;
use crate::bench::neighbour::{Computed, Neighbour, Tickets};
use crate::bench::order::Order;
use crate::bench::paths;
use crate::bench::round::{Description, Round, RoundOutcome, Runner};
use crate::bench::settings::Settings;
use crate::commands::{NOT_CLEAN, sweep};
use crate::printer::{Progress, print};
use crate::report::lines;
use crate::{interrupt, units};

/// Rate of the drive where nobody says: with a real GPU, and with the simulated one.
const DRIVE_IOPS: [u64; 2] = [1_400_000, 20_000];
/// Most I/Os a second that are prepared for where the drive has no rate.
const MEMORY_IOPS: f64 = 9e6;
/// I/Os are prepared for so many times the time that the compute kernel takes alone; where it is
/// simulated beside others it takes far longer.
const PREPARED: [f64; 2] = [3.0, 30.0];
/// Below this share of its nominal rate the I/O kernel is no load to speak of.
const SHARE_MIN: f64 = 0.95;

/// One row.
#[derive(Debug, Serialize)]
struct Row {
    what: &'static str,
    path: &'static str,
    gpu: String,
    drive: String,
    simulated: bool,
    sms: u32,
    warps: u32,
    batch: u32,
    queues: u32,
    depth: u32,
    side_cores: u32,
    device_cores: u32,
    io_bytes: u64,
    wait: &'static str,
    polling_warps: u32,
    registers: u32,
    blocks_per_sm: u32,
    compute_threads: u32,
    compute_chains: u32,
    compute_blocks: u32,
    compute_sms: u32,
    alone_s: Vec<f64>,
    asleep_s: Vec<f64>,
    beside_s: Vec<f64>,
    /// Median beside over median asleep.
    slowdown: f64,
    /// Median beside over median alone.
    slowdown_of_alone: f64,
    ios: u64,
    ios_verified: u64,
    errors: u64,
    iops: f64,
    nominal_iops: f64,
    polls_per_warp_s: f64,
    goal: Option<f64>,
    verdict: String,
    baseline: String,
}

/// Runs it.
///
/// # Errors
/// Bad options, no memory, a path that broke.
pub fn run(args: &InterferenceArgs) -> Result<ExitCode> {
    let paths = sweep::paths(&args.path, PathName::has_lanes)?;
    ensure!(matches!(args.drive, Drive::Software | Drive::Memory), "--drive: software or memory");
    let baseline = Baseline::load(args.baseline.as_deref())?;
    let gpu = paths::open_gpu(&args.limits)?;
    let simulated = gpu.describe().simulated;
    let mut bench = Bench::open(args, &paths, &gpu)?;
    let mut progress = Progress::new((paths.len() * args.threads.len()) as u64);
    let mut rows = Vec::new();
    for &path in &paths {
        let mut one = bench.open_path(path)?;
        for &threads in &args.threads {
            progress.show(rows.len() as u64, &format!("{} beside {threads} threads", path.name()));
            let mut row = one.row(threads)?;
            row.baseline = baseline.words(&row.gpu).to_owned();
            if args.json {
                print(&serde_json::to_string(&row)?)?;
            }
            rows.push(row);
            if interrupt::asked() {
                return Ok(ExitCode::from(interrupt::INTERRUPTED));
            }
        }
    }
    drop(progress);
    if !args.json {
        show(&rows, simulated)?;
    }
    let clean = rows.iter().all(|row| row.errors == 0 && row.ios == row.ios_verified);
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::from(NOT_CLEAN) })
}

/// What all rows have in common.
struct Bench<'a> {
    args: &'a InterferenceArgs,
    gpu: Arc<dyn Gpu>,
    data: Data,
    drive: Option<Rc<SoftwareDrive>>,
    iops: u64,
}

impl<'a> Bench<'a> {
    fn open(args: &'a InterferenceArgs, paths: &[PathName], gpu: &Arc<dyn Gpu>) -> Result<Self> {
        let real = !gpu.describe().simulated;
        let iops = args.drive_iops.unwrap_or(DRIVE_IOPS[usize::from(!real)]);
        let directory: PathBuf = args.dir.clone().unwrap_or_else(std::env::temp_dir);
        // Options are checked before anything is made.
        let all = paths.iter().map(|path| settings(args, *path, iops));
        let all = all.collect::<Result<Vec<_>>>()?;
        let data = Data::make(&directory, args.size)?;
        let drive = match args.drive {
            Drive::Software => {
                let options = all[0].path_options(&all[0].points[0]).source_options();
                let queues = all.iter().map(|one| one.points[0].queues).max().unwrap_or(1);
                Some(SoftwareDrive::open(&options.drive(queues), &data, gpu)?)
            }
            _ => None,
        };
        Ok(Self { args, gpu: Arc::clone(gpu), data, drive, iops })
    }

    /// I/Os of a round: enough for as long as the compute kernel may take.
    fn round_ios(&self, options: &paths::PathOptions) -> usize {
        let lanes = options.sms as usize * options.warps as usize * 32 * options.batch as usize;
        if self.args.stalled {
            return lanes;
        }
        let rate =
            if self.drive.is_some() && self.iops > 0 { self.iops as f64 } else { MEMORY_IOPS };
        let ios = rate
            * self.args.compute.as_secs_f64()
            * PREPARED[usize::from(self.gpu.describe().simulated)];
        usize::try_from(units::whole(ios)).unwrap_or(usize::MAX).max(lanes * 8)
    }

    fn open_path(&mut self, path: PathName) -> Result<Beside<'_>> {
        let settings = settings(self.args, path, self.iops)?;
        let mut options = settings.path_options(&settings.points[0]);
        let ios = self.round_ios(&options);
        let io_bytes = options.io_bytes;
        options.destination_bytes = ios.checked_mul(io_bytes as usize).context("so many I/Os")?;
        if self.args.stalled {
            options.storage_depth = options.depth - 1;
        }
        let runner = paths::open(&options, &self.data, &self.gpu, self.drive.as_ref())
            .with_context(|| format!("path {}", path.name()))?;
        let mut order = Order::new(self.data.bytes() / u64::from(io_bytes), true, self.args.seed);
        let mut plan = Vec::with_capacity(ios);
        for _ in 0..ios {
            let source_offset = order.next_block() * u64::from(io_bytes);
            let generation = self.data.generation(source_offset);
            plan.push(BenchIo { source_offset, opcode: u32::from(OP_READ), generation });
        }
        let round = |plan: Vec<BenchIo>, asleep: bool| Round {
            slots: ios,
            edges: Vec::new(),
            on_device: !asleep,
            asleep,
            io_bytes,
            base: 0,
            plan,
        };
        let word = runner.ticket_word().context("a path of lanes has its word")?;
        Ok(Beside {
            args: self.args,
            path,
            tickets: Tickets::new(&self.gpu, word)?,
            asleep: Arc::new(round(plan.clone(), true)),
            awake: Arc::new(round(plan, false)),
            lanes: options.sms * options.warps * 32,
            batch: options.batch,
            limited: self.drive.is_some(),
            gpu: Arc::clone(&self.gpu),
            nominal: None,
            runner,
        })
    }
}

fn settings(args: &InterferenceArgs, path: PathName, iops: u64) -> Result<Settings> {
    let stalled = args.stalled;
    let pick = |given: Option<u32>, ring: u32, copilot: u32, bam: u32| {
        given.unwrap_or(match path {
            PathName::Bam => bam,
            PathName::Copilot => copilot,
            _ => ring,
        })
    };
    let latency = if stalled { "700ms" } else { "60us" };
    let many = if stalled { 4096 } else { 1024 };
    let software = args.drive == Drive::Software;
    Settings::new(BenchArgs {
        path: vec![path],
        size: Some(args.size),
        dir: args.dir.clone(),
        io_size: vec![args.io_size],
        sms: vec![if stalled { args.sms.unwrap_or(128) } else { pick(args.sms, 96, 12, 12) }],
        warps: Some(if stalled { args.warps.unwrap_or(8) } else { pick(args.warps, 1, 1, 32) }),
        batch: args.batch.unwrap_or(1),
        queues: Some(if stalled {
            args.queues.unwrap_or(16)
        } else {
            pick(args.queues, 4, 16, 16)
        }),
        depth: vec![pick(args.depth, many, 4096, many)],
        side_cores: Some(args.side_cores.unwrap_or(4)),
        wait: args.wait,
        drive: if software || path.has_lane_queues() { Drive::Software } else { args.drive },
        drive_iops: (software && iops > 0 && !stalled).then_some(iops),
        drive_latency: software
            .then(|| args.drive_latency.clone().unwrap_or_else(|| latency.to_owned())),
        limit_ms: args.limit_ms,
        seed: args.seed,
        limits: args.limits.clone(),
        ..BenchArgs::defaults()
    })
}

/// A path that is open, to be run beside the compute kernel.
struct Beside<'a> {
    args: &'a InterferenceArgs,
    path: PathName,
    tickets: Tickets,
    asleep: Arc<Round>,
    awake: Arc<Round>,
    lanes: u32,
    batch: u32,
    limited: bool,
    gpu: Arc<dyn Gpu>,
    nominal: Option<f64>,
    // Goes after what uses its memory.
    runner: Box<dyn Runner + 'a>,
}

/// What the repeats of a row brought.
#[derive(Default)]
struct Times {
    alone: Vec<f64>,
    asleep: Vec<f64>,
    beside: Vec<Computed>,
    ios: u64,
    verified: u64,
    errors: u64,
    polls: u64,
    io_s: f64,
}

impl Beside<'_> {
    fn row(&mut self, threads: u32) -> Result<Row> {
        let kernel = if self.args.chains == 2 { kernels::FMA_2 } else { kernels::FMA_4 };
        let mut compute = Neighbour::open(&self.gpu, threads, kernel, self.args.compute)?;
        let nominal = match self.nominal {
            Some(nominal) => nominal,
            None => {
                // The first run is the one that touches all memory first.
                self.rate_alone()?;
                self.rate_alone()?
            }
        };
        self.nominal = Some(nominal);
        let mut times = Times::default();
        for repeat in 0..self.args.repeats {
            ensure!(!interrupt::asked(), "{repeat} of {} repeats were made", self.args.repeats);
            times.alone.push(compute.alone()?.seconds);
            let blocks = u64::from(self.runner.describe().sms);
            let (computed, _) = self.both(&mut compute, true, blocks)?;
            times.asleep.push(computed.seconds);
            let polls = self.runner.bill().polls;
            let (computed, outcome) = self.both(&mut compute, false, self.under_way())?;
            times.beside.push(computed);
            times.polls += self.runner.bill().polls - polls;
            times.note(&outcome);
        }
        Ok(self.judge(&compute, threads, nominal, &times))
    }

    /// I/Os taken from which on the I/O kernel is as busy as it will be.
    fn under_way(&self) -> u64 {
        let lanes = u64::from(self.lanes);
        if self.args.stalled { lanes } else { lanes * u64::from(self.batch) * 4 }
    }

    /// I/Os a second without a neighbour.
    fn rate_alone(&mut self) -> Result<f64> {
        if self.args.stalled {
            return Ok(0.0);
        }
        let (wanted, all) = (self.under_way(), self.awake.plan.len() as u64);
        let (tickets, runner, round) = (&self.tickets, &mut self.runner, &self.awake);
        let half = self.args.compute / 2;
        tickets.store(0)?;
        std::thread::scope(|scope| {
            let watch = scope.spawn(move || -> Result<f64> {
                tickets.wait_for(wanted)?;
                let (first, begun) = (tickets.read()?, std::time::Instant::now());
                std::thread::sleep(half);
                let rate = (tickets.read()? - first) as f64 / begun.elapsed().as_secs_f64();
                tickets.store(all)?;
                Ok(rate)
            });
            runner.run(round)?;
            watch.join().expect("a watcher that panics has said why")
        })
    }

    /// Runs both kernels: the compute kernel begins once `wanted` I/Os are taken.
    fn both(
        &mut self,
        compute: &mut Neighbour,
        asleep: bool,
        wanted: u64,
    ) -> Result<(Computed, RoundOutcome)> {
        let round = if asleep { &self.asleep } else { &self.awake };
        let (tickets, runner, all) = (&self.tickets, &mut self.runner, round.plan.len() as u64);
        tickets.store(0)?;
        std::thread::scope(|scope| {
            let watch = scope.spawn(move || compute.beside(tickets, wanted, all));
            let outcome = runner.run(round);
            let computed = watch.join().expect("a watcher that panics has said why");
            Ok((computed?, outcome?))
        })
    }

    fn judge(&self, compute: &Neighbour, threads: u32, nominal: f64, times: &Times) -> Row {
        let what: Description = self.runner.describe();
        let simulated = what.gpu.starts_with("simulated");
        let beside: Vec<f64> = times.beside.iter().map(|one| one.seconds).collect();
        let rates: Vec<f64> = times.beside.iter().map(|one| one.ios_per_s).collect();
        let kernel = what.kernel.unwrap_or_default();
        let slowdown = median(&beside) / median(&times.asleep);
        let (iops, goal) = (median(&rates), self.goal(threads));
        let warps = f64::from(what.sms * what.warps);
        Row {
            what: if self.args.stalled { "stalled" } else { "interference" },
            path: self.path.name(),
            simulated,
            drive: what.drive,
            gpu: what.gpu,
            sms: what.sms,
            warps: what.warps,
            batch: self.batch,
            queues: what.queues,
            depth: what.depth,
            side_cores: what.side_cores,
            device_cores: what.device_cores,
            io_bytes: self.args.io_size,
            wait: what.wait,
            polling_warps: what.polling_warps,
            registers: kernel.registers,
            blocks_per_sm: kernel.blocks_per_multiprocessor,
            compute_threads: threads,
            compute_chains: self.args.chains,
            compute_blocks: compute.blocks(),
            compute_sms: times.beside.iter().map(|one| one.sms).min().unwrap_or(0),
            slowdown,
            slowdown_of_alone: median(&beside) / median(&times.alone),
            alone_s: times.alone.clone(),
            asleep_s: times.asleep.clone(),
            beside_s: beside,
            ios: times.ios,
            ios_verified: times.verified,
            errors: times.errors,
            iops,
            nominal_iops: nominal,
            polls_per_warp_s: times.polls as f64 / 32.0 / warps / times.io_s.max(1e-9),
            goal,
            verdict: self.verdict(simulated, slowdown, iops, nominal, goal),
            baseline: String::new(),
        }
    }

    /// The slowdown that a system may cause.
    fn goal(&self, threads: u32) -> Option<f64> {
        let few = threads <= 256;
        match (self.path, self.args.stalled) {
            (_, true) => Some(1.005),
            (PathName::Ring, _) if !self.limited => Some(1.02),
            (PathName::Ring, _) => Some(if few { 1.010 } else { 1.015 }),
            (PathName::Copilot, _) => Some(1.025),
            (PathName::Bam, _) => Some(if few { 1.95 } else { 1.50 }),
            _ => None,
        }
    }

    fn verdict(
        &self,
        simulated: bool,
        slowdown: f64,
        iops: f64,
        nominal: f64,
        goal: Option<f64>,
    ) -> String {
        let Some(goal) = goal else { return "no goal".to_owned() };
        if simulated {
            return "NOT MEASURED: the simulated GPU shares the CPU with all that serves it"
                .to_owned();
        }
        if !self.args.stalled && iops < SHARE_MIN * nominal {
            return format!("NOT MEASURED: I/O fell to {:.2} of its rate alone", iops / nominal);
        }
        (if slowdown <= goal { "PASS" } else { "FAIL" }).to_owned()
    }
}

impl Times {
    fn note(&mut self, outcome: &RoundOutcome) {
        let done = outcome.results.iter().filter(|r| r.flags & BENCH_SUBMITTED != 0);
        for result in done {
            self.ios += 1;
            self.errors += u64::from(result.status != abi::status::SUCCESS);
            self.verified += u64::from(result.flags & BENCH_ALL_RIGHT != 0);
        }
        self.io_s += outcome.seconds;
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

fn show(rows: &[Row], simulated: bool) -> Result<()> {
    if simulated {
        print(
            "Simulated GPU: what is shown is how the simulator's threads share this CPU, not what a GPU's \
             SMs do; nothing is judged.",
        )?;
    }
    let names = [
        "path",
        "I/O kernel",
        "compute",
        "alone",
        "asleep",
        "beside",
        "slowdown",
        "goal",
        "IOPS",
        "of alone",
        "verified",
        "polls/warp/s",
        "polling warps",
        "registers",
        "",
    ];
    let cells = rows.iter().map(|row| {
        let s = |times: &[f64]| format!("{:.4} s", median(times));
        vec![
            row.path.to_owned(),
            format!("{} x {}, batch {}", row.sms, row.warps, row.batch),
            format!("{} on {} SMs", row.compute_threads, row.compute_sms),
            s(&row.alone_s),
            s(&row.asleep_s),
            s(&row.beside_s),
            format!("{:.4}", row.slowdown),
            row.goal.map_or_else(|| "-".to_owned(), |goal| format!("{goal:.3}")),
            units::count(row.iops),
            format!("{:.2}", row.iops / row.nominal_iops.max(1e-9)),
            format!("{} of {}", units::thousands(row.ios_verified), units::thousands(row.ios)),
            units::count(row.polls_per_warp_s),
            row.polling_warps.to_string(),
            row.registers.to_string(),
            row.verdict.clone(),
        ]
    });
    print(&lines(&names, &cells.collect::<Vec<_>>()))?;
    if let Some(row) = rows.first() {
        print(&format!("baseline: {}", row.baseline))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[]), 0.0);
    }
}
