//! `sidecore save SOURCE TARGET`: a file through GPU memory into another one, complete or not at all.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use bulk::{Access, BulkError, Request, SavePart};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::args::SaveArgs;
use crate::commands::engine::{Engine, wait};
use crate::printer::{print, tell};
use crate::{interrupt, units};

/// What came out.
#[derive(Debug, Serialize)]
struct Saved {
    source: String,
    target: String,
    bytes: u64,
    gpu: String,
    load_bytes_per_s: f64,
    /// With fsync of the file, rename, and fsync of the directory.
    save_bytes_per_s: f64,
    save_seconds: f64,
    sha256: String,
    sha256_of_file: String,
}

/// Runs it.
///
/// # Errors
/// What loading and writing may meet; a file that reads back differently.
pub fn run(args: &SaveArgs) -> Result<ExitCode> {
    if !args.overwrite && std::fs::metadata(&args.target).is_ok_and(|there| there.is_file()) {
        bail!("saving {}: it is there already; --overwrite replaces it", args.target.display());
    }
    let engine = Engine::open(&args.source, &args.engine, &args.limits)?;
    let named = || format!("loading {}", args.source.display());
    let file = engine.bulk.open_file(&args.source, Access::Read).with_context(named)?;
    let bytes = file.bytes()?;
    let memory = engine.allocate(bytes.max(1)).with_context(named)?;
    let place = memory.place().part(0, bytes)?;
    let begin = Instant::now();
    let transfer = engine.bulk.submit(Request::read(&file, 0, place.clone()));
    let interrupted = || {
        tell!("interrupted: {} is as it was", args.target.display());
        Ok(ExitCode::from(interrupt::INTERRUPTED))
    };
    let Some(moved) = wait(&transfer, |_| ()).with_context(named)? else { return interrupted() };
    let load_seconds = begin.elapsed().as_secs_f64();
    ensure!(moved == bytes, "{} ended at {moved} bytes, not {bytes}", args.source.display());
    let begin = Instant::now();
    let parts = vec![SavePart { offset: 0, place }];
    let stop = &interrupt::asked;
    match bulk::save_atomically_unless(&engine.bulk, &args.target, bytes, parts, stop) {
        Err(BulkError::Cancelled) => return interrupted(),
        saved => saved.with_context(|| format!("saving {}", args.target.display()))?,
    };
    let save_seconds = begin.elapsed().as_secs_f64();
    let saved = Saved {
        source: args.source.display().to_string(),
        target: args.target.display().to_string(),
        bytes,
        gpu: engine.gpu_name(),
        load_bytes_per_s: bytes as f64 / load_seconds.max(1e-9),
        save_bytes_per_s: bytes as f64 / save_seconds.max(1e-9),
        save_seconds,
        sha256: memory.sha256(bytes)?,
        sha256_of_file: sha256_of(&args.target)?,
    };
    report(args, &saved)?;
    ensure!(saved.sha256 == saved.sha256_of_file, "{} reads back differently", saved.target);
    Ok(ExitCode::SUCCESS)
}

fn sha256_of(path: &std::path::Path) -> Result<String> {
    let mut file =
        std::fs::File::open(path).with_context(|| format!("reading {} back", path.display()))?;
    let mut digest = Sha256::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        let count = std::io::Read::read(&mut file, &mut piece)?;
        if count == 0 {
            break;
        }
        digest.update(&piece[..count]);
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn report(args: &SaveArgs, saved: &Saved) -> Result<()> {
    if args.json {
        return print(&serde_json::to_string(saved)?);
    }
    print(&format!("source  {} ({} bytes)", saved.source, units::thousands(saved.bytes)))?;
    print(&format!("target  {}", saved.target))?;
    print(&format!("gpu     {}", saved.gpu))?;
    print(&format!("load    {}", units::rate(saved.load_bytes_per_s)))?;
    print(&format!(
        "save    {} ({:.3} s, with fsync, rename and fsync of the directory)",
        units::rate(saved.save_bytes_per_s),
        saved.save_seconds
    ))?;
    print(&format!("sha256  {} in GPU memory", saved.sha256))?;
    print(&format!("sha256  {} of the file", saved.sha256_of_file))
}
