//! Compiles the kernels for the simulated GPU, and lists the device headers for real ones.

use std::fmt::Write;
use std::path::{Path, PathBuf};

#[path = "../simt/build/kernels.rs"]
mod kernels;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=kernels");
    let sources = [
        "kernels/bench_bam.cu",
        "kernels/bench_copilot.cu",
        "kernels/bench_copilot_agent.cu",
        "kernels/bench_data.cu",
        "kernels/bench_ring.cu",
        "kernels/bench_ring_agent.cu",
        "kernels/clock.cu",
        "kernels/copy.cu",
        "kernels/fma.cu",
        "kernels/litmus.cu",
        "kernels/probe.cu",
        "kernels/queue_probe.cu",
        "kernels/queue_trial.cu",
        "kernels/trial.cu",
    ];
    let include = kernels::include_dir();
    kernels::compile("sidecore_kernels", &include, &sources);
    list_headers(&[&include, Path::new("kernels")]);
}

/// Writes `headers.rs`: a constant with the name and text of every header below `roots`.
fn list_headers(roots: &[&Path]) {
    let mut files = Vec::new();
    for root in roots {
        let first = files.len();
        collect(root, root, &mut files);
        files[first..].sort();
    }
    let mut text = String::from("&[\n");
    for (name, file) in files {
        let path = file.canonicalize().expect("it was found just now");
        writeln!(text, "Header {{ name: {:?}, text: include_str!({path:?}) }},", name)
            .expect("strings take everything");
    }
    text.push_str("]\n");
    let out: PathBuf = std::env::var_os("OUT_DIR").expect("cargo sets it").into();
    std::fs::write(out.join("headers.rs"), text).expect("cargo made the directory");
}

/// Adds each header below `folder`, with its name from `root` on.
fn collect(root: &Path, folder: &Path, files: &mut Vec<(String, PathBuf)>) {
    for entry in std::fs::read_dir(folder).expect("the include directory is there") {
        let path = entry.expect("it can be listed").path();
        if path.is_dir() {
            collect(root, &path, files);
        } else if path.extension().is_some_and(|ending| ending == "h") {
            let name = path.strip_prefix(root).expect("it was found below").display().to_string();
            files.push((name, path));
        }
    }
}
