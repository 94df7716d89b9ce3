//! `sidecore bench copoll`: steps the load of copilot's queues between 10 % and 100 %, and checks who
//! polled them, when that changed, and that nothing was lost.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use abi::bench::{BENCH_EDGES_RIGHT, BenchIo};
use abi::ring::OP_READ;
use anyhow::{Context, Result, ensure};
use gpu::Gpu;
use serde::Serialize;
use sidecore::gpu_queues::{CopollOptions, Flip, Owner, Polling};

use crate::args::{BenchArgs, CopollArgs, PathName};
use crate::bench::data::Data;
use crate::bench::drive::SoftwareDrive;
use crate::bench::lane_runner::LaneRunner;
use crate::bench::order::Order;
use crate::bench::paths::{self, Counted, PathOptions};
use crate::bench::round::{Round, RoundOutcome, Runner};
use crate::bench::settings::Settings;
use crate::commands::NOT_CLEAN;
use crate::printer::{Progress, print};
use crate::report::{lines, standing};
use crate::{interrupt, units};

/// Bytes of data: far more than what is in flight.
const DATA_BYTES: u64 = 32 << 20;
/// Bytes of destination of all loads together, at most.
const DESTINATION_BYTES_MAX: u64 = 1 << 30;
/// Full load has so many times the warps of low load.
const TIMES: u32 = 10;
/// How long full load is measured before anything else.
const CALIBRATION: Duration = Duration::from_millis(1500);
/// A load consists of so many launches of equal length, by the rate that was measured; some more
/// are prepared, for when it goes faster.
const PARTS: u32 = 4;
const PARTS_MORE: u32 = 4;
/// Shares of full load's completions that are the thresholds where nobody says.
const HIGH_SHARE: f64 = 0.45;
const LOW_SHARE: f64 = 0.25;

/// What one load brought.
#[derive(Debug, Serialize)]
struct Phase {
    load_percent: u32,
    seconds: f64,
    ios: u64,
    errors: u64,
    verified: u64,
    iops: f64,
    polled_gpu: u64,
    polled_cpu: u64,
    poller_cpu_s: f64,
    poller_cores: f64,
    flips_to_cpu: u64,
    flips_to_gpu: u64,
    steady_s: f64,
    steady_flips_of_a_queue_max: u64,
    #[serde(skip)]
    begun_ns: u64,
    #[serde(skip)]
    ended_ns: u64,
}

/// A change of hands, for the log.
#[derive(Debug, Serialize)]
struct LoggedFlip {
    at_s: f64,
    phase: usize,
    load_percent: u32,
    queue: u32,
    to: &'static str,
    reason: &'static str,
    completions_in_window: u32,
}

/// One thing that must hold.
#[derive(Debug, Serialize)]
struct Check {
    what: String,
    pass: bool,
    found: String,
}

/// All that came out.
#[derive(Debug, Serialize)]
struct Report {
    gpu: String,
    drive: String,
    simulated: bool,
    agents: u32,
    queues: u32,
    high: u32,
    low: u32,
    window_s: f64,
    dwell_s: f64,
    full_load_iops: f64,
    phases: Vec<Phase>,
    flips: Vec<LoggedFlip>,
    checks: Vec<Check>,
}

/// Runs it.
///
/// # Errors
/// Bad options, no memory, a path that broke.
pub fn run(args: &CopollArgs) -> Result<ExitCode> {
    ensure!(args.settle < args.hold, "--settle must be shorter than --hold");
    let settings = settings(args)?;
    let mut bench = Bench::open(args, &settings)?;
    let full = bench.calibrate()?;
    let thresholds = thresholds(args, full)?;
    let (phases, flips, what) = bench.step(full, thresholds)?;
    if interrupt::asked() {
        return Ok(ExitCode::from(interrupt::INTERRUPTED));
    }
    let checks = checks(args, &phases, &flips);
    let report = Report {
        flips: flips.iter().map(|flip| logged(flip, &phases)).collect(),
        simulated: what.gpu.starts_with("simulated"),
        gpu: what.gpu,
        drive: what.drive,
        agents: what.side_cores,
        queues: args.queues,
        high: thresholds.high,
        low: thresholds.low,
        window_s: args.window.as_secs_f64(),
        dwell_s: args.dwell.as_secs_f64(),
        full_load_iops: full,
        phases,
        checks,
    };
    show(args, &report)?;
    let clean = report.checks.iter().all(|check| check.pass);
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::from(NOT_CLEAN) })
}

fn settings(args: &CopollArgs) -> Result<Settings> {
    Settings::new(BenchArgs {
        path: vec![PathName::Copilot],
        size: Some(DATA_BYTES),
        io_size: vec![args.io_size],
        sms: vec![args.sms],
        warps: Some(args.warps * TIMES),
        queues: Some(args.queues),
        depth: vec![args.depth],
        side_cores: Some(args.agents),
        drive_latency: Some(args.drive_latency.clone()),
        limit_ms: args.limit_ms,
        seed: args.seed,
        json: args.json,
        limits: args.limits.clone(),
        ..BenchArgs::defaults()
    })
}

/// Thresholds as asked for, or as a share of what full load brings.
fn thresholds(args: &CopollArgs, full: f64) -> Result<CopollOptions> {
    let window = full * args.window.as_secs_f64() / f64::from(args.queues);
    let share = |share: f64| u32::try_from(units::whole(window * share)).unwrap_or(u32::MAX);
    let high = args.high.unwrap_or_else(|| share(HIGH_SHARE).max(2));
    let low = args.low.unwrap_or_else(|| share(LOW_SHARE).clamp(1, high.saturating_sub(1).max(1)));
    ensure!(low < high, "--low {low} must be below --high {high}");
    Ok(CopollOptions { high, low, window: args.window, dwell: args.dwell })
}

/// Data, drive and GPU of the run.
struct Bench<'a> {
    args: &'a CopollArgs,
    gpu: Arc<dyn Gpu>,
    drive: std::rc::Rc<SoftwareDrive>,
    data: Data,
    options: PathOptions,
    order: Order,
}

/// A load to come: rounds one after the other until its time is over.
struct Load {
    percent: u32,
    rounds: Vec<Arc<Round>>,
}

impl<'a> Bench<'a> {
    fn open(args: &'a CopollArgs, settings: &Settings) -> Result<Self> {
        let data = Data::make(&settings.directory, settings.data_bytes)?;
        let options = settings.path_options(&settings.points[0]);
        let gpu = paths::open_gpu(&args.limits)?;
        let how = options.source_options().drive(args.queues);
        let drive = SoftwareDrive::open(&how, &data, &gpu)?;
        let order = Order::new(data.bytes() / args.io_size, true, args.seed);
        Ok(Self { args, gpu, drive, data, options, order })
    }

    /// I/Os a second of full load, polled by the CPU alone.
    fn calibrate(&mut self) -> Result<f64> {
        let mut runner = self.runner(Polling::Cpu, self.options.destination_bytes)?;
        let most = self.options.destination_bytes / self.options.io_bytes as usize;
        let mut count = runner.in_flight_max() * 4;
        let (mut ios, mut seconds) = (0, 0.0);
        while seconds < CALIBRATION.as_secs_f64() && !interrupt::asked() {
            let round = Arc::new(self.round(count.min(most), 0)?);
            runner.destination().poison(round.slots * round.io_bytes as usize)?;
            let outcome = runner.run(&round)?;
            ios += outcome.results.len();
            seconds += outcome.seconds;
            let wanted = units::whole(ios as f64 / seconds * CALIBRATION.as_secs_f64());
            count = usize::try_from(wanted).unwrap_or(most);
        }
        Ok(ios as f64 / seconds.max(1e-9))
    }

    fn runner(&self, polling: Polling, bytes: usize) -> Result<Counted<LaneRunner>> {
        let options = PathOptions { destination_bytes: bytes, ..self.options.clone() };
        paths::open_lanes(&options, &self.data, &self.gpu, Some(&self.drive), polling)
    }

    fn round(&mut self, ios: usize, base: usize) -> Result<Round> {
        let io_bytes = self.options.io_bytes;
        let (mut plan, mut edges) = (Vec::new(), Vec::new());
        for _ in 0..ios {
            let source_offset = self.order.next_block() * u64::from(io_bytes);
            edges.push(self.data.expected_edges(source_offset, io_bytes)?);
            plan.push(BenchIo { source_offset, opcode: u32::from(OP_READ), generation: 0 });
        }
        let (on_device, asleep) = (false, false);
        Ok(Round { slots: plan.len(), plan, edges, on_device, asleep, io_bytes, base })
    }

    /// All loads, each with a place of its own, so that nothing has to be compared between them.
    fn loads(&mut self, full: f64) -> Result<(Vec<Load>, usize)> {
        let (mut loads, mut base) = (Vec::new(), 0);
        let steps = (0..self.args.steps).flat_map(|_| [100, 10]);
        for percent in std::iter::once(10).chain(steps) {
            let part = self.args.hold.as_secs_f64() / f64::from(PARTS);
            let ios = full * f64::from(percent) / 100.0 * part;
            let ios = usize::try_from(units::whole(ios).max(1)).context("a huge load")?;
            let mut rounds = Vec::new();
            for _ in 0..PARTS + PARTS_MORE {
                let round = self.round(ios, base)?;
                base += (round.slots * round.io_bytes as usize).next_multiple_of(4096);
                rounds.push(Arc::new(round));
            }
            loads.push(Load { percent, rounds });
        }
        ensure!(
            base as u64 <= DESTINATION_BYTES_MAX,
            "so much load for so long needs {} of GPU memory to check it: lower --hold or --steps",
            units::bytes(base as u64)
        );
        Ok((loads, base))
    }

    /// Runs all loads, then compares every byte.
    fn step(
        &mut self,
        full: f64,
        thresholds: CopollOptions,
    ) -> Result<(Vec<Phase>, Vec<Flip>, crate::bench::round::Description)> {
        let (loads, bytes) = self.loads(full)?;
        let mut runner = self.runner(Polling::Adaptive(thresholds), bytes)?;
        runner.destination().poison(bytes)?;
        let mut progress = Progress::new(loads.len() as u64);
        let (mut phases, mut outcomes) = (Vec::new(), Vec::new());
        for load in &loads {
            if interrupt::asked() {
                break;
            }
            progress.show(phases.len() as u64, &format!("{} % load", load.percent));
            let (phase, of_phase) = self.phase(&mut runner, load)?;
            phases.push(phase);
            outcomes.push(of_phase);
        }
        drop(progress);
        let flips = runner.runner().flips();
        for ((phase, load), outcomes) in phases.iter_mut().zip(&loads).zip(&outcomes) {
            for (round, outcome) in load.rounds.iter().zip(outcomes) {
                phase.verified += self.verified(&mut runner, round, outcome)?;
            }
        }
        for n in 0..phases.len() {
            let until = phases.get(n + 1).map_or(u64::MAX, |next| next.begun_ns);
            count_flips(&mut phases[n], until, &flips, self.args);
        }
        Ok((phases, flips, runner.describe()))
    }

    fn phase(
        &self,
        runner: &mut Counted<LaneRunner>,
        load: &Load,
    ) -> Result<(Phase, Vec<RoundOutcome>)> {
        let warps = self.args.warps * if load.percent == 100 { TIMES } else { 1 };
        runner.runner_mut().set_warps(warps);
        let before = runner.bill();
        let agents_before = runner.runner().agent_cpu_seconds();
        let begun_ns = runner.runner().elapsed_ns();
        let mut outcomes = Vec::new();
        let mut ended_ns = begun_ns;
        for round in &load.rounds {
            if Duration::from_nanos(ended_ns - begun_ns) >= self.args.hold || interrupt::asked() {
                break;
            }
            outcomes.push(runner.run(round)?);
            ended_ns = runner.runner().elapsed_ns();
        }
        let poller_cpu_s = runner.runner().agent_cpu_seconds() - agents_before;
        let bill = runner.bill();
        let seconds = (ended_ns - begun_ns) as f64 * 1e-9;
        let results = || outcomes.iter().flat_map(|outcome| &outcome.results);
        let ios = results().count() as u64;
        let phase = Phase {
            load_percent: load.percent,
            seconds,
            ios,
            errors: results().filter(|r| r.status != abi::status::SUCCESS).count() as u64,
            verified: 0,
            iops: ios as f64 / seconds.max(1e-9),
            polled_gpu: bill.completions_polled_gpu - before.completions_polled_gpu,
            polled_cpu: bill.completions_polled_cpu - before.completions_polled_cpu,
            poller_cpu_s,
            poller_cores: poller_cpu_s / seconds.max(1e-9),
            flips_to_cpu: 0,
            flips_to_gpu: 0,
            steady_s: 0.0,
            steady_flips_of_a_queue_max: 0,
            begun_ns,
            ended_ns,
        };
        Ok((phase, outcomes))
    }

    /// I/Os that ended well, whose edges were right on arrival, and that are right in every byte.
    fn verified(
        &self,
        runner: &mut Counted<LaneRunner>,
        round: &Round,
        outcome: &RoundOutcome,
    ) -> Result<u64> {
        let io = round.io_bytes as usize;
        let (mut found, mut expected) = (vec![0; round.slots * io], vec![0; io]);
        runner.destination().read(round.base, &mut found)?;
        let mut verified = 0;
        for (index, (planned, result)) in round.plan.iter().zip(&outcome.results).enumerate() {
            self.data.expected(planned.source_offset, &mut expected)?;
            let right = found[index * io..][..io] == expected[..];
            let good = result.status == abi::status::SUCCESS
                && result.flags & BENCH_EDGES_RIGHT != 0
                && right;
            verified += u64::from(good);
        }
        Ok(verified)
    }
}

/// Enters the flips from a load's beginning to the next one's, and the most of one queue in the
/// steady part of it.
fn count_flips(phase: &mut Phase, until_ns: u64, flips: &[Flip], args: &CopollArgs) {
    let settle_ns = u64::try_from(args.settle.as_nanos()).unwrap_or(u64::MAX);
    let steady_ns = phase.begun_ns.saturating_add(settle_ns)..phase.ended_ns;
    let own = flips.iter().filter(|flip| (phase.begun_ns..until_ns).contains(&flip.at_ns));
    let mut steady = vec![0u64; args.queues as usize];
    for flip in own {
        match flip.to {
            Owner::Cpu => phase.flips_to_cpu += 1,
            Owner::Gpu => phase.flips_to_gpu += 1,
        }
        if steady_ns.contains(&flip.at_ns)
            && let Some(count) = steady.get_mut(flip.pair as usize)
        {
            *count += 1;
        }
    }
    phase.steady_s = steady_ns.end.saturating_sub(steady_ns.start) as f64 * 1e-9;
    phase.steady_flips_of_a_queue_max = steady.into_iter().max().unwrap_or(0);
}

fn checks(args: &CopollArgs, phases: &[Phase], flips: &[Flip]) -> Vec<Check> {
    let check = |what: &str, pass, found| Check { what: what.to_owned(), pass, found };
    let sum = |of: fn(&Phase) -> u64| phases.iter().map(of).sum::<u64>();
    let (ios, verified, errors) = (sum(|p| p.ios), sum(|p| p.verified), sum(|p| p.errors));
    let (gpu, cpu) = (sum(|p| p.polled_gpu), sum(|p| p.polled_cpu));
    let stepped = phases.len() == 1 + 2 * args.steps as usize;
    let pairs = || phases.get(1..).unwrap_or(&[]).chunks(2);
    let both = pairs()
        .all(|step| matches!(step, [up, down] if up.flips_to_cpu > 0 && down.flips_to_gpu > 0));
    let counts = pairs().flat_map(|step| step.iter());
    let counts: Vec<String> = counts
        .map(|phase| match phase.load_percent {
            100 => format!("{} to the CPU", phase.flips_to_cpu),
            _ => format!("{} to the GPU", phase.flips_to_gpu),
        })
        .collect();
    let steady = phases.iter().map(|phase| phase.steady_flips_of_a_queue_max).max().unwrap_or(0);
    let shortest = phases.iter().map(|phase| phase.steady_s).fold(f64::MAX, f64::min);
    let cores = |percent| {
        let of = || phases.iter().filter(move |phase| phase.load_percent == percent);
        let seconds: f64 = of().map(|phase| phase.seconds).sum();
        of().map(|phase| phase.poller_cpu_s).sum::<f64>() / seconds.max(1e-9)
    };
    let (low, full) = (cores(10), cores(100));
    vec![
        check(
            "nothing is lost: every I/O ended well and is right in every byte",
            ios > 0 && errors == 0 && verified == ios,
            format!("{verified} of {ios}, {errors} errors"),
        ),
        check(
            "both sides polled, and together every completion",
            gpu > 0 && cpu > 0 && gpu + cpu == ios,
            format!("GPU {gpu} + CPU {cpu} of {ios}"),
        ),
        check(
            "each step flips at least one queue up, and one down",
            stepped && both,
            format!("{} ({} in all)", counts.join(", "), flips.len()),
        ),
        check(
            "in a steady load no queue flips more than once",
            steady <= 1,
            format!("{steady} at most, in steady parts of {shortest:.1} s and more"),
        ),
        check(
            "poller CPU at 10 % load is at most half of that at 100 %",
            low <= full / 2.0,
            format!("{low:.3} of {full:.3} cores"),
        ),
    ]
}

/// What the flip log says of a flip.
fn logged(flip: &Flip, phases: &[Phase]) -> LoggedFlip {
    let phase = phases.iter().rposition(|phase| phase.begun_ns <= flip.at_ns).unwrap_or(0);
    let start_ns = phases.first().map_or(0, |phase| phase.begun_ns);
    LoggedFlip {
        at_s: (flip.at_ns as f64 - start_ns as f64) * 1e-9,
        phase,
        load_percent: phases.get(phase).map_or(0, |phase| phase.load_percent),
        queue: flip.pair,
        to: match flip.to {
            Owner::Cpu => "cpu",
            Owner::Gpu => "gpu",
        },
        reason: flip.reason.name(),
        completions_in_window: flip.pending,
    }
}

fn show(args: &CopollArgs, report: &Report) -> Result<()> {
    if args.json {
        return print(&serde_json::to_string(report)?);
    }
    print(&format!(
        "{}.\nGPU: {}; drive: {}.\nThe CPU takes a queue over from {} completions in {:.3} \
         s on, the GPU up to {}; each keeps it for {:.3} s at least. Full load: {} I/Os a second.",
        standing(&report.gpu),
        report.gpu,
        report.drive,
        report.high,
        report.window_s,
        report.low,
        report.dwell_s,
        units::count(report.full_load_iops)
    ))?;
    let row = |phase: &Phase| {
        vec![
            format!("{} %", phase.load_percent),
            format!("{:.2} s", phase.seconds),
            units::thousands(phase.ios),
            units::count(phase.iops),
            units::thousands(phase.polled_gpu),
            units::thousands(phase.polled_cpu),
            phase.flips_to_cpu.to_string(),
            phase.flips_to_gpu.to_string(),
            phase.steady_flips_of_a_queue_max.to_string(),
            format!("{:.3}", phase.poller_cores),
            units::thousands(phase.verified),
            units::thousands(phase.errors),
        ]
    };
    let names = [
        "load",
        "time",
        "I/Os",
        "IOPS",
        "polled GPU",
        "polled CPU",
        "to CPU",
        "to GPU",
        "steady flips",
        "poller cores",
        "verified",
        "errors",
    ];
    print(&lines(&names, &report.phases.iter().map(row).collect::<Vec<_>>()))?;
    let flip = |flip: &LoggedFlip| {
        vec![
            format!("{:.3} s", flip.at_s),
            format!("{} %", flip.load_percent),
            flip.queue.to_string(),
            flip.to.to_owned(),
            flip.reason.to_owned(),
            flip.completions_in_window.to_string(),
        ]
    };
    let names = ["flip at", "load", "queue", "to", "because", "in window"];
    print(&lines(&names, &report.flips.iter().map(flip).collect::<Vec<_>>()))?;
    for check in &report.checks {
        let word = if check.pass { "PASS" } else { "FAIL" };
        print(&format!("{word}  {}: {}", check.what, check.found))?;
    }
    Ok(())
}
