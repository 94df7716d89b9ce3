//! A driver and a software controller face to face, in simulated time, in one thread.
#![allow(dead_code, reason = "each test file uses a part")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ctrl::{Controller, NamespaceOptions, Options, ResetFault};
use mem::{AddressMap, MemError, MemoryKind, Region};
use sidecore_driver::{
    Buffer, Device, Driver, DriverOptions, DriverState, Ended, IoQueue, Mapping, Op, RegionDevice,
    Rejected, Request,
};
use spec::{BlockCount, Lba, Status};
use storage::faults::{FaultScript, Injector};
use storage::{MemoryStorage, pattern};

pub const MS: u64 = 1_000_000;
pub const BLOCK: usize = 512;
/// Bytes of the namespace.
pub const DISK: usize = 1 << 20;
/// Memory of each request slot.
pub const SLOT: usize = 1 << 18;
pub const SLOTS: usize = 64;

/// A device that remembers what was mapped: there a test finds queue memory.
pub struct Overheard {
    inner: RegionDevice,
    pub mapped: Mutex<Vec<Region>>,
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
        self.mapped.lock().unwrap().push(region.clone());
        self.inner.map(region)
    }
    fn bus_address(&self, region: &Region, offset: usize, bytes: usize) -> Option<u64> {
        self.inner.bus_address(region, offset, bytes)
    }
}

pub struct Rig {
    pub controller: Controller,
    pub driver: Driver,
    pub device: Arc<Overheard>,
    pub disk: Region,
    pub payload: Mapping,
    pub injector: Arc<Injector>,
    pub now_ns: u64,
    pub ended: Vec<Ended>,
    pub misbehaved: u64,
}

pub struct Setup {
    pub faults: &'static str,
    pub reset: ResetFault,
    pub entries_max: u32,
    pub transfer_bytes_max: u32,
    pub driver: DriverOptions,
}

impl Default for Setup {
    fn default() -> Self {
        let admin_limit = Duration::from_millis(200);
        Self {
            faults: "",
            reset: ResetFault::default(),
            entries_max: 1024,
            transfer_bytes_max: 1 << 17,
            driver: DriverOptions { admin_limit, queues_max: 4, ..DriverOptions::default() },
        }
    }
}

/// Where `read_many` reads to: its tokens share no memory.
fn small_slot(token: u64) -> usize {
    usize::try_from(token).unwrap() * 8192
}

impl Rig {
    /// A controller over self-describing data, and its driver, not yet stepped.
    pub fn cold(setup: &Setup) -> Self {
        let disk = Region::map_anonymous(DISK, MemoryKind::Host).unwrap();
        pattern::fill_region(&disk, 0, DISK, 0, 1);
        let script: FaultScript = setup.faults.parse().unwrap();
        let injector = Arc::new(Injector::new(&script, 512));
        let mut namespace = NamespaceOptions::new(Arc::new(MemoryStorage::over(disk.clone())));
        namespace.faults = Some(Arc::clone(&injector));
        let mut options = Options::new(vec![namespace]);
        options.queue_entries_max = setup.entries_max;
        options.transfer_bytes_max = setup.transfer_bytes_max;
        options.reset_fault = setup.reset;
        options.queue_pairs_max = 3;
        let map = Arc::new(AddressMap::new());
        let controller = Controller::new(options, Arc::clone(&map)).unwrap();
        let inner = RegionDevice::new(controller.bar(), map);
        let device = Arc::new(Overheard { inner, mapped: Mutex::default() });
        let payload = Region::map_anonymous(SLOT * SLOTS, MemoryKind::Host).unwrap();
        let payload = device.map(&payload).unwrap();
        let driver = Driver::new(Arc::<Overheard>::clone(&device), setup.driver).unwrap();
        let (ended, now_ns, misbehaved) = (Vec::new(), 0, 0);
        Self { controller, driver, device, disk, payload, injector, now_ns, ended, misbehaved }
    }

    /// The same, ready.
    pub fn new(setup: &Setup) -> Self {
        let mut rig = Self::cold(setup);
        for _ in 0..200 {
            rig.tick();
            if let DriverState::Ready = rig.driver.step(rig.now_ns) {
                return rig;
            }
        }
        panic!("not ready: {:?}", rig.driver.state());
    }

    /// The controller's turn; 10 microseconds pass.
    pub fn tick(&mut self) {
        self.now_ns += 10_000;
        self.controller.step(self.now_ns);
    }

    /// A queue that is open.
    pub fn queue(&mut self, depth: u32) -> IoQueue {
        let mut queue = self.driver.open_queue(depth).unwrap();
        self.run(&mut queue, MS, |_, queue| queue.is_open());
        queue
    }

    pub fn poll(&mut self, queue: &mut IoQueue) {
        self.misbehaved += u64::from(queue.poll(self.now_ns, &mut self.ended).is_err());
    }

    /// Both sides in turn until `done`.
    ///
    /// # Panics
    /// Where that takes more than `limit_ns`: every wait of a test has a bound.
    pub fn run(
        &mut self,
        queue: &mut IoQueue,
        limit_ns: u64,
        mut done: impl FnMut(&Self, &IoQueue) -> bool,
    ) {
        let until_ns = self.now_ns + limit_ns;
        loop {
            self.poll(queue);
            if done(self, queue) {
                return;
            }
            assert!(self.now_ns < until_ns, "{queue:?} after {limit_ns} ns: {:?}", self.ended);
            self.tick();
        }
    }

    /// A request for `bytes` at `offset`, in the slot of its token, `within` bytes into it.
    pub fn request(
        &self,
        token: u64,
        op: Op,
        offset: usize,
        bytes: usize,
        within: usize,
    ) -> Request {
        let slot = usize::try_from(token).unwrap() % SLOTS;
        let room = SLOT.min(self.payload.region().len_bytes() - slot * SLOT - within);
        Request {
            token,
            op,
            lba: Lba((offset / BLOCK) as u64),
            blocks: BlockCount(u32::try_from(bytes / BLOCK).unwrap()),
            buffer: self.buffer(slot * SLOT + within, room),
            deadline_ns: u64::MAX,
        }
    }

    /// Payload memory; `None` where the device cannot use it.
    pub fn buffer(&self, offset: usize, bytes: usize) -> Option<Buffer> {
        Buffer::reach(self.device.as_ref(), self.payload.region(), offset, bytes)
    }

    /// Poisons the slot of a token.
    pub fn poison(&self, token: u64) {
        let slot = usize::try_from(token).unwrap() % SLOTS;
        self.payload.region().fill(slot * SLOT, SLOT, 0xee);
    }

    pub fn check(&self, token: u64, offset: usize, bytes: usize, within: usize) -> bool {
        let at = usize::try_from(token).unwrap() % SLOTS * SLOT + within;
        pattern::check_region(self.payload.region(), at, bytes, offset as u64, 1).is_ok()
    }

    pub fn submit(&mut self, queue: &mut IoQueue, request: Request) {
        if let Err(rejected) = queue.try_submit(request) {
            panic!("{queue:?} refused: {rejected:?}");
        }
    }

    /// Status of a token that has ended exactly once.
    pub fn status(&self, token: u64) -> Status {
        let mut found = self.ended.iter().filter(|ended| ended.token == token);
        let first = found.next().unwrap_or_else(|| panic!("{token} has not ended"));
        assert!(found.next().is_none(), "{token} ended twice");
        first.status
    }

    /// Runs `count` reads of 4 KiB, each checked, with the queue as full as it goes. Returns the
    /// statuses by token.
    pub fn read_many(&mut self, queue: &mut IoQueue, count: u64, limit: Duration) -> Vec<Status> {
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap();
        let mut next = 0;
        let place = |token: u64| usize::try_from(token * 7 % 255).unwrap() * 4096;
        let mut started = Vec::new();
        let bound_ns = self.now_ns + 60_000 * MS;
        self.ended.clear();
        while self.ended.len() < usize::try_from(count).unwrap() {
            while next < count {
                let mut request = self.request(next, Op::Read, place(next), 4096, 0);
                let at = small_slot(next);
                self.payload.region().fill(at, 4096, 0xee);
                request.buffer = self.buffer(at, 4096);
                request.deadline_ns = self.now_ns + limit_ns;
                match queue.try_submit(request) {
                    Ok(()) => started.push(self.now_ns),
                    Err(Rejected::QueueFull(_)) => break,
                    Err(rejected) => panic!("{rejected:?}"),
                }
                next += 1;
            }
            let seen = self.ended.len();
            self.poll(queue);
            for ended in self.ended[seen..].iter().copied() {
                let index = usize::try_from(ended.token).unwrap();
                let took_ns = self.now_ns - started[index];
                assert!(took_ns <= limit_ns + 700 * MS, "{ended:?} took {took_ns} ns");
                if ended.status.is_success() {
                    let (at, address) = (small_slot(ended.token), place(ended.token) as u64);
                    let found = pattern::check_region(self.payload.region(), at, 4096, address, 1);
                    assert_eq!(found, Ok(()), "{ended:?}");
                }
            }
            assert!(self.now_ns < bound_ns, "{queue:?}: {} of {count}", self.ended.len());
            self.tick();
        }
        (0..count).map(|token| self.status(token)).collect()
    }
}
