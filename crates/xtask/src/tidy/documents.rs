//! Documents: links lead somewhere, files that are named exist, the change log has its form.

use super::Source;
use crate::tree;
use anyhow::Result;
use std::path::Path;

/// Links in Markdown files, and files that documents spell out, exist.
pub fn links(sources: &[Source]) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for source in sources {
        let markdown = source.is(&[".md"]);
        let mut code = false;
        for (index, line) in source.text.lines().enumerate() {
            code ^= markdown && line.trim_start().starts_with("```");
            let comment =
                line.trim_start().starts_with("//!") || line.trim_start().starts_with("///");
            if code || !(markdown || comment && source.is(&[".rs", ".h"])) {
                continue;
            }
            let folder = Path::new(&source.name).parent().unwrap_or(Path::new(""));
            let broken = targets(line).filter(|to| markdown && !leads(folder, to));
            findings.extend(broken.map(|to| source.at(index + 1, format!("no such file: {to}"))));
            let absent = spelled(line).filter(|name| !tree::root().join(name).exists());
            findings.extend(absent.map(|to| source.at(index + 1, format!("no such file: {to}"))));
        }
    }
    Ok(findings)
}

/// A block after a line `<!-- file: NAME -->` is that file, to the letter.
pub fn quoted(sources: &[Source]) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.is(&[".md"])) {
        for (before, rest) in pieces(&source.text) {
            let Some((name, block)) = rest.split_once(" -->\n```") else { continue };
            let body = block.split_once('\n').map_or("", |(_, body)| body);
            let quoted = body.split_once("\n```").map_or(body, |(quoted, _)| quoted);
            let known = sources.iter().find(|other| other.name == name);
            if known.is_none_or(|file| file.text.trim_end() != quoted.trim_end()) {
                let line = before.lines().count() + 1;
                findings.push(source.at(line, format!("the block below is not {name}")));
            }
        }
    }
    Ok(findings)
}

/// What stands before and after each mark of a quoted file.
fn pieces(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mark = "<!-- file: ";
    text.match_indices(mark).map(move |(at, _)| (&text[..at], &text[at + mark.len()..]))
}

/// CHANGELOG.md is in the form of "Keep a Changelog".
pub fn change_log(sources: &[Source]) -> Result<Vec<String>> {
    let Some(source) = sources.iter().find(|source| source.name == "CHANGELOG.md") else {
        return Ok(vec!["CHANGELOG.md:1: is not there".to_owned()]);
    };
    let kinds = ["Added", "Changed", "Deprecated", "Fixed", "Removed", "Security"];
    let mut findings = Vec::new();
    let first = source.text.lines().next().unwrap_or_default();
    if first != "# Changelog" {
        findings.push(source.at(1, "does not begin with `# Changelog`"));
    }
    let mut versions = 0;
    for (index, line) in source.text.lines().enumerate() {
        if let Some(version) = line.strip_prefix("## ") {
            versions += 1;
            let dated = version.split_once("] - ").is_some_and(|(_, date)| date.len() == 10);
            if !(version.starts_with('[') && (version == "[Unreleased]" || dated)) {
                findings.push(source.at(index + 1, "neither `[Unreleased]` nor `[x.y.z] - date`"));
            }
        } else if let Some(kind) = line.strip_prefix("### ")
            && !kinds.contains(&kind)
        {
            findings.push(source.at(index + 1, format!("`{kind}` is none of {kinds:?}")));
        }
    }
    if versions == 0 {
        findings.push(source.at(1, "names no version"));
    }
    Ok(findings)
}

/// Targets of `[text](target)` in a line.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next())
}

/// Whether a link's target is outside, inside the same page, or a file that exists.
fn leads(folder: &Path, target: &str) -> bool {
    let path = target.split('#').next().unwrap_or_default();
    target.contains("://") || path.is_empty() || tree::root().join(folder).join(path).exists()
}

/// Files of the tree that a line spells in backticks, from the root on.
fn spelled(line: &str) -> impl Iterator<Item = &str> {
    let roots = ["crates/", "docs/", "examples/", "fuzz/", "include/", "kernels/", ".ci/"];
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    line.split('`')
        .skip(1)
        .step_by(2)
        .filter(move |name| roots.iter().any(|root| name.starts_with(root)))
        .filter(move |name| name.chars().all(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_nowhere_is_found() {
        let text = "[a](Cargo.toml) [b](nowhere.md) `crates/xtask/none.rs` [c](#here)".to_owned();
        let found = links(&[Source { name: "README.md".to_owned(), text }]).unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn a_quoted_file_that_has_changed_is_found() {
        let file = |name: &str, text: &str| Source { name: name.to_owned(), text: text.to_owned() };
        let page = file("R.md", "a\n\n<!-- file: k.cu -->\n```cpp\nint x;\n```\n");
        let same = [page, file("k.cu", "int x;\n")];
        assert!(quoted(&same).unwrap().is_empty());
        let [page, _] = same;
        assert_eq!(
            quoted(&[page, file("k.cu", "int y;\n")]).unwrap(),
            ["R.md:3: the block below is not k.cu"]
        );
    }

    #[test]
    fn a_change_log_without_form_is_found() {
        let one =
            |text: &str| vec![Source { name: "CHANGELOG.md".to_owned(), text: text.to_owned() }];
        let good = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n## [0.1.0] - 2026-11-30\n";
        assert!(change_log(&one(good)).unwrap().is_empty());
        assert_eq!(change_log(&one("# Changelog\n## 0.1\n### New\n")).unwrap().len(), 2);
    }
}
