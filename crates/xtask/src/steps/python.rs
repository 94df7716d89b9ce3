//! The Python package: `pip install` from the tree into an environment of its own, its tests, its examples.
//!
//! The environment lies below `target/tools/python`. It sees the system's packages, since torch is one of
//! them; everything else is a pinned wheel.

use super::{Outcome, Skip};
use crate::process::{Finished, Run};
use crate::tree;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// The interpreter that the system's torch belongs to.
const INTERPRETER: &str = "/usr/bin/python3";
/// What the environment has besides; `ml_dtypes` of the NumPy that the system's torch was built for.
const WHEELS: &str = "maturin==1.16.0 ml_dtypes==0.5.1 pytest==9.2.0 safetensors==0.8.0";
/// Programs that a reader may run, and that must end well.
const EXAMPLES: &str = "python/examples/";

/// Installs the package, and runs everything.
pub fn step() -> Result<Outcome> {
    let python = environment()?;
    Run::new(&python)
        .words("-m pip install --quiet --no-build-isolation --no-deps --force-reinstall .")
        // The same profile as the tests', so that its crates are built once.
        .env("MATURIN_PEP517_ARGS", "--profile checked")
        .env("PATH", path_with(&python)?)
        .seconds(900)
        .log("python-install")?
        .run()?
        .expect_ok("pip install .")?;
    let finished = Run::new(&python)
        // The tests lie beside the package's source, which must not be what they import.
        .words("-P -m pytest -q -rs --color=no -p no:cacheprovider python/tests")
        .seconds(600)
        .log("python-tests")?
        .run()?;
    let mut outcome = pytest(&finished);
    let examples = tree::files()?;
    for name in examples.iter().filter(|name| name.starts_with(EXAMPLES)) {
        let log = format!("python-{}", name.trim_start_matches(EXAMPLES));
        let finished = Run::new(&python).arg("-P").arg(name).seconds(120).log(&log)?.run()?;
        outcome.check(finished.ok, || format!("{name} {}\n{}", finished.how(), finished.output));
    }
    Ok(outcome)
}

/// The environment's interpreter; it is made where it is missing or of other wheels.
fn environment() -> Result<PathBuf> {
    let folder = tree::target().join("tools/python");
    let python = folder.join("bin/python");
    let done = folder.join("installed");
    if std::fs::read_to_string(&done).ok().as_deref() == Some(WHEELS) {
        return Ok(python);
    }
    Run::new(INTERPRETER)
        .words("-m venv --clear --without-pip --system-site-packages")
        .arg(&folder)
        .log("python-venv")?
        .run()?
        .expect_ok("making an environment")?;
    Run::new(INTERPRETER)
        .words("-m pip --python")
        .arg(&python)
        .words("install --quiet --root-user-action=ignore")
        .words(WHEELS)
        .log("python-wheels")?
        .run()?
        .expect_ok("pip install of the tests' wheels")?;
    std::fs::write(&done, WHEELS).context("noting the installation")?;
    Ok(python)
}

/// The search path with the environment's own programs first.
fn path_with(python: &Path) -> Result<String> {
    let folder = python.parent().context("an interpreter lies in a folder")?;
    let path = std::env::var("PATH").unwrap_or_default();
    Ok(format!("{}:{path}", folder.display()))
}

/// Counts what pytest printed.
fn pytest(finished: &Finished) -> Outcome {
    let mut outcome = Outcome::default();
    let last = finished.output.lines().rev().find(|line| line.contains(" in "));
    // `41 passed, 2 skipped in 3.21s`
    let before = last.and_then(|line| line.split_once(" passed")).map_or("", |(before, _)| before);
    outcome.passed = before.rsplit(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
    for line in finished.output.lines().filter_map(|line| line.strip_prefix("SKIPPED [")) {
        // `1] python/tests/test_x.py:12: why`
        let place = line.split_once("] ").map_or(line, |(_, rest)| rest);
        let (file, why) = place.split_once(": ").unwrap_or((place, ""));
        let file = file.rsplit_once(':').map_or(file, |(file, _)| file);
        let name = file.rsplit('/').next().unwrap_or(file).to_owned();
        // A file's tests are skipped together, for one reason.
        if !outcome.skips.iter().any(|skip| skip.name == name && skip.reason == why) {
            outcome.skips.push(Skip { name, reason: why.to_owned() });
        }
    }
    if !finished.ok || outcome.passed == 0 {
        outcome.failures.push(format!("pytest {}\n{}", finished.how(), finished.output));
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(ok: bool, text: &str) -> Finished {
        Finished { ok, timed_out: false, code: Some(0), output: text.to_owned(), seconds: 1.0 }
    }

    #[test]
    fn passes_and_skips_are_counted() {
        let text = "....s\nSKIPPED [2] python/tests/test_a.py:12: needs: a GPU\n\
                    SKIPPED [1] python/tests/test_a.py:50: needs: a GPU\n\
                    41 passed, 2 skipped in 3.21s\n";
        let outcome = pytest(&finished(true, text));
        assert_eq!((outcome.passed, outcome.failures.len(), outcome.skips.len()), (41, 0, 1));
        let skip = &outcome.skips[0];
        assert_eq!((skip.name.as_str(), skip.reason.as_str()), ("test_a.py", "needs: a GPU"));
    }

    #[test]
    fn a_run_that_failed_or_tested_nothing_is_a_failure() {
        let outcome = pytest(&finished(false, "1 failed, 3 passed in 1s\n"));
        assert_eq!((outcome.passed, outcome.failures.len()), (3, 1));
        assert_eq!(pytest(&finished(true, "no tests ran in 0.01s\n")).failures.len(), 1);
    }
}
