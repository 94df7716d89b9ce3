//! Rows that are comparable: one controller, one timing model, one thread that serves it, and one
//! simulated GPU for all of them; and the rule by which a table may call its rows matched.

use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use gpu::Gpu;

use crate::args::{BenchArgs, CompareArgs, Drive, Key, Override, PathName, QueueMemory, ShapeArgs};
use crate::bench::baseline::Baseline;
use crate::bench::data::Data;
use crate::bench::drive::SoftwareDrive;
use crate::bench::measure::{Course, Measurement, cpu_since};
use crate::bench::settings::Settings;
use crate::bench::{cpu, paths};
use crate::interrupt;
use crate::printer::Progress;
use crate::report::Row;
use crate::units;

/// Lanes of a warp.
const LANES: u64 = 32;
/// Bytes of GPU memory that a round fills where nobody says, with a real GPU: long enough rounds.
const REAL_DESTINATION_BYTES: u64 = 1 << 30;

/// An emulated rate above this share of the plateau says more about the emulation than about a system.
const PLATEAU_SHARE: f64 = 0.7;

/// What must be equal for rows to be matched, besides what [`Comparison`] has once for all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Warps an SM.
    pub warps: u32,
    /// I/Os that a lane has in flight.
    pub batch: u32,
    /// Queue pairs, or rings.
    pub queues: u32,
    /// Entries of each.
    pub depth: u32,
    /// CPU cores that may poll.
    pub host_cores: u32,
}

impl Shape {
    /// The shape asked for, with a system's own values.
    pub fn of(args: &ShapeArgs, own: &[Override], path: PathName) -> Self {
        let mut shape = Self {
            warps: args.warps,
            batch: args.batch,
            queues: args.queues,
            depth: args.depth,
            host_cores: args.host_cores.unwrap_or_else(spare_cpus),
        };
        for own in own.iter().filter(|own| own.path == path) {
            match own.key {
                Key::Warps => shape.warps = own.value,
                Key::Batch => shape.batch = own.value,
                Key::Queues => shape.queues = own.value,
                Key::Depth => shape.depth = own.value,
                Key::HostCores => shape.host_cores = own.value,
            }
        }
        shape
    }

    /// I/Os that can be in flight together at so many SMs. Block `b` uses queue `b % queues`; a
    /// submission queue holds one entry less than it has, a ring as many.
    pub fn in_flight(&self, path: PathName, sms: u32) -> u64 {
        let room = u64::from(self.depth) - u64::from(path.has_lane_queues());
        let block = u64::from(self.warps) * LANES * u64::from(self.batch);
        let (sms, queues) = (u64::from(sms), u64::from(self.queues));
        (0..queues.min(sms)).map(|queue| ((sms - queue).div_ceil(queues) * block).min(room)).sum()
    }
}

/// The CPUs of this process less one, at least 1.
pub fn spare_cpus() -> u32 {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u32::try_from(cpus).unwrap_or(u32::MAX).saturating_sub(1).max(1)
}

/// One value of a shape.
type Value = fn(&Shape) -> u32;

/// Refuses to call systems matched that are not.
///
/// # Errors
/// They differ; the text says in what, and each one's value.
pub fn check_matched(systems: &[(PathName, Shape)], sms: &[u32]) -> Result<()> {
    let keys: [(&str, Value); 5] = [
        ("warps", |shape| shape.warps),
        ("batch", |shape| shape.batch),
        ("queues", |shape| shape.queues),
        ("depth", |shape| shape.depth),
        ("host cores", |shape| shape.host_cores),
    ];
    let mut differences = Vec::new();
    for (name, key) in keys {
        let values = systems.iter().map(|(path, shape)| (*path, u64::from(key(shape))));
        differences.extend(difference(name, values.collect()));
    }
    if differences.is_empty() {
        for &sms in sms {
            let values = systems.iter().map(|(path, shape)| (*path, shape.in_flight(*path, sms)));
            let name = format!("in flight at {sms} SMs");
            if let Some(text) = difference(&name, values.collect()) {
                differences.push(format!("{text} (raise --depth or --queues)"));
                break;
            }
        }
    }
    ensure!(
        differences.is_empty(),
        "the matched table is refused: {}; make them equal, or ask for --table published",
        differences.join("; ")
    );
    Ok(())
}

fn difference(name: &str, values: Vec<(PathName, u64)>) -> Option<String> {
    let (_, first) = values.first()?;
    values.iter().any(|(_, value)| value != first).then(|| {
        let each: Vec<String> =
            values.iter().map(|(path, value)| format!("{} {value}", path.name())).collect();
        format!("{name} differ: {}", each.join(", "))
    })
}

/// One row to come.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The system.
    pub path: PathName,
    /// Blocks of the kernel.
    pub sms: u32,
    /// All else of its size.
    pub shape: Shape,
    /// Where its submission and completion queues lie, if it has any.
    pub memory: (QueueMemory, QueueMemory),
    /// Whether each read is followed by one of a block.
    pub second_read: bool,
    /// Whether a ring may have as much in flight at the drive as a queue pair of lanes.
    pub deep_storage: bool,
    /// Which table it is of; empty where there is but one.
    pub setting: &'static str,
}

/// Checks the options of all rows, before anything is made.
///
/// # Errors
/// A row that cannot be.
pub fn check(args: &CompareArgs, cells: &[Cell]) -> Result<()> {
    cells.iter().try_for_each(|cell| settings(args, cell).map(drop))
}

/// Data, GPU and drive of a comparison.
pub struct Comparison {
    // The drive goes after what uses it, and before its data.
    drive: Rc<SoftwareDrive>,
    gpu: Arc<dyn Gpu>,
    data: Data,
    args: CompareArgs,
    baseline: Baseline,
    progress: Progress,
    done: u64,
}

impl Comparison {
    /// Checks all cells, then makes data and drive.
    ///
    /// # Errors
    /// Bad options, no room, a drive that does not start.
    pub fn open(args: &CompareArgs, cells: &[Cell]) -> Result<Self> {
        check(args, cells)?;
        let baseline = Baseline::load(args.baseline.as_deref())?;
        let first = settings(args, cells.first().context("nothing to compare")?)?;
        let queues = cells.iter().map(|cell| cell.shape.queues).max().unwrap_or(1);
        let data = Data::make(&first.directory, first.data_bytes)?;
        let options = first.path_options(&first.points[0]).source_options();
        let gpu = paths::open_gpu(&args.limits)?;
        let drive = SoftwareDrive::open(&options.drive(queues), &data, &gpu)?;
        let progress = Progress::new(cells.len() as u64 * u64::from(args.repeats));
        let mut args = args.clone();
        if !gpu.describe().simulated {
            args.destination = args.destination.or(Some(REAL_DESTINATION_BYTES));
        }
        Ok(Self { drive, gpu, data, args, baseline, progress, done: 0 })
    }

    /// Measures all rows, one repeat of each in turn, so that what changes on the machine meanwhile falls
    /// on all of them. `ended` is told of each row when it is over. Ends early when asked to, with the
    /// rows that have at least one repeat.
    ///
    /// # Errors
    /// A path cannot be opened, or broke.
    pub fn run(
        &mut self,
        cells: &[Cell],
        mut ended: impl FnMut(&Row) -> Result<()>,
    ) -> Result<Vec<Row>> {
        let settings: Vec<Settings> =
            cells.iter().map(|cell| settings(&self.args, cell)).collect::<Result<_>>()?;
        let mut courses: Vec<(Option<Course>, f64)> = cells.iter().map(|_| (None, 0.0)).collect();
        let mut rows = Vec::new();
        for repeat in 1..=self.args.repeats {
            for ((cell, settings), (course, cpu_s)) in cells.iter().zip(&settings).zip(&mut courses)
            {
                if interrupt::asked() {
                    break;
                }
                let before = cpu::process_seconds();
                *course = Some(self.turn(cell, settings, course.take())?);
                *cpu_s += cpu_since(before);
                if repeat == self.args.repeats
                    && let Some(course) = course.take()
                {
                    rows.push(self.row(cell, settings, course, *cpu_s));
                    ended(&rows[rows.len() - 1])?;
                }
            }
        }
        // Of an interrupted run: those that were not complete.
        let begun = cells.iter().zip(&settings).zip(courses);
        for ((cell, settings), (course, cpu_s)) in begun {
            if let Some(course) = course {
                rows.push(self.row(cell, settings, course, cpu_s));
                ended(&rows[rows.len() - 1])?;
            }
        }
        Ok(rows)
    }

    /// One repeat of a row.
    fn turn(&mut self, cell: &Cell, settings: &Settings, course: Option<Course>) -> Result<Course> {
        let named = || format!("path {} at {} SMs", cell.path.name(), cell.sms);
        let point = &settings.points[0];
        let mut options = settings.path_options(point);
        if cell.deep_storage {
            options.storage_depth = cell.shape.depth - 1;
        }
        let mut measurement = match course {
            Some(course) => Measurement::resume(settings, point, &mut self.data, course),
            None => Measurement::new(settings, point, &mut self.data)?,
        };
        let mut runner = paths::open(&options, measurement.data(), &self.gpu, Some(&self.drive))
            .with_context(named)?;
        measurement.turn(runner.as_mut(), &mut self.progress, self.done).with_context(named)?;
        self.done += 1;
        Ok(measurement.pause())
    }

    fn row(&mut self, cell: &Cell, settings: &Settings, course: Course, cpu_s: f64) -> Row {
        let point = &settings.points[0];
        let mut row = Measurement::resume(settings, point, &mut self.data, course).finish();
        row.close_bill(cpu_s);
        row.setting = cell.setting.to_owned();
        row.baseline = self.baseline.words(&row.gpu).to_owned();
        row.plateau_iops = self.baseline.plateau(&row.gpu).map_or(0.0, |(iops, _)| iops);
        row
    }

    /// The drive, for words about it.
    pub fn drive_name(&self) -> &str {
        self.drive.name()
    }

    /// What must stand beside rows: the baseline, and how the drive's rate compares with what it can do.
    pub fn caveats(&self) -> Vec<String> {
        let gpu = self.gpu_name();
        let mut words = vec![match self.baseline.words(&gpu) {
            invalid if invalid.starts_with("invalid") => format!("baseline {invalid}"),
            other => format!("baseline: {other}"),
        }];
        let rate = self.args.drive_iops as f64;
        words.push(match self.baseline.plateau(&gpu) {
            Some((plateau, by)) if rate > 0.0 => {
                let share = rate / plateau.max(1.0);
                let void = if share > PLATEAU_SHARE { ": too near to it, these rows are void" } else { "" };
                format!(
                    "emulated rate: {} I/Os a second, {share:.2} of the plateau of {} (measured with \
                     {by}){void}",
                    units::count(rate),
                    units::count(plateau)
                )
            }
            Some((plateau, by)) => {
                format!("emulated rate: no limit; plateau {} with {by}", units::count(plateau))
            }
            None => "emulated rate: what the drive can do at most was not measured".to_owned(),
        });
        words
    }

    /// The GPU, for words about it.
    pub fn gpu_name(&self) -> String {
        self.gpu.describe().name
    }
}

/// The settings of one row, as if it had been asked for alone.
fn settings(args: &CompareArgs, cell: &Cell) -> Result<Settings> {
    let lane_queues = cell.path.has_lane_queues();
    let shape = cell.shape;
    Settings::new(BenchArgs {
        path: vec![cell.path],
        size: args.size,
        dir: args.dir.clone(),
        io_size: vec![args.io_size],
        op: args.op,
        sms: vec![cell.sms],
        warps: Some(shape.warps),
        batch: shape.batch,
        queues: Some(shape.queues),
        depth: vec![shape.depth],
        side_cores: Some(shape.host_cores),
        sq: lane_queues.then_some(cell.memory.0),
        cq: lane_queues.then_some(cell.memory.1),
        second_read: cell.second_read,
        duration: Some(args.duration),
        ios: args.ios,
        drive: Drive::Software,
        drive_iops: (args.drive_iops > 0).then_some(args.drive_iops),
        drive_bandwidth: args.drive_bandwidth,
        drive_latency: Some(args.drive_latency.clone()),
        limit_ms: args.limit_ms,
        verify: args.verify,
        destination: args.destination,
        repeats: args.repeats,
        seed: args.seed,
        json: args.json,
        overwrite: args.overwrite,
        several: args.several.clone(),
        limits: args.limits.clone(),
        ..BenchArgs::defaults()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { warps: 2, batch: 1, queues: 8, depth: 1024, host_cores: 1 };

    #[test]
    fn equals_are_matched() {
        let systems = PathName::ALL[3..].iter().map(|path| (*path, SHAPE)).collect::<Vec<_>>();
        check_matched(&systems, &[1, 2, 4, 8, 12, 24, 48, 96]).unwrap();
    }

    /// Each key alone makes the table refuse, and its message names key and values.
    #[test]
    fn any_difference_is_refused_and_named() {
        let others = [
            ("warps", Shape { warps: 4, ..SHAPE }),
            ("batch", Shape { batch: 3, ..SHAPE }),
            ("queues", Shape { queues: 128, ..SHAPE }),
            ("depth", Shape { depth: 4096, ..SHAPE }),
            ("host cores", Shape { host_cores: 2, ..SHAPE }),
        ];
        for (name, other) in others {
            let systems = [(PathName::Bam, SHAPE), (PathName::Ring, other)];
            let error = check_matched(&systems, &[1]).unwrap_err().to_string();
            assert!(error.contains(&format!("{name} differ: bam ")), "{error}");
            assert_eq!(error.matches("differ").count(), 1, "{error}");
        }
    }

    #[test]
    fn what_can_be_in_flight_counts_too() {
        let shape = Shape { queues: 1, depth: 64, ..SHAPE };
        let systems = [(PathName::Bam, shape), (PathName::Ring, shape)];
        let error = check_matched(&systems, &[1, 4]).unwrap_err().to_string();
        assert!(error.contains("in flight at 1 SMs differ: bam 63, ring 64"), "{error}");
        assert_eq!(SHAPE.in_flight(PathName::Bam, 1), 64);
        assert_eq!(SHAPE.in_flight(PathName::Bam, 12), 12 * 64);
        let deep = Shape { batch: 8, ..SHAPE };
        assert_eq!(deep.in_flight(PathName::Ring, 96), 8 * 1024);
        assert_eq!(deep.in_flight(PathName::Bam, 10), 2 * 1023 + 6 * 512);
    }
}
