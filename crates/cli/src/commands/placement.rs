//! `sidecore bench placement`: submission and completion queues in device or host memory, all four
//! ways, each system over the same software drive.

use std::process::ExitCode;

use anyhow::Result;

use crate::args::{PathName, PlacementArgs, QueueMemory};
use crate::bench::compare::{Cell, Comparison, Shape, check_matched};
use crate::commands::{sweep, verdict};
use crate::interrupt;
use crate::printer::print;
use crate::report::{SIMULATED, comparison};

/// Runs it.
///
/// # Errors
/// Bad options, a path that broke.
pub fn run(args: &PlacementArgs) -> Result<ExitCode> {
    let paths = sweep::paths(&args.path, PathName::has_lane_queues)?;
    let shapes: Vec<(PathName, Shape)> =
        paths.iter().map(|path| (*path, Shape::of(&args.shape, &[], *path))).collect();
    check_matched(&shapes, &[args.sms])?;
    let both = [QueueMemory::Device, QueueMemory::Host];
    let mut cells = Vec::new();
    for &(path, shape) in &shapes {
        for sq in both {
            for cq in both {
                let (sms, memory) = (args.sms, (sq, cq));
                let (second_read, deep_storage, setting) = (false, false, "matched");
                cells.push(Cell { path, sms, shape, memory, second_read, deep_storage, setting });
            }
        }
    }
    let mut measured = Comparison::open(&args.compare, &cells)?;
    let rows = measured.run(&cells, |row| match args.compare.json {
        true => print(&serde_json::to_string(row)?),
        false => Ok(()),
    })?;
    if !args.compare.json {
        print(&format!(
            "{SIMULATED}. Here device and host memory are the same memory of this machine, so what \
             is compared is that each placement works and what the protocol does, not PCIe."
        ))?;
        print(&comparison(&rows))?;
    }
    if interrupt::asked() {
        eprintln!("interrupted: {} of {} rows", rows.len(), cells.len());
        return Ok(ExitCode::from(interrupt::INTERRUPTED));
    }
    Ok(verdict(&rows))
}
