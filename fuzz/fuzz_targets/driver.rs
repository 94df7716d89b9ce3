//! A drive that says anything: see `testkit::fuzz_driver`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    testkit::fuzz_driver(data);
});
