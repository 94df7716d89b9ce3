//! `sidecore bench idle`: what attached rings cost while no lane asks.

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use abi::bench::BenchIo;
use abi::ring::OP_READ;
use anyhow::{Result, ensure};
use ctrl::TimingModel;
use serde::Serialize;

use crate::args::{
    Cache, Drive, DrivesArgs, FaultsAt, IdleArgs, Memory, OpName, PathName, RouteName,
};
use crate::bench::data::Data;
use crate::bench::paths::{self, PathOptions};
use crate::bench::round::{Round, Runner};
use crate::bench::settings::queue_memory;
use crate::commands::NOT_CLEAN;
use crate::printer::print;
use crate::{interrupt, units};

/// Bytes of the one request.
const IO_BYTES: u32 = 4096;
/// Bytes of data: room for a few requests.
const DATA_BYTES: u64 = 1 << 20;

/// What came out.
#[derive(Debug, Serialize)]
struct Idle {
    gpu: String,
    drive: String,
    side_cores: u32,
    rings: u32,
    idle_s: f64,
    cpu_s: f64,
    cores_per_side_core: f64,
    pause_s: f64,
    samples: u64,
    errors: u64,
    first_request_ns_p50: u64,
    first_request_ns_p99: u64,
}

/// Runs it.
///
/// # Errors
/// No side core, no memory, a path that broke.
pub fn run(args: &IdleArgs) -> Result<ExitCode> {
    ensure!(!args.duration.is_zero(), "--duration must be longer than nothing");
    let gpu = paths::open_gpu(&args.limits)?;
    let data = Data::make(&std::env::temp_dir(), DATA_BYTES)?;
    let mut runner = paths::open_ring(&options(args), &data, &gpu, None)?;
    let what = runner.describe();
    // Once through, so that queues are open and code is warm; then the ladder may step down.
    request(&mut runner, 0)?;
    thread::sleep(Duration::from_millis(200));
    let before = runner.runner().engine_cpu_seconds();
    let start = Instant::now();
    sleep(args.duration);
    let idle_s = start.elapsed().as_secs_f64();
    let cpu_s = runner.runner().engine_cpu_seconds() - before;
    let mut samples = Vec::new();
    let mut errors = 0;
    for index in 0..args.samples {
        sleep(args.pause);
        if interrupt::asked() {
            break;
        }
        match request(&mut runner, index)? {
            Some(latency_ns) => samples.push(latency_ns),
            None => errors += 1,
        }
    }
    samples.sort_unstable();
    let idle = Idle {
        gpu: what.gpu,
        drive: what.drive,
        side_cores: what.side_cores,
        rings: args.queues,
        idle_s,
        cpu_s,
        cores_per_side_core: cpu_s / idle_s / f64::from(what.side_cores.max(1)),
        pause_s: args.pause.as_secs_f64(),
        samples: samples.len() as u64,
        errors,
        first_request_ns_p50: at_share(&samples, 50),
        first_request_ns_p99: at_share(&samples, 99),
    };
    report(args, &idle)?;
    Ok(match (interrupt::asked(), errors) {
        (true, _) => ExitCode::from(interrupt::INTERRUPTED),
        (false, 0) => ExitCode::SUCCESS,
        (false, _) => ExitCode::from(NOT_CLEAN),
    })
}

fn options(args: &IdleArgs) -> PathOptions {
    PathOptions {
        path: PathName::Ring,
        op: OpName::Read,
        drive: Drive::Auto,
        timing: TimingModel::default(),
        cache: Cache::Auto,
        memory: Memory::Device,
        route: RouteName::Auto,
        queues: args.queues,
        depth: 64,
        sms: 1,
        warps: 1,
        batch: 1,
        storage_depth: 256,
        queue_memory: queue_memory(PathName::Ring, None, None),
        second_read: false,
        wait: crate::args::WaitMode::Word,
        few_lanes: None,
        device: None,
        io_bytes: IO_BYTES,
        destination_bytes: IO_BYTES as usize,
        limit: Duration::from_secs(1),
        side_cores: args.side_cores,
        limits: args.limits.clone(),
        several: DrivesArgs::ONE,
        faults: None,
        faults_at: FaultsAt::Storage,
    }
}

/// Sleeps in pieces, so that Ctrl-C is heard.
fn sleep(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time && !interrupt::asked() {
        thread::sleep(Duration::from_millis(100).min(time.saturating_sub(start.elapsed())));
    }
}

/// One lane's one request; its own time, or nothing where it failed.
fn request(runner: &mut dyn Runner, index: u32) -> Result<Option<u64>> {
    let blocks = DATA_BYTES / u64::from(IO_BYTES);
    let source_offset = u64::from(index) % blocks * u64::from(IO_BYTES);
    let plan = vec![BenchIo { source_offset, opcode: u32::from(OP_READ), generation: 0 }];
    let round = Arc::new(Round {
        plan,
        edges: Vec::new(),
        on_device: false,
        asleep: false,
        io_bytes: IO_BYTES,
        slots: 1,
        base: 0,
    });
    let outcome = runner.run(&round)?;
    let result = outcome.results[0];
    Ok((result.status == abi::status::SUCCESS).then_some(result.latency_ns))
}

/// The smallest sample that `percent` of the samples do not exceed.
fn at_share(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

fn report(args: &IdleArgs, idle: &Idle) -> Result<()> {
    if args.json {
        print(&serde_json::to_string(idle)?)?;
        return Ok(());
    }
    print(&format!(
        "{} ring(s) attached, no lane active for {:.1} s: {:.4} cores a side core ({} of them)",
        idle.rings, idle.idle_s, idle.cores_per_side_core, idle.side_cores
    ))?;
    print(&format!(
        "first request after {:.1} s idle: p50 {}, p99 {} ({} samples, {} errors)",
        idle.pause_s,
        units::nanoseconds(idle.first_request_ns_p50 as f64),
        units::nanoseconds(idle.first_request_ns_p99 as f64),
        idle.samples,
        idle.errors
    ))?;
    print(&format!("The GPU is {}; the side cores are real threads of this machine.", idle.gpu))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::at_share;

    #[test]
    fn percentiles_of_few_samples_are_samples() {
        assert_eq!(at_share(&[], 99), 0);
        assert_eq!(at_share(&[5], 50), 5);
        assert_eq!(at_share(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 50), 5);
        assert_eq!(at_share(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 99), 10);
    }
}
