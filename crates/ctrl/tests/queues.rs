//! Queues of every depth, full completion queues, abort, deletion, reset and shutdown.
#![forbid(unsafe_code)]

mod host;

use std::sync::{Arc, LazyLock};

use host::held::Held;
use host::{
    CC, CC_ENABLED, CSTS, Host, Pair, abort, delete_cq, delete_sq, entry, read, with, write,
};
use mem::MemoryKind;
use sidecore_ctrl::{NamespaceOptions, Options, Progress};
use storage::{MemoryStorage, Op, pattern};

const BYTES: usize = 8 << 20;

static STORED: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut bytes = vec![0; BYTES];
    pattern::fill(&mut bytes, 0, 1);
    bytes
});

fn memory() -> MemoryStorage {
    let storage = MemoryStorage::new(BYTES).expect("memory");
    storage.region().write_bytes(0, &STORED);
    storage
}

fn options() -> Options {
    Options::over(Arc::new(memory()))
}

fn held() -> (Options, Held) {
    let held = Held::new(memory());
    (Options::over(Arc::new(held.clone())), held)
}

/// Every depth wraps: each command is answered once, in order, with the right head and phase.
#[test]
fn every_depth_wraps_in_both_queues() {
    let mut host = Host::ready(options());
    let depths = (2..=17).chain([31, 32, 33, 100, 257]);
    for sq_depth in depths {
        for cq_depth in [2, 3, 5, 16, 33] {
            let mut pair = host.pair(1, sq_depth, cq_depth);
            let batch = (sq_depth - 1).min(cq_depth - 1);
            let mut sent = 0u32;
            while sent < 3 * sq_depth.max(cq_depth) {
                let ids: Vec<u16> = (0..batch)
                    .map(|n| {
                        let lba = u64::from((sent + n) % 1000);
                        let to = host.at((n as usize % 64) * 4096);
                        host.send(&mut pair, read(lba * 8, 8, to, 0))
                    })
                    .collect();
                host.settle();
                for id in ids {
                    let done = host.take(&mut pair).expect("an answer to each");
                    assert_eq!((done.command, done.status, done.queue), (id, 0, 1));
                    assert_eq!(u32::from(done.head), pair.tail, "all were fetched");
                }
                assert_eq!(pair.pop(), None, "and no more: SQ {sq_depth}, CQ {cq_depth}");
                let last = u64::from((sent + batch - 1) % 1000) * 4096;
                let at = ((batch - 1) as usize % 64) * 4096;
                pattern::check_region(&host.data, at, 4096, last, 1).expect("the block asked for");
                sent += batch;
            }
            assert_eq!(host.admin(delete_sq(1)).status, 0);
            assert_eq!(host.admin(delete_cq(1)).status, 0);
        }
    }
}

#[test]
fn the_largest_depth_holds_one_less_than_its_entries() {
    let (mut options, held) = held();
    options.commands_max = 1 << 16;
    options.storage_depth = 1 << 16;
    let mut host = Host::ready(options);
    let mut pair = host.pair(1, 1 << 16, 1 << 16);
    for _ in 0..(1 << 16) - 1 {
        // Identifiers are the positions, so that all differ.
        let id = pair.tail << 16;
        pair.push(&with(read(0, 1, host.at(0), 0), 0, id | 2));
    }
    host.ring(&pair);
    host.settle();
    assert_eq!(held.held(), 65_535);
    held.release(65_535);
    host.settle();
    for position in 0..65_535 {
        let done = pair.pop().expect("an answer to each");
        assert_eq!((u32::from(done.command), done.status), (position, 0));
    }
    assert_eq!(pair.pop(), None);
}

/// Many submission queues on one completion queue; queues in window memory.
#[test]
fn queues_may_share_completions_and_lie_in_window_memory() {
    let mut host = Host::ready(options());
    let mut first = host.pair(1, 8, 64);
    let mut second = Pair::new(&host.map, 2, 8, 2);
    let window = mem::Region::map_anonymous(8 * 64, MemoryKind::Window).expect("memory");
    host.map.register(window.clone()).expect("no overlap");
    second.sq = window;
    assert_eq!(host.create_sq(&second, 1).status, 0);
    let a = host.send(&mut first, read(0, 8, host.at(0), 0));
    let b = host.send(&mut second, read(8, 8, host.at(4096), 0));
    host.settle();
    let mut ends = [host.take(&mut first).expect("one"), host.take(&mut first).expect("two")];
    ends.sort_by_key(|d| d.queue);
    assert_eq!((ends[0].command, ends[0].queue, ends[1].command, ends[1].queue), (a, 1, b, 2));
    assert_eq!(host.admin(delete_sq(1)).status, 0);
    assert_eq!(host.admin(delete_cq(1)).status, 0x10c, "the second one still completes there");
    assert_eq!(host.admin(delete_sq(2)).status, 0);
    assert_eq!(host.admin(delete_cq(1)).status, 0);

    let mut pair = Pair::new(&host.map, 3, 8, 8);
    pair.cq = mem::Region::map_anonymous(8 * 16, MemoryKind::Window).expect("memory");
    host.map.register(pair.cq.clone()).expect("no overlap");
    assert_eq!(host.create_cq(&pair).status, 0);
    assert_eq!(host.create_sq(&pair, 3).status, 0);
    for _ in 0..20 {
        let at = host.at(0);
        assert_eq!(host.io(&mut pair, read(0, 8, at, 0)).status, 0);
    }
}

/// A host that does not consume completions loses none, and gets no more than fit.
#[test]
fn a_full_completion_queue_holds_everything_back_in_order() {
    let mut host = Host::ready(options());
    let mut pair = host.pair(1, 64, 4);
    let ids: Vec<u16> =
        (0..60).map(|n| host.send(&mut pair, read(n * 8, 8, host.at(0), 0))).collect();
    host.settle();
    let mut seen = Vec::new();
    for _ in 0..20 {
        // Three fit; they are taken, but the host is told only afterwards.
        for _ in 0..3 {
            seen.push(pair.pop().expect("three fit").command);
        }
        host.settle();
        assert_eq!(pair.pop(), None, "the controller never overwrites");
        host.ring_completion(&pair);
        host.settle();
    }
    assert_eq!(seen, ids);
    assert_eq!(pair.pop(), None);
    assert_eq!(host.controller.counters().read().completions, 60);
}

#[test]
fn a_full_queue_does_not_stop_its_neighbours() {
    let mut host = Host::ready(options());
    let mut full = host.pair(1, 16, 2);
    let mut other = host.pair(2, 16, 16);
    for _ in 0..10 {
        host.send(&mut full, read(0, 8, host.at(0), 0));
    }
    host.settle();
    for _ in 0..50 {
        let at = host.at(4096);
        assert_eq!(host.io(&mut other, read(8, 8, at, 0)).status, 0);
    }
    // While the neighbour keeps the controller busy, room in the full one is still noticed.
    assert!(full.pop().is_some());
    host.ring_completion(&full);
    host.send(&mut other, read(8, 8, host.at(4096), 0));
    host.step();
    assert!(full.pop().is_some(), "seen in a step that had other work");
}

#[test]
fn abort_ends_a_command_before_its_own_completion() {
    let (options, held) = held();
    let mut host = Host::ready(options);
    let mut pair = host.pair(1, 16, 16);
    let at = host.at(0);
    let first = host.send(&mut pair, read(0, 8, at, 0));
    let second = host.send(&mut pair, read(8, 8, at, 0));
    host.settle();
    let done = host.admin(abort(1, second));
    assert_eq!((done.status, done.result), (0, 0), "aborted");
    let end = host.take(&mut pair).expect("the target's end came first");
    assert_eq!((end.command, end.status), (second, 0x007));
    assert_eq!(host.admin(abort(1, second)).result, 1, "no longer there");
    held.release(1);
    host.settle();
    assert_eq!(host.take(&mut pair).map(|d| (d.command, d.status)), Some((first, 0)));
    assert_eq!(host.admin(abort(1, 0x7777)).result, 1, "never was there");
}

/// Base 5.1: where the command ends by itself first, the Abort says so; ACL bounds the Aborts.
#[test]
fn abort_of_what_cannot_be_stopped_waits_for_its_end() {
    let (options, held) = held();
    held.ignore_cancel();
    let mut host = Host::ready(options);
    let mut pair = host.pair(1, 16, 16);
    let ids: Vec<u16> =
        (0..5).map(|n| host.send(&mut pair, read(n * 8, 8, host.at(0), 0))).collect();
    host.settle();
    let aborts: Vec<u16> = ids[..4].iter().map(|id| host.send_admin(abort(1, *id))).collect();
    host.settle();
    assert_eq!(host.take_admin(), None, "no Abort ends before its target");
    let fifth = host.admin(abort(1, ids[4]));
    assert_eq!((fifth.status, fifth.do_not_retry), (0x103, false));
    held.release(5);
    host.settle();
    for id in &ids {
        assert_eq!(host.take(&mut pair).map(|d| (d.command, d.status)), Some((*id, 0)));
    }
    for id in aborts {
        assert_eq!(host.take_admin().map(|d| (d.command, d.result)), Some((id, 1)));
    }
    let last = host.send(&mut pair, read(0, 8, host.at(0), 0));
    host.settle();
    let waits = host.send_admin(abort(1, last));
    host.settle();
    held.release(1);
    host.settle();
    assert_eq!(host.take_admin().map(|d| d.command), Some(waits), "the limit is free again");
}

/// Who waits for a command to be gone does not wait for the time that a slow drive would take.
#[test]
fn abort_and_deletion_do_not_wait_for_the_timing_model() {
    let (mut options, held) = held();
    held.ignore_cancel();
    options.timing = "latency=50s".parse().expect("a model");
    let mut host = Host::ready(options);
    let mut pair = host.pair(1, 16, 16);
    let first = host.send(&mut pair, read(0, 8, host.at(0), 0));
    let second = host.send(&mut pair, read(8, 8, host.at(0), 0));
    let third = host.send(&mut pair, read(16, 8, host.at(0), 0));
    host.settle();
    let waits = host.send_admin(abort(1, first));
    held.release(2);
    host.settle();
    let end = host.take(&mut pair).expect("the storage is done with it");
    assert_eq!((end.command, end.status), (first, 0));
    assert_eq!(host.take_admin().map(|d| (d.command, d.result)), Some((waits, 1)));
    assert_eq!(host.take(&mut pair), None, "the second one takes its time");
    let deletes = host.send_admin(delete_sq(1));
    host.settle();
    assert_eq!(host.take(&mut pair).map(|d| (d.command, d.status)), Some((second, 0x008)));
    held.release(1);
    host.settle();
    assert_eq!(host.take(&mut pair).map(|d| (d.command, d.status)), Some((third, 0)));
    assert_eq!(host.take_admin().map(|d| d.command), Some(deletes));
}

#[test]
fn deleting_a_queue_ends_its_commands_first() {
    let (options, held) = held();
    let mut host = Host::ready(options);
    let mut pair = host.pair(1, 16, 16);
    let mut other = host.pair(2, 16, 16);
    let ids: Vec<u16> =
        (0..3).map(|n| host.send(&mut pair, read(n * 8, 8, host.at(0), 0))).collect();
    let innocent = host.send(&mut other, read(80, 8, host.at(4096), 0));
    host.settle();
    assert_eq!(host.admin(delete_sq(1)).status, 0);
    for id in ids {
        assert_eq!(host.take(&mut pair).map(|d| (d.command, d.status)), Some((id, 0x008)));
    }
    held.release(1);
    host.settle();
    assert_eq!(host.take(&mut other).map(|d| (d.command, d.status)), Some((innocent, 0)));
    assert_eq!(host.admin(delete_cq(1)).status, 0);
    // The same identifiers and the same memory work again, from their first entries.
    let mut again = host.pair(1, 4, 4);
    let id = host.send(&mut again, read(0, 8, host.at(0), 0));
    host.settle();
    held.release(1);
    host.settle();
    assert_eq!(host.take(&mut again).map(|d| (d.command, d.status)), Some((id, 0)));
}

#[test]
fn deleting_waits_for_storage_that_cannot_stop() {
    let (options, held) = held();
    held.ignore_cancel();
    let mut host = Host::ready(options);
    let mut pair = host.pair(1, 16, 16);
    host.send(&mut pair, read(0, 8, host.at(0), 0));
    host.settle();
    let delete = host.send_admin(delete_sq(1));
    host.settle();
    assert_eq!(host.take_admin(), None, "memory may still be written");
    held.release(1);
    host.settle();
    assert_eq!(host.take_admin().map(|d| (d.command, d.status)), Some((delete, 0)));
}

#[test]
fn a_reset_in_the_middle_drops_everything_and_touches_no_memory_afterwards() {
    let (options, held) = held();
    held.ignore_cancel();
    let mut host = Host::ready(options);
    let mut pair = host.pair(1, 16, 16);
    host.data.fill(0, 4096, 0xa5);
    host.send(&mut pair, read(0, 8, host.at(0), 0));
    host.settle();
    host.write(CC, CC_ENABLED & !1);
    for _ in 0..10 {
        host.step();
    }
    assert_eq!(host.read(CSTS) & 1, 1, "ready until the storage has let go");
    host.now_ns += 3_000_000_000;
    host.settle();
    assert_eq!((host.read(CSTS), held.quiesced()), (0, 1));
    assert_eq!(host.bytes(0, 4096), vec![0xa5; 4096]);
    assert_eq!(pair.pop(), None, "no completion after a reset");

    // From power-on again: admin queues at their first entries, no I/O queue.
    host.admin = Pair::new(&host.map, 0, 32, 32);
    host.write_wide(host::ASQ, host.admin.sq.address());
    host.write_wide(host::ACQ, host.admin.cq.address());
    host.enable();
    let mut pair = host.pair(1, 16, 16);
    let id = host.send(&mut pair, read(0, 8, host.at(0), 0));
    host.settle();
    held.release(1);
    host.settle();
    assert_eq!(host.take(&mut pair).map(|d| (d.command, d.status)), Some((id, 0)));
    pattern::check_region(&host.data, 0, 4096, 0, 1).expect("read");
}

#[test]
fn shutdown_ends_commands_then_flushes_then_says_so() {
    let (options, held) = held();
    let mut host = Host::ready(options);
    let mut pair = host.pair(1, 16, 16);
    let id = host.send(&mut pair, write(0, 8, host.at(0), 0));
    host.settle();
    host.write(CC, CC_ENABLED | 1 << 14);
    host.settle();
    assert_eq!(host.read(CSTS), 0b0101, "occurring");
    held.release(1);
    host.settle();
    assert_eq!(host.take(&mut pair).map(|d| (d.command, d.status)), Some((id, 0)));
    assert_eq!(host.read(CSTS), 0b0101, "the flush is still out");
    assert_eq!(held.log().last(), Some(&(Op::Flush, 0, 0)));
    held.release(1);
    host.settle();
    assert_eq!(host.read(CSTS), 0b1001, "complete");
    host.send(&mut pair, write(0, 8, host.at(0), 0));
    host.settle();
    assert_eq!(held.held(), 0, "nothing is fetched any more");
    host.disable();
    host.write(CC, (CC_ENABLED | 2 << 14) & !1);
    host.settle();
    assert_eq!(host.read(CSTS), 0b1000, "an abrupt one without queues is complete at once");
}

#[test]
fn flush_and_forced_unit_access_reach_the_storage() {
    let first = Held::new(memory());
    let second = Held::new(memory());
    let namespaces = [&first, &second].map(|s| NamespaceOptions::new(Arc::new(s.clone())));
    let mut host = Host::ready(Options::new(namespaces.to_vec()));
    let mut pair = host.pair(1, 16, 16);
    let at = host.at(0);
    host.send(&mut pair, entry(0, u32::MAX, 0, 0));
    host.settle();
    assert_eq!((first.log(), second.log()), (vec![(Op::Flush, 0, 0)], vec![(Op::Flush, 0, 0)]));
    first.release(1);
    host.settle();
    assert_eq!(host.take(&mut pair), None, "both must be durable");
    second.release(1);
    host.settle();
    assert_eq!(host.take(&mut pair).map(|d| d.status), Some(0));
    let forced = write(16, 8, at, 0);
    host.send(&mut pair, with(forced, 12, forced[12] | 1 << 30));
    host.settle();
    first.release(1);
    host.settle();
    assert_eq!(first.log()[1..], [(Op::Write, 8192, 4096), (Op::Flush, 0, 0)]);
    assert_eq!(host.take(&mut pair), None);
    first.release(1);
    host.settle();
    assert_eq!(host.take(&mut pair).map(|d| d.status), Some(0));
}

/// More than the storage takes at once waits inside, in order, and an Abort finds it there.
#[test]
fn a_small_storage_queue_slows_down_and_loses_nothing() {
    let (mut options, held) = held();
    options.storage_depth = 2;
    let mut host = Host::ready(options);
    let mut pair = host.pair(1, 32, 32);
    let ids: Vec<u16> =
        (0..20).map(|n| host.send(&mut pair, read(n * 8, 8, host.at(0), 0))).collect();
    host.settle();
    assert_eq!(held.held(), 2);
    // The third waits for room in the controller; the rest in the submission queue.
    let done = host.admin(abort(1, ids[2]));
    assert_eq!((done.status, done.result), (0, 0));
    assert_eq!(host.take(&mut pair).map(|d| (d.command, d.status)), Some((ids[2], 0x007)));
    let mut seen = Vec::new();
    for _ in 0..40 {
        held.release(2);
        host.settle();
        while let Some(done) = host.take(&mut pair) {
            assert_eq!(done.status, 0);
            seen.push(done.command);
        }
    }
    let expected: Vec<u16> = ids.iter().copied().filter(|id| *id != ids[2]).collect();
    assert_eq!(seen, expected);
    assert_eq!(host.step(), Progress::Idle);
}

#[test]
fn identify_features_and_logs_say_what_is_there() {
    let mut four_k = NamespaceOptions::new(Arc::new(memory()));
    four_k.block_bytes = 4096;
    let mut options = Options::new(vec![NamespaceOptions::new(Arc::new(memory())), four_k]);
    options.queue_pairs_max = 6;
    let mut host = Host::ready(options);
    let at = host.at(0);
    let identify = |cns: u32, nsid: u32| with(entry(0x06, nsid, at, 0), 10, cns);
    assert_eq!(host.admin(identify(1, 0)).status, 0);
    let page = host.bytes(0, 4096);
    assert_eq!(&page[24..40], b"sidecore softwar");
    assert_eq!((page[77], page[512], page[513], page[516]), (8, 0x66, 0x44, 2));
    assert_eq!((page[258], page[259], page[525]), (3, 3, 7), "ACL, AERL, VWC");
    for (nsid, block) in [(1, 512_u64), (2, 4096)] {
        assert_eq!(host.admin(identify(0, nsid)).status, 0);
        let page = host.bytes(0, 4096);
        assert_eq!(page[..8], (BYTES as u64 / block).to_le_bytes());
        assert_eq!(1 << page[130], block);
    }
    assert_eq!(host.admin(identify(2, 0)).status, 0);
    assert_eq!(host.bytes(0, 12), [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(host.admin(identify(2, 1)).status, 0);
    assert_eq!(host.bytes(0, 8), [2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(host.admin(identify(3, 2)).status, 0);
    assert_eq!(host.bytes(0, 4), [3, 16, 0, 0]);

    let set = |cdw10: u32, value: u32| with(with(entry(0x09, 0, 0, 0), 10, cdw10), 11, value);
    let get = |cdw10: u32| with(entry(0x0a, 0, 0, 0), 10, cdw10);
    assert_eq!(host.admin(get(7)).result, 0x0005_0005);
    assert_eq!(host.admin(set(7, 0x0002_0030)).result, 0x0002_0005, "granted: 6 and 3");
    assert_eq!(host.admin(get(7)).result, 0x0002_0005);
    assert_eq!(host.admin(get(0x107)).result, 0x0005_0005, "the default");
    assert_eq!(host.admin(host::create_cq(4, 16, at)).status, 0x101, "three were granted");
    assert_eq!(host.admin(set(5, 0x1234)).status, 0);
    assert_eq!(host.admin(get(5)).result, 0x1234);
    assert_eq!(host.admin(get(6)).result, 1);

    let mut pair = host.pair(1, 8, 8);
    assert_eq!(host.io(&mut pair, read(0, 8, at, 0)).status, 0);
    let log = |cdw10: u32| with(entry(0x02, u32::MAX, at, 0), 10, cdw10);
    assert_eq!(host.admin(log(127 << 16 | 2)).status, 0);
    assert_eq!(host.bytes(64, 8), 1_u64.to_le_bytes(), "one read command");
    assert_eq!(host.admin(log(127 << 16 | 3)).status, 0);
    assert_eq!(host.bytes(0, 1), [1]);
}
