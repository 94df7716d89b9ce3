//! The report: one page that needs no other file, charts as inline SVG, tables beneath.

use std::fmt::Write;

use crate::report::Row;
use crate::report::page::STYLE;
use crate::report::svg::{Chart, Format, Point, Series, XAxis, escape};
use crate::units;

/// What the report says besides its rows.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The command that made it.
    pub command: String,
    /// Name and value: machine, kernel, data, and so on.
    pub facts: Vec<(String, String)>,
    /// What was simulated or emulated, one sentence each.
    pub emulated: Vec<String>,
}

/// Words on whatever was measured on the simulator.
const SIMULATORS: &str = "simulated: these are the simulator's rates, not a device's";

/// The whole page.
pub fn html(rows: &[Row], context: &Context) -> String {
    let mut out = String::from("<!DOCTYPE html><!-- sidecore bench -->\n<html lang=\"en\"><head>");
    let _ = write!(
        out,
        "<meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>sidecore bench</title><style>{STYLE}</style></head>\n<body><main>\
         <h1>sidecore bench</h1><p class=\"lead\">{}</p>\n",
        escape(&lead(rows))
    );
    if !context.emulated.is_empty() {
        let text = context.emulated.join(" ");
        let _ = writeln!(out, "<p class=\"notice\">{}</p>", escape(&text));
    }
    tiles(&mut out, rows);
    out.push_str("<div class=\"charts\">\n");
    for chart in charts(rows) {
        let _ = writeln!(out, "<figure>{}</figure>", chart.svg());
    }
    out.push_str("</div>\n<h2>Rates and latencies</h2>\n");
    main_table(&mut out, rows);
    out.push_str("<h2>Who did what</h2>\n");
    deeds_table(&mut out, rows);
    out.push_str("<h2>What it cost</h2>\n");
    bill_table(&mut out, rows);
    out.push_str("<h2>How it was measured</h2>\n<dl>");
    let command = [("command".to_owned(), context.command.clone())];
    for (name, value) in command.iter().chain(&context.facts) {
        let _ = write!(out, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
    }
    out.push_str("</dl>\n</main></body></html>\n");
    out
}

fn lead(rows: &[Row]) -> String {
    let paths: Vec<&str> = unique(rows.iter().map(|row| row.path.as_str()));
    let drives: Vec<&str> = unique(rows.iter().map(|row| row.drive.as_str()));
    format!("{} from {}", paths.join(", "), drives.join("; "))
}

fn unique<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}

fn tiles(out: &mut String, rows: &[Row]) {
    let total: u64 = rows.iter().map(|row| row.ios).sum();
    let verified: u64 = rows.iter().map(|row| row.ios_verified).sum();
    let wrong: u64 = rows.iter().map(|row| row.ios_unverified).sum();
    let errors: u64 = rows.iter().map(|row| row.errors).sum();
    let best = rows.iter().max_by(|a, b| a.iops.total_cmp(&b.iops));
    let fastest = rows.iter().max_by(|a, b| a.bytes_per_s.total_cmp(&b.bytes_per_s));
    out.push_str("<div class=\"tiles\">");
    if let (Some(best), Some(fastest)) = (best, fastest) {
        let at = |row: &Row| format!("{} at {}", row.path, units::bytes(row.io_bytes));
        tile(out, &units::count(best.iops), &format!("I/Os a second, highest: {}", at(best)));
        let name = format!("highest rate: {}", at(fastest));
        tile(out, &units::rate(fastest.bytes_per_s), &name);
    }
    let name = format!("of {} I/Os verified in every byte", units::thousands(total));
    tile(out, &units::thousands(verified), &name);
    tile(
        out,
        &format!("{} / {}", units::thousands(wrong), units::thousands(errors)),
        "not verified / ended with an error",
    );
    out.push_str("</div>\n");
}

fn tile(out: &mut String, value: &str, name: &str) {
    let _ = write!(
        out,
        "<div class=\"tile\"><b>{}</b><span>{}</span></div>",
        escape(value),
        escape(name)
    );
}

/// Which parameter is on the x axis: the first of these that varies.
#[derive(Clone, Copy, PartialEq)]
enum Along {
    IoBytes,
    Depth,
    Sms,
    Path,
}

fn along(rows: &[Row]) -> Along {
    if unique(rows.iter().map(|row| row.io_bytes)).len() > 1 {
        return Along::IoBytes;
    }
    let varies = |value: fn(&Row) -> u32| {
        let paths = unique(rows.iter().map(|row| row.path.as_str()));
        paths
            .iter()
            .any(|path| unique(rows.iter().filter(|row| row.path == *path).map(value)).len() > 1)
    };
    match () {
        () if varies(|row| row.depth) => Along::Depth,
        () if varies(|row| row.sms) && rows.iter().all(|row| row.sms > 0) => Along::Sms,
        () => Along::Path,
    }
}

/// What one chart shows of a row: value, lowest and highest repeat.
type Measure = fn(&Row) -> (f64, f64, f64);

fn charts(rows: &[Row]) -> Vec<Chart> {
    let one = |title: &str, y_label: &str, y_format: Format, measure: Measure| {
        chart(rows, title, y_label, y_format, measure)
    };
    vec![
        one("I/Os a second", "I/Os a second", units::count, |row| {
            (row.iops, row.iops_min, row.iops_max)
        }),
        one("Payload rate", "bytes a second", units::rate, |row| {
            let io = row.io_bytes as f64;
            (row.bytes_per_s, row.iops_min * io, row.iops_max * io)
        }),
        one("Latency, median", "time of one I/O", units::nanoseconds, |row| {
            let range = (row.latency_ns_p50_min, row.latency_ns_p50_max);
            (row.latency_ns_p50 as f64, range.0 as f64, range.1 as f64)
        }),
        one("Latency, 99th percentile", "time of one I/O", units::nanoseconds, |row| {
            let range = (row.latency_ns_p99_min, row.latency_ns_p99_max);
            (row.latency_ns_p99 as f64, range.0 as f64, range.1 as f64)
        }),
        one("CPU time of the path", "CPU time an I/O", units::nanoseconds, |row| {
            (row.cpu_path_ns_per_io, row.cpu_path_ns_per_io_min, row.cpu_path_ns_per_io_max)
        }),
        one(
            "CPU time of path, software drive and simulated GPU",
            "CPU time an I/O",
            units::nanoseconds,
            |row| (row.cpu_all_ns_per_io, row.cpu_all_ns_per_io_min, row.cpu_all_ns_per_io_max),
        ),
    ]
}

fn chart(rows: &[Row], title: &str, y_label: &str, y_format: Format, measure: Measure) -> Chart {
    let along = along(rows);
    let names: Vec<String> = rows.iter().map(|row| series_name(rows, row, along)).collect();
    let mut series: Vec<Series> = unique(names.iter())
        .into_iter()
        .map(|name| Series { name: name.clone(), points: Vec::new() })
        .collect();
    for (row, name) in rows.iter().zip(&names) {
        let (y, low, high) = measure(row);
        let at = series.iter().position(|s| s.name == *name).expect("each name has its series");
        let x = match along {
            Along::IoBytes => row.io_bytes as f64,
            Along::Depth => f64::from(row.depth),
            Along::Sms => f64::from(row.sms),
            Along::Path => at as f64,
        };
        let suffix = if row.is_emulated() { SIMULATORS } else { "measured on this machine" };
        let tip =
            format!("{name}: {} ({} to {}); {suffix}", y_format(y), y_format(low), y_format(high));
        series[at].points.push(Point { x, y, range: (low, high), tip });
    }
    for one in &mut series {
        one.points.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    let (x_label, x) = x_axis(rows, along, &series);
    let bars = "bars: lowest to highest repeat";
    let emulated = rows.iter().filter(|row| row.is_emulated()).count();
    let note = match emulated {
        0 => bars.to_owned(),
        n if n == rows.len() => format!("{bars}. {SIMULATORS}"),
        _ => format!("{bars}. Simulated rows show the simulator's rates"),
    };
    Chart { title: title.into(), note, x_label, y_label: y_label.into(), x, y_format, series }
}

fn x_axis(rows: &[Row], along: Along, series: &[Series]) -> (String, XAxis) {
    let values = |value: fn(&Row) -> f64| {
        let mut values = unique(rows.iter().map(value));
        values.sort_by(f64::total_cmp);
        values
    };
    match along {
        Along::IoBytes => (
            "bytes an I/O (powers of two)".into(),
            XAxis::Values(values(|row| row.io_bytes as f64), |v| units::bytes(units::whole(v))),
        ),
        Along::Depth => (
            "I/Os in flight at most, or depth of the ring".into(),
            XAxis::Values(values(|row| f64::from(row.depth)), units::short),
        ),
        Along::Sms => ("SMs".into(), XAxis::Values(values(|row| f64::from(row.sms)), units::short)),
        Along::Path => {
            ("path".into(), XAxis::Names(series.iter().map(|s| s.name.clone()).collect()))
        }
    }
}

/// The path, and whatever else tells this row from others that the axis does not.
fn series_name(rows: &[Row], row: &Row, along: Along) -> String {
    let mut name = row.path.clone();
    let of_path = || rows.iter().filter(|other| other.path == row.path);
    if unique(of_path().map(|other| &other.route)).len() > 1 {
        let _ = write!(name, " {}", row.route);
    }
    if along != Along::Depth && unique(of_path().map(|other| other.depth)).len() > 1 {
        let _ = write!(name, " depth {}", row.depth);
    }
    if along != Along::Sms && unique(of_path().map(|other| other.sms)).len() > 1 {
        let _ = write!(name, " {} SM{}", row.sms, if row.sms == 1 { "" } else { "s" });
    }
    name
}

fn main_table(out: &mut String, rows: &[Row]) {
    head(
        out,
        "path|route|op|what it is",
        "I/O|IOPS|lowest|highest|rate|p50|p99|verified|wrong|errors",
    );
    for row in rows {
        let kind = if row.is_emulated() {
            "<span class=\"tag\">the simulator's rates</span>"
        } else {
            "measured"
        };
        let mark = |n: u64| match n {
            0 => "<span class=\"good\">0</span>".to_owned(),
            n => format!("<span class=\"bad\">{}</span>", units::thousands(n)),
        };
        let _ = write!(
            out,
            "<tr><td class=\"t\"><b>{}</b></td><td class=\"t\">{}</td><td class=\"t\">{}</td>\
             <td class=\"t\">{kind}</td>",
            escape(&row.path),
            escape(&row.route),
            escape(&row.op)
        );
        cells(
            out,
            &[
                units::bytes(row.io_bytes),
                units::count(row.iops),
                units::count(row.iops_min),
                units::count(row.iops_max),
                units::rate(row.bytes_per_s),
                units::nanoseconds(row.latency_ns_p50 as f64),
                units::nanoseconds(row.latency_ns_p99 as f64),
                format!("{} of {}", units::thousands(row.ios_verified), units::thousands(row.ios)),
                mark(row.ios_unverified),
                mark(row.errors),
            ],
        );
    }
    out.push_str("</tbody></table></div>\n");
}

fn deeds_table(out: &mut String, rows: &[Row]) {
    head(
        out,
        "path",
        "I/O|edges right|in flight|at device|system calls|doorbells GPU|doorbells CPU|polled by GPU|\
         polled by CPU|fence I/Os|request bytes",
    );
    for row in rows {
        path_cell(out, row);
        cells(
            out,
            &[
                units::bytes(row.io_bytes),
                units::thousands(row.ios_edges_right),
                format!("{:.1}", row.in_flight_mean),
                units::thousands(row.ios_at_device),
                units::thousands(row.syscalls),
                units::thousands(row.doorbells_gpu),
                units::thousands(row.doorbells_cpu),
                units::thousands(row.completions_polled_gpu),
                units::thousands(row.completions_polled_cpu),
                units::thousands(row.fence_ios),
                units::short(row.request_bytes_per_io),
            ],
        );
    }
    out.push_str("</tbody></table></div>\n");
}

fn bill_table(out: &mut String, rows: &[Row]) {
    head(
        out,
        "path",
        "I/O|CPU path|CPU drive|CPU GPU|CPU set-up|CPU all|side cores|SMs|lanes|distinct blocks|\
         cached before|cached after",
    );
    for row in rows {
        path_cell(out, row);
        let seconds = |value: f64| format!("{value:.2} s");
        let share = |value: f64| match value {
            v if v < 0.0 => "unknown".to_owned(),
            v => format!("{:.0} %", v * 100.0),
        };
        cells(
            out,
            &[
                units::bytes(row.io_bytes),
                seconds(row.cpu_path_s),
                seconds(row.cpu_device_s),
                seconds(row.cpu_gpu_s),
                seconds(row.cpu_setup_s),
                seconds(row.cpu_s),
                row.side_cores.to_string(),
                row.sms.to_string(),
                units::thousands(u64::from(row.lanes)),
                share(row.distinct_fraction),
                share(row.cached_before),
                share(row.cached_after),
            ],
        );
    }
    out.push_str("</tbody></table></div>\n");
}

fn path_cell(out: &mut String, row: &Row) {
    let _ = write!(out, "<tr><td class=\"t\"><b>{}</b></td>", escape(&row.path));
}

fn head(out: &mut String, words: &str, numbers: &str) {
    out.push_str("<div class=\"scroll\"><table><thead><tr>");
    for name in words.split('|') {
        let _ = write!(out, "<th class=\"t\">{name}</th>");
    }
    for name in numbers.split('|') {
        let _ = write!(out, "<th>{name}</th>");
    }
    out.push_str("</tr></thead><tbody>\n");
}

fn cells(out: &mut String, values: &[String]) {
    for value in values {
        let _ = write!(out, "<td>{value}</td>");
    }
    out.push_str("</tr>\n");
}
