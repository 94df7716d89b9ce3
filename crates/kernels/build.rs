//! Compiles the kernels for the simulated GPU.

#[path = "../simt/build/kernels.rs"]
mod kernels;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=kernels");
    let sources = [
        "kernels/bench_bam.cu",
        "kernels/bench_copilot.cu",
        "kernels/bench_ring.cu",
        "kernels/probe.cu",
        "kernels/queue_probe.cu",
        "kernels/queue_trial.cu",
        "kernels/trial.cu",
    ];
    kernels::compile("sidecore_kernels", &kernels::include_dir(), &sources);
}
