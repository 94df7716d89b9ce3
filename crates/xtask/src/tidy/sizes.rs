//! Sizes of files, functions and lines, and the header that says each file's duty.

use super::Source;
use anyhow::Result;

const FILE_LINES_MAX: usize = 600;
const TABLE_LINES_MAX: usize = 1200;
const INLINE_TEST_LINES_MAX: usize = 150;
const HEADER_LINES_MAX: usize = 300;
const FUNCTION_LINES_MAX: usize = 70;
/// rustfmt holds code to 100 columns; a comment or a text may overhang it a little.
const COLUMNS_MAX: usize = 110;

const RUST: &[&str] = &[".rs"];
const DEVICE: &[&str] = &[".h", ".cu", ".cc", ".cpp"];
const CODE: &[&str] = &[".rs", ".h", ".cu", ".cc", ".cpp"];

/// Every Rust file begins with its duty, every C++ file with a comment.
pub fn headers(sources: &[Source]) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.is(CODE)) {
        let first = source.text.lines().find(|line| !line.is_empty()).unwrap_or_default();
        let wanted = if source.is(RUST) { "//!" } else { "//" };
        if !first.starts_with(wanted) {
            findings.push(source.at(1, format!("begins without a `{wanted}` header")));
        }
    }
    Ok(findings)
}

/// Files are short, and so are their lines.
pub fn lines(sources: &[Source]) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.is(CODE)) {
        for (index, line) in source.text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX && !line.contains("://") {
                findings.push(source.at(index + 1, format!("{columns} columns")));
            }
        }
        if excused(source.text.lines().take(60), "long because") {
            continue;
        }
        let table = excused(source.text.lines().take(60), "table");
        let public_header = source.is(DEVICE)
            && source.name.starts_with("include/sidecore/")
            && !source.name.contains("/impl/");
        let most = match (table, public_header) {
            (true, _) => TABLE_LINES_MAX,
            (false, true) => HEADER_LINES_MAX,
            (false, false) => FILE_LINES_MAX,
        };
        let (code, tests) = split(&source.text);
        if code > most {
            findings.push(source.at(1, format!("{code} lines, more than {most}")));
        }
        if tests > INLINE_TEST_LINES_MAX {
            findings.push(source.at(
                code + 1,
                format!("{tests} lines of inline tests: move them to a sibling file"),
            ));
        }
    }
    Ok(findings)
}

/// Functions are short, by rustfmt's own indentation: a body ends at the first `}` in the column
/// in which its head begins.
pub fn functions(sources: &[Source]) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.is(RUST)) {
        let lines: Vec<&str> = source.text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let Some(length) = function_length(&lines[index..]) else { continue };
            let above = lines[..index].iter().rev().take(12).copied();
            let own = above.take_while(|above| is_prefix_line(above));
            if length > FUNCTION_LINES_MAX && !excused(own, "long because") {
                let head = line.trim();
                findings.push(source.at(index + 1, format!("{length} lines long: {head}")));
            }
        }
    }
    Ok(findings)
}

/// Whether one of `lines` carries the excuse `// tidy: WORDS`.
fn excused<'a>(mut lines: impl Iterator<Item = &'a str>, words: &str) -> bool {
    lines.any(|line| {
        line.trim().strip_prefix("// tidy: ").is_some_and(|excuse| excuse.starts_with(words))
    })
}

/// Whether a line belongs to the item below it: a comment or an attribute.
fn is_prefix_line(line: &str) -> bool {
    let line = line.trim();
    line.starts_with("//") || line.starts_with("#[") || line.ends_with(")]")
}

/// Lines of code, and lines of the inline test module at the end.
fn split(text: &str) -> (usize, usize) {
    let lines: Vec<&str> = text.lines().collect();
    let tests = lines.windows(2).position(|pair| {
        pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{')
    });
    let code = tests.unwrap_or(lines.len());
    (code, lines.len() - code)
}

/// Length of the function whose head is the first of `lines`; none where it is no head.
fn function_length(lines: &[&str]) -> Option<usize> {
    let head = lines.first()?;
    let indent = head.len() - head.trim_start().len();
    let mut words = head.trim_start().split(' ');
    let is_head = words.by_ref().find(|word| !is_qualifier(word)) == Some("fn");
    if !is_head || head.ends_with(';') || head.ends_with('}') {
        return None;
    }
    for (index, line) in lines.iter().enumerate().skip(1) {
        let here = line.len() - line.trim_start().len();
        if here == indent && line.trim() == "}" {
            return Some(index + 1);
        }
        if here == indent && line.ends_with(';') {
            return None;
        }
    }
    None
}

fn is_qualifier(word: &str) -> bool {
    let known = ["pub", "const", "async", "unsafe", "extern", "\"C\"", "default"];
    known.contains(&word) || word.starts_with("pub(")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(name: &str, text: String) -> Vec<Source> {
        vec![Source { name: name.to_owned(), text }]
    }

    #[test]
    fn a_long_function_is_found_unless_it_is_excused() {
        let body = "    x();\n".repeat(80);
        let text = format!("//! Duty.\npub fn long() {{\n{body}}}\n");
        assert_eq!(functions(&source("a.rs", text.clone())).unwrap().len(), 1);
        let excused = text.replace("pub fn", "// tidy: long because tables\n#[test]\npub fn");
        assert!(functions(&source("a.rs", excused)).unwrap().is_empty());
    }

    #[test]
    fn a_file_without_duty_or_with_a_wide_line_is_found() {
        let text = format!("use x;\n// {}\n", "w".repeat(120));
        assert_eq!(headers(&source("a.rs", text.clone())).unwrap().len(), 1);
        assert_eq!(lines(&source("a.rs", text)).unwrap().len(), 1);
    }

    #[test]
    fn inline_tests_are_counted_apart() {
        assert_eq!(split("a\n#[cfg(test)]\nmod tests {\n}\n"), (1, 3));
        assert_eq!(split("a\n#[cfg(test)]\nmod tests;\n"), (3, 0));
    }
}
