//! Dependency arrows point down, and who may not know what does not.

use super::Source;
use anyhow::{Context, Result};

/// The floor of each crate, and the crates of its own floor that it may use.
const FLOORS: &[(&str, u8, &[&str])] = &[
    ("spec", 0, &[]),
    ("abi", 0, &[]),
    ("proto", 1, &[]),
    ("mem", 2, &[]),
    ("stats", 2, &["mem"]),
    ("uring", 2, &["mem"]),
    ("cuda", 2, &["mem"]),
    ("simt", 3, &[]),
    ("kernels", 3, &["simt", "gpu"]),
    ("gpu", 3, &["simt"]),
    ("driver", 3, &[]),
    ("ctrl", 3, &["storage"]),
    ("storage", 3, &["driver"]),
    ("bulk", 4, &[]),
    ("sidecore", 4, &[]),
    ("capi", 5, &[]),
    ("cli", 5, &["selftest"]),
    ("python", 5, &[]),
    ("selftest", 5, &[]),
    ("testkit", 6, &[]),
    ("xtask", 6, &[]),
];

/// What a crate must not use, whatever the floors say.
const STRANGERS: &[(&str, &[&str])] = &[
    ("mem", &["spec", "abi", "proto"]),
    ("stats", &["spec", "proto"]),
    ("uring", &["spec", "proto"]),
    ("cuda", &["spec", "proto", "uring", "abi"]),
    ("simt", &["spec", "proto", "uring"]),
    ("gpu", &["spec", "proto", "uring"]),
    ("driver", &["uring", "abi"]),
    ("ctrl", &["driver", "proto", "uring", "abi"]),
    ("storage", &["abi"]),
];

/// Every dependency goes to a lower floor, or is named in the table.
pub fn down(sources: &[Source]) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for source in sources {
        let Some(name) = source.name.strip_prefix("crates/") else { continue };
        let Some(name) = name.strip_suffix("/Cargo.toml") else { continue };
        let Some((_, floor, same)) = FLOORS.iter().find(|(known, ..)| *known == name) else {
            findings.push(source.at(1, "a crate without a floor in xtask's table"));
            continue;
        };
        for used in uses(&source.text).with_context(|| format!("reading {}", source.name))? {
            let below = FLOORS.iter().find(|(known, ..)| *known == used);
            let Some((_, other, _)) = below else { continue };
            if other >= floor && !same.contains(&used.as_str()) {
                findings.push(source.at(1, format!("floor {floor} uses {used} of floor {other}")));
            }
            if STRANGERS.iter().any(|(who, what)| *who == name && what.contains(&used.as_str())) {
                findings.push(source.at(1, format!("must not know {used}")));
            }
        }
    }
    Ok(findings)
}

/// Names of what a manifest depends on; what only its tests use does not count.
fn uses(manifest: &str) -> Result<Vec<String>> {
    let manifest: toml::Table = manifest.parse().context("not TOML")?;
    let tables = ["dependencies", "build-dependencies"];
    let names = tables.iter().filter_map(|name| manifest.get(*name)?.as_table());
    Ok(names.flat_map(|table| table.keys().cloned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrow_up_is_found_and_a_test_dependency_is_not() {
        let one = |text: &str| {
            vec![Source { name: "crates/mem/Cargo.toml".to_owned(), text: text.to_owned() }]
        };
        let up = one("[dependencies]\ngpu.workspace = true\n");
        assert_eq!(down(&up).unwrap().len(), 1);
        let test = one("[dev-dependencies]\ntestkit.workspace = true\n");
        assert!(down(&test).unwrap().is_empty());
        let stranger = one("[dependencies]\nspec.workspace = true\n");
        assert_eq!(down(&stranger).unwrap().len(), 1);
    }
}
