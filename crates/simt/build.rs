//! Compiles the simulator's C++ thread-local, and (under `seeded`) the kernels of its own tests.

use std::path::Path;

#[path = "build/kernels.rs"]
mod kernels;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include");
    let include = root.canonicalize().expect("include/ lies beside crates/");
    println!("cargo:include={}", include.display());
    println!("cargo:rerun-if-changed=build");
    kernels::compile("sidecore_simt_thread", &include, &["src/device/thread.cpp"]);
    if std::env::var_os("CARGO_FEATURE_SEEDED").is_some() {
        compile_test_kernels(&include);
    }
}

/// Test kernels are linked by the tests alone, which name the library in a `#[link]`.
fn compile_test_kernels(include: &Path) {
    println!("cargo:rerun-if-changed=tests/kernels");
    let mut sources: Vec<_> = std::fs::read_dir("tests/kernels")
        .expect("tests/kernels lies beside build.rs")
        .map(|entry| entry.expect("a readable directory").path())
        .collect();
    sources.sort();
    kernels::builder(include)
        .cargo_metadata(false)
        .files(&sources)
        .compile("sidecore_simt_test_kernels");
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    println!("cargo:rustc-link-search=native={out}");
}
