//! A tiny host for the tests: it builds commands dword by dword in registered memory and knows
//! nothing but offsets of the specification. It is no driver: it believes what it wants to test.
#![allow(dead_code, reason = "each test uses its part")]

pub mod held;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mem::{AddressMap, MemoryKind, Region};
use sidecore_ctrl::{Controller, Options, Progress};

/// One dword array: a submission entry.
pub type Entry = [u32; 16];

/// A completion as it lies in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    pub result: u32,
    pub head: u16,
    pub queue: u16,
    pub command: u16,
    /// Code type in the high byte, code in the low byte.
    pub status: u16,
    pub do_not_retry: bool,
}

/// A queue pair as a host keeps it.
pub struct Pair {
    pub id: u16,
    pub sq: Region,
    pub cq: Region,
    pub sq_depth: u32,
    pub cq_depth: u32,
    pub tail: u32,
    pub head: u32,
    pub phase: bool,
}

/// Registered memory and doorbells of one controller.
pub struct Host {
    pub controller: Controller,
    pub map: Arc<AddressMap>,
    pub bar: Region,
    /// 4 MiB of data memory, registered.
    pub data: Region,
    pub admin: Pair,
    pub now_ns: u64,
    next_command: u16,
}

/// Registered memory that is aligned for the largest page a host may choose, 64 KiB.
pub fn region(map: &AddressMap, bytes: usize) -> Region {
    let whole = Region::map_anonymous(bytes + (1 << 16), MemoryKind::Host).expect("memory");
    let start = whole.address().next_multiple_of(1 << 16) - whole.address();
    let region = whole.slice(usize::try_from(start).expect("small"), bytes).expect("inside");
    map.register(region.clone()).expect("no overlap");
    region
}

impl Pair {
    pub fn new(map: &AddressMap, id: u16, sq_depth: u32, cq_depth: u32) -> Self {
        let sq = region(map, sq_depth as usize * 64);
        let cq = region(map, cq_depth as usize * 16);
        Self { id, sq, cq, sq_depth, cq_depth, tail: 0, head: 0, phase: true }
    }

    /// Writes an entry; the doorbell is rung by `Host::ring`.
    pub fn push(&mut self, entry: &Entry) {
        for (dword, value) in entry.iter().enumerate() {
            let offset = self.tail as usize * 64 + dword * 4;
            self.sq.write_bytes(offset, &value.to_le_bytes());
        }
        self.tail = (self.tail + 1) % self.sq_depth;
    }

    /// Takes the next completion, if its phase is right; `Host::ring_completion` tells of it.
    pub fn pop(&mut self) -> Option<Done> {
        let offset = self.head as usize * 16;
        let upper = self.cq.u64_at(offset + 8).load(Ordering::Acquire);
        if (upper >> 48 & 1 == 1) != self.phase {
            return None;
        }
        let lower = self.cq.u64_at(offset).load(Ordering::Relaxed);
        self.head = (self.head + 1) % self.cq_depth;
        if self.head == 0 {
            self.phase = !self.phase;
        }
        let field = |shift: u32| u16::try_from(upper >> shift & 0xffff).expect("masked");
        Some(Done {
            result: u32::try_from(lower & 0xffff_ffff).expect("masked"),
            head: field(0),
            queue: field(16),
            command: field(32),
            status: field(48) >> 1 & 0x7ff,
            do_not_retry: field(48) >> 15 == 1,
        })
    }
}

pub const CAP: usize = 0x00;
pub const CC: usize = 0x14;
pub const CSTS: usize = 0x1c;
pub const AQA: usize = 0x24;
pub const ASQ: usize = 0x28;
pub const ACQ: usize = 0x30;
/// Entry sizes 64 and 16, enabled.
pub const CC_ENABLED: u32 = 0x0046_0001;

impl Host {
    /// A controller with its admin queues set up, not enabled yet.
    pub fn new(options: Options) -> Self {
        let map = Arc::new(AddressMap::new());
        let controller = Controller::new(options, Arc::clone(&map)).expect("good options");
        let bar = controller.bar();
        let data = region(&map, 4 << 20);
        let admin = Pair::new(&map, 0, 32, 32);
        let host = Self { controller, map, bar, data, admin, now_ns: 1_000, next_command: 0 };
        host.write(AQA, 31 << 16 | 31);
        host.write_wide(ASQ, host.admin.sq.address());
        host.write_wide(ACQ, host.admin.cq.address());
        host
    }

    /// A controller that is ready.
    pub fn ready(options: Options) -> Self {
        let mut host = Self::new(options);
        host.enable();
        host
    }

    pub fn enable(&mut self) {
        self.write(CC, CC_ENABLED);
        self.settle();
        assert_eq!(self.read(CSTS), 1, "{:?}", self.controller.failure());
    }

    pub fn disable(&mut self) {
        self.write(CC, CC_ENABLED & !1);
        self.settle();
        assert_eq!(self.read(CSTS), 0);
    }

    pub fn read(&self, offset: usize) -> u32 {
        self.bar.u32_at(offset).load(Ordering::Acquire)
    }

    pub fn write(&self, offset: usize, value: u32) {
        self.bar.u32_at(offset).store(value, Ordering::Release);
    }

    pub fn write_wide(&self, offset: usize, value: u64) {
        self.bar.u64_at(offset).store(value, Ordering::Release);
    }

    pub fn ring_value(&self, queue: u16, value: u32) {
        self.write(0x1000 + 8 * usize::from(queue), value);
    }

    pub fn ring_completion_value(&self, queue: u16, value: u32) {
        self.write(0x1004 + 8 * usize::from(queue), value);
    }

    pub fn ring(&self, pair: &Pair) {
        self.ring_value(pair.id, pair.tail);
    }

    pub fn ring_completion(&self, pair: &Pair) {
        self.ring_completion_value(pair.id, pair.head);
    }

    pub fn step(&mut self) -> Progress {
        self.controller.step(self.now_ns)
    }

    /// Steps until nothing moves any more at this time.
    pub fn settle(&mut self) {
        self.settle_for(3);
    }

    /// The same, and so many idle steps more that each doorbell has been looked at: one step looks
    /// at one doorbell, whether its queue exists or not.
    pub fn settle_doorbells(&mut self) {
        self.settle_for(150);
    }

    fn settle_for(&mut self, idle_steps: u32) {
        let mut quiet = 0;
        for _ in 0..100_000 {
            quiet = if self.step() == Progress::Worked { 0 } else { quiet + 1 };
            if quiet > idle_steps {
                return;
            }
        }
        panic!("the controller never comes to rest");
    }

    pub fn next_command(&mut self) -> u16 {
        self.next_command = self.next_command.wrapping_add(1) % 0xfff0;
        self.next_command
    }

    /// Sends an admin command and returns its completion.
    pub fn admin(&mut self, entry: Entry) -> Done {
        let id = self.send_admin(entry);
        self.settle();
        let done = self.take_admin().expect("an admin command ends");
        assert_eq!(done.command, id);
        assert_eq!(done.queue, 0);
        done
    }

    pub fn send_admin(&mut self, mut entry: Entry) -> u16 {
        let id = self.next_command();
        entry[0] |= u32::from(id) << 16;
        self.admin.push(&entry);
        self.ring(&self.admin);
        id
    }

    pub fn take_admin(&mut self) -> Option<Done> {
        let done = self.admin.pop()?;
        self.ring_completion(&self.admin);
        Some(done)
    }

    pub fn create_cq(&mut self, pair: &Pair) -> Done {
        let address = pair.cq.address();
        self.admin(create_cq(pair.id, pair.cq_depth, address))
    }

    pub fn create_sq(&mut self, pair: &Pair, cq: u16) -> Done {
        self.admin(create_sq(pair.id, cq, pair.sq_depth, pair.sq.address()))
    }

    /// A working I/O queue pair.
    pub fn pair(&mut self, id: u16, sq_depth: u32, cq_depth: u32) -> Pair {
        let pair = Pair::new(&self.map, id, sq_depth, cq_depth);
        assert_eq!(self.create_cq(&pair).status, 0);
        assert_eq!(self.create_sq(&pair, id).status, 0);
        pair
    }

    /// Sends one I/O command and returns its completion.
    pub fn io(&mut self, pair: &mut Pair, entry: Entry) -> Done {
        let id = self.send(pair, entry);
        self.settle();
        let done = self.take(pair).expect("an I/O command ends");
        assert_eq!((done.command, done.queue), (id, pair.id));
        done
    }

    pub fn send(&mut self, pair: &mut Pair, mut entry: Entry) -> u16 {
        let id = self.next_command();
        entry[0] |= u32::from(id) << 16;
        pair.push(&entry);
        self.ring(pair);
        id
    }

    pub fn take(&mut self, pair: &mut Pair) -> Option<Done> {
        let done = pair.pop()?;
        self.ring_completion(pair);
        Some(done)
    }

    /// Address of a byte of the data memory.
    pub fn at(&self, offset: usize) -> u64 {
        self.data.address() + offset as u64
    }

    pub fn bytes(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let mut copy = vec![0; bytes];
        self.data.read_bytes(offset, &mut copy);
        copy
    }
}

fn wide(entry: &mut Entry, dword: usize, value: u64) {
    entry[dword] = u32::try_from(value & 0xffff_ffff).expect("masked");
    entry[dword + 1] = u32::try_from(value >> 32).expect("shifted");
}

/// An entry with opcode, namespace and data pointer.
pub fn entry(opcode: u32, namespace: u32, prp1: u64, prp2: u64) -> Entry {
    let mut entry = [0; 16];
    (entry[0], entry[1]) = (opcode, namespace);
    wide(&mut entry, 6, prp1);
    wide(&mut entry, 8, prp2);
    entry
}

pub fn create_cq(id: u16, depth: u32, address: u64) -> Entry {
    let mut entry = entry(0x05, 0, address, 0);
    entry[10] = (depth - 1) << 16 | u32::from(id);
    entry[11] = 1;
    entry
}

pub fn create_sq(id: u16, cq: u16, depth: u32, address: u64) -> Entry {
    let mut entry = entry(0x01, 0, address, 0);
    entry[10] = (depth - 1) << 16 | u32::from(id);
    entry[11] = u32::from(cq) << 16 | 1;
    entry
}

pub fn delete_sq(id: u16) -> Entry {
    with(entry(0x00, 0, 0, 0), 10, u32::from(id))
}

pub fn delete_cq(id: u16) -> Entry {
    with(entry(0x04, 0, 0, 0), 10, u32::from(id))
}

pub fn abort(queue: u16, command: u16) -> Entry {
    with(entry(0x08, 0, 0, 0), 10, u32::from(command) << 16 | u32::from(queue))
}

/// The same entry with one dword changed.
pub fn with(mut entry: Entry, dword: usize, value: u32) -> Entry {
    entry[dword] = value;
    entry
}

const WRITE: u32 = 1;
const READ: u32 = 2;

/// A range command: `blocks` from `lba`.
pub fn range(opcode: u32, lba: u64, blocks: u32, prp1: u64, prp2: u64) -> Entry {
    let mut entry = entry(opcode, 1, prp1, prp2);
    wide(&mut entry, 10, lba);
    entry[12] = blocks - 1;
    entry
}

pub fn read(lba: u64, blocks: u32, prp1: u64, prp2: u64) -> Entry {
    range(READ, lba, blocks, prp1, prp2)
}

pub fn write(lba: u64, blocks: u32, prp1: u64, prp2: u64) -> Entry {
    range(WRITE, lba, blocks, prp1, prp2)
}
