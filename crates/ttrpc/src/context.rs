//! What goes along with a call besides its argument: metadata and time.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use crate::wire::KeyValue;

/// Key-value pairs sent with a request. Keys do not differ by case and may repeat.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<KeyValue>,
}

impl Metadata {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value after those the key already has.
    pub fn append(&mut self, key: &str, value: impl Into<String>) {
        self.entries.push(KeyValue { key: key.to_ascii_lowercase(), value: value.into() });
    }

    /// The first value of the key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.get_all(key).next()
    }

    pub fn get_all<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a str> {
        self.iter().filter(move |(k, _)| k.eq_ignore_ascii_case(key)).map(|(_, value)| value)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries.iter().map(|kv| (kv.key.as_str(), kv.value.as_str()))
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn from_wire(entries: Vec<KeyValue>) -> Self {
        Self { entries }
    }

    pub(crate) fn as_wire(&self) -> &[KeyValue] {
        &self.entries
    }
}

/// What a client sends along with a call.
///
/// ```
/// # use std::time::Duration;
/// let ctx = ttrpc::Context::timeout(Duration::from_secs(2)).with_metadata("traceparent", "00-1");
/// assert_eq!(ctx.metadata.get("TraceParent"), Some("00-1"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Context {
    pub metadata: Metadata,
    /// From the start of the call to its end, streams included. The server is told what
    /// is left of it and gives up by itself.
    pub timeout: Option<Duration>,
}

impl Context {
    /// No metadata and no time limit.
    pub fn new() -> Self {
        Self::default()
    }

    pub fn timeout(timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..Self::default() }
    }

    pub fn with_metadata(mut self, key: &str, value: impl Into<String>) -> Self {
        self.metadata.append(key, value);
        self
    }

    /// A time too far away to be expressed is no limit.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        Instant::now().checked_add(self.timeout?)
    }
}

/// What a handler knows about the call it serves.
#[derive(Clone, Debug)]
pub struct ServerContext {
    pub metadata: Metadata,
    /// When the client stops waiting; the handler is dropped then.
    pub deadline: Option<Instant>,
    cancelled: CancellationToken,
    disconnected: CancellationToken,
}

impl ServerContext {
    pub(crate) fn new(
        metadata: Metadata,
        deadline: Option<Instant>,
        cancelled: CancellationToken,
        disconnected: CancellationToken,
    ) -> Self {
        Self { metadata, deadline, cancelled, disconnected }
    }

    /// Resolves when the call is over: answered, past its deadline, or its client gone.
    /// For work a handler hands to other tasks; the handler itself is dropped.
    ///
    /// Cancel safe.
    pub fn cancelled(&self) -> WaitForCancellationFuture<'_> {
        self.cancelled.cancelled()
    }

    /// Cancelled when the connection that the call came by has ended, which may be long after
    /// the call. For what a call made and its client alone can use.
    pub fn disconnected(&self) -> CancellationToken {
        self.disconnected.clone()
    }

    pub fn token(&self) -> CancellationToken {
        self.cancelled.clone()
    }

    /// Time left to the call, for calls to others on its behalf.
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// A context for calls to others: the same metadata, the time that is left.
    pub fn outgoing(&self) -> Context {
        Context { metadata: self.metadata.clone(), timeout: self.remaining() }
    }
}

/// What a request says about its time: 0 is no limit, a negative one is over.
pub(crate) fn deadline_from_wire(timeout_nano: i64) -> Option<Instant> {
    match timeout_nano {
        0 => None,
        nano => Instant::now()
            .checked_add(Duration::from_nanos(u64::try_from(nano).unwrap_or_default())),
    }
}

/// The reverse; a deadline that has passed must not look like "no limit".
pub(crate) fn deadline_to_wire(deadline: Option<Instant>) -> i64 {
    deadline.map_or(0, |deadline| {
        let left = deadline.saturating_duration_since(Instant::now()).as_nanos();
        i64::try_from(left).unwrap_or(i64::MAX).max(1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_keys_repeat_and_ignore_case() {
        let mut metadata = Metadata::new();
        metadata.append("Key", "1");
        metadata.append("other", "x");
        metadata.append("kEY", "2");
        assert_eq!(metadata.get("KEY"), Some("1"));
        assert_eq!(metadata.get_all("key").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(metadata.get("none"), None);
    }

    #[test]
    fn deadlines_on_the_wire() {
        let left = |deadline: Option<Instant>| deadline_to_wire(deadline);
        let hour = 3_600_000_000_000;
        assert_eq!(deadline_from_wire(0), None);
        assert!((hour - 1_000_000_000..=hour).contains(&left(deadline_from_wire(hour))));
        assert_eq!(left(None), 0);
        // One that has passed must not look like none.
        assert_eq!(left(deadline_from_wire(-5)), 1);
        assert_eq!(left(Some(Instant::now())), 1);
        assert_eq!(Context::timeout(Duration::MAX).deadline(), None);
    }
}
