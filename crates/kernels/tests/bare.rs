//! A ring that nobody serves, made by hand: what lanes publish, and how they leave when no answer
//! comes.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use abi::bench::{ProbeArgs, ProbeResult};
use abi::ring::{
    ABI_VERSION, BufferView, CompletionRecord, Id, OP_CANCEL, OP_READ, RING_MAGIC, ROUTE_PUSH,
    ROUTE_WINDOW, RequestEntry, RingControl, RingView, STATE_CLOSED, STATE_OPEN, SourceView,
};
use abi::status;
use gpu::{Gpu, Kernel, LaunchShape, SimulatedGpu, SimulatedOptions};
use mem::{MemoryKind, Region};
use sidecore_kernels as kernels;
use zerocopy::{FromZeros, IntoBytes};

const RECORDS: u32 = 64;
const FETCHED_AT: usize = std::mem::offset_of!(RingControl, fetched);
const STATE_AT: usize = std::mem::offset_of!(RingControl, state);
const RECORDS_AT: usize = size_of::<RingControl>();
const TURNS_AT: usize = RECORDS_AT + RECORDS as usize * 8;

struct Bare {
    gpu: SimulatedGpu,
    entries: Region,
    device: Region,
    view: RingView,
    results: Region,
    buffer: Region,
}

fn host(bytes: usize) -> Region {
    Region::map_anonymous(bytes, MemoryKind::Host).unwrap()
}

impl Bare {
    fn new(depth_log2: u32, start_ticket: u64, start_turn: u32) -> Self {
        let entries = host((1 << depth_log2) * 32);
        let device = host(TURNS_AT + RECORDS as usize * 4);
        device.u64_at(0).store(start_ticket, Ordering::Relaxed);
        device.u64_at(FETCHED_AT).store(start_ticket, Ordering::Relaxed);
        for record in 0..RECORDS as usize {
            device.u32_at(TURNS_AT + record * 4).store(start_turn, Ordering::Relaxed);
        }
        let view = RingView {
            magic: RING_MAGIC,
            version: ABI_VERSION,
            bytes: 80,
            depth_log2,
            entries: entries.address(),
            control: device.address(),
            records: device.address() + RECORDS_AT as u64,
            turns: device.address() + TURNS_AT as u64,
            staging: 0,
            staging_stride: 4096,
            record_count: RECORDS,
            read_route: ROUTE_WINDOW,
            write_route: ROUTE_PUSH,
            limit_ms: 20,
            reserved: 0,
        };
        let gpu = SimulatedGpu::new(SimulatedOptions::default());
        let results = host(RECORDS as usize * size_of::<ProbeResult>());
        let bare = Self { gpu, entries, device, view, results, buffer: host(1 << 20) };
        for record in 0..RECORDS {
            bare.complete(record, u16::try_from(start_turn & 0xffff).unwrap(), 0);
        }
        bare.state(STATE_OPEN, 1);
        bare
    }

    fn complete(&self, record: u32, turn: u16, status: u16) {
        let word = CompletionRecord::pack(turn, status, 0).word;
        self.device.u64_at(RECORDS_AT + record as usize * 8).store(word, Ordering::Release);
    }

    fn state(&self, state: u32, epoch: u32) {
        let word = u64::from(state) | u64::from(epoch) << 32;
        self.device.u64_at(STATE_AT).store(word, Ordering::Release);
    }

    fn tail(&self) -> u64 {
        self.device.u64_at(0).load(Ordering::Acquire)
    }

    fn start(&self, kernel: &Kernel, lanes: u32, patience: Duration) -> Box<dyn gpu::Launch> {
        let ns = u64::try_from(patience.as_nanos()).unwrap();
        let args = ProbeArgs {
            ring: self.view,
            source: SourceView {
                bytes: 1 << 20,
                address: 0,
                id: Id::new(3, 5).bits(),
                block_bytes: 1,
            },
            buffer: BufferView {
                address: self.buffer.address(),
                bytes: 1 << 20,
                id: Id::new(7, 9).bits(),
                reserved: 0,
            },
            results: self.results.address(),
            patience_ns: ns,
            timeout_ns: ns,
            rounds: 1,
            bytes: 64,
            shift: 0,
            seed: 3,
        };
        let shape = LaunchShape { blocks: 1, threads_per_block: lanes, shared_bytes: 0 };
        self.gpu.launch(kernel, shape, args.as_bytes()).unwrap()
    }

    fn finish(&self, mut launch: Box<dyn gpu::Launch>, lanes: u32) -> Vec<ProbeResult> {
        launch.wait(Duration::from_secs(60)).expect("no hang").unwrap();
        let mut results = vec![ProbeResult::new_zeroed(); lanes as usize];
        self.results.read_bytes(0, results.as_mut_bytes());
        assert!(results.iter().all(|r| r.finished == 1));
        results
    }

    /// The entry of a ticket, as a side core would take it; a reserved one is published soon.
    fn entry(&self, ticket: u64) -> RequestEntry {
        let depth = u64::from(self.depth());
        let at = usize::try_from(ticket % depth).unwrap() * 32;
        let tag = (ticket >> self.view.depth_log2).wrapping_add(1) & 0xffff;
        wait_for(|| [8, 24].iter().all(|w| self.word(at + w) >> 48 == tag));
        RequestEntry { w: [0, 8, 16, 24].map(|w| self.word(at + w)) }
    }

    fn word(&self, at: usize) -> u64 {
        self.entries.u64_at(at).load(Ordering::Acquire)
    }

    fn depth(&self) -> u32 {
        1 << self.view.depth_log2
    }

    fn wait_for_tail(&self, tail: u64) {
        wait_for(|| self.tail() == tail);
    }
}

fn wait_for(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "in vain");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A patience that no test outlasts.
const LONG: Duration = Duration::from_secs(3600);

#[test]
fn any_number_of_lanes_publishes_whole_entries_side_by_side() {
    for lanes in 1..=33u32 {
        for start in [0, (1 << 22) - 7, u64::MAX - 3] {
            let bare = Bare::new(6, start, 0xffff_fffe);
            let launch = bare.start(&kernels::PROBE_ABANDON, lanes, LONG);
            bare.finish(launch, lanes);
            assert_eq!(bare.tail(), start.wrapping_add(lanes.into()));
            let mut seen = BTreeMap::new();
            for n in 0..u64::from(lanes) {
                let r = bare.entry(start.wrapping_add(n)).unpack();
                assert_eq!((r.opcode, r.length, r.record_turn), (OP_READ, 64, 0xffff), "{r:?}");
                assert_eq!((r.source, r.buffer), (Id::new(3, 5), Id::new(7, 9)));
                assert_eq!(r.buffer_offset, u64::from(r.record) * 128 + 32, "{r:?}");
                assert!(seen.insert(r.record, r.source_offset).is_none(), "{r:?} twice");
            }
            assert_eq!(seen.len(), lanes as usize);
        }
    }
}

#[test]
fn a_full_ring_takes_no_more_and_the_rest_may_leave() {
    for depth_log2 in 1..=4u32 {
        let bare = Bare::new(depth_log2, u64::MAX - 1, 5);
        let launch = bare.start(&kernels::PROBE_ABANDON, 32, Duration::from_millis(2));
        let results = bare.finish(launch, 32);
        let taken = 1 << depth_log2;
        let pending = results.iter().filter(|r| r.pending == 1).count();
        let without = results.iter().filter(|r| r.status == status::NOT_SUBMITTED.into()).count();
        assert_eq!((pending, without), (taken, 32 - taken));
        assert_eq!(bare.tail(), (u64::MAX - 1).wrapping_add(taken as u64));
        // When the entries have been copied out, exactly as many more fit.
        bare.device.u64_at(FETCHED_AT).store(bare.tail(), Ordering::Release);
        let launch = bare.start(&kernels::PROBE_ABANDON, 32, Duration::from_millis(2));
        let again = bare.finish(launch, 32);
        assert_eq!(again.iter().filter(|r| r.busy == 1).count(), taken, "still in flight");
        assert_eq!(again.iter().filter(|r| r.pending == 1).count(), taken.min(32 - taken));
    }
}

#[test]
fn a_lane_without_a_slot_publishes_as_soon_as_one_is_free() {
    let bare = Bare::new(1, 0, 0);
    let launch = bare.start(&kernels::PROBE_ABANDON, 32, LONG);
    for fetched in (2..=30).step_by(2) {
        bare.wait_for_tail(fetched);
        for ticket in fetched - 2..fetched {
            bare.entry(ticket);
        }
        bare.device.u64_at(FETCHED_AT).store(fetched, Ordering::Release);
    }
    bare.finish(launch, 32);
    assert_eq!(bare.tail(), 32);
}

#[test]
fn waiters_leave_when_the_ring_is_closed() {
    let bare = Bare::new(6, 0, 0);
    let launch = bare.start(&kernels::PROBE_READ, 32, LONG);
    bare.wait_for_tail(u64::from(32 - leaving(&bare)));
    // One was answered before the ring was closed, and must hear of that.
    let answered = bare.entry(0).unpack();
    bare.complete(answered.record, answered.record_turn, 0x281);
    bare.state(STATE_CLOSED, 1);
    let results = bare.finish(launch, 32);
    for (lane, r) in results.iter().enumerate() {
        let asked = r.failed == 1;
        let status = if lane == answered.record as usize { 0x281 } else { status::RING_CLOSED };
        assert!(!asked || r.status == u32::from(status), "lane {lane}: {r:?}");
    }
    // Nobody gets in any more, or waits to.
    let launch = bare.start(&kernels::PROBE_ABANDON, 64, LONG);
    let results = bare.finish(launch, 64);
    let refused = |r: &&ProbeResult| r.status == status::RING_CLOSED.into();
    assert!(results.iter().filter(refused).count() >= 32, "{results:?}");
    assert!(results.iter().all(|r| r.pending == 0), "{results:?}");
}

/// Lanes of 32 that leave before their first request: those have finished without asking.
fn leaving(bare: &Bare) -> u32 {
    // The same launch on a ring of its own, with all answered by its being closed at once.
    let other = Bare::new(bare.view.depth_log2, 0, 0);
    other.state(STATE_CLOSED, 1);
    let launch = other.start(&kernels::PROBE_READ, 32, LONG);
    let results = other.finish(launch, 32);
    32 - results.iter().map(|r| r.failed).sum::<u32>()
}

#[test]
fn waiters_leave_when_a_new_epoch_brings_no_answer() {
    let bare = Bare::new(6, 0, 0);
    let launch = bare.start(&kernels::PROBE_READ, 32, LONG);
    bare.wait_for_tail(u64::from(32 - leaving(&bare)));
    let first = bare.entry(0).unpack();
    bare.state(STATE_OPEN, 2);
    let start = Instant::now();
    bare.complete(first.record, first.record_turn, status::TIMED_OUT);
    let results = bare.finish(launch, 32);
    assert!(start.elapsed() >= Duration::from_millis(40), "twice the ring's limit");
    for (lane, r) in results.iter().enumerate().filter(|(_, r)| r.failed == 1) {
        let own = lane == first.record as usize;
        let want = if own { status::TIMED_OUT } else { status::SIDE_CORE_LOST };
        assert_eq!(r.status, u32::from(want), "lane {lane}");
    }
}

#[test]
fn a_cancel_names_the_record_in_its_turn() {
    let bare = Bare::new(4, 0, 0xffff);
    let launch = bare.start(&kernels::PROBE_GIVE_UP, 1, Duration::from_millis(1));
    // The read; then its cancel, since the second read finds the record busy.
    bare.wait_for_tail(2);
    let read = bare.entry(0).unpack();
    let cancel = bare.entry(1).unpack();
    assert_eq!((read.opcode, read.record_turn), (OP_READ, 0));
    assert_eq!((cancel.opcode, cancel.record, cancel.record_turn), (OP_CANCEL, 0, 0));
    bare.complete(0, 0, status::CANCELLED);
    let seen = bare.finish(launch, 1)[0];
    assert_eq!((seen.busy, seen.failed, seen.status), (1, 1, status::CANCELLED.into()), "{seen:?}");
}
