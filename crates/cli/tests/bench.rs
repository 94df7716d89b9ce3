//! `bench` as a program would run it: every byte is verified, what is broken on purpose is found
//! exactly, and the outputs say what they promise.

mod common;

use std::process::Output;
use std::time::Duration;

use common::{Sandbox, pattern_file};
use serde_json::Value;

/// Small enough for a test, large enough for every fault.
const SMALL: &str = "--size 8M --io-size 4k --repeats 1 --duration 30ms --seed 5";

fn rows(output: &Output) -> Vec<Value> {
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line is an object"))
        .collect()
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("no number {field} in {row}"))
}

#[test]
fn every_path_verifies_every_byte_and_says_so() {
    let sandbox = Sandbox::new();
    let output = sandbox.run(&format!("bench {SMALL} --json"));
    assert!(output.status.success(), "{output:?}");
    let rows = rows(&output);
    let paths: Vec<&str> = rows.iter().filter_map(|row| row["path"].as_str()).collect();
    assert_eq!(paths, ["posix", "uring", "nvme", "bam", "copilot", "ring"]);
    for row in &rows {
        assert!(number(row, "ios") > 0.0, "{row}");
        assert_eq!(row["ios"], row["ios_verified"], "{row}");
        assert_eq!(row["ios"], row["ios_edges_right"], "{row}");
        assert_eq!(row["ios"], row["ios_at_device"], "{row}");
        assert!(row["gpu"].as_str().unwrap().starts_with("simulated"), "{row}");
        let software = row["drive"].as_str().unwrap().starts_with("software");
        let has_drive = ["nvme", "bam", "copilot"].iter().any(|path| row["path"] == *path);
        assert_eq!(software, has_drive, "{row}");
        assert_eq!(row["commands_at_controller"] == row["ios"], has_drive, "{row}");
    }
    let ring = &rows[5];
    assert_eq!(number(ring, "doorbells_gpu"), 0.0);
    assert_eq!(number(ring, "request_bytes_per_io"), 32.0);
    assert_eq!(ring["completions_polled_gpu"], ring["ios"]);
    assert_eq!(number(ring, "bytes_window"), number(ring, "ios") * 4096.0);
    assert!(sandbox.listing().is_empty(), "{:?}", sandbox.listing());
}

#[test]
fn a_path_that_cannot_run_leaves_the_rows_before_it() {
    let sandbox = Sandbox::new();
    let output = sandbox.run(&format!("bench {SMALL} --json --path posix,ring --depth 3"));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let rows = rows(&output);
    assert_eq!(rows.len(), 1, "{output:?}");
    assert_eq!(rows[0]["path"], "posix");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains("path ring") && complaint.contains("power of two"), "{complaint}");
    let output = sandbox.run(&format!("bench {SMALL} --path posix,ring --depth 3"));
    assert!(String::from_utf8_lossy(&output.stdout).contains("posix"), "{output:?}");
    assert!(sandbox.listing().is_empty(), "{:?}", sandbox.listing());
}

#[test]
fn writes_and_mixes_are_read_back() {
    let sandbox = Sandbox::new();
    for op in ["write", "mix"] {
        let output = sandbox.run(&format!("bench {SMALL} --json --op {op}"));
        assert!(output.status.success(), "{op}: {output:?}");
        for row in rows(&output) {
            assert_eq!(row["op"], op);
            assert_eq!(row["ios"], row["ios_verified"], "{row}");
        }
    }
}

#[test]
fn other_routes_and_shapes_verify_too() {
    let sandbox = Sandbox::new();
    for options in [
        "--path ring --route pull",
        "--path ring --route bounce",
        "--path ring --route bounce --op write",
        "--path ring --batch 4 --sms 2 --warps 2 --queues 2 --depth 64",
        "--path ring --drive software --access sequential",
        "--path ring --drive-iops 20000 --drive-latency lognormal:80us:0.3",
        "--path uring --route window",
        "--path nvme --route direct --queues 2",
        "--path nvme --drives 2 --layout striped --op mix --io-size 128k",
        "--path nvme,bam,copilot --drives 3 --queues 3",
        "--path uring,nvme --memory host --queues 2 --depth 4",
        "--path posix --queues 3",
        "--path posix,ring --batch 2",
        "--path posix,uring --cache direct",
        "--path bam,copilot --batch 4 --sms 3 --warps 2 --queues 2 --depth 16",
        "--path bam,copilot --sq host --cq host --io-size 64k",
        "--path bam,copilot --drive-iops 20000 --drive-latency lognormal:80us:0.3",
        "--path posix,uring,nvme,bam,copilot,ring --verify edges",
    ] {
        let output = sandbox.run(&format!("bench {SMALL} --json {options}"));
        assert!(output.status.success(), "{options}: {output:?}");
        for row in rows(&output) {
            assert!(number(&row, "ios") > 0.0, "{options}: {row}");
            assert_eq!(row["ios"], row["ios_edges_right"], "{options}: {row}");
            assert_eq!(number(&row, "ios_unverified"), 0.0, "{options}: {row}");
        }
    }
}

/// One random bit of one random byte in each of 64 I/Os: no fewer and no more are found.
#[test]
fn flipped_bytes_are_found_exactly() {
    let sandbox = Sandbox::new();
    for op in ["read", "write"] {
        let output = sandbox.run(&format!("bench {SMALL} --json --op {op} --faults flip:n=64"));
        assert_eq!(output.status.code(), Some(3), "{op}: {output:?}");
        for row in rows(&output) {
            assert_eq!(number(&row, "ios_unverified"), 64.0, "{op}: {row}");
            assert_eq!(number(&row, "ios") - number(&row, "ios_verified"), 64.0, "{op}: {row}");
            assert_eq!(number(&row, "errors"), 0.0, "{op}: {row}");
        }
    }
}

#[test]
fn other_faults_end_as_what_they_are() {
    let sandbox = Sandbox::new();
    for (fault, errors) in [("lost:n=100", 100), ("error:n=9", 9), ("duplicate:n=50", 0)] {
        let line = format!("bench {SMALL} --json --limit-ms 100 --faults {fault}");
        let output = sandbox.run(&line);
        let code = if errors > 0 { Some(3) } else { Some(0) };
        assert_eq!(output.status.code(), code, "{fault}: {output:?}");
        let rows = rows(&output);
        assert_eq!(rows.len(), 4, "{fault}: {output:?}");
        for row in rows {
            assert_eq!(number(&row, "errors"), f64::from(errors), "{fault}: {row}");
            assert_eq!(number(&row, "ios_unverified"), 0.0, "{fault}: {row}");
            assert!(number(&row, "faults_injected") > 0.0, "{fault}: {row}");
        }
    }
}

#[test]
fn a_queue_that_is_stuck_or_reset_goes_on() {
    let sandbox = Sandbox::new();
    for fault in ["stuck:n=1", "reset:n=1"] {
        let line = format!("bench {SMALL} --json --limit-ms 100 --faults {fault}");
        let output = sandbox.run(&line);
        assert_eq!(output.status.code(), Some(3), "{fault}: {output:?}");
        for row in rows(&output) {
            assert!(number(&row, "errors") >= 1.0, "{fault}: {row}");
            assert_eq!(number(&row, "ios_unverified"), 0.0, "{fault}: {row}");
            let ended = number(&row, "ios_verified") + number(&row, "errors");
            assert_eq!(number(&row, "ios"), ended, "{fault}: {row}");
        }
    }
}

/// Two in a hundred I/Os come 10 ms late: that is above the 98th percentile and below none else.
#[test]
fn late_answers_move_the_99th_percentile_alone() {
    let sandbox = Sandbox::new();
    let shape = "--size 8M --io-size 4k --repeats 1 --duration 300ms --path uring --memory host";
    let output = sandbox.run(&format!("bench {shape} --json --faults late:ms=10,rate=0.02"));
    assert!(output.status.success(), "{output:?}");
    let row = &rows(&output)[0];
    assert!(number(row, "latency_ns_p99") >= 10e6, "{row}");
    assert!(number(row, "latency_ns_p50") < 5e6, "{row}");
}

#[test]
fn a_given_file_is_read_as_it_is_and_written_only_when_allowed() {
    let sandbox = Sandbox::new();
    let content: Vec<u8> =
        (0..1 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    sandbox.write("mine", &content);
    let shape = "--io-size 4k --repeats 1 --duration 20ms --json";
    let output = sandbox.run(&format!("bench --file mine {shape}"));
    assert!(output.status.success(), "{output:?}");
    for row in rows(&output) {
        assert_eq!(row["ios"], row["ios_verified"], "{row}");
    }
    assert_eq!(sandbox.read("mine"), content);
    let output =
        sandbox.run(&format!("bench --file mine {shape} --op write --overwrite --path posix"));
    assert!(output.status.success(), "{output:?}");
    let written = sandbox.read("mine");
    assert_eq!(written.len(), content.len());
    assert_ne!(written, content);
}

#[test]
fn reports_have_a_line_and_a_marker_a_row() {
    let sandbox = Sandbox::new();
    let output = sandbox.run(&format!("bench {SMALL}"));
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("simulated") && text.contains("software NVMe controller"), "{text}");
    assert_eq!(sandbox.listing(), ["sidecore-bench.csv", "sidecore-bench.html"]);
    let csv = String::from_utf8(sandbox.read("sidecore-bench.csv")).unwrap();
    let html = String::from_utf8(sandbox.read("sidecore-bench.html")).unwrap();
    let rows = csv.lines().count() - 1;
    assert_eq!(rows, 6);
    for chart in html.split("<svg").skip(1) {
        assert_eq!(chart.matches("<circle class=\"marker").count(), rows);
    }
    assert!(html.contains("the simulator's rates"));
    for outside in ["http:", "https:", "href=", "src=", "url(", "@import", "<script"] {
        assert!(!html.contains(outside), "the report refers outside: {outside}");
    }
    // A second run replaces its own reports.
    let output = sandbox.run(&format!("bench {SMALL} --path posix"));
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn cpu_seconds_add_up_to_those_of_the_whole() {
    let sandbox = Sandbox::new();
    let script = format!(
        "TIMEFORMAT='CPU %U %S'; time {} bench --size 64M --io-size 4k --repeats 1 \
         --duration 300ms --json",
        env!("CARGO_BIN_EXE_sidecore")
    );
    let mut command = std::process::Command::new("bash");
    command.args(["-c", &script]).current_dir(sandbox.path()).env("TMPDIR", sandbox.path());
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let times = errors.lines().find_map(|line| line.strip_prefix("CPU ")).expect("times");
    let whole: f64 = times.split(' ').filter_map(|word| word.parse::<f64>().ok()).sum();
    let mut sum = 0.0;
    for row in rows(&output) {
        let parts = ["cpu_path_s", "cpu_device_s", "cpu_gpu_s", "cpu_setup_s"];
        let of_row: f64 = parts.iter().map(|part| number(&row, part)).sum();
        assert!((of_row - number(&row, "cpu_s")).abs() < 1e-6, "{row}");
        sum += of_row;
    }
    assert!((sum - whole).abs() <= 0.05 * whole, "rows {sum}, whole {whole}");
}

#[test]
fn ctrl_c_prints_what_there_is_and_removes_what_was_made() {
    let sandbox = Sandbox::new();
    let line = "bench --size 8M --io-size 4k --duration 30s --path posix,uring";
    let run = sandbox.start(line);
    std::thread::sleep(Duration::from_millis(700));
    run.signal(rustix::process::Signal::INT);
    let output = run.wait();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("posix") && text.contains("4 KiB"), "{text}");
    assert!(sandbox.listing().is_empty(), "{:?}", sandbox.listing());
}

/// I/Os without an answer keep the first Ctrl-C waiting; the second does not wait.
#[test]
fn a_second_ctrl_c_kills_and_still_removes() {
    let sandbox = Sandbox::new();
    // Each I/O is lost and ends by its limit only: the round lasts for minutes.
    let faults = "--faults lost:rate=1 --limit-ms 60000";
    let line = format!("bench --size 8M --io-size 4k --path uring {faults}");
    let run = sandbox.start(&line);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(sandbox.listing().len(), 1, "the data file");
    run.signal(rustix::process::Signal::INT);
    std::thread::sleep(Duration::from_millis(300));
    run.signal(rustix::process::Signal::INT);
    let start = std::time::Instant::now();
    let output = run.wait();
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(sandbox.listing().is_empty(), "{:?}", sandbox.listing());
}

#[test]
fn load_prints_the_checksum_of_what_arrived() {
    let sandbox = Sandbox::new();
    let mut content = pattern_file(300_000, 4);
    content.truncate(299_001);
    sandbox.write("odd", &content);
    let checksum = |line: &str| {
        let output = sandbox.run(line);
        assert!(output.status.success(), "{line}: {output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("route") && text.contains("rate"), "{text}");
        let sum = text.lines().find_map(|line| line.strip_prefix("sha256  "));
        sum.expect("a checksum").to_owned()
    };
    let right = checksum("load odd --path posix");
    let by_tool = std::process::Command::new("sha256sum").arg(sandbox.path().join("odd")).output();
    assert!(String::from_utf8_lossy(&by_tool.unwrap().stdout).starts_with(&right));
    for path in [
        "uring",
        "nvme",
        "bam",
        "copilot --depth 100",
        "ring",
        "ring --io-size 4k",
        "ring --route pull",
    ] {
        assert_eq!(checksum(&format!("load odd --path {path}")), right, "{path}");
        let flipped = checksum(&format!("load odd --path {path} --faults flip:n=1"));
        assert_ne!(flipped, right, "{path}");
    }
}

#[test]
fn idle_rings_are_measured() {
    let sandbox = Sandbox::new();
    let line = "bench idle --duration 300ms --pause 50ms --samples 3 --json";
    let output = sandbox.run(line);
    assert!(output.status.success(), "{output:?}");
    let idle = &rows(&output)[0];
    assert_eq!(number(idle, "errors"), 0.0);
    assert!(number(idle, "first_request_ns_p99") > 0.0, "{idle}");
    assert!(number(idle, "cores_per_side_core") < 1.0, "{idle}");
    assert!(sandbox.listing().is_empty());
}

#[test]
fn a_run_has_a_page_that_others_see_and_removes_those_of_the_dead() {
    let sandbox = Sandbox::new();
    let pages = || sandbox.listing().into_iter().filter(|name| name.ends_with(".stats"));
    // No process has this number: Linux counts to 4,194,304.
    sandbox.write("sidecore-99999999-0.stats", b"left by a process that died");
    sandbox.write("sidecore-of-mine.stats", b"no page");
    let line = "bench --size 1M --io-size 4k --path ring --repeats 1 --duration 60s --json";
    let child = sandbox.start(line);
    let own = format!("sidecore-{}-0.stats", child.id());
    let start = std::time::Instant::now();
    let read = loop {
        let page = stats::Reader::open(&sandbox.path().join(&own));
        let read = page.ok().and_then(|page| page.snapshot().ok()).map_or(0, |counts| {
            let fetched = counts.count(stats::Event::RequestFetched);
            let bytes = counts.bytes(stats::Route::Window, stats::Op::Read);
            assert!(bytes <= fetched * 4096, "{bytes} bytes of {fetched} requests");
            bytes
        });
        if read > 0 {
            break read;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "no page: {:?}", sandbox.listing());
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(read.is_multiple_of(4096), "{read} bytes");
    assert!(pages().eq([own.clone(), "sidecore-of-mine.stats".to_owned()]), "stale pages stay");
    child.signal(rustix::process::Signal::INT);
    assert_eq!(child.wait().status.code(), Some(130));
    assert_eq!(sandbox.listing(), ["sidecore-of-mine.stats"]);
}

#[test]
fn without_io_uring_the_other_paths_run_and_the_output_says_so() {
    let sandbox = Sandbox::new();
    let output = sandbox.run_without_io_uring(&format!("bench {SMALL} --json"));
    let Some(output) = output else { return };
    assert!(output.status.success(), "{output:?}");
    let rows = rows(&output);
    let paths: Vec<&str> = rows.iter().filter_map(|row| row["path"].as_str()).collect();
    assert!(!paths.contains(&"uring") && paths.contains(&"posix"), "{paths:?}");
    let ring = rows.iter().find(|row| row["path"] == "ring").expect("a row of path ring");
    assert_eq!(ring["ios"], ring["ios_verified"], "{ring}");
    assert!(ring["explain"].as_str().unwrap().contains("threads"), "{ring}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("Path uring was left out"), "{said}");
    let output = sandbox.run_without_io_uring(&format!("bench {SMALL} --path uring"));
    common::assert_refused("bench --path uring", &output.unwrap(), &["io_uring", "uring"]);
}

#[test]
fn an_interrupt_while_the_data_is_made_is_one() {
    let sandbox = Sandbox::new();
    let child = sandbox.start("bench --size 64G --path posix");
    let start = std::time::Instant::now();
    while sandbox.listing().is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60), "no data file");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.signal(rustix::process::Signal::INT);
    let output = child.wait();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(sandbox.listing().is_empty(), "{:?}", sandbox.listing());
}

/// Payload that ends in host memory meets no GPU: nothing is said of one.
#[test]
fn host_memory_asks_for_no_gpu() {
    let sandbox = Sandbox::new();
    let line = "bench --memory host --path posix,nvme --size 1M --io-size 4k --ios 500 --json";
    let output = sandbox.run(line);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !errors.contains("GPU"), "{errors}");
}
