//! `sidecore tune`: measures the planner's knees on a file system, and stores them.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use bulk::{Knees, Measured, Store, TuneOptions};
use serde::Serialize;

use crate::args::TuneArgs;
use crate::commands::engine::{check_room, open_gpu};
use crate::printer::print;
use crate::{interrupt, units};

/// What came out.
#[derive(Debug, Serialize)]
struct Tuned {
    key: String,
    stored: Option<String>,
    knees: Knees,
    measured: Vec<Measured>,
}

/// Runs it.
///
/// # Errors
/// No such directory, no room, no place to store.
pub fn run(args: &TuneArgs) -> Result<ExitCode> {
    let gpu = open_gpu(args.host, &args.limits)?;
    check_room(gpu.as_ref(), args.size).context("--size")?;
    let name = gpu.as_ref().map(|gpu| gpu.describe().name);
    let key = Store::key(&args.directory, name.as_deref())?;
    let store = Store::of_user();
    let store = match (args.dry_run, store) {
        (true, _) => None,
        (false, store) => Some(store.context(
            "neither XDG_CONFIG_HOME nor HOME says where to store knees: set one, or --dry-run",
        )?),
    };
    if let Some(store) = &store {
        store.prepare().context("a place to store knees; --dry-run only prints them")?;
    }
    let tuned = bulk::tune(&TuneOptions {
        directory: args.directory.clone(),
        gpu,
        bytes: args.size,
        repeats: args.repeats,
        stop: Some(Arc::new(interrupt::asked)),
        interference: None,
    })
    .with_context(|| format!("tuning in {}", args.directory.display()))?;
    // What was measured is worth seeing also where it cannot be kept.
    let kept = store.as_ref().map_or(Ok(()), |store| store.put(&key, tuned.knees));
    let stored = store.filter(|_| kept.is_ok()).map(|store| store.path().display().to_string());
    let tuned = Tuned { key, stored, knees: tuned.knees, measured: tuned.measured };
    if args.json {
        print(&serde_json::to_string(&tuned)?)?;
    } else {
        report(&tuned)?;
    }
    kept?;
    Ok(ExitCode::SUCCESS)
}

fn report(tuned: &Tuned) -> Result<()> {
    print(&format!("for     {}", tuned.key))?;
    for Measured { what, threads, bytes, bytes_per_s } in &tuned.measured {
        let (size, rate) = (units::bytes(*bytes), units::rate(*bytes_per_s));
        print(&format!("  {what:<12} {threads:>2} threads  {size:>8}  {rate:>10}"))?;
    }
    let knees = &tuned.knees;
    print(&format!(
        "knees   threads: {} cached, {} direct, {} write; {} slots of {}",
        knees.threads_cached,
        knees.threads_direct,
        knees.threads_write,
        knees.slots,
        units::bytes(knees.slot_bytes)
    ))?;
    print(&format!(
        "        window up to {}, direct from {}, by the caller up to {}",
        units::bytes(knees.window_bytes_max),
        if knees.direct_bytes_min == u64::MAX {
            "never".to_owned()
        } else {
            units::bytes(knees.direct_bytes_min)
        },
        units::bytes(knees.inline_bytes_max)
    ))?;
    match &tuned.stored {
        Some(path) => print(&format!("stored  {path}")),
        None => print("not stored"),
    }
}
