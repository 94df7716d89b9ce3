//! Fuzzing: every target of `fuzz/` for at least a million executions.
//!
//! cargo-fuzz is built below `target/tools`; no sanitizer is asked for, so that the stable
//! toolchain will do. The committed corpus is where each target starts; what a run adds goes to
//! `target/fuzz-corpus`, so that the tree stays as it is. The first random number is fixed: a run
//! that passes once passes again.

use super::Outcome;
use crate::process::Run;
use crate::tree;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The tool and its version.
const TOOL: (&str, &str) = ("cargo-fuzz", "0.13.2");
/// Executions a target, at least.
const EXECUTIONS: u64 = 1_000_000;
/// Longest time a target may take for them, in seconds.
const SECONDS: u64 = 1500;
/// Longest input of each target in bytes, where 64 is not right.
const INPUT_BYTES: &[(&str, u32)] =
    &[("controller", 192), ("driver", 120), ("entry", 32), ("fault_script", 128), ("ring", 136)];

/// Builds all targets and runs each, two at a time.
pub fn step() -> Result<Outcome> {
    let tool = install()?;
    let build = "build -s none --target-dir target/fuzz";
    let built = fuzz(&tool, build).seconds(900).log("fuzz-build")?.run()?;
    built.expect_ok("cargo fuzz build")?;
    let waiting = Mutex::new(targets()?);
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let worker = || -> Result<Outcome> {
        let mut outcome = Outcome::default();
        while let Some(target) = next() {
            outcome.absorb(execute(&tool, &target)?);
        }
        Ok(outcome)
    };
    let mut outcome = Outcome::default();
    let parts: Vec<Result<Outcome>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().map(|one| one.join().expect("no panic in there")).collect()
    });
    for part in parts {
        outcome.absorb(part?);
    }
    Ok(outcome)
}

/// A cargo-fuzz command.
fn fuzz(tool: &Path, words: &str) -> Run {
    Run::new(tool)
        .words("fuzz")
        .words(words)
        .env("CARGO_TERM_COLOR", "never")
        .env("RUST_BACKTRACE", "1")
}

/// Runs one target for as many executions as are due.
fn execute(tool: &Path, target: &str) -> Result<Outcome> {
    let found = tree::target().join("fuzz-corpus").join(target);
    std::fs::create_dir_all(&found).with_context(|| format!("making {}", found.display()))?;
    let bytes = INPUT_BYTES.iter().find(|(name, _)| *name == target).map_or(64, |(_, n)| *n);
    let finished = fuzz(tool, &format!("run -s none --target-dir target/fuzz {target}"))
        .arg(&found)
        .arg(format!("fuzz/corpus/{target}"))
        .words(&format!("-- -seed=1 -runs={EXECUTIONS} -max_len={bytes} -timeout=10"))
        .seconds(SECONDS)
        .log(&format!("fuzz-{target}"))?
        .run()?;
    let runs = executions(&finished.output);
    let mut outcome = Outcome::default();
    outcome.notes.push(format!("{target}: {runs} executions in {:.0} s", finished.seconds));
    outcome.check(finished.ok && runs >= EXECUTIONS, || {
        let end = tail(&finished.output, 80);
        format!("{target}: {} after {runs} executions\n{end}", finished.how())
    });
    Ok(outcome)
}

/// Builds cargo-fuzz where it is not there yet.
fn install() -> Result<PathBuf> {
    let (name, version) = TOOL;
    let root = tree::target().join("tools");
    let program = root.join("bin").join(name);
    let there = program.is_file()
        && Run::new(&program).words("fuzz --version").run()?.output.contains(version);
    if !there {
        Run::cargo()
            .words(&format!("install {name} --version {version} --locked --root"))
            .arg(&root)
            .arg("--target-dir")
            .arg(root.join("build"))
            .seconds(900)
            .log("fuzz-install")?
            .run()?
            .expect_ok("cargo install cargo-fuzz")?;
    }
    Ok(program)
}

/// Names of the targets, from their manifest.
fn targets() -> Result<Vec<String>> {
    let manifest: toml::Table =
        tree::read("fuzz/Cargo.toml")?.parse().context("fuzz/Cargo.toml")?;
    let bins = manifest.get("bin").and_then(toml::Value::as_array);
    let names = bins.into_iter().flatten().filter_map(|bin| bin.get("name")?.as_str());
    Ok(names.map(str::to_owned).collect())
}

/// The number in libFuzzer's `Done N runs`.
fn executions(output: &str) -> u64 {
    let line = output.lines().rev().find_map(|line| line.strip_prefix("Done "));
    line.and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap_or(0)
}

/// The last lines of an output.
fn tail(output: &str, lines: usize) -> String {
    let all: Vec<&str> = output.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
