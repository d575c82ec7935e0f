use std::time::Duration;

/// How long calls may take. A call over its limit is given up, not undone: the shim
/// finishes what it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Calls the shim answers by itself.
    pub quick: Duration,
    /// Calls that run the OCI runtime, which a busy disk or a hook may hold up.
    pub runtime: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { quick: Duration::from_secs(10), runtime: Duration::from_secs(120) }
    }
}
