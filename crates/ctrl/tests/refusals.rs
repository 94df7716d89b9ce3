//! Everything that the controller refuses, and the status it names.
//!
//! One row per bad command: the section of the specification that names the status, the entry as
//! dwords, the status (code type << 8 | code), and whether it may be retried.
#![forbid(unsafe_code)]

mod host;

use std::sync::Arc;

use host::{
    Entry, Host, abort, create_cq, create_sq, delete_cq, delete_sq, entry, range, read, with, write,
};
use sidecore_ctrl::{NamespaceOptions, Options};
use storage::MemoryStorage;

const BYTES: usize = 8 << 20;

fn options() -> Options {
    let storage = Arc::new(MemoryStorage::new(BYTES).expect("memory"));
    let sealed = Arc::new(MemoryStorage::new(BYTES).expect("memory").with_read_only());
    let mut options =
        Options::new(vec![NamespaceOptions::new(storage), NamespaceOptions::new(sealed)]);
    options.queue_pairs_max = 8;
    options.queue_entries_max = 1024;
    options
}

struct Row {
    section: &'static str,
    what: &'static str,
    entry: Entry,
    status: u16,
    retry: bool,
}

fn row(section: &'static str, what: &'static str, entry: Entry, status: u16) -> Row {
    Row { section, what, entry, status, retry: false }
}

fn passing(section: &'static str, what: &'static str, entry: Entry, status: u16) -> Row {
    Row { retry: true, ..row(section, what, entry, status) }
}

fn nsid(entry: Entry, nsid: u32) -> Entry {
    with(entry, 1, nsid)
}

fn identify(cns: u32, namespace: u32, prp1: u64) -> Entry {
    with(entry(0x06, namespace, prp1, 0), 10, cns)
}

// tidy: long because it is one table.
fn admin_rows(host: &Host) -> Vec<Row> {
    let at = host.at(0);
    let page = identify(1, 0, at);
    let vector = with(create_cq(3, 16, at), 11, 5 << 16 | 0b11);
    let features = |opcode: u32, cdw10: u32, cdw11: u32| {
        with(with(entry(opcode, 0, 0, 0), 10, cdw10), 11, cdw11)
    };
    let log = |cdw10: u32| with(entry(0x02, u32::MAX, at, 0), 10, cdw10);
    vec![
        row("Base 3.3.3.2.1 (01h)", "an opcode that nobody has", entry(0x7f, 0, 0, 0), 0x001),
        row("Base 3.3.3.2.1 (01h)", "an optional command: Format NVM", entry(0x80, 1, 0, 0), 0x001),
        row("Base 3.3.3.1 FUSE", "a fused admin command", with(page, 0, 0x06 | 1 << 8), 0x002),
        row(
            "Base 3.3.3.1 PSDT",
            "an admin command with an SGL",
            with(page, 0, 0x06 | 1 << 14),
            0x002,
        ),
        row("Base 5.17.1 CNS", "identify: an unknown structure", identify(0xff, 0, at), 0x002),
        row("Base 5.17.2", "identify: namespace 0", identify(0, 0, at), 0x00b),
        row("Base 5.17.2", "identify: a namespace above NN", identify(0, 3, at), 0x00b),
        row("Base 5.17.2.2", "active list above FFFFFFFEh", identify(2, 0xffff_fffe, at), 0x00b),
        row("Base 5.17.2.3", "descriptors of no namespace", identify(3, 9, at), 0x00b),
        row("Base 4.1.1", "identify: PRP1 is no dword address", identify(1, 0, at + 2), 0x013),
        row(
            "Base 4.1.1",
            "identify: PRP2 with an offset",
            with(entry(0x06, 0, at + 4, at + 4104), 10, 1),
            0x013,
        ),
        passing(
            "Base 3.3.3.2.1 (04h)",
            "identify: to memory that is not registered",
            identify(1, 0, 0x1000),
            0x004,
        ),
        passing(
            "Base 3.3.3.2.1 (04h)",
            "identify: the second page is not registered",
            with(entry(0x06, 0, at + 4, 0), 10, 1),
            0x004,
        ),
        row("Base 5.4", "create CQ: identifier 0", create_cq(0, 16, at), 0x101),
        row("Base 5.4", "create CQ: identifier above the grant", create_cq(9, 16, at), 0x101),
        row("Base 5.4", "create CQ: identifier in use", create_cq(1, 16, at), 0x101),
        row("Base 5.4", "create CQ: one entry", create_cq(3, 1, at), 0x102),
        row("Base 5.4", "create CQ: above CAP.MQES", create_cq(3, 1025, at), 0x102),
        row("Base 5.4 PC", "create CQ: not contiguous", with(create_cq(3, 16, at), 11, 0), 0x002),
        row("Base 5.4 IV", "create CQ: a vector that is not there", vector, 0x108),
        row("Base 4.1.1", "create CQ: not page aligned", create_cq(3, 16, at + 64), 0x013),
        row("Base 3.3.3.2.1 (02h)", "create CQ: not registered", create_cq(3, 16, 0x2000), 0x002),
        row("Base 5.5", "create SQ: identifier 0", create_sq(0, 1, 16, at), 0x101),
        row("Base 5.5", "create SQ: identifier above the grant", create_sq(9, 1, 16, at), 0x101),
        row("Base 5.5", "create SQ: identifier in use", create_sq(1, 1, 16, at), 0x101),
        row("Base 5.5", "create SQ: one entry", create_sq(3, 1, 1, at), 0x102),
        row("Base 5.5", "create SQ: above CAP.MQES", create_sq(3, 1, 1025, at), 0x102),
        row(
            "Base 5.5 PC",
            "create SQ: not contiguous",
            with(create_sq(3, 1, 16, at), 11, 1 << 16),
            0x002,
        ),
        row("Base 5.5 CQID", "create SQ: completion queue 0", create_sq(3, 0, 16, at), 0x101),
        row(
            "Base 5.5 CQID",
            "create SQ: completion queue above the grant",
            create_sq(3, 9, 16, at),
            0x101,
        ),
        row(
            "Base 5.5 CQID",
            "create SQ: completion queue not created",
            create_sq(3, 5, 16, at),
            0x100,
        ),
        row("Base 4.1.1", "create SQ: not page aligned", create_sq(3, 1, 16, at + 2048), 0x013),
        row("Base 5.7", "delete SQ: the admin queue", delete_sq(0), 0x101),
        row("Base 5.7", "delete SQ: not there", delete_sq(5), 0x101),
        row("Base 5.7", "delete SQ: beyond all", delete_sq(0xffff), 0x101),
        row("Base 5.6", "delete CQ: the admin queue", delete_cq(0), 0x101),
        row("Base 5.6", "delete CQ: not there", delete_cq(5), 0x101),
        passing("Base 5.6", "delete CQ: in use", delete_cq(1), 0x10c),
        row("Base 5.1", "abort: in a queue that is not there", abort(5, 1), 0x002),
        row("Base 5.27", "set features: unknown", features(0x09, 0x7f, 0), 0x002),
        row("Base 5.15", "get features: unknown", features(0x0a, 0x7f, 0), 0x002),
        row("Base 5.15 SEL", "get features: a reserved select", features(0x0a, 0x407, 0), 0x002),
        row(
            "Base 5.27 SV",
            "set features: save what cannot be",
            features(0x09, 1 << 31 | 7, 0),
            0x10d,
        ),
        row("Base 5.27.1.5", "number of queues: FFFFh", features(0x09, 7, 0xffff), 0x002),
        row(
            "Base 5.27.1.5",
            "number of queues after queues",
            features(0x09, 7, 0x0003_0003),
            0x00c,
        ),
        row("Base 5.27.1.2", "a power state above NPSS", features(0x09, 2, 1), 0x002),
        row(
            "Base 5.27.1.3 TMPSEL",
            "a threshold of a sensor that is not there",
            features(0x09, 4, 3 << 16),
            0x002,
        ),
        row("Base 5.27.1.3 THSEL", "a reserved threshold", features(0x0a, 4, 2 << 20), 0x002),
        row("Base 5.27.1.4", "write cache off", features(0x09, 6, 0), 0x10e),
        row("Base 5.16", "an unknown log page", log(0xee), 0x109),
        row(
            "Base 5.16",
            "a log page longer than any transfer",
            with(log(0xffff << 16 | 2), 11, 0x10),
            0x002,
        ),
        row(
            "Base 5.16",
            "a log page from beyond its end",
            with(log(0x0f << 16 | 2), 12, 4096),
            0x002,
        ),
    ]
}

// tidy: long because it is one table.
fn io_rows(host: &Host) -> Vec<Row> {
    let at = host.at(0);
    let blocks = BYTES as u64 / 512;
    let list = host.at(64 * 1024);
    // A list whose first entry has an offset, one to nowhere, and a chain to nowhere.
    host.data.write_bytes(64 * 1024, &(at + 8).to_le_bytes());
    host.data.write_bytes(68 * 1024, &0x5000_u64.to_le_bytes());
    host.data.write_bytes(76 * 1024 - 8, &0x6000_u64.to_le_bytes());
    host.data.write_bytes(80 * 1024 - 8, &(at + 512).to_le_bytes());
    let one = read(0, 8, at, 0);
    vec![
        row("NVM 3.2", "an opcode that nobody has", with(one, 0, 0x7f), 0x001),
        row("NVM 3.2", "an optional command: Verify", with(one, 0, 0x0c), 0x001),
        row("Base 3.3.3.1 FUSE", "a fused read", with(one, 0, 0x02 | 1 << 8), 0x002),
        row("Base 3.3.3.1 PSDT", "a read with an SGL", with(one, 0, 0x02 | 1 << 14), 0x002),
        row("Base 3.3.3.2.1 (0Bh)", "read: namespace 0", nsid(one, 0), 0x00b),
        row("Base 3.3.3.2.1 (0Bh)", "read: namespace above NN", nsid(one, 3), 0x00b),
        row("Base 3.3.3.1 NSID", "read: all namespaces", nsid(one, u32::MAX), 0x002),
        row("Base 7.1", "flush: namespace 0", entry(0, 0, 0, 0), 0x00b),
        row("Base 7.1", "flush: namespace above NN", entry(0, 3, 0, 0), 0x00b),
        row("NVM 3.2.4", "read: from the end", read(blocks, 1, at, 0), 0x080),
        row("NVM 3.2.4", "read: across the end", read(blocks - 1, 2, at, 0), 0x080),
        row("NVM 3.2.4", "read: a range that overflows", read(u64::MAX, 8, at, 0), 0x080),
        row("NVM 3.2.6", "write: across the end", write(blocks - 7, 8, at, 0), 0x080),
        row("NVM 3.2.8", "write zeroes: across the end", range(8, blocks - 1, 2, 0, 0), 0x080),
        row("Base 5.17.2.1 MDTS", "read: longer than MDTS", read(0, 4096, at, list), 0x002),
        row(
            "Base 3.3.3.2.1 (20h)",
            "write to a write-protected namespace",
            nsid(write(0, 8, at, 0), 2),
            0x020,
        ),
        row(
            "Base 3.3.3.2.1 (20h)",
            "write zeroes to a write-protected namespace",
            nsid(range(8, 0, 8, 0, 0), 2),
            0x020,
        ),
        row("Base 4.1.1", "read: PRP1 is no dword address", read(0, 8, at + 1, 0), 0x013),
        row("Base 4.1.1", "read: PRP2 with an offset", read(0, 16, at, at + 4096 + 8), 0x013),
        row(
            "Base 4.1.1",
            "read: a list that is not qword aligned",
            read(0, 32, at, list + 4),
            0x013,
        ),
        row("Base 4.1.1", "read: a list entry with an offset", read(0, 32, at, list), 0x013),
        row(
            "Base 4.1.1",
            "read: a chain with an offset",
            read(0, 32, at, host.at(80 * 1024 - 8)),
            0x013,
        ),
        passing("Base 3.3.3.2.1 (04h)", "read: to nowhere", read(0, 8, 0x4000, 0), 0x004),
        passing("Base 3.3.3.2.1 (04h)", "read: PRP2 to nowhere", read(0, 16, at, 0x4000), 0x004),
        passing(
            "Base 3.3.3.2.1 (04h)",
            "read: a list that is nowhere",
            read(0, 32, at, 0x4000),
            0x004,
        ),
        passing(
            "Base 3.3.3.2.1 (04h)",
            "read: a list entry to nowhere",
            read(0, 32, at, host.at(68 * 1024)),
            0x004,
        ),
        passing(
            "Base 3.3.3.2.1 (04h)",
            "read: a chain to nowhere",
            read(0, 32, at, host.at(76 * 1024 - 8)),
            0x004,
        ),
        passing(
            "Base 3.3.3.2.1 (04h)",
            "read: beyond the end of a region",
            read(0, 16, host.at((4 << 20) - 4096), host.at(4 << 20)),
            0x004,
        ),
        passing(
            "Base 3.3.3.2.1 (04h)",
            "write: from the last bytes of the address space",
            write(0, 8, u64::MAX - 0xfff, 0),
            0x004,
        ),
    ]
}

/// A bad command must also leave no trace: all data memory and the controller's state are checked.
#[test]
fn every_bad_command_gets_its_status_and_moves_nothing() {
    let mut host = Host::ready(options());
    let mut pair = host.pair(1, 64, 64);
    let rows = io_rows(&host);
    let before = host.bytes(0, 4 << 20);
    for Row { section, what, entry, status, retry } in &rows {
        let done = host.io(&mut pair, *entry);
        assert_eq!(done.status, *status, "{section}: {what}: {:#05x}", done.status);
        assert_eq!(done.do_not_retry, !retry, "{section}: {what}");
    }
    assert!(host.bytes(0, 4 << 20) == before, "a refused read wrote something");
    let admin = admin_rows(&host);
    for Row { section, what, entry, status, retry } in &admin {
        let done = host.admin(*entry);
        assert_eq!(done.status, *status, "{section}: {what}: {:#05x}", done.status);
        assert_eq!(done.do_not_retry, !retry, "{section}: {what}");
        assert_eq!(done.result, 0, "{section}: {what}");
    }
    assert!(host.bytes(0, 4 << 20) == before, "a refused admin command wrote something");
    assert!(rows.len() + admin.len() >= 75, "{}", rows.len() + admin.len());
    // The queues still work.
    host.data.fill(0, 4096, 0x5a);
    let at = host.at(0);
    assert_eq!(host.io(&mut pair, write(3, 8, at, 0)).status, 0);
    assert_eq!(host.io(&mut pair, read(3, 8, at + 8192, 0)).status, 0);
    assert_eq!(host.bytes(8192, 4096), vec![0x5a; 4096]);
    let counters = host.controller.counters().read();
    assert_eq!((counters.io_failed, counters.io_succeeded), (rows.len() as u64, 2));
    assert_eq!((counters.bytes_read, counters.bytes_written), (4096, 4096));
}

/// Base 3.3.3.2.1 (03h).
#[test]
fn a_command_identifier_in_use_is_refused_and_the_first_command_is_unharmed() {
    let mut options = options();
    options.timing = "latency=1ms".parse().expect("a model");
    let mut host = Host::ready(options);
    let mut pair = host.pair(1, 8, 8);
    let at = host.at(0);
    let first = with(write(0, 8, at, 0), 0, 0x0007_0001);
    pair.push(&first);
    pair.push(&with(write(0, 8, at, 0), 0, 0x0007_0001));
    host.ring(&pair);
    host.settle();
    let conflict = host.take(&mut pair).expect("an answer");
    assert_eq!((conflict.command, conflict.status, conflict.do_not_retry), (7, 0x003, false));
    assert_eq!(host.take(&mut pair), None);
    host.now_ns += 2_000_000;
    host.settle();
    let done = host.take(&mut pair).expect("the first one's end");
    assert_eq!((done.command, done.status), (7, 0));
    // And the identifier is free again.
    pair.push(&with(write(0, 8, at, 0), 0, 0x0007_0001));
    host.ring(&pair);
    host.settle();
    host.now_ns += 2_000_000;
    host.settle();
    assert_eq!(host.take(&mut pair).map(|d| d.status), Some(0));
}

/// Base 3.1.3.6 CFS: what a controller without admin queues can do about a bad request.
#[test]
fn bad_admin_queues_and_configurations_are_fatal_until_a_reset() {
    use host::{ACQ, AQA, ASQ, CC, CC_ENABLED, CSTS};
    let cases: [(&str, usize, u64, u32); 9] = [
        ("AQA: no submission queue", AQA, 31 << 16, CC_ENABLED),
        ("AQA: no completion queue", AQA, 31, CC_ENABLED),
        ("ASQ: not page aligned", ASQ, 0x1800, CC_ENABLED),
        ("ASQ: not registered", ASQ, 0x1000, CC_ENABLED),
        ("ACQ: not registered", ACQ, 0x1000, CC_ENABLED),
        ("ACQ: at the end of the address space", ACQ, u64::MAX - 0xfff, CC_ENABLED),
        ("CC.CSS: no such command set", CC, 0, CC_ENABLED | 1 << 4),
        ("CC.AMS: no such arbitration", CC, 0, CC_ENABLED | 1 << 11),
        ("CC.MPS: above CAP.MPSMAX", CC, 0, CC_ENABLED | 5 << 7),
    ];
    for (what, register, value, configuration) in cases {
        let mut host = Host::new(options());
        match register {
            AQA => host.write(AQA, u32::try_from(value).expect("small")),
            CC => {}
            wide => host.write_wide(wide, value),
        }
        host.write(CC, configuration);
        host.settle();
        assert_eq!(host.read(CSTS), 2, "{what}: CFS, and not ready");
        assert!(host.controller.failure().is_some(), "{what}");
        // A reset ends it, and the same controller then works.
        host.write(AQA, 31 << 16 | 31);
        host.write_wide(ASQ, host.admin.sq.address());
        host.write_wide(ACQ, host.admin.cq.address());
        host.disable();
        assert_eq!(host.controller.failure(), None, "{what}");
        host.enable();
        let at = host.at(0);
        assert_eq!(host.admin(identify(1, 0, at)).status, 0, "{what}");
    }
}

fn log(page: u32, at: u64) -> Entry {
    with(entry(0x02, u32::MAX, at, 0), 10, 127 << 16 | page)
}

/// Base 5.2: what was reported is masked by type, and each kind of event is kept, until its log page
/// is read; Base 5.16.1.2: the log has the errors, youngest first.
#[test]
fn events_are_masked_by_type_until_their_log_is_read() {
    let mut host = Host::ready(options());
    let pair = host.pair(1, 16, 16);
    let at = host.at(0);
    // Errors before anybody asked: two kinds, one of them twice.
    for value in [16, 17] {
        host.ring_value(1, value);
        host.settle();
    }
    host.ring(&pair);
    host.ring_value(5, 9);
    host.settle_doorbells();
    // Too warm, but nobody asked for such events; then again, when somebody has.
    let set = |feature, value| with(with(entry(9, 0, 0, 0), 10, feature), 11, value);
    assert_eq!(host.admin(set(4, 250)).status, 0);
    assert_eq!(host.admin(set(0x0b, 0b10)).status, 0);
    assert_eq!(host.admin(set(4, 301)).status, 0, "not too warm");
    assert_eq!(host.admin(log(2, at)).status, 0);
    assert_eq!(host.bytes(0, 3), [0, 44, 1], "no critical warning at 300 K");
    assert_eq!(host.admin(set(4, 300)).status, 0);
    let get = with(with(entry(10, 0, 0, 0), 10, 4), 11, 0);
    assert_eq!(host.admin(get).result, 300);
    assert_eq!(host.admin(with(get, 10, 1 << 8 | 4)).result, 343, "the default");
    assert_eq!(host.admin(with(get, 11, 1 << 20)).result, 0, "the lower threshold");

    for _ in 0..4 {
        host.send_admin(entry(0x0c, 0, 0, 0));
    }
    host.settle();
    let results = |host: &mut Host| -> Vec<u32> {
        let mut all: Vec<u32> =
            std::iter::from_fn(|| host.take_admin()).map(|done| done.result).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(results(&mut host), [0x0001_0100, 0x0002_0101], "one of each type");
    // Retained: still masked.
    let retained = with(log(1, at), 10, 127 << 16 | 1 << 15 | 1);
    assert_eq!(host.admin(retained).status, 0);
    let log_bytes = host.bytes(0, 512);
    let word = |at: usize| u16::from_le_bytes([log_bytes[at], log_bytes[at + 1]]);
    let entries: Vec<_> = (0..4).map(|i| (log_bytes[64 * i], word(64 * i + 12))).collect();
    assert_eq!(entries, [(3, 0x101 << 1), (2, 0x002 << 1), (1, 0x002 << 1), (0, 0)]);
    assert_eq!((word(8), word(10), word(14)), (0xffff, 0xffff, 0xffff), "of no command");
    assert_eq!(host.admin(log(2, at)).status, 0, "the other type's page");
    assert_eq!(host.bytes(0, 1), [2], "a critical warning");
    host.settle();
    assert_eq!(results(&mut host), []);
    host.send_admin(log(1, at));
    host.settle();
    assert_eq!(results(&mut host), [0, 0x0001_0000], "the kind that waited");
    // Nothing is left to report; a reset forgets requests, events and the log.
    host.send_admin(log(1, at));
    host.settle();
    assert_eq!(results(&mut host), [0]);
    host.disable();
    host.admin = host::Pair { tail: 0, head: 0, phase: true, ..host.admin };
    host.admin.cq.fill(0, 32 * 16, 0);
    host.enable();
    assert_eq!(host.admin(log(1, at)).status, 0);
    assert_eq!(host.bytes(0, 512), vec![0; 512]);
}

/// PCIe 3.1.2 and Base 5.2.1: error events, one at a time until the log is read.
#[test]
fn wrong_doorbells_are_reported_as_events() {
    let mut host = Host::ready(options());
    let mut pair = host.pair(1, 16, 16);
    let events: Vec<u16> = (0..4).map(|_| host.send_admin(entry(0x0c, 0, 0, 0))).collect();
    host.settle();
    assert_eq!(host.take_admin(), None, "requests wait");
    let fifth = host.admin(entry(0x0c, 0, 0, 0));
    assert_eq!((fifth.status, fifth.do_not_retry), (0x105, false), "Base 5.2: AERL");

    host.ring_value(1, 16);
    host.settle();
    let event = host.take_admin().expect("an event");
    assert_eq!((event.command, event.status, event.result), (events[0], 0, 0x0001_0100));
    // More of the type are masked until the log is read; the wrong value was ignored.
    host.ring_value(7, 3);
    host.settle_doorbells();
    assert_eq!(host.take_admin(), None);
    let at = host.at(0);
    let log = with(entry(0x02, u32::MAX, at, 0), 10, 15 << 16 | 1);
    let id = host.send_admin(log);
    host.settle();
    let mut answers = [host.take_admin().expect("log"), host.take_admin().expect("event")];
    answers.sort_by_key(|a| a.command != id);
    assert_eq!((answers[0].command, answers[0].status), (id, 0));
    assert_eq!((answers[1].command, answers[1].result), (events[1], 0x0001_0000));
    assert_eq!(host.read(0x1000 + 8 * 7), 0, "a doorbell of no queue is cleared");

    // The queue goes on from where it was.
    host.ring(&pair);
    assert_eq!(host.io(&mut pair, read(0, 8, at, 0)).status, 0);
    // A completion head that passes the tail: nothing is freed by it.
    assert_eq!(host.admin(with(log, 10, 15 << 16 | 1)).status, 0);
    host.ring_completion_value(1, 9);
    host.settle();
    assert_eq!(host.take_admin().map(|e| e.result), Some(0x0001_0100));
    assert_eq!(host.controller.counters().read().stray_errors, 3);
    // A waiting request can be aborted.
    let done = host.send_admin(abort(0, events[3]));
    host.settle();
    let ended = [host.take_admin().expect("request"), host.take_admin().expect("abort")];
    assert_eq!((ended[0].command, ended[0].status), (events[3], 0x007));
    assert_eq!((ended[1].command, ended[1].result), (done, 0));
}

/// Base 5.4, 5.5: entry sizes are chosen by CC.
#[test]
fn queues_of_entry_sizes_that_are_not_supported_are_refused() {
    let mut host = Host::new(options());
    host.write(host::CC, 1);
    host.settle();
    assert_eq!(host.read(host::CSTS), 1, "the admin queues have fixed sizes");
    let at = host.at(0);
    assert_eq!(host.admin(create_cq(1, 16, at)).status, 0x102);
}
