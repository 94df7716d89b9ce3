//! Where NVIDIA's driver or compiler is missing, broken or too old, the command says so with the remedy
//! and simulates; a GPU that was named and cannot be had is an error. The libraries are fakes.

use std::path::Path;
use std::process::{Command, Output};

/// A directory with fake libraries, and none of the user's own compiled code.
struct Fakes(tempfile::TempDir);

impl Fakes {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn with(self, source: &str, library: &str, macros: &[&str]) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake");
        let mut compiler = Command::new("g++");
        compiler.args(["-shared", "-fPIC", "-x", "c", "-std=gnu11", "-w"]);
        compiler.args(macros.iter().map(|name| format!("-D{name}")));
        compiler.arg(folder.join(source)).arg("-o").arg(self.0.path().join(library));
        assert!(compiler.status().unwrap().success());
        self
    }

    fn driver(macros: &[&str]) -> Self {
        Self::new().with("driver.c", "libcuda.so.1", macros)
    }

    fn compiler(self, macros: &[&str]) -> Self {
        // Under every soname, so that no real one is taken.
        let one = self.with("nvrtc.c", "libnvrtc.so.13", macros);
        one.with("nvrtc.c", "libnvrtc.so.12", macros)
    }

    fn run(&self, gpu: &str) -> Output {
        Command::new(env!("CARGO_BIN_EXE_sidecore"))
            .args(["bench", "--path", "posix", "--ios", "64", "--size", "1M", "--io-size", "4k"])
            .args(["--repeats", "1", "--json", "--gpu", gpu])
            .env("LD_LIBRARY_PATH", self.0.path())
            .env("XDG_CACHE_HOME", self.0.path())
            .env_remove("CUDA_HOME")
            .env_remove("CUDA_PATH")
            .output()
            .unwrap()
    }
}

/// `auto` simulates and says all of `words`; naming the GPU fails with the same words.
fn simulates_and_says(fakes: &Fakes, words: &[&str]) {
    let auto = fakes.run("auto");
    let said = String::from_utf8_lossy(&auto.stderr).into_owned();
    assert!(auto.status.success(), "{said}");
    let row = String::from_utf8_lossy(&auto.stdout).into_owned();
    assert!(row.contains("\"gpu\":\"simulated"), "{row}");
    let named = fakes.run("0");
    let refused = String::from_utf8_lossy(&named.stderr).into_owned();
    assert!(!named.status.success() && named.stdout.is_empty(), "{refused}");
    for word in words {
        assert!(said.contains(word), "auto does not say {word:?}: {said}");
        assert!(refused.contains(word), "0 does not say {word:?}: {refused}");
    }
}

#[test]
fn a_library_that_is_no_driver() {
    simulates_and_says(&Fakes::driver(&["EMPTY"]), &["libcuda.so.1", "reinstall NVIDIA's driver"]);
}

#[test]
fn an_old_driver() {
    let words = ["11.4 is older than 12.0", "install NVIDIA driver 525 or newer"];
    simulates_and_says(&Fakes::driver(&["VERSION=11040"]), &words);
}

#[test]
fn a_driver_without_a_function() {
    simulates_and_says(
        &Fakes::driver(&["PARTIAL"]),
        &["no function cuInit", "install NVIDIA driver"],
    );
}

#[test]
fn a_driver_without_a_device() {
    let words = ["CUDA_ERROR_NO_DEVICE", "/dev/nvidia0"];
    simulates_and_says(&Fakes::driver(&["INIT=100"]), &words);
    simulates_and_says(&Fakes::driver(&["DEVICES=0"]), &["finds none", "CUDA_VISIBLE_DEVICES"]);
}

#[test]
fn a_driver_beside_another_kernel_module() {
    simulates_and_says(&Fakes::driver(&["INIT=803"]), &["803", "reboot"]);
}

#[test]
fn an_old_device() {
    let words = ["compute capability (7, 0)", "8.0 or newer"];
    simulates_and_says(&Fakes::driver(&["MAJOR=7"]), &words);
}

#[test]
fn a_compiler_that_is_old_or_broken_or_newer_than_the_driver() {
    let old = Fakes::driver(&[]).compiler(&["NVRTC_MAJOR=11"]);
    simulates_and_says(&old, &["NVRTC", "version 11.1", "12.3 or newer"]);
    let broken = Fakes::driver(&[]).compiler(&["PARTIAL"]);
    simulates_and_says(&broken, &["no function nvrtcCreateProgram", "12.3 or newer"]);
    let newer = Fakes::driver(&["VERSION=12060"]).compiler(&[]);
    simulates_and_says(&newer, &["the driver is for 12.6", "a newer driver"]);
}

#[test]
fn a_gpu_that_there_is_none_of() {
    let refused = Fakes::driver(&[]).run("1");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{said}");
    assert!(said.contains("GPU 1: the driver finds 1") && said.contains("nvidia-smi -L"), "{said}");
    let odd = Fakes::new().run("first");
    assert!(String::from_utf8_lossy(&odd.stderr).contains("neither auto, simulated nor"));
}

#[test]
fn a_simulated_one_that_was_asked_for_needs_no_reason() {
    let output = Fakes::driver(&["INIT=803"]).run("simulated");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !said.contains("driver"), "{said}");
}
