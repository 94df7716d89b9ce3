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
    ("load any --threads 257", &["--threads 257", "256"]),
    ("load any --slot 0", &["--slot 0", "64 KiB"]),
    ("load any --slots 1", &["--slots 1", "2 to 64"]),
    ("save any other --pinned-max 1k", &["--pinned-max 1024", "2 MiB"]),
    ("tune . --dry-run --size 1M", &["1048576", "16777216"]),
    ("tune . --dry-run --size 8000G", &["--size", "available"]),
    ("bench bulk --with ours:thraeds=3", &["ours:thraeds=3", "no such option"]),
    ("bench bulk --with posix:cache=direct", &["cache", "posix has no such option"]),
    ("bench bulk --with plain:slot=0", &["slot", "1 to"]),
    ("bench bulk --with plain:threads=0", &["threads", "1 to"]),
    ("bench bulk --with ours:pool=1T", &["pool", "1 to"]),
    ("bench bulk --with :", &["--with", "a name"]),
    ("bench bulk --size 0", &["--size"]),
    ("bench bulk --size 8000G", &["8589934592000", "available"]),
    ("bench bulk --file nowhere", &["nowhere", "No such file"]),
    ("bench bulk --file /dev/null", &["/dev/null", "a file with bytes"]),
    ("bench bulk --work files --file /dev/null", &["/dev/null", "a folder"]),
    ("bench rows --count 0", &["--count"]),
    ("bench rows --count 18446744073709551615", &["--count"]),
    ("bench rows --count 4503599627370495", &["available"]),
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

/// More than there is memory: without a look at that, the system ends processes.
#[test]
fn a_file_longer_than_memory_is_named() {
    let sandbox = Sandbox::new();
    std::fs::File::create(sandbox.path().join("sparse")).unwrap().set_len(1 << 40).unwrap();
    for line in ["load sparse", "load sparse --host", "load sparse --path posix"] {
        sandbox.refuses(line, &["sparse", "1099511627776 bytes", "available"]);
    }
    sandbox.refuses("save sparse other", &["sparse", "available"]);
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
    sandbox.refuses("bench bulk --work write --file mine", &["mine", "--overwrite"]);
    sandbox.write("other", b"other");
    sandbox.refuses("save other mine", &["mine", "--overwrite"]);
    // Whoever took its own permission did so against all.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o444);
    std::fs::set_permissions(sandbox.path().join("mine"), mode).unwrap();
    sandbox.refuses_as_nobody("save other mine --overwrite", &["mine", "Permission denied"]);
    assert_eq!(sandbox.read("mine"), content);
}

/// Each of these was a panic.
#[test]
fn nobody_reads_the_error_and_names_are_bytes() {
    use std::os::unix::ffi::OsStrExt;
    let sandbox = Sandbox::new();
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let lines = ["load missing", "bench --file missing", "bench bulk --file missing"];
    for line in lines {
        let status = sandbox.command(line).stderr(full()).status().unwrap();
        assert_eq!(status.code(), Some(1), "{line}");
    }
    // What falls back is told too, by the engine.
    sandbox.write("data", &pattern_file(1 << 20, 1));
    let status = sandbox.command("load data --gpu simulated").stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(0));

    let name = std::ffi::OsStr::from_bytes(b"by\xfftes");
    std::fs::write(sandbox.path().join(name), pattern_file(1 << 20, 1)).unwrap();
    let line = "bench --io-size 4k --path posix --duration 20ms --repeats 1 --json --file";
    let output = sandbox.command(line).arg(name).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let output = sandbox.command("save --overwrite").arg(name).arg(name).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    std::fs::remove_file(sandbox.path().join(name)).unwrap();
}

/// A first signal is enough, whatever is going on, and nothing stays behind.
#[test]
fn a_signal_ends_what_takes_long_and_leaves_nothing() {
    use rustix::process::Signal;
    let lines = [
        "tune . --gpu simulated --size 64M --repeats 1000 --dry-run",
        "bench bulk --gpu simulated --size 32M --repeats 100000 --with ours --with plain:threads=2",
        "bench bulk --gpu simulated --work files --count 1000000 --each 1 --repeats 2",
        "bench rows --gpu simulated --size 32M --count 100 --repeats 1000000",
        "bench window --gpu simulated --duration 500ms",
        "selftest --gpu simulated every_planned_io_is_done_once_and_checked --repeat 100000 --json",
    ];
    for (line, signal) in lines.into_iter().zip([Signal::TERM, Signal::INT].into_iter().cycle()) {
        let sandbox = Sandbox::new();
        let run = sandbox.start(line);
        std::thread::sleep(std::time::Duration::from_millis(700));
        let asked = std::time::Instant::now();
        run.signal(signal);
        let output = run.wait();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{line}: {errors}");
        assert!(asked.elapsed() < std::time::Duration::from_secs(15), "{line}");
        let left = sandbox.listing();
        assert!(left.is_empty(), "{line}: {left:?}");
    }
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
