//! Instants as the wire formats spell them.
//!
//! [`Timestamp`] is UTC with nanoseconds; `Display` and `FromStr` are RFC 3339. CRI and
//! the shim API carry `i64` nanoseconds since 1970, where 0 means "not yet".

pub use jiff::Timestamp;

/// Clamped to what `i64` nanoseconds can hold (1677 to 2262).
pub fn to_unix_nanos(at: Timestamp) -> i64 {
    let nanos = at.as_nanosecond();
    i64::try_from(nanos).unwrap_or(if nanos < 0 { i64::MIN } else { i64::MAX })
}

pub fn from_unix_nanos(nanos: i64) -> Timestamp {
    Timestamp::from_nanosecond(nanos.into()).expect("every i64 of nanoseconds is within its years")
}

/// 0 is how the wire says "not yet".
pub fn to_wire(at: Option<Timestamp>) -> i64 {
    at.map_or(0, to_unix_nanos)
}

/// The inverse of [`to_wire`].
pub fn from_wire(nanos: i64) -> Option<Timestamp> {
    (nanos != 0).then(|| from_unix_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn nanos_round_trip(nanos: i64) {
            prop_assert_eq!(to_unix_nanos(from_unix_nanos(nanos)), nanos);
            prop_assert_eq!(to_wire(from_wire(nanos)), nanos);
        }
    }

    #[test]
    fn far_instants_are_clamped() {
        assert_eq!(to_unix_nanos(Timestamp::MAX), i64::MAX);
        assert_eq!(to_unix_nanos(Timestamp::MIN), i64::MIN);
    }

    #[test]
    fn text_is_rfc_3339() {
        let at = from_unix_nanos(1_700_000_000_120_000_000);
        assert_eq!(at.to_string(), "2023-11-14T22:13:20.12Z");
        assert_eq!(at.to_string().parse::<Timestamp>().ok(), Some(at));
    }
}
