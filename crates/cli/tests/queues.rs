//! Paths `bam` and `copilot` and what compares them, as a program would run it: who rang and polled
//! is counted, faults of the drive are found exactly, and tables and files say what they promise.

mod common;

use std::process::Output;

use common::Sandbox;
use serde_json::Value;

/// Small enough for a test.
const SMALL: &str = "--size 8M --io-size 4k --repeats 1 --duration 20ms --seed 5";

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
fn who_rings_and_who_polls_is_counted() {
    let sandbox = Sandbox::new();
    for op in ["read", "write", "mix"] {
        let output = sandbox.run(&format!("bench {SMALL} --path bam,copilot --json --op {op}"));
        assert!(output.status.success(), "{op}: {output:?}");
        let rows = rows(&output);
        assert_eq!(rows.len(), 2);
        for row in &rows {
            let ios = number(row, "ios");
            assert!(ios > 0.0 && number(row, "doorbells_gpu") > 0.0, "{row}");
            assert_eq!(number(row, "ios_verified"), ios, "{row}");
            assert_eq!(number(row, "ios_at_device"), ios, "{row}");
            assert_eq!(number(row, "commands_at_controller"), ios, "{row}");
            assert_eq!(number(row, "request_bytes_per_io"), 64.0, "{row}");
            assert_eq!(number(row, "bytes_direct"), ios * 4096.0, "{row}");
            assert_eq!(number(row, "fence_ios"), 0.0, "{row}");
            assert_eq!(row["simulated"], true, "{row}");
            let by_gpu = if row["path"] == "bam" { ios } else { 0.0 };
            assert_eq!(number(row, "completions_polled_gpu"), by_gpu, "{row}");
            assert_eq!(number(row, "completions_polled_cpu"), ios - by_gpu, "{row}");
            assert_eq!(number(row, "doorbells_cpu") > 0.0, row["path"] == "copilot", "{row}");
            // One doorbell serves a run of commands.
            assert!(row["path"] == "bam" || number(row, "doorbells_gpu") < ios, "{row}");
        }
        assert_eq!(
            [&rows[0]["sq"], &rows[0]["cq"], &rows[1]["sq"], &rows[1]["cq"]],
            ["device", "device", "device", "host"]
        );
    }
}

#[test]
fn second_reads_are_counted_apart() {
    let sandbox = Sandbox::new();
    let output = sandbox.run(&format!("bench {SMALL} --path bam --second-read --json"));
    assert!(output.status.success(), "{output:?}");
    let row = &rows(&output)[0];
    let (ios, fences) = (number(row, "ios"), number(row, "fence_ios"));
    assert!(fences > 0.0 && fences <= ios, "{row}");
    assert_eq!(number(row, "commands_at_controller"), ios + fences, "{row}");
    assert_eq!(number(row, "ios_at_device"), ios, "{row}");
    assert_eq!(number(row, "ios_verified"), ios, "{row}");
}

#[test]
fn faults_of_the_drive_surface_exactly() {
    let sandbox = Sandbox::new();
    for (fault, errors, wrong) in
        [("error:n=9", 9.0, 0.0), ("lost:n=10", 10.0, 0.0), ("flip:n=64", 0.0, 64.0)]
    {
        let line = format!(
            "bench {SMALL} --path bam,copilot --json --limit-ms 800 --faults-at drive \
             --faults {fault}"
        );
        let output = sandbox.run(&line);
        assert_eq!(output.status.code(), Some(3), "{fault}: {output:?}");
        for row in rows(&output) {
            // Where the machine is busy, commands may time out that nobody lost.
            let late = number(&row, "errors") - errors;
            assert!(late == 0.0 || late > 0.0 && fault.starts_with("lost"), "{fault}: {row}");
            assert_eq!(number(&row, "ios_unverified"), wrong, "{fault}: {row}");
            assert_eq!(number(&row, "faults_injected"), errors + wrong, "{fault}: {row}");
        }
    }
}

#[test]
fn a_sweep_has_both_tables_the_artifacts_files_and_its_plot() {
    let sandbox = Sandbox::new();
    let line = format!("bench sweep {SMALL} --ios 600 --sms 1,3 --host-cores 1 --out out");
    let output = sandbox.run(&format!("{line} --json"));
    assert!(output.status.success(), "{output:?}");
    let rows = rows(&output);
    let cells: Vec<(&str, u64, &str)> = rows
        .iter()
        .map(|row| {
            let text = |field: &str| row[field].as_str().expect("a text");
            (text("setting"), row["sms"].as_u64().expect("a number"), text("path"))
        })
        .collect();
    let mut expected = Vec::new();
    for setting in ["matched", "published"] {
        for sms in [1, 3] {
            expected.extend(["bam", "copilot", "ring"].map(|path| (setting, sms, path)));
        }
    }
    assert_eq!(cells, expected);
    let drive = &rows[0]["drive"];
    for row in &rows {
        assert!(number(row, "ios") > 0.0 && row["ios"] == row["ios_verified"], "{row}");
        assert_eq!(&row["drive"], drive);
        assert_eq!(row["simulated"], true);
    }
    for row in &rows[..6] {
        let shape = ["warps", "batch", "queues", "depth"].map(|field| number(row, field));
        assert_eq!(shape, [2.0, 1.0, 8.0, 1024.0], "{row}");
    }
    let published = &rows[6..9];
    let shapes: Vec<[f64; 3]> = published
        .iter()
        .map(|row| ["warps", "queues", "depth"].map(|field| number(row, field)))
        .collect();
    assert_eq!(shapes, [[32.0, 128.0, 1024.0], [1.0, 128.0, 4096.0], [8.0, 1.0, 1024.0]]);
    assert!(number(&published[0], "fence_ios") > 0.0, "{}", published[0]);
    assert_eq!([&published[1]["sq"], &published[1]["cq"]], ["host", "host"]);
    for setting in ["matched", "published"] {
        for system in ["bam", "copilotio", "ring"] {
            let csv = sandbox.read(&format!("out/{setting}/results_{system}_read_bw.csv"));
            let csv = String::from_utf8(csv).unwrap();
            let lines: Vec<&str> = csv.lines().collect();
            assert_eq!(lines[0], "sms,bandwidth_gibs,iops_m,simulated");
            assert!(lines[1].starts_with("1,") && lines[2].starts_with("3,"), "{csv}");
            assert!(lines[1..].iter().all(|line| line.ends_with(",true")), "{csv}");
        }
        let svg = String::from_utf8(sandbox.read(&format!("out/{setting}/read_bw.svg"))).unwrap();
        assert_eq!(svg.matches("class=\"bar\"").count(), 6);
        assert!(svg.contains("simulated"));
    }
    // Files that are there stay unless told otherwise.
    sandbox.refuses(&line, &["results_bam_read_bw.csv", "--overwrite"]);
}

#[test]
fn all_placements_work() {
    let sandbox = Sandbox::new();
    let output = sandbox.run(&format!("bench placement {SMALL} --ios 600 --json"));
    assert!(output.status.success(), "{output:?}");
    let mut seen = Vec::new();
    for row in rows(&output) {
        assert!(number(&row, "ios") > 0.0 && row["ios"] == row["ios_verified"], "{row}");
        seen.push(format!("{}/{}/{}", row["path"], row["sq"], row["cq"]).replace('"', ""));
    }
    let expected: Vec<String> = ["bam", "copilot"]
        .iter()
        .flat_map(|path| {
            ["device/device", "device/host", "host/device", "host/host"]
                .map(|memory| format!("{path}/{memory}"))
        })
        .collect();
    assert_eq!(seen, expected);
}

/// Short loads on a machine that may be busy: what is timed is not judged here, what is counted is.
#[test]
fn co_polling_loses_nothing_and_flips_both_ways() {
    let sandbox = Sandbox::new();
    let shape = "--steps 1 --hold 1500ms --settle 700ms --window 80ms --dwell 150ms";
    let output = sandbox.run(&format!("bench copoll {shape} --json"));
    let report = &rows(&output)[0];
    let phases = report["phases"].as_array().expect("phases");
    let loads: Vec<u64> =
        phases.iter().map(|phase| phase["load_percent"].as_u64().unwrap()).collect();
    assert_eq!(loads, [10, 100, 10]);
    let sum = |field: &str| phases.iter().map(|phase| number(phase, field)).sum::<f64>();
    assert!(sum("ios") > 0.0 && sum("verified") == sum("ios"), "{report}");
    assert_eq!(sum("errors"), 0.0, "{report}");
    assert!(sum("polled_gpu") > 0.0 && sum("polled_cpu") > 0.0, "{report}");
    assert_eq!(sum("polled_gpu") + sum("polled_cpu"), sum("ios"), "{report}");
    assert!(number(&phases[1], "flips_to_cpu") > 0.0, "{report}");
    assert!(number(&phases[2], "flips_to_gpu") > 0.0, "{report}");
    let checks = report["checks"].as_array().expect("checks");
    assert_eq!(checks.len(), 5);
    // The exit code is that of the checks.
    let pass = checks.iter().all(|check| check["pass"] == true);
    assert_eq!(output.status.code(), Some(if pass { 0 } else { 3 }), "{report}");
}

#[test]
fn an_agent_waits_for_its_block_and_costs_one_warp() {
    let sandbox = Sandbox::new();
    let shape = "--sms 3 --warps 2 --queues 1";
    let line = format!("bench {SMALL} {shape} --path copilot,ring --json");
    for (wait, polling) in [("word", 6.0), ("agent", 3.0)] {
        let output = sandbox.run(&format!("{line} --wait {wait}"));
        assert!(output.status.success(), "{wait}: {output:?}");
        for row in rows(&output) {
            assert!(number(&row, "ios") > 0.0 && row["ios"] == row["ios_verified"], "{row}");
            assert_eq!((&row["wait"], number(&row, "polling_warps")), (&wait.into(), polling));
            assert!(number(&row, "polls") > 0.0 && number(&row, "lanes") == 192.0, "{row}");
        }
    }
    sandbox.refuses("bench --path bam --wait agent", &["--wait agent", "bam"]);
    sandbox.refuses("bench --path ring --wait agent --batch 2", &["--batch must be 1"]);
    sandbox.refuses("bench --path ring --wait agent --warps 32", &["one of them is the agent"]);
}

/// Several controllers are one drive: its rate is theirs together, and every command is seen once.
#[test]
fn several_device_cores_share_one_drives_rate() {
    let sandbox = Sandbox::new();
    for path in ["bam", "copilot", "ring"] {
        let line = format!(
            "bench {SMALL} --path {path} --device-cores 2 --queues 2 --sms 4 --warps 2 --json \
             --drive-iops 4000 --ios 400"
        );
        let output = sandbox.run(&line);
        assert!(output.status.success(), "{output:?}");
        let row = &rows(&output)[0];
        assert_eq!((number(row, "device_cores"), number(row, "ios")), (2.0, 400.0), "{row}");
        assert_eq!(
            (number(row, "ios_verified"), number(row, "commands_at_controller")),
            (400.0, 400.0)
        );
        // Twice the rate would do it in half the time.
        assert!(number(row, "seconds") > 0.08, "{row}");
        assert!(number(row, "fetch_ns_per_command") > 0.0, "{row}");
        assert!(row["nvml"].as_str().unwrap().starts_with("n/a: "), "{row}");
    }
    sandbox.refuses("bench --path bam --device-cores 4096", &["--device-cores 4096"]);
}

/// The simulated GPU runs it, and says that what comes out is not a GPU's.
#[test]
fn interference_on_the_simulated_gpu_judges_nothing() {
    let sandbox = Sandbox::new();
    let small = "--threads 32 --compute 20ms --repeats 1 --size 8M --sms 2 --warps 1 --batch 1 \
                 --queues 2 --side-cores 1";
    for more in ["", "--stalled --drive-latency 150ms"] {
        let output = sandbox.run(&format!("bench interference {small} {more} --json"));
        assert!(output.status.success(), "{output:?}");
        let rows = rows(&output);
        assert_eq!(rows.len(), 3);
        for row in &rows {
            assert!(number(row, "ios") > 0.0 && row["ios"] == row["ios_verified"], "{row}");
            assert_eq!(number(row, "compute_sms"), 2.0, "{row}");
            let verdict = row["verdict"].as_str().unwrap();
            assert!(verdict.starts_with("NOT MEASURED: the simulated GPU"), "{row}");
            assert!(row["baseline"].as_str().unwrap().starts_with("not measured"), "{row}");
            for times in ["alone_s", "asleep_s", "beside_s"] {
                assert_eq!(row[times].as_array().unwrap().len(), 1, "{row}");
            }
            assert!(more.is_empty() || number(row, "polls_per_warp_s") > 0.0, "{row}");
        }
    }
    let table = sandbox.run(&format!("bench interference {small} --path ring"));
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.contains("nothing is judged") && table.contains("baseline: not measured"));
    sandbox.refuses("bench interference --path posix", &["--path posix"]);
}

/// What a stranger's machine finds says so, and a comparison repeats it beside its tables.
#[test]
fn a_baseline_is_of_the_machine_that_it_was_recorded_on() {
    let sandbox = Sandbox::new();
    let small = "--size 8M --ios 500 --repeats 1 --duration 10ms";
    let output = sandbox.run(&format!("bench baseline {small} --sms-max 12 --out verdict --json"));
    assert!(output.status.success(), "{output:?}");
    let measured = rows(&output);
    assert_eq!(measured.len(), 10);
    for row in &measured {
        assert!(number(row, "recorded_iops") > 4e5 && row["ios"] == row["ios_verified"], "{row}");
        assert!(row["baseline"].as_str().unwrap().starts_with("not known: recorded on"), "{row}");
    }
    let line = format!("bench placement {small} --sms 1 --path bam --baseline verdict");
    let placed = sandbox.run(&line);
    let said = String::from_utf8_lossy(&placed.stdout).into_owned();
    assert!(said.contains("baseline: not known: recorded on"), "{said}");
    assert!(
        said.contains("of the plateau of") && said.contains("of itself with it in host"),
        "{said}"
    );
    sandbox.refuses(&format!("{line}.gone"), &["--baseline verdict.gone"]);
    // Some of the rows only, and what is no row.
    let only = "bam-12-1-q16-unlimited,copilot-4-1-q16-limit";
    let some = rows(&sandbox.run(&format!("bench baseline {small} --only {only} --json")));
    let named = |row: &Value| (row["path"].as_str().unwrap().to_owned(), row["sms"].clone());
    assert_eq!(
        some.iter().map(named).collect::<Vec<_>>(),
        [("copilot".into(), 4.into()), ("bam".into(), 12.into())]
    );
    sandbox.refuses("bench baseline --only bam-5", &["--only bam-5", "bam-4-1-q16-limit"]);
    let one = rows(
        &sandbox.run(&format!("bench placement {small} --sms 1 --path bam --cq device --json")),
    );
    let places: Vec<_> = one.iter().map(|row| [&row["sq"], &row["cq"]]).collect();
    assert_eq!(places, [["device", "device"], ["host", "device"]]);
}
