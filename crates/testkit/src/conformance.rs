//! One list of properties that every kind of storage has, whatever is behind it.
//!
//! [`run`] takes any writable storage of at least [`BYTES_MIN`] bytes whose content may be lost, and
//! goes through [`CASES`]; [`run_read_only`] takes one that refuses writes and holds the pattern. All
//! data is self-describing, all memory is poisoned before it is read into, and every byte is
//! checked: those that should have changed and those around them that should not.
//!
//! What differs legally between kinds is asked of the storage: the block size, the largest request.
//! Timing is not tested; every wait has a bound, so that what hangs fails.

mod cases;
mod user;

use storage::Storage;

pub use user::User;

/// Least length of a storage that the suite can run on.
pub const BYTES_MIN: u64 = 1 << 20;

/// A property: its name, and what panics where it does not hold.
pub type Case = (&'static str, fn(&dyn Storage));

/// All properties of writable storage.
pub const CASES: &[Case] = &[
    ("geometry_makes_sense", cases::geometry_makes_sense),
    ("every_alignment_moves_exactly_its_bytes", cases::every_alignment_moves_exactly_its_bytes),
    ("random_operations_agree_with_a_model", cases::random_operations_agree_with_a_model),
    ("large_requests_arrive_whole", cases::large_requests_arrive_whole),
    ("depth_is_a_limit", cases::depth_is_a_limit),
    ("tokens_come_back_once", cases::tokens_come_back_once),
    ("reads_end_where_the_storage_ends", cases::reads_end_where_the_storage_ends),
    ("what_cannot_succeed_is_handed_back", cases::what_cannot_succeed_is_handed_back),
    ("cancelled_requests_end_once", cases::cancelled_requests_end_once),
    ("nothing_is_touched_after_quiesce", cases::nothing_is_touched_after_quiesce),
    ("counters_count", cases::counters_count),
    ("queues_work_side_by_side", cases::queues_work_side_by_side),
    ("zeroes_read_as_zeros", cases::zeroes_read_as_zeros),
    ("flush_ends_well", cases::flush_ends_well),
    ("registered_memory_works_like_any_other", cases::registered_memory_works_like_any_other),
    ("a_queue_may_go_while_requests_are_in_flight", cases::a_queue_may_go_with_requests_in_flight),
    ("a_queue_may_change_threads", cases::a_queue_may_change_threads),
];

/// Runs the whole list.
///
/// # Panics
/// Where a property does not hold; its name stands in standard error before the panic's message.
pub fn run(storage: &dyn Storage) {
    assert!(storage.geometry().bytes >= BYTES_MIN, "too small: {}", storage.explain());
    for (name, case) in CASES {
        eprintln!("conformance: {name}");
        case(storage);
    }
}

/// Runs what holds for read-only storage that is filled with the pattern of a generation.
///
/// # Panics
/// Where a property does not hold.
pub fn run_read_only(storage: &dyn Storage, generation: u64) {
    cases::geometry_makes_sense(storage);
    cases::writes_are_refused(storage, generation);
}
