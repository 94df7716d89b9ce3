//! Sums over rounds and repeats, and the row made of them.

use hdrhistogram::Histogram;

use crate::args::{Memory, Verify};
use crate::bench::machine;
use crate::bench::measure::latency_histogram;
use crate::bench::round::{Description, RoundOutcome};
use crate::bench::settings::{Point, Settings};
use crate::report::Row;

/// One repeat.
pub struct Repeat {
    /// I/Os that ended.
    pub ios: u64,
    /// Of those, with an error.
    pub errors: u64,
    /// Timed seconds.
    pub seconds: f64,
    /// CPU seconds of the path.
    pub cpu_path_s: f64,
    /// CPU seconds of path, emulated drive and simulated GPU.
    pub cpu_all_s: f64,
    latencies: Histogram<u64>,
}

impl Repeat {
    /// Nothing yet.
    pub fn new() -> Self {
        Self {
            ios: 0,
            errors: 0,
            seconds: 0.0,
            cpu_path_s: 0.0,
            cpu_all_s: 0.0,
            latencies: latency_histogram(),
        }
    }

    /// Adds a round.
    pub fn add(&mut self, outcome: &RoundOutcome) {
        self.ios += outcome.results.len() as u64;
        self.seconds += outcome.seconds;
        for result in &outcome.results {
            if result.status == abi::status::SUCCESS {
                self.latencies.saturating_record(result.latency_ns);
            } else {
                self.errors += 1;
            }
        }
    }
}

/// All repeats of a row.
pub struct Summary {
    /// Reads whose edges were right when they arrived, and writes whose edges were when read back.
    pub edges_right: u64,
    /// I/Os that were right in every byte.
    pub verified: u64,
    ios: u64,
    errors: u64,
    seconds: f64,
    repeats: u32,
    iops: Range,
    p50: Range,
    p99: Range,
    cpu_ns: Range,
    cpu_all_ns: Range,
    latencies: Histogram<u64>,
}

impl Default for Summary {
    fn default() -> Self {
        Self {
            edges_right: 0,
            verified: 0,
            ios: 0,
            errors: 0,
            seconds: 0.0,
            repeats: 0,
            iops: Range::default(),
            p50: Range::default(),
            p99: Range::default(),
            cpu_ns: Range::default(),
            cpu_all_ns: Range::default(),
            latencies: latency_histogram(),
        }
    }
}

/// Lowest and highest of what was seen.
#[derive(Clone, Copy, Default)]
struct Range(Option<(f64, f64)>);

impl Range {
    fn see(&mut self, value: f64) {
        let (low, high) = self.0.unwrap_or((value, value));
        self.0 = Some((low.min(value), high.max(value)));
    }
    fn low(self) -> f64 {
        self.0.map_or(0.0, |(low, _)| low)
    }
    fn high(self) -> f64 {
        self.0.map_or(0.0, |(_, high)| high)
    }
}

impl Summary {
    /// Adds a repeat; one without any I/O says nothing.
    pub fn add(&mut self, repeat: &Repeat) {
        if repeat.ios == 0 {
            return;
        }
        self.ios += repeat.ios;
        self.errors += repeat.errors;
        self.seconds += repeat.seconds;
        self.repeats += 1;
        self.iops.see(repeat.ios as f64 / repeat.seconds.max(1e-9));
        self.p50.see(repeat.latencies.value_at_quantile(0.5) as f64);
        self.p99.see(repeat.latencies.value_at_quantile(0.99) as f64);
        self.cpu_ns.see(repeat.cpu_path_s * 1e9 / repeat.ios as f64);
        self.cpu_all_ns.see(repeat.cpu_all_s * 1e9 / repeat.ios as f64);
        // Both have the same bounds.
        self.latencies.add(&repeat.latencies).expect("histograms of one shape add up");
    }

    /// The row, less its bill.
    pub fn row(&self, settings: &Settings, point: &Point, what: &Description) -> Row {
        let args = &settings.args;
        let good = self.ios - self.errors;
        let unverified = match args.verify {
            Verify::Device | Verify::Full => good.saturating_sub(self.verified),
            Verify::Edges => good.saturating_sub(self.edges_right),
            Verify::None => good,
        };
        let seconds = self.seconds.max(1e-9);
        let at = |range: f64| crate::units::whole(range);
        let kernel = what.kernel.unwrap_or_default();
        Row {
            path: point.path.name().to_owned(),
            route: what.route.clone(),
            op: args.op.name().to_owned(),
            gpu: what.gpu.clone(),
            drive: what.drive.clone(),
            io_bytes: u64::from(point.io_bytes),
            ios: self.ios,
            ios_verified: self.verified,
            errors: self.errors,
            seconds: self.seconds,
            iops: self.ios as f64 / seconds,
            bytes_per_s: good as f64 * f64::from(point.io_bytes) / seconds,
            latency_ns_p50: self.latencies.value_at_quantile(0.5),
            latency_ns_p99: self.latencies.value_at_quantile(0.99),
            side_cores: what.side_cores,
            sms: what.sms,
            lanes: what.lanes,
            ios_unverified: unverified,
            ios_edges_right: self.edges_right,
            verify: format!("{:?}", args.verify).to_lowercase(),
            repeats: self.repeats,
            iops_min: self.iops.low(),
            iops_max: self.iops.high(),
            latency_ns_p50_min: at(self.p50.low()),
            latency_ns_p50_max: at(self.p50.high()),
            latency_ns_p99_min: at(self.p99.low()),
            latency_ns_p99_max: at(self.p99.high()),
            latency_ns_mean: self.latencies.mean(),
            cpu_path_ns_per_io_min: self.cpu_ns.low(),
            cpu_path_ns_per_io_max: self.cpu_ns.high(),
            cpu_all_ns_per_io_min: self.cpu_all_ns.low(),
            cpu_all_ns_per_io_max: self.cpu_all_ns.high(),
            memory: match args.memory {
                Memory::Device => "device".to_owned(),
                Memory::Host => "host".to_owned(),
            },
            access: format!("{:?}", args.access).to_lowercase(),
            queues: what.queues,
            depth: what.depth,
            batch: if what.lanes > 0 { args.batch } else { 0 },
            cache_bytes: machine::last_level_cache_bytes().unwrap_or(0),
            warps: what.warps,
            wait: what.wait.to_owned(),
            polling_warps: what.polling_warps,
            device_cores: what.device_cores,
            drives: what.drives,
            registers: kernel.registers,
            local_bytes: kernel.local_bytes,
            blocks_per_sm: kernel.blocks_per_multiprocessor,
            sq: what.sq.to_owned(),
            cq: what.cq.to_owned(),
            simulated: what.gpu.starts_with("simulated") || what.drive.starts_with("software"),
            seed: args.seed,
            explain: what.explain.clone(),
            ..Row::default()
        }
    }
}
