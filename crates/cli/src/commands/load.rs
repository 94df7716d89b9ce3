//! `sidecore load FILE`: a whole file into GPU memory, and the checksum of what arrived.

use std::process::ExitCode;
use std::sync::Arc;

use abi::bench::BenchIo;
use abi::ring::OP_READ;
use anyhow::{Context, Result, ensure};
use ctrl::TimingModel;
use serde::Serialize;
use sha2::{Digest, Sha256};
use storage::faults::FaultScript;

use crate::args::{
    Cache, Drive, DrivesArgs, FaultsAt, LoadArgs, Memory, OpName, PathName, RouteName, WaitMode,
};
use crate::bench::data::Data;
use crate::bench::faults;
use crate::bench::paths::{self, PathOptions};
use crate::bench::round::{Round, Runner};
use crate::bench::settings::{check_route, queue_memory};
use crate::commands::engine::check_room;
use crate::commands::{NOT_CLEAN, load_bulk};
use crate::printer::{Progress, print, tell};
use crate::{interrupt, units};

/// Bytes loaded between two looks at progress and Ctrl-C.
const PART_BYTES: u64 = 256 << 20;
/// Bytes of a block: drives read no less.
const BLOCK_BYTES: u64 = 512;
/// Largest I/O.
const IO_BYTES_MAX: u64 = 16 << 20;

/// What came out.
#[derive(Debug, Serialize)]
struct Loaded {
    file: String,
    bytes: u64,
    path: &'static str,
    route: String,
    gpu: String,
    drive: String,
    io_bytes: u64,
    ios: u64,
    errors: u64,
    seconds: f64,
    bytes_per_s: f64,
    faults_injected: u64,
    sha256: String,
}

/// Runs it.
///
/// # Errors
/// Bad options, a file that cannot be read or changes, a path that broke.
pub fn run(args: &LoadArgs) -> Result<ExitCode> {
    ensure!(
        args.io_size.is_multiple_of(BLOCK_BYTES)
            && (BLOCK_BYTES..=IO_BYTES_MAX).contains(&args.io_size),
        "--io-size {}: a multiple of {BLOCK_BYTES} bytes up to {} is possible",
        args.io_size,
        units::bytes(IO_BYTES_MAX)
    );
    match args.path {
        Some(path) => by_path(args, path),
        None => {
            let of_paths = args.route != RouteName::Auto || args.faults.is_some();
            ensure!(
                !of_paths,
                "--route {} and --faults belong to a path: name one, such as --path ring",
                args.route.name()
            );
            load_bulk::run(args)
        }
    }
}

/// Loads by a path of the engine's table.
fn by_path(args: &LoadArgs, path: PathName) -> Result<ExitCode> {
    check_route(args.route, path, OpName::Read)?;
    let data = Data::open(&args.file)?;
    let ios = data.bytes().div_ceil(args.io_size);
    let faults = args.faults.as_deref().map(|text| faults::parse(text, ios)).transpose()?;
    let gpu = paths::open_gpu(&args.limits)?;
    check_room(Some(&gpu), data.bytes())
        .with_context(|| format!("loading {}", args.file.display()))?;
    let options = options(args, path, faults, &data)?;
    let mut runner = paths::open(&options, &data, &gpu, None)
        .with_context(|| format!("loading {} by path {}", args.file.display(), path.name()))?;
    let loaded = load(args, path, &data, options.block_bytes(), runner.as_mut())?;
    if interrupt::asked() {
        tell!("interrupted: {} was not loaded whole", args.file.display());
        return Ok(ExitCode::from(interrupt::INTERRUPTED));
    }
    report(args, &loaded)?;
    if args.faults.is_some() && loaded.faults_injected == 0 {
        tell!("no fault struck: {} I/Os were not enough for --faults", loaded.ios);
    }
    if loaded.errors > 0 {
        tell!(
            "loading {}: {} of {} I/Os ended with an error; the checksum is of what is there",
            args.file.display(),
            loaded.errors,
            loaded.ios
        );
        return Ok(ExitCode::from(NOT_CLEAN));
    }
    Ok(ExitCode::SUCCESS)
}

fn options(
    args: &LoadArgs,
    path: PathName,
    faults: Option<FaultScript>,
    data: &Data,
) -> Result<PathOptions> {
    let room = data.bytes().next_multiple_of(BLOCK_BYTES);
    let io_bytes = u32::try_from(args.io_size.min(room)).context("--io-size")?;
    let (queues, depth) = match path {
        PathName::Posix => (args.depth, 1),
        // Twice the lanes, rounded up to what a ring's depth can be.
        PathName::Bam | PathName::Copilot | PathName::Ring => {
            (1, (args.depth.div_ceil(32) * 64).next_power_of_two())
        }
        PathName::Nvme | PathName::Uring => (1, args.depth),
    };
    Ok(PathOptions {
        path,
        op: OpName::Read,
        drive: Drive::Auto,
        timing: TimingModel::default(),
        // A last piece of odd length cannot go past the page cache.
        cache: if data.bytes().is_multiple_of(4096) { Cache::Auto } else { Cache::Cached },
        memory: Memory::Device,
        route: args.route,
        queues,
        depth,
        sms: args.depth.div_ceil(32 * 8),
        warps: args.depth.div_ceil(32).min(8),
        batch: 1,
        storage_depth: 256,
        queue_memory: queue_memory(path, None, None),
        second_read: false,
        wait: WaitMode::Word,
        few_lanes: None,
        device: None,
        io_bytes,
        destination_bytes: usize::try_from(room).context("the file is larger than memory")?,
        limit: std::time::Duration::from_millis(u64::from(args.limit_ms)),
        side_cores: args.side_cores,
        limits: args.limits.clone(),
        several: DrivesArgs::ONE,
        faults,
        // Commands of lanes go past whatever is in front of the storage.
        faults_at: if path.has_lane_queues() { FaultsAt::Drive } else { FaultsAt::Storage },
    })
}

/// Loads part after part: whole I/Os first, then a shorter last one.
fn load(
    args: &LoadArgs,
    path: PathName,
    data: &Data,
    block_bytes: u64,
    runner: &mut dyn Runner,
) -> Result<Loaded> {
    let bytes = data.bytes();
    let whole = bytes / args.io_size * args.io_size;
    let part = (PART_BYTES / args.io_size).max(1) * args.io_size;
    let mut progress = Progress::new(bytes);
    let (mut ios, mut errors, mut seconds) = (0, 0, 0.0);
    let mut at = 0;
    while at < bytes && !interrupt::asked() {
        let (end, io_bytes) = if at < whole {
            ((at + part).min(whole), args.io_size)
        } else {
            (bytes, (bytes - at).next_multiple_of(block_bytes))
        };
        let round = Arc::new(sequential(at, end, io_bytes)?);
        let outcome = runner.run(&round)?;
        data.check_unchanged()?;
        ios += outcome.results.len() as u64;
        let failed = outcome.results.iter().filter(|r| r.status != abi::status::SUCCESS);
        errors += failed.count() as u64;
        seconds += outcome.seconds;
        at = end;
        progress.show(at, "loading");
    }
    let what = runner.describe();
    Ok(Loaded {
        file: data.path().display().to_string(),
        bytes,
        path: path.name(),
        route: what.route,
        gpu: what.gpu,
        drive: what.drive,
        io_bytes: args.io_size,
        ios,
        errors,
        seconds,
        bytes_per_s: bytes as f64 / seconds.max(1e-9),
        faults_injected: runner.bill().faults_injected,
        sha256: checksum(runner, bytes)?,
    })
}

fn sequential(first: u64, end: u64, io_bytes: u64) -> Result<Round> {
    let plan: Vec<BenchIo> = (first..end)
        .step_by(usize::try_from(io_bytes).context("an I/O of no size")?)
        .map(|source_offset| BenchIo { source_offset, opcode: u32::from(OP_READ), generation: 0 })
        .collect();
    Ok(Round {
        slots: plan.len(),
        plan,
        edges: Vec::new(),
        io_bytes: u32::try_from(io_bytes).context("--io-size")?,
        base: usize::try_from(first).context("the file is larger than memory")?,
        on_device: false,
        asleep: false,
    })
}

/// SHA-256 of the destination, read back through the copy engine.
fn checksum(runner: &mut dyn Runner, bytes: u64) -> Result<String> {
    let mut digest = Sha256::new();
    let mut piece = vec![0; 1 << 20];
    let mut at = 0;
    while at < bytes {
        let len = usize::try_from(bytes - at).map_or(piece.len(), |left| left.min(piece.len()));
        let offset = usize::try_from(at).context("the file is larger than memory")?;
        runner.destination().read(offset, &mut piece[..len])?;
        digest.update(&piece[..len]);
        at += len as u64;
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn report(args: &LoadArgs, loaded: &Loaded) -> Result<()> {
    if args.json {
        print(&serde_json::to_string(loaded)?)?;
        return Ok(());
    }
    print(&format!("file    {} ({} bytes)", loaded.file, units::thousands(loaded.bytes)))?;
    print(&format!(
        "path    {}, route {}, {} I/Os",
        loaded.path,
        loaded.route,
        units::thousands(loaded.ios)
    ))?;
    print(&format!("gpu     {}", loaded.gpu))?;
    print(&format!("drive   {}", loaded.drive))?;
    print(&format!("rate    {} ({:.3} s)", units::rate(loaded.bytes_per_s), loaded.seconds))?;
    if loaded.faults_injected > 0 {
        print(&format!("faults  {} injected", units::thousands(loaded.faults_injected)))?;
    }
    print(&format!("sha256  {}", loaded.sha256))?;
    if loaded.gpu.starts_with("simulated") {
        print("The GPU is simulated: the rate is the simulator's, not a GPU's.")?;
    }
    Ok(())
}
