//! Instants as logs spell them.

use std::time::{Duration, SystemTime};

/// RFC 3339 in UTC with nanoseconds, always of the same length.
#[derive(Clone, Copy, Debug)]
pub struct Stamp([u8; Self::LEN]);

impl Stamp {
    const LEN: usize = "2026-01-02T03:04:05.000000006Z".len();

    pub fn new(at: SystemTime) -> Self {
        let since = since_epoch(at);
        let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
        let (year, month, day) = civil(days);
        let mut text = *b"0000-00-00T00:00:00.000000000Z";
        digits(&mut text[0..4], year);
        digits(&mut text[5..7], month);
        digits(&mut text[8..10], day);
        digits(&mut text[11..13], second / 3600);
        digits(&mut text[14..16], second / 60 % 60);
        digits(&mut text[17..19], second % 60);
        digits(&mut text[20..29], since.subsec_nanos().into());
        Self(text)
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn as_str(&self) -> &str {
        // Digits and punctuation only.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// A clock before 1970 is a clock that is not set.
fn since_epoch(at: SystemTime) -> Duration {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn digits(field: &mut [u8], mut value: u64) {
    for digit in field.iter_mut().rev() {
        *digit = b'0' + u8::try_from(value % 10).unwrap_or_default();
        value /= 10;
    }
}

/// Year, month and day of a day counted from 1970. Years are taken to begin in March, so
/// that the leap day is the last of a year, and come in eras of 400.
fn civil(days: u64) -> (u64, u64, u64) {
    const ERA: u64 = 146_097;
    let shifted = days + 719_468; // days from March 1st of the year 0 to 1970
    let (era, day_of_era) = (shifted / ERA, shifted % ERA);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_based = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_based + 2) / 5 + 1;
    let month = if march_based < 10 { march_based + 3 } else { march_based - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(seconds: u64, nanos: u32, want: &str) {
        let at = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos);
        assert_eq!(Stamp::new(at).as_str(), want);
    }

    #[test]
    fn stamps() {
        check(0, 0, "1970-01-01T00:00:00.000000000Z");
        check(951_782_399, 999_999_999, "2000-02-28T23:59:59.999999999Z");
        check(951_782_400, 1, "2000-02-29T00:00:00.000000001Z");
        check(951_868_800, 0, "2000-03-01T00:00:00.000000000Z");
        check(1_700_000_000, 120_000_000, "2023-11-14T22:13:20.120000000Z");
        check(4_102_444_799, 0, "2099-12-31T23:59:59.000000000Z");
        check(4_107_542_400, 0, "2100-03-01T00:00:00.000000000Z");
    }

    #[test]
    fn every_day_of_four_centuries_follows_the_one_before() {
        let every = |y: u64, n: u64| y.is_multiple_of(n);
        let leap = |y: u64| every(y, 4) && (!every(y, 100) || every(y, 400));
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..146_097 {
            assert_eq!(civil(days), (year, month, day));
            let last = match month {
                4 | 6 | 9 | 11 => 30,
                2 => 28 + u64::from(leap(year)),
                _ => 31,
            };
            (year, month, day) = match (month, day == last) {
                (_, false) => (year, month, day + 1),
                (12, true) => (year + 1, 1, 1),
                (_, true) => (year, month + 1, 1),
            };
        }
    }
}
