//! Lets an agent drain N completions of two queues, for counting instructions.
//!
//! Who plays the drive is a loop that stores prepared entries, a dozen instructions a completion; they
//! are counted too. A pass finds eight completions in each queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::queue::phase_of;
use ctrl::{Controller, Options};
use driver::{Device, Driver, DriverOptions, DriverState, RegionDevice};
use gpu::{Gpu, SimulatedGpu, SimulatedOptions};
use mem::{AddressMap, Region};
use sidecore::gpu_queues::{GpuQueues, QueueOptions, SteppedQueues};
use storage::MemoryStorage;

const DEPTH: u32 = 64;
const BATCH: u32 = 8;

/// One completion queue, as the drive writes it.
struct Drive {
    host: Region,
    cq: usize,
    queue: u64,
    tail: u64,
}

impl Drive {
    /// Completes `BATCH` commands, whose entries lie behind one another in the SQ.
    fn complete(&mut self) {
        for _ in 0..BATCH {
            let slot = self.tail & u64::from(DEPTH - 1);
            let phase = u64::from(phase_of(self.tail, DEPTH.trailing_zeros())) << 48;
            let fetched = (self.tail + 1) & u64::from(DEPTH - 1);
            let half = fetched | self.queue << 16 | slot << 32 | phase;
            let at = self.cq + 16 * usize::try_from(slot).expect("small");
            self.host.u64_at(at + 8).store(half, Ordering::Release);
            self.tail += 1;
        }
    }
}

fn main() {
    let count: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(10_000);
    let storage = MemoryStorage::new(1 << 20).expect("a little memory");
    let map = Arc::new(AddressMap::new());
    let mut controller =
        Controller::new(Options::over(Arc::new(storage)), Arc::clone(&map)).expect("options");
    let device: Arc<dyn Device> = Arc::new(RegionDevice::new(controller.bar(), map));
    let driver = Driver::new(device, DriverOptions::default()).expect("a controller");
    let gpu: Arc<dyn Gpu> = Arc::new(SimulatedGpu::new(SimulatedOptions::default()));
    let mut now_ns = 0;
    while !matches!(driver.step(now_ns), DriverState::Ready) {
        now_ns += 10_000;
        controller.step(now_ns);
    }
    let options = QueueOptions {
        depth: DEPTH,
        command_ids: DEPTH,
        prp_lists: false,
        ..QueueOptions::copilot()
    };
    let made = GpuQueues::create_stepped(&gpu, &[driver], 2, 1, &options, None).expect("pairs");
    let SteppedQueues { queues, mut agents, mut recovery } = made;
    while !queues.is_serving() {
        now_ns += 10_000;
        recovery.step(now_ns);
        controller.step(now_ns);
    }
    let mut drives: Vec<_> = (1u64..)
        .zip(queues.views().into_iter().zip(queues.memory()))
        .map(|(queue, (view, [_, host]))| {
            let cq = usize::try_from(view.cq - host.address()).expect("in host memory");
            Drive { host, cq, queue, tail: 0 }
        })
        .collect();
    for _ in 0..count / u64::from(2 * BATCH) {
        drives.iter_mut().for_each(Drive::complete);
        agents[0].step(now_ns);
    }
    let drained: u64 = queues.counters_now().iter().map(|c| c.completions_polled - c.strays).sum();
    assert_eq!(drained, count / u64::from(2 * BATCH) * u64::from(2 * BATCH), "all are answered");
}
