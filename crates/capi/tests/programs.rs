//! Programs in C and C++ over the header and the shared library, as a user builds them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A folder with the library under its own name, and programs.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Beside this test's executable, in `deps`.
        let own = std::env::current_exe().unwrap();
        let library = own.with_file_name("libsidecore_capi.so");
        assert!(library.is_file(), "{} is built with the tests", library.display());
        for name in ["libsidecore.so.0", "libsidecore.so"] {
            std::os::unix::fs::symlink(&library, folder.path().join(name)).unwrap();
        }
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Compiles without a warning; the program.
    fn compile(&self, source: &str, words: &[&str]) -> PathBuf {
        let program = self.path().join("program");
        let compiler = if source.ends_with(".c") { "gcc" } else { "g++" };
        let mut command = Command::new(compiler);
        command.args(words).args([
            "-O1",
            "-Wall",
            "-Wextra",
            "-Wredundant-decls",
            "-Werror",
            "-pthread",
        ]);
        command.arg("-I").arg(root().join("include")).arg(root().join(source));
        command.arg("-o").arg(&program).arg("-L").arg(self.path()).arg("-lsidecore");
        command.arg(format!("-Wl,-rpath,{}", self.path().display()));
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{source}: {said}");
        program
    }
}

fn run(program: &Path, words: &[&str]) -> String {
    let output: Output = Command::new(program).args(words).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {:?} {text}{said}", output.status);
    text
}

#[test]
fn a_c_program_is_told_what_it_does_wrong() {
    let bench = Bench::new();
    let program = bench.compile("tests/c_api/misuse.c", &["-std=c99", "-pedantic"]);
    // It makes a file, where it stands.
    let output = Command::new(&program).current_dir(bench.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0 wrong\n");
    assert!(output.status.success(), "{output:?}");
}

/// Nothing is read that was not set, nor outside of what was allocated; and who looks for faults of their own
/// program that way can. Where the kernel's own auxiliary vector was asked, that ended every program.
#[test]
fn a_c_program_runs_clean_under_valgrind() {
    let bench = Bench::new();
    let program = bench.compile("tests/c_api/misuse.c", &["-std=c99", "-pedantic", "-g"]);
    let mut command = Command::new("valgrind");
    command.args(["-q", "--error-exitcode=9"]).arg(&program).current_dir(bench.path());
    let Ok(output) = command.output() else {
        println!("SKIPPED a_c_program_runs_clean_under_valgrind: no valgrind");
        return;
    };
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0 wrong\n", "{output:?}");
    assert!(output.status.success(), "{output:?}");
}

/// Where a child joined a thread of its parent's, it waited for ever.
#[test]
fn a_forked_child_is_refused_and_harms_nothing() {
    let bench = Bench::new();
    let program = bench.compile("tests/c_api/fork.c", &["-std=gnu99"]);
    assert_eq!(run(&program, &[]), "child 0, parent 0\n");
}

/// With a driver that knows memory of all kinds, and has two GPUs.
#[test]
fn pointers_of_others_lead_to_their_gpu_and_say_their_routes() {
    let bench = Bench::new();
    let driver = bench.path().join("libcuda.so.1");
    let mut compiler = Command::new("gcc");
    compiler.args(["-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-o"]).arg(&driver);
    assert!(compiler.arg(root().join("tests/fake/driver.c")).status().unwrap().success());
    let link = driver.to_str().unwrap();
    let words = ["-std=c99", "-Wl,--no-as-needed", link, "-Wl,--as-needed"];
    let program = bench.compile("tests/c_api/pointers.c", &words);
    assert_eq!(run(&program, &[]), "0 wrong\n");
}

/// Device code and driver of another author, from the specification alone, on sidecore's controller.
#[test]
fn a_foreign_program_moves_every_byte_over_queues_of_its_own() {
    let bench = Bench::new();
    let program = bench.compile("tests/foreign/foreign.cpp", &["-std=c++17"]);
    for words in [
        ["own", "4096", "64", "host", "host"],
        ["own", "16384", "16", "window", "host"],
        ["lent", "8192", "64", "window", "window"],
        ["lent", "4096", "4", "host", "host"],
    ] {
        let text = run(&program, &words);
        assert!(text.contains("0 words wrong") && text.ends_with("ok\n"), "{words:?}: {text}");
        assert!(text.starts_with("host threads in the place of lanes; GPU simulated"), "{text}");
    }
}

#[test]
fn a_foreign_program_sees_injected_faults_and_never_hangs() {
    let bench = Bench::new();
    let program = bench.compile("tests/foreign/foreign.cpp", &["-std=c++17"]);
    let text = run(&program, &["own", "4096", "64", "host", "host", "error:n=5,op=read"]);
    assert!(text.contains("writes: 2048 done, 0 failed, 0 late\n"), "{text}");
    assert!(text.contains("reads: 8995 done, 5 failed, 0 late; "), "{text}");
    assert!(text.contains(" 5 failed, 5 faults\n") && text.contains(" 0 words wrong"), "{text}");
    let text = run(&program, &["lent", "4096", "64", "host", "host", "flip:n=5,op=read"]);
    assert!(
        text.contains("reads: 9000 done, 0 failed") && text.contains(" 5 words wrong"),
        "{text}"
    );
    let text = run(&program, &["own", "4096", "64", "host", "host", "lost:n=1,after=500"]);
    assert!(text.contains(" 1 faults\n") && !text.contains(" 0 late\nreads"), "{text}");
}

/// The example for CUDA users, on the simulated GPU.
#[test]
fn the_ring_example_adds_up_a_file() {
    let bench = Bench::new();
    let words = ["-std=c++17", "-x", "c++", "-DSIDECORE_SIMT", "-DSIDECORE_SIMT_SHARED"];
    let program = bench.compile("examples/cuda/position_sum.cu", &words);
    let data: Vec<u8> =
        (0..5_000_017u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let path = bench.path().join("data");
    std::fs::write(&path, &data).unwrap();
    let text = run(&program, &[path.to_str().unwrap()]);
    let sum =
        (1u64..).zip(&data).fold(0u64, |sum, (at, byte)| sum.wrapping_add(at * u64::from(*byte)));
    let want = format!("5000017 bytes by 1221 requests, 0 failures, sum by position {sum}\n");
    assert!(text.ends_with(&want), "{text}");
}
