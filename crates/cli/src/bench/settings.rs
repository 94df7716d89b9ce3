//! From options to rows: what will be run, checked before anything is made.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ctrl::TimingModel;
use storage::faults::FaultScript;

use crate::args::{
    BenchArgs, Drive, DriveLayout, FaultsAt, Memory, OpName, PathName, QueueMemory, RouteName,
    Verify, WaitMode,
};
use crate::bench::data::{self, GRANULE_BYTES};
use crate::bench::faults;
use crate::bench::paths::PathOptions;
use crate::bench::uring;
use crate::units;

/// I/O sizes when nobody names any.
const IO_BYTES: [u64; 2] = [4 << 10, 64 << 10];
/// Timed seconds of a repeat when nobody says.
const DURATION: Duration = Duration::from_millis(700);
/// SMs and warps of a kernel when nobody says.
const SMS: u32 = 4;
const WARPS: u32 = 8;
/// Staging of all rings that a shape which nobody asked for may take.
const RING_STAGING_BYTES: u64 = 128 << 20;
/// Bytes in flight of a queue whose depth nobody asked for.
const IN_FLIGHT_BYTES: u32 = 64 << 20;
/// Most requests of a ring in flight at the storage.
const STORAGE_DEPTH: u32 = 256;
/// Bytes of destination at most.
const DESTINATION_BYTES_MAX: u64 = 64 << 20;
/// Largest I/O.
const IO_BYTES_MAX: u64 = 16 << 20;

/// One row to be run.
#[derive(Clone, Debug)]
pub struct Point {
    /// The path.
    pub path: PathName,
    /// Bytes an I/O.
    pub io_bytes: u32,
    /// Queues, threads or rings.
    pub queues: u32,
    /// I/Os in flight a queue, or depth of a ring.
    pub depth: u32,
    /// Blocks of the kernel.
    pub sms: u32,
    /// Warps a block.
    pub warps: u32,
}

/// Everything that is settled before a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The options as given.
    pub args: BenchArgs,
    /// The rows.
    pub points: Vec<Point>,
    /// Bytes of the data file to make.
    pub data_bytes: u64,
    /// Where to make it.
    pub directory: PathBuf,
    /// Timed seconds of a repeat.
    pub duration: Duration,
    /// An I/O without an answer ends after this.
    pub limit: Duration,
    /// What the software drive stands for.
    pub timing: TimingModel,
    /// What answers path `ring`.
    pub drive: Drive,
}

impl Settings {
    /// Settles all options.
    ///
    /// # Errors
    /// An option, or a combination, that cannot be; the text names it.
    pub fn new(args: BenchArgs) -> Result<Self> {
        if let Some(script) = &args.faults {
            faults::parse(script, u64::MAX)?;
        }
        check_combinations(&args)?;
        let io_sizes =
            if args.io_size.is_empty() { IO_BYTES.to_vec() } else { args.io_size.clone() };
        let largest = io_sizes.iter().copied().max().unwrap_or(0);
        let data_bytes = args.size.unwrap_or_else(data::default_bytes);
        ensure!(
            args.file.is_some() || data_bytes >= largest,
            "--size {} is smaller than one I/O of {}",
            units::bytes(data_bytes),
            units::bytes(largest)
        );
        let mut points = Vec::new();
        for &io_size in &io_sizes {
            let io_bytes = check_io_size(io_size)?;
            ensure!(
                args.file.is_some() || data_bytes.is_multiple_of(io_size),
                "--size {data_bytes} is not a multiple of --io-size {io_size}"
            );
            for path in paths(&args) {
                points.extend(points_of(&args, path, io_bytes));
            }
        }
        let duration = args.duration.unwrap_or(DURATION);
        ensure!(!duration.is_zero(), "--duration must be longer than nothing");
        Ok(Self {
            points,
            timing: timing(&args)?,
            drive: match args.drive {
                Drive::Auto if has_drive_model(&args) => Drive::Software,
                drive => drive,
            },
            data_bytes,
            directory: args.dir.clone().unwrap_or_else(std::env::temp_dir),
            duration,
            limit: Duration::from_millis(u64::from(args.limit_ms)),
            args,
        })
    }

    /// Whether anything is written to the data.
    pub fn writes(&self) -> bool {
        self.args.op != OpName::Read
    }

    /// How the path of a row is opened.
    pub fn path_options(&self, point: &Point) -> PathOptions {
        let args = &self.args;
        PathOptions {
            path: point.path,
            op: args.op,
            drive: self.drive,
            timing: self.timing.clone(),
            cache: args.cache,
            memory: args.memory,
            route: args.route,
            queues: point.queues,
            depth: point.depth,
            sms: point.sms,
            warps: point.warps,
            batch: args.batch,
            storage_depth: STORAGE_DEPTH,
            queue_memory: queue_memory(point.path, args.sq, args.cq),
            second_read: args.second_read,
            wait: args.wait,
            few_lanes: args.lanes,
            device: None,
            io_bytes: point.io_bytes,
            destination_bytes: self.destination_bytes(point),
            limit: self.limit,
            side_cores: args.side_cores,
            limits: args.limits.clone(),
            several: args.several.clone(),
            faults: self.faults_of(point),
            faults_at: args.faults_at,
        }
    }

    /// What shall go wrong in a row: counted faults fall within its first round.
    fn faults_of(&self, point: &Point) -> Option<FaultScript> {
        let ios = self.destination_bytes(point) as u64 / u64::from(point.io_bytes);
        let script = self.args.faults.as_deref()?;
        Some(faults::parse(script, ios).expect("it was parsed in `new`"))
    }

    /// Bytes of destination for a row.
    pub fn destination_bytes(&self, point: &Point) -> usize {
        let io = u64::from(point.io_bytes);
        let in_flight = u64::from(point.queues) * u64::from(point.depth);
        let room = match (self.args.verify, point.path) {
            (Verify::None, path) if !path.has_lanes() => in_flight * io,
            _ => self.args.destination.unwrap_or(DESTINATION_BYTES_MAX).max(io * 4),
        };
        usize::try_from(room / io * io).expect("a destination fits into memory")
    }
}

/// The paths to run: those named, or all that the other options leave.
pub fn paths(args: &BenchArgs) -> Vec<PathName> {
    if !args.path.is_empty() {
        let mut named = args.path.clone();
        named.sort();
        named.dedup();
        return named;
    }
    PathName::ALL
        .into_iter()
        .filter(|path| match path {
            PathName::Bam | PathName::Copilot => {
                args.memory == Memory::Device && !faulty_storage(args)
            }
            PathName::Ring => args.memory == Memory::Device,
            PathName::Posix => !has_drive_model(args),
            PathName::Uring => !has_drive_model(args) && uring::missing().is_none(),
            PathName::Nvme => true,
        })
        .collect()
}

/// Whether a model of the software drive was asked for.
pub fn has_drive_model(args: &BenchArgs) -> bool {
    args.drive_iops.is_some() || args.drive_bandwidth.is_some() || args.drive_latency.is_some()
}

/// The model of the software drive, from its options.
fn timing(args: &BenchArgs) -> Result<TimingModel> {
    let mut parts = vec![format!("seed={}", args.seed)];
    parts.extend(args.drive_iops.map(|iops| format!("iops={iops}")));
    parts.extend(args.drive_bandwidth.map(|bytes| format!("bandwidth={bytes}")));
    if let Some(latency) = &args.drive_latency {
        let bare = latency.starts_with(|c: char| c.is_ascii_digit());
        let kind = if bare { "constant:" } else { "" };
        parts.push(format!("latency={kind}{latency}"));
    }
    let text = parts.join(",");
    text.parse().with_context(|| {
        "--drive-iops, --drive-bandwidth, --drive-latency: a model that cannot be".to_owned()
    })
}

fn check_io_size(io_size: u64) -> Result<u32> {
    ensure!(
        io_size >= GRANULE_BYTES && io_size.is_multiple_of(GRANULE_BYTES),
        "--io-size {io_size} is not a multiple of {GRANULE_BYTES} bytes"
    );
    ensure!(
        io_size <= IO_BYTES_MAX,
        "--io-size {io_size} is more than {}, the most that one request can carry",
        units::bytes(IO_BYTES_MAX)
    );
    u32::try_from(io_size).context("--io-size")
}

/// No file of a run may take another one's place.
fn check_files(args: &BenchArgs) -> Result<()> {
    let files = [("--file", &args.file), ("--csv", &args.csv), ("--html", &args.html)];
    // Links are followed where the file is there already; else its name is compared.
    let place = |path: &PathBuf| {
        path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.clone())
    };
    for (index, (name, path)) in files.iter().enumerate() {
        let Some(path) = path else { continue };
        let same = |(_, other): &&(&str, &Option<PathBuf>)| {
            other.as_ref().is_some_and(|other| place(other) == place(path))
        };
        if let Some((other, _)) = files[..index].iter().find(same) {
            bail!("{other} and {name} are the same file: {}", path.display());
        }
    }
    Ok(())
}

fn check_combinations(args: &BenchArgs) -> Result<()> {
    check_files(args)?;
    ensure!(
        args.batch <= abi::bench::BENCH_BATCH_MAX,
        "--batch {}: a lane has at most {} I/Os in flight",
        args.batch,
        abi::bench::BENCH_BATCH_MAX
    );
    let named = |path| args.path.contains(&path);
    if args.memory == Memory::Host {
        if let Some(path) = args.path.iter().find(|path| path.has_lanes()) {
            bail!(
                "--memory host: path {} answers GPU lanes, whose payload is in GPU memory",
                path.name()
            );
        }
        ensure!(
            args.route == RouteName::Auto,
            "--memory host: there is no route to the GPU to choose (--route {})",
            args.route.name()
        );
    }
    if has_drive_model(args) {
        ensure!(
            args.drive != Drive::File,
            "--drive file is no software drive, which a --drive-... model needs"
        );
        for path in [PathName::Posix, PathName::Uring] {
            ensure!(
                !named(path),
                "--drive-iops, --drive-bandwidth and --drive-latency shape the software drive; \
                 path {} has none",
                path.name()
            );
        }
    }
    if let (Some(path), FaultsAt::Drive) = (without_drive(args), args.faults_at) {
        bail!("--faults-at drive: path {} has no software drive here", path.name());
    }
    check_drives(args)?;
    check_verify(args)?;
    check_lane_queues(args)?;
    check_wait(args)?;
    if args.file.is_some() && args.op != OpName::Read && !args.overwrite {
        bail!(
            "--op {} would write to {}; add --overwrite to allow it",
            args.op.name(),
            args.file.as_deref().unwrap_or(std::path::Path::new("")).display()
        );
    }
    if args.file.is_some() && args.dir.is_some() {
        bail!("--dir says where to make a data file, but --file gives one");
    }
    paths(args).into_iter().try_for_each(|path| check_route(args.route, path, args.op))
}

fn check_verify(args: &BenchArgs) -> Result<()> {
    if args.verify == Verify::Device {
        ensure!(args.file.is_none(), "--verify device knows only data made for the run, no --file");
        if let Some(path) = paths(args).iter().find(|path| !path.has_lanes()) {
            bail!("--verify device: path {} has no lanes; name --path", path.name());
        }
    }
    Ok(())
}

fn check_wait(args: &BenchArgs) -> Result<()> {
    if args.wait == WaitMode::Word {
        return Ok(());
    }
    let can = |path: &PathName| matches!(path, PathName::Copilot | PathName::Ring);
    if let Some(path) = paths(args).into_iter().find(|path| !can(path)) {
        bail!("--wait agent: lanes of ring and copilot can wait so, those of {} not", path.name());
    }
    ensure!(args.batch == 1, "--wait agent: a lane has one I/O at a time, so --batch must be 1");
    Ok(())
}

/// Whether faults strike in front of the storage, where commands of lanes do not come by.
fn faulty_storage(args: &BenchArgs) -> bool {
    args.faults.is_some() && args.faults_at == FaultsAt::Storage
}

/// A path that has no software drive, if one does not.
fn without_drive(args: &BenchArgs) -> Option<PathName> {
    paths(args).into_iter().find(|path| match path {
        PathName::Nvme | PathName::Bam | PathName::Copilot => false,
        PathName::Ring => args.drive != Drive::Software && !has_drive_model(args),
        PathName::Posix | PathName::Uring => true,
    })
}

/// Refuses several drives where there are none, and where lanes would have to know how the data lies on them.
fn check_drives(args: &BenchArgs) -> Result<()> {
    if let (Some(path), 2..) = (without_drive(args), args.several.drives) {
        let name = path.name();
        bail!("--drives {}: path {name} has no software drive here", args.several.drives);
    }
    let lane_queues = paths(args).into_iter().find(|path| path.has_lane_queues());
    if let (Some(path), 2..) = (lane_queues, args.several.drives) {
        let name = path.name();
        ensure!(
            args.several.layout == DriveLayout::Replicated,
            "--layout striped: a lane of {name} has one queue pair and so one drive, which has not all \
             of the data; ask for --layout replicated"
        );
        ensure!(
            args.op == OpName::Read,
            "--drives {} --op {}: a lane of {name} writes to one drive, and the others would not have it",
            args.several.drives,
            args.op.name()
        );
    }
    Ok(())
}

fn check_lane_queues(args: &BenchArgs) -> Result<()> {
    let paths = paths(args);
    let lane_queues = paths.iter().find(|path| path.has_lane_queues());
    if let (Some(path), true) = (lane_queues, faulty_storage(args)) {
        bail!(
            "--faults in front of the storage do not strike path {}, whose commands go straight to \
             the drive; add --faults-at drive",
            path.name()
        );
    }
    for (given, option) in [(args.sq.is_some(), "--sq"), (args.cq.is_some(), "--cq")] {
        ensure!(
            !given || lane_queues.is_some(),
            "{option} places the queues of bam and copilot; neither runs here"
        );
    }
    ensure!(
        !args.second_read || paths.contains(&PathName::Bam),
        "--second-read is of path bam, which does not run here"
    );
    Ok(())
}

/// Where the submission and completion queues of lanes lie: as asked, else as the system's paper
/// has it.
pub fn queue_memory(
    path: PathName,
    sq: Option<QueueMemory>,
    cq: Option<QueueMemory>,
) -> (QueueMemory, QueueMemory) {
    let published = match path {
        PathName::Copilot => QueueMemory::Host,
        _ => QueueMemory::Device,
    };
    (sq.unwrap_or(QueueMemory::Device), cq.unwrap_or(published))
}

/// Asks the table of paths whether a path has a route for what is asked.
///
/// # Errors
/// It does not.
pub fn check_route(route: RouteName, path: PathName, op: OpName) -> Result<()> {
    let name = route.name();
    let path = sidecore::paths::find(path.name()).context("a path of the table")?;
    let has = |routes: &[sidecore::paths::Route]| routes.iter().any(|r| r.name() == name);
    let fits = match op {
        _ if route == RouteName::Auto => true,
        OpName::Read => has(path.read_routes),
        OpName::Write => has(path.write_routes),
        OpName::Mix => has(path.read_routes) || has(path.write_routes),
    };
    ensure!(fits, "--route {name} does not exist for path {} and --op {}", path.name, op.name());
    Ok(())
}

/// SMs and warps as asked for; where nobody asked, as many as staging has room for.
fn lanes_shape(args: &BenchArgs, io_bytes: u32, queues: u32, sms: u32) -> (u32, u32) {
    let lane_bytes = u64::from(io_bytes) * u64::from(args.batch) * u64::from(queues);
    let fits = |sms: u32, warps: u32| {
        u64::from(sms) * u64::from(warps) * 32 * lane_bytes <= RING_STAGING_BYTES
    };
    let wanted_sms = if sms > 0 { sms } else { SMS };
    let warps = if args.lanes.is_some() { 1 } else { WARPS };
    let mut shape = (wanted_sms, args.warps.unwrap_or(warps));
    while args.warps.is_none() && shape.1 > 1 && !fits(shape.0, shape.1) {
        shape.1 /= 2;
    }
    while sms == 0 && shape.0 > 1 && !fits(shape.0, shape.1) {
        shape.0 /= 2;
    }
    shape
}

fn points_of(args: &BenchArgs, path: PathName, io_bytes: u32) -> Vec<Point> {
    // Large I/Os: no more in flight than staging should take.
    let in_flight = (IN_FLIGHT_BYTES / io_bytes).clamp(4, 64);
    let (queues, depth) = match path {
        PathName::Posix => (32, 1),
        PathName::Uring => (1, in_flight.min(32)),
        PathName::Nvme => (1, in_flight.min(64)),
        PathName::Bam | PathName::Copilot => (4, 1024),
        PathName::Ring => (1, 1024),
    };
    let queues = args.queues.unwrap_or(queues);
    let depths = match args.depth.as_slice() {
        [] => vec![depth],
        // A thread has one system call in flight: its depth is how many threads there are.
        _ if path == PathName::Posix => vec![1],
        given => given.to_vec(),
    };
    let sms = match (args.sms.as_slice(), path) {
        (_, PathName::Posix | PathName::Uring | PathName::Nvme) => vec![0],
        ([], PathName::Bam | PathName::Copilot | PathName::Ring) => vec![0],
        (given, PathName::Bam | PathName::Copilot | PathName::Ring) => given.to_vec(),
    };
    let mut points = Vec::new();
    for &depth in &depths {
        for &sms in &sms {
            let (sms, warps) = match path {
                PathName::Ring => lanes_shape(args, io_bytes, queues, sms),
                PathName::Bam | PathName::Copilot => lanes_shape(args, io_bytes, 1, sms),
                PathName::Posix | PathName::Uring | PathName::Nvme => (0, 0),
            };
            points.push(Point { path, io_bytes, queues, depth, sms, warps });
        }
    }
    points
}
