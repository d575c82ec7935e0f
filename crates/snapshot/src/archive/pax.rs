//! Extended headers: records of `"<length> <key>=<value>\n"`, where the length is that of
//! the whole record. A value may hold any bytes, also newlines: attributes do.

use rustix::fs::Timespec;

/// A record, or `None` for bytes that are none.
pub(crate) fn records(mut bytes: &[u8]) -> impl Iterator<Item = Option<(&[u8], &[u8])>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let Some((key, value, rest)) = record(bytes) else {
            bytes = &[];
            return Some(None);
        };
        bytes = rest;
        Some(Some((key, value)))
    })
}

fn record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let blank = bytes.iter().take(20).position(|&b| b == b' ')?;
    let length = usize::try_from(decimal(&bytes[..blank])?).ok()?;
    let (record, rest) = (bytes.get(blank + 1..length)?, bytes.get(length..)?);
    let record = record.strip_suffix(b"\n")?;
    let equals = record.iter().position(|&b| b == b'=')?;
    let (key, value) = (&record[..equals], &record[equals + 1..]);
    (!key.is_empty()).then_some((key, value, rest))
}

pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |value, &digit| match digit {
        b'0'..=b'9' => value.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

/// Seconds with a fraction of any length; what is below nanoseconds is cut off.
pub(crate) fn time(text: &[u8]) -> Option<Timespec> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(text) => (true, text),
        None => (false, text),
    };
    let mut parts = text.splitn(2, |&b| b == b'.');
    let seconds = i64::try_from(decimal(parts.next()?)?).ok()?;
    let fraction = parts.next().unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    let nanos = digits.fold(0i64, |value, digit| value * 10 + i64::from(digit - b'0'));
    Some(match (negative, nanos) {
        (false, _) => Timespec { tv_sec: seconds, tv_nsec: nanos },
        (true, 0) => Timespec { tv_sec: -seconds, tv_nsec: 0 },
        // Nanoseconds count upwards from the second before.
        (true, _) => Timespec { tv_sec: -seconds - 1, tv_nsec: 1_000_000_000 - nanos },
    })
}

#[cfg(test)]
pub(crate) fn encode(key: &[u8], value: &[u8]) -> Vec<u8> {
    let body = key.len() + value.len() + 3;
    let mut length = body + 1;
    while length != body + length.to_string().len() {
        length = body + length.to_string().len();
    }
    [length.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn broken_records_end_the_list() {
        let check = |bytes: &[u8], good: usize, whole: bool| {
            let all: Vec<_> = records(bytes).collect();
            assert_eq!(all.iter().flatten().count(), good, "{bytes:?}");
            assert_eq!(all.iter().all(Option::is_some), whole, "{bytes:?}");
        };
        check(b"", 0, true);
        check(b"6 a=b\n", 1, true);
        check(b"6 a=b\n6 c=d\n", 2, true);
        check(b"5 a=\n", 1, true);
        check(b"7 a=b\n", 0, false);
        check(b"5 a=b\n", 0, false);
        check(b"6 a=b\n0 \n", 1, false);
        check(b"6 a b\n", 0, false);
        check(b"5 =b\n", 0, false);
        check(b"99999999999999999999999 a=b\n", 0, false);
        check(b"6a=b\n", 0, false);
        check(b"-6 a=b\n", 0, false);
        check(b"\0\0\0", 0, false);
    }

    #[test]
    fn times() {
        let check = |text: &str, want: Option<(i64, i64)>| {
            let got = time(text.as_bytes()).map(|t| (t.tv_sec, t.tv_nsec));
            assert_eq!(got, want, "{text}");
        };
        check("0", Some((0, 0)));
        check("1700000000.123456789", Some((1_700_000_000, 123_456_789)));
        check("1.5", Some((1, 500_000_000)));
        check("1.", Some((1, 0)));
        check("1.1234567899", Some((1, 123_456_789)));
        check("-1", Some((-1, 0)));
        check("-1.25", Some((-2, 750_000_000)));
        check("-0.5", Some((-1, 500_000_000)));
        check("", None);
        check(".5", None);
        check("1.5x", None);
        check("1e9", None);
        check("9223372036854775808", None);
    }

    proptest! {
        #[test]
        fn records_round_trip(
            pairs in proptest::collection::vec(("[a-zA-Z.]{1,12}", any::<Vec<u8>>()), 0..8),
        ) {
            let bytes: Vec<u8> = pairs.iter().flat_map(|(k, v)| encode(k.as_bytes(), v)).collect();
            let got: Option<Vec<_>> = records(&bytes)
                .map(|r| r.map(|(k, v)| (String::from_utf8(k.to_vec()).unwrap(), v.to_vec())))
                .collect();
            prop_assert_eq!(got, Some(pairs));
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = records(&bytes).count();
            let _ = time(&bytes);
        }
    }
}
