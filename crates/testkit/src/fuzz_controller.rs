//! A hostile host: arbitrary registers, doorbells and commands against the software controller.
//!
//! Whatever the host does, the controller does not panic, comes to rest, writes nothing but what is
//! registered and the storage that it may write, and works again after a reset.
//!
//! The input is a program for the host: each action is one byte, with its operands behind it. Half
//! of the actions are almost right, so that random input gets past the first checks.

use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use ctrl::{Controller, NamespaceOptions, Options, Progress, ResetFault};
use mem::{AddressMap, MemoryKind, Region};
use spec::registers::{ACQ, AQA, ASQ, CC, CSTS};
use storage::MemoryStorage;
use storage::faults::{FaultScript, Injector};

const GUARD: usize = 4096;
const HOST_BYTES: usize = 48 << 10;
const DISK_BYTES: usize = 20 << 10;
const ODD_BYTES: usize = 6000;
/// Where the controller sees the host's memory, and a region of an odd size at an odd address.
const HOST_AT: u64 = 0x10_0000;
const ODD_AT: u64 = 0x20_0000;
const ENABLED: u32 = 0x0046_0001;
/// Actions of one run: more than any interesting input has.
const ACTIONS_MAX: usize = 256;
const STEPS_MAX: usize = 20_000;

const SCRIPTS: [&str; 8] = [
    "",
    "error:rate=0.3;late:rate=0.3,ms=1",
    "duplicate:rate=0.5",
    "flip:rate=0.5;torn:rate=0.5",
    "lost:rate=0.5",
    "stuck:n=1,every=2",
    "reset:n=1,every=2",
    "late:rate=1,ms=5",
];

/// The host's program.
struct Program<'a>(&'a [u8]);

impl Program<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn half(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn word(&mut self) -> u32 {
        u32::from(self.half()) << 16 | u32::from(self.half())
    }

    /// An address: mostly in registered memory, mostly aligned, sometimes anything.
    fn address(&mut self) -> u64 {
        let choice = self.byte();
        let page = u64::from(choice >> 4) * 4096 % HOST_BYTES as u64;
        match choice & 15 {
            0..=7 => HOST_AT + page,
            8 => HOST_AT + page + u64::from(self.half()),
            9 => HOST_AT + page + 4096 - 8,
            10 => ODD_AT + page % 8192,
            11 => ODD_AT + u64::from((self.half() % 8192) & !3),
            12 => HOST_AT.wrapping_sub(page),
            13 => u64::MAX - u64::from(self.half()),
            14 => u64::from(self.word()) << 12,
            _ => 0,
        }
    }
}

/// What all memory holds before a run: as long as the longest guarded region.
static BEFORE: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..=250).cycle().take(HOST_BYTES + 2 * GUARD).collect());

/// Memory between guards.
#[derive(Clone)]
struct Guarded {
    whole: Region,
}

/// All memory of a run. Kept from run to run, since mapping it anew takes longer than the run.
#[derive(Clone)]
struct Memories {
    host: Guarded,
    odd: Guarded,
    disk: Guarded,
    sealed: Guarded,
}

thread_local! {
    static MEMORIES: Memories = Memories {
        host: Guarded::new(HOST_BYTES),
        odd: Guarded::new(ODD_BYTES),
        disk: Guarded::new(DISK_BYTES),
        sealed: Guarded::new(DISK_BYTES),
    };
}

impl Guarded {
    fn new(bytes: usize) -> Self {
        let whole = Region::map_anonymous(bytes + 2 * GUARD, MemoryKind::Host).expect("memory");
        Self { whole }
    }

    fn refill(&self) {
        self.whole.write_bytes(0, &BEFORE[..self.whole.len_bytes()]);
    }

    fn inside(&self, offset: usize, bytes: usize) -> Region {
        self.whole.slice(GUARD + offset, bytes).expect("between the guards")
    }

    /// Checks all bytes outside `offset..offset + bytes` of the inside.
    fn check(&self, what: &str, offset: usize, bytes: usize) {
        let (start, end) = (GUARD + offset, GUARD + offset + bytes);
        for (first, last) in [(0, start), (end, self.whole.len_bytes())] {
            let mut now = vec![0; last - first];
            self.whole.read_bytes(first, &mut now);
            assert!(now == BEFORE[first..last], "{what}: written in {first}..{last}");
        }
    }
}

struct World {
    controller: Controller,
    bar: Region,
    host: Guarded,
    odd: Guarded,
    disk: Guarded,
    sealed: Guarded,
    now_ns: u64,
    /// The next entry of each submission queue, as this host believes.
    tails: [u32; 4],
}

impl World {
    fn new(program: &mut Program<'_>) -> Self {
        let memories = MEMORIES.with(Memories::clone);
        let Memories { host, odd, disk, sealed } = memories;
        [&host, &odd, &disk, &sealed].into_iter().for_each(Guarded::refill);
        let map = Arc::new(AddressMap::new());
        map.register_at(HOST_AT, host.inside(0, HOST_BYTES)).expect("apart");
        // Addresses that look aligned, over memory that is not.
        map.register_at(ODD_AT, odd.inside(3, ODD_BYTES - 3)).expect("apart");
        let setup = program.byte();
        let script: FaultScript = SCRIPTS[usize::from(setup & 7)].parse().expect("a script");
        let block = if setup & 8 == 0 { 512 } else { 4096 };
        let mut storage = MemoryStorage::over(disk.inside(0, DISK_BYTES));
        if setup & 16 != 0 {
            storage = storage.with_block_bytes(block);
        }
        let mut first = NamespaceOptions::new(Arc::new(storage));
        first.block_bytes = block;
        let faulty = !script.is_empty();
        first.faults = faulty.then(|| Arc::new(Injector::new(&script, block)));
        let sealed_storage = MemoryStorage::over(sealed.inside(0, DISK_BYTES)).with_read_only();
        let second = NamespaceOptions::new(Arc::new(sealed_storage));
        let mut options = Options::new(vec![first, second]);
        options.queue_pairs_max = 3;
        options.queue_entries_max = 64;
        options.transfer_bytes_max = 16 << 10;
        options.commands_max = 8;
        options.storage_depth = 3;
        if setup & 32 != 0 {
            options.reset_fault = ResetFault::SelfReset;
        }
        if setup & 64 != 0 {
            options.timing = "iops=100000,latency=uniform:1us:90us".parse().expect("a model");
        }
        let controller = Controller::new(options, map).expect("good options");
        let bar = controller.bar();
        Self { controller, bar, host, odd, disk, sealed, now_ns: 0, tails: [0; 4] }
    }

    fn store(&self, offset: usize, value: u32) {
        if self.bar.check(offset, 4).is_ok() {
            self.bar.u32_at(offset & !3).store(value, Ordering::Release);
        }
    }

    fn store_wide(&self, offset: usize, value: u64) {
        self.bar.u64_at(offset).store(value, Ordering::Release);
    }

    fn load(&self, offset: usize) -> u32 {
        self.bar.u32_at(offset).load(Ordering::Acquire)
    }

    /// Steps until the controller rests. While commands wait for their time, time passes.
    fn rest(&mut self) {
        let mut quiet = 0;
        for _ in 0..STEPS_MAX {
            match self.controller.step(self.now_ns) {
                Progress::Worked => quiet = 0,
                Progress::Waiting { until_ns: Some(due) } => self.now_ns = self.now_ns.max(due),
                Progress::Waiting { until_ns: None } => self.now_ns += 1000,
                Progress::Idle | Progress::Stopped => quiet += 1,
            }
            if quiet > 10 {
                return;
            }
        }
        panic!("the controller never rests");
    }

    /// Admin queues at the first two pages, 16 entries each, and enables.
    fn enable(&mut self) {
        self.store(AQA, 15 << 16 | 15);
        self.store_wide(ASQ, HOST_AT);
        self.store_wide(ACQ, HOST_AT + 4096);
        self.tails = [0; 4];
        self.store(CC, ENABLED);
    }

    /// Memory of a submission queue as this host lays them out: page 0 and pages 2, 4, 6.
    fn put(&mut self, queue: usize, depth: u32, entry: &[u8; 64]) {
        let page = 2 * queue * 4096;
        let slot = self.tails[queue] as usize % 64;
        self.host.whole.write_bytes(GUARD + page + slot * 64, entry);
        self.tails[queue] = (self.tails[queue] + 1) % depth;
        self.store(0x1000 + 8 * queue, self.tails[queue]);
    }
}

fn entry(dwords: &[(usize, u32)], addresses: &[(usize, u64)]) -> [u8; 64] {
    let mut entry = [0; 64];
    for (dword, value) in dwords {
        entry[dword * 4..dword * 4 + 4].copy_from_slice(&value.to_le_bytes());
    }
    for (dword, value) in addresses {
        entry[dword * 4..dword * 4 + 8].copy_from_slice(&value.to_le_bytes());
    }
    entry
}

/// An admin command that is almost right.
fn likely_admin(program: &mut Program<'_>) -> [u8; 64] {
    let what = program.byte();
    let id = u32::from(program.byte()) << 16;
    let queue = u32::from(what >> 4 & 3);
    let page = HOST_AT + u64::from(queue) * 2 * 4096;
    match what & 15 {
        0..=2 => entry(&[(0, id | 5), (10, 15 << 16 | queue), (11, 1)], &[(6, page + 4096)]),
        3..=5 => {
            let of = u32::from(program.byte() & 3);
            let of = if of == 3 { queue } else { of };
            entry(&[(0, id | 1), (10, 15 << 16 | queue), (11, of << 16 | 1)], &[(6, page)])
        }
        6 => entry(&[(0, id), (10, queue)], &[]),
        7 => entry(&[(0, id | 4), (10, queue)], &[]),
        8 => entry(&[(0, id | 8), (10, u32::from(program.byte()) << 16 | queue)], &[]),
        9 => entry(&[(0, id | 0x0c)], &[]),
        10 => entry(
            &[(0, id | 6), (1, u32::from(program.byte() & 3)), (10, u32::from(what >> 6))],
            &[(6, program.address()), (8, program.address())],
        ),
        11 => entry(&[(0, id | 9), (10, u32::from(program.byte())), (11, program.word())], &[]),
        12 => entry(&[(0, id | 10), (10, u32::from(program.half()))], &[]),
        13 => entry(
            &[(0, id | 2), (10, program.word()), (12, u32::from(program.half()))],
            &[(6, program.address()), (8, program.address())],
        ),
        14 => {
            // A queue of any number and size, in any memory.
            let (number, entries) = (program.half() & 0xff, program.half() & 0xff);
            let size = u32::from(entries) << 16 | u32::from(number);
            let opcode = [1, 5][usize::from(what >> 4 & 1)];
            let of = u32::from(program.byte()) << 16;
            entry(&[(0, id | opcode), (10, size), (11, of | 1)], &[(6, program.address())])
        }
        _ => entry(&[(0, program.word()), (10, program.word()), (11, program.word())], &[]),
    }
}

/// An I/O command that is almost right.
fn likely_io(program: &mut Program<'_>) -> [u8; 64] {
    let what = program.byte();
    let id = u32::from(program.byte()) << 16;
    let opcode = [2, 1, 0, 8, 5, 9, 2, u32::from(what)][usize::from(what & 7)];
    let namespace = [1, 1, 2, u32::MAX][usize::from(what >> 3 & 3)];
    let lba = u32::from(program.byte() & 0x7f);
    let blocks = u32::from(program.byte() & 0x3f);
    let forced = u32::from(what >> 7) << 30;
    entry(
        &[(0, id | opcode), (1, namespace), (10, lba), (12, blocks | forced)],
        &[(6, program.address()), (8, program.address())],
    )
}

fn act(world: &mut World, program: &mut Program<'_>) {
    let action = program.byte();
    let queue = usize::from(action >> 4 & 3);
    match action & 15 {
        0 => world.enable(),
        1 => world.store(CC, program.word()),
        2 => {
            let offset = usize::from(program.half() & 0x1fff);
            world.store(offset, program.word());
        }
        3 => world.store(0x1000 + 4 * usize::from(program.byte() & 15), program.word() % 80),
        4 => {
            let mut raw = [0; 64];
            raw.iter_mut().for_each(|byte| *byte = program.byte());
            world.put(queue, 16, &raw);
        }
        5..=7 => {
            let entry = likely_admin(program);
            world.put(0, 16, &entry);
        }
        8..=11 => {
            let entry = likely_io(program);
            world.put(1 + queue % 3, 16, &entry);
        }
        12 => {
            // A list entry, or any other eight bytes of the host's memory.
            let at = (usize::from(program.half()) % HOST_BYTES) & !7;
            let address = program.address();
            world.host.whole.write_bytes(GUARD + at, &address.to_le_bytes());
        }
        13 => {
            // A host that consumes: all completion heads follow what the queue must have.
            world.store(0x1004 + 8 * queue, u32::from(program.byte() & 15));
        }
        14 => {
            world.now_ns += u64::from(program.half());
            world.controller.step(world.now_ns);
        }
        _ => world.rest(),
    }
}

/// Runs a program against a controller.
///
/// # Panics
/// Where the controller panics, never rests, writes what it must not, or is dead after a reset.
pub fn fuzz_controller(data: &[u8]) {
    let mut program = Program(data);
    let mut world = World::new(&mut program);
    if program.byte() & 3 != 0 {
        world.enable();
        world.rest();
    }
    for _ in 0..ACTIONS_MAX {
        if program.0.is_empty() {
            break;
        }
        act(&mut world, &mut program);
    }
    world.rest();
    world.host.check("host memory", 0, HOST_BYTES);
    world.odd.check("memory of an odd size", 3, ODD_BYTES - 3);
    world.disk.check("storage", 0, DISK_BYTES);
    world.sealed.check("read-only storage", 0, 0);
    assert_alive_after_reset(&mut world);
}

fn assert_alive_after_reset(world: &mut World) {
    world.store(CC, 0);
    world.rest();
    assert_eq!(world.load(CSTS) & 3, 0, "neither ready nor failed");
    world.host.whole.fill(GUARD, 8192, 0);
    world.enable();
    world.rest();
    assert_eq!(world.load(CSTS), 1, "{:?}", world.controller.failure());
    let identify = entry(&[(0, 6 | 7 << 16), (10, 1)], &[(6, HOST_AT + 8 * 4096)]);
    world.put(0, 16, &identify);
    world.rest();
    let upper = world.host.whole.u64_at(GUARD + 4096 + 8).load(Ordering::Acquire);
    assert_eq!(upper >> 32, 1 << 16 | 7, "Identify works after a reset: {upper:#x}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs from a seed: what the fuzzer starts from, and a first look at each build.
    #[test]
    fn random_programs_harm_nothing() {
        let mut state = 7_u64;
        let mut byte = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            state.to_be_bytes()[1]
        };
        for length in (0..1000).map(|n| n * 7 % 700) {
            let program: Vec<u8> = (0..length).map(|_| byte()).collect();
            fuzz_controller(&program);
        }
    }

    /// The programs reach what they are for: queues are made, and payload moves both ways.
    #[test]
    fn almost_right_programs_reach_the_payload() {
        // Enable; CQ 1, SQ 1; a write, a read, a flush; then rest.
        let text = [
            0, 1, 5, 0x10, 1, 15, 5, 0x13, 2, 1, 15, 8, 1, 3, 0, 7, 0x80, 0, 8, 0, 4, 1, 7, 0x90,
            0, 15,
        ];
        let mut program = Program(&text);
        let mut world = World::new(&mut program);
        program.byte();
        world.enable();
        world.rest();
        while !program.0.is_empty() {
            act(&mut world, &mut program);
        }
        world.rest();
        let counters = world.controller.counters().read();
        assert_eq!((counters.admin_commands, counters.io_commands), (2, 2), "{counters:?}");
        assert_eq!((counters.bytes_read, counters.bytes_written), (4096, 4096), "{counters:?}");
    }
}
