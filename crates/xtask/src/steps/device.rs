//! Device code compiles: every `.cu` file of the tree, by nvcc and by NVRTC, for each architecture
//! (but for kernels that try the simulator itself).
//!
//! No GPU is needed. The compilers are NVIDIA's wheels, installed below `target/tools/cuda`.
//! A warning is a failure.

use super::Outcome;
use crate::process::{Finished, Run};
use crate::tree;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// What the device code must compile for.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90", "sm_100"];
/// Kernels that try the simulator itself, in C++ of the host.
const SIMULATOR_ONLY: &str = "crates/simt/tests/";
/// Whole programs, kernels and host code together: compiled by nvcc alone.
const PROGRAMS: [&str; 3] =
    ["examples/cuda/position_sum.cu", "tests/c_api/reset.cpp", "tests/foreign/foreign.cpp"];
/// NVIDIA's compilers as wheels, of CUDA 13.0: the oldest of its major version, whose code every
/// driver of that version loads.
const WHEELS: &str = "nvidia-cuda-nvcc==13.0.88 nvidia-cuda-nvrtc==13.0.88 \
                      nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96 \
                      nvidia-cuda-cccl==13.0.85";

/// Compiles everything, two at a time.
pub fn step() -> Result<Outcome> {
    let toolkit = Toolkit::install()?;
    let files = tree::files()?
        .into_iter()
        .filter(|name| name.ends_with(".cu") && !name.starts_with(SIMULATOR_ONLY))
        .filter(|name| !PROGRAMS.contains(&name.as_str()));
    let jobs: Vec<(String, &str)> =
        files.flat_map(|file| ARCHITECTURES.map(|arch| (file.clone(), arch))).collect();
    let mut outcome = Outcome::default();
    outcome.check(!jobs.is_empty(), || "the tree has no .cu file".to_owned());
    let half = jobs.len().div_ceil(2).max(1);
    let parts: Vec<Result<Outcome>> = std::thread::scope(|scope| {
        let threads: Vec<_> = jobs
            .chunks(half)
            .map(|chunk| {
                let toolkit = &toolkit;
                scope.spawn(move || compile(toolkit, chunk))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic in there")).collect()
    });
    for part in parts {
        outcome.absorb(part?);
    }
    for program in PROGRAMS {
        let finished = toolkit.program(program)?;
        outcome.check(finished.ok, || {
            format!("nvcc, {program}: {}\n{}", finished.how(), finished.output)
        });
    }
    Ok(outcome)
}

fn compile(toolkit: &Toolkit, jobs: &[(String, &str)]) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for (file, arch) in jobs {
        for (compiler, finished) in
            [("nvcc", toolkit.nvcc(file, arch)?), ("NVRTC", toolkit.nvrtc(file, arch)?)]
        {
            outcome.check(finished.ok, || {
                format!("{compiler}, {file}, {arch}: {}\n{}", finished.how(), finished.output)
            });
        }
    }
    Ok(outcome)
}

/// Installs the compilers; the folder of their shared libraries.
pub fn libraries() -> Result<PathBuf> {
    Ok(Toolkit::install()?.root.join("lib"))
}

struct Toolkit {
    root: PathBuf,
}

impl Toolkit {
    fn install() -> Result<Self> {
        let folder = tree::target().join("tools/cuda");
        let done = folder.join("installed");
        if std::fs::read_to_string(&done).ok().as_deref() != Some(WHEELS) {
            Run::new("python3")
                .words("-m pip install --quiet --no-deps --upgrade --root-user-action=ignore")
                .arg("--target")
                .arg(&folder)
                .words(WHEELS)
                .log("pip")?
                .run()?
                .expect_ok("pip install of NVIDIA's compilers")?;
            std::fs::write(&done, WHEELS).context("noting the installation")?;
        }
        Ok(Self { root: folder.join("nvidia/cu13") })
    }

    fn nvcc(&self, file: &str, arch: &str) -> Result<Finished> {
        let log = log_name("nvcc", file, arch);
        let cubin = tree::scratch(&format!("{log}.cubin"))?;
        Run::new(self.root.join("bin/nvcc"))
            .words("-std=c++17 -cubin -Werror all-warnings -Iinclude")
            .arg(format!("-arch={arch}"))
            .arg("-o")
            .arg(cubin)
            .arg(file)
            .seconds(300)
            .log(&log)?
            .run()
    }

    /// A program's kernels and host code, without linking.
    fn program(&self, file: &str) -> Result<Finished> {
        let log = log_name("nvcc-program", file, "sm_90");
        Run::new(self.root.join("bin/nvcc"))
            .words("-std=c++17 -x cu -c -arch=sm_90 -Werror all-warnings -Iinclude -o")
            .arg(tree::scratch(&format!("{log}.o"))?)
            .arg(file)
            .seconds(300)
            .log(&log)?
            .run()
    }

    fn nvrtc(&self, file: &str, arch: &str) -> Result<Finished> {
        let folder = Path::new(file).parent().unwrap_or(Path::new("."));
        Run::new("python3")
            .arg("crates/xtask/nvrtc.py")
            .arg(self.root.join("lib/libnvrtc.so.13"))
            .args([file, arch, "include"])
            .arg(folder)
            .env("LD_LIBRARY_PATH", self.root.join("lib"))
            .seconds(300)
            .log(&log_name("nvrtc", file, arch))?
            .run()
    }
}

fn log_name(compiler: &str, file: &str, arch: &str) -> String {
    format!("{compiler}-{}-{arch}", file.replace('/', "-"))
}
