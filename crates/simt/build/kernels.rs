//! Compiles device code for the simulated GPU; used by build scripts through `#[path]`.
//!
//! ```text
//! // build.rs; `simt` is a dependency of the package and `cc` a build dependency
//! #[path = "../simt/build/kernels.rs"]
//! mod kernels;
//! fn main() {
//!     kernels::compile("my_kernels", &kernels::include_dir(), &["kernels/mine.cu"]);
//! }
//! ```
//! The kernels are then `unsafe extern "C" fn(*const c_void)` functions of their own names; `declare`
//! names them for safe code: `include!(concat!(env!("OUT_DIR"), "/kernels.rs"));` makes a kernel `mine`
//! the constant `MINE`.

use std::path::{Path, PathBuf};

/// The device headers, as the `simt` package tells its dependents.
#[allow(dead_code, reason = "not every build script needs it")]
pub fn include_dir() -> PathBuf {
    std::env::var_os("DEP_SIDECORE_SIMT_INCLUDE")
        .expect("a package with kernels depends on sidecore-simt directly")
        .into()
}

/// Compiles and links `sources` (C++17 under any file name) as the static library `name`.
pub fn compile(name: &str, include: &Path, sources: &[&str]) {
    for source in sources {
        println!("cargo:rerun-if-changed={source}");
    }
    println!("cargo:rerun-if-changed={}", include.display());
    let mut build = builder(include);
    if let Err(error) = build.try_get_compiler() {
        eprintln!(
            "The simulated GPU's code is C++17 and needs a compiler: install g++, or set CXX."
        );
        eprintln!("{error}");
        std::process::exit(1);
    }
    build.files(sources).compile(name);
}

/// Writes `kernels.rs`, a `gpu::Kernel` for each kernel of `sources`, which `compile` links.
#[allow(dead_code, reason = "not every build script needs it")]
pub fn declare(sources: &[&str]) {
    let mut text = String::new();
    for source in sources {
        let code = std::fs::read_to_string(source).expect("a kernel's file");
        for kernel in code.lines().filter_map(|line| line.strip_prefix("SC_KERNEL(")) {
            let (name, _) = kernel.split_once(',').expect("SC_KERNEL(name, Arguments, arguments)");
            text.push_str(&constant(name));
        }
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    std::fs::write(out.join("kernels.rs"), text).expect("cargo made the directory");
}

fn constant(name: &str) -> String {
    let constant = name.to_uppercase();
    let allow = "#[allow(dead_code, unsafe_code, reason = \"the build script has compiled it\")]";
    let foreign = format!("unsafe extern \"C\" {{ fn {name}(_: *const core::ffi::c_void); }}");
    let kernel = format!("gpu::Kernel::simulated(\"{name}\", simt::Entry({name}))");
    format!("{allow}\nconst {constant}: gpu::Kernel = {{\n{foreign}\n{kernel}\n}};\n")
}

/// The compiler with the flags that device code needs.
pub fn builder(include: &Path) -> cc::Build {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .cpp_link_stdlib(None)
        .std("c++17")
        .flags(["-xc++", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"])
        .flags(["-Wall", "-Wextra", "-Werror"])
        .opt_level(2)
        .define("SIDECORE_SIMT", None)
        .include(include);
    build
}
