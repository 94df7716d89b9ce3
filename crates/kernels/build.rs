//! Compiles the kernels for the simulated GPU.

#[path = "../simt/build/kernels.rs"]
mod kernels;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let sources = ["kernels/bench_ring.cu", "kernels/probe.cu", "kernels/trial.cu"];
    kernels::compile("sidecore_kernels", &kernels::include_dir(), &sources);
}
