//! Fault scripts as people give them, fitted to how many I/Os there will be.

use anyhow::{Context, Result};
use storage::faults::FaultScript;

/// A counted fault falls on one in so many I/Os where nobody says and there are enough.
const EVERY: u64 = 7;

/// Parses a script for a run of at least `ios` I/Os: a fault with a count (`n=`) and no spread
/// (`every=`) is spread so that all of them fall within the run.
///
/// # Errors
/// No script; the text quotes it.
pub fn parse(text: &str, ios: u64) -> Result<FaultScript> {
    let parts: Vec<String> = text.split(';').map(|part| spread(part, ios)).collect();
    parts.join(";").parse().with_context(|| format!("--faults {text}"))
}

fn spread(part: &str, ios: u64) -> String {
    let keys = part.split_once(':').map_or("", |(_, keys)| keys);
    let value = |name: &str| {
        keys.split(',').find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
    };
    let places = ["every", "offset", "lba", "after"];
    match value("n").and_then(|n| n.trim().parse::<u64>().ok()) {
        Some(n) if n > 0 && places.iter().all(|place| value(place).is_none()) => {
            format!("{part},every={}", (ios / n).clamp(1, EVERY))
        }
        _ => part.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_faults_fall_within_the_run() {
        assert_eq!(spread("flip:n=64", 16_384), "flip:n=64,every=7");
        assert_eq!(spread("flip:n=2", 5), "flip:n=2,every=2");
        assert_eq!(spread("flip:n=9", 5), "flip:n=9,every=1");
        assert_eq!(spread("lost:n=3,every=20", 5), "lost:n=3,every=20");
        assert_eq!(spread("late:ms=10,rate=0.02", 5), "late:ms=10,rate=0.02");
        assert_eq!(spread("error:n=1,offset=4096", 5), "error:n=1,offset=4096");
        assert!(parse("flip:n=2;lost:n=1", 100).is_ok());
        assert!(parse("nonsense", 100).is_err());
    }
}
