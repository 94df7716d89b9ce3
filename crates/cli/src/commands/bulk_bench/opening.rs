//! `bench bulk --opening`: what has to be made before bytes move, each thing apart.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bulk::{Access, Bulk, Options, Place, Request};
use serde::Serialize;

use crate::args::BulkBenchArgs;
use crate::bench::data::write_pattern;
use crate::commands::engine::{Memory, open_gpu};
use crate::printer::print;

/// Bytes of the file.
const FILE_BYTES: u64 = 4 << 20;
/// Bytes of the transfers.
const MOVED_BYTES: u64 = 4096;
/// Times that cheap things are done.
const TIMES: usize = 1000;

/// One thing that is made.
#[derive(Serialize)]
struct Made {
    work: &'static str,
    what: &'static str,
    /// The median, where it was done again.
    seconds: f64,
    times: usize,
}

/// Runs it.
///
/// # Errors
/// No room for a file, no memory.
pub fn run(args: &BulkBenchArgs) -> Result<ExitCode> {
    let mut all = Vec::new();
    let folder = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let named = || format!("making a file in {}", folder.display());
    let made = tempfile::NamedTempFile::new_in(&folder).with_context(named)?;
    write_pattern(made.as_file(), FILE_BYTES).with_context(named)?;

    let gpu = once(&mut all, "GPU: driver and context", || open_gpu(false, &args.limits))?;
    let gpu = gpu.context("a GPU, or the simulated one")?;
    let memory =
        once(&mut all, "device memory of 4 MiB", || Memory::allocate(Some(&gpu), FILE_BYTES))?;
    let options = || Options { gpu: Some(gpu.clone()), ..Options::default() };
    let bulk = once(&mut all, "engine", || Ok(Bulk::open(options())?))?;
    let open = || Ok(bulk.open_file(made.path(), Access::Read)?);
    again(&mut all, "file", || open().map(drop))?;
    let file = open()?;
    let Memory::Device(_, device) = &memory else { unreachable!("it was asked for") };
    let buffer = || Place::device(device.address, MOVED_BYTES);
    again(&mut all, "buffer by its address", || {
        Ok(gpu.memory_at(device.address, FILE_BYTES).map(drop)?)
    })?;
    let read = || {
        let moved = bulk.read(&file, 0, buffer())?;
        ensure!(moved == MOVED_BYTES, "{moved} bytes arrived");
        Ok(())
    };
    once(&mut all, "first read of 4 KiB: pinned memory, streams", read)?;
    again(&mut all, "read of 4 KiB", read)?;
    once(&mut all, "first read of 4 MiB: threads", || {
        let place = Place::device(device.address, FILE_BYTES);
        let moved = bulk.submit(Request::read(&file, 0, place));
        moved.wait(std::time::Duration::from_secs(60))?.context("a minute has passed")
    })?;
    once(&mut all, "all for transfers in the order of streams", || Ok(bulk.prepare_streams()?))?;
    all.iter().try_for_each(|made| show(args, made))?;
    Ok(ExitCode::SUCCESS)
}

fn once<T>(all: &mut Vec<Made>, what: &'static str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let begin = Instant::now();
    let result = run()?;
    let seconds = begin.elapsed().as_secs_f64();
    all.push(Made { work: "open", what, seconds, times: 1 });
    Ok(result)
}

fn again(
    all: &mut Vec<Made>,
    what: &'static str,
    mut run: impl FnMut() -> Result<()>,
) -> Result<()> {
    let times = (0..TIMES).map(|_| {
        let begin = Instant::now();
        run()?;
        Ok(begin.elapsed().as_secs_f64())
    });
    let mut times = times.collect::<Result<Vec<_>>>()?;
    times.sort_by(f64::total_cmp);
    all.push(Made { work: "open", what, seconds: times[TIMES / 2], times: TIMES });
    Ok(())
}

fn show(args: &BulkBenchArgs, made: &Made) -> Result<()> {
    if args.json {
        return print(&serde_json::to_string(made)?);
    }
    print(&format!("{:<46} {:>12.1} us", made.what, made.seconds * 1e6))
}
