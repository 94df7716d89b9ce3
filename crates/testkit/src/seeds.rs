//! Which seeds a simulation tries, and how it says which of them failed.
//!
//! `SIDECORE_SEEDS=N` asks for the first N seeds, `SIDECORE_SEED=S` for one alone.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// A number out of the environment.
///
/// # Panics
/// Where it is none.
fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

/// The one seed that was asked for, if one was.
///
/// # Panics
/// Where it is no number.
pub fn alone() -> Option<u64> {
    number("SIDECORE_SEED")
}

/// How many were asked for, if it was said.
///
/// # Panics
/// Where it is no number.
pub fn count() -> Option<u64> {
    number("SIDECORE_SEEDS")
}

/// Tries all seeds below `seeds`, on all CPUs.
///
/// # Panics
/// Where one of them does.
pub fn each(seeds: u64, try_one: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        break;
                    }
                    try_one(seed);
                }
            });
        }
    });
}

/// Tries one seed; where it fails, says which it was, what it was about, and how to see it again.
///
/// # Panics
/// Where `work` does.
pub fn try_and_tell<R>(seed: u64, about: &str, test: &str, work: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        eprintln!("seed {seed}: {about}");
        eprintln!("replay: SIDECORE_SEED={seed} cargo test -p sidecore-testkit --test {test}");
        resume_unwind(panic)
    })
}

/// The place of the I/O `index` out of `ios`: each has one of its own, and none is beside its neighbour's.
pub fn scattered(index: u64, ios: u64) -> u64 {
    // A prime, so without a factor in common with a number of I/Os that it does not divide.
    index * 331 % ios
}
