//! A hostile host against the software controller: see `testkit::fuzz_controller`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    testkit::fuzz_controller(data);
});
