//! Hostile requests: see `testkit::fuzz_ring`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    testkit::fuzz_ring(data);
});
