//! Payload of any shape against an oracle: where each byte should be, by PRP rules written anew.
#![forbid(unsafe_code)]

mod host;

use std::sync::{Arc, LazyLock};

use host::{Host, entry, range, read, with, write};
use mem::{AddressMap, MemoryKind, Region};
use proptest::prelude::*;
use sidecore_ctrl::{Controller, NamespaceOptions, Options};
use storage::{MemoryStorage, Storage, pattern};

const BYTES: usize = 4 << 20;

/// What the storage holds, and what the host's memory holds, before each transfer.
static STORED: LazyLock<Vec<u8>> = LazyLock::new(|| patterned(1));
static HELD: LazyLock<Vec<u8>> = LazyLock::new(|| patterned(7));

fn patterned(generation: u64) -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    pattern::fill(&mut bytes, 0, generation);
    bytes
}

fn memory(block: u32) -> MemoryStorage {
    let storage = MemoryStorage::new(BYTES).expect("memory").with_block_bytes(block);
    storage.region().write_bytes(0, &STORED);
    storage
}

/// A transfer as a host may lay it out: pages anywhere, lists anywhere, chains where they must be.
#[derive(Clone, Debug)]
struct Layout {
    page_shift: u32,
    /// Offset of the first byte in its page, a multiple of 4.
    first_offset: usize,
    /// Page numbers in the data memory, in order of the transfer, all different.
    pages: Vec<usize>,
    /// Where in its page the first list begins, in entries.
    list_start: usize,
    block_shift: u32,
    blocks: u32,
    lba: u64,
    writes: bool,
    storage_block: u32,
}

impl Layout {
    fn page_bytes(&self) -> usize {
        4096 << self.page_shift
    }

    fn bytes(&self) -> usize {
        (self.blocks as usize) << self.block_shift
    }

    /// Data memory offset and length of each page's part, in order.
    fn parts(&self) -> Vec<(usize, usize)> {
        let mut left = self.bytes();
        let mut offset = self.first_offset;
        let mut parts = Vec::new();
        for page in &self.pages {
            if left == 0 {
                break;
            }
            let now = left.min(self.page_bytes() - offset);
            parts.push((page * self.page_bytes() + offset, now));
            (left, offset) = (left - now, 0);
        }
        assert_eq!(left, 0, "the strategy makes enough pages");
        parts
    }

    /// Writes lists into `lists` and returns PRP1 and PRP2.
    fn describe(&self, host: &Host, lists: &Region) -> (u64, u64) {
        let parts = self.parts();
        let address = |part: &(usize, usize)| host.data.address() + part.0 as u64;
        let prp1 = address(&parts[0]);
        match parts.len() {
            1 => (prp1, 0xdead_beef_dead_beef),
            2 => (prp1, address(&parts[1])),
            _ => {
                let per_page = self.page_bytes() / 8;
                let (mut page, mut slot) = (0, self.list_start.min(per_page - 1));
                let start = lists.address() + (slot * 8) as u64;
                let mut rest = &parts[1..];
                while !rest.is_empty() {
                    let at = page * self.page_bytes() + slot * 8;
                    if slot == per_page - 1 && rest.len() > 1 {
                        // Lists need not follow each other: every second page is skipped.
                        page += 2;
                        let next = lists.address() + (page * self.page_bytes()) as u64;
                        lists.write_bytes(at, &next.to_le_bytes());
                        slot = 0;
                        continue;
                    }
                    lists.write_bytes(at, &address(&rest[0]).to_le_bytes());
                    rest = &rest[1..];
                    slot += 1;
                }
                (prp1, start)
            }
        }
    }
}

fn layouts() -> impl Strategy<Value = Layout> {
    let sizes = (0u32..=1, prop_oneof![Just(9u32), Just(12)], any::<bool>(), any::<bool>());
    (sizes, 0usize..4096, 1u32..=2048, any::<u64>(), 0usize..1024, 0usize..4).prop_flat_map(
        |((page_shift, block_shift, writes, coarse), offset, blocks, lba, list_start, order)| {
            let page_bytes = 4096usize << page_shift;
            let first_offset = match order {
                0 => 0,
                1 => offset / 128 * 512 % page_bytes,
                _ => offset * 4 % page_bytes,
            };
            let blocks = blocks.min((1 << 20) >> block_shift);
            let total = (4 << 20) / page_bytes;
            let needed = (((blocks as usize) << block_shift) + first_offset).div_ceil(page_bytes);
            let all: Vec<usize> = (0..total).collect();
            let pages =
                if order % 2 == 0 { Just(all).boxed() } else { Just(all).prop_shuffle().boxed() };
            pages.prop_map(move |mut pages| {
                pages.truncate(needed);
                let lba_max = (BYTES as u64 >> block_shift) - u64::from(blocks);
                Layout {
                    page_shift,
                    first_offset,
                    pages,
                    list_start,
                    block_shift,
                    blocks,
                    lba: lba % (lba_max + 1),
                    writes,
                    storage_block: if coarse { 1 << block_shift } else { 1 },
                }
            })
        },
    )
}

fn host_for(layout: &Layout, storage: Arc<MemoryStorage>) -> Host {
    let mut namespace = NamespaceOptions::new(storage);
    namespace.block_bytes = 1 << layout.block_shift;
    let mut host = Host::new(Options::new(vec![namespace]));
    host.write(host::CC, host::CC_ENABLED | layout.page_shift << 7);
    host.settle();
    host
}

fn run(layout: &Layout) -> Result<(), TestCaseError> {
    let storage = Arc::new(memory(layout.storage_block));
    let mut host = host_for(layout, Arc::clone(&storage));
    let lists = host::region(&host.map, 32 * 8192);
    let mut pair = host.pair(1, 16, 16);
    host.data.write_bytes(0, &HELD);

    let (prp1, prp2) = layout.describe(&host, &lists);
    let opcode = if layout.writes { 1 } else { 2 };
    let done = host.io(&mut pair, range(opcode, layout.lba, layout.blocks, prp1, prp2));
    prop_assert_eq!(done.status, 0);

    let (mut want_data, mut want_storage) = (HELD.clone(), STORED.clone());
    let mut at = usize::try_from(layout.lba << layout.block_shift).expect("small");
    for (memory_at, bytes) in layout.parts() {
        let (data, stored) = (memory_at..memory_at + bytes, at..at + bytes);
        if layout.writes {
            want_storage[stored].copy_from_slice(&want_data[data]);
        } else {
            want_data[data].copy_from_slice(&want_storage[stored]);
        }
        at += bytes;
    }
    let mut storage_now = vec![0; BYTES];
    storage.region().read_bytes(0, &mut storage_now);
    prop_assert!(host.bytes(0, 4 << 20) == want_data, "host memory differs");
    prop_assert!(storage_now == want_storage, "storage differs");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_scatter_moves_exactly_its_bytes(layout in layouts()) {
        run(&layout)?;
    }
}

/// The largest transfer from the least convenient offset: 257 pages, list begun at its last entry,
/// so that it is a chain from the first word.
#[test]
fn a_list_that_begins_with_its_chain() {
    for writes in [false, true] {
        let layout = Layout {
            page_shift: 0,
            first_offset: 4,
            pages: (0..257).map(|n| n * 3 % 1024).collect(),
            list_start: 511,
            block_shift: 9,
            blocks: 2048,
            lba: 11,
            writes,
            storage_block: 512,
        };
        run(&layout).expect("moves exactly its bytes");
    }
}

/// Contiguous pages become one storage request; a split block goes through one bounce.
#[test]
fn neighbouring_pages_are_one_request() {
    let storage = Arc::new(memory(512));
    let mut host = Host::ready(Options::over(storage));
    let mut pair = host.pair(1, 16, 16);
    let list = host.at(1 << 20);
    for page in 0..32 {
        let entry = host.at((page + 1) * 4096);
        host.data.write_bytes((1 << 20) + page * 8, &entry.to_le_bytes());
    }
    let at = host.at(0);
    assert_eq!(host.io(&mut pair, read(0, 256, at, list)).status, 0);
    assert_eq!(host.controller.counters().read().storage_requests, 1);
    // One page out of line: three runs.
    host.data.write_bytes((1 << 20) + 8 * 10, &host.at(2 << 20).to_le_bytes());
    assert_eq!(host.io(&mut pair, read(0, 256, at, list)).status, 0);
    assert_eq!(host.controller.counters().read().storage_requests, 4);
    assert_eq!(host.controller.counters().read().bytes_bounced, 0);
    // From dword 1 on, the runs end inside a block.
    assert_eq!(host.io(&mut pair, read(0, 16, at + 4, list + 8 * 9)).status, 0);
    let counters = host.controller.counters().read();
    assert_eq!((counters.storage_requests, counters.bytes_bounced), (5, 8192));
}

/// Two regions that meet at an address are two pieces, even inside a page.
#[test]
fn a_transfer_may_cross_from_region_to_region() {
    let storage = Arc::new(memory(1));
    let mut host = Host::ready(Options::over(storage));
    let mut pair = host.pair(1, 16, 16);
    let (low, high) = (1u64 << 40, (1u64 << 40) + 6144);
    let regions = [(low, 6144), (high, 4096)].map(|(at, bytes)| {
        let region = Region::map_anonymous(bytes, MemoryKind::Host).expect("memory");
        host.map.register_at(at, region.clone()).expect("free");
        region
    });
    let list = host.at(0);
    host.data.write_bytes(0, &(low + 4096).to_le_bytes());
    host.data.write_bytes(8, &(low + 8192).to_le_bytes());
    assert_eq!(host.io(&mut pair, read(8, 18, low + 1024, list)).status, 0);
    pattern::check_region(&regions[0], 1024, 5120, 4096, 1).expect("the lower part");
    pattern::check_region(&regions[1], 0, 4096, 4096 + 5120, 1).expect("the upper part");
}

/// Storage that takes less at once gets several requests; Write Zeroes of any length too.
#[test]
fn long_commands_are_cut_to_what_the_storage_takes() {
    let storage = Arc::new(memory(1));
    let max = storage.geometry().transfer_bytes_max;
    let mut options = Options::over(Arc::clone(&storage) as Arc<dyn Storage>);
    options.transfer_bytes_max = 4 << 20;
    let mut host = Host::ready(options);
    let mut pair = host.pair(1, 16, 16);
    let lists = host::region(&host.map, 2 * 4096);
    // 1023 pages: 511 and a chain, then 512, since the last entry of all is a page again.
    for page in 1..1024usize {
        let place = page - 1 + usize::from(page > 511);
        lists.write_bytes(place * 8, &host.at(page * 4096).to_le_bytes());
    }
    lists.write_bytes(511 * 8, &(lists.address() + 4096).to_le_bytes());
    let at = host.at(0);
    let done = host.io(&mut pair, read(0, 8192, at, lists.address()));
    assert_eq!(done.status, 0);
    pattern::check_region(&host.data, 0, BYTES, 0, 1).expect("all of it");
    let requests = host.controller.counters().read().storage_requests;
    assert_eq!(requests, BYTES as u64 / u64::from(max));

    let done = host.io(&mut pair, range(8, 1, 8190, 0, 0));
    assert_eq!(done.status, 0);
    let mut all = vec![1; BYTES];
    storage.region().read_bytes(0, &mut all);
    assert!(all[512..BYTES - 512].iter().all(|byte| *byte == 0), "zeros inside");
    pattern::check_region(storage.region(), 0, 512, 0, 1).expect("the first block stays");
    pattern::check_region(storage.region(), BYTES - 512, 512, BYTES as u64 - 512, 1)
        .expect("the last block stays");
}

/// What is registered while the controller works is reachable at once, and what is not any more
/// is not.
#[test]
fn registrations_take_effect_at_once() {
    let mut host = Host::ready(Options::over(Arc::new(memory(1))));
    let mut pair = host.pair(1, 16, 16);
    let late = Region::map_anonymous(4096, MemoryKind::Host).expect("memory");
    let at = late.address();
    assert_eq!(host.io(&mut pair, read(0, 8, at, 0)).status, 0x004);
    let id = host.map.register(late.clone()).expect("free");
    assert_eq!(host.io(&mut pair, read(0, 8, at, 0)).status, 0);
    pattern::check_region(&late, 0, 4096, 0, 1).expect("read");
    late.fill(0, 4096, 0xee);
    host.map.deregister(id);
    assert_eq!(host.io(&mut pair, read(0, 8, at, 0)).status, 0x004);
    assert_eq!(host.io(&mut pair, write(0, 8, at, 0)).status, 0x004);
    let mut bytes = [0; 4096];
    late.read_bytes(0, &mut bytes);
    assert_eq!(bytes, [0xee; 4096]);
}

#[test]
fn a_window_takes_reads_and_identify() {
    let mut host = Host::ready(Options::over(Arc::new(memory(1))));
    let mut pair = host.pair(1, 16, 16);
    let window = Region::map_anonymous(8192, MemoryKind::Window).expect("memory");
    host.map.register(window.clone()).expect("free");
    assert_eq!(host.io(&mut pair, read(8, 8, window.address(), 0)).status, 0);
    pattern::check_region(&window, 0, 4096, 4096, 1).expect("read");
    let identify = with(entry(6, 0, window.address() + 4096, 0), 10, 1);
    assert_eq!(host.admin(identify).status, 0);
}

#[test]
fn options_that_cannot_be_served_are_refused_by_name() {
    let map = || Arc::new(AddressMap::new());
    let refuse = |options: Options, what: &str| {
        let error = Controller::new(options, map()).err().expect(what).to_string();
        assert!(error.contains(what), "{error}");
    };
    let good = || Options::over(Arc::new(memory(1)));
    refuse(Options::new(Vec::new()), "namespaces");
    refuse(Options { queue_pairs_max: 0, ..good() }, "queue_pairs_max");
    refuse(Options { queue_entries_max: 1, ..good() }, "queue_entries_max");
    refuse(Options { queue_entries_max: 65_537, ..good() }, "queue_entries_max");
    refuse(Options { transfer_bytes_max: 12_288, ..good() }, "transfer_bytes_max");
    refuse(Options { commands_max: 0, ..good() }, "commands_max");
    refuse(Options { storage_depth: 0, ..good() }, "storage_depth");
    refuse(Options::over(Arc::new(memory(4096))), "block_bytes");
    let tiny = MemoryStorage::new(511).expect("memory");
    refuse(Options::over(Arc::new(tiny)), "storage");
    let mut odd = good();
    odd.namespaces[0].block_bytes = 1024;
    refuse(odd, "block_bytes");
}
