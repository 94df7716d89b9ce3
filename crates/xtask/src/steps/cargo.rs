//! The steps that are cargo's own: formatting, lints, documentation and tests.

use super::{Outcome, Skip};
use crate::process::{Finished, Run};
use anyhow::Result;

/// Seeds of the whole-system simulation.
const SEEDS: &str = "200";

/// Counts one command as one check, with its whole output where it failed.
fn single(finished: &Finished, what: &str) -> Outcome {
    let mut outcome = Outcome::default();
    outcome.check(finished.ok, || format!("{what} {}\n{}", finished.how(), finished.output));
    outcome
}

/// rustfmt would change nothing, here and in `fuzz/`.
pub fn fmt() -> Result<Outcome> {
    let line = "fmt --all --check";
    let mut outcome = single(&Run::cargo().words(line).log("fmt")?.run()?, line);
    if crate::tree::root().join("fuzz/Cargo.toml").is_file() {
        let line = "fmt --manifest-path fuzz/Cargo.toml --check";
        outcome.absorb(single(&Run::cargo().words(line).log("fmt-fuzz")?.run()?, line));
    }
    Ok(outcome)
}

/// clippy finds nothing in any target.
pub fn clippy() -> Result<Outcome> {
    let line = "clippy --workspace --all-targets --all-features --quiet -- -D warnings";
    let run = Run::cargo().words(line).seconds(900).log("clippy")?;
    Ok(single(&run.run()?, line))
}

/// rustdoc warns of nothing. The command shares its name with the engine, hence two runs.
pub fn doc() -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let libraries = "doc --workspace --no-deps --quiet --lib";
    let programs = "doc -p sidecore-cli -p sidecore-xtask --no-deps --quiet --bins";
    for (line, name) in [(libraries, "doc"), (programs, "doc-bins")] {
        let run = Run::cargo().words(line).env("RUSTDOCFLAGS", "-D warnings").seconds(900);
        outcome.absorb(single(&run.log(name)?.run()?, line));
    }
    Ok(outcome)
}

/// All tests of the workspace, optimised and with debug assertions.
pub fn test() -> Result<Outcome> {
    let line = "test --workspace --profile checked --no-fail-fast -- --show-output";
    // What the driver compiles at run time is compiled here too, by the compiler of `device`.
    let libraries = super::device::libraries()?;
    // The step `seeds` does the whole-system simulation at length.
    let run = Run::cargo()
        .words(line)
        .env("SIDECORE_SEEDS", "4")
        .env("LD_LIBRARY_PATH", libraries)
        .seconds(1800);
    Ok(tests(&run.log("test")?.run()?, line))
}

/// Real device code against the engine, by two hundred seeds.
pub fn seeds() -> Result<Outcome> {
    let line = "test -p sidecore-testkit --profile checked --test seeded --test seeded_queues \
                --test queues -- --show-output";
    let run = Run::cargo().words(line).env("SIDECORE_SEEDS", SEEDS).seconds(1200);
    let finished = run.log("seeds")?.run()?;
    let mut outcome = tests(&finished, line);
    outcome.notes.push(format!("{SEEDS} seeds in {:.0} s", finished.seconds));
    Ok(outcome)
}

/// Counts the tests that a `cargo test` command ran.
///
/// A test that finds at run time that it cannot be made here prints `SKIPPED name: reason` and
/// returns; it counts as skipped, not as passed.
pub fn tests(finished: &Finished, what: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let (mut failed, mut left_early) = (Vec::new(), 0);
    for line in finished.output.lines() {
        if let Some(counts) = line.strip_prefix("test result: ") {
            outcome.passed += count(counts, "passed");
        } else if let Some(test) = line.strip_prefix("test ") {
            if let Some((name, end)) = test.rsplit_once(" ... ") {
                if end == "FAILED" {
                    failed.push(name.to_owned());
                } else if let Some(reason) = end.strip_prefix("ignored") {
                    let reason = reason.trim_start_matches([',', ' ']).to_owned();
                    outcome.skips.push(Skip { name: name.to_owned(), reason });
                }
            }
        } else if let Some((name, reason)) =
            line.strip_prefix("SKIPPED ").and_then(|rest| rest.split_once(": "))
        {
            outcome.skips.push(Skip { name: name.to_owned(), reason: reason.to_owned() });
            left_early += 1;
        }
    }
    outcome.passed = outcome.passed.saturating_sub(left_early);
    if !finished.ok {
        let tail =
            format!("`cargo {what}` {}\n{}", finished.how(), failures_only(&finished.output));
        if failed.is_empty() {
            failed.push("before any test failed".to_owned());
        }
        let last = failed.pop().expect("just filled");
        outcome.failures.extend(failed);
        outcome.failures.push(format!("{last}\n{tail}"));
    }
    outcome
}

/// Finds the number before `word` in a line of counts.
fn count(counts: &str, word: &str) -> usize {
    let mut words = counts.split([' ', ';', '.']).filter(|w| !w.is_empty()).peekable();
    while let Some(number) = words.next() {
        if words.peek() == Some(&word) {
            return number.parse().unwrap_or(0);
        }
    }
    0
}

/// Leaves out what passing tests printed, and the lines that say that a test passed.
fn failures_only(output: &str) -> String {
    let mut kept = String::new();
    let mut inside_successes = false;
    for line in output.lines() {
        match line {
            "successes:" => inside_successes = true,
            "failures:" => inside_successes = false,
            _ if line.starts_with("test result:") => inside_successes = false,
            _ => {}
        }
        let passed = line.starts_with("test ") && line.ends_with(" ... ok");
        if !inside_successes && !passed {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(ok: bool, output: &str) -> Finished {
        let output = output.to_owned();
        Finished {
            ok,
            timed_out: false,
            code: Some(if ok { 0 } else { 101 }),
            output,
            seconds: 1.0,
        }
    }

    #[test]
    fn counts_what_libtest_prints() {
        let text = "test a ... ok\ntest b ... ignored, needs a drive\nSKIPPED c: io_uring refused\n\
                    test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n";
        let outcome = tests(&finished(true, text), "test");
        assert_eq!(outcome.passed, 2);
        let skips: Vec<_> =
            outcome.skips.iter().map(|s| (s.name.as_str(), s.reason.as_str())).collect();
        assert_eq!(skips, [("b", "needs a drive"), ("c", "io_uring refused")]);
        assert!(outcome.failures.is_empty());
    }

    #[test]
    fn a_failing_command_is_a_failure_whatever_it_printed() {
        let text = "test a ... FAILED\nsuccesses:\nnoise\nfailures:\n---- a stdout ----\nwhy\n\
                    test result: FAILED. 4 passed; 1 failed; 0 ignored\n";
        let outcome = tests(&finished(false, text), "test");
        assert_eq!((outcome.passed, outcome.failures.len()), (4, 1));
        assert!(outcome.failures[0].contains("why") && !outcome.failures[0].contains("noise"));
        assert_eq!(tests(&finished(false, "error: no"), "test").failures.len(), 1);
    }
}
