//! What is counted about plugins.

use std::{sync::OnceLock, time::Duration};

use nri_wire::{PluginId, api::Event};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::{Family, MetricConstructor},
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Invocation {
    plugin: String,
    operation: &'static str,
    status: &'static str,
    error: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Operation {
    plugin: String,
    operation: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Change {
    plugin: String,
    operation: &'static str,
    r#type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Plugin {
    plugin: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Failure {
    r#type: &'static str,
}

#[derive(Clone)]
struct Seconds;

impl MetricConstructor<Histogram> for Seconds {
    fn new_metric(&self) -> Histogram {
        // 50 µs, as a plugin beside us answers, to 13 s.
        Histogram::new(exponential_buckets(0.000_05, 4.0, 10))
    }
}

/// The metrics of one [`Nri`](crate::Nri). Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    invocations: Family<Invocation, Counter>,
    latency: Family<Operation, Histogram, Seconds>,
    changes: Family<Change, Counter>,
    pub(crate) active: Gauge,
    pub(crate) in_flight: Gauge,
    strikes: Family<Plugin, Counter>,
    starts: Family<Plugin, Counter>,
    failed_changes: Family<Failure, Counter>,
}

impl std::fmt::Debug for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seconds")
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            invocations: Family::default(),
            latency: Family::new_with_constructor(Seconds),
            changes: Family::default(),
            active: Gauge::default(),
            in_flight: Gauge::default(),
            strikes: Family::default(),
            starts: Family::default(),
            failed_changes: Family::default(),
        }
    }
}

/// Those of one plugin, with what is counted at every call at hand.
#[derive(Debug)]
pub(crate) struct PluginMetrics {
    all: Metrics,
    plugin: PluginId,
    answered: [OnceLock<(Counter, Histogram)>; EVENTS],
}

/// Numbers of events are small.
const EVENTS: usize = Event::Last as usize;

impl Metrics {
    /// Makes them part of a registry, under `nri_`.
    pub fn register(&self, registry: &mut Registry) {
        let nri = registry.sub_registry_with_prefix("nri");
        let calls = "Calls of plugins, by their outcome";
        nri.register("plugin_invocations", calls, self.invocations.clone());
        let latency = self.latency.clone();
        nri.register_with_unit("plugin_latency", "How long plugins take", Unit::Seconds, latency);
        let changes = "Changes of containers that plugins asked for, besides adjustments";
        nri.register("plugin_adjustments", changes, self.changes.clone());
        nri.register("active_plugins", "Plugins that are asked", self.active.clone());
        let in_flight = "Requests on their way through plugins";
        nri.register("requests_in_flight", in_flight, self.in_flight.clone());
        let strikes = "Answers that plugins did not give in time";
        nri.register("plugin_strikes", strikes, self.strikes.clone());
        nri.register("plugin_starts", "Starts of plugin programs", self.starts.clone());
        let failed = "Changes of containers that could not be made";
        nri.register("failed_changes", failed, self.failed_changes.clone());
    }

    pub(crate) fn of(&self, plugin: PluginId) -> PluginMetrics {
        PluginMetrics { all: self.clone(), plugin, answered: Default::default() }
    }

    fn call(
        &self,
        plugin: &PluginId,
        operation: &'static str,
        error: Option<&ttrpc::Error>,
    ) -> (Counter, Histogram) {
        let plugin = plugin.to_string();
        let (status, error) = match error {
            None => ("success", ""),
            Some(error) => ("error", error_label(error)),
        };
        let labels = Invocation { plugin: plugin.clone(), operation, status, error };
        let calls = self.invocations.get_or_create(&labels).clone();
        (calls, self.latency.get_or_create(&Operation { plugin, operation }).clone())
    }

    pub(crate) fn asked_for(
        &self,
        plugin: &PluginId,
        operation: &'static str,
        updates: usize,
        evictions: usize,
    ) {
        for (r#type, count) in [("update", updates), ("evict", evictions)] {
            if count > 0 {
                let plugin = plugin.to_string();
                let labels = Change { plugin, operation, r#type };
                self.changes.get_or_create(&labels).inc_by(count as u64);
            }
        }
    }

    pub(crate) fn started(&self, plugin: &PluginId) {
        self.starts.get_or_create(&Plugin { plugin: plugin.to_string() }).inc();
    }

    pub(crate) fn change_failed(&self, r#type: &'static str) {
        self.failed_changes.get_or_create(&Failure { r#type }).inc();
    }
}

impl PluginMetrics {
    pub(crate) fn called(&self, event: Event, took: Duration, error: Option<&ttrpc::Error>) {
        let found = || self.all.call(&self.plugin, event.method(), error);
        match self.answered.get(event as usize) {
            Some(known) if error.is_none() => count(known.get_or_init(found), took),
            _ => count(&found(), took),
        }
    }

    pub(crate) fn synchronized(&self, took: Duration, error: Option<&ttrpc::Error>) {
        count(&self.all.call(&self.plugin, "Synchronize", error), took);
    }

    pub(crate) fn asked_for(&self, operation: &'static str, updates: usize, evictions: usize) {
        self.all.asked_for(&self.plugin, operation, updates, evictions);
    }

    pub(crate) fn strike(&self) {
        self.all.strikes.get_or_create(&Plugin { plugin: self.plugin.to_string() }).inc();
    }

    /// Requests of all plugins that are on their way.
    pub(crate) fn in_flight(&self) -> i64 {
        self.all.in_flight.get()
    }
}

fn count((calls, latency): &(Counter, Histogram), took: Duration) {
    calls.inc();
    latency.observe(took.as_secs_f64());
}

/// The gRPC code in lower case, as dashboards of the reference expect it.
fn error_label(error: &ttrpc::Error) -> &'static str {
    use ttrpc::Code;
    match error.code() {
        Code::Cancelled => "canceled",
        Code::DeadlineExceeded => "deadline_exceeded",
        Code::InvalidArgument => "invalid_argument",
        Code::NotFound => "not_found",
        Code::AlreadyExists => "already_exists",
        Code::PermissionDenied => "permission_denied",
        Code::ResourceExhausted => "resource_exhausted",
        Code::FailedPrecondition => "failed_precondition",
        Code::Aborted => "aborted",
        Code::Unimplemented => "unimplemented",
        Code::Internal => "internal",
        Code::Unavailable => "unavailable",
        Code::Unknown => "unknown",
        _ => "other",
    }
}
