//! `sidecore bench`: every path there is, under the same conditions, with its bill.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use gpu::{Choice, Gpu};

use crate::args::{BenchArgs, Memory, OpName};
use crate::bench::data::Data;
use crate::bench::measure::{Measurement, cpu_since};
use crate::bench::settings::{Point, Settings, has_drive_model};
use crate::bench::{cpu, machine, paths, uring};
use crate::commands::verdict;
use crate::printer::{Progress, print, tell};
use crate::report::{Context, ReportFile, Row, default_files, details, html, table};
use crate::{interrupt, units};

/// The report files of a run.
struct Reports {
    csv: Option<ReportFile>,
    html: Option<ReportFile>,
}

/// Runs it.
///
/// # Errors
/// Bad options, files that cannot be used, a path that broke.
pub fn run(args: BenchArgs) -> Result<ExitCode> {
    let mut settings = Settings::new(args)?;
    let reports = check_reports(&settings.args)?;
    let started = Instant::now();
    let gpu = open_gpu(&settings.args)?;
    if let (true, Some(_)) = (settings.args.path.is_empty(), gpu.describe().no_window) {
        tell!("left out: bam and copilot, whose drive stores payload through the window");
        settings.points.retain(|point| !point.path.has_lane_queues());
    }
    let mut data = open_data(&settings)?;
    let mut progress =
        Progress::new(settings.points.len() as u64 * u64::from(settings.args.repeats));
    // What is spent before the first row is everybody's: each row is charged an equal share.
    let share = cpu::process_seconds() / settings.points.len().max(1) as f64;
    let mut one = |index: usize, point: &Point| -> Result<Row> {
        let before = cpu::process_seconds();
        let measurement = Measurement::new(&settings, point, &mut data)?;
        let options = settings.path_options(point);
        let mut runner = paths::open(&options, measurement.data(), &gpu, None)?;
        let done = index as u64 * u64::from(settings.args.repeats);
        let mut row = measurement.run(runner.as_mut(), &mut progress, done)?;
        drop(runner);
        row.close_bill(cpu_since(before) + share);
        if settings.args.json {
            print(&serde_json::to_string(&row)?)?;
        }
        Ok(row)
    };
    let mut rows = Vec::new();
    let mut broken = None;
    for (index, point) in settings.points.iter().enumerate() {
        if interrupt::asked() {
            break;
        }
        match one(index, point) {
            Ok(row) => rows.push(row),
            // The rows before it are still worth seeing.
            Err(error) => {
                broken = Some(error.context(format!("path {}", point.path.name())));
                break;
            }
        }
    }
    drop(progress);
    let context = context(&settings, &data, &rows, started);
    drop(data);
    match broken {
        None => finish(&settings, &reports, &rows, &context),
        Some(error) => {
            if !rows.is_empty() {
                show(&settings, &rows, &context)?;
            }
            Err(error)
        }
    }
}

/// The GPU of the rows. Payload that ends in host memory meets none: there is nothing to look for then,
/// nor to say of it.
fn open_gpu(args: &BenchArgs) -> Result<Arc<dyn Gpu>> {
    if args.memory == Memory::Host && args.limits.gpu == Choice::Auto {
        return paths::open_choice(Choice::Simulated, true);
    }
    paths::open_gpu(&args.limits)
}

fn check_reports(args: &BenchArgs) -> Result<Reports> {
    let named = |path: &Option<std::path::PathBuf>| {
        path.as_deref().map(|path| ReportFile::check(path, args.overwrite, false)).transpose()
    };
    if args.csv.is_some() || args.html.is_some() || args.json {
        return Ok(Reports { csv: named(&args.csv)?, html: named(&args.html)? });
    }
    let (csv, html) = default_files();
    Ok(Reports {
        csv: Some(ReportFile::check(&csv, args.overwrite, true)?),
        html: Some(ReportFile::check(&html, args.overwrite, true)?),
    })
}

fn open_data(settings: &Settings) -> Result<Data> {
    match &settings.args.file {
        Some(path) if settings.args.op == OpName::Read => Data::open(path),
        Some(path) => Data::open_to_overwrite(path),
        None => Data::make(&settings.directory, settings.data_bytes),
    }
}

/// Prints the rows, and what was emulated in them.
fn show(settings: &Settings, rows: &[Row], context: &Context) -> Result<()> {
    if !settings.args.json {
        for sentence in &context.emulated {
            print(sentence)?;
        }
        print(&format!("{}\n\n{}", table(rows), details(rows)))?;
        for (name, value) in context.facts.iter().filter(|(name, _)| name == "data") {
            print(&format!("{name}: {value}"))?;
        }
    } else if let Some(sentence) = left_out(settings) {
        tell!("{sentence}");
    }
    Ok(())
}

/// Prints and writes what came out.
fn finish(
    settings: &Settings,
    reports: &Reports,
    rows: &[Row],
    context: &Context,
) -> Result<ExitCode> {
    show(settings, rows, context)?;
    if interrupt::asked() {
        tell!("interrupted: {} of {} rows", rows.len(), settings.points.len());
        return Ok(ExitCode::from(interrupt::INTERRUPTED));
    }
    if let Some(file) = &reports.csv {
        file.write(&crate::report::csv(rows)?)?;
    }
    if let Some(file) = &reports.html {
        file.write(&html(rows, context))?;
    }
    let written = [&reports.csv, &reports.html].into_iter().flatten();
    let names: Vec<String> = written.map(|file| file.path().display().to_string()).collect();
    if !names.is_empty() && !settings.args.json {
        print(&format!("written: {}", names.join(", ")))?;
    }
    let faults = settings.args.faults.is_some();
    for row in rows.iter().filter(|row| faults && row.faults_injected == 0) {
        tell!("{}: no fault struck; see --faults, --op and --ios", row.path);
    }
    Ok(verdict(rows))
}

fn context(settings: &Settings, data: &Data, rows: &[Row], started: Instant) -> Context {
    let mut facts = machine::facts();
    let kind = if data.is_made() {
        "made for the run, self-describing, removed after it"
    } else {
        "given"
    };
    facts.push((
        "data".to_owned(),
        format!("{} ({}, {kind})", data.path().display(), units::bytes(data.bytes())),
    ));
    facts.push(("seed".to_owned(), settings.args.seed.to_string()));
    facts.push(("repeats".to_owned(), settings.args.repeats.to_string()));
    for row in rows {
        let fact = (format!("storage of {}", row.path), row.explain.clone());
        if !facts.contains(&fact) {
            facts.push(fact);
        }
    }
    facts.push(("whole run".to_owned(), format!("{:.1} s", started.elapsed().as_secs_f64())));
    let words = std::env::args_os().skip(1);
    let command: Vec<_> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let mut emulated = emulated(rows);
    emulated.extend(left_out(settings));
    Context { command: format!("sidecore {}", command.join(" ")), facts, emulated }
}

/// Says which path this machine does not have, where nobody named the paths.
fn left_out(settings: &Settings) -> Option<String> {
    let named = !settings.args.path.is_empty() || has_drive_model(&settings.args);
    let why = uring::missing().filter(|_| !named)?;
    Some(format!("Path uring was left out: this machine refuses io_uring ({why})."))
}

/// One sentence for each thing that was not what it stands for.
fn emulated(rows: &[Row]) -> Vec<String> {
    let mut sentences = Vec::new();
    if let Some(row) = rows.iter().find(|row| row.gpu.starts_with("simulated")) {
        sentences.push(format!(
            "The GPU is {}: rates with it are the simulator's rates, not a GPU's.",
            row.gpu
        ));
    }
    if let Some(row) = rows.iter().find(|row| row.drive.starts_with("software")) {
        sentences.push(format!(
            "The drive of path {} is {}: its rates are an emulation's, not a drive's.",
            row.path, row.drive
        ));
    }
    sentences
}
