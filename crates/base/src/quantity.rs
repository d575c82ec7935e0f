//! Sizes and times as people write them in configuration: `16MiB`, `1h30m`.
//!
//! **Invariant:** `Display` prints what `FromStr` reads back to the same value, so a
//! generated sample file is a valid file.

use std::{fmt, str::FromStr, time::Duration};

use serde::de;

use crate::text::serde_as_text;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error(
        "{0:?} is not a size: write a whole number with B, KiB, MiB, GiB, TiB, kB, MB, GB or TB"
    )]
    Size(String),
    #[error("{0:?} is not a time: write like 500ms, 30s, 5m or 1h30m")]
    Span(String),
    #[error("{0:?} is too large")]
    TooLarge(String),
}

/// A number of bytes. Binary (`MiB`) and decimal (`MB`) units are both exact; bare
/// letters (`16M`) are refused, because half the world reads them one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

const SIZE_UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

impl FromStr for ByteSize {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let wrong = || QuantityError::Size(text.to_owned());
        let (count, unit) = split_number(text.trim()).ok_or_else(wrong)?;
        let scale = match unit.trim_start() {
            "" => 1,
            unit => SIZE_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?.1,
        };
        let count: u64 = count.parse().map_err(|_| QuantityError::TooLarge(text.to_owned()))?;
        let bytes = count.checked_mul(scale);
        bytes.map(Self).ok_or_else(|| QuantityError::TooLarge(text.to_owned()))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = |scale: u64| self.0 != 0 && self.0.is_multiple_of(scale);
        let (unit, scale) =
            SIZE_UNITS.into_iter().find(|(_, scale)| exact(*scale)).unwrap_or(("B", 1));
        f.pad(&format!("{}{unit}", self.0 / scale))
    }
}

impl serde::Serialize for ByteSize {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// Takes a plain number too: bytes are what a bare size can only mean.
impl<'de> serde::Deserialize<'de> for ByteSize {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visit;

        impl de::Visitor<'_> for Visit {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"16MiB\", or a number of bytes")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(bytes))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                u64::try_from(bytes).map(ByteSize).map_err(|_| E::custom("a size is not negative"))
            }
        }

        from.deserialize_any(Visit)
    }
}

/// A length of time, down to the nanosecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub Duration);

/// Longest first, each with its nanoseconds.
const SPAN_UNITS: [(&str, u64); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

impl FromStr for Span {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let wrong = || QuantityError::Span(text.to_owned());
        let too_large = || QuantityError::TooLarge(text.to_owned());
        let mut rest = text.trim();
        if rest == "0" {
            return Ok(Self(Duration::ZERO));
        }
        // Units go from long to short, each at most once: `30m1h` is a slip of the pen.
        let mut units = SPAN_UNITS.iter();
        let mut total = Duration::ZERO;
        loop {
            let (count, tail) = split_number(rest).ok_or_else(wrong)?;
            let end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
            let (name, tail) = tail.split_at(end);
            let (_, nanos) = units.find(|(unit, _)| *unit == name).ok_or_else(wrong)?;
            let count: u64 = count.parse().map_err(|_| too_large())?;
            let part = u128::from(count) * u128::from(*nanos);
            let part = from_nanos(part).ok_or_else(too_large)?;
            total = total.checked_add(part).ok_or_else(too_large)?;
            rest = tail;
            if rest.is_empty() {
                return Ok(Self(total));
            }
        }
    }
}

fn from_nanos(nanos: u128) -> Option<Duration> {
    let secs = u64::try_from(nanos / 1_000_000_000).ok()?;
    let below = u32::try_from(nanos % 1_000_000_000).ok()?;
    Some(Duration::new(secs, below))
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_zero() {
            return f.pad("0s");
        }
        let mut rest = self.0.as_nanos();
        let mut text = String::new();
        for (unit, nanos) in SPAN_UNITS {
            let count = rest / u128::from(nanos);
            if count > 0 {
                text.push_str(&format!("{count}{unit}"));
                rest %= u128::from(nanos);
            }
        }
        f.pad(&text)
    }
}

serde_as_text!(Span);

/// Digits first; `None` without any.
fn split_number(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn size(text: &str, want: Option<u64>) {
        assert_eq!(text.parse::<ByteSize>().ok(), want.map(ByteSize), "{text:?}");
    }

    #[test]
    fn sizes() {
        size("0", Some(0));
        size("16MiB", Some(16 << 20));
        size(" 16 MiB ", Some(16 << 20));
        size("1kB", Some(1000));
        size("4096", Some(4096));
        size("4096B", Some(4096));
        size("16777215TiB", Some(16_777_215 << 40));
        size("16777216TiB", None);
        size("99999999999999999999", None);
        size("16M", None);
        size("16mib", None);
        size("1.5GiB", None);
        size("-1", None);
        size("MiB", None);
        size("", None);
    }

    #[track_caller]
    fn span(text: &str, want: Option<Duration>) {
        assert_eq!(text.parse::<Span>().ok(), want.map(Span), "{text:?}");
    }

    #[test]
    fn spans() {
        span("5m", Some(Duration::from_secs(300)));
        span("1h30m", Some(Duration::from_secs(5400)));
        span("500ms", Some(Duration::from_millis(500)));
        span("2d", Some(Duration::from_secs(172_800)));
        span("0", Some(Duration::ZERO));
        span("0s", Some(Duration::ZERO));
        span("0h0s", Some(Duration::ZERO));
        span("30m1h", None);
        span("1s1s", None);
        span("5", None);
        span("m", None);
        span("", None);
        span("1.5s", None);
        span("5 m", None);
        span("-5m", None);
        span("18446744073709551615s", Some(Duration::from_secs(u64::MAX)));
        span("18446744073709551616s", None);
        span("18446744073709551615d", None);
    }

    #[test]
    fn a_wrong_value_says_how_to_write_it() {
        let text = "16M".parse::<ByteSize>().unwrap_err().to_string();
        assert!(text.contains("MiB"), "{text}");
        let text = "5".parse::<Span>().unwrap_err().to_string();
        assert!(text.contains("5m"), "{text}");
    }

    #[test]
    fn sizes_deserialize_from_numbers_and_text() {
        assert_eq!(serde_json::from_str::<ByteSize>("1024").unwrap(), ByteSize(1024));
        assert_eq!(serde_json::from_str::<ByteSize>("\"1KiB\"").unwrap(), ByteSize(1024));
        assert!(serde_json::from_str::<ByteSize>("-1").is_err());
        assert!(serde_json::from_str::<Span>("5").is_err());
        assert_eq!(serde_json::to_string(&ByteSize(1 << 20)).unwrap(), "\"1MiB\"");
    }

    proptest! {
        #[test]
        fn sizes_round_trip(bytes: u64, shift in 0u32..64) {
            let size = ByteSize(bytes >> shift << (shift / 2));
            prop_assert_eq!(size.to_string().parse(), Ok(size));
        }

        #[test]
        fn spans_round_trip(secs: u64, nanos in 0u32..1_000_000_000, shift in 0u32..64) {
            let span = Span(Duration::new(secs >> shift, nanos));
            prop_assert_eq!(span.to_string().parse(), Ok(span));
        }

        #[test]
        fn no_text_panics(text in "[0-9a-zA-Z. µ-]{0,12}") {
            let _ = text.parse::<ByteSize>();
            let _ = text.parse::<Span>();
        }
    }
}
