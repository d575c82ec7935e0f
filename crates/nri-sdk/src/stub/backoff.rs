//! How long to wait before connecting again.

use std::time::Duration;

/// Pauses between attempts: each twice the one before, up to a maximum, and each shortened
/// at random by up to a half, so that the plugins of a node do not all come back at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reconnect {
    pub first: Duration,
    pub max: Duration,
}

impl Default for Reconnect {
    fn default() -> Self {
        Self { first: Duration::from_millis(100), max: Duration::from_secs(10) }
    }
}

impl Reconnect {
    /// The pause after the given number of failures in a row, counted from 0.
    pub(super) fn pause(self, failures: u32, noise: u32) -> Duration {
        let longest = self.first.saturating_mul(1 << failures.min(30)).min(self.max);
        let share = f64::from(noise) / f64::from(u32::MAX);
        longest.mul_f64(1.0 - share / 2.0)
    }
}

/// Good enough to spread; without a source of randomness there is no jitter.
pub(super) fn noise() -> u32 {
    getrandom::u32().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pauses_double_up_to_the_maximum() {
        let reconnect = Reconnect::default();
        let check = |failures, noise, want_ms| {
            let ms = reconnect.pause(failures, noise).as_millis();
            assert_eq!(ms, want_ms, "after {failures}");
        };
        check(0, 0, 100);
        check(1, 0, 200);
        check(6, 0, 6400);
        check(7, 0, 10_000);
        check(u32::MAX, 0, 10_000);
        check(0, u32::MAX, 50);
        check(9, u32::MAX, 5_000);
    }

    proptest! {
        #[test]
        fn jitter_takes_at_most_a_half(failures: u32, noise: u32) {
            let reconnect = Reconnect::default();
            let (longest, pause) = (reconnect.pause(failures, 0), reconnect.pause(failures, noise));
            prop_assert!(pause <= longest && pause * 2 >= longest);
        }
    }
}
