//! A driver and a software controller, face to face in one thread and simulated time.
//!
//! Who moves next, how far, and how much time passes is drawn from a seed. Every wait has a bound
//! ([`Pair::drive_bounded`]): what does not come in simulated time is a failure that says so, never a
//! hang. Below the controller lies memory that the test can look at.

use std::sync::Arc;
use std::time::Duration;

use ctrl::{Controller, NamespaceOptions, Options, ResetFault, TimingModel};
use driver::{
    Buffer, Device, Driver, DriverOptions, DriverState, Ended, IoQueue, Mapping, Op, RegionDevice,
    Rejected, Request,
};
use mem::{AddressMap, MemoryKind, Region};
use spec::{BlockCount, Lba};
use storage::MemoryStorage;
use storage::faults::{FaultScript, Injector};

use crate::pattern;

/// Bytes of a logical block.
pub const BLOCK: usize = 512;
/// Bytes of memory that each token owns.
pub const SLOT: usize = 16 << 10;

/// How a pair is made.
#[derive(Clone, Debug)]
pub struct PairOptions {
    /// Decides the interleaving.
    pub seed: u64,
    /// Fault script; empty for none.
    pub faults: String,
    /// The drive that is stood for.
    pub timing: TimingModel,
    /// What an injected reset looks like.
    pub reset: ResetFault,
    /// Bytes of the namespace, filled with generation 1.
    pub disk_bytes: usize,
    /// Requests in flight, and slots of payload memory.
    pub depth: u32,
}

impl Default for PairOptions {
    fn default() -> Self {
        Self {
            seed: 1,
            faults: String::new(),
            timing: TimingModel::default(),
            reset: ResetFault::default(),
            disk_bytes: 1 << 20,
            depth: 8,
        }
    }
}

/// What was waited for did not come.
#[derive(Debug)]
pub struct Undone {
    /// Where both sides stood.
    pub report: String,
}

/// Driver, controller and time.
pub struct Pair {
    /// The controller.
    pub controller: Controller,
    /// The driver.
    pub driver: Driver,
    /// The driver's only I/O queue.
    pub queue: IoQueue,
    /// What the namespace holds.
    pub disk: Region,
    /// Payload memory, a slot a token.
    pub payload: Mapping,
    buffer: Buffer,
    /// What was injected.
    pub faults: Arc<Injector>,
    /// Simulated time.
    pub now_ns: u64,
    /// Requests that have ended and were not taken yet.
    pub ended: Vec<Ended>,
    /// Polls that reported impossible completions.
    pub misbehaved: u64,
    random: u64,
}

impl Pair {
    /// A pair that is ready, with an open queue.
    ///
    /// # Panics
    /// Where it cannot be made ready.
    pub fn new(options: &PairOptions) -> Self {
        let disk = Region::map_anonymous(options.disk_bytes, MemoryKind::Host).expect("memory");
        pattern::fill_region(&disk, 0, options.disk_bytes, 0, 1);
        let script: FaultScript = options.faults.parse().expect("a fault script");
        let faults = Arc::new(Injector::new(&script, 512));
        let mut namespace = NamespaceOptions::new(Arc::new(MemoryStorage::over(disk.clone())));
        namespace.faults = Some(Arc::clone(&faults));
        let mut of_controller = Options::new(vec![namespace]);
        of_controller.timing = options.timing.clone();
        of_controller.reset_fault = options.reset;
        of_controller.queue_pairs_max = 3;
        of_controller.queue_entries_max = 256;
        let map = Arc::new(AddressMap::new());
        let mut controller =
            Controller::new(of_controller, Arc::clone(&map)).expect("good options");
        let device: Arc<dyn Device> = Arc::new(RegionDevice::new(controller.bar(), map));
        let slots = options.depth as usize * SLOT;
        let payload = Region::map_anonymous(slots, MemoryKind::Host).expect("memory");
        let payload = device.map(&payload).expect("room in the map");
        let admin_limit = Duration::from_millis(200);
        let of_driver = DriverOptions { admin_limit, queues_max: 2, ..DriverOptions::default() };
        let buffer = Buffer::reach(device.as_ref(), payload.region(), 0, slots).expect("mapped");
        let driver = Driver::new(device, of_driver).expect("a controller that suffices");
        let mut now_ns = 0;
        while !matches!(driver.step(now_ns), DriverState::Ready) {
            now_ns += 10_000;
            controller.step(now_ns);
            assert!(now_ns < 1_000_000_000, "not ready: {:?}", driver.state());
        }
        let queue = driver.open_queue(options.depth).expect("a queue");
        let (ended, misbehaved) = (Vec::new(), 0);
        let random = pattern::mix(options.seed);
        let mut pair = Self {
            controller,
            driver,
            queue,
            disk,
            payload,
            buffer,
            faults,
            now_ns,
            ended,
            misbehaved,
            random,
        };
        pair.drive_bounded(1_000_000_000, |pair| pair.queue.is_open()).expect("opens");
        pair
    }

    /// A number below `bound`, from the seed.
    pub fn draw(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        pattern::mix(self.random) % bound
    }

    /// One side, drawn from the seed, moves; a little time passes.
    pub fn step(&mut self) {
        match self.draw(8) {
            0..=3 => drop(self.controller.step(self.now_ns)),
            4..=6 => self.poll(),
            // Nothing, or a pause: both sides see time jump.
            _ => self.now_ns += self.draw(200_000),
        }
        self.now_ns += self.draw(10_000);
    }

    fn poll(&mut self) {
        let polled = self.queue.poll(self.now_ns, &mut self.ended);
        self.misbehaved += u64::from(polled.is_err());
    }

    /// Lets both sides move until `done`, for at most `limit_ns` of simulated time.
    ///
    /// # Errors
    /// [`Undone`], with where both sides stood.
    pub fn drive_bounded(
        &mut self,
        limit_ns: u64,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> Result<(), Undone> {
        let until_ns = self.now_ns + limit_ns;
        while !done(self) {
            if self.now_ns > until_ns {
                let counters = self.controller.counters().read();
                let report = format!(
                    "not within {limit_ns} ns: {:?}, {:?}, {counters:?}, failure {:?}",
                    self.driver.state(),
                    self.queue,
                    self.controller.failure(),
                );
                return Err(Undone { report });
            }
            self.step();
        }
        Ok(())
    }

    /// Sends a request over `blocks` from `lba` with the token's slot as its memory; false where the
    /// queue is full.
    ///
    /// # Panics
    /// Where the driver finds it invalid.
    pub fn try_submit(&mut self, token: u64, op: Op, lba: u64, blocks: u32, limit_ns: u64) -> bool {
        let offset = usize::try_from(token).expect("a slot") * SLOT;
        let buffer = self.buffer.slice(offset, blocks as usize * BLOCK);
        let request = Request {
            token,
            op,
            lba: Lba(lba),
            blocks: BlockCount(blocks),
            buffer,
            deadline_ns: self.now_ns.saturating_add(limit_ns),
        };
        match self.queue.try_submit(request) {
            Ok(()) => true,
            Err(Rejected::QueueFull(_)) => false,
            Err(Rejected::Invalid(_, error)) => panic!("{error}"),
        }
    }
}
