//! Includes by whole names, since the run-time compiler takes the names of headers in memory literally.
//!
//! `#include "impl/arch.h"` in `sidecore/ring.h` becomes `#include "sidecore/impl/arch.h"`, where there
//! is such a header. Lines stay lines, so messages name the right ones.

use std::borrow::Cow;

use crate::nvrtc::Header;

/// The text of `file` with each quoted include under its whole name.
pub fn by_whole_names(file: &str, text: &str, headers: &[Header]) -> String {
    let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
    let line = |line| whole_name(folder, line, headers);
    let lines: Vec<Cow<'_, str>> = text.lines().map(line).collect();
    lines.join("\n") + "\n"
}

fn whole_name<'a>(folder: &str, line: &'a str, headers: &[Header]) -> Cow<'a, str> {
    let Some(name) = quoted_include(line) else { return Cow::Borrowed(line) };
    let whole = joined(folder, name);
    match headers.iter().find(|header| header.name == whole) {
        Some(header) => Cow::Owned(format!("#include \"{}\"", header.name)),
        None => Cow::Borrowed(line),
    }
}

/// `NAME` of a line `#include "NAME"`.
fn quoted_include(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
    let (name, _) = rest.trim_start().strip_prefix('"')?.split_once('"')?;
    Some(name)
}

/// A path from a folder on, without `.` and `..`.
fn joined(folder: &str, name: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_whole_where_there_is_such_a_header() {
        let headers = ["lib/a.h", "lib/impl/b.h", "c.h"].map(|name| Header { name, text: "" });
        let of = |file, text| by_whole_names(file, text, &headers);
        assert_eq!(
            of("lib/a.h", "// x\n#include \"impl/b.h\"  // why\n"),
            "// x\n#include \"lib/impl/b.h\"\n"
        );
        assert_eq!(of("lib/impl/b.h", "  # include \"../a.h\""), "#include \"lib/a.h\"\n");
        assert_eq!(
            of("k.cu", "#include <lib/a.h>\n#include \"c.h\""),
            "#include <lib/a.h>\n#include \"c.h\"\n"
        );
        assert_eq!(
            of("lib/a.h", "#include \"other.h\"\nint a;\n"),
            "#include \"other.h\"\nint a;\n"
        );
    }
}
