//! Instants as answers and records spell them.

use std::time::{Duration, SystemTime};

use prost_types::Timestamp;

/// A clock before 1970 is a clock that is not set.
fn since_epoch(at: SystemTime) -> Duration {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

pub(crate) fn to_wire(at: SystemTime) -> Timestamp {
    let since = since_epoch(at);
    Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(since.subsec_nanos()).unwrap_or_default(),
    }
}

pub(crate) fn unix_nanos(at: SystemTime) -> i64 {
    i64::try_from(since_epoch(at).as_nanos()).unwrap_or(i64::MAX)
}
