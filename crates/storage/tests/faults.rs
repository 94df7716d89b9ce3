//! Random users of a faulty storage: whatever goes wrong, each request ends once and is accounted
//! for, and after its end its memory is left alone.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mem::{MemoryKind, Region};
use sidecore_storage as storage;
use storage::faults::FaultKind;
use storage::{
    Clock, Completion, Direct, Engine, Faulty, FileOptions, FileStorage, MemoryStorage, Op,
    QueueOptions, Request, Storage, StorageQueue, pattern, status,
};

const IO: usize = 4096;
const BLOCKS: usize = 256;
const DEPTH: u32 = 16;
const SCRIPT: &str = "error:rate=0.02,seed=SEED;late:rate=0.03,ms=2,seed=SEED;lost:rate=0.01,seed=SEED;\
     duplicate:rate=0.02,seed=SEED;flip:rate=0.02,seed=SEED;torn:rate=0.02,seed=SEED;\
     stuck:n=2,every=150;reset:n=3,every=110";

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let scaled = (u128::from(pattern::mix(self.0)) * u128::from(limit)) >> 64;
        u64::try_from(scaled).expect("below the limit")
    }
}

/// What has come back, by how it ended.
#[derive(Default, Debug)]
struct Tally {
    submitted: u64,
    succeeded: u64,
    unverified: u64,
    media_errors: u64,
    aborted: u64,
    reset: u64,
    again: u64,
}

struct Run {
    queue: Box<dyn StorageQueue>,
    memory: Region,
    now_ns: Arc<AtomicU64>,
    /// Requests in flight: their memory slot, and what they do.
    pending: HashMap<u64, (usize, Op, u64)>,
    slots: Vec<usize>,
    next_token: u64,
    tally: Tally,
}

impl Run {
    fn new(faulty: &Faulty, now_ns: Arc<AtomicU64>) -> Self {
        let memory = Region::map_anonymous(IO * DEPTH as usize, MemoryKind::Host).unwrap();
        let options = QueueOptions { depth: DEPTH, registered: vec![memory.clone()] };
        let queue = faulty.open_queue(&options).unwrap();
        let slots = (0..DEPTH as usize).collect();
        let (pending, tally) = (HashMap::new(), Tally::default());
        Self { queue, memory, now_ns, pending, slots, next_token: 0, tally }
    }

    fn submit(&mut self, random: &mut Random) {
        let Some(slot) = self.slots.pop() else { return };
        let (token, block) = (self.next_token, random.below(BLOCKS as u64));
        self.next_token += 1;
        let offset = block * IO as u64;
        let op = if random.below(4) == 0 { Op::Write } else { Op::Read };
        if op == Op::Write {
            // All writes carry what is there already, so that every read can be checked.
            pattern::fill_region(&self.memory, slot * IO, IO, offset, 1);
        } else {
            self.memory.fill(slot * IO, IO, 0xa5);
        }
        let request = Request {
            token,
            op,
            offset,
            bytes: 4096,
            memory: &self.memory,
            memory_offset: slot * IO,
        };
        self.queue.try_submit(request).expect("fewer than the depth are in flight");
        self.pending.insert(token, (slot, op, offset));
        self.tally.submitted += 1;
    }

    fn take(&mut self, found: Vec<Completion>) {
        for completion in found {
            let Some((slot, op, offset)) = self.pending.remove(&completion.token) else {
                self.tally.again += 1;
                continue;
            };
            let right = pattern::check_region(&self.memory, slot * IO, IO, offset, 1).is_ok();
            match completion.status {
                s if s.is_success() => {
                    assert_eq!(completion.bytes, 4096);
                    self.tally.succeeded += 1;
                    self.tally.unverified += u64::from(!right);
                }
                status::ABORT_REQUESTED => self.tally.aborted += 1,
                status::ABORTED_QUEUE_DELETED => self.tally.reset += 1,
                status::UNRECOVERED_READ | status::WRITE_FAULT => {
                    assert_eq!(completion.bytes, 0);
                    self.tally.media_errors += 1;
                }
                other => panic!("{other:?} for {op:?}"),
            }
            self.slots.push(slot);
        }
        let in_flight = u32::try_from(self.pending.len()).unwrap();
        assert_eq!(self.queue.in_flight(), in_flight);
    }

    fn poll(&mut self) {
        let mut found = Vec::new();
        self.queue.poll(&mut found);
        self.take(found);
    }

    fn step(&mut self, random: &mut Random) {
        match random.below(100) {
            0..60 => self.submit(random),
            60..90 => self.poll(),
            90..92 if !self.pending.is_empty() => {
                // Late, lost and stuck ones pile up: somebody must lose patience now and then.
                let oldest = *self.pending.keys().min().unwrap();
                self.queue.cancel(oldest);
            }
            92 if random.below(10) == 0 => {
                let mut found = Vec::new();
                self.queue.quiesce(&mut found);
                self.take(found);
                assert!(self.pending.is_empty(), "quiesce ends everything");
                self.memory.fill(0, self.memory.len_bytes(), 0x5a);
            }
            _ => drop(self.now_ns.fetch_add(500_000, Ordering::Relaxed)),
        }
    }

    fn finish(&mut self) {
        let begin = Instant::now();
        while !self.pending.is_empty() {
            let tokens: Vec<u64> = self.pending.keys().copied().collect();
            for token in tokens {
                self.queue.cancel(token);
            }
            self.queue.wait_for_completion(Duration::from_millis(1));
            self.poll();
            assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", self.tally);
        }
        self.poll();
    }
}

fn run(inner: Arc<dyn Storage>, seed: u64) -> (Tally, Arc<storage::faults::Injector>) {
    let now_ns = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&now_ns);
    let clock: Clock = Arc::new(move || clock.load(Ordering::Relaxed));
    let script = SCRIPT.replace("SEED", &seed.to_string()).parse().unwrap();
    let faulty = Faulty::new(inner, &script, clock);
    let mut run = Run::new(&faulty, now_ns);
    let mut random = Random(seed);
    while run.tally.submitted < 1000 {
        run.step(&mut random);
    }
    run.finish();
    (run.tally, Arc::clone(faulty.injector()))
}

fn check(inner: &Arc<dyn Storage>, seed: u64) {
    let (tally, injector) = run(Arc::clone(inner), seed);
    let of = |kind| injector.injected(kind);
    let place = format!("seed {seed}: {tally:?}");
    let ended = tally.succeeded + tally.media_errors + tally.aborted + tally.reset;
    assert_eq!(ended, tally.submitted, "{place}");
    assert_eq!(tally.again, of(FaultKind::Duplicate), "{place}");
    assert!(of(FaultKind::Reset) == 3 && tally.reset >= 3, "{place}");
    // What was cancelled before it failed ends as aborted instead.
    let failing = of(FaultKind::Error) + of(FaultKind::Torn);
    let excused = tally.aborted + tally.reset;
    assert!(tally.media_errors <= failing, "{place}");
    assert!(tally.media_errors + excused >= failing, "{place}");
    assert!(of(FaultKind::Lost) + of(FaultKind::Stuck) <= excused, "{place}");
    assert!(tally.unverified <= of(FaultKind::Flip) * 40, "{place}");
}

#[test]
fn memory_survives_random_users() {
    for seed in 0..200 {
        let memory = MemoryStorage::new(BLOCKS * IO).unwrap().with_block_bytes(512);
        pattern::fill_region(memory.region(), 0, BLOCKS * IO, 0, 1);
        let inner: Arc<dyn Storage> = Arc::new(memory);
        check(&inner, seed);
    }
}

#[test]
fn the_same_seed_gives_the_same_ends() {
    let tally = |seed| {
        let memory = MemoryStorage::new(BLOCKS * IO).unwrap().with_block_bytes(512);
        pattern::fill_region(memory.region(), 0, BLOCKS * IO, 0, 1);
        format!("{:?}", run(Arc::new(memory), seed).0)
    };
    assert_eq!(tally(3), tally(3));
    assert_ne!(tally(3), tally(4));
}

#[test]
fn files_survive_random_users() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("data");
    for engine in [Engine::Auto, Engine::ThreadPool] {
        for direct in [Direct::Never, Direct::Always] {
            for seed in 0..5 {
                let mut data = vec![0; BLOCKS * IO];
                pattern::fill(&mut data, 0, 1);
                std::fs::write(&path, data).unwrap();
                let options =
                    FileOptions { writable: true, engine, direct, bound_to_thread: false };
                let inner: Arc<dyn Storage> = Arc::new(FileStorage::open(&path, &options).unwrap());
                check(&inner, seed);
            }
        }
    }
}
