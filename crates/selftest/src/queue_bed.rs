//! A queue pair for lanes, made by hand over a software controller, with a simple CPU agent: as
//! little host as the device side needs.
#![allow(missing_docs, reason = "names as in `abi::queue` and in the controller's registers")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::queue::{
    CompletionWord, OWNER_CPU, OWNER_GPU, OWNER_RECALL, OwnerWord, QUEUE_MAGIC, QUEUE_OPEN,
    QUEUE_QUIESCED, QUEUE_SCAN, QUEUE_SECOND_READ, QUEUE_VERSION, QueuePairView, QueueState,
    marks_at, next_start, phase_of,
};
use ctrl::{Controller, NamespaceOptions, Options, TimingModel};
use gpu::{Gpu, SimulatedGpu, SimulatedOptions};
use mem::{AddressMap, MemoryKind, Region};
use storage::MemoryStorage;
use storage::faults::{FaultScript, Injector};
use storage::pattern;
use zerocopy::IntoBytes;

/// Bytes of the namespace.
pub const SOURCE_BYTES: usize = 1 << 20;
const STATE_BYTES: usize = size_of::<QueueState>();
/// Offsets in the BAR.
const CC: usize = 0x14;
const CSTS: usize = 0x1c;
const AQA: usize = 0x24;
const ASQ: usize = 0x28;
const ACQ: usize = 0x30;
const DOORBELLS: usize = 0x1000;
/// Entry sizes 64 and 16, enabled.
const CC_ENABLED: u32 = 0x0046_0001;

/// How a queue pair is made.
#[derive(Clone, Debug)]
pub struct Config {
    pub scan: bool,
    pub depth_log2: u32,
    pub cid_log2: u32,
    /// All counters start at the first allowed position from here on.
    pub start: u64,
    pub sq: MemoryKind,
    pub cq: MemoryKind,
    pub faults: String,
    pub timing: TimingModel,
    pub limit_ms: u32,
    pub second_read: bool,
    pub prp_lists: bool,
    pub report_period: u32,
}

impl Config {
    pub fn bam(depth_log2: u32) -> Self {
        Self {
            scan: true,
            depth_log2,
            cid_log2: 10,
            start: 0,
            sq: MemoryKind::Window,
            cq: MemoryKind::Window,
            faults: String::new(),
            timing: TimingModel::default(),
            limit_ms: 1_000,
            second_read: false,
            prp_lists: true,
            report_period: 16,
        }
    }

    pub fn copilot(depth_log2: u32) -> Self {
        Self { scan: false, cq: MemoryKind::Host, ..Self::bam(depth_log2) }
    }
}

/// Where in the device memory of a pair what lies.
struct Layout {
    tail_marks: usize,
    head_marks: usize,
    cids: usize,
    completions: usize,
    owner: usize,
    end: usize,
}

impl Layout {
    fn new(config: &Config) -> Self {
        let (marks, ids) = (8 << config.depth_log2, 8 << config.cid_log2);
        let tail_marks = STATE_BYTES;
        let head_marks = tail_marks + marks;
        let cids = head_marks + marks;
        let completions = cids + ids;
        let owner = (completions + ids).next_multiple_of(128);
        Self { tail_marks, head_marks, cids, completions, owner, end: owner + 128 }
    }
}

/// Where lanes find what the CPU reaches through a region.
#[derive(Clone, Copy)]
struct ForLanes {
    sq: u64,
    cq: u64,
    device: u64,
    lists: u64,
}

/// A controller with one queue pair that lanes drive.
pub struct QueueBed {
    pub config: Config,
    pub gpu: Arc<dyn Gpu>,
    pub controller: Controller,
    pub faults: Arc<Injector>,
    pub disk: Region,
    pub bar: Region,
    pub sq: Region,
    pub cq: Region,
    /// State, marks, command ids, completion words, owner.
    pub device: Region,
    /// Report, alarm, complaints.
    pub host: Region,
    pub lists: Region,
    pub map: Arc<AddressMap>,
    /// Where the positions of the first epoch start.
    pub first: u64,
    layout: Layout,
    for_lanes: ForLanes,
    admin: Admin,
    now_ns: u64,
}

struct Admin {
    sq: Region,
    cq: Region,
    tail: u32,
    head: u32,
    phase: bool,
}

/// Memory of a kind: the CPU's side of it, and where lanes find it.
fn allocate(gpu: &Arc<dyn Gpu>, bytes: usize, kind: MemoryKind) -> (Region, u64) {
    match kind {
        MemoryKind::Host => {
            // Small pieces of pinned memory need not begin with a page; queues must.
            let region = gpu.allocate_host(bytes as u64 + 4096).unwrap();
            let skip = region.address().wrapping_neg() % 4096;
            let region = region.slice(usize::try_from(skip).unwrap(), bytes).unwrap();
            let address = region.address();
            (region, address)
        }
        MemoryKind::Window => {
            let memory = gpu.allocate_device(bytes as u64).unwrap();
            (memory.window.expect("a window: queues lie in device memory"), memory.address)
        }
    }
}

/// The same, reached by the drive under the CPU's address.
fn shared(gpu: &Arc<dyn Gpu>, map: &AddressMap, bytes: usize, kind: MemoryKind) -> (Region, u64) {
    let (region, address) = allocate(gpu, bytes, kind);
    map.register(region.clone()).unwrap();
    (region, address)
}

impl QueueBed {
    /// On a simulated GPU of its own.
    pub fn new(config: Config) -> Self {
        let options = SimulatedOptions { threads: 1, ..SimulatedOptions::default() };
        let gpu: Arc<dyn Gpu> = Arc::new(SimulatedGpu::new(options));
        Self::on(&gpu, config)
    }

    pub fn on(gpu: &Arc<dyn Gpu>, config: Config) -> Self {
        let disk = Region::map_anonymous(SOURCE_BYTES, MemoryKind::Host).unwrap();
        pattern::fill_region(&disk, 0, SOURCE_BYTES, 0, 0);
        let script: FaultScript = config.faults.parse().unwrap();
        let faults = Arc::new(Injector::new(&script, 512));
        let mut namespace = NamespaceOptions::new(Arc::new(MemoryStorage::over(disk.clone())));
        namespace.faults = Some(Arc::clone(&faults));
        let mut options = Options::new(vec![namespace]);
        options.timing = config.timing.clone();
        options.queue_pairs_max = 2;
        options.commands_max = 4096;
        let map = Arc::new(AddressMap::new());
        // Where lanes reach doorbells: in pinned host memory.
        let bar = gpu.allocate_host(0x2000).unwrap();
        let controller = Controller::with_bar(options, Arc::clone(&map), bar).unwrap();
        let layout = Layout::new(&config);
        let depth = 1usize << config.depth_log2;
        let page = if config.prp_lists { 4096 << config.cid_log2 } else { 4096 };
        let admin = Admin {
            sq: shared(gpu, &map, 32 * 64, MemoryKind::Host).0,
            cq: shared(gpu, &map, 32 * 16, MemoryKind::Host).0,
            tail: 0,
            head: 0,
            phase: true,
        };
        let (sq, sq_for_lanes) = shared(gpu, &map, depth * 64, config.sq);
        let (cq, cq_for_lanes) = shared(gpu, &map, depth * 16, config.cq);
        let (lists, lists_for_lanes) = shared(gpu, &map, page, MemoryKind::Window);
        let (device, device_for_lanes) = allocate(gpu, layout.end, MemoryKind::Window);
        let (host, _) = allocate(gpu, 24 + (8 << config.cid_log2), MemoryKind::Host);
        let mut bed = Self {
            gpu: Arc::clone(gpu),
            for_lanes: ForLanes {
                sq: sq_for_lanes,
                cq: cq_for_lanes,
                device: device_for_lanes,
                lists: lists_for_lanes,
            },
            bar: controller.bar(),
            controller,
            faults,
            disk,
            sq,
            cq,
            device,
            host,
            lists,
            map,
            first: next_start(config.start, config.depth_log2),
            layout,
            admin,
            now_ns: 1_000,
            config,
        };
        bed.enable();
        bed.create_queues();
        bed.prepare(bed.first, 1);
        bed.store_state(open(1));
        mem::fence_payload();
        bed
    }

    fn enable(&mut self) {
        self.bar.u32_at(AQA).store(31 << 16 | 31, Ordering::Relaxed);
        self.bar.u64_at(ASQ).store(self.admin.sq.address(), Ordering::Relaxed);
        self.bar.u64_at(ACQ).store(self.admin.cq.address(), Ordering::Relaxed);
        self.bar.u32_at(CC).store(CC_ENABLED, Ordering::Release);
        self.settle();
        assert_eq!(self.bar.u32_at(CSTS).load(Ordering::Acquire), 1);
    }

    fn settle(&mut self) {
        for _ in 0..100 {
            self.now_ns += 1_000;
            self.controller.step(self.now_ns);
        }
    }

    /// Sends an admin command and has it done.
    fn command(&mut self, opcode: u32, prp1: u64, cdw10: u32, cdw11: u32) {
        self.begin_command(opcode, prp1, cdw10, cdw11);
        self.settle();
        assert!(self.poll_command(), "an answer");
    }

    /// Sends an admin command.
    pub fn begin_command(&mut self, opcode: u32, prp1: u64, cdw10: u32, cdw11: u32) {
        let at = self.admin.tail as usize * 64;
        let words =
            [u64::from(opcode) | 7 << 16, 0, 0, prp1, 0, u64::from(cdw10) | u64::from(cdw11) << 32];
        self.admin.sq.write_bytes(at, [0u8; 64].as_slice());
        self.admin.sq.write_bytes(at, words.as_bytes());
        self.admin.tail = (self.admin.tail + 1) % 32;
        self.bar.u32_at(DOORBELLS).store(self.admin.tail, Ordering::Release);
    }

    /// Whether it has ended, with success.
    pub fn poll_command(&mut self) -> bool {
        let at = self.admin.head as usize * 16 + 8;
        let answer = self.admin.cq.u64_at(at).load(Ordering::Acquire);
        if (answer >> 48 & 1 == 1) != self.admin.phase {
            return false;
        }
        assert_eq!(answer >> 49, 0, "an admin command failed");
        self.admin.head = (self.admin.head + 1) % 32;
        self.admin.phase ^= self.admin.head == 0;
        self.bar.u32_at(DOORBELLS + 4).store(self.admin.head, Ordering::Release);
        true
    }

    /// The commands that make the queue pair.
    pub fn creation(&self) -> [(u32, u64, u32, u32); 2] {
        let size = ((1u32 << self.config.depth_log2) - 1) << 16 | 1;
        [(5, self.cq.address(), size, 1), (1, self.sq.address(), size, 1 << 16 | 1)]
    }

    fn create_queues(&mut self) {
        for (opcode, memory, cdw10, cdw11) in self.creation() {
            self.command(opcode, memory, cdw10, cdw11);
        }
    }

    /// Sets all that changes in a new epoch; `store_state` then opens it.
    pub fn prepare(&self, start: u64, epoch: u32) {
        self.cq.fill(0, self.cq.len_bytes(), 0);
        if epoch == 1 {
            let mut state = QueueState::at(start, self.config.start, epoch);
            state.state = u64::from(QUEUE_QUIESCED);
            self.device.write_bytes(0, state.as_bytes());
        }
        // Nothing else: lanes that only look whether they may enter change `inside` and `head_lock`.
        for at in [
            std::mem::offset_of!(QueueState, in_ticket),
            std::mem::offset_of!(QueueState, tail),
            std::mem::offset_of!(QueueState, sq_head),
            std::mem::offset_of!(QueueState, cq_head),
        ] {
            self.device.u64_at(at).store(start, Ordering::Relaxed);
        }
        for slot in 0..1u64 << self.config.depth_log2 {
            let mark = marks_at(start, self.config.depth_log2, slot);
            let at = usize::try_from(slot).unwrap() * 8;
            self.device.u64_at(self.layout.tail_marks + at).store(mark, Ordering::Relaxed);
            self.device.u64_at(self.layout.head_marks + at).store(mark, Ordering::Relaxed);
        }
        if epoch == 1 {
            for cid in 0..1usize << self.config.cid_log2 {
                let uses = 0xffff_fff0u64 << 32;
                self.device.u64_at(self.layout.cids + cid * 8).store(uses, Ordering::Relaxed);
            }
        }
        let owner = if self.config.scan { OWNER_GPU } else { OWNER_CPU };
        let phase = phase_of(start, self.config.depth_log2);
        let head = u32::try_from(start & 0xffff_ffff).unwrap();
        let word = OwnerWord::pack(owner, phase, 0, head).word;
        self.device.u64_at(self.layout.owner).store(word, Ordering::Relaxed);
        mem::fence_payload();
    }

    pub fn store_state(&self, word: u64) {
        self.device.u64_at(std::mem::offset_of!(QueueState, state)).store(word, Ordering::Relaxed);
    }

    /// Begins a new epoch: nobody may touch the queues.
    pub fn quiesce(&self, epoch: u32) {
        self.store_state(u64::from(QUEUE_QUIESCED) | u64::from(epoch) << 32);
        mem::fence_full();
    }

    /// Whether no lane touches the queues any more.
    pub fn is_quiet(&self) -> bool {
        let s = |at| self.device.u64_at(at).load(Ordering::Acquire);
        s(std::mem::offset_of!(QueueState, inside)) == 0
            && s(std::mem::offset_of!(QueueState, head_lock)) == 0
    }

    /// A word of the state as it is now.
    pub fn state(&self, offset: usize) -> u64 {
        self.device.u64_at(offset).load(Ordering::Acquire)
    }

    pub fn view(&self) -> QueuePairView {
        let (c, l) = (&self.config, &self.layout);
        let device = |at: usize| self.for_lanes.device + at as u64;
        let scan = if c.scan { QUEUE_SCAN } else { 0 };
        QueuePairView {
            magic: QUEUE_MAGIC,
            version: QUEUE_VERSION,
            bytes: u32::try_from(size_of::<QueuePairView>()).unwrap(),
            depth_log2: c.depth_log2,
            sq: self.for_lanes.sq,
            cq: self.for_lanes.cq,
            sq_doorbell: self.bar.address() + DOORBELLS as u64 + 8,
            cq_doorbell: self.bar.address() + DOORBELLS as u64 + 12,
            state: device(0),
            tail_marks: device(l.tail_marks),
            head_marks: device(l.head_marks),
            cids: device(l.cids),
            completions: device(l.completions),
            owner: device(l.owner),
            report: self.host.address(),
            alarm: self.host.address() + 8,
            complaints: self.host.address() + 16,
            prp_lists: if c.prp_lists { self.for_lanes.lists } else { 0 },
            prp_lists_bus: self.lists.address(),
            cid_log2: c.cid_log2,
            nsid: 1,
            block_bytes_log2: 9,
            page_bytes_log2: 12,
            transfer_bytes_max: 1 << 20,
            limit_ms: c.limit_ms,
            flags: scan | if c.second_read { QUEUE_SECOND_READ } else { 0 },
            report_period: c.report_period,
        }
    }

    /// The CPU's part of `copilot`.
    pub fn agent(&self) -> Agent {
        let head = self.state(std::mem::offset_of!(QueueState, cq_head));
        Agent {
            depth_log2: self.config.depth_log2,
            cq: self.cq.clone(),
            device: self.device.clone(),
            host: self.host.clone(),
            bar: self.bar.clone(),
            completions: self.layout.completions,
            owner_at: self.layout.owner,
            head,
            sq_head: head,
            epoch: 1,
            turn: Turn::Cpu,
            flip: 0,
            granted: 0,
            drained: 0,
            flips: 0,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    Cpu,
    Gpu,
    Recalled,
}

/// A CPU agent of one CQ.
pub struct Agent {
    depth_log2: u32,
    cq: Region,
    device: Region,
    host: Region,
    bar: Region,
    completions: usize,
    owner_at: usize,
    head: u64,
    sq_head: u64,
    pub epoch: u32,
    pub turn: Turn,
    flip: u16,
    granted: u64,
    pub drained: u64,
    pub flips: u64,
}

impl Agent {
    /// Drains what there is, if the CQ is its own.
    pub fn step(&mut self) -> bool {
        match self.turn {
            Turn::Cpu => self.drain(),
            Turn::Gpu => false,
            Turn::Recalled => self.take_back(),
        }
    }

    fn drain(&mut self) -> bool {
        let mask = (1u64 << self.depth_log2) - 1;
        let before = self.head;
        loop {
            let at = usize::try_from(self.head & mask).unwrap() * 16 + 8;
            let answer = self.cq.u64_at(at).load(Ordering::Acquire);
            if (answer >> 48 & 1 == 1) != phase_of(self.head, self.depth_log2) {
                break;
            }
            let field = |shift: u32| u16::try_from(answer >> shift & 0xffff).unwrap();
            let status = u16::try_from(answer >> 49).unwrap();
            let word = CompletionWord::done(self.epoch, status, field(0), 0);
            let target = self.completions + usize::from(field(32)) * 8;
            self.device.u64_at(target).store(word.word, Ordering::Release);
            let moved = u64::from(field(0)).wrapping_sub(self.sq_head) & mask;
            self.sq_head = self.sq_head.wrapping_add(moved);
            self.head = self.head.wrapping_add(1);
            self.drained += 1;
        }
        if self.head == before {
            return false;
        }
        let sq_head = std::mem::offset_of!(QueueState, sq_head);
        self.device.u64_at(sq_head).store(self.sq_head, Ordering::Relaxed);
        mem::fence_payload();
        let head = u32::try_from(self.head & mask).unwrap();
        self.bar.u32_at(DOORBELLS + 12).store(head, Ordering::Release);
        true
    }

    /// Goes on with queues that were made anew; what the old ones still said is not heard.
    pub fn renew(&mut self, start: u64, epoch: u32) {
        (self.head, self.sq_head, self.epoch, self.turn) = (start, start, epoch, Turn::Cpu);
    }

    fn low(&self) -> u32 {
        u32::try_from(self.head & 0xffff_ffff).unwrap()
    }

    fn store_owner(&mut self, owner: u8) {
        let phase = phase_of(self.head, self.depth_log2);
        let word = OwnerWord::pack(owner, phase, self.flip, self.low()).word;
        if owner == OWNER_GPU {
            self.granted = word;
        }
        self.device.u64_at(self.owner_at).store(word, Ordering::Relaxed);
        mem::fence_payload();
    }

    /// Gives the CQ to the lanes.
    pub fn give(&mut self) {
        assert_eq!(self.turn, Turn::Cpu);
        self.drain();
        self.flip = self.flip.wrapping_add(1);
        self.flips += 1;
        self.store_owner(OWNER_GPU);
        self.turn = Turn::Gpu;
    }

    /// Asks for it back.
    pub fn recall(&mut self) {
        assert_eq!(self.turn, Turn::Gpu);
        self.store_owner(OWNER_RECALL);
        mem::fence_full();
        self.turn = Turn::Recalled;
    }

    fn take_back(&mut self) -> bool {
        let report = OwnerWord { word: self.host.u64_at(0).load(Ordering::Acquire) };
        let word = |at| self.device.u64_at(at).load(Ordering::Acquire);
        let answered = report.owner() == OWNER_CPU && report.flip() == self.flip;
        // Where no lane is there to answer.
        if !answered && word(std::mem::offset_of!(QueueState, head_lock)) != 0 {
            return false;
        }
        mem::fence_acquire();
        if word(std::mem::offset_of!(QueueState, adopted)) == self.granted {
            self.head = word(std::mem::offset_of!(QueueState, cq_head));
            self.sq_head = word(std::mem::offset_of!(QueueState, sq_head));
        }
        assert!(!answered || report.head() == self.low(), "{report:?} {:#x}", self.head);
        self.turn = Turn::Cpu;
        self.store_owner(OWNER_CPU);
        true
    }
}

/// The next start after everything so far.
pub fn later_start(bed: &QueueBed) -> u64 {
    let ticket = bed.state(std::mem::offset_of!(QueueState, in_ticket));
    next_start(ticket, bed.config.depth_log2)
}

/// The word of an open epoch.
pub const fn open(epoch: u32) -> u64 {
    QUEUE_OPEN as u64 | (epoch as u64) << 32
}
