//! What cannot be done is refused: the cause and the file are named, the exit code is neither 0 nor
//! that of a panic, nothing is left behind, and no given file is touched.

mod common;

use common::{Sandbox, pattern_file};

/// Refused on options alone: arguments, and what the message must name.
const BAD_OPTIONS: &[(&str, &[&str])] = &[
    ("bench --path warp-drive", &["warp-drive", "--path"]),
    ("bench --io-size 4x", &["4x", "--io-size"]),
    ("bench --io-size 1000", &["--io-size 1000", "512"]),
    ("bench --io-size 32M", &["--io-size", "16 MiB"]),
    ("bench --duration soon", &["soon", "--duration"]),
    ("bench --duration 0", &["--duration"]),
    ("bench --repeats 0", &["--repeats", "at least 1"]),
    ("bench --side-cores 100000", &["--side-cores", "at most 1024"]),
    ("bench --sms 0", &["--sms", "at least 1"]),
    ("bench --size 100000 --io-size 4k", &["--size 100000", "4096"]),
    ("bench --size 1k --io-size 4k", &["--size", "4 KiB"]),
    ("bench --size 1M --file data", &["--size", "--file"]),
    ("bench --faults nonsense", &["--faults", "nonsense"]),
    ("bench --faults flip:colour=red", &["--faults", "colour"]),
    ("bench --faults flip:n=1 --faults-at drive --path posix", &["--faults-at", "posix"]),
    ("bench --route push --op read", &["--route push", "read"]),
    ("bench --route direct --path uring", &["--route direct", "uring"]),
    ("bench --memory host --path ring", &["--memory host", "ring"]),
    ("bench --memory host --route window --path uring", &["--memory host", "window"]),
    ("bench --drive-iops 5 --path posix", &["--drive-iops", "posix"]),
    ("bench --drive-latency soonish --path nvme", &["--drive-latency", "soonish"]),
    ("bench --size 1M --io-size 4k --path ring --depth 3", &["--depth 3", "power of two"]),
    ("bench --size 1M --io-size 4k --path ring --warps 64", &["--warps 64", "32"]),
    ("bench --size 1M --io-size 4k --path ring --pinned-max 1k", &["--pinned-max"]),
    ("bench --size 1M --io-size 4k --path uring --pinned-max 1k", &["--pinned-max"]),
    ("bench --size 1M --dir nowhere", &["nowhere", "No such file"]),
    (
        "bench --size 1M --io-size 4k --path posix --cache direct --dir /dev/shm",
        &["--cache direct", "/dev/shm", "in memory"],
    ),
    (
        "bench --size 1M --io-size 4k --path uring --cache direct --dir /dev/shm",
        &["--cache direct", "/dev/shm", "in memory"],
    ),
    ("bench --size 1M --path uring --drives 2", &["--drives 2", "uring"]),
    ("bench --size 1M --path bam --drives 2 --layout striped", &["--layout striped", "bam"]),
    ("bench --size 1M --path copilot --drives 2 --op write", &["--drives 2", "copilot"]),
    ("bench --size 1M --path nvme --drives 3 --layout striped", &["1048576", "196608"]),
    ("bench --memory host --path bam", &["--memory host", "bam"]),
    ("bench --sq host --path ring", &["--sq", "bam and copilot"]),
    ("bench --sq vram", &["vram", "--sq"]),
    ("bench --second-read --path copilot", &["--second-read", "bam"]),
    ("bench --faults flip:n=1 --path bam", &["--faults", "bam", "--faults-at drive"]),
    ("bench --size 1M --io-size 4k --path bam --depth 48", &["--depth 48", "power of two"]),
    ("bench --size 1M --io-size 4k --path copilot --warps 64", &["--warps 64", "32"]),
    ("bench --size 1M --path copilot --route window", &["--route window", "copilot"]),
    ("bench sweep --path uring", &["--path uring", "bam, copilot, ring"]),
    ("bench sweep --set bam", &["bam", "PATH:KEY=VALUE"]),
    ("bench sweep --set bam:colour=3", &["colour", "host-cores"]),
    ("bench sweep --set bam:warps=0", &["at least 1"]),
    ("bench sweep --set bam:warps=4", &["refused", "warps differ: bam 4, copilot 2, ring 2"]),
    ("bench sweep --set ring:batch=2", &["refused", "batch differ: bam 1, copilot 1, ring 2"]),
    ("bench sweep --set copilot:queues=16", &["refused", "queues differ: bam 8, copilot 16"]),
    ("bench sweep --set bam:depth=512", &["refused", "depth differ: bam 512, copilot 1024"]),
    (
        "bench sweep --host-cores 1 --set ring:host-cores=2",
        &["refused", "host cores differ: bam 1, copilot 1, ring 2"],
    ),
    (
        "bench sweep --queues 1 --depth 128 --sms 1,4",
        &["refused", "in flight at 4 SMs differ: bam 127, copilot 127, ring 128"],
    ),
    ("bench sweep --sms 1 --batch 65 --depth 8192 --out out", &["--batch 65", "64"]),
    ("bench sweep --ios 0", &["--ios"]),
    ("bench sweep --sms 0", &["--sms", "at least 1"]),
    ("bench sweep --size 1M --io-size 1000", &["--io-size 1000"]),
    ("bench placement --path ring", &["--path ring", "bam, copilot"]),
    ("bench copoll --settle 4s --hold 2s", &["--settle", "--hold"]),
    ("bench copoll --warps 9", &["--warps"]),
    ("bench --size 1M --io-size 4k --ios 0", &["--ios"]),
    ("bench --size 1M --io-size 4k --path ring --batch 65", &["--batch 65", "64"]),
    ("bench --size 1M --io-size 4k --csv same --html ./same", &["--csv", "--html", "same"]),
    ("bench --file data --html data --overwrite", &["--file", "--html", "data"]),
    ("bench idle --duration 0", &["--duration"]),
    ("load", &["<FILE>"]),
    ("load any --route push", &["--route push", "ring"]),
    ("load any --path posix --route window", &["--route window", "posix"]),
    ("load missing --io-size 100", &["--io-size 100"]),
    ("fly", &["fly"]),
];

#[test]
fn bad_options_are_named() {
    for (line, words) in BAD_OPTIONS {
        let sandbox = Sandbox::new();
        sandbox.refuses(line, words);
    }
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let sandbox = Sandbox::new();
    sandbox.write("empty", b"");
    sandbox.write("odd", &[7; 10_001]);
    std::fs::create_dir(sandbox.path().join("folder")).unwrap();
    for command in ["bench --file", "load"] {
        sandbox.refuses(&format!("{command} missing"), &["missing", "No such file"]);
        sandbox.refuses(&format!("{command} empty"), &["empty", "it is empty"]);
        sandbox.refuses(&format!("{command} folder"), &["folder", "directory"]);
        sandbox.refuses(&format!("{command} /dev/null"), &["/dev/null", "neither a file"]);
    }
    sandbox.refuses("bench --file odd", &["odd", "10001", "not a multiple"]);
}

#[test]
fn a_file_without_permission_is_named() {
    let sandbox = Sandbox::new();
    sandbox.write("secret", &[7; 8192]);
    sandbox.make_unreadable("secret");
    for command in ["bench --io-size 4k --file secret", "load secret"] {
        sandbox.refuses_as_nobody(command, &["secret", "Permission denied"]);
    }
}

#[test]
fn a_given_file_is_not_written_without_leave() {
    let sandbox = Sandbox::new();
    let content = pattern_file(64 << 10, 3);
    sandbox.write("mine", &content);
    for op in ["write", "mix"] {
        let line = format!("bench --file mine --io-size 4k --path posix --op {op}");
        sandbox.refuses(&line, &["mine", "--overwrite"]);
    }
    assert_eq!(sandbox.read("mine"), content);
}

#[test]
fn reports_do_not_replace_files_or_go_nowhere() {
    let sandbox = Sandbox::new();
    sandbox.write("kept.csv", b"my own figures");
    sandbox.write("sidecore-bench.html", b"<p>not a report of sidecore");
    std::fs::create_dir(sandbox.path().join("folder")).unwrap();
    let bench = "bench --size 1M --io-size 4k --path posix --duration 20ms --repeats 1";
    for option in ["--csv", "--html"] {
        sandbox.refuses(&format!("{bench} {option} kept.csv"), &["kept.csv", "--overwrite"]);
        sandbox.refuses(&format!("{bench} {option} folder"), &["folder", "directory"]);
        sandbox.refuses(&format!("{bench} {option} no/where"), &["no/where", "No such file"]);
    }
    sandbox.refuses(bench, &["sidecore-bench.html", "--overwrite"]);
    assert_eq!(sandbox.read("kept.csv"), b"my own figures");
}

#[test]
fn a_full_disk_is_named_and_left_clean() {
    let sandbox = Sandbox::new();
    let bench = "bench --io-size 4k --path posix --duration 20ms --repeats 1";
    let (line, words) = (format!("{bench} --size 16M --dir FULL"), ["FULL", "No space left"]);
    sandbox.refuses_on_small_disk(&line, "4m", 0, &words);
    // Room for the probe, not for the report.
    let line = format!("{bench} --size 1M --csv FULL/rows.csv");
    sandbox.refuses_on_small_disk(&line, "64k", 64 << 10, &["FULL/rows.csv", "No space left"]);
    let line = format!("{bench} --size 1M --html FULL/report.html");
    sandbox.refuses_on_small_disk(&line, "64k", 64 << 10, &["FULL/report.html", "No space left"]);
}

#[test]
fn a_file_that_changes_meanwhile_is_named() {
    let sandbox = Sandbox::new();
    for how in ["longer", "shorter", "other"] {
        sandbox.write("moving", &pattern_file(4 << 20, 1));
        let line =
            "bench --file moving --io-size 4k --path posix --duration 60s --repeats 1 --json";
        let child = sandbox.start(line);
        std::thread::sleep(std::time::Duration::from_millis(600));
        let path = sandbox.path().join("moving");
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        match how {
            "longer" => file.set_len(5 << 20).unwrap(),
            "shorter" => file.set_len(1 << 20).unwrap(),
            _ => std::os::unix::fs::FileExt::write_all_at(&file, b"changed", 8192).unwrap(),
        }
        let output = child.wait();
        common::assert_refused(line, &output, &["moving"]);
    }
}
