//! `sidecore bench baseline`: runs bam and copilot as their published code was run, and says whether they
//! may stand for it.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use crate::args::{BaselineArgs, CompareArgs, PathName, QueueMemory};
use crate::bench::baseline::{
    LATENCY, LIMIT_IOPS, POLLING_CORES, RECORD, Recorded, Verdict, stranger,
};
use crate::bench::compare::{Cell, Comparison, Shape};
use crate::commands::verdict;
use crate::interrupt;
use crate::printer::{print, tell};
use crate::report::{Row, lines};
use crate::units;

/// Runs it.
///
/// # Errors
/// Bad options, no memory, a path that broke.
pub fn run(args: &BaselineArgs) -> Result<ExitCode> {
    let recorded = chosen(args)?;
    let mut all = Vec::new();
    for limited in [true, false] {
        let rows: Vec<_> = recorded.iter().filter(|row| row.limited == limited).copied().collect();
        if rows.is_empty() {
            continue;
        }
        all.extend(group(args, limited, rows)?);
        if interrupt::asked() {
            return Ok(ExitCode::from(interrupt::INTERRUPTED));
        }
    }
    let found = judge(&all);
    if let Some(path) = &args.out {
        let named = || format!("--out: writing {}", path.display());
        std::fs::write(path, serde_json::to_string(&found)?).with_context(named)?;
    }
    if !args.compare.json {
        show(&all)?;
    }
    let words = format!(
        "baseline {}; plateau {} I/Os a second, by {}",
        found.baseline,
        units::count(found.plateau_iops),
        found.plateau_by
    );
    if args.compare.json {
        tell!("{words}")
    } else {
        print(&words)?
    }
    let rows: Vec<Row> = all.into_iter().map(|(_, row)| row).collect();
    Ok(verdict(&rows))
}

/// The rows asked for.
fn chosen(args: &BaselineArgs) -> Result<Vec<Recorded>> {
    if let Some(name) = args.only.iter().find(|name| RECORD.iter().all(|row| row.name() != **name))
    {
        let names: Vec<String> = RECORD.iter().map(Recorded::name).collect();
        anyhow::bail!("--only {name}: there are {}", names.join(", "));
    }
    let fits = |row: &&Recorded| {
        row.sms <= args.sms_max.unwrap_or(u32::MAX)
            && (args.only.is_empty() || args.only.contains(&row.name()))
    };
    let rows: Vec<Recorded> = RECORD.iter().filter(fits).copied().collect();
    ensure!(!rows.is_empty(), "--sms-max leaves no row; the fewest SMs of all are 4");
    Ok(rows)
}

/// The rows over one drive: with its limit, or without.
fn group(
    args: &BaselineArgs,
    limited: bool,
    recorded: Vec<Recorded>,
) -> Result<Vec<(Recorded, Row)>> {
    let compare = CompareArgs {
        drive_iops: if limited { LIMIT_IOPS } else { 0 },
        drive_latency: (if limited { LATENCY } else { "0us" }).to_owned(),
        ..args.compare.clone()
    };
    let cells: Vec<Cell> = recorded.iter().map(cell).collect();
    let mut comparison = Comparison::open(&compare, &cells)?;
    let mut rows = Vec::new();
    let measured = comparison.run(&cells, |_| Ok(()))?;
    for (recorded, mut row) in recorded.into_iter().zip(measured) {
        row.baseline = match stranger(&row.gpu) {
            Some(why) => why,
            None if row.iops >= recorded.least() => "valid".to_owned(),
            None => "invalid".to_owned(),
        };
        row.recorded_iops = recorded.iops;
        if compare.json {
            print(&serde_json::to_string(&row)?)?;
        }
        rows.push((recorded, row));
    }
    Ok(rows)
}

fn cell(row: &Recorded) -> Cell {
    let shape = Shape {
        warps: row.warps,
        batch: row.batch(),
        queues: row.queues,
        depth: row.depth(),
        host_cores: POLLING_CORES,
    };
    // Queues where each system puts them.
    let memory = match row.path {
        PathName::Copilot => (QueueMemory::Device, QueueMemory::Host),
        _ => (QueueMemory::Device, QueueMemory::Device),
    };
    Cell {
        path: row.path,
        sms: row.sms,
        shape,
        memory,
        second_read: false,
        deep_storage: false,
        setting: "recorded",
    }
}

fn judge(all: &[(Recorded, Row)]) -> Verdict {
    let best = all.iter().map(|(_, row)| row).max_by(|a, b| a.iops.total_cmp(&b.iops));
    let gpu = best.map_or_else(String::new, |row| row.gpu.clone());
    let short: Vec<String> = all
        .iter()
        .filter(|(recorded, row)| row.iops < recorded.least())
        .map(|(recorded, row)| {
            format!(
                "{} at {} x {} reaches {:.2} of what was recorded{}",
                row.path,
                row.sms,
                row.warps,
                row.iops / recorded.iops,
                if recorded.limited { " at the limit" } else { "" }
            )
        })
        .collect();
    let baseline = match (stranger(&gpu), short.is_empty()) {
        (Some(why), _) => why,
        (None, true) if all.len() < RECORD.len() => {
            format!("valid, by {} of {} rows", all.len(), RECORD.len())
        }
        (None, true) => "valid".to_owned(),
        (None, false) => format!("invalid: {}", short.join("; ")),
    };
    Verdict {
        baseline,
        plateau_iops: best.map_or(0.0, |row| row.iops),
        plateau_by: best.map_or_else(String::new, |row| {
            format!("{} at {} x {}, batch {}", row.path, row.sms, row.warps, row.batch)
        }),
        gpu,
    }
}

fn show(all: &[(Recorded, Row)]) -> Result<()> {
    let names =
        ["path", "SMs", "warps", "batch", "queues", "limit", "IOPS", "*recorded*", "ratio", ""];
    let cells = all.iter().map(|(recorded, row)| {
        vec![
            row.path.clone(),
            row.sms.to_string(),
            row.warps.to_string(),
            row.batch.to_string(),
            row.queues.to_string(),
            if recorded.limited { units::count(LIMIT_IOPS as f64) } else { "-".to_owned() },
            units::count(row.iops),
            units::count(recorded.iops),
            format!("{:.2}", row.iops / recorded.iops),
            row.baseline.clone(),
        ]
    });
    print(&lines(&names, &cells.collect::<Vec<_>>()))
}
