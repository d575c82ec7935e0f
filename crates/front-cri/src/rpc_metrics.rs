//! How many calls, how they ended and how long they took, per RPC.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
};
use telemetry::metrics::Registry;

#[derive(Clone, Debug)]
pub(crate) struct RpcMetrics {
    calls: Family<Outcome, Counter>,
    seconds: Family<Rpc, Histogram>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    rpc: &'static str,
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Rpc {
    rpc: &'static str,
}

/// From a list served out of memory to a pull of some minutes.
const SECONDS: [f64; 12] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5, 30.0, 300.0];

impl RpcMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            calls: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(SECONDS)),
        };
        let cri = registry.sub_registry_with_prefix("cri");
        cri.register("calls", "CRI calls by their outcome", metrics.calls.clone());
        cri.register("call_seconds", "Time until a CRI call was answered", metrics.seconds.clone());
        metrics
    }

    pub(crate) fn count(&self, rpc: &'static str, code: &'static str, took: Duration) {
        self.calls.get_or_create(&Outcome { rpc, code }).inc();
        self.seconds.get_or_create(&Rpc { rpc }).observe(took.as_secs_f64());
    }
}
