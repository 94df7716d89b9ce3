//! Compare and Dataset Management: what they find, what they change, and what they leave alone.
//!
//! Source: NVM Command Set 1.0c, 3.2.1 and 3.2.3.
#![forbid(unsafe_code)]

mod host;

use std::sync::Arc;

use host::held::Held;
use host::{Host, Pair, entry, range, read, with, write};
use sidecore_ctrl::{NamespaceOptions, Options};
use storage::faults::{FaultScript, Injector};
use storage::{MemoryStorage, Op};

const BYTES: usize = 8 << 20;
const COMPARE: u32 = 5;
const COMPARE_FAILURE: u16 = 0x285;
const LBA_OUT_OF_RANGE: u16 = 0x080;

fn options(storage: MemoryStorage, block_bytes: u32) -> Options {
    let storage = NamespaceOptions::new(Arc::new(storage));
    Options::new(vec![NamespaceOptions { block_bytes, ..storage }])
}

fn memory() -> MemoryStorage {
    MemoryStorage::new(BYTES).expect("memory")
}

/// Fills a range of the host's memory with bytes that differ from place to place.
fn fill(host: &Host, at: usize, bytes: usize, seed: usize) {
    let byte = |i: usize| u8::try_from((i * 31 + i / 251 + seed * 7 + 1) & 0xff).expect("masked");
    let data: Vec<u8> = (0..bytes).map(byte).collect();
    host.data.write_bytes(at, &data);
}

fn flip(host: &Host, at: usize) {
    let byte = host.bytes(at, 1)[0];
    host.data.write_bytes(at, &[byte ^ 0x10]);
}

/// Writes the ranges of a Dataset Management command; `(first block, blocks)` each.
fn put_ranges(host: &Host, at: usize, ranges: &[(u64, u32)]) {
    for (i, (lba, blocks)) in ranges.iter().enumerate() {
        host.data.write_bytes(at + 16 * i, &0xffff_ffff_u32.to_le_bytes());
        host.data.write_bytes(at + 16 * i + 4, &blocks.to_le_bytes());
        host.data.write_bytes(at + 16 * i + 8, &lba.to_le_bytes());
    }
}

fn manage(host: &Host, at: usize, ranges: u32, attributes: u32) -> host::Entry {
    with(with(entry(9, 1, host.at(at), host.at(at + 4096)), 10, ranges - 1), 11, attributes)
}

/// Any one byte that differs is found, wherever pages begin and end, and nothing is changed.
#[test]
fn compare_finds_every_byte_that_differs() {
    for block_bytes in [512_u32, 4096] {
        let mut host = Host::ready(options(memory(), block_bytes));
        let mut pair = host.pair(1, 16, 16);
        let blocks = 12288 / block_bytes;
        fill(&host, 0, 12288, 1);
        let list = host.at(1 << 20);
        host.data.write_bytes(1 << 20, &host.at(4096).to_le_bytes());
        host.data.write_bytes((1 << 20) + 8, &host.at(8192).to_le_bytes());
        assert_eq!(host.io(&mut pair, write(5, blocks, host.at(0), list)).status, 0);
        // The host's copy lies elsewhere, from the middle of a page on: no run is a whole block.
        let copy = (2 << 20) + 1028;
        host.data.write_bytes(copy, &host.bytes(0, 12288));
        let pages: Vec<u64> = (1..4).map(|page| host.at((2 << 20) + page * 4096)).collect();
        for (i, page) in pages.iter().enumerate() {
            host.data.write_bytes((1 << 20) + 4096 + i * 8, &page.to_le_bytes());
        }
        let compare = range(COMPARE, 5, blocks, host.at(copy), host.at((1 << 20) + 4096));
        assert_eq!(host.io(&mut pair, compare).status, 0, "equal");
        for at in [0, 1, 511, 512, 3067, 3068, 4095, 7164, 12286, 12287] {
            flip(&host, copy + at);
            let done = host.io(&mut pair, compare);
            assert_eq!((done.status, done.do_not_retry), (COMPARE_FAILURE, false), "byte {at}");
            flip(&host, copy + at);
        }
        for around in [copy - 1, copy + 12288] {
            flip(&host, around);
            assert_eq!(host.io(&mut pair, compare).status, 0, "a byte beside the range");
        }
        assert_eq!(host.bytes(copy, 12288), host.bytes(0, 12288), "compare moves nothing");
        let counters = host.controller.counters().read();
        assert_eq!((counters.io_failed, counters.bytes_written), (10, 12288));
        assert_eq!(counters.bytes_read, 13 * 12288, "a compare reads the medium");
    }
}

#[test]
fn a_fault_of_the_drive_is_seen_by_compare() {
    let mut options = options(memory(), 512);
    let script: FaultScript = "flip:n=1,every=2;error:n=1,every=5,status=2/81".parse().unwrap();
    let injector = Arc::new(Injector::new(&script, 512));
    options.namespaces[0].faults = Some(Arc::clone(&injector));
    let mut host = Host::ready(options);
    let mut pair = host.pair(1, 16, 16);
    fill(&host, 0, 4096, 2);
    assert_eq!(host.io(&mut pair, write(0, 8, host.at(0), 0)).status, 0);
    let compare = range(COMPARE, 0, 8, host.at(0), 0);
    let ended: Vec<u16> = (0..6).map(|_| host.io(&mut pair, compare).status).collect();
    assert_eq!(ended.iter().filter(|status| **status == COMPARE_FAILURE).count(), 1, "{ended:x?}");
    assert_eq!(ended.iter().filter(|status| **status == 0x281).count(), 1, "{ended:x?}");
    assert_eq!(ended.iter().filter(|status| **status == 0).count(), 4, "{ended:x?}");
}

fn written(host: &mut Host, pair: &mut Pair, blocks: u32) {
    for at in (0..blocks).step_by(8) {
        fill(host, 0, 4096, at as usize + 1);
        let entry = write(u64::from(at), 8, host.at(0), 0);
        assert_eq!(host.io(pair, entry).status, 0);
    }
}

fn is_zero(host: &mut Host, pair: &mut Pair, lba: u64) -> bool {
    host.data.fill(8192, 512, 0xa5);
    let entry = read(lba, 1, host.at(8192), 0);
    assert_eq!(host.io(pair, entry).status, 0);
    host.bytes(8192, 512).iter().all(|byte| *byte == 0)
}

#[test]
fn deallocated_blocks_read_as_zeros_and_no_others() {
    let mut host = Host::ready(options(memory(), 512));
    let mut pair = host.pair(1, 16, 16);
    written(&mut host, &mut pair, 64);
    // The list crosses a page: two ranges and a half in the first one.
    let at = (1 << 20) + 4096 - 40;
    put_ranges(&host, at, &[(3, 1), (10, 0), (20, 5), (63, 1)]);
    assert_eq!(host.io(&mut pair, with(manage(&host, at, 4, 0b011), 8, 0)).status, 0x004);
    let mut hints = manage(&host, at, 4, 0b011);
    let second = host.at((1 << 20) + 4096);
    (hints[8], hints[9]) =
        (u32::try_from(second & 0xffff_ffff).unwrap(), u32::try_from(second >> 32).unwrap());
    assert_eq!(host.io(&mut pair, hints).status, 0, "other attributes are hints");
    assert!((0..64).all(|lba| !is_zero(&mut host, &mut pair, lba)), "a hint changes nothing");
    assert_eq!(host.io(&mut pair, with(hints, 11, 0b100)).status, 0);
    for lba in 0..64 {
        let gone = lba == 3 || (20..25).contains(&lba) || lba == 63;
        assert_eq!(is_zero(&mut host, &mut pair, lba), gone, "block {lba}");
    }
}

#[test]
fn one_bad_range_leaves_all_of_them_alone() {
    let mut host = Host::ready(options(memory(), 512));
    let mut pair = host.pair(1, 16, 16);
    written(&mut host, &mut pair, 64);
    let blocks = BYTES as u64 / 512;
    for bad in [(blocks, 1), (blocks - 1, 2), (u64::MAX, 1), (1, u32::MAX)] {
        put_ranges(&host, 1 << 20, &[(0, 4), bad]);
        let done = host.io(&mut pair, manage(&host, 1 << 20, 2, 0b100));
        assert_eq!((done.status, done.do_not_retry), (LBA_OUT_OF_RANGE, true), "{bad:?}");
    }
    assert!((0..64).all(|lba| !is_zero(&mut host, &mut pair, lba)));
    let mut sealed = Host::ready(options(memory().with_read_only(), 512));
    let mut pair = sealed.pair(1, 16, 16);
    put_ranges(&sealed, 1 << 20, &[(0, 4)]);
    assert_eq!(sealed.io(&mut pair, manage(&sealed, 1 << 20, 1, 0b100)).status, 0x020);
    assert_eq!(sealed.io(&mut pair, manage(&sealed, 1 << 20, 1, 0b001)).status, 0);
}

/// 256 ranges over a whole namespace are many storage requests: all end before the command does.
#[test]
fn a_command_of_many_ranges_ends_once_and_can_be_aborted() {
    let held = Held::new(memory());
    let mut options = Options::over(Arc::new(held.clone()));
    options.storage_depth = 4;
    let mut host = Host::ready(options);
    let mut pair = host.pair(1, 16, 16);
    let ranges: Vec<(u64, u32)> = (0..256).map(|i| (i * 64, 1)).collect();
    put_ranges(&host, 1 << 20, &ranges);
    host.send(&mut pair, manage(&host, 1 << 20, 256, 0b100));
    for _ in 0..255 {
        host.settle();
        assert_eq!(host.take(&mut pair), None, "not before its last request");
        held.release(1);
    }
    held.release(1);
    host.settle();
    held.release(4);
    host.settle();
    assert_eq!(host.take(&mut pair).expect("its end").status, 0);
    let zeroes: Vec<u64> = held
        .log()
        .iter()
        .map(|(op, offset, bytes)| {
            assert_eq!((*op, *bytes), (Op::WriteZeroes, 512));
            *offset
        })
        .collect();
    assert_eq!(zeroes, (0..256).map(|i| i * 64 * 512).collect::<Vec<u64>>());
    let command = host.send(&mut pair, manage(&host, 1 << 20, 256, 0b100));
    host.settle();
    assert_eq!(host.admin(host::abort(1, command)).result, 0);
    assert_eq!(host.take(&mut pair).expect("its end").status, 0x007);
    assert_eq!(held.held(), 0, "nothing of it is left at the storage");
}
