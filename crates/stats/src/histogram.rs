//! A histogram of nanoseconds by powers of two.

/// Buckets: one for zero, one for each power of two.
pub const BUCKETS: usize = 65;

/// Bucket of a value: 0 for 0, else 1 + floor(log2 value), so that bucket `b` holds
/// `2^(b-1)..2^b`.
pub const fn bucket(value: u64) -> usize {
    (u64::BITS - value.leading_zeros()) as usize
}

/// Counts by power of two. Percentiles are exact to within their bucket, hence to a factor of two.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histogram {
    counts: [u64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS] }
    }
}

impl Histogram {
    pub(crate) fn from_counts(words: &[u64]) -> Self {
        let mut counts = [0; BUCKETS];
        counts.copy_from_slice(&words[..BUCKETS]);
        Self { counts }
    }

    /// Adds one value.
    pub fn record(&mut self, value: u64) {
        self.counts[bucket(value)] += 1;
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Counts by bucket: bucket 0 holds zeros, bucket `b` holds `2^(b-1)..2^b`.
    pub fn counts(&self) -> &[u64; BUCKETS] {
        &self.counts
    }

    /// Upper bound (exclusive, saturating) of the bucket that holds the `q` quantile, 0..=1;
    /// `None` where nothing was recorded.
    #[expect(clippy::cast_possible_truncation, reason = "a rank is at most the count")]
    #[expect(clippy::cast_sign_loss, reason = "clamped to 0..=1 before")]
    pub fn quantile_bound(&self, q: f64) -> Option<u64> {
        let count = self.count();
        let rank = ((q.clamp(0.0, 1.0) * count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for (b, n) in self.counts.iter().enumerate() {
            seen += n;
            if seen >= rank && count > 0 {
                return Some(1u64.checked_shl(u32::try_from(b).ok()?).unwrap_or(u64::MAX));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{Histogram, bucket};

    #[test]
    fn buckets_are_powers_of_two() {
        for (value, want) in [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (1023, 10), (1024, 11)] {
            assert_eq!(bucket(value), want, "{value}");
        }
        assert_eq!(bucket(u64::MAX), 64);
    }

    #[test]
    fn quantiles_move_with_the_tail() {
        let mut h = Histogram::default();
        assert_eq!(h.quantile_bound(0.5), None);
        for _ in 0..98 {
            h.record(1000);
        }
        for _ in 0..2 {
            h.record(10_000_000);
        }
        assert_eq!(h.quantile_bound(0.5), Some(1024));
        assert_eq!(h.quantile_bound(0.99), Some(1 << 24));
        assert_eq!(h.count(), 100);
    }
}
