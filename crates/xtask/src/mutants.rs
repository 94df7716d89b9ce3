//! `cargo xtask mutants`: proof that the tests can fail.
//!
//! `crates/xtask/mutants.toml` lists breakages of one place each: a text that stands exactly once
//! in a file, what replaces it, and the test that must notice. They are applied one at a time to
//! a copy of the tree under `target/mutants`, which keeps its build between them. A mutant is
//! *caught* when its test builds, runs and fails; it counts as failed when it no longer applies, does not
//! build, hangs (unless a hang is what it must cause) or survives. The tests pass unbroken first.

use crate::process::{Finished, Run};
use crate::steps::Outcome;
use crate::tree;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The committed breakages.
const LIST: &str = "crates/xtask/mutants.toml";
/// Longest time one test may take to build, in seconds.
const BUILD_SECONDS: u64 = 600;
/// Longest time one test may run, in seconds.
const TEST_SECONDS: u64 = 300;

/// Options of `cargo xtask mutants`.
#[derive(clap::Args)]
pub struct Options {
    /// Only mutants whose name contains this (repeatable)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// List the mutants and stop
    #[arg(long)]
    list: bool,
}

#[derive(Deserialize)]
struct List {
    mutant: Vec<Mutant>,
}

/// One breakage.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutant {
    /// Its name.
    name: String,
    /// The file it breaks.
    file: String,
    /// What it replaces; stands exactly once in the file.
    find: String,
    /// What it puts there.
    replace: String,
    /// What would go wrong with it.
    why: String,
    /// Arguments of the `cargo test` that must fail.
    test: String,
    /// Number of seeds for simulations, where the default is not enough or too much.
    #[serde(default)]
    seeds: Option<u32>,
    /// The test may also hang.
    #[serde(default)]
    hang: bool,
}

/// Runs the chosen mutants and prints how each was caught.
pub fn run(options: &Options) -> Result<bool> {
    let mut list = read()?;
    list.retain(|mutant| {
        options.only.is_empty() || options.only.iter().any(|part| mutant.name.contains(part))
    });
    if options.list {
        for mutant in &list {
            println!("{:<28} {}", mutant.name, mutant.why);
        }
        return Ok(true);
    }
    let outcome = all(&list)?;
    for failure in &outcome.failures {
        println!("-- {failure}");
    }
    println!("mutants: {} caught, {} not", outcome.passed, outcome.failures.len());
    Ok(outcome.failures.is_empty())
}

/// The step of `cargo xtask test`.
pub fn step() -> Result<Outcome> {
    all(&read()?)
}

fn read() -> Result<Vec<Mutant>> {
    let list: List = toml::from_str(&tree::read(LIST)?).context(LIST)?;
    let names: BTreeSet<&str> = list.mutant.iter().map(|mutant| mutant.name.as_str()).collect();
    ensure!(names.len() == list.mutant.len(), "{LIST} has two mutants of one name");
    Ok(list.mutant)
}

/// Runs the tests unbroken, then each mutant.
fn all(list: &[Mutant]) -> Result<Outcome> {
    let copy = Copy::make()?;
    let mut outcome = Outcome::default();
    let tests: BTreeSet<(&str, Option<u32>)> =
        list.iter().map(|mutant| (mutant.test.as_str(), mutant.seeds)).collect();
    for (test, seeds) in tests {
        let finished = copy.test(test, seeds)?;
        let ran = finished.output.lines().any(|line| line.starts_with("test ") && ends_ok(line));
        if !(finished.ok && ran) {
            let how = if finished.ok { "ran no test".to_owned() } else { finished.how() };
            let output = finished.output;
            outcome.failures.push(format!("unbroken, `cargo test {test}` {how}\n{output}"));
        }
    }
    if !outcome.failures.is_empty() {
        return Ok(outcome);
    }
    for mutant in list {
        let start = Instant::now();
        match attempt(&copy, mutant).with_context(|| format!("mutant {}", mutant.name))? {
            Ok(by) => {
                let seconds = start.elapsed().as_secs_f64();
                println!("   {:<28} caught by {by} ({seconds:.0} s)", mutant.name);
                outcome.passed += 1;
            }
            Err(how) => {
                println!("   {:<28} NOT CAUGHT", mutant.name);
                outcome.failures.push(format!("{}: {how} ({})", mutant.name, mutant.why));
            }
        }
    }
    Ok(outcome)
}

fn ends_ok(line: &str) -> bool {
    line.ends_with(" ... ok")
}

/// Applies one mutant, runs its test, and puts the file back. Returns by what it was caught.
fn attempt(copy: &Copy, mutant: &Mutant) -> Result<Result<String, String>> {
    let path = copy.tree.join(&mutant.file);
    let Ok(original) = std::fs::read_to_string(&path) else {
        return Ok(Err(format!("{} is not there", mutant.file)));
    };
    let found = original.matches(&mutant.find).count();
    if found != 1 {
        let file = &mutant.file;
        return Ok(Err(format!("no longer applies: its text stands {found} times in {file}")));
    }
    std::fs::write(&path, original.replacen(&mutant.find, &mutant.replace, 1))?;
    let result = judge(copy, mutant);
    std::fs::write(&path, original)?;
    result
}

/// Builds and runs a mutant's test, and says by what it was caught or why not.
fn judge(copy: &Copy, mutant: &Mutant) -> Result<Result<String, String>> {
    let built = copy.cargo(&format!("{} --no-run", options_only(&mutant.test)), None)?;
    if !built.ok {
        return Ok(Err(format!("does not build: {}\n{}", built.how(), built.output)));
    }
    let finished = copy.test(&mutant.test, mutant.seeds)?;
    if finished.ok {
        return Ok(Err(format!("`cargo test {}` passed", mutant.test)));
    }
    if finished.timed_out {
        let how = format!("hung for {TEST_SECONDS} s");
        return Ok(if mutant.hang { Ok(how) } else { Err(how) });
    }
    Ok(Ok(catcher(&finished.output)))
}

/// What `cargo test` takes before the names of tests.
fn options_only(test: &str) -> &str {
    test.split(" -- ").next().unwrap_or(test)
}

/// Finds the failed test, and the seed that it names.
fn catcher(output: &str) -> String {
    let failed = output.lines().find_map(|line| {
        let test = line.strip_prefix("test ")?;
        test.strip_suffix(" ... FAILED").map(str::to_owned)
    });
    let by = failed.unwrap_or_else(|| "the end of the test's process".to_owned());
    match seed(output) {
        Some(seed) => format!("{by}, seed {seed}"),
        None => by,
    }
}

/// The seed of a line `seed N: ...`, else the first `seed N`, `seed: N` or `seed=N` of an output.
fn seed(output: &str) -> Option<&str> {
    let told = output.lines().find_map(|line| line.strip_prefix("seed ")?.split_once(':'));
    if let Some((seed, _)) = told {
        return Some(seed);
    }
    output.split("seed").skip(1).find_map(|rest| {
        let rest = rest.trim_start_matches([' ', ':', '=', '`']);
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        rest.starts_with(|c: char| c.is_ascii_digit()).then(|| &rest[..end])
    })
}

/// The copy of the tree in which mutants live.
struct Copy {
    tree: PathBuf,
    target: PathBuf,
}

impl Copy {
    /// Makes the copy, or brings it up to date; files that have not changed keep their time.
    fn make() -> Result<Self> {
        let folder = tree::target().join("mutants");
        let copy = Self { tree: folder.join("tree"), target: folder.join("target") };
        let files = tree::files()?;
        for name in &files {
            copy_file(&tree::root().join(name), &copy.tree.join(name))?;
        }
        let known: BTreeSet<&str> = files.iter().map(String::as_str).collect();
        remove_strangers(&copy.tree, &copy.tree, &known)?;
        Ok(copy)
    }

    /// Runs the tests of `test` in the copy.
    fn test(&self, test: &str, seeds: Option<u32>) -> Result<Finished> {
        let built = self.cargo(&format!("{} --no-run", options_only(test)), None)?;
        if !built.ok {
            return Ok(built);
        }
        self.cargo(test, seeds)
    }

    fn cargo(&self, test: &str, seeds: Option<u32>) -> Result<Finished> {
        let builds = test.ends_with("--no-run");
        let mut run = Run::cargo()
            .words("test --profile mutants")
            .words(test)
            .folder(&self.tree)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("RUST_BACKTRACE", "0")
            .seconds(if builds { BUILD_SECONDS } else { TEST_SECONDS })
            .log("mutants")?;
        if let Some(seeds) = seeds {
            run = run.env("SIDECORE_SEEDS", seeds.to_string());
        }
        run.run()
    }
}

/// Copies a file unless the copy is already the same.
fn copy_file(from: &Path, to: &Path) -> Result<()> {
    let bytes = std::fs::read(from).with_context(|| format!("reading {}", from.display()))?;
    if std::fs::read(to).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let folder = to.parent().context("a file lies in a folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    std::fs::write(to, bytes).with_context(|| format!("writing {}", to.display()))
}

/// Removes files of the copy that the tree no longer has.
fn remove_strangers(root: &Path, folder: &Path, known: &BTreeSet<&str>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.strip_prefix(root).expect("walked down from it").to_string_lossy();
        if path.is_dir() {
            remove_strangers(root, &path, known)?;
        } else if !known.contains(&*name) && name != "Cargo.lock" {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_test_and_the_seed() {
        let output = "test ring::wrap ... FAILED\npanicked: seed 17: lost a completion\n";
        assert_eq!(catcher(output), "ring::wrap, seed 17");
        assert_eq!(seed("seeds everywhere, seed=0x2a."), Some("0x2a"));
        assert_eq!(seed("Livelock, seed 9\nseed 4: Lost\n"), Some("4"));
        assert_eq!(seed("no such thing"), None);
    }

    #[test]
    fn every_committed_mutant_applies() {
        for mutant in read().unwrap() {
            assert_ne!(mutant.find, mutant.replace, "{} changes nothing", mutant.name);
            let found = tree::read(&mutant.file).unwrap().matches(&mutant.find).count();
            assert_eq!(found, 1, "{}: places in {}", mutant.name, mutant.file);
        }
    }
}
