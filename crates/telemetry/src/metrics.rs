//! The metrics registry and its text form.
//!
//! Parts register their own families while they are made; then the registry is frozen
//! into an [`Exposition`], which endpoints share.

use std::{fmt, sync::Arc};

pub use prometheus_client::registry::Registry;
use prometheus_client::{
    encoding::text::encode,
    metrics::{gauge::Gauge, info::Info},
};

/// The content type of [`Exposition::text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Every metric of ours begins with this.
pub const PREFIX: &str = "longshore";

/// A registry with what every daemon has: its version, and when it started.
pub fn registry(version: &'static str, started_at_seconds: i64) -> Registry {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register("build", "Version of this daemon", Info::new([("version", version)]));
    let started = Gauge::<i64>::default();
    started.set(started_at_seconds);
    registry.register("start_time_seconds", "When the daemon started, in Unix time", started);
    registry
}

/// All metrics, ready to be asked for at any time from any thread.
#[derive(Clone)]
pub struct Exposition {
    registry: Arc<Registry>,
}

impl Exposition {
    pub fn new(registry: Registry) -> Self {
        Self { registry: Arc::new(registry) }
    }

    /// The OpenMetrics text form.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl fmt::Debug for Exposition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exposition")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_the_version_and_ends_as_openmetrics_wants() {
        let text = Exposition::new(registry("1.2.3", 7)).text().unwrap();
        assert!(text.contains("longshore_build_info{version=\"1.2.3\"} 1"), "{text}");
        assert!(text.contains("longshore_start_time_seconds 7"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
