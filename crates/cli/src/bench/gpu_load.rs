//! What the GPU was seen to do while a row was timed, by NVIDIA's management library where it is there.
//!
//! A thread asks while the row is timed: how busy the GPU is, and how many bytes pass its PCIe port each
//! way. The library averages over windows of its own (about 20 ms for PCIe, up to a second for the
//! load), so short rows are seen in part only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::PcieUtilCounter;

const RESTING: u8 = 0;
const TIMED: u8 = 1;
const OVER: u8 = 2;

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuLoad {
    /// Share of time in which the GPU ran a kernel, in percent.
    pub busy_percent: f64,
    /// Bytes a second that came to the GPU over PCIe.
    pub to_gpu_bytes_per_s: f64,
    /// Bytes a second that left it.
    pub from_gpu_bytes_per_s: f64,
    /// `sampled N times`, or `n/a: reason`.
    pub how: String,
}

impl GpuLoad {
    fn unknown(why: impl std::fmt::Display) -> Self {
        Self { how: format!("n/a: {why}"), ..Self::default() }
    }
}

/// Asks while it is told that something is timed.
pub struct LoadMeter {
    state: Arc<AtomicU8>,
    thread: Option<JoinHandle<GpuLoad>>,
    unknown: GpuLoad,
}

impl LoadMeter {
    /// Begins, for the GPU at a PCI address; without one nothing is asked.
    pub fn start(pci: Option<&str>) -> Self {
        let state = Arc::new(AtomicU8::new(RESTING));
        let Some(pci) = pci.map(str::to_owned) else {
            let unknown = GpuLoad::unknown("no real GPU");
            return Self { state, thread: None, unknown };
        };
        let seen = Arc::clone(&state);
        let thread = std::thread::Builder::new()
            .name("gpu-load".to_owned())
            .spawn(move || sample(&pci, &seen).unwrap_or_else(GpuLoad::unknown));
        let unknown = GpuLoad::unknown("no thread to ask");
        Self { state, thread: thread.ok(), unknown }
    }

    /// Says whether something is timed now.
    pub fn timed(&self, timed: bool) {
        self.state.store(if timed { TIMED } else { RESTING }, Ordering::Relaxed);
    }

    /// Ends; what was seen.
    pub fn end(mut self) -> GpuLoad {
        self.state.store(OVER, Ordering::Relaxed);
        let seen = self.thread.take().and_then(|thread| thread.join().ok());
        seen.unwrap_or_else(|| self.unknown.clone())
    }
}

impl Drop for LoadMeter {
    fn drop(&mut self) {
        self.state.store(OVER, Ordering::Relaxed);
    }
}

fn sample(pci: &str, state: &AtomicU8) -> Result<GpuLoad, nvml_wrapper::error::NvmlError> {
    let nvml = Nvml::init()?;
    let device = nvml.device_by_pci_bus_id(pci)?;
    let (mut count, mut sum) = (0_u32, GpuLoad::default());
    loop {
        match state.load(Ordering::Relaxed) {
            OVER => break,
            TIMED => {}
            _ => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
        }
        let busy = f64::from(device.utilization_rates()?.gpu);
        let kib = |counter| device.pcie_throughput(counter).map(|kb| f64::from(kb) * 1000.0);
        let (to, from) = (kib(PcieUtilCounter::Receive)?, kib(PcieUtilCounter::Send)?);
        // What began while timed may have ended after it.
        if state.load(Ordering::Relaxed) == TIMED || count == 0 {
            count += 1;
            sum.busy_percent += busy;
            sum.to_gpu_bytes_per_s += to;
            sum.from_gpu_bytes_per_s += from;
        }
    }
    let mean = |sum: f64| sum / f64::from(count.max(1));
    if count == 0 {
        return Ok(GpuLoad::unknown("the row was too short to ask"));
    }
    Ok(GpuLoad {
        busy_percent: mean(sum.busy_percent),
        to_gpu_bytes_per_s: mean(sum.to_gpu_bytes_per_s),
        from_gpu_bytes_per_s: mean(sum.from_gpu_bytes_per_s),
        how: format!("sampled {count} times"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_gpu_or_its_library_a_reason_is_given() {
        let none = LoadMeter::start(None);
        none.timed(true);
        assert_eq!(none.end(), GpuLoad::unknown("no real GPU"));
        // This address has no GPU, whether the library is there or not.
        let absent = LoadMeter::start(Some("ffff:ff:1f.0"));
        absent.timed(true);
        std::thread::sleep(Duration::from_millis(5));
        let seen = absent.end();
        assert!(seen.how.starts_with("n/a: ") && seen.busy_percent == 0.0, "{seen:?}");
    }
}
