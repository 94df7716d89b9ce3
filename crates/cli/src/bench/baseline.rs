//! What the published code of BaM and CoPilotIO was recorded to reach, and whether this program's `bam`
//! and `copilot` may stand for them in a comparison.
//!
//! Recorded on one NVIDIA H200 with 16 CPUs: random reads of 4 KiB by their own device code, on a
//! software NVMe controller of 8 CPU threads. So the figures mean something for such a machine only.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::args::PathName;

/// The GPU of the record.
const GPU: &str = "NVIDIA H200";
/// Its CPUs.
const CPUS: usize = 16;
/// Rate and latency of the drive in the rows that had a limit.
pub const LIMIT_IOPS: u64 = 1_400_000;
/// As above.
pub const LATENCY: &str = "60us";
/// CPU cores that polled for CoPilotIO.
pub const POLLING_CORES: u32 = 4;
/// Share of a recorded rate that makes a stand-in valid, with a limit and without.
const SHARES: [f64; 2] = [0.95, 0.9];

/// One row of the record.
#[derive(Clone, Copy, Debug)]
pub struct Recorded {
    /// Whose code.
    pub path: PathName,
    /// Blocks.
    pub sms: u32,
    /// Warps of each.
    pub warps: u32,
    /// Queue pairs.
    pub queues: u32,
    /// Whether the drive had its limit.
    pub limited: bool,
    /// I/Os a second.
    pub iops: f64,
}

impl Recorded {
    /// Entries of a queue.
    pub fn depth(&self) -> u32 {
        if self.path == PathName::Copilot { 4096 } else { 1024 }
    }

    /// Its name: system, blocks, warps, queue pairs, and whether the drive had its limit.
    pub fn name(&self) -> String {
        let Self { path, sms, warps, queues, limited, .. } = self;
        let limit = if *limited { "limit" } else { "unlimited" };
        format!("{}-{sms}-{warps}-q{queues}-{limit}", path.name())
    }

    /// I/Os that a lane has in flight: CoPilotIO's code was asynchronous.
    pub fn batch(&self) -> u32 {
        if self.path == PathName::Copilot { 8 } else { 1 }
    }

    /// The least that a stand-in must reach.
    pub fn least(&self) -> f64 {
        self.iops * SHARES[usize::from(!self.limited)]
    }
}

const fn row(path: PathName, sms: u32, warps: u32, queues: u32, limited: bool, m: f64) -> Recorded {
    Recorded { path, sms, warps, queues, limited, iops: m * 1e6 }
}

/// The record. Rows with a limit first.
pub const RECORD: [Recorded; 21] = [
    row(PathName::Bam, 4, 1, 16, true, 0.45),
    row(PathName::Bam, 4, 32, 16, true, 1.36),
    row(PathName::Bam, 12, 1, 16, true, 0.88),
    row(PathName::Bam, 12, 32, 16, true, 1.37),
    row(PathName::Bam, 48, 1, 16, true, 1.33),
    row(PathName::Bam, 48, 32, 16, true, 1.39),
    row(PathName::Copilot, 4, 1, 16, true, 0.90),
    row(PathName::Copilot, 12, 1, 16, true, 1.40),
    row(PathName::Copilot, 48, 1, 16, true, 1.40),
    row(PathName::Bam, 12, 1, 16, false, 0.97),
    row(PathName::Bam, 12, 32, 16, false, 2.00),
    row(PathName::Bam, 24, 32, 16, false, 1.50),
    row(PathName::Bam, 48, 32, 16, false, 1.80),
    row(PathName::Bam, 96, 32, 16, false, 2.02),
    row(PathName::Bam, 12, 32, 128, false, 2.27),
    row(PathName::Bam, 48, 32, 128, false, 2.52),
    row(PathName::Bam, 132, 32, 128, false, 2.60),
    row(PathName::Copilot, 12, 1, 16, false, 2.42),
    row(PathName::Copilot, 24, 1, 16, false, 2.84),
    row(PathName::Copilot, 48, 1, 16, false, 3.88),
    row(PathName::Copilot, 96, 1, 16, false, 4.18),
];

/// Why the record says nothing of a machine; `None` where it does.
pub fn stranger(gpu: &str) -> Option<String> {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (gpu != GPU || cpus != CPUS).then(|| {
        format!("not known: recorded on an {GPU} with {CPUS} CPUs, this is {gpu} with {cpus}")
    })
}

/// What a run of the record's settings found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Verdict {
    /// `valid`, `invalid: ...`, or why it is not known.
    pub baseline: String,
    /// The GPU.
    pub gpu: String,
    /// The drive's best rate without a limit, by whichever system.
    pub plateau_iops: f64,
    /// What brought it.
    pub plateau_by: String,
}

/// What comparisons say of their baseline.
#[derive(Clone, Debug, Default)]
pub struct Baseline(Option<Verdict>);

impl Baseline {
    /// Reads what `bench baseline --out` wrote.
    ///
    /// # Errors
    /// A file that cannot be read, or is something else.
    pub fn load(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self(None)) };
        let named = || format!("--baseline {}", path.display());
        let text = std::fs::read_to_string(path).with_context(named)?;
        Ok(Self(Some(serde_json::from_str(&text).with_context(named)?)))
    }

    /// The verdict in words, for rows of a GPU.
    pub fn words(&self, gpu: &str) -> &str {
        match &self.0 {
            None => {
                "not measured: run bench baseline --out FILE first, and name FILE by --baseline"
            }
            Some(verdict) if verdict.gpu != gpu => "not known: measured on another GPU",
            Some(verdict) => &verdict.baseline,
        }
    }

    /// The plateau, where it was measured on this GPU.
    pub fn plateau(&self, gpu: &str) -> Option<(f64, &str)> {
        let verdict = self.0.as_ref().filter(|verdict| verdict.gpu == gpu)?;
        Some((verdict.plateau_iops, &verdict.plateau_by))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_is_less_without_a_limit() {
        let least = |limited| row(PathName::Bam, 1, 1, 1, limited, 2.0).least();
        assert!((least(true) - 1.9e6).abs() < 1.0 && (least(false) - 1.8e6).abs() < 1.0);
        assert!(RECORD.iter().all(|row| row.iops > 4e5 && row.iops < 5e6));
        assert!(stranger("simulated (2 threads)").is_some());
    }

    #[test]
    fn a_verdict_holds_for_its_own_gpu_only() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("verdict");
        let verdict = Verdict { baseline: "valid".into(), gpu: "G".into(), ..Verdict::default() };
        std::fs::write(&file, serde_json::to_string(&verdict).unwrap()).unwrap();
        let read = Baseline::load(Some(&file)).unwrap();
        assert_eq!(read.words("G"), "valid");
        assert!(read.words("H").starts_with("not known") && read.plateau("H").is_none());
        assert!(Baseline::load(None).unwrap().words("G").starts_with("not measured"));
        std::fs::write(&file, "{").unwrap();
        assert!(Baseline::load(Some(&file)).is_err());
    }
}
