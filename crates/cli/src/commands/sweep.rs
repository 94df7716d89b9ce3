//! `sidecore bench sweep`: bam, copilot and ring over SM counts, on one software drive.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use crate::args::{PathName, QueueMemory, Setting, SweepArgs, published_memory};
use crate::bench::compare::{self, Cell, Comparison, Shape, check_matched, spare_cpus};
use crate::bench::settings::queue_memory;
use crate::commands::verdict;
use crate::interrupt;
use crate::printer::{print, tell};
use crate::report::{
    ReportFile, Row, artifact_csv, artifact_name, artifact_plot, comparison, standing,
};

/// Runs it.
///
/// # Errors
/// Systems that are not matched, bad options, files that cannot be written, a path that broke.
pub fn run(args: &SweepArgs) -> Result<ExitCode> {
    let paths = paths(&args.path, PathName::has_lanes)?;
    let cells = cells(args, &paths)?;
    compare::check(&args.compare, &cells)?;
    let files = check_files(args, &paths)?;
    let mut comparison = Comparison::open(&args.compare, &cells)?;
    let rows = comparison.run(&cells, |row| match args.compare.json {
        true => print(&serde_json::to_string(row)?),
        false => Ok(()),
    })?;
    if !args.compare.json {
        print(&format!(
            "{}.\nOne drive, one timing model and the same device cores for all rows: {}; GPU: {}.\n{}",
            standing(&comparison.gpu_name()),
            comparison.drive_name(),
            comparison.gpu_name(),
            comparison.caveats().join("\n")
        ))?;
        for setting in &args.table {
            print(&format!("\n{}", heading(*setting)))?;
            print(&self::comparison_of(&rows, *setting))?;
        }
    }
    if interrupt::asked() {
        tell!("interrupted: {} of {} rows", rows.len(), cells.len());
        return Ok(ExitCode::from(interrupt::INTERRUPTED));
    }
    for file in &files {
        file.write(args, &paths, &rows)?;
    }
    Ok(verdict(&rows))
}

/// The systems asked for, each once, in the order of all tables.
///
/// # Errors
/// One that has no place in such a comparison.
pub fn paths(named: &[PathName], fits: fn(PathName) -> bool) -> Result<Vec<PathName>> {
    if let Some(path) = named.iter().find(|path| !fits(**path)) {
        let fitting: Vec<&str> =
            PathName::ALL.into_iter().filter(|path| fits(*path)).map(PathName::name).collect();
        anyhow::bail!("--path {}: only {} can be compared here", path.name(), fitting.join(", "));
    }
    let mut paths = named.to_vec();
    paths.sort();
    paths.dedup();
    Ok(paths)
}

fn comparison_of(rows: &[Row], setting: Setting) -> String {
    comparison(&rows_of(rows, setting))
}

fn rows_of(rows: &[Row], setting: Setting) -> Vec<Row> {
    rows.iter().filter(|row| row.setting == setting.name()).cloned().collect()
}

fn heading(setting: Setting) -> &'static str {
    match setting {
        Setting::Matched => {
            "matched: the same warps, batch, in flight, queues, depth and host cores; bam leaves its \
             cores unused"
        }
        Setting::Published => {
            "published: bam with 32 warps an SM, 128 queue pairs of 1024 in device memory, and its \
             second read; copilot as its artifact's run.sh has it, 1 warp an SM, asynchronous, batch \
             8 at 24 SMs and else 1, 128 queue pairs of 4096 in host memory, and 64 agents of two \
             pairs each, however few CPUs there are, but without real-time priority; ring with this \
             program's defaults"
        }
    }
}

fn cells(args: &SweepArgs, paths: &[PathName]) -> Result<Vec<Cell>> {
    ensure!(!args.table.is_empty(), "--table: name at least one");
    let mut cells = Vec::new();
    for setting in &args.table {
        let shapes: Vec<(PathName, Shape)> =
            paths.iter().map(|path| (*path, Shape::of(&args.shape, &args.set, *path))).collect();
        if *setting == Setting::Matched {
            check_matched(&shapes, &args.sms)?;
        }
        for &sms in &args.sms {
            for &(path, shape) in &shapes {
                cells.push(match setting {
                    Setting::Matched => matched(path, sms, shape),
                    Setting::Published => published(path, sms, args.shape.host_cores),
                });
            }
        }
    }
    Ok(cells)
}

fn matched(path: PathName, sms: u32, shape: Shape) -> Cell {
    Cell {
        path,
        sms,
        shape,
        memory: queue_memory(path, None, None),
        second_read: false,
        deep_storage: true,
        setting: Setting::Matched.name(),
    }
}

/// Threads that poll in CoPilotIO's artifact, at most: each has its share of the queue pairs, side by side.
const PUBLISHED_AGENTS: u32 = 64;

/// Each system as its authors ran it. Source: BaM's 128 queue pairs of 1024; CoPilotIO's artifact,
/// microbenchmark/run.sh and the defaults of its programs.
fn published(path: PathName, sms: u32, host_cores: Option<u32>) -> Cell {
    let own = if path == PathName::Copilot { PUBLISHED_AGENTS } else { spare_cpus() };
    let host_cores = host_cores.unwrap_or(own);
    let shape = match path {
        PathName::Bam => Shape { warps: 32, batch: 1, queues: 128, depth: 1024, host_cores },
        PathName::Copilot => {
            let batch = if sms == 24 { 8 } else { 1 };
            Shape { warps: 1, batch, queues: 128, depth: 4096, host_cores }
        }
        _ => Shape { warps: 8, batch: 1, queues: 1, depth: 1024, host_cores },
    };
    let memory: (QueueMemory, QueueMemory) = published_memory(path);
    Cell {
        path,
        sms,
        shape,
        memory,
        second_read: path == PathName::Bam,
        deep_storage: false,
        setting: Setting::Published.name(),
    }
}

/// A file to be written at the end.
struct Output {
    file: ReportFile,
    setting: Setting,
    /// The system of a CSV; all, for a plot.
    path: Option<PathName>,
}

impl Output {
    fn write(&self, args: &SweepArgs, paths: &[PathName], rows: &[Row]) -> Result<()> {
        let rows = rows_of(rows, self.setting);
        self.file.write(&match self.path {
            Some(path) => artifact_csv(&rows, path),
            None => artifact_plot(&rows, paths, &args.sms, self.setting.name()),
        })
    }
}

/// Makes the folders and checks that all files can be written.
fn check_files(args: &SweepArgs, paths: &[PathName]) -> Result<Vec<Output>> {
    let Some(out) = &args.out else { return Ok(Vec::new()) };
    let op = args.compare.op.name();
    let mut files = Vec::new();
    for &setting in &args.table {
        let folder = out.join(setting.name());
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("--out: making {}", folder.display()))?;
        let check = |path: PathBuf| ReportFile::check(&path, args.compare.overwrite, false);
        for &path in paths {
            let file = check(csv_path(&folder, path, op))?;
            files.push(Output { file, setting, path: Some(path) });
        }
        files.push(Output {
            file: check(folder.join(format!("{op}_bw.svg")))?,
            setting,
            path: None,
        });
    }
    Ok(files)
}

fn csv_path(folder: &Path, path: PathName, op: &str) -> PathBuf {
    folder.join(format!("results_{}_{op}_bw.csv", artifact_name(path).0))
}
