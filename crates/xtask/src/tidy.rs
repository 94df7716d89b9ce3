//! `cargo xtask tidy`: what the compiler and its friends do not check.
//!
//! Each rule reads the tree's files and returns findings, `file:line: what is wrong`. A rule that
//! makes the code worse is broken with a reason beside it: `// tidy: long because ...` above a
//! function, `// tidy: table` or `// tidy: long because ...` near the top of a file.

mod arrows;
mod documents;
mod sizes;
mod unsafety;
mod words;

use crate::steps::Outcome;
use crate::tree;
use anyhow::Result;

/// Options of `cargo xtask tidy`.
#[derive(clap::Args)]
pub struct Options {
    /// Write UNSAFE.md first
    #[arg(long)]
    write: bool,
}

/// A file of the tree with its text.
pub struct Source {
    /// Its path relative to the root.
    pub name: String,
    /// Its text; files that are not text are left out.
    pub text: String,
}

impl Source {
    /// Whether the name ends in one of `endings`.
    fn is(&self, endings: &[&str]) -> bool {
        endings.iter().any(|ending| self.name.ends_with(ending))
    }

    /// A finding at a line counted from one.
    fn at(&self, line: usize, what: impl std::fmt::Display) -> String {
        format!("{}:{line}: {what}", self.name)
    }
}

/// Runs all rules and prints what they find.
pub fn run(options: &Options) -> Result<bool> {
    if options.write {
        unsafety::write(&sources()?)?;
    }
    let outcome = check()?;
    for failure in &outcome.failures {
        println!("{failure}");
    }
    println!("tidy: {} rules hold, {} findings", outcome.passed, outcome.failures.len());
    Ok(outcome.failures.is_empty())
}

/// A rule: its findings over all sources.
type Rule = fn(&[Source]) -> Result<Vec<String>>;

/// Runs all rules; a rule without findings is one check that held.
pub fn check() -> Result<Outcome> {
    let sources = sources()?;
    let rules: [Rule; 10] = [
        sizes::headers,
        sizes::lines,
        sizes::functions,
        unsafety::files,
        unsafety::list,
        words::banned,
        arrows::down,
        documents::links,
        documents::quoted,
        documents::change_log,
    ];
    let mut outcome = Outcome::default();
    for rule in rules {
        let findings = rule(&sources)?;
        outcome.passed += usize::from(findings.is_empty());
        outcome.failures.extend(findings);
    }
    Ok(outcome)
}

fn sources() -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for name in tree::files()? {
        let bytes = std::fs::read(tree::root().join(&name))?;
        if let Ok(text) = String::from_utf8(bytes) {
            sources.push(Source { name, text });
        }
    }
    Ok(sources)
}
