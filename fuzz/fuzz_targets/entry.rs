//! Request entries and completion records: every bit pattern is some request, packing undoes
//! unpacking, and each field comes from its own bits and no others.
#![no_main]

use abi::ring::{CompletionRecord, RequestEntry};
use libfuzzer_sys::fuzz_target;

/// `len` bits of the 32 bytes from bit `from` on, as the table of the layout counts them.
fn bits(bytes: &[u8; 32], from: usize, len: usize) -> u64 {
    (0..len).fold(0, |sum, bit| {
        let at = from + bit;
        sum | u64::from(bytes[at / 8] >> (at % 8) & 1) << bit
    })
}

fuzz_target!(|bytes: [u8; 32]| {
    let word = |index: usize| bits(&bytes, 64 * index, 64);
    let entry = RequestEntry { w: [word(0), word(1), word(2), word(3)] };
    let request = entry.unpack();

    assert_eq!(request.source_offset, bits(&bytes, 0, 48));
    assert_eq!(u64::from(request.record_turn), bits(&bytes, 48, 16));
    assert_eq!(u64::from(request.length), bits(&bytes, 64, 24) + 1);
    assert_eq!(u64::from(request.opcode), bits(&bytes, 88, 8));
    assert_eq!(u64::from(request.limit_ms), bits(&bytes, 96, 16));
    assert_eq!(request.buffer_offset, bits(&bytes, 128, 40));
    assert_eq!(u64::from(request.buffer.bits()), bits(&bytes, 168, 24));
    assert_eq!(u64::from(request.record), bits(&bytes, 192, 24));
    assert_eq!(u64::from(request.source.bits()), bits(&bytes, 216, 24));
    let (first, second) = entry.tags();
    assert_eq!(u64::from(first), bits(&bytes, 112, 16));
    assert_eq!(u64::from(second), bits(&bytes, 240, 16));

    let again = RequestEntry::pack(&request, first);
    assert_eq!(again.unpack(), request);
    assert_eq!(again.tags(), (first, first));
    assert_eq!(again == entry, first == second);

    let record = CompletionRecord { word: word(0) };
    assert_eq!(CompletionRecord::pack(record.turn(), record.status(), record.detail()), record);
});
