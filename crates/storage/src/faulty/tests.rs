//! Each kind of fault as a user of the queue sees it, over memory storage and a clock of our own.

use super::*;
use crate::memory::MemoryStorage;
use crate::pattern;

const IO: usize = 4096;
const DEPTH: u32 = 16;

struct Bench {
    storage: Arc<MemoryStorage>,
    faulty: Faulty,
    queue: Box<dyn StorageQueue>,
    memory: Region,
    now_ns: Arc<AtomicU64>,
}

impl Bench {
    fn new(script: &str) -> Self {
        let storage = Arc::new(MemoryStorage::new(64 * IO).unwrap().with_block_bytes(512));
        pattern::fill_region(storage.region(), 0, 64 * IO, 0, 1);
        let now_ns = Arc::new(AtomicU64::new(1));
        let clock = Arc::clone(&now_ns);
        let clock: Clock = Arc::new(move || clock.load(Ordering::Relaxed));
        let faulty = Faulty::new(storage.clone(), &script.parse().unwrap(), clock);
        let options = QueueOptions { depth: DEPTH, registered: Vec::new() };
        let queue = faulty.open_queue(&options).unwrap();
        let memory = Region::map_anonymous(16 * IO, MemoryKind::Host).unwrap();
        Self { storage, faulty, queue, memory, now_ns }
    }

    fn submit(&mut self, token: u64, op: Op) {
        let slot = usize::try_from(token % 16).unwrap();
        let request = Lent {
            token,
            op,
            offset: token * IO as u64,
            bytes: 4096,
            memory: &self.memory,
            memory_offset: slot * IO,
        };
        self.queue.try_submit(request).expect("taken");
    }

    fn reads(&mut self, tokens: std::ops::Range<u64>) {
        for token in tokens {
            self.submit(token, Op::Read);
        }
    }

    fn poll(&mut self) -> Vec<Completion> {
        let mut completions = Vec::new();
        self.queue.poll(&mut completions);
        completions
    }

    fn poll_tokens(&mut self) -> Vec<u64> {
        self.poll().iter().map(|c| c.token).collect()
    }

    fn verified(&self, token: u64) -> bool {
        let slot = usize::try_from(token % 16).unwrap();
        pattern::check_region(&self.memory, slot * IO, IO, token * IO as u64, 1).is_ok()
    }
}

#[test]
fn nothing_is_injected_by_the_empty_script() {
    let mut bench = Bench::new("");
    bench.reads(0..16);
    assert_eq!(bench.queue.in_flight(), 16);
    let found = bench.poll();
    assert!(found.iter().all(|c| c.status.is_success() && c.bytes == 4096));
    assert_eq!(found.len(), 16);
    assert!((0..16).all(|t| bench.verified(t)));
    assert_eq!(bench.queue.in_flight(), 0);
}

#[test]
fn an_error_moves_nothing_and_others_are_unharmed() {
    let mut bench = Bench::new("error:offset=8192,status=2/82");
    bench.reads(0..4);
    let found = bench.poll();
    let failed: Vec<_> = found.iter().filter(|c| !c.status.is_success()).collect();
    assert_eq!(failed.len(), 1);
    assert_eq!((failed[0].token, failed[0].status), (2, Status::new(2, 0x82)));
    assert!(!bench.verified(2) && bench.verified(1) && bench.verified(3));
}

#[test]
fn a_lost_completion_is_answered_after_cancel_as_aborted() {
    let mut bench = Bench::new("lost:every=4,n=1");
    bench.reads(0..8);
    assert_eq!(bench.poll().len(), 7);
    assert!(bench.poll().is_empty());
    assert_eq!(bench.queue.in_flight(), 1);
    bench.queue.cancel(3);
    assert_eq!(bench.poll(), [ended(3, status::ABORT_REQUESTED)]);
    assert_eq!(bench.queue.in_flight(), 0);
}

#[test]
fn a_lost_completion_cancelled_before_it_ran_is_aborted_once() {
    let mut bench = Bench::new("lost");
    bench.reads(0..1);
    bench.queue.cancel(0);
    let found = bench.poll();
    assert_eq!((found.len(), found[0].status), (1, status::ABORT_REQUESTED));
    assert!(bench.poll().is_empty());
}

#[test]
fn a_late_completion_waits_for_the_clock() {
    let mut bench = Bench::new("late:ms=5");
    bench.reads(0..2);
    assert_eq!(bench.poll_tokens(), [1]);
    bench.now_ns.store(5_000_000, Ordering::Relaxed);
    assert!(bench.poll().is_empty(), "one nanosecond is missing");
    bench.now_ns.store(5_000_001, Ordering::Relaxed);
    assert_eq!(bench.poll_tokens(), [0]);
    assert!(bench.verified(0));
}

#[test]
fn a_duplicate_comes_with_the_next_poll_and_is_not_in_flight() {
    let mut bench = Bench::new("duplicate");
    bench.reads(0..1);
    assert_eq!(bench.poll_tokens(), [0]);
    assert_eq!(bench.queue.in_flight(), 0);
    bench.reads(1..2);
    assert_eq!(bench.poll_tokens(), [0, 1]);
}

#[test]
fn exactly_so_many_payloads_are_flipped() {
    let mut bench = Bench::new("flip:n=5,every=2");
    bench.reads(0..16);
    assert_eq!(bench.poll().len(), 16);
    assert_eq!((0..16).filter(|t| !bench.verified(*t)).count(), 5);
}

#[test]
fn a_flipped_write_harms_storage_and_not_the_callers_memory() {
    let mut bench = Bench::new("flip:op=write");
    pattern::fill_region(&bench.memory, 0, IO, 0, 2);
    bench.submit(0, Op::Write);
    assert!(bench.poll()[0].status.is_success());
    assert_eq!(pattern::check_region(&bench.memory, 0, IO, 0, 2), Ok(()));
    let landed = pattern::check_region(bench.storage.region(), 0, IO, 0, 2);
    assert_eq!(landed.expect_err("a flipped bit").bytes, 1);
}

#[test]
fn a_torn_write_lands_in_part_and_fails() {
    let mut bench = Bench::new("torn");
    pattern::fill_region(&bench.memory, 0, IO, 0, 2);
    bench.submit(0, Op::Write);
    let found = bench.poll();
    assert_eq!((found[0].status, found[0].bytes), (status::WRITE_FAULT, 0));
    let landed = (0..8).take_while(|b| {
        pattern::check_region(bench.storage.region(), b * 512, 512, *b as u64 * 512, 2).is_ok()
    });
    let landed = landed.count();
    assert!((1..8).contains(&landed), "{landed} of 8 blocks");
    let rest = landed * 512;
    let kept = pattern::check_region(bench.storage.region(), rest, IO - rest, rest as u64, 1);
    assert_eq!(kept, Ok(()), "old data behind what landed");
}

#[test]
fn a_stuck_queue_fills_up_until_it_is_quiesced() {
    let mut bench = Bench::new("stuck:n=1,every=3");
    bench.reads(0..16);
    assert_eq!(bench.poll_tokens(), [0, 1]);
    assert_eq!(bench.queue.in_flight(), 14);
    bench.reads(16..18);
    let request = Lent {
        token: 99,
        op: Op::Flush,
        offset: 0,
        bytes: 0,
        memory: &bench.memory,
        memory_offset: 0,
    };
    assert!(matches!(bench.queue.try_submit(request), Err(Rejected::QueueFull)));
    bench.queue.cancel(17);
    assert_eq!(bench.poll(), [ended(17, status::ABORT_REQUESTED)]);
    let mut found = Vec::new();
    bench.queue.quiesce(&mut found);
    assert_eq!(found.len(), 15);
    assert!(found.iter().all(|c| c.status == status::ABORT_REQUESTED));
    assert_eq!(bench.queue.in_flight(), 0);
    bench.reads(20..22);
    assert_eq!(bench.poll_tokens(), [20, 21], "usable again");
}

#[test]
fn a_reset_ends_what_is_in_flight_on_every_queue() {
    let mut bench = Bench::new("lost:n=2,every=1;reset:every=1,n=1,after=2");
    let options = QueueOptions { depth: DEPTH, registered: Vec::new() };
    let mut other = bench.faulty.open_queue(&options).unwrap();
    std::mem::swap(&mut bench.queue, &mut other);
    bench.reads(0..1);
    assert!(bench.poll().is_empty(), "lost");
    std::mem::swap(&mut bench.queue, &mut other);
    bench.reads(1..3);
    let mut tokens = bench.poll();
    tokens.sort_by_key(|c| c.token);
    assert_eq!(tokens.iter().map(|c| c.token).collect::<Vec<_>>(), [1, 2]);
    std::mem::swap(&mut bench.queue, &mut other);
    assert_eq!(bench.poll(), [ended(0, status::ABORTED_QUEUE_DELETED)]);
    bench.reads(3..5);
    assert_eq!(bench.poll_tokens(), [3, 4], "usable again");
}

#[test]
fn injected_faults_are_counted() {
    let mut bench = Bench::new("error:n=3,every=1");
    bench.reads(0..8);
    let failed = bench.poll().iter().filter(|c| !c.status.is_success()).count();
    assert_eq!(failed, 3);
    assert_eq!(bench.faulty.injector().injected(crate::faults::FaultKind::Error), 3);
}

/// Storage whose queues are narrower than asked for, so that they are full when they should not be.
struct Narrow(MemoryStorage);

impl Storage for Narrow {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn open_queue(&self, _options: &QueueOptions) -> Result<Box<dyn StorageQueue>, StorageError> {
        self.0.open_queue(&QueueOptions { depth: 1, registered: Vec::new() })
    }
    fn explain(&self) -> String {
        self.0.explain()
    }
}

#[test]
fn what_the_inner_queue_has_no_room_for_is_decided_once() {
    let disk = MemoryStorage::new(64 * IO).unwrap().with_block_bytes(512);
    let region = disk.region().clone();
    let script = "flip:op=write,n=2,every=1;torn:n=2,every=1,after=2".parse().unwrap();
    let faulty = Faulty::new(Arc::new(Narrow(disk)), &script, Arc::new(|| 0));
    let mut queue = faulty.open_queue(&QueueOptions { depth: 8, registered: Vec::new() }).unwrap();
    let memory = Region::map_anonymous(6 * IO, MemoryKind::Host).unwrap();
    pattern::fill_region(&memory, 0, 6 * IO, 0, 3);
    let mut found = Vec::new();
    for (token, at) in (0..6).zip((0..).step_by(IO)) {
        let request = Lent {
            token,
            op: Op::Write,
            offset: token * IO as u64,
            bytes: 4096,
            memory: &memory,
            memory_offset: at,
        };
        while let Err(rejected) = queue.try_submit(request) {
            assert_eq!(rejected, Rejected::QueueFull);
            queue.poll(&mut found);
        }
    }
    queue.poll(&mut found);
    let torn = found.iter().filter(|c| c.status == status::WRITE_FAULT).count();
    let whole = |i: &usize| pattern::check_region(&region, i * IO, IO, (i * IO) as u64, 3).is_ok();
    assert_eq!((found.len(), torn, (0..6).filter(whole).count()), (6, 2, 2));
}
