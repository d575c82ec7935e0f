//! What is counted about the engine.

use prometheus_client::{metrics::counter::Counter, registry::Registry};

/// The metrics of one [`Engine`](crate::Engine). Clones share them; those of the default
/// are shown to nobody.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    pub(crate) events: Counter,
    pub(crate) events_discarded: Counter,
    pub(crate) subscribers_cut_off: Counter,
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let events = registry.sub_registry_with_prefix("events");
        events.register("made", "Events of pods and containers", metrics.events.clone());
        events.register(
            "discarded",
            "Events that nobody was there to read in time",
            metrics.events_discarded.clone(),
        );
        events.register(
            "subscribers_cut_off",
            "Subscribers that did not read as fast as events came",
            metrics.subscribers_cut_off.clone(),
        );
        metrics
    }
}
