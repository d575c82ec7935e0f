//! From counters to a rate, without a clock of our own ticking.
//!
//! ```text
//!   base ──────── latest ──── now        a rate is from `base` to now
//!    └── at least WINDOW ──┘             `latest` becomes the base of the next window
//! ```

use std::time::Duration;

use tokio::time::Instant;

/// A rate over less says more about the moment of asking than about the container.
const WINDOW: Duration = Duration::from_secs(1);

/// What was read longer ago says nothing about now.
const FORGET: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample {
    at: Instant,
    usage_ns: u64,
}

/// CPU time per time, of one group.
#[derive(Debug, Default)]
pub(super) struct Rate {
    base: Option<Sample>,
    latest: Option<Sample>,
}

impl Rate {
    /// Takes a reading; the use of CPUs since an earlier one, in billionths of one CPU.
    /// `None` until there is one.
    pub(super) fn take(&mut self, at: Instant, usage_ns: u64) -> Option<u64> {
        let now = Sample { at, usage_ns };
        let fresh = |sample: &Sample| at.saturating_duration_since(sample.at) <= FORGET;
        self.base = self.base.filter(fresh);
        self.latest = self.latest.filter(fresh);
        match self.latest {
            Some(latest) if at.saturating_duration_since(latest.at) < WINDOW => {}
            latest => {
                self.base = latest;
                self.latest = Some(now);
            }
        }
        let base = self.base?;
        let time = at.saturating_duration_since(base.at).as_nanos();
        let used = u128::from(usage_ns.saturating_sub(base.usage_ns));
        u64::try_from((used * 1_000_000_000).checked_div(time)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Readings at these milliseconds with these nanoseconds of CPU time.
    #[track_caller]
    fn check(readings: &[(u64, u64)], want: &[Option<u64>]) {
        let start = Instant::now();
        let mut rate = Rate::default();
        let one = |(ms, ns): &(u64, u64)| rate.take(start + Duration::from_millis(*ms), *ns);
        let got: Vec<_> = readings.iter().map(one).collect();
        assert_eq!(got, want, "{readings:?}");
    }

    #[test]
    fn the_first_reading_has_no_rate() {
        check(&[(0, 5 * SECOND)], &[None]);
        check(&[(0, 0), (500, SECOND)], &[None, None]);
    }

    #[test]
    fn a_rate_is_over_a_second_at_least() {
        check(&[(0, 0), (1000, SECOND)], &[None, Some(SECOND)]);
        check(&[(0, 0), (2000, SECOND)], &[None, Some(SECOND / 2)]);
        // Somebody else asks in between: the window does not shrink.
        check(
            &[(0, 0), (1000, SECOND), (1001, SECOND), (1500, SECOND), (2000, SECOND)],
            &[None, Some(SECOND), Some(SECOND * 1000 / 1001), Some(SECOND * 2 / 3), Some(0)],
        );
    }

    #[test]
    fn what_is_old_is_forgotten() {
        check(&[(0, 0), (120_000, SECOND)], &[None, Some(SECOND / 120)]);
        check(&[(0, 0), (120_001, SECOND), (121_001, 2 * SECOND)], &[None, None, Some(SECOND)]);
    }

    #[test]
    fn a_counter_that_began_anew_is_no_rate_below_zero() {
        check(&[(0, 5 * SECOND), (1000, SECOND)], &[None, Some(0)]);
    }
}
