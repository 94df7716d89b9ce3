//! GPUs that the CPU has no window onto, or only a small one: what goes another way, and which reason is
//! shown. Driver, compiler and Vulkan are fakes whose kernels do nothing.

use std::path::Path;
use std::process::Command;

/// Runs a row of path ring on fakes; what it printed, and what it said.
fn ring(vulkan: Option<&[&str]>, options: &str) -> (String, String) {
    let place = tempfile::tempdir().unwrap();
    let fake = |source: &str, library: &str, macros: &[&str]| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake");
        let mut compiler = Command::new("g++");
        compiler.args(["-shared", "-fPIC", "-x", "c", "-std=gnu11", "-w"]);
        compiler.args(macros.iter().map(|name| format!("-D{name}")));
        compiler.arg(folder.join(source)).arg("-o").arg(place.path().join(library));
        assert!(compiler.status().unwrap().success());
    };
    fake("driver.c", "libcuda.so.1", &["WORKS"]);
    fake("nvrtc.c", "libnvrtc.so.13", &["WORKS"]);
    fake("nvrtc.c", "libnvrtc.so.12", &["WORKS"]);
    if let Some(macros) = vulkan {
        fake("vulkan.c", "libvulkan.so.1", macros);
    }
    let output = Command::new(env!("CARGO_BIN_EXE_sidecore"))
        .args(["bench", "--path", "ring", "--ios", "64", "--size", "1M", "--io-size", "4k"])
        .args(["--repeats", "1", "--sms", "1", "--warps", "1", "--side-cores", "1", "--json"])
        .args(["--gpu", "0", "--verify", "none"])
        .args(options.split_whitespace())
        .env("LD_LIBRARY_PATH", place.path())
        .env("XDG_CACHE_HOME", place.path())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// All goes another way, for a reason that is shown in the row too.
fn pulls_everything(vulkan: Option<&[&str]>, options: &str, why: &str) {
    let (row, said) = ring(vulkan, options);
    assert!(
        row.contains("\"gpu\":\"Fake GPU\"") && row.contains("\"route\":\"pull\""),
        "{row}{said}"
    );
    let records = "completions lie in pinned host memory";
    assert!(said.contains(records) && said.contains(why), "{said}");
    assert!(row.contains("pull, since there is no window") && row.contains(why), "{row}");
}

#[test]
fn a_window_that_is_there_is_used() {
    let (row, said) = ring(Some(&[]), "");
    assert!(row.contains("\"route\":\"window\""), "{row}{said}");
    assert!(!said.contains("no window") && !row.contains("no window"), "{row}{said}");
}

#[test]
fn vulkan_without_a_driver() {
    pulls_everything(Some(&["NO_ICD"]), "", "no Vulkan instance");
}

#[test]
fn a_container_without_graphics() {
    pulls_everything(Some(&["DEVICES=0"]), "", "none of Vulkan's 0 devices");
    pulls_everything(Some(&["DEVICES=0"]), "", "driver capability graphics");
}

#[test]
fn a_part_of_a_gpu_that_vulkan_does_not_have() {
    pulls_everything(Some(&["UUID=9"]), "", "none of Vulkan's 1 devices has this GPU's UUID");
}

#[test]
fn a_gpu_whose_memory_the_cpu_cannot_see() {
    pulls_everything(Some(&["VISIBLE=1"]), "", "visible to the CPU");
}

#[test]
fn a_window_that_is_switched_off() {
    pulls_everything(Some(&[]), "--no-window", "switched off");
}

/// Completion records go into a small BAR1 first, payload only where it fits.
#[test]
fn a_small_window() {
    let (row, said) = ring(Some(&["HEAP=(256ul<<20)"]), "--destination 512M");
    assert!(!said.contains("completions lie in pinned"), "the records fit: {said}");
    assert!(row.contains("\"route\":\"pull\"") && row.contains("of BAR1"), "{row}{said}");
    let (row, said) = ring(Some(&["HEAP=(256ul<<20)"]), "--destination 64M");
    assert!(row.contains("\"route\":\"window\""), "{row}{said}");
    let (row, said) = ring(Some(&["HEAP=(256ul<<20)"]), "--destination 512M --route window");
    assert!(
        row.is_empty() && said.contains("--route window") && said.contains("of BAR1"),
        "{said}"
    );
}
