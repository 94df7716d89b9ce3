//! `sidecore bench suite`: rows that a file lists, one repeat of each in turn, over one data file, on one
//! open GPU.
//!
//! A line of the file is a name and options of `bench`, or a name, `window` and options of that:
//!
//! ```text
//! # what is compared with each other is measured in one run
//! ceiling     window --only window-sequential --duration 200ms
//! window-4    --path ring --drive memory --sms 4 --warps 1 --batch 8 --queues 4 --side-cores 4
//! ```
//!
//! One JSON object a row and repeat comes out, with the fields of `bench --json` and the row's name and
//! repeat. Which goals they are held against is not known here.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use gpu::{DeviceMemory, Gpu};
use serde::Serialize;

use crate::args::{BenchCommand, BenchForm, SuiteArgs, WindowArgs};
use crate::bench::cpu;
use crate::bench::data::Data;
use crate::bench::measure::{Measurement, cpu_since};
use crate::bench::paths;
use crate::bench::settings::{Point, Settings};
use crate::commands::{NOT_CLEAN, window};
use crate::interrupt;
use crate::printer::{Progress, print, tell};

/// Bytes of a page of the CPU's mapping of device memory.
const PAGE_BYTES: usize = 4096;

/// What a row measures.
enum What {
    Rows(Box<Settings>),
    Ceilings(Box<WindowArgs>),
}

struct Row {
    name: String,
    what: What,
}

/// A line of output.
#[derive(Serialize)]
struct Line<'a, T> {
    row: &'a str,
    repeat: u32,
    #[serde(flatten)]
    figures: &'a T,
}

/// A line of the file, taken as a command's.
#[derive(Parser)]
#[command(name = "bench")]
struct Options {
    #[command(flatten)]
    command: BenchCommand,
}

/// Runs it.
///
/// # Errors
/// A file that cannot be understood, no data file, no GPU. A row that breaks is said and left.
pub fn run(args: &SuiteArgs) -> Result<ExitCode> {
    let rows = read(args)?;
    let gpu = paths::open_gpu(&args.limits)?;
    let directory = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let mut data = Data::make(&directory, args.size)?;
    let device = destination(&gpu, &rows)?;
    let mut suite = Suite { args, gpu, device, data: &mut data, broken: 0 };
    let started = Instant::now();
    let mut left = Vec::new();
    for repeat in 0..args.repeats {
        for row in &rows {
            let late = args.limit.is_some_and(|limit| started.elapsed() >= limit);
            if late || interrupt::asked() {
                left.push(format!("{} {repeat}", row.name));
            } else {
                suite.measure(row, repeat);
            }
        }
    }
    if !left.is_empty() {
        tell!("not measured, since the time was over: {}", left.join(", "));
    }
    Ok(if suite.broken + left.len() == 0 { ExitCode::SUCCESS } else { ExitCode::from(NOT_CLEAN) })
}

/// The rows that are wanted.
fn read(args: &SuiteArgs) -> Result<Vec<Row>> {
    let named = || format!("reading {}", args.rows.display());
    let text = std::fs::read_to_string(&args.rows).with_context(named)?;
    let mut rows = Vec::new();
    for (line, text) in text.lines().enumerate() {
        let mut words = text.split_whitespace();
        let Some(name) = words.next().filter(|name| !name.starts_with('#')) else { continue };
        let wanted = args.only.is_empty() || args.only.iter().any(|o| name.starts_with(o.as_str()));
        if wanted {
            let what = what(args, words);
            let what = what.with_context(|| format!("{}, line {}", named(), line + 1))?;
            rows.push(Row { name: name.to_owned(), what });
        }
    }
    ensure!(!rows.is_empty(), "{}: no row is wanted", named());
    Ok(rows)
}

fn what<'a>(suite: &SuiteArgs, words: impl Iterator<Item = &'a str>) -> Result<What> {
    let options = Options::try_parse_from(std::iter::once("bench").chain(words))?.command;
    match options.form {
        None => {
            let mut args = options.bench;
            args.limits.gpu = suite.limits.gpu;
            ensure!(args.file.is_none(), "all rows have one data file: no --file");
            args.size = Some(suite.size);
            args.dir.clone_from(&suite.dir);
            args.repeats = 1;
            args.duration = args.duration.or(Some(suite.duration));
            Ok(What::Rows(Box::new(Settings::new(args)?)))
        }
        Some(BenchForm::Window(args)) => Ok(What::Ceilings(Box::new(args))),
        Some(_) => bail!("a row is of bench or bench window, of no other form"),
    }
}

/// Device memory for the longest destination, which all rows of rings share.
fn destination(gpu: &Arc<dyn Gpu>, rows: &[Row]) -> Result<DeviceMemory> {
    let bytes = rows.iter().map(|row| match &row.what {
        What::Rows(settings) => {
            let points = settings.points.iter();
            points.map(|point| settings.destination_bytes(point)).max().unwrap_or(0)
        }
        What::Ceilings(_) => 0,
    });
    let bytes = bytes.max().unwrap_or(0).max(PAGE_BYTES);
    let memory = gpu.allocate_device(bytes as u64)?;
    // The first store to a page of a mapping is slow, whoever makes it.
    if let Some(window) = &memory.window {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let part = bytes.div_ceil(threads).next_multiple_of(PAGE_BYTES);
        std::thread::scope(|scope| {
            for first in (0..bytes).step_by(part) {
                scope.spawn(move || {
                    for at in (first..bytes.min(first + part)).step_by(PAGE_BYTES) {
                        window.write_bytes(at, &[0]);
                    }
                    mem::fence_payload();
                });
            }
        });
    }
    Ok(memory)
}

struct Suite<'a> {
    args: &'a SuiteArgs,
    gpu: Arc<dyn Gpu>,
    device: DeviceMemory,
    data: &'a mut Data,
    broken: usize,
}

impl Suite<'_> {
    /// Measures a row once, and says so where it broke or was not clean.
    fn measure(&mut self, row: &Row, repeat: u32) {
        let measured = match &row.what {
            What::Rows(settings) => {
                settings.points.iter().try_for_each(|p| self.point(row, settings, p, repeat))
            }
            What::Ceilings(args) => window::measure(&*self.gpu, args, &mut |ceiling| {
                show(&Line { row: &row.name, repeat, figures: ceiling })
            }),
        };
        if let Err(error) = measured {
            tell!("{}, repeat {repeat}: {error:#}", row.name);
            self.broken += 1;
        }
    }

    fn point(&mut self, row: &Row, settings: &Settings, point: &Point, repeat: u32) -> Result<()> {
        let before = cpu::process_seconds();
        let measurement = Measurement::new(settings, point, self.data)?;
        let mut options = settings.path_options(point);
        options.device = Some(self.device.clone());
        let mut runner = paths::open(&options, measurement.data(), &self.gpu, None)?;
        let mut progress = Progress::new(u64::from(self.args.repeats));
        let mut figures = measurement.run(runner.as_mut(), &mut progress, u64::from(repeat))?;
        drop(runner);
        figures.close_bill(cpu_since(before));
        show(&Line { row: &row.name, repeat, figures: &figures })?;
        ensure!(
            figures.is_clean(),
            "{} of {} I/Os not verified, {} errors",
            figures.ios_unverified,
            figures.ios,
            figures.errors
        );
        Ok(())
    }
}

fn show<T: Serialize>(line: &Line<'_, T>) -> Result<()> {
    print(&serde_json::to_string(line)?)
}
