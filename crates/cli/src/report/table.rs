//! Rows as a table for people.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

use crate::report::Row;
use crate::units;

/// The main table: one line a row, what one looks at first.
pub fn table(rows: &[Row]) -> String {
    let mut table = start(&[
        "path",
        "route",
        "op",
        "I/O",
        "IOPS",
        "rate",
        "p50",
        "p99",
        "verified",
        "wrong",
        "errors",
        "cores",
        "at device",
    ]);
    for row in rows {
        table.add_row([
            text(&row.path),
            text(&row.route),
            text(&row.op),
            number(units::bytes(row.io_bytes)),
            number(units::count(row.iops)),
            number(units::rate(row.bytes_per_s)),
            number(units::nanoseconds(row.latency_ns_p50 as f64)),
            number(units::nanoseconds(row.latency_ns_p99 as f64)),
            number(verified(row)),
            number(units::thousands(row.ios_unverified)),
            number(units::thousands(row.errors)),
            number(format!("{:.2}", row.path_cores())),
            number(units::thousands(row.ios_at_device)),
        ]);
    }
    table.to_string()
}

fn verified(row: &Row) -> String {
    match row.verify.as_str() {
        "none" => "not asked".to_owned(),
        _ => format!("{} of {}", units::thousands(row.ios_verified), units::thousands(row.ios)),
    }
}

/// The second table: who did what, and what it cost.
pub fn details(rows: &[Row]) -> String {
    let mut table = start(&[
        "path",
        "I/O",
        "edges right",
        "in flight",
        "syscalls",
        "bells GPU",
        "bells CPU",
        "polled GPU",
        "polled CPU",
        "fences",
        "req B",
        "CPU path",
        "device",
        "GPU",
        "set-up",
        "distinct",
        "cached",
    ]);
    for row in rows {
        table.add_row([
            text(&row.path),
            number(units::bytes(row.io_bytes)),
            number(units::thousands(row.ios_edges_right)),
            number(format!("{:.1}", row.in_flight_mean)),
            number(units::thousands(row.syscalls)),
            number(units::thousands(row.doorbells_gpu)),
            number(units::thousands(row.doorbells_cpu)),
            number(units::thousands(row.completions_polled_gpu)),
            number(units::thousands(row.completions_polled_cpu)),
            number(units::thousands(row.fence_ios)),
            number(units::short(row.request_bytes_per_io)),
            number(format!("{:.2} s", row.cpu_path_s)),
            number(format!("{:.2} s", row.cpu_device_s)),
            number(format!("{:.2} s", row.cpu_gpu_s)),
            number(format!("{:.2} s", row.cpu_setup_s)),
            number(format!("{:.2}", row.distinct_fraction)),
            number(cached(row)),
        ]);
    }
    table.to_string()
}

fn cached(row: &Row) -> String {
    let share = |value: f64| match value {
        v if v < 0.0 => "?".to_owned(),
        v => format!("{:.0} %", v * 100.0),
    };
    if (row.cached_before - row.cached_after).abs() < 0.005 {
        share(row.cached_before)
    } else {
        format!("{} > {}", share(row.cached_before), share(row.cached_after))
    }
}

/// A plain table: a header, and lines of cells; all but the first column to the right.
pub fn lines(names: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = start(names);
    for row in rows {
        let cells = row.iter().enumerate();
        table
            .add_row(cells.map(|(n, cell)| if n == 0 { text(cell) } else { number(cell.clone()) }));
    }
    table.to_string()
}

pub(super) fn start(names: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(names.iter().map(|name| text(name)));
    table
}

pub(super) fn text(value: &str) -> Cell {
    Cell::new(value)
}

pub(super) fn number(value: String) -> Cell {
    Cell::new(value).set_alignment(CellAlignment::Right)
}
