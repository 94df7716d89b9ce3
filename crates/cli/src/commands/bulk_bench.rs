//! `sidecore bench bulk` and `bench rows`: bulk transfers by several peers, in turns.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

mod opening;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::args::{BulkBenchArgs, PeerSpec, Work};
use crate::bench::bulk::{Files, Remote, Task, serve};
use crate::bench::data::write_pattern;
use crate::commands::engine::check_room;
use crate::printer::{Progress, print};
use crate::{interrupt, units};

/// Peers that are part of this command; others are the script's.
const OWN: [&str; 4] = ["ours", "plain", "posix", "ceiling"];

/// One peer's results.
#[derive(Debug, Serialize)]
struct Row {
    work: &'static str,
    peer: String,
    gpu: String,
    bytes: u64,
    count: u64,
    each: u64,
    cold: bool,
    repeats: usize,
    /// Medians.
    seconds: f64,
    bytes_per_s: f64,
    cpu_seconds: f64,
    /// Of all repeats, in order.
    all_seconds: Vec<f64>,
    all_cpu_seconds: Vec<f64>,
    pinned_bytes: u64,
    /// Why there are no results.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_measured: Option<String>,
}

/// What is removed at the end.
type Made = Option<Box<dyn std::any::Any>>;

/// Runs it.
///
/// # Errors
/// Bad options, no room for files.
pub fn run(args: &BulkBenchArgs, otherwise: Work) -> Result<ExitCode> {
    if args.opening {
        return opening::run(args);
    }
    let work = args.work.unwrap_or(otherwise);
    let each = args.each.unwrap_or(if work == Work::Files { 16 << 10 } else { 4 << 10 });
    ensure!(each > 0 && each <= 4 << 20, "--each: 1 byte to 4 MiB");
    if let Some(spec) = &args.be {
        let path = args.file.clone().context("--be goes with --file")?;
        let files = if path.is_dir() { Files::Many(path) } else { Files::One(path) };
        let task = Task { work, files, count: args.count, each, cold: args.cold };
        serve(spec, &task, &args.limits)?;
        return Ok(ExitCode::SUCCESS);
    }
    check(args, work, each)?;
    let (path, _made) = files(args, work, each)?;
    let mut rows: Vec<Row> = Vec::new();
    let mut remotes = Vec::new();
    for spec in &args.peers {
        let mut row = empty(args, work, each, spec);
        match Remote::start(&mut command(args, work, each, &path, spec)?) {
            Ok(remote) => {
                row.gpu.clone_from(&remote.what);
                remotes.push(Some(remote));
            }
            Err(error) => {
                row.not_measured = Some(format!("{error:#}"));
                remotes.push(None);
            }
        }
        rows.push(row);
    }
    let turns = args.repeats as usize + 1;
    let mut progress = Progress::new(turns as u64);
    for turn in 0..turns {
        for (row, remote) in rows.iter_mut().zip(&mut remotes) {
            let Some(open) = remote else { continue };
            if interrupt::asked() {
                return Ok(ExitCode::from(interrupt::INTERRUPTED));
            }
            match open.repeat() {
                Ok((repeat, cpu)) => {
                    row.bytes = repeat.bytes;
                    row.pinned_bytes = row.pinned_bytes.max(repeat.pinned_bytes);
                    // The first one warms up, and is checked byte by byte.
                    if turn > 0 {
                        row.all_seconds.push(repeat.seconds);
                        row.all_cpu_seconds.push(cpu);
                    }
                }
                Err(_) if interrupt::asked() => {
                    return Ok(ExitCode::from(interrupt::INTERRUPTED));
                }
                Err(error) => {
                    row.not_measured = Some(format!("{error:#}"));
                    *remote = None;
                }
            }
        }
        progress.show(turn as u64, work.name());
    }
    drop((remotes, progress));
    for row in &mut rows {
        row.finish();
    }
    report(args, &rows)?;
    let wrong = |row: &Row| row.not_measured.is_some() && OWN.contains(&name_of(&row.peer));
    let clean = !rows.iter().any(wrong);
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::from(super::NOT_CLEAN) })
}

/// Refuses options that cannot be, before anything is made or started.
fn check(args: &BulkBenchArgs, work: Work, each: u64) -> Result<()> {
    for spec in &args.peers {
        ensure!(!spec.name.is_empty(), "--with '{}': a peer has a name", spec.text);
        if OWN.contains(&spec.name.as_str()) {
            spec.check_own().map_err(anyhow::Error::msg)?;
        }
    }
    let many = matches!(work, Work::Files | Work::Rows);
    let wanted = if many { args.count.checked_mul(each) } else { Some(args.size) };
    let most = wanted.context("--count: more bytes than there can be")?;
    ensure!(!many || args.count > 0, "--count: at least 1");
    let Some(path) = &args.file else {
        ensure!(args.size > 0, "--size: at least 1 byte");
        return check_room(None, most).context("what is read");
    };
    let meta = std::fs::metadata(path).with_context(|| format!("reading {}", path.display()))?;
    let fits = if work == Work::Files { meta.is_dir() } else { meta.is_file() && meta.len() > 0 };
    let wanted =
        if work == Work::Files { "a folder of files 0, 1, 2" } else { "a file with bytes" };
    ensure!(fits, "--file {}: --work {} needs {wanted}", path.display(), work.name());
    ensure!(
        work != Work::Write || args.overwrite,
        "--file {}: --work write would change it; --overwrite allows that",
        path.display()
    );
    check_room(None, if many { most } else { meta.len() }).context("what is read")
}

fn name_of(peer: &str) -> &str {
    peer.split(':').next().unwrap_or(peer)
}

/// The files to work with.
fn files(args: &BulkBenchArgs, work: Work, each: u64) -> Result<(PathBuf, Made)> {
    if let Some(path) = &args.file {
        return Ok((path.clone(), None));
    }
    let folder = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let named = || format!("making files in {}", folder.display());
    let prefix = "sidecore-bench-";
    if work == Work::Files {
        let made = tempfile::Builder::new().prefix(prefix).tempdir_in(&folder);
        let made = made.with_context(named)?;
        interrupt::note_made(made.path());
        make_small(made.path(), args.count, each).with_context(named)?;
        return Ok((made.path().to_owned(), Some(Box::new(made))));
    }
    let made = tempfile::Builder::new().prefix(prefix).tempfile_in(&folder).with_context(named)?;
    interrupt::note_made(made.path());
    write_pattern(made.as_file(), args.size).with_context(named)?;
    made.as_file().sync_all().with_context(named)?;
    Ok((made.path().to_owned(), Some(Box::new(made))))
}

fn make_small(folder: &Path, count: u64, each: u64) -> Result<()> {
    let mut piece = vec![0; usize::try_from(each)?];
    for index in 0..count {
        ensure!(!interrupt::asked(), "not all were made");
        storage::pattern::fill(&mut piece, index * each, 1);
        std::fs::write(folder.join(index.to_string()), &piece)?;
    }
    Ok(())
}

fn command(
    args: &BulkBenchArgs,
    work: Work,
    each: u64,
    path: &Path,
    spec: &PeerSpec,
) -> Result<Command> {
    let own = OWN.contains(&spec.name.as_str());
    let mut command = if own {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "bulk", "--be", &spec.text]);
        command.args(["--gpu", &args.limits.gpu.to_string()]);
        command.args(["--pinned-max", &args.limits.pinned_max.to_string()]);
        if args.limits.no_window {
            command.arg("--no-window");
        }
        command
    } else {
        let mut command = Command::new(&args.python);
        command.arg(&args.script).args(["--be", &spec.text]);
        command
    };
    command.args(["--work", work.name(), "--file"]).arg(path);
    command.args(["--count", &args.count.to_string(), "--each", &each.to_string()]);
    if args.cold {
        command.arg("--cold");
    }
    Ok(command)
}

fn empty(args: &BulkBenchArgs, work: Work, each: u64, spec: &PeerSpec) -> Row {
    let many = matches!(work, Work::Files | Work::Rows);
    Row {
        work: work.name(),
        peer: spec.text.clone(),
        gpu: String::new(),
        bytes: 0,
        count: if many { args.count } else { 1 },
        each: if many { each } else { 0 },
        cold: args.cold,
        repeats: 0,
        seconds: 0.0,
        bytes_per_s: 0.0,
        cpu_seconds: 0.0,
        all_seconds: Vec::new(),
        all_cpu_seconds: Vec::new(),
        pinned_bytes: 0,
        not_measured: None,
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

impl Row {
    fn finish(&mut self) {
        self.repeats = self.all_seconds.len();
        self.seconds = median(&self.all_seconds);
        self.cpu_seconds = median(&self.all_cpu_seconds);
        self.bytes_per_s = self.bytes as f64 / self.seconds.max(1e-9);
        if self.repeats == 0 {
            self.bytes_per_s = 0.0;
        }
    }
}

fn report(args: &BulkBenchArgs, rows: &[Row]) -> Result<()> {
    if args.json {
        return rows.iter().try_for_each(|row| print(&serde_json::to_string(row)?));
    }
    let first = rows.first().map_or(0.0, |row| row.bytes_per_s);
    print(&format!(
        "{:<28} {:>11} {:>9} {:>9} {:>9} {:>10}",
        "peer", "rate", "seconds", "CPU s", "pinned", "first is x"
    ))?;
    for row in rows {
        if let Some(why) = &row.not_measured {
            print(&format!("{:<28} not measured: {why}", row.peer))?;
            continue;
        }
        print(&format!(
            "{:<28} {:>11} {:>9.4} {:>9.3} {:>9} {:>10.2}",
            row.peer,
            units::rate(row.bytes_per_s),
            row.seconds,
            row.cpu_seconds,
            units::bytes(row.pinned_bytes),
            first / row.bytes_per_s.max(1e-9)
        ))?;
    }
    if rows.iter().any(|row| row.gpu.starts_with("simulated")) {
        print("The GPU is simulated: copies are the CPU's, and rates are not a GPU's.")?;
    }
    Ok(())
}
