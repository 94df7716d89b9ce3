//! A drive, a set of pairs and a hand that plays lanes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use abi::queue::{
    CID_FREE, CID_TAKEN, COMPLETION_DONE, CompletionWord, OwnerWord, QueuePairView, QueueState,
    complaint, phase_of,
};
use ctrl::{Controller, NamespaceOptions, Options};
use driver::{Device, Driver, DriverOptions, DriverState, RegionDevice};
use gpu::{DeviceMemory, Gpu, SimulatedGpu, SimulatedOptions};
use mem::{AddressMap, Region};
use sidecore::EngineError;
use sidecore::gpu_queues::{
    Agent, CopollOptions, DmaBuffer, GpuQueues, Placement, QueueOptions, Recovery, SteppedQueues,
};
use spec::io::{BlockRange, Opcode};
use spec::{BlockCount, Command, CommandId, Lba, Nsid};
use storage::MemoryStorage;
use storage::faults::{FaultScript, Injector};

pub const DEPTH: u32 = 8;
pub const IDS: u32 = 16;
pub const LIMIT_NS: u64 = 2_000_000;
pub const WINDOW_NS: u64 = 100_000;
pub const DWELL_NS: u64 = 1_000_000;
pub const COPOLL: CopollOptions = CopollOptions {
    high: 8,
    low: 2,
    window: Duration::from_nanos(WINDOW_NS),
    dwell: Duration::from_nanos(DWELL_NS),
};
const STEP_NS: u64 = 10_000;

/// The same options with small queues and short limits.
pub fn small(options: QueueOptions) -> QueueOptions {
    QueueOptions {
        depth: DEPTH,
        command_ids: IDS,
        limit: Duration::from_nanos(LIMIT_NS),
        grace: Duration::from_micros(300),
        prp_lists: false,
        ..options
    }
}

/// What the hand remembers of a pair.
struct Hand {
    view: QueuePairView,
    window: Region,
    host: Region,
    tail: u64,
    head: u64,
    epoch: u32,
}

pub struct Bed {
    controller: Controller,
    bar: Region,
    pub driver: Driver,
    pub queues: GpuQueues,
    pub agents: Vec<Agent>,
    pub recovery: Recovery,
    pub now_ns: u64,
    hands: Vec<Hand>,
    buffer: DmaBuffer,
    options: QueueOptions,
}

fn at(region: &Region, address: u64) -> usize {
    usize::try_from(address - region.address()).expect("inside the region")
}

impl Bed {
    pub fn new(faults: &str, options: QueueOptions, pairs: u32) -> Self {
        let agents = u32::from(options.polling != sidecore::gpu_queues::Polling::Gpu);
        Self::try_new(faults, options, pairs, agents).unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn try_new(
        faults: &str,
        options: QueueOptions,
        pairs: u32,
        agents: u32,
    ) -> Result<Self, EngineError> {
        let storage = MemoryStorage::new(1 << 20).expect("memory");
        let mut namespace = NamespaceOptions::new(Arc::new(storage));
        let script: FaultScript = faults.parse().expect("a fault script");
        namespace.faults = Some(Arc::new(Injector::new(&script, 512)));
        let map = Arc::new(AddressMap::new());
        let mut controller =
            Controller::new(Options::new(vec![namespace]), Arc::clone(&map)).expect("options");
        let bar = controller.bar();
        let device: Arc<dyn Device> = Arc::new(RegionDevice::new(bar.clone(), map));
        let driver = Driver::new(device, DriverOptions::default()).expect("a controller");
        let mut now_ns = 0;
        while !matches!(driver.step(now_ns), DriverState::Ready) {
            now_ns += STEP_NS;
            controller.step(now_ns);
            assert!(now_ns < 100_000_000, "the controller does not start");
        }
        let gpu: Arc<dyn Gpu> = Arc::new(SimulatedGpu::new(SimulatedOptions::default()));
        let drivers = [driver.clone()];
        let made = GpuQueues::create_stepped(&gpu, &drivers, pairs, agents, &options, None)?;
        let SteppedQueues { queues, agents, recovery } = made;
        let memory: DeviceMemory = gpu.allocate_device(1 << 16)?;
        let buffer = queues.buffer(&memory)?;
        let hands = queues.views().into_iter().zip(queues.memory());
        let start = options.start & !(u64::from(DEPTH) * 2 - 1);
        let hands = hands
            .map(|(view, [window, host])| Hand {
                view,
                window,
                host,
                tail: start,
                head: start,
                epoch: 1,
            })
            .collect();
        let mut bed = Self {
            controller,
            bar,
            driver,
            queues,
            agents,
            recovery,
            now_ns,
            hands,
            buffer,
            options,
        };
        bed.run_until(|bed| bed.queues.is_serving());
        Ok(bed)
    }

    /// The drive's turn.
    pub fn settle(&mut self) {
        for _ in 0..4 {
            self.controller.step(self.now_ns);
        }
    }

    fn step(&mut self) {
        self.now_ns += STEP_NS;
        self.controller.step(self.now_ns);
        self.recovery.step(self.now_ns);
        for agent in &mut self.agents {
            agent.step(self.now_ns);
        }
    }

    pub fn run(&mut self, ns: u64) {
        let until_ns = self.now_ns + ns;
        while self.now_ns < until_ns {
            self.step();
        }
    }

    pub fn run_until(&mut self, done: impl Fn(&Self) -> bool) {
        let until_ns = self.now_ns + 100 * LIMIT_NS;
        while !done(self) {
            assert!(self.now_ns < until_ns, "{:?}, {:?}", self.queues.states(), self.driver);
            self.step();
        }
    }

    fn sq_region(&self, pair: usize) -> (&Region, usize) {
        let hand = &self.hands[pair];
        let region = if self.options.sq == Placement::Device { &hand.window } else { &hand.host };
        (region, at(region, hand.view.sq))
    }

    /// A lane submits a read of one block with this command id.
    pub fn read(&mut self, pair: usize, id: u16, lba: u64) {
        let hand = &self.hands[pair];
        let cid = at(&hand.window, hand.view.cids) + 8 * usize::from(id);
        let uses = (hand.window.u64_at(cid).load(Ordering::Relaxed) >> 32) + 1;
        let taken = u64::from(CID_TAKEN) | u64::from(hand.epoch) << 16 | uses << 32;
        hand.window.u64_at(cid).store(taken, Ordering::Relaxed);
        let word = at(&hand.window, hand.view.completions) + 8 * usize::from(id);
        hand.window.u64_at(word).store(0, Ordering::Relaxed);
        let command = BlockRange::new(Lba(lba), BlockCount(1)).encode(Opcode::READ, Nsid(1));
        let bus = self.buffer.view().bus;
        let command = command.with_prps(bus, 0).with_command_id(CommandId(id));
        let slot = usize::try_from(hand.tail & u64::from(DEPTH - 1)).expect("small");
        let (sq, sq_at) = self.sq_region(pair);
        for (n, word) in command.to_words().into_iter().enumerate() {
            sq.u64_at(sq_at + slot * Command::BYTES + 8 * n).store(word, Ordering::Relaxed);
        }
        let hand = &mut self.hands[pair];
        hand.tail = hand.tail.wrapping_add(1);
        let tail = u32::try_from(hand.tail & u64::from(DEPTH - 1)).expect("small");
        let doorbell = at(&self.bar, hand.view.sq_doorbell);
        self.bar.u32_at(doorbell).store(tail, Ordering::Release);
        self.store_state_word(pair, core::mem::offset_of!(QueueState, in_ticket), self.tail(pair));
        self.settle();
    }

    /// What the drive was told last of how far completions are drained.
    pub fn cq_doorbell(&self, pair: usize) -> u32 {
        let doorbell = at(&self.bar, self.hands[pair].view.cq_doorbell);
        self.bar.u32_at(doorbell).load(Ordering::Acquire)
    }

    pub fn tail(&self, pair: usize) -> u64 {
        self.hands[pair].tail
    }

    /// The completion word of a command id.
    pub fn word(&self, pair: usize, id: u16) -> u64 {
        let hand = &self.hands[pair];
        let word = at(&hand.window, hand.view.completions) + 8 * usize::from(id);
        hand.window.u64_at(word).load(Ordering::Relaxed)
    }

    /// A lane looks at its word: the status, where the command has ended.
    pub fn status(&self, pair: usize, id: u16) -> Option<u16> {
        self.status_of(pair, id, self.hands[pair].epoch)
    }

    /// The same for a command of some epoch.
    pub fn status_of(&self, pair: usize, id: u16, epoch: u32) -> Option<u16> {
        let word = self.word(pair, id);
        let done = word >> 48 & u64::from(COMPLETION_DONE) != 0;
        let same = word & 0xffff == u64::from(epoch & 0xffff);
        (done && same).then_some((word >> 16 & 0xffff) as u16)
    }

    fn state_word(&self, pair: usize, offset: usize) -> u64 {
        self.hands[pair].window.u64_at(offset).load(Ordering::Relaxed)
    }

    fn store_state_word(&self, pair: usize, offset: usize, value: u64) {
        self.hands[pair].window.u64_at(offset).store(value, Ordering::Relaxed);
    }

    pub fn sq_head(&self, pair: usize) -> u64 {
        self.state_word(pair, core::mem::offset_of!(QueueState, sq_head))
    }

    /// State and epoch.
    pub fn state(&self, pair: usize) -> (u32, u32) {
        let word = self.state_word(pair, core::mem::offset_of!(QueueState, state));
        ((word & 0xffff_ffff) as u32, (word >> 32) as u32)
    }

    pub fn set_inside(&self, pair: usize, lanes: u64) {
        self.store_state_word(pair, core::mem::offset_of!(QueueState, inside), lanes);
    }

    pub fn set_head_lock(&self, pair: usize, asked: u64) {
        self.store_state_word(pair, core::mem::offset_of!(QueueState, head_lock), asked);
    }

    pub fn owner(&self, pair: usize) -> OwnerWord {
        let hand = &self.hands[pair];
        let offset = at(&hand.window, hand.view.owner);
        OwnerWord { word: hand.window.u64_at(offset).load(Ordering::Relaxed) }
    }

    /// A lane says how far it is.
    pub fn report(&self, pair: usize, word: OwnerWord) {
        let hand = &self.hands[pair];
        hand.host.u64_at(at(&hand.host, hand.view.report)).store(word.word, Ordering::Release);
    }

    /// A lane complains of its command, or, at the number of command ids, of no room.
    pub fn complain(&self, pair: usize, id: u32) {
        let (hand, id) = (&self.hands[pair], id as usize);
        let cid = at(&hand.window, hand.view.cids) + 8 * id;
        let uses = (hand.window.u64_at(cid).load(Ordering::Relaxed) >> 32) as u32;
        let entry = at(&hand.host, hand.view.complaints) + 8 * id;
        hand.host.u64_at(entry).store(complaint(hand.epoch, uses), Ordering::Relaxed);
        let alarm = at(&hand.host, hand.view.alarm);
        hand.host.u64_at(alarm).fetch_add(1, Ordering::Release);
    }

    /// Lanes notice the present epoch, and its positions.
    pub fn enter_epoch(&mut self, pair: usize) {
        let (_, epoch) = self.state(pair);
        let start = self.state_word(pair, core::mem::offset_of!(QueueState, in_ticket));
        for id in 0..IDS {
            let hand = &self.hands[pair];
            let cid = at(&hand.window, hand.view.cids) + 8 * id as usize;
            let uses = hand.window.u64_at(cid).load(Ordering::Relaxed) >> 32;
            let free = u64::from(CID_FREE) | uses << 32;
            hand.window.u64_at(cid).store(free, Ordering::Relaxed);
        }
        let hand = &mut self.hands[pair];
        (hand.epoch, hand.tail, hand.head) = (epoch, start, start);
    }

    /// A lane takes the entry at a position for itself; nobody moves the head past it yet.
    pub fn take_entry(&self, pair: usize, position: u64) {
        let hand = &self.hands[pair];
        let slot = usize::try_from(position & u64::from(DEPTH - 1)).expect("small");
        let mark = at(&hand.window, hand.view.head_marks) + 8 * slot;
        hand.window.u64_at(mark).store(position, Ordering::Relaxed);
    }

    /// Whoever has the queue drains it: the agent, or else the hand as a lane does.
    pub fn drain_as_lane_or_agent(&mut self, pair: usize) {
        let cpu = !self.agents.is_empty() && self.owner(pair).owner() == abi::queue::OWNER_CPU;
        if cpu {
            self.agents[0].step(self.now_ns);
            return;
        }
        let start = self.owner(pair).head();
        let hand = &mut self.hands[pair];
        if hand.head < u64::from(start) {
            hand.head = u64::from(start);
        }
        let hand = &self.hands[pair];
        let on_host = self.options.cq == Placement::Host;
        let region = if on_host { &hand.host } else { &hand.window };
        let cq = at(region, hand.view.cq);
        let mut head = hand.head;
        let mut found = Vec::new();
        loop {
            let slot = usize::try_from(head & u64::from(DEPTH - 1)).expect("small");
            let half = region.u64_at(cq + 16 * slot + 8).load(Ordering::Acquire);
            if (half >> 48 & 1 != 0) != phase_of(head, hand.view.depth_log2) {
                break;
            }
            found.push(((half >> 32 & 0xffff) as u16, (half >> 49) as u16));
            head += 1;
        }
        for (id, status) in found {
            let word = at(&hand.window, hand.view.completions) + 8 * usize::from(id);
            let done = CompletionWord::done(hand.epoch, status, 0, 0).word;
            hand.window.u64_at(word).store(done, Ordering::Relaxed);
        }
        let doorbell = at(&self.bar, hand.view.cq_doorbell);
        let slot = u32::try_from(head & u64::from(DEPTH - 1)).expect("small");
        self.bar.u32_at(doorbell).store(slot, Ordering::Release);
        let offset = core::mem::offset_of!(QueueState, cq_head);
        self.store_state_word(pair, offset, head);
        self.store_state_word(pair, core::mem::offset_of!(QueueState, sq_head), self.tail(pair));
        self.hands[pair].head = head;
    }
}
