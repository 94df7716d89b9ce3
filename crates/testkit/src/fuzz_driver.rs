//! A drive that says anything: whatever it answers, and whatever is asked of the driver meanwhile,
//! nothing panics, and every request that was taken ends exactly once and within a bound.
//!
//! The drive is the software controller, so that most of the conversation makes sense, and a liar
//! who overwrites words of queue memory and registers, lets time pass and holds the controller back.
//! All of it is read from the input, five bytes a step.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ctrl::{Controller, Options};
use driver::{
    Buffer, Device, Driver, DriverOptions, DriverState, Ended, IoQueue, Mapping, Op, RegionDevice,
    Rejected, Request,
};
use mem::{AddressMap, MemError, MemoryKind, Region};
use spec::{BlockCount, Completion, Lba};
use storage::MemoryStorage;

const MS: u64 = 1_000_000;
const DISK_BYTES: usize = 1 << 16;
const PAYLOAD_BYTES: usize = 1 << 16;
const STEPS_MAX: usize = 400;
const QUEUES: u16 = 2;
/// Every bound of the driver, several times over.
const SETTLE_STEPS: u32 = 4000;

/// The device, with a list of what the driver mapped: there the liar writes.
struct Overheard {
    inner: RegionDevice,
    mapped: Mutex<Vec<Region>>,
}

impl Device for Overheard {
    fn load32(&self, offset: usize) -> u32 {
        self.inner.load32(offset)
    }

    fn load64(&self, offset: usize) -> u64 {
        self.inner.load64(offset)
    }

    fn store32(&self, offset: usize, value: u32) {
        self.inner.store32(offset, value);
    }

    fn store64(&self, offset: usize, value: u64) {
        self.inner.store64(offset, value);
    }

    fn ring(&self, offset: usize, value: u32) {
        self.inner.ring(offset, value);
    }

    fn map(&self, region: &Region) -> Result<Mapping, MemError> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner).push(region.clone());
        self.inner.map(region)
    }

    fn bus_address(&self, region: &Region, offset: usize, bytes: usize) -> Option<u64> {
        self.inner.bus_address(region, offset, bytes)
    }
}

struct Open {
    queue: IoQueue,
    waiting: BTreeSet<u64>,
}

struct World {
    controller: Controller,
    bar: Region,
    device: Arc<Overheard>,
    driver: Driver,
    payload: Mapping,
    queues: Vec<Open>,
    now_ns: u64,
    next_token: u64,
    ended: Vec<Ended>,
}

thread_local! {
    /// Disk and payload of all runs of a thread: what lies in them decides nothing.
    static MEMORY: [Region; 2] = [DISK_BYTES, PAYLOAD_BYTES].map(|bytes| {
        Region::map_anonymous(bytes, MemoryKind::Host).expect("a little memory")
    });
}

impl World {
    fn new() -> Self {
        let [disk, region] = MEMORY.with(Clone::clone);
        let disk = MemoryStorage::over(disk);
        let mut options = Options::over(Arc::new(disk));
        (options.queue_pairs_max, options.queue_entries_max) = (QUEUES, 64);
        (options.commands_max, options.storage_depth) = (16, 16);
        let map = Arc::new(AddressMap::new());
        let controller = Controller::new(options, Arc::clone(&map)).expect("good options");
        let bar = controller.bar();
        let inner = RegionDevice::new(bar.clone(), map);
        let device = Arc::new(Overheard { inner, mapped: Mutex::new(Vec::new()) });
        let payload = device.inner.map(&region).expect("a fresh map");
        let driver_options = DriverOptions {
            admin_limit: Duration::from_millis(50),
            abort_grace: Duration::from_millis(5),
            drain_limit: Duration::from_millis(20),
            health_interval: Duration::from_millis(1),
            namespaces_max: 2,
            queues_max: QUEUES,
            ready_limit_max: Duration::from_millis(500),
        };
        let handle: Arc<dyn Device> = Arc::<Overheard>::clone(&device);
        let driver = Driver::new(handle, driver_options).expect("honest capabilities");
        Self {
            controller,
            bar,
            device,
            driver,
            payload,
            queues: Vec::new(),
            now_ns: 0,
            next_token: 0,
            ended: Vec::new(),
        }
    }

    /// What is asked of the driver, and what the drive does, by five bytes.
    fn act(&mut self, [what, a, b, c, d]: [u8; 5]) {
        let word = u32::from_le_bytes([a, b, c, d]);
        match what % 16 {
            0 => self.honest_steps(u32::from(a) % 64 + 1),
            1 => self.now_ns += u64::from(word) % (100 * MS),
            2 => self.open(a),
            3..=5 => self.submit(a, b, c, d),
            6 => self.poll(),
            7 => self.cancel(a, b),
            8 => self.lie_in_memory(a, u64::from(b) << 8 | u64::from(c), d),
            9 | 10 => self.forge_completion(a, b, c, d),
            11 => self.lie_in_registers(a, word),
            12 => {
                self.driver.step(self.now_ns);
            }
            13 if a > 200 => drop(self.queues.pop()),
            14 if a > 250 => self.driver.shut_down(self.now_ns),
            _ => self.honest_steps(4),
        }
    }

    fn honest_steps(&mut self, count: u32) {
        for _ in 0..count {
            self.now_ns += 10_000;
            self.controller.step(self.now_ns);
            self.driver.step(self.now_ns);
            self.poll();
        }
    }

    fn open(&mut self, a: u8) {
        if self.queues.len() < usize::from(QUEUES)
            && let Ok(queue) = self.driver.open_queue(u32::from(a) % 10)
        {
            self.queues.push(Open { queue, waiting: BTreeSet::new() });
        }
    }

    fn submit(&mut self, a: u8, b: u8, c: u8, d: u8) {
        let count = self.queues.len().max(1);
        let Some(open) = self.queues.get_mut(usize::from(a) % count) else { return };
        let op = [Op::Read, Op::Write, Op::Flush, Op::WriteZeroes][usize::from(a >> 6)];
        let (at, bytes) = (usize::from(c) * 256 + usize::from(d & 7), usize::from(d) * 64);
        let region = self.payload.region();
        let buffer = Buffer::reach(self.device.as_ref(), region, at, bytes);
        let token = self.next_token;
        let request = Request {
            token,
            op,
            lba: Lba(u64::from(b)),
            blocks: BlockCount(u32::from(d >> 3)),
            buffer,
            deadline_ns: self.now_ns.saturating_add(u64::from(c) * MS),
        };
        match open.queue.try_submit(request) {
            Ok(()) => {
                self.next_token += 1;
                open.waiting.insert(token);
            }
            Err(Rejected::QueueFull(request) | Rejected::Invalid(request, _)) => {
                assert_eq!(request.token, token, "a refused request comes back as it was");
            }
        }
    }

    fn poll(&mut self) {
        for open in &mut self.queues {
            // An error is the drive's; that it is one, and no panic, is what is looked for.
            let _reported = open.queue.poll(self.now_ns, &mut self.ended);
            for ended in self.ended.drain(..) {
                assert!(open.waiting.remove(&ended.token), "{ended:?} was not waited for");
            }
            assert!(open.queue.in_flight() <= open.waiting.len(), "{:?}", open.queue);
        }
    }

    fn cancel(&mut self, a: u8, b: u8) {
        let count = self.queues.len().max(1);
        let Some(open) = self.queues.get_mut(usize::from(a) % count) else { return };
        let token = self.next_token.saturating_sub(u64::from(b) % 16);
        let known = open.waiting.contains(&token);
        assert_eq!(open.queue.cancel(token), known, "cancelling {token}");
    }

    fn mapped(&self, a: u8) -> Option<Region> {
        let mapped = self.device.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        mapped.get(usize::from(a) % mapped.len().max(1)).cloned()
    }

    fn lie_in_memory(&mut self, a: u8, value: u64, place: u8) {
        let Some(region) = self.mapped(a) else { return };
        let words = region.len_bytes() / 8;
        let offset = usize::from(place) * 41 % words * 8;
        region.u64_at(offset).store(value.rotate_left(u32::from(place)), Ordering::Release);
    }

    /// A completion entry that could be one, somewhere among the first of a queue.
    fn forge_completion(&mut self, a: u8, b: u8, c: u8, d: u8) {
        // The admin queue and its page were mapped first; one lie in eight is told there.
        let Some(region) = self.mapped(if a & 0x38 == 0 { a & 1 } else { 2 + (a & 3) }) else {
            return;
        };
        let entry = Completion {
            sqhd: u16::from(b) % 12,
            sqid: u16::from(a >> 6),
            cid: u16::from(c),
            status_phase: u16::from(d),
            ..Default::default()
        };
        // Small queues have their completion entries in the second page.
        let offset = 4096 + usize::from(d >> 4) * 16;
        if region.check(offset, 16).is_ok() {
            let [low, high] = entry.to_words();
            region.u64_at(offset).store(low, Ordering::Relaxed);
            region.u64_at(offset + 8).store(high, Ordering::Release);
        }
    }

    fn lie_in_registers(&mut self, a: u8, value: u32) {
        let offset = match a % 4 {
            0 => spec::registers::CSTS,
            1 => spec::registers::CC,
            2 => spec::registers::DOORBELLS + usize::from(a >> 2) % 12 * 4,
            _ => usize::from(a) * 4 % 0x38,
        };
        self.bar.u32_at(offset).store(value, Ordering::Release);
    }

    /// From here on the drive is honest, or dead: everything ends.
    fn settle(&mut self) {
        for _ in 0..SETTLE_STEPS {
            self.now_ns += MS;
            self.controller.step(self.now_ns);
            self.driver.step(self.now_ns);
            self.poll();
            if self.queues.iter().all(|open| open.waiting.is_empty()) {
                return;
            }
        }
        for open in &mut self.queues {
            open.waiting.iter().for_each(|token| {
                open.queue.cancel(*token);
            });
        }
        for _ in 0..SETTLE_STEPS {
            self.now_ns += MS;
            self.driver.step(self.now_ns);
            self.poll();
        }
        for open in &self.queues {
            assert!(open.waiting.is_empty(), "{:?} waits for {:?}", open.queue, open.waiting);
        }
    }
}

/// Lets a driver and a drive talk as `data` says.
///
/// # Panics
/// Where a request does not end exactly once and within the bounds, or anything else panics.
pub fn fuzz_driver(data: &[u8]) {
    let mut world = World::new();
    let steps = data.strip_prefix(&[0xff]).unwrap_or(data);
    // Unless the input begins with 0xff, the start is honest, so that queues are reached at all.
    if steps.len() == data.len() {
        for _ in 0..30 {
            world.honest_steps(1);
        }
        assert!(matches!(world.driver.state(), DriverState::Ready), "{:?}", world.driver);
        world.open(8);
        world.honest_steps(4);
    }
    for step in steps.as_chunks::<5>().0.iter().take(STEPS_MAX) {
        world.act(*step);
    }
    world.settle();
}
