//! Whether memory keeps the order that rings build on: one side stores numbers that only grow, the other
//! looks at any time; whoever sees a flag must see payload at least as new.
//!
//! ```text
//! cell, 512 bytes    flag or entry (128) | payload (3 x 128)
//! ```
//!
//! | rule | the right way | its broken twin |
//! | --- | --- | --- |
//! | a | payload, fence, flag, fence: the CPU through the window | no fence before the flag |
//! | c | flag, acquire, payload: the lane | no acquire |
//! | d | only aligned 8-byte stores are atomic in a window | 16 bytes as two stores, looked at as one |
//! | e | store, fence, load of one line of the window: the CPU | no fence |
//! | f | payload, fence, entry: the lane into host memory | no fence |
//!
//! (Rule b, reading back on devices that order nothing for their owner, is kept by refusing them the
//! window.)
//!
//! [`Storing`], [`Looking`] and [`Rereading`] are the CPU's sides, stepped: by threads here, by a simulator
//! in tests. A twin that sees no violation shows nothing; [`Row::violations`] is there to be printed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gpu::{Copy, DeviceMemory, Gpu, Kernel};
use mem::{Region, fence_acquire, fence_payload};
use zerocopy::{Immutable, IntoBytes};

use crate::bed::shape;

/// Bytes of a cell.
pub const CELL_BYTES: usize = 512;
/// Bytes from one line to the next.
const LINE_BYTES: usize = 128;

/// Bits of [`Arguments::mode`].
pub const ACQUIRE: u32 = 1;
/// See [`ACQUIRE`]: looks at 16 bytes at once.
pub const PAIRS: u32 = 2;
/// See [`ACQUIRE`]: fences between payload and entry.
pub const FENCE: u32 = 4;

/// Arguments of the kernels, as `LitmusArgs` in `crates/kernels/kernels/litmus.cu`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct Arguments {
    /// Device address of the cells.
    pub cells: u64,
    /// Device address of a word that is not 0 once the CPU has ended.
    pub stop: u64,
    /// Device address of three words: looks, new ones, violations.
    pub results: u64,
    /// Cells.
    pub cell_count: u64,
    /// Rounds of each lane at least.
    pub rounds: u64,
    /// And at most.
    pub rounds_max: u64,
    /// What lanes do.
    pub mode: u32,
    /// Zero.
    pub reserved: u32,
}

/// The word for a number; both halves say it.
const fn word_of(number: u32) -> u64 {
    (number as u64) << 32 | !number as u64
}

const fn number_of(word: u64) -> u32 {
    (word >> 32) as u32
}

const fn is_whole(word: u64) -> bool {
    word == 0 || word == word_of(number_of(word))
}

/// What one side did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Looks, or stores.
    pub looks: u64,
    /// Looks that found something new.
    pub fresh: u64,
    /// Looks that found what may not be.
    pub violations: u64,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.looks += other.looks;
        self.fresh += other.fresh;
        self.violations += other.violations;
    }
}

/// The CPU stores payload, then flags.
pub struct Storing {
    /// Its cells.
    pub cells: Region,
    /// Whether payload is fenced before its flag.
    pub fenced: bool,
    /// Whether it stores 16 bytes as two stores instead.
    pub pairs: bool,
    /// The last number.
    pub number: u32,
}

impl Storing {
    /// Stores the next number to every cell.
    pub fn step(&mut self) -> Tally {
        self.number += 1;
        let word = word_of(self.number);
        let cells = self.cells.len_bytes() / CELL_BYTES;
        for cell in 0..cells {
            let at = cell * CELL_BYTES;
            let lines = if self.pairs { 1 } else { 3 };
            for line in 1..=lines {
                self.cells.u64_at(at + line * LINE_BYTES).store(word, Ordering::Relaxed);
                self.cells.u64_at(at + line * LINE_BYTES + 8).store(word, Ordering::Relaxed);
            }
            if self.pairs {
                continue;
            }
            if self.fenced {
                fence_payload();
            }
            // All of a line, which leaves the CPU at once; payload's lines are left unfilled.
            self.cells.write_bytes(at, [word; 8].as_bytes());
        }
        fence_payload();
        Tally { looks: cells as u64, fresh: cells as u64, violations: 0 }
    }
}

/// The CPU looks at entries, then at payload.
pub struct Looking {
    /// Its cells.
    pub cells: Region,
    /// What it saw last, by cell.
    pub last: Vec<u32>,
}

impl Looking {
    /// Looks at every cell once.
    pub fn step(&mut self) -> Tally {
        let mut tally = Tally::default();
        for (cell, last) in self.last.iter_mut().enumerate() {
            let at = cell * CELL_BYTES;
            let entry = self.cells.u64_at(at + 8).load(Ordering::Acquire);
            fence_acquire();
            let number = number_of(entry);
            let right = |at: usize| {
                let word = self.cells.u64_at(at).load(Ordering::Relaxed);
                is_whole(word) && number_of(word) >= number
            };
            // The entry's first half, which was stored with the second one; then payload.
            let lines = (1..4).map(|line| at + line * LINE_BYTES);
            let all = is_whole(entry) && right(at) && lines.flat_map(|at| [at, at + 8]).all(right);
            tally.looks += 1;
            tally.fresh += u64::from(number != *last);
            tally.violations += u64::from(!all);
            *last = number;
        }
        tally
    }
}

/// The CPU stores to a line of the window and reads it again.
pub struct Rereading {
    /// Its cells.
    pub cells: Region,
    /// Whether it fences between the two.
    pub fenced: bool,
    /// The last number.
    pub number: u32,
}

impl Rereading {
    /// Stores the next number to every cell, and looks.
    pub fn step(&mut self) -> Tally {
        self.number += 1;
        let word = word_of(self.number);
        let cells = self.cells.len_bytes() / CELL_BYTES;
        let mut violations = 0;
        for cell in 0..cells {
            let place = self.cells.u64_at(cell * CELL_BYTES);
            place.store(word, Ordering::Relaxed);
            if self.fenced {
                fence_payload();
            }
            violations += u64::from(place.load(Ordering::Relaxed) != word);
        }
        Tally { looks: cells as u64, fresh: cells as u64, violations }
    }
}

/// One litmus run.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Rules that it is about.
    pub rules: &'static str,
    /// Whether everything was done as the rules say.
    pub right: bool,
    /// What was left out, for people.
    pub about: &'static str,
    /// What lanes did.
    pub lanes: Tally,
    /// What CPU threads did.
    pub cpu: Tally,
    /// How long it took.
    pub seconds: f64,
}

impl Row {
    /// Observations against the rules, by whoever looked.
    pub fn violations(&self) -> u64 {
        self.lanes.violations + self.cpu.violations
    }
}

/// Who stores and who looks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Looking,
    Rereading { fenced: bool },
    Storing { fenced: bool, pairs: bool },
}

struct Plan {
    rules: &'static str,
    right: bool,
    about: &'static str,
    kernel: Kernel,
    mode: u32,
    side: Side,
}

const fn plan(
    rules: &'static str,
    about: &'static str,
    (kernel, mode): (Kernel, u32),
    side: Side,
) -> Plan {
    Plan { rules, right: about.is_empty(), about, kernel, mode, side }
}

const FENCED: Side = Side::Storing { fenced: true, pairs: false };
const UNFENCED: Side = Side::Storing { fenced: false, pairs: false };
const IN_PAIRS: Side = Side::Storing { fenced: true, pairs: true };
const RECEIVE: Kernel = kernels::LITMUS_RECEIVE;

const PLANS: [Plan; 8] = [
    plan("acd", "", (RECEIVE, ACQUIRE), FENCED),
    plan("a", "no fence between payload and flag", (RECEIVE, ACQUIRE), UNFENCED),
    plan("c", "no acquire between flag and payload", (RECEIVE, 0), FENCED),
    plan("d", "16 bytes stored as two words, loaded as one", (RECEIVE, PAIRS), IN_PAIRS),
    plan("e", "", (kernels::LITMUS_BESIDE, 0), Side::Rereading { fenced: true }),
    plan("e", "no fence before the line is read", (kernels::LITMUS_BESIDE, 0), REREAD),
    plan("f", "", (kernels::LITMUS_SEND, FENCE), Side::Looking),
    plan("f", "no fence between payload and entry", (kernels::LITMUS_SEND, 0), Side::Looking),
];
const REREAD: Side = Side::Rereading { fenced: false };

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// Time of each run.
    pub duration: Duration,
    /// Blocks of 64 lanes.
    pub blocks: u32,
    /// Rounds of each lane at least.
    pub rounds: u64,
    /// CPU threads.
    pub threads: usize,
}

impl Amount {
    /// What a GPU needs for 10^8 rounds of its lanes and more.
    pub fn of(gpu: &Arc<dyn Gpu>, duration: Duration) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        if gpu.describe().simulated {
            return Self { duration, blocks: 2, rounds: 100, threads: 1 };
        }
        Self { duration, blocks: 64, rounds: 30_000, threads: cpus.clamp(1, 8) }
    }
}

/// Runs all, each right way before its twins.
///
/// # Panics
/// Where the GPU has no memory or no window, or a kernel hangs.
pub fn run_all(gpu: &Arc<dyn Gpu>, amount: Amount) -> Vec<Row> {
    PLANS.iter().map(|plan| run(gpu, plan, amount)).collect()
}

fn read_words<const N: usize>(gpu: &Arc<dyn Gpu>, memory: &DeviceMemory) -> [u64; N] {
    let host = gpu.allocate_host(8 * N as u64).expect("pinned memory");
    let bytes = 8 * N;
    let copy = Copy { host: &host, host_offset: 0, device: memory, device_offset: 0, bytes };
    gpu.copy_to_host(copy).expect("a copy to the host");
    std::array::from_fn(|at| host.u64_at(8 * at).load(Ordering::Relaxed))
}

/// The cells' memory: their device address and the CPU's side of them.
fn allocate(gpu: &Arc<dyn Gpu>, side: Side, cells: usize) -> (u64, Region, Option<DeviceMemory>) {
    let bytes = (cells * CELL_BYTES) as u64;
    if side == Side::Looking {
        let host = gpu.allocate_host(bytes).expect("pinned memory");
        return (host.address(), host, None);
    }
    let memory = gpu.allocate_device(bytes).expect("device memory");
    let window = memory.window.clone().expect("a window: without one there is nothing to keep");
    (memory.address, window, Some(memory))
}

fn run(gpu: &Arc<dyn Gpu>, plan: &Plan, amount: Amount) -> Row {
    let lanes = amount.blocks as usize * 64;
    let per_thread = if plan.side == Side::Looking { lanes / amount.threads } else { 8 };
    let cells = per_thread * amount.threads;
    let (address, cpu_side, _memory) = allocate(gpu, plan.side, cells);
    let stop = gpu.allocate_words(8).expect("a word");
    let results = gpu.allocate_device(24).expect("three words");
    let arguments = Arguments {
        cells: address,
        stop: stop.address,
        results: results.address,
        cell_count: cells as u64,
        rounds: amount.rounds,
        rounds_max: u64::from(u32::MAX >> 2),
        mode: plan.mode,
        reserved: 0,
    };
    gpu.prepare(&plan.kernel).expect("the kernel");
    let start = Instant::now();
    let shape = shape(amount.blocks, 64);
    let mut launch = gpu.launch(&plan.kernel, shape, arguments.as_bytes()).expect("a launch");
    let over = AtomicBool::new(false);
    let cpu = std::thread::scope(|scope| {
        let work = |thread: usize| {
            let bytes = per_thread * CELL_BYTES;
            let part = cpu_side.slice(thread * bytes, bytes).expect("its part");
            work(part, plan.side, &over)
        };
        let threads: Vec<_> =
            (0..amount.threads).map(|thread| scope.spawn(move || work(thread))).collect();
        std::thread::sleep(amount.duration);
        let window = stop.window.as_ref().expect("words have one");
        window.u64_at(0).store(1, Ordering::Relaxed);
        fence_payload();
        let ended = launch.wait(Duration::from_secs(60));
        over.store(true, Ordering::Release);
        ended.unwrap_or_else(|| panic!("{} hangs", plan.kernel.name)).expect("the kernel");
        threads.into_iter().fold(Tally::default(), |mut sum, thread| {
            sum.add(&thread.join().expect("no panic in there"));
            sum
        })
    });
    let seconds = start.elapsed().as_secs_f64();
    let [looks, fresh, violations] = read_words(gpu, &results);
    let lanes = Tally { looks, fresh, violations };
    let Plan { rules, right, about, .. } = *plan;
    Row { rules, right, about, lanes, cpu, seconds }
}

/// One CPU thread's part.
fn work(cells: Region, side: Side, over: &AtomicBool) -> Tally {
    let mut step: Box<dyn FnMut() -> Tally> = match side {
        Side::Looking => {
            let last = vec![0; cells.len_bytes() / CELL_BYTES];
            let mut side = Looking { cells, last };
            Box::new(move || side.step())
        }
        Side::Rereading { fenced } => {
            let mut side = Rereading { cells, fenced, number: 0 };
            Box::new(move || side.step())
        }
        Side::Storing { fenced, pairs } => {
            let mut side = Storing { cells, fenced, pairs, number: 0 };
            Box::new(move || side.step())
        }
    };
    let mut sum = Tally::default();
    while !over.load(Ordering::Acquire) {
        sum.add(&step());
    }
    sum
}

/// A case: everything done as the rules say is seen as the rules say.
pub fn memory_keeps_the_order_that_rings_build_on(gpu: &Arc<dyn Gpu>) {
    let amount = Amount::of(gpu, Duration::from_millis(100));
    for plan in PLANS.iter().filter(|plan| plan.right) {
        let row = run(gpu, plan, amount);
        assert_eq!(row.violations(), 0, "{row:?}");
        assert!(row.lanes.looks > 0 && row.cpu.looks > 0, "{row:?}");
    }
}
