//! Drives that lie: forged completions, overwritten queue memory and registers, at random.

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_answer_of_a_drive_panics_or_loses_a_request(
        data in prop::collection::vec(any::<u8>(), 0..1000),
    ) {
        testkit::fuzz_driver(&data);
    }

    /// Little else than submissions and forged completions, so that forgeries meet commands.
    #[test]
    fn forged_completions_end_nothing_twice(
        steps in prop::collection::vec((3u8..12, any::<[u8; 4]>()), 0..300),
    ) {
        let data: Vec<u8> = steps
            .into_iter()
            .flat_map(|(what, [a, b, c, d])| [what, a, b, c % 32, d])
            .collect();
        testkit::fuzz_driver(&data);
    }
}
