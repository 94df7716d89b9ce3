//! Serves N Read commands of 4 KiB, without payload, for an instruction count.
//!
//! Run it under callgrind with N and with 2N: the slope is the controller's cost of a command, with
//! the little that this host does for it: it has written all entries of its queue before, looks at
//! each completion, and rings both doorbells once for eight commands. Storage is a stand-in that
//! answers at once and moves nothing.
//!
//! ```text
//! valgrind --tool=callgrind target/release/examples/instructions 100000
//! ```
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mem::{AddressMap, MemoryKind, Region};
use sidecore_ctrl::{Controller, Options};
use spec::Status;
use storage::{
    Completion, Counters, Geometry, Lent, QueueOptions, Rejected, Storage, StorageError,
    StorageQueue,
};

const DEPTH: u32 = 64;
/// Commands sent with one doorbell.
const BATCH: u32 = 8;

struct Nothing;

struct NothingQueue(Vec<Completion>);

impl Storage for Nothing {
    fn geometry(&self) -> Geometry {
        let transfer_bytes_max = 1 << 20;
        Geometry { bytes: 1 << 30, block_bytes: 512, transfer_bytes_max, read_only: false }
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn StorageQueue>, StorageError> {
        Ok(Box::new(NothingQueue(Vec::with_capacity(options.depth as usize))))
    }

    fn explain(&self) -> String {
        "nothing".to_owned()
    }
}

impl StorageQueue for NothingQueue {
    fn try_submit(&mut self, request: Lent<'_>) -> Result<(), Rejected> {
        let (token, bytes) = (request.token, request.bytes);
        self.0.push(Completion { token, status: Status::SUCCESS, bytes, errno: 0 });
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.0);
    }

    fn wait_for_completion(&mut self, _limit: Duration) {}

    fn cancel(&mut self, _token: u64) {}

    fn quiesce(&mut self, completions: &mut Vec<Completion>) {
        self.poll(completions);
    }

    fn in_flight(&self) -> u32 {
        u32::try_from(self.0.len()).expect("bounded by the depth")
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

/// A queue pair and doorbells, as plain as can be.
struct Host {
    controller: Controller,
    bar: Region,
    submission: Region,
    completion: Region,
    tail: u32,
    head: u32,
    phase: u64,
}

fn region(map: &AddressMap, bytes: usize) -> Region {
    let region = Region::map_anonymous(bytes, MemoryKind::Host).expect("memory");
    map.register(region.clone()).expect("no overlap");
    region
}

fn put(queue: &Region, slot: u32, words: &[(usize, u64)]) {
    let at = slot as usize * 64;
    for word in 0..8 {
        let value = words.iter().find(|w| w.0 == word).map_or(0, |w| w.1);
        queue.u64_at(at + word * 8).store(value, Ordering::Relaxed);
    }
}

impl Host {
    fn new() -> (Self, Region) {
        let map = Arc::new(AddressMap::new());
        let options = Options::over(Arc::new(Nothing));
        let mut controller = Controller::new(options, Arc::clone(&map)).expect("good options");
        let bar = controller.bar();
        let (admin_sq, admin_cq) = (region(&map, 4096), region(&map, 4096));
        let (submission, completion) = (region(&map, 4096), region(&map, 4096));
        let data = region(&map, 1 << 20);
        bar.u32_at(0x24).store(15 << 16 | 15, Ordering::Relaxed);
        bar.u64_at(0x28).store(admin_sq.address(), Ordering::Relaxed);
        bar.u64_at(0x30).store(admin_cq.address(), Ordering::Relaxed);
        bar.u32_at(0x14).store(0x0046_0001, Ordering::Release);
        controller.step(0);
        let size = u64::from(DEPTH - 1) << 16 | 1;
        put(&admin_sq, 0, &[(0, 5), (3, completion.address()), (5, 1 << 32 | size)]);
        put(
            &admin_sq,
            1,
            &[(0, 1 << 16 | 1), (3, submission.address()), (5, 0x1_0001 << 32 | size)],
        );
        bar.u32_at(0x1000).store(2, Ordering::Release);
        controller.step(0);
        for slot in 0..2 {
            let upper = admin_cq.u64_at(slot * 16 + 8).load(Ordering::Acquire);
            assert_eq!(upper >> 48, 1, "the queues were created");
        }
        let host = Self { controller, bar, submission, completion, tail: 0, head: 0, phase: 1 };
        (host, data)
    }

    /// Writes a read command into each entry of the queue.
    fn fill(&self, data: &Region) {
        for slot in 0..DEPTH {
            let command = u64::from(slot) << 16 | 2;
            let page = data.address() + u64::from(slot) * 4096;
            let lba = u64::from(slot) * 8;
            put(&self.submission, slot, &[(0, 1 << 32 | command), (3, page), (5, lba), (6, 7)]);
        }
    }

    fn take(&mut self) {
        let upper = self.completion.u64_at(self.head as usize * 16 + 8).load(Ordering::Acquire);
        assert_eq!(upper >> 48, self.phase, "each command ends well within its step");
        self.head = (self.head + 1) % DEPTH;
        self.phase ^= u64::from(self.head == 0);
    }
}

fn main() {
    let count: u32 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(10_000);
    let (mut host, data) = Host::new();
    host.fill(&data);
    for round in 0..count.div_ceil(BATCH) {
        host.tail = (host.tail + BATCH) % DEPTH;
        host.bar.u32_at(0x1008).store(host.tail, Ordering::Release);
        host.controller.step(u64::from(round));
        for _ in 0..BATCH {
            host.take();
        }
        host.bar.u32_at(0x100c).store(host.head, Ordering::Release);
    }
    println!("{} commands", host.controller.counters().read().io_succeeded);
}
