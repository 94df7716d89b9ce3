//! Every kind of fault: what was injected is what the host sees, and nobody else is harmed.
#![forbid(unsafe_code)]

mod host;

use std::collections::BTreeMap;
use std::sync::Arc;

use host::{CC, CC_ENABLED, CSTS, Done, Host, Pair, abort, delete_cq, delete_sq, read, write};
use sidecore_ctrl::{Options, Progress, ResetFault};
use storage::faults::{FaultKind, Injector};
use storage::{MemoryStorage, Storage, pattern};

const BYTES: usize = 8 << 20;
const IOS: u64 = 1000;

struct Rig {
    host: Host,
    pair: Pair,
    faults: Arc<Injector>,
    storage: Arc<MemoryStorage>,
}

fn rig(script: &str, change: impl FnOnce(&mut Options)) -> Rig {
    let storage = Arc::new(MemoryStorage::new(BYTES).expect("memory"));
    pattern::fill_region(storage.region(), 0, BYTES, 0, 1);
    let mut options = Options::over(Arc::clone(&storage) as Arc<dyn Storage>);
    let faults = Arc::new(Injector::new(&script.parse().expect("a script"), 512));
    options.namespaces[0].faults = Some(Arc::clone(&faults));
    change(&mut options);
    let mut host = Host::ready(options);
    let pair = host.pair(1, 64, 256);
    Rig { host, pair, faults, storage }
}

/// Block range of the n-th I/O, and its place in the data memory.
fn place(n: u64) -> (u64, usize) {
    (n % 1000 * 8, usize::try_from(n % 16).expect("small") * 4096)
}

impl Rig {
    /// Sends an I/O, and returns all completions that came.
    fn one(&mut self, n: u64, writes: bool) -> (u16, Vec<Done>) {
        let (lba, at) = place(n);
        if writes {
            pattern::fill_region(&self.host.data, at, 4096, lba * 512, 2);
        } else {
            self.host.data.fill(at, 4096, 0xdb);
        }
        let address = self.host.at(at);
        let entry = if writes { write(lba, 8, address, 0) } else { read(lba, 8, address, 0) };
        let id = self.host.send(&mut self.pair, entry);
        self.host.settle();
        (id, self.ends())
    }

    fn ends(&mut self) -> Vec<Done> {
        let mut ends = Vec::new();
        while let Some(done) = self.host.take(&mut self.pair) {
            ends.push(done);
        }
        ends
    }

    fn delivered(&self, n: u64) -> bool {
        let (lba, at) = place(n);
        pattern::check_region(&self.host.data, at, 4096, lba * 512, 1).is_ok()
    }

    fn stored(&self, n: u64) -> Vec<bool> {
        let at = usize::try_from(place(n).0).expect("small") * 512;
        let good = |block: usize| {
            let at = at + block * 512;
            pattern::check_region(self.storage.region(), at, 512, at as u64, 2).is_ok()
        };
        (0..8).map(good).collect()
    }
}

#[test]
fn errors_come_with_their_status_and_move_nothing() {
    let mut rig = rig("error:n=50,status=2/81", |_| {});
    let mut failed = 0;
    for n in 0..IOS {
        let (id, ends) = rig.one(n, false);
        assert_eq!(ends.len(), 1);
        assert_eq!(ends[0].command, id);
        if ends[0].status == 0x281 {
            failed += 1;
            let at = place(n).1;
            assert_eq!(rig.host.bytes(at, 4096), vec![0xdb; 4096]);
        } else {
            assert_eq!(ends[0].status, 0);
            assert!(rig.delivered(n));
        }
    }
    assert_eq!((failed, rig.faults.injected(FaultKind::Error)), (50, 50));
    let counters = rig.host.controller.counters().read();
    assert_eq!((counters.io_failed, counters.io_succeeded), (50, 950));
}

#[test]
fn an_error_at_a_block_falls_on_that_block_only() {
    let mut rig = rig("error:lba=83,status=2/80", |_| {});
    for n in 0..100 {
        let (_, ends) = rig.one(n, true);
        let hit = place(n).0 == 80;
        assert_eq!(ends[0].status, if hit { 0x280 } else { 0 }, "{n}");
        assert_eq!(rig.stored(n), vec![!hit; 8]);
    }
    assert_eq!(rig.faults.injected_total(), 1);
}

#[test]
fn late_ones_come_late_and_only_they() {
    let mut rig = rig("late:n=20,ms=10", |_| {});
    let mut late = BTreeMap::new();
    for n in 0..IOS {
        rig.host.now_ns = n * 1_000;
        let (id, ends) = rig.one(n, false);
        match ends.as_slice() {
            [] => drop(late.insert(id, rig.host.now_ns)),
            [done] => assert_eq!((done.command, done.status), (id, 0)),
            more => panic!("{more:?}"),
        }
    }
    assert_eq!((late.len(), rig.faults.injected(FaultKind::Late)), (20, 20));
    while !late.is_empty() {
        rig.host.settle();
        let Progress::Waiting { until_ns: Some(due) } = rig.host.step() else {
            panic!("late commands are waited for");
        };
        rig.host.now_ns = due - 1;
        rig.host.settle();
        assert_eq!(rig.ends(), []);
        rig.host.now_ns = due;
        rig.host.settle();
        for done in rig.ends() {
            assert_eq!(late.remove(&done.command), Some(due - 10_000_000), "exactly 10 ms");
        }
    }
    rig.host.settle();
    assert_eq!(rig.host.step(), Progress::Idle);
}

#[test]
fn a_late_command_can_be_aborted() {
    let mut rig = rig("late:n=1,every=1,ms=1000", |_| {});
    let (id, ends) = rig.one(0, false);
    assert_eq!(ends, []);
    assert_eq!(rig.host.admin(abort(1, id)).result, 0);
    assert_eq!(rig.ends().iter().map(|d| d.status).collect::<Vec<_>>(), [0x007]);
    rig.host.now_ns += 2_000_000_000;
    rig.host.settle();
    assert_eq!(rig.ends(), [], "and nothing comes later");
}

#[test]
fn lost_ones_never_come_and_their_data_does() {
    let mut rig = rig("lost:n=50", |_| {});
    let mut lost = 0;
    for n in 0..IOS {
        let (id, ends) = rig.one(n, true);
        assert_eq!(rig.stored(n), [true; 8]);
        if ends.is_empty() {
            lost += 1;
            assert_eq!(rig.host.admin(abort(1, id)).result, 1, "the controller forgot it");
        }
    }
    rig.host.now_ns += 60_000_000_000;
    rig.host.settle();
    assert_eq!(rig.ends(), []);
    assert_eq!((lost, rig.faults.injected(FaultKind::Lost)), (50, 50));
    assert_eq!(rig.host.admin(delete_sq(1)).status, 0);
}

#[test]
fn duplicates_come_twice_with_the_same_identifier() {
    let mut rig = rig("duplicate:n=50", |_| {});
    let mut twice = 0;
    for n in 0..IOS {
        let (id, ends) = rig.one(n, false);
        assert!(ends.iter().all(|d| d.command == id && d.status == 0));
        twice += usize::from(ends.len() == 2);
        assert!(matches!(ends.len(), 1 | 2));
        assert!(rig.delivered(n));
    }
    assert_eq!((twice as u64, rig.faults.injected(FaultKind::Duplicate)), (50, 50));
}

#[test]
fn a_flip_changes_one_bit_where_the_data_goes_and_nowhere_else() {
    let mut rig = rig("flip:n=64", |_| {});
    for writes in [false, true] {
        let before = rig.faults.injected_total();
        let mut flipped = 0;
        for n in 0..IOS / 2 {
            let (_, ends) = rig.one(n, writes);
            assert_eq!(ends[0].status, 0);
            let (lba, at) = place(n);
            let mut got = rig.host.bytes(at, 4096);
            let mut want = vec![0; 4096];
            pattern::fill(&mut want, lba * 512, 1 + u64::from(writes));
            if writes {
                assert!(got == want, "the host's own memory stays as it was");
                let offset = usize::try_from(lba).expect("small") * 512;
                rig.storage.region().read_bytes(offset, &mut got);
            }
            let bits: u32 = got.iter().zip(&want).map(|(a, b)| (a ^ b).count_ones()).sum();
            assert!(bits <= 1);
            flipped += u64::from(bits);
        }
        assert_eq!(flipped, rig.faults.injected_total() - before);
        assert!(writes || flipped > 20);
    }
    assert_eq!(rig.faults.injected(FaultKind::Flip), 64);
    let stored = rig.storage.region();
    assert!(pattern::check_region(stored, 4_000 * 512, 4096, 4_000 * 512, 1).is_ok());
}

#[test]
fn torn_writes_land_a_prefix() {
    let mut rig = rig("torn:n=40", |_| {});
    let mut torn = 0;
    for n in 0..IOS {
        let (_, ends) = rig.one(n, true);
        let landed = rig.stored(n);
        let prefix = landed.iter().take_while(|good| **good).count();
        assert!(landed[prefix..].iter().all(|good| !good), "a prefix: {landed:?}");
        match ends[0].status {
            0 => assert_eq!(prefix, 8),
            0x280 => {
                torn += 1;
                assert!((1..8).contains(&prefix), "{prefix}");
            }
            other => panic!("{other:#x}"),
        }
    }
    assert_eq!((torn, rig.faults.injected(FaultKind::Torn)), (40, 40));
}

#[test]
fn a_stuck_queue_stops_alone_and_deleting_it_frees_it() {
    let mut rig = rig("stuck:n=1,every=3", |_| {});
    let mut other = rig.host.pair(2, 16, 16);
    for n in 0..2 {
        assert_eq!(rig.one(n, false).1.len(), 1);
    }
    let (held, ends) = rig.one(2, false);
    assert_eq!(ends, []);
    assert_eq!(rig.one(3, false).1, []);
    rig.host.now_ns += 60_000_000_000;
    let at = rig.host.at(0);
    assert_eq!(rig.host.io(&mut other, read(0, 8, at, 0)).status, 0, "the neighbour works");
    assert_eq!(rig.host.admin(abort(1, held)).result, 1, "Abort does not help");
    assert_eq!(rig.host.admin(delete_sq(1)).status, 0);
    let ends = rig.ends();
    assert_eq!(ends.iter().map(|d| (d.command, d.status)).collect::<Vec<_>>(), [(held, 0x008)]);
    assert_eq!(rig.host.admin(delete_cq(1)).status, 0);
    rig.pair = rig.host.pair(1, 16, 16);
    assert_eq!(rig.one(3, false).1.len(), 1);
    assert!(rig.delivered(3));
    assert_eq!(rig.faults.injected(FaultKind::Stuck), 1);
}

#[test]
fn an_injected_reset_is_fatal_until_the_host_resets() {
    let mut rig = rig("reset:n=1,every=3", |_| {});
    for n in 0..2 {
        assert_eq!(rig.one(n, false).1.len(), 1);
    }
    assert_eq!(rig.one(2, false).1, []);
    assert_eq!(rig.host.read(CSTS), 0b11, "CFS, still ready");
    assert!(rig.host.controller.failure().is_some());
    assert_eq!(rig.one(3, false).1, []);
    restart(&mut rig);
    assert_eq!(rig.one(3, false).1.len(), 1);
    assert!(rig.delivered(3));
    assert_eq!(rig.faults.injected(FaultKind::Reset), 1);
}

#[test]
fn a_controller_may_reset_itself() {
    let mut rig = rig("reset:n=1,every=3", |o| o.reset_fault = ResetFault::SelfReset);
    for n in 0..2 {
        assert_eq!(rig.one(n, false).1.len(), 1);
    }
    assert_eq!(rig.one(2, false).1, []);
    assert_eq!((rig.host.read(CSTS), rig.host.read(CC)), (0, 0));
    restart(&mut rig);
    assert_eq!(rig.one(3, false).1.len(), 1);
    assert!(rig.delivered(3));
}

fn restart(rig: &mut Rig) {
    rig.host.write(CC, CC_ENABLED & !1);
    rig.host.settle();
    assert_eq!(rig.host.read(CSTS), 0);
    rig.host.admin = Pair::new(&rig.host.map, 0, 32, 32);
    rig.host.write_wide(host::ASQ, rig.host.admin.sq.address());
    rig.host.write_wide(host::ACQ, rig.host.admin.cq.address());
    rig.host.enable();
    rig.pair = rig.host.pair(1, 16, 16);
}

/// The model's times as a host sees them: rate and latency, with commands in parallel.
#[test]
fn the_timing_model_is_what_the_host_measures() {
    let mut rig = rig("", |options| {
        options.timing = "iops=100000,latency=points:50:80us:99:200us:100:1ms".parse().expect("ok");
    });
    let mut sent_at = BTreeMap::new();
    let mut latencies = Vec::new();
    let (mut sent, mut n) = (0u64, 0u64);
    rig.host.now_ns = 0;
    while latencies.len() < 20_000 {
        while sent - (latencies.len() as u64) < 32 && sent < 20_000 {
            let (lba, at) = place(n);
            let address = rig.host.at(at);
            let id = rig.host.send(&mut rig.pair, read(lba, 8, address, 0));
            sent_at.insert(id, rig.host.now_ns);
            (sent, n) = (sent + 1, n + 1);
        }
        rig.host.step();
        rig.host.now_ns += 500;
        for done in rig.ends() {
            latencies.push(rig.host.now_ns - sent_at.remove(&done.command).expect("known"));
        }
    }
    // Thirty-two at once would be 350,000 a second by latency alone; the rate holds them.
    let rate = 20_000.0 / (rig.host.now_ns as f64 / 1e9);
    assert!((95_000.0..=100_500.0).contains(&rate), "{rate}");
    latencies.sort_unstable();
    assert!(latencies[0] >= 80_000, "{}", latencies[0]);
    let unloaded = latencies[latencies.len() * 99 / 100];
    assert!(unloaded > 200_000, "{unloaded}");
}
