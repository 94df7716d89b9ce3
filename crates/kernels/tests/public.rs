//! The unit that names every public device function: it is complete, and the host's compiler takes
//! it without a warning. (The device's compilers are run by `cargo xtask test`.)

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const HEADERS: [&str; 12] = [
    "agent.h",
    "impl/backoff.h",
    "ring.h",
    "bam.h",
    "copilot.h",
    "lanes.h",
    "pattern.h",
    "queue.h",
    "impl/arch_simt.h",
    "impl/arch_cuda.h",
    "impl/queue__command.h",
    "impl/ring__entry.h",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Names of the functions that a header marks as device functions, its private ones left out.
fn device_functions(header: &str) -> BTreeSet<String> {
    let path = root().join("include/sidecore").join(header);
    let text = std::fs::read_to_string(&path).unwrap();
    let public = text.split("\n private:").next().unwrap();
    let public = public.split("\n protected:").next().unwrap();
    let declarations = public.split("SC_DEVICE ").skip(1);
    let names = declarations.filter_map(|text| {
        let (signature, _) = text.split_once('(')?;
        let name = signature.rsplit([' ', '*', '&']).next()?;
        // A macro that makes functions has its name as a parameter.
        (name != "function" && !signature.contains('\n')).then(|| name.to_owned())
    });
    let made = text.lines().filter_map(|line| {
        let arguments = line.strip_prefix("SC_LOAD(").or_else(|| line.strip_prefix("SC_STORE("))?;
        Some(arguments.split(',').next()?.to_owned())
    });
    names.chain(made).filter(|name| !name.contains('\\')).collect()
}

#[test]
fn the_unit_names_every_public_device_function() {
    let unit = std::fs::read_to_string(root().join("tests/device/public.cu")).unwrap();
    let mut count = 0;
    for header in HEADERS {
        for name in device_functions(header) {
            count += 1;
            let named = [format!("{name}("), format!("{name}<")].iter().any(|n| unit.contains(n));
            assert!(named, "{header}: {name} is not in the unit");
        }
    }
    assert!(count > 60, "only {count} functions found: the headers are written differently now");
}

#[test]
fn both_arch_layers_have_the_same_functions() {
    let simt = device_functions("impl/arch_simt.h");
    let cuda = device_functions("impl/arch_cuda.h");
    assert_eq!(simt, cuda);
}

#[test]
fn the_hosts_compiler_takes_the_unit_without_a_warning() {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let output = Command::new(&compiler)
        .args(["-xc++", "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .arg("-DSIDECORE_SIMT")
        .arg("-I")
        .arg(root().join("include"))
        .arg(root().join("tests/device/public.cu"))
        .output()
        .unwrap_or_else(|e| panic!("{compiler}: {e}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
