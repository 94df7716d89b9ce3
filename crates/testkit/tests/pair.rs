//! Driver and controller against an oracle, fault by fault and seed by seed.
//!
//! Each token owns an area of the disk and a slot of memory, so that what a request may change is
//! known whatever the others do. After each end the disk is compared with what it held before and
//! with the payload: every block is one or the other, and which one follows from the status.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use driver::{Ended, Op};
use sidecore_testkit::pair::{BLOCK, Pair, PairOptions, SLOT};
use sidecore_testkit::pattern;
use spec::Status;
use storage::faults::FaultKind;

const MS: u64 = 1_000_000;
const IOS: u64 = 1000;
const AREA_BLOCKS: u64 = (SLOT / BLOCK) as u64;

/// A request as its owner remembers it.
struct Open {
    op: Op,
    lba: u64,
    blocks: u32,
    before: Vec<u8>,
    sent: Vec<u8>,
}

/// What the run came to.
#[derive(Default, Debug)]
struct Tally {
    by_status: BTreeMap<u16, u64>,
    flipped_bits: u64,
    torn: u64,
}

impl Tally {
    fn of(&self, status: Status) -> u64 {
        self.by_status
            .iter()
            .filter(|(bits, _)| Status::from_bits(**bits).is(status))
            .map(|s| s.1)
            .sum()
    }

    fn ended(&self) -> u64 {
        self.by_status.values().sum()
    }
}

struct Run {
    pair: Pair,
    open: BTreeMap<u64, Open>,
    idle: Vec<u64>,
    tally: Tally,
    generation: u64,
}

fn bits(one: &[u8], other: &[u8]) -> u64 {
    one.iter().zip(other).map(|(a, b)| u64::from((a ^ b).count_ones())).sum()
}

fn bytes_of(memory: &mem::Region, offset: usize, bytes: usize) -> Vec<u8> {
    let mut copy = vec![0; bytes];
    memory.read_bytes(offset, &mut copy);
    copy
}

impl Run {
    fn new(options: &PairOptions) -> Self {
        let pair = Pair::new(options);
        let idle = (0..u64::from(options.depth)).collect();
        Self { pair, open: BTreeMap::new(), idle, tally: Tally::default(), generation: 1 }
    }

    fn disk(&self, lba: u64, blocks: u32) -> Vec<u8> {
        bytes_of(&self.pair.disk, usize::try_from(lba).unwrap() * BLOCK, blocks as usize * BLOCK)
    }

    fn slot(&self, token: u64, blocks: u32) -> Vec<u8> {
        let at = usize::try_from(token).unwrap() * SLOT;
        bytes_of(self.pair.payload.region(), at, blocks as usize * BLOCK)
    }

    fn send_one(&mut self, limit_ns: u64) -> bool {
        let Some(token) = self.idle.last().copied() else { return false };
        let blocks = 1 + u32::try_from(self.pair.draw(AREA_BLOCKS)).unwrap();
        let lba = token * AREA_BLOCKS + self.pair.draw(AREA_BLOCKS - u64::from(blocks) + 1);
        let op = if self.pair.draw(2) == 0 { Op::Read } else { Op::Write };
        let mut payload = vec![0xdb; blocks as usize * BLOCK];
        if op == Op::Write {
            self.generation += 1;
            pattern::fill(&mut payload, lba * BLOCK as u64, self.generation);
        }
        let at = usize::try_from(token).unwrap() * SLOT;
        self.pair.payload.region().write_bytes(at, &payload);
        if !self.pair.try_submit(token, op, lba, blocks, limit_ns) {
            return false;
        }
        self.idle.pop();
        let before = self.disk(lba, blocks);
        assert!(self.open.insert(token, Open { op, lba, blocks, before, sent: payload }).is_none());
        true
    }

    fn take(&mut self, ended: Ended) {
        let open = self.open.remove(&ended.token).expect("each request ends once");
        *self.tally.by_status.entry(ended.status.bits()).or_default() += 1;
        let now = self.disk(open.lba, open.blocks);
        let delivered = self.slot(ended.token, open.blocks);
        match (open.op, ended.status.is_success()) {
            (Op::Read, good) => {
                assert!(now == open.before, "a read changes no disk");
                let wrong = bits(&delivered, &now);
                assert!(!good || wrong <= 1, "at most the flipped bit");
                self.tally.flipped_bits += if good { wrong } else { 0 };
            }
            (_, true) => {
                assert!(delivered == open.sent, "a write changes no memory");
                let wrong = bits(&now, &open.sent);
                assert!(wrong <= 1, "at most the flipped bit");
                self.tally.flipped_bits += wrong;
            }
            (_, false) => self.check_failed_write(&open, &now, ended.status),
        }
        self.idle.push(ended.token);
    }

    fn check_failed_write(&mut self, open: &Open, now: &[u8], status: Status) {
        let block = |bytes: &[u8], n: usize| bytes[n * BLOCK..(n + 1) * BLOCK].to_vec();
        let landed: Vec<bool> = (0..open.blocks as usize)
            .map(|n| {
                let (now, sent) = (block(now, n), block(&open.sent, n));
                assert!(now == sent || now == block(&open.before, n), "the old or the new block");
                now == sent
            })
            .collect();
        let prefix = landed.iter().take_while(|landed| **landed).count();
        assert!(landed[prefix..].iter().all(|landed| !landed), "a prefix: {landed:?}");
        if status.is(Status::WRITE_FAULT) {
            assert!(prefix < open.blocks as usize, "torn writes do not land whole");
            self.tally.torn += 1;
        } else if status.is(Status::UNRECOVERED_READ_ERROR) {
            assert_eq!(prefix, 0, "an error moves nothing");
        }
    }

    /// Does `count` requests to their ends.
    fn go(&mut self, count: u64, limit_ns: u64) {
        let (mut sent, goal) = (0, self.tally.ended() + count);
        let mut since_ns = self.pair.now_ns;
        while self.tally.ended() < goal {
            while sent < count && self.pair.draw(3) > 0 && self.send_one(limit_ns) {
                sent += 1;
            }
            self.pair.step();
            for ended in std::mem::take(&mut self.pair.ended) {
                self.take(ended);
                since_ns = self.pair.now_ns;
            }
            if self.pair.now_ns > since_ns + 60_000 * MS {
                let stand = self.pair.drive_bounded(0, |_| false).expect_err("never done");
                panic!("{} of {goal}: {}", self.tally.ended(), stand.report);
            }
        }
        // Nothing comes afterwards, however long one waits.
        assert!(self.open.is_empty());
        let silence = self.pair.drive_bounded(3_000 * MS, |pair| !pair.ended.is_empty());
        assert!(silence.is_err(), "{:?}", self.pair.ended);
    }
}

/// Runs a script under some seeds; each run ends with good I/O on the same queue.
fn each_seed(faults: &str, limit_ms: u64, check: impl Fn(&Run, &str)) {
    for seed in 0..4 {
        let options = PairOptions { seed, faults: faults.to_owned(), ..PairOptions::default() };
        let mut run = Run::new(&options);
        run.go(IOS, limit_ms * MS);
        let what = format!("seed {seed}: {faults}: {:?}", run.tally);
        assert_eq!(run.tally.ended(), IOS, "{what}");
        check(&run, &what);
        let before = run.tally.of(Status::SUCCESS);
        run.go(50, 1_000 * MS);
        assert_eq!(run.tally.of(Status::SUCCESS), before + 50, "usable afterwards: {what}");
    }
}

fn all_good_but(run: &Run, bad: u64, what: &str) {
    assert_eq!(run.tally.of(Status::SUCCESS), IOS - bad, "{what}");
}

#[test]
fn without_faults_all_is_well() {
    each_seed("", 1_000, |run, what| {
        all_good_but(run, 0, what);
        assert_eq!((run.tally.flipped_bits, run.pair.misbehaved), (0, 0), "{what}");
        assert_eq!(run.pair.queue.counters().recoveries, 0, "{what}");
    });
}

#[test]
fn errors_surface_as_often_as_they_are_injected() {
    each_seed("error:n=30,status=2/81", 1_000, |run, what| {
        assert_eq!(run.pair.faults.injected(FaultKind::Error), 30, "{what}");
        assert_eq!(run.tally.of(Status::UNRECOVERED_READ_ERROR), 30, "{what}");
        all_good_but(run, 30, what);
    });
}

#[test]
fn flips_are_one_bit_each() {
    each_seed("flip:n=64", 1_000, |run, what| {
        assert_eq!(run.pair.faults.injected(FaultKind::Flip), 64, "{what}");
        assert_eq!(run.tally.flipped_bits, 64, "{what}");
        all_good_but(run, 0, what);
    });
}

#[test]
fn torn_writes_are_reported() {
    each_seed("torn:n=30", 1_000, |run, what| {
        assert_eq!(run.pair.faults.injected(FaultKind::Torn), 30, "{what}");
        assert_eq!(run.tally.torn, 30, "{what}");
        all_good_but(run, 30, what);
    });
}

#[test]
fn late_completions_in_time_are_ordinary_and_too_late_ones_are_aborted() {
    each_seed("late:n=20,ms=20", 1_000, |run, what| {
        assert_eq!(run.pair.faults.injected(FaultKind::Late), 20, "{what}");
        all_good_but(run, 0, what);
    });
    each_seed("late:n=20,ms=100000", 100, |run, what| {
        assert_eq!(run.pair.faults.injected(FaultKind::Late), 20, "{what}");
        assert_eq!(run.tally.of(Status::ABORT_REQUESTED), 20, "{what}");
        all_good_but(run, 20, what);
        assert_eq!(run.pair.queue.counters().recoveries, 0, "Abort is enough: {what}");
    });
}

#[test]
fn duplicates_are_noticed_and_harm_nobody() {
    each_seed("duplicate:n=30", 1_000, |run, what| {
        assert_eq!(run.pair.faults.injected(FaultKind::Duplicate), 30, "{what}");
        assert_eq!(run.pair.queue.counters().misbehaved, 30, "{what}");
        all_good_but(run, 0, what);
    });
}

#[test]
fn lost_ones_end_by_their_deadline() {
    each_seed("lost:n=20", 100, |run, what| {
        assert_eq!(run.pair.faults.injected(FaultKind::Lost), 20, "{what}");
        assert_eq!(run.tally.of(Status::ABORTED_BY_HOST), 20, "{what}");
        all_good_but(run, 20, what);
        assert!(run.pair.queue.counters().recoveries > 0, "{what}");
        assert_eq!(run.pair.driver.resets(), 0, "{what}");
    });
}

#[test]
fn stuck_queues_are_made_again() {
    each_seed("stuck:n=2,every=200", 100, |run, what| {
        assert_eq!(run.pair.faults.injected(FaultKind::Stuck), 2, "{what}");
        assert!(run.pair.queue.counters().recoveries >= 2, "{what}");
        let bad = IOS - run.tally.of(Status::SUCCESS);
        let given_up = run.tally.of(Status::ABORTED_BY_HOST);
        assert!(given_up >= 1 && bad == given_up, "{what}");
    });
}

#[test]
fn resets_are_survived() {
    for reset in [ctrl::ResetFault::Fatal, ctrl::ResetFault::SelfReset] {
        for seed in 0..4 {
            let faults = "reset:n=2,every=300".to_owned();
            let options = PairOptions { seed, faults, reset, ..PairOptions::default() };
            let mut run = Run::new(&options);
            run.go(IOS, 10_000 * MS);
            let what = format!("seed {seed}: {reset:?}: {:?}", run.tally);
            assert_eq!(run.pair.faults.injected(FaultKind::Reset), 2, "{what}");
            assert!(run.pair.driver.resets() >= 2, "{what}");
            all_good_but(&run, 0, &what);
        }
    }
}

/// One seed is one run: the same times, the same counts; another seed is another run.
#[test]
fn a_seed_is_a_run() {
    let run = |seed| {
        let faults = "late:rate=0.1,ms=3;error:rate=0.05;lost:n=3,every=100".to_owned();
        let timing = "iops=50000,latency=lognormal:80us:0.3".parse().unwrap();
        let options = PairOptions { seed, faults, timing, ..PairOptions::default() };
        let mut run = Run::new(&options);
        run.go(300, 100 * MS);
        (run.pair.now_ns, format!("{:?}", run.tally), run.pair.controller.counters().read())
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5).0, run(6).0);
}
