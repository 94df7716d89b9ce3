//! PRPs built for arbitrary transfers, read back by a plain walker as a drive would.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sidecore_proto::prp::{self, DataPointer, ListRoom, PrpError};

/// Reads a data pointer as the standard tells a controller to: the (address, bytes) pieces.
fn walk(
    pointer: DataPointer,
    bytes: u64,
    page: u64,
    memory: &BTreeMap<u64, u64>,
) -> Vec<(u64, u64)> {
    let mut pieces = Vec::new();
    let first = bytes.min(page - pointer.prp1 % page);
    pieces.push((pointer.prp1, first));
    let mut left = bytes - first;
    if left == 0 {
        assert_eq!(pointer.prp2, 0);
        return pieces;
    }
    if left <= page {
        pieces.push((pointer.prp2, left));
        return pieces;
    }
    let mut at = pointer.prp2;
    while left > 0 {
        if (at + 8).is_multiple_of(page) && left > page {
            at = memory[&at];
            assert!(at.is_multiple_of(page), "a further list begins a page");
        }
        let piece = left.min(page);
        pieces.push((memory[&at], piece));
        left -= piece;
        at += 8;
    }
    pieces
}

/// Pages in an order that no contiguous mapping has.
fn scattered(n: u64, offset: u64, page: u64) -> u64 {
    let place = 0x10_0000 + (n * 7 % 1021) * 3 * page;
    if n == 0 { place + offset } else { place }
}

fn build(
    bytes: u64,
    offset: u64,
    page: u64,
    list: u64,
    room: usize,
) -> Result<Vec<(u64, u64)>, PrpError> {
    let mut entries = vec![u64::MAX; room];
    let list = ListRoom { address: list, entries: &mut entries };
    let address = list.address;
    let pointer = prp::build(bytes, page, |n| scattered(n, offset, page), list)?;
    assert!(entries[pointer.list_entries..].iter().all(|entry| *entry == u64::MAX));
    let memory =
        (0u64..).map(|n| address + 8 * n).zip(entries).take(pointer.list_entries).collect();
    Ok(walk(pointer, bytes, page, &memory))
}

proptest! {
    #[test]
    fn a_drive_finds_every_byte(
        bytes in 1u64..3_000_000,
        offset in 0u64..1024,
        list_entry in 0u64..512,
        page_shift in 12u32..14,
    ) {
        let page = 1u64 << page_shift;
        let offset = offset * 4;
        let pieces = build(bytes, offset, page, 0x4000_0000 + list_entry * 8, 4096).unwrap();
        let expected: Vec<(u64, u64)> = (0..prp::pages_touched(offset, bytes, page))
            .map(|n| {
                let first = page - offset;
                let before = if n == 0 { 0 } else { first + (n - 1) * page };
                let most = if n == 0 { first } else { page };
                (scattered(n, offset, page), most.min(bytes - before))
            })
            .collect();
        prop_assert_eq!(pieces, expected);
    }

    #[test]
    fn too_little_room_is_an_error(bytes in 9000u64..3_000_000, list_entry in 0u64..512) {
        let list = 0x4000_0000 + list_entry * 8;
        let Err(PrpError::ListFull { .. }) = build(bytes, 0, 4096, list, 1) else {
            return Err(TestCaseError::fail("one entry is no list"));
        };
    }
}

#[test]
fn the_edges_of_pages_decide() {
    let list = || 0x9000;
    let pointer = |address: u64, bytes: u64| {
        let mut entries = [0; 8];
        let room = ListRoom { address: list(), entries: &mut entries };
        prp::build_contiguous(address, bytes, 4096, room)
            .map(|pointer| (pointer.prp1, pointer.prp2, pointer.list_entries))
    };
    assert_eq!(pointer(0x5000, 4096), Ok((0x5000, 0, 0)));
    assert_eq!(pointer(0x5000, 4097), Ok((0x5000, 0x6000, 0)));
    assert_eq!(pointer(0x5ffc, 4), Ok((0x5ffc, 0, 0)));
    assert_eq!(pointer(0x5ffc, 8), Ok((0x5ffc, 0x6000, 0)));
    assert_eq!(pointer(0x5004, 8192), Ok((0x5004, 0x9000, 2)));
    let unaligned = PrpError::Unaligned { address: 0x5002, alignment: 4 };
    assert_eq!(pointer(0x5002, 512), Err(unaligned));
}
