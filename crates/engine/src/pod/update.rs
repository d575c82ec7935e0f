//! New limits for a pod as a whole.

use std::sync::Arc;

use oci::Resources;

use crate::{error::Result, record::PodRecord, shared::Shared};

/// What a pod is allowed: `resources` for its containers, and `overhead` for itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodLimits {
    pub(crate) overhead: Resources,
    pub(crate) resources: Resources,
}

/// Asks plugins about the new limits and tells them afterwards; they are the only ones who refuse.
///
/// The pod's cgroup is the kubelet's. It writes there after this call, takes an error for a rejected
/// resize, and calls again with the old limits if it could not write. Shims are not told either:
/// their Sandbox service has no call for it.
pub(crate) async fn update(
    shared: Arc<Shared>,
    pod: Arc<PodRecord>,
    limits: Box<PodLimits>,
) -> Result<Box<PodLimits>> {
    let _stage = shared.stages.enter(pod.id, "update-pod");
    shared.plugins.update_pod(&shared, &pod, &limits).await?;
    let PodLimits { overhead, resources } = &*limits;
    let (overhead, resources) = (overhead.clone(), resources.clone());
    let now = PodRecord { overhead, resources, ..PodRecord::clone(&pod) };
    shared.plugins.post_update_pod(&shared, &now).await;
    Ok(limits)
}
