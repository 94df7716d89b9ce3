//! `cargo xtask instructions`: what one operation costs, in instructions.
//!
//! Each of a few crates has an example `instructions` (or one named behind a slash in the committed
//! figures) that does N operations. Under callgrind it is
//! run with N and 2N; the slope is the cost of one operation without start-up. The counts are
//! compared with the committed figures: more than 5 % above one fails. `--write` commits new ones.

use crate::process::Run;
use crate::steps::Outcome;
use crate::tree;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The committed figures.
const FIGURES: &str = "crates/xtask/instructions.json";
/// Operations of the shorter run.
const OPERATIONS: u64 = 20_000;
/// How far above the committed figure still passes.
const RISE_MAX: f64 = 0.05;

/// Options of `cargo xtask instructions`.
#[derive(clap::Args)]
pub struct Options {
    /// Write the counts as the new committed figures
    #[arg(long)]
    write: bool,
}

/// One operation's figure.
#[derive(Serialize, Deserialize)]
struct Figure {
    /// What is counted.
    operation: String,
    /// Instructions an operation when the figure was committed.
    instructions: f64,
    /// What the project aims at.
    aim: f64,
}

type Figures = BTreeMap<String, Figure>;

/// Counts, compares and prints.
pub fn run(options: &Options) -> Result<bool> {
    let (outcome, figures) = measure()?;
    for note in &outcome.notes {
        println!("{note}");
    }
    if options.write {
        let text = serde_json::to_string_pretty(&figures).context("writing the figures")? + "\n";
        std::fs::write(tree::root().join(FIGURES), text).context("writing the figures")?;
        println!("wrote {FIGURES}");
        return Ok(true);
    }
    for failure in &outcome.failures {
        println!("{failure}");
    }
    Ok(outcome.failures.is_empty())
}

/// The step of `cargo xtask test`.
pub fn step() -> Result<Outcome> {
    Ok(measure()?.0)
}

/// Counts each operation; returns the comparison and the figures with the new counts.
fn measure() -> Result<(Outcome, Figures)> {
    let mut figures: Figures =
        serde_json::from_str(&tree::read(FIGURES)?).context("reading the committed figures")?;
    let mut outcome = Outcome::default();
    for (name, figure) in &mut figures {
        let (package, example) = name.split_once('/').unwrap_or((name, "instructions"));
        let program = build(package, example)?;
        let label = name.replace('/', "-");
        let once = count(&program, &label, OPERATIONS)?;
        let twice = count(&program, &label, 2 * OPERATIONS)?;
        let slope = (twice.saturating_sub(once)) as f64 / OPERATIONS as f64;
        let (committed, aim) = (figure.instructions, figure.aim);
        let operation = &figure.operation;
        let line =
            format!("{operation}: {slope:.1} instructions, committed {committed:.1}, aim {aim:.0}");
        outcome.check(slope <= committed * (1.0 + RISE_MAX) && slope > 0.0, || {
            format!("{line}\nA wanted rise is committed with `cargo xtask instructions --write`")
        });
        outcome.notes.push(line);
        figure.instructions = (slope * 10.0).round() / 10.0;
    }
    Ok((outcome, figures))
}

/// Builds the example of a package and keeps it under a name of its own.
fn build(package: &str, example: &str) -> Result<PathBuf> {
    let line = format!("build --release -p {package} --example {example}");
    let log = format!("{example}-build-{package}");
    Run::cargo().words(&line).seconds(900).log(&log)?.run()?.expect_ok(&line)?;
    let built = tree::target().join("release/examples").join(example);
    let kept = tree::scratch(&format!("{example}-{package}"))?;
    std::fs::copy(&built, &kept).with_context(|| format!("copying {}", built.display()))?;
    Ok(kept)
}

/// Counts the instructions of a whole run.
fn count(program: &Path, label: &str, operations: u64) -> Result<u64> {
    let output = Run::new("valgrind")
        .words("--tool=callgrind --callgrind-out-file=/dev/null")
        .arg(program)
        .arg(operations.to_string())
        .seconds(300)
        .log(&format!("instructions-{label}-{operations}"))?
        .run()?
        .expect_ok(&format!("callgrind on the example of {label}"))?;
    let total = output.lines().find_map(|line| line.split_once("Collected : "));
    let total = total.with_context(|| format!("callgrind printed no total:\n{output}"))?.1;
    total.trim().parse().with_context(|| format!("callgrind's total is no number: {total}"))
}
