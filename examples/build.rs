//! Compiles the example's kernel for the simulated GPU.

#[path = "../crates/simt/build/kernels.rs"]
mod kernels;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    kernels::compile("byte_sum", &kernels::include_dir(), &["byte_sum.cu"]);
}
