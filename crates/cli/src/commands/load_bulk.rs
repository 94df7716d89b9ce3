//! `sidecore load FILE` on the bulk engine: a whole file into GPU memory at once.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bulk::{Access, Plan, Request};
use serde::Serialize;

use crate::args::LoadArgs;
use crate::commands::engine::{Engine, wait};
use crate::printer::{Progress, print, tell};
use crate::{interrupt, units};

/// What came out.
#[derive(Debug, Serialize)]
pub struct Loaded {
    file: String,
    bytes: u64,
    path: &'static str,
    route: &'static str,
    gpu: String,
    drive: &'static str,
    threads: u64,
    hot_bytes: u64,
    cold_bytes: u64,
    pinned_bytes: u64,
    seconds: f64,
    bytes_per_s: f64,
    explain: String,
    errors: u64,
    sha256: String,
}

/// Runs it.
///
/// # Errors
/// A file that cannot be read, no memory, a route that is required and not taken.
pub fn run(args: &LoadArgs) -> Result<ExitCode> {
    let named = || format!("loading {}", args.file.display());
    let engine = Engine::open(&args.file, &args.engine, &args.limits)?;
    let file = engine.bulk.open_file(&args.file, Access::Read).with_context(named)?;
    let bytes = file.bytes()?;
    ensure!(bytes > 0, "reading {}: it is empty", args.file.display());
    let memory = engine.allocate(bytes).with_context(named)?;
    let request = Request::read(&file, 0, memory.place());
    let plan = engine.bulk.plan(&request).with_context(named)?;
    if args.explain {
        print(&plan.explain())?;
    }
    let mut progress = Progress::new(bytes);
    let begin = Instant::now();
    let transfer = engine.bulk.submit(request);
    let moved = wait(&transfer, |at| progress.show(at, "loading")).with_context(named)?;
    let seconds = begin.elapsed().as_secs_f64();
    let Some(moved) = moved else {
        tell!("interrupted: {} was not loaded whole", args.file.display());
        return Ok(ExitCode::from(interrupt::INTERRUPTED));
    };
    ensure!(moved == bytes, "{} ended at {moved} bytes, not {bytes}", args.file.display());
    let counters = engine.bulk.counters();
    let loaded = Loaded {
        file: args.file.display().to_string(),
        bytes,
        path: "bulk",
        route: plan.route.name(),
        gpu: engine.gpu_name(),
        drive: "file",
        threads: counters.threads,
        hot_bytes: counters.hot_bytes,
        cold_bytes: counters.cold_bytes,
        pinned_bytes: counters.pinned_bytes_max,
        seconds,
        bytes_per_s: bytes as f64 / seconds.max(1e-9),
        explain: plan.explain(),
        errors: 0,
        sha256: memory.sha256(bytes)?,
    };
    report(args, &loaded, &plan)?;
    Ok(ExitCode::SUCCESS)
}

fn report(args: &LoadArgs, loaded: &Loaded, plan: &Plan) -> Result<()> {
    if args.json {
        return print(&serde_json::to_string(loaded)?);
    }
    print(&format!("file    {} ({} bytes)", loaded.file, units::thousands(loaded.bytes)))?;
    let routes: Vec<_> = plan
        .parts
        .iter()
        .map(|part| format!("{} {}", units::bytes(part.bytes), part.route))
        .collect();
    print(&format!("path    bulk, route {}, {} threads", routes.join(" + "), loaded.threads))?;
    print(&format!("gpu     {}", loaded.gpu))?;
    let (hot, cold) = (units::bytes(loaded.hot_bytes), units::bytes(loaded.cold_bytes));
    print(&format!("cache   {hot} were in it, {cold} were not"))?;
    print(&format!("pinned  {}", units::bytes(loaded.pinned_bytes)))?;
    print(&format!("rate    {} ({:.3} s)", units::rate(loaded.bytes_per_s), loaded.seconds))?;
    print(&format!("sha256  {}", loaded.sha256))?;
    if loaded.gpu.starts_with("simulated") {
        print("The GPU is simulated: the rate is the simulator's, not a GPU's.")?;
    }
    Ok(())
}
