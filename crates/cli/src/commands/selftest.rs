//! `sidecore selftest`: the tests of the device side, on whichever GPU there is; and its litmus runs.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use gpu::{CudaGpu, CudaOptions, Gpu, LaunchShape};
use selftest::litmus::{self, Amount, Row};
use selftest::{CASES, Case, End};
use serde_json::json;
use zerocopy::IntoBytes;

use crate::commands::NOT_CLEAN;
use crate::interrupt;
use crate::printer::{print, tell};
use crate::units::{parse_duration, thousands};

/// Options of `selftest`.
#[derive(Args, Debug, Clone)]
pub struct SelftestArgs {
    /// Run only these, by name [default: all].
    pub names: Vec<String>,
    /// Run each case so often, or until it fails.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), default_value = "1",
          conflicts_with = "litmus")]
    pub repeat: u32,
    /// Begin no further repeat of a case after so long.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "litmus")]
    pub within: Option<Duration>,
    /// Print the names and stop.
    #[arg(long)]
    pub list: bool,
    /// GPU: auto (the first real one, else a simulated one), simulated, or a real one's number.
    #[arg(long, value_name = "GPU", default_value = "auto")]
    pub gpu: gpu::Choice,
    /// Run the litmus kernels instead, each right way and each broken twin, for so long.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub litmus: Option<Duration>,
    /// Run a kernel that stores behind the end of its memory instead: a memory checker must notice.
    #[arg(long, conflicts_with = "litmus")]
    pub bad_store: bool,
    /// Print one JSON object a line.
    #[arg(long)]
    pub json: bool,
}

/// Runs it.
///
/// # Errors
/// No such case, no such GPU.
pub fn run(args: &SelftestArgs) -> Result<ExitCode> {
    if args.list {
        let line = |case: &Case| {
            if args.json {
                json!({"selftest": case.name}).to_string()
            } else {
                case.name.to_owned()
            }
        };
        CASES.iter().try_for_each(|case| print(&line(case)))?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.bad_store {
        return bad_store(args.gpu);
    }
    let opened = gpu::open(args.gpu, &[])?;
    if let Some(why) = &opened.why_simulated {
        tell!("simulated GPU: {why}");
    }
    match args.litmus {
        Some(duration) => run_litmus(args, &opened.gpu, duration),
        None => run_cases(args, &opened.gpu),
    }
}

fn chosen(names: &[String]) -> Result<Vec<Case>> {
    if names.is_empty() {
        return Ok(CASES.to_vec());
    }
    let find = |name: &String| {
        let found = selftest::find(name).copied();
        found.with_context(|| format!("no case {name}; --list has the names"))
    };
    names.iter().map(find).collect()
}

fn run_cases(args: &SelftestArgs, gpu: &Arc<dyn Gpu>) -> Result<ExitCode> {
    let name = gpu.describe().name;
    let cases = chosen(&args.names)?;
    let mut failed = 0;
    for (done, case) in cases.iter().enumerate() {
        let start = Instant::now();
        let (end, runs) = repeated(args, case, gpu);
        let seconds = start.elapsed().as_secs_f64();
        let (why, stuck) = match end {
            End::Passed => (None, false),
            End::Failed(why) => (Some(why), false),
            End::Stuck(why) => (Some(why), true),
        };
        failed += usize::from(why.is_some());
        if args.json {
            let passed = why.is_none();
            let row = json!({"selftest": case.name, "gpu": name, "passed": passed, "runs": runs,
                             "seconds": seconds, "why": why});
            print(&row.to_string())?;
        } else {
            let end = why.as_deref().unwrap_or("ok");
            let times = if runs > 1 { format!(", {runs} times") } else { String::new() };
            print(&format!("{} ... {end} ({seconds:.2} s{times})", case.name))?;
        }
        if stuck {
            let left = cases.len() - done - 1;
            tell!(
                "a kernel does not end, so {left} cases were not run, and this process ends hard"
            );
            // Anything gentler waits for the kernel.
            std::process::abort();
        }
        if interrupt::asked() {
            tell!("interrupted: {} of {} cases", done + 1, cases.len());
            return Ok(ExitCode::from(interrupt::INTERRUPTED));
        }
    }
    if !args.json {
        print(&format!("{} passed, {failed} failed on {name}", cases.len() - failed))?;
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(NOT_CLEAN) })
}

/// Runs a case as often as asked, or until it fails: its last end, and how often it ran.
fn repeated(args: &SelftestArgs, case: &Case, gpu: &Arc<dyn Gpu>) -> (End, u32) {
    let start = Instant::now();
    let mut runs = 0;
    loop {
        let end = selftest::run(case, gpu);
        runs += 1;
        let late = args.within.is_some_and(|within| start.elapsed() >= within);
        let over = late || interrupt::asked();
        if end != End::Passed || over || runs >= args.repeat {
            return (end, runs);
        }
    }
}

fn run_litmus(args: &SelftestArgs, gpu: &Arc<dyn Gpu>, duration: Duration) -> Result<ExitCode> {
    let about = gpu.describe();
    ensure!(about.no_window.is_none(), "litmus runs need the window: {:?}", about.no_window);
    let rows = litmus::run_all(gpu, Amount::of(gpu, duration));
    let mut clean = true;
    for row in &rows {
        clean &= !row.right || row.violations() == 0;
        let text = if args.json { in_json(row, &about.name) } else { in_words(row) };
        print(&text)?;
    }
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::from(NOT_CLEAN) })
}

fn in_json(row: &Row, gpu: &str) -> String {
    let tally = |tally: &litmus::Tally| {
        let litmus::Tally { looks, fresh, violations } = *tally;
        json!({"looks": looks, "fresh": fresh, "violations": violations})
    };
    json!({
        "litmus": row.rules, "right": row.right, "left_out": row.about, "gpu": gpu,
        "lanes": tally(&row.lanes), "cpu": tally(&row.cpu), "violations": row.violations(),
        "seconds": row.seconds,
    })
    .to_string()
}

fn in_words(row: &Row) -> String {
    let how =
        if row.right { "as the rule says".to_owned() } else { format!("broken: {}", row.about) };
    format!(
        "rule {}, {how}: {} rounds of lanes ({} saw or stored something new), {} of CPU threads, \
         {} violations",
        row.rules,
        thousands(row.lanes.looks),
        thousands(row.lanes.fresh),
        thousands(row.cpu.looks),
        thousands(row.violations())
    )
}

/// Launches a kernel that is wrong on purpose. Memory is the driver's own, whose end a checker knows.
fn bad_store(choice: gpu::Choice) -> Result<ExitCode> {
    const BYTES: u64 = 4096;
    let gpu::Choice::Index(index) = choice else { bail!("--bad-store needs a real GPU's number") };
    let gpu = CudaGpu::open(CudaOptions { index, window: false })?;
    let memory = gpu.allocate_device(BYTES)?;
    let arguments = litmus::Arguments {
        cells: memory.address,
        stop: 0,
        results: 0,
        cell_count: 0,
        rounds: BYTES,
        rounds_max: 0,
        mode: 0,
        reserved: 0,
    };
    let shape = LaunchShape { blocks: 1, threads_per_block: 32, shared_bytes: 0 };
    let mut launch = gpu.launch(&kernels::BAD_STORE, shape, arguments.as_bytes())?;
    launch.wait(Duration::from_secs(20)).context("the kernel does not end")??;
    print("the bad store went through: nobody checks this process's memory accesses")?;
    Ok(ExitCode::SUCCESS)
}
