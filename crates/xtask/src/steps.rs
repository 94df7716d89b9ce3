//! `cargo xtask test`: the named steps, their counts, and the closing line.
//!
//! A step counts its own checks. What could not be checked is a *skip* with a name and a reason;
//! the names of all skips must be those of the committed list (`crates/xtask/skips.txt`), so that
//! nothing stops being tested without a change that says so. A step that fails to run at all
//! counts as one failure. Logs of everything are kept in `target/xtask/*.log`.

mod bench;
mod cargo;
mod device;
mod fuzz;
mod python;
mod qemu;

use crate::{packages, tree};
use anyhow::{Result, ensure};
use std::collections::BTreeSet;
use std::time::Instant;

/// The committed list of skips.
const SKIPS: &str = "crates/xtask/skips.txt";

/// Options of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Options {
    /// Install missing system packages through apt-get
    #[arg(long)]
    install: bool,
    /// Run only these steps (repeatable)
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,
    /// List the steps and stop
    #[arg(long)]
    list: bool,
}

/// Something that was not checked.
pub struct Skip {
    /// Its name, the same in every run.
    pub name: String,
    /// Why it was not checked.
    pub reason: String,
}

/// What a step found.
#[derive(Default)]
pub struct Outcome {
    /// Checks that held.
    pub passed: usize,
    /// Checks that did not, each with what a person needs to see.
    pub failures: Vec<String>,
    /// Checks that were not made.
    pub skips: Vec<Skip>,
    /// Lines worth seeing even when all is well.
    pub notes: Vec<String>,
}

impl Outcome {
    /// Counts one check: passed where `held`, else failed with `detail`.
    pub fn check(&mut self, held: bool, detail: impl FnOnce() -> String) {
        if held {
            self.passed += 1;
        } else {
            self.failures.push(detail());
        }
    }

    /// Adds what a part of the step found.
    pub fn absorb(&mut self, other: Self) {
        self.passed += other.passed;
        self.failures.extend(other.failures);
        self.skips.extend(other.skips);
        self.notes.extend(other.notes);
    }
}

/// A named step.
struct Step {
    name: &'static str,
    about: &'static str,
    run: fn() -> Result<Outcome>,
}

/// The steps, quick ones first.
const STEPS: &[Step] = &[
    Step { name: "packages", about: "system packages are there", run: system_packages },
    Step { name: "fmt", about: "rustfmt would change nothing", run: cargo::fmt },
    Step { name: "tidy", about: "sizes, headers, unsafe notes, words, arrows, links", run: tidy },
    Step {
        name: "abi",
        about: "the committed C++ twin and C header are what is generated",
        run: abi_header,
    },
    Step { name: "clippy", about: "no warning in any target", run: cargo::clippy },
    Step { name: "doc", about: "rustdoc without warnings", run: cargo::doc },
    Step { name: "test", about: "unit, model, pair and simulation tests", run: cargo::test },
    Step {
        name: "seeds",
        about: "device code against the engine, 200 seeds of 1,000 I/Os and more",
        run: cargo::seeds,
    },
    Step {
        name: "device",
        about: "device code compiles under nvcc and NVRTC for sm_80, sm_90 and sm_100",
        run: device::step,
    },
    Step {
        name: "qemu",
        about: "bad commands of a C program: sidecore's controller beside QEMU's",
        run: qemu::step,
    },
    Step {
        name: "python",
        about: "the Python package: pip install, its tests, its examples",
        run: python::step,
    },
    Step { name: "bench", about: "the default bench ends well, its rows hold", run: bench::step },
    Step {
        name: "copoll",
        about: "load steps of co-polled queues: flips, who polled, what it cost, nothing lost",
        run: bench::copoll,
    },
    Step { name: "report", about: "its report in a browser without network", run: bench::report },
    Step {
        name: "instructions",
        about: "instructions an operation, against the committed figures",
        run: crate::instructions::step,
    },
    Step { name: "fuzz", about: "each fuzz target for a million executions", run: fuzz::step },
    Step {
        name: "mutants",
        about: "each committed breakage is noticed by its test",
        run: crate::mutants::step,
    },
];

fn system_packages() -> Result<Outcome> {
    let missing = packages::missing();
    let mut outcome = Outcome { passed: packages::count() - missing.len(), ..Outcome::default() };
    if !missing.is_empty() {
        let remedy = packages::remedy();
        outcome.failures.push(format!(
            "missing: {}\nInstall with `{remedy}`, or run again with --install",
            missing.join(", ")
        ));
    }
    Ok(outcome)
}

fn abi_header() -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let current = crate::abi_header::is_current()?;
    outcome.check(current, || "the C++ twin differs: run cargo xtask abi".to_owned());
    let current = crate::c_header::is_current()?;
    outcome.check(current, || "the C header differs: run cargo xtask capi".to_owned());
    Ok(outcome)
}

fn tidy() -> Result<Outcome> {
    crate::tidy::check()
}

/// Runs the steps; true where all passed and the skips are the committed ones.
pub fn run(options: &Options) -> Result<bool> {
    if options.list {
        for step in STEPS {
            println!("{:<14} {}", step.name, step.about);
        }
        return Ok(true);
    }
    for name in &options.only {
        ensure!(STEPS.iter().any(|step| step.name == name), "no step {name}; see --list");
    }
    if options.install {
        packages::install()?;
    }
    let chosen: Vec<&Step> = STEPS
        .iter()
        .filter(|step| options.only.is_empty() || options.only.iter().any(|name| name == step.name))
        .collect();
    let start = Instant::now();
    let (mut passed, mut failed, mut skips) = (0, 0, Vec::new());
    for step in &chosen {
        let outcome = run_step(step);
        passed += outcome.passed;
        failed += outcome.failures.len();
        skips.extend(outcome.skips);
    }
    if !skips.is_empty() {
        println!("\nNot checked:");
        for skip in &skips {
            println!("  {}: {}", skip.name, skip.reason);
        }
    }
    failed += compare_skips(&skips, &chosen)?;
    println!("\n{:.0} s in all", start.elapsed().as_secs_f64());
    println!("{passed} passed, {failed} failed, {} skipped", skips.len());
    Ok(failed == 0)
}

/// Runs one step and prints what it found.
fn run_step(step: &Step) -> Outcome {
    println!("== {} ({})", step.name, step.about);
    let start = Instant::now();
    let outcome = (step.run)().unwrap_or_else(|error| Outcome {
        failures: vec![format!("{error:#}")],
        ..Outcome::default()
    });
    for note in &outcome.notes {
        println!("   {note}");
    }
    for failure in &outcome.failures {
        println!("-- {} FAILED: {failure}", step.name);
    }
    println!(
        "   {}: {} passed, {} failed, {} skipped in {:.1} s",
        step.name,
        outcome.passed,
        outcome.failures.len(),
        outcome.skips.len(),
        start.elapsed().as_secs_f64()
    );
    Outcome {
        skips: outcome
            .skips
            .into_iter()
            .map(|skip| Skip { name: format!("{}/{}", step.name, skip.name), ..skip })
            .collect(),
        ..outcome
    }
}

/// Prints how the skips differ from the committed list; returns the number of differences.
fn compare_skips(skips: &[Skip], chosen: &[&Step]) -> Result<usize> {
    let text = tree::read(SKIPS)?;
    let belongs = |name: &str| chosen.iter().any(|s| name.split('/').next() == Some(s.name));
    let expected: BTreeSet<&str> = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|name| !name.is_empty() && belongs(name))
        .collect();
    let found: BTreeSet<&str> = skips.iter().map(|skip| skip.name.as_str()).collect();
    for name in found.difference(&expected) {
        println!("-- skipped, but not in {SKIPS}: {name}");
    }
    for name in expected.difference(&found) {
        println!("-- in {SKIPS}, but not skipped: {name}");
    }
    Ok(found.symmetric_difference(&expected).count())
}
