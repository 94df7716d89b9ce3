//! `sidecore bench placement`: submission and completion queues in device or host memory, all four
//! ways, each system over the same software drive.

use std::process::ExitCode;

use anyhow::Result;

use crate::args::{PathName, PlacementArgs, QueueMemory};
use crate::bench::compare::{Cell, Comparison, Shape, check_matched};
use crate::commands::{sweep, verdict};
use crate::interrupt;
use crate::printer::{print, tell};
use crate::report::{Row, comparison, standing};
use crate::units;

/// Runs it.
///
/// # Errors
/// Bad options, a path that broke.
pub fn run(args: &PlacementArgs) -> Result<ExitCode> {
    let paths = sweep::paths(&args.path, PathName::has_lane_queues)?;
    let shapes: Vec<(PathName, Shape)> =
        paths.iter().map(|path| (*path, Shape::of(&args.shape, &[], *path))).collect();
    check_matched(&shapes, &[args.sms])?;
    let mut cqs = args.cq.clone();
    cqs.dedup();
    let mut cells = Vec::new();
    for &(path, shape) in &shapes {
        for sq in [QueueMemory::Device, QueueMemory::Host] {
            for &cq in &cqs {
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
        let gpu = measured.gpu_name();
        print(&format!("{}.", standing(&gpu)))?;
        if gpu.starts_with("simulated") {
            print(
                "Here device and host memory are the same memory of this machine, so what is compared is \
                 that each placement works and what the protocol does, not PCIe.",
            )?;
        }
        print(&measured.caveats().join("\n"))?;
        print(&comparison(&rows))?;
        for sentence in of_host(&rows) {
            print(&sentence)?;
        }
    }
    if interrupt::asked() {
        tell!("interrupted: {} of {} rows", rows.len(), cells.len());
        return Ok(ExitCode::from(interrupt::INTERRUPTED));
    }
    Ok(verdict(&rows))
}

/// How each system does with its submission queue in device memory, beside itself with it in host memory.
fn of_host(rows: &[Row]) -> Vec<String> {
    let at = |path: &str, sq: &str, cq: &str| {
        rows.iter().find(|row| row.path == path && row.sq == sq && row.cq == cq)
    };
    let mut sentences = Vec::new();
    for device in rows.iter().filter(|row| row.sq == "device") {
        let Some(host) = at(&device.path, "host", &device.cq) else { continue };
        sentences.push(format!(
            "{} with its SQ in device memory reaches {:.3} of itself with it in host memory (CQ in {} \
             memory); a command is fetched in {} and {}, {:.1} and {:.1} of them together",
            device.path,
            device.iops / host.iops.max(1e-9),
            device.cq,
            units::nanoseconds(device.fetch_ns_per_command),
            units::nanoseconds(host.fetch_ns_per_command),
            device.commands_per_fetch,
            host.commands_per_fetch
        ));
    }
    sentences
}
