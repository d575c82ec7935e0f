//! How one plugin answers: how often, how fast, how well.
//!
//! Times are counted in buckets, four to each doubling of a microsecond, so that a percentile
//! is off by less than a quarter and a plugin costs the same after a year.

use std::time::Duration;

const PER_DOUBLING: usize = 4;
/// The last one holds everything above an hour.
const BUCKETS: usize = 32 * PER_DOUBLING;

/// Calls of a plugin so far.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    calls: u64,
    errors: u64,
    buckets: [u32; BUCKETS],
}

/// The same, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    pub calls: u64,
    /// Refusals among them, and calls without an answer.
    pub errors: u64,
    /// What half of them took at most; zero before the first.
    pub p50: Duration,
    pub p99: Duration,
}

impl Default for Tally {
    fn default() -> Self {
        Self { calls: 0, errors: 0, buckets: [0; BUCKETS] }
    }
}

impl Tally {
    pub(crate) fn count(&mut self, took: Duration, failed: bool) {
        self.calls += 1;
        self.errors += u64::from(failed);
        let bucket = &mut self.buckets[bucket(took)];
        *bucket = bucket.saturating_add(1);
    }

    pub(crate) fn calls(&self) -> Calls {
        let (p50, p99) = (self.percentile(50), self.percentile(99));
        Calls { calls: self.calls, errors: self.errors, p50, p99 }
    }

    /// The upper end of the bucket that holds it.
    fn percentile(&self, percent: u64) -> Duration {
        let all: u64 = self.buckets.iter().copied().map(u64::from).sum();
        let mut needed = (all * percent).div_ceil(100);
        if needed == 0 {
            return Duration::ZERO;
        }
        let reaches = |count: u32| {
            needed = needed.saturating_sub(count.into());
            needed == 0
        };
        let found = self.buckets.iter().copied().position(reaches);
        Duration::from_micros(end(found.unwrap_or(BUCKETS - 1)))
    }
}

fn bucket(took: Duration) -> usize {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
    let doublings = micros.ilog2() as usize;
    // The two bits below the highest tell which quarter.
    let quarter = ((u128::from(micros) << 2 >> doublings) & 3) as usize;
    (doublings * PER_DOUBLING + quarter).min(BUCKETS - 1)
}

/// The first microsecond that is not in the bucket.
fn end(bucket: usize) -> u64 {
    let (doublings, quarter) = (bucket / PER_DOUBLING, bucket % PER_DOUBLING);
    ((quarter as u64 + 5) << doublings).div_ceil(4)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_is_zero() {
        assert_eq!(Tally::default().calls(), Calls::default());
    }

    proptest! {
        #[test]
        fn percentiles_are_near_the_truth(mut micros in prop::collection::vec(1_u64..10_000_000, 1..200)) {
            let mut tally = Tally::default();
            micros.iter().for_each(|m| tally.count(Duration::from_micros(*m), *m % 2 == 0));
            micros.sort_unstable();
            let calls = tally.calls();
            prop_assert_eq!(calls.calls, micros.len() as u64);
            prop_assert_eq!(calls.errors, micros.iter().filter(|m| **m % 2 == 0).count() as u64);
            for (percent, got) in [(50, calls.p50), (99, calls.p99)] {
                let truth = micros[(micros.len() * percent).div_ceil(100) - 1];
                let got = u64::try_from(got.as_micros()).unwrap();
                prop_assert!(got >= truth && got <= truth + truth / 4 + 1, "{got} for {truth}");
            }
        }
    }
}
