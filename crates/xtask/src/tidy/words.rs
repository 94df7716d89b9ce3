//! Words that do not belong into the project's text.

use super::Source;
use anyhow::Result;

/// Each in two pieces, so that this file does not find itself.
const BANNED: &[(&str, &str, &str)] = &[
    ("TO", "DO", "limits and plans are in ARCHITECTURE.md"),
    ("FIX", "ME", "limits and plans are in ARCHITECTURE.md"),
    ("XX", "X:", "limits and plans are in ARCHITECTURE.md"),
    ("/wo", "rk/", "a path of one machine"),
    ("/ro", "ot/", "a path of one machine"),
    ("/ho", "me/", "a path of one machine"),
    ("issue ", "2", "an issue's number"),
    ("CONTRACT", ".md", "not a file of the project"),
    ("STYLE", ".md", "not a file of the project"),
    ("DESI", "GN", "not a file of the project"),
    ("static.crates", ".io", "a registry's host"),
    ("pypi", ".org", "a registry's host"),
    ("files.python", "hosted", "a registry's host"),
    ("deb.debian", ".org", "a registry's host"),
    ("registry.npm", "js", "a registry's host"),
    ("this ses", "sion", "tells who wrote it"),
    ("(to be writ", "ten)", "says that something is missing"),
];

/// None of the banned words occurs.
pub fn banned(sources: &[Source]) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| !source.name.ends_with("Cargo.lock")) {
        for (index, line) in source.text.lines().enumerate() {
            for (head, tail, why) in BANNED {
                let word = format!("{head}{tail}");
                if line.contains(&word) {
                    findings.push(source.at(index + 1, format!("says `{word}`: {why}")));
                }
            }
        }
    }
    Ok(findings)
}
