//! The default `bench`, as a person would run it: it ends well, its rows have their fields and
//! verify every byte, its CPU seconds are those of the whole; no rate is asserted here.
//!
//! Its report is then opened in headless Chromium without a network: what is checked is the page as
//! the browser has it, and a picture of it is kept as `target/xtask/bench/report.png`.

use super::Outcome;
use crate::process::{Finished, Run};
use crate::tree;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::PathBuf;

/// Fields that every row has, whatever is added later.
const FIELDS: &[&str] = &[
    "path",
    "route",
    "op",
    "gpu",
    "drive",
    "io_bytes",
    "ios",
    "ios_at_device",
    "ios_verified",
    "errors",
    "seconds",
    "iops",
    "bytes_per_s",
    "latency_ns_p50",
    "latency_ns_p99",
    "cpu_s",
    "side_cores",
    "sms",
    "lanes",
];
/// Paths that the default run has.
const PATHS: [&str; 6] = ["posix", "uring", "nvme", "bam", "copilot", "ring"];
/// How far the rows' CPU seconds may be from the whole's.
const CPU_SHARE_MAX: f64 = 0.05;

/// Files of a run.
struct Files {
    csv: PathBuf,
    html: PathBuf,
    picture: PathBuf,
}

impl Files {
    fn new() -> Result<Self> {
        let folder = tree::scratch("bench")?;
        std::fs::create_dir_all(&folder)?;
        let at = |name: &str| folder.join(name);
        Ok(Self { csv: at("rows.csv"), html: at("report.html"), picture: at("report.png") })
    }
}

/// Builds the command as a user's first command would.
pub fn build() -> Result<PathBuf> {
    let line = "build --release";
    Run::cargo().words(line).seconds(1200).log("bench-build")?.run()?.expect_ok("cargo build")?;
    Ok(tree::target().join("release/sidecore"))
}

/// Runs the default `bench` and checks its rows.
pub fn step() -> Result<Outcome> {
    let files = Files::new()?;
    let mut outcome = Outcome::default();
    let (finished, cpu_s) = run(&files)?;
    outcome.check(finished.ok, || format!("bench {}\n{}", finished.how(), finished.output));
    let rows: Vec<Value> = finished
        .output
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).with_context(|| format!("not JSON: {line}")))
        .collect::<Result<_>>()?;
    for path in PATHS {
        let there = rows.iter().any(|row| row["path"] == path);
        outcome.check(there, || format!("no row of path {path}"));
    }
    for row in &rows {
        check_row(&mut outcome, row);
    }
    let sum: f64 = rows.iter().filter_map(|row| row["cpu_s"].as_f64()).sum();
    outcome.check((sum - cpu_s).abs() <= CPU_SHARE_MAX * cpu_s, || {
        format!("the rows have {sum:.2} CPU seconds, the whole took {cpu_s:.2}")
    });
    outcome.notes.push(format!("{:.0} s, {cpu_s:.1} CPU seconds", finished.seconds));
    Ok(outcome)
}

/// Runs `bench` with all outputs; returns also the CPU seconds that the whole took.
fn run(files: &Files) -> Result<(Finished, f64)> {
    let program = build()?;
    let finished = Run::new("bash")
        .args(["-c", "TIMEFORMAT='CPU %U %S'; time \"$0\" \"$@\""])
        .arg(&program)
        .words("bench --json --overwrite")
        .arg("--csv")
        .arg(&files.csv)
        .arg("--html")
        .arg(&files.html)
        .seconds(300)
        .log("bench")?
        .run()?;
    let times = finished.output.lines().rev().find_map(|line| line.strip_prefix("CPU "));
    let times = times.with_context(|| format!("no CPU times:\n{}", finished.output))?;
    let cpu_s = times.split(' ').filter_map(|word| word.parse::<f64>().ok()).sum();
    Ok((finished, cpu_s))
}

/// Steps the load of co-polled queues; the command's own checks are the step's.
pub fn copoll() -> Result<Outcome> {
    let program = build()?;
    let run = Run::new(program).words("bench copoll --json").seconds(300).log("copoll")?.run()?;
    let mut outcome = Outcome::default();
    let line = run.output.lines().find(|line| line.starts_with('{'));
    let line = line.with_context(|| format!("bench copoll {}\n{}", run.how(), run.output))?;
    let report: Value = serde_json::from_str(line).context("the report of bench copoll")?;
    let checks = report["checks"].as_array().context("bench copoll without checks")?;
    outcome.check(checks.len() == 5, || format!("{} checks, not 5", checks.len()));
    for check in checks {
        let said = format!("{}: {}", check["what"], check["found"]);
        outcome.check(check["pass"] == true, || format!("{said}\n{line}"));
        outcome.notes.push(said);
    }
    Ok(outcome)
}

/// Checks what holds of every row.
fn check_row(outcome: &mut Outcome, row: &Value) {
    let missing: Vec<_> = FIELDS.iter().filter(|field| row.get(**field).is_none()).collect();
    outcome.check(missing.is_empty(), || format!("fields {missing:?} are not in {row}"));
    let number = |field: &str| row[field].as_f64().unwrap_or(f64::NAN);
    let all = number("ios") > 0.0
        && number("ios_verified") == number("ios")
        && number("ios_at_device") >= number("ios")
        && number("errors") == 0.0;
    outcome.check(all, || format!("not all I/Os were served and verified: {row}"));
    let sums = (number("iops") * number("seconds") / number("ios") - 1.0).abs() < 0.01;
    outcome.check(sums, || format!("iops is not ios by seconds: {row}"));
    let parts = ["cpu_path_s", "cpu_device_s", "cpu_gpu_s", "cpu_setup_s"].map(number);
    let sum: f64 = parts.iter().sum();
    let same = (sum - number("cpu_s")).abs() < 0.02 + 0.01 * sum;
    outcome.check(same, || format!("CPU seconds {parts:?} do not make cpu_s: {row}"));
    if row["path"] == "ring" {
        let quiet = number("doorbells_gpu") == 0.0 && number("request_bytes_per_io") == 32.0;
        outcome.check(quiet, || format!("a ring rings no bell and asks with 32 bytes: {row}"));
        let simulated = row["gpu"].as_str().is_some_and(|gpu| gpu.starts_with("simulated"));
        outcome.check(simulated, || format!("the GPU is not called simulated: {row}"));
    }
    let (path, iops) = (&row["path"], number("iops"));
    outcome.notes.push(format!("{path} {}: {iops:.0} IOPS", row["route"]));
}

/// Opens the report in Chromium and checks the page.
pub fn report() -> Result<Outcome> {
    let files = Files::new()?;
    if !files.html.is_file() {
        run(&files)?;
    }
    let csv = std::fs::read_to_string(&files.csv).context("reading the CSV")?;
    let rows = csv.lines().count().saturating_sub(1);
    let raw = std::fs::read_to_string(&files.html).context("reading the report")?;
    let page = chromium(&files, &["--dump-dom"])?;
    let mut outcome = Outcome::default();
    let external = ["http:", "https:", "href=", "src=", "url(", "@import", "<script", "<link"];
    for word in external {
        outcome.check(!raw.contains(word), || format!("the report refers outside: `{word}`"));
    }
    let charts: Vec<&str> =
        page.split("<svg").skip(1).filter_map(|s| s.split("</svg>").next()).collect();
    outcome.check(charts.len() >= 3, || format!("{} charts", charts.len()));
    for (index, chart) in charts.iter().enumerate() {
        check_chart(&mut outcome, index, chart, rows);
    }
    let said = page.contains("simulator's rates") && page.contains("simulated");
    outcome.check(said, || "the page does not call the simulator's rates so".to_owned());
    let picture = format!("--screenshot={}", files.picture.display());
    chromium(&files, &[&picture, "--window-size=1400,2400", "--hide-scrollbars"])?;
    let bytes = std::fs::metadata(&files.picture).map_or(0, |file| file.len());
    outcome.check(bytes > 20_000, || format!("the picture of the page has {bytes} bytes"));
    outcome.notes.push(format!(
        "{} charts of {rows} rows, {}",
        charts.len(),
        files.picture.display()
    ));
    Ok(outcome)
}

/// Checks one chart of the page: a marker a row, ranges, axes, legend.
fn check_chart(outcome: &mut Outcome, index: usize, chart: &str, rows: usize) {
    let count = |class: &str| chart.matches(&format!("class=\"{class}")).count();
    let markers = count("marker");
    outcome.check(markers == rows, || format!("chart {index}: {markers} markers, {rows} rows"));
    let ranges = count("range");
    outcome.check(ranges == rows, || format!("chart {index}: {ranges} min-max bars"));
    for class in ["axis", "tick", "legend", "title"] {
        outcome.check(count(class) > 0, || format!("chart {index} has no {class}"));
    }
    outcome.check(!chart.contains("NaN") && !chart.contains("inf"), || {
        format!("chart {index} draws what is no number")
    });
}

/// Runs Chromium on the report in a network namespace of its own, where there is no network.
fn chromium(files: &Files, options: &[&str]) -> Result<String> {
    let profile = tree::scratch("chromium")?;
    let mut run = Run::new("unshare").args(["--net", "--map-root-user", "chromium"]);
    for option in "--headless --no-sandbox --disable-gpu --no-first-run --disable-sync \
                   --disable-background-networking --disable-component-update"
        .split_whitespace()
        .chain(options.iter().copied())
    {
        run = run.arg(option);
    }
    let finished = run
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{}", files.html.display()))
        .seconds(120)
        .log("chromium")?
        .run()?;
    ensure!(finished.ok, "Chromium {}\n{}", finished.how(), finished.output);
    Ok(finished.output)
}
