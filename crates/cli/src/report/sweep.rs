//! Rows of a comparison: as a table, and as the CSV files and the plot that CoPilotIO's artifact
//! makes of its own sweep.

use std::fmt::Write;

use crate::args::PathName;
use crate::report::Row;
use crate::report::bars::{Bars, grouped_bars};
use crate::report::table::{number, start, text};
use crate::units;

/// Words for whatever stands over such rows.
pub const SIMULATED: &str =
    "simulated GPU, software drive: the rates are the simulator's, not a device's";

/// The same for any GPU.
pub fn standing(gpu: &str) -> String {
    if gpu.starts_with("simulated") {
        return SIMULATED.to_owned();
    }
    format!("{gpu}, software drive: its rate is an emulation's, not a drive's")
}

/// Columns of such a table.
const COLUMNS: [&str; 30] = [
    "path",
    "SMs",
    "warps",
    "batch",
    "queues",
    "depth",
    "cores",
    "SQ",
    "CQ",
    "in flight",
    "IOPS",
    "lowest",
    "highest",
    "GiB/s",
    "p50",
    "p99",
    "CPU/IO",
    "fetch",
    "wait",
    "polling",
    "registers",
    "bells GPU",
    "bells CPU",
    "polled GPU",
    "polled CPU",
    "fences",
    "at device",
    "verified",
    "errors",
    "",
];

/// The table of a sweep or of a placement: one line a row.
pub fn comparison(rows: &[Row]) -> String {
    let mut table = start(&COLUMNS);
    for row in rows {
        table.add_row([
            text(&row.path),
            number(row.sms.to_string()),
            number(row.warps.to_string()),
            number(row.batch.to_string()),
            number(row.queues.to_string()),
            number(row.depth.to_string()),
            number(row.side_cores.to_string()),
            text(dash(&row.sq)),
            text(dash(&row.cq)),
            number(format!("{:.0}", row.in_flight_mean)),
            number(units::count(row.iops)),
            number(units::count(row.iops_min)),
            number(units::count(row.iops_max)),
            number(format!("{:.3}", gibs(row))),
            number(units::nanoseconds(row.latency_ns_p50 as f64)),
            number(units::nanoseconds(row.latency_ns_p99 as f64)),
            number(units::nanoseconds(row.cpu_path_ns_per_io)),
            number(units::nanoseconds(row.fetch_ns_per_command)),
            text(&row.wait),
            number(row.polling_warps.to_string()),
            number(row.registers.to_string()),
            number(units::thousands(row.doorbells_gpu)),
            number(units::thousands(row.doorbells_cpu)),
            number(units::thousands(row.completions_polled_gpu)),
            number(units::thousands(row.completions_polled_cpu)),
            number(units::thousands(row.fence_ios)),
            number(units::thousands(row.ios_at_device)),
            number(format!(
                "{} of {}",
                units::thousands(row.ios_verified),
                units::thousands(row.ios)
            )),
            number(units::thousands(row.errors)),
            text(if row.simulated { "simulated" } else { "" }),
        ]);
    }
    table.to_string()
}

fn dash(word: &str) -> &str {
    if word.is_empty() { "-" } else { word }
}

/// Bandwidth as the artifact has it.
fn gibs(row: &Row) -> f64 {
    row.bytes_per_s / f64::from(1 << 30)
}

/// What the artifact calls a system.
pub fn artifact_name(path: PathName) -> (&'static str, &'static str) {
    match path {
        PathName::Bam => ("bam", "BaM"),
        PathName::Copilot => ("copilotio", "CoPilotIO"),
        other => (other.name(), other.name()),
    }
}

/// The artifact's CSV of one system, with a column more that says what was simulated.
pub fn artifact_csv(rows: &[Row], path: PathName) -> String {
    let mut out = String::from("sms,bandwidth_gibs,iops_m,simulated\n");
    for row in rows.iter().filter(|row| row.path == path.name()) {
        let (bandwidth, iops) = (gibs(row), row.iops / 1e6);
        let _ = writeln!(out, "{},{bandwidth:.6},{iops:.6},{}", row.sms, row.simulated);
    }
    out
}

/// The artifact's plot: bandwidth by SM count, a bar a system.
pub fn artifact_plot(rows: &[Row], paths: &[PathName], sms: &[u32], setting: &str) -> String {
    let series: Vec<Bars> = paths
        .iter()
        .map(|path| {
            let at = |sms: &u32| {
                rows.iter().find(|row| row.path == path.name() && row.sms == *sms).map(gibs)
            };
            Bars { name: artifact_name(*path).1.to_owned(), values: sms.iter().map(at).collect() }
        })
        .collect();
    let io = rows.first().map_or_else(String::new, |row| units::bytes(row.io_bytes));
    let groups: Vec<String> = sms.iter().map(u32::to_string).collect();
    let op = rows.first().map_or("", |row| row.op.as_str());
    let title = format!("Random {io} {op}, {setting} settings");
    let standing = standing(rows.first().map_or("simulated", |row| &row.gpu));
    grouped_bars(&title, &standing, &groups, "bandwidth, GiB/s", &series)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(path: &str, sms: u32, bytes_per_s: f64) -> Row {
        let iops = bytes_per_s / 4096.0;
        let gpu = "simulated GPU".into();
        Row { path: path.into(), sms, bytes_per_s, iops, gpu, simulated: true, ..Row::default() }
    }

    #[test]
    fn the_csv_has_the_artifacts_columns_and_marks_its_rows() {
        let rows = [row("bam", 1, 1e9), row("copilot", 1, 5.0), row("bam", 96, 2_147_483_648.0)];
        let csv = artifact_csv(&rows, PathName::Bam);
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(
            lines[0].split(',').take(3).collect::<Vec<_>>(),
            ["sms", "bandwidth_gibs", "iops_m"]
        );
        assert_eq!(lines[1], "1,0.931323,0.244141,true");
        assert_eq!(lines[2], "96,2.000000,0.524288,true");
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn the_plot_has_a_bar_a_row() {
        let rows = [row("bam", 1, 1e9), row("copilot", 1, 5.0), row("bam", 96, 2e9)];
        let svg = artifact_plot(&rows, &[PathName::Bam, PathName::Copilot], &[1, 96], "matched");
        assert_eq!(svg.matches("class=\"bar\"").count(), 3);
        assert!(svg.contains("simulated") && svg.contains("matched"));
    }

    #[test]
    fn the_plot_of_a_real_gpu_names_it_and_calls_the_drive_an_emulation() {
        let gpu = "NVIDIA H200".to_owned();
        let rows = [Row { gpu, simulated: false, ..row("bam", 1, 1e9) }];
        let svg = artifact_plot(&rows, &[PathName::Bam], &[1], "matched");
        assert!(svg.contains("NVIDIA H200") && svg.contains("emulation"));
        assert!(!svg.contains("simulated"));
    }
}
