//! Requests that no sane kernel writes, by the same function that the fuzzer calls.

/// A few thousand inputs of pseudo-random bytes, the same in every run.
#[test]
fn random_requests_touch_nothing_that_they_must_not() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..4000 {
        let mut data = Vec::with_capacity(34 * 4);
        while data.len() < 34 * 4 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            data.extend_from_slice(&state.to_le_bytes());
        }
        data.truncate(34 * 4);
        testkit::fuzz_ring(&data);
    }
}
