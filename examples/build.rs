//! Compiles the examples' kernels for the simulated GPU.

#[path = "../crates/simt/build/kernels.rs"]
mod kernels;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let sources = ["byte_sum.cu", "read_async.cu", "read_sync.cu"];
    kernels::compile("examples", &kernels::include_dir(), &sources);
    kernels::declare(&sources);
}
