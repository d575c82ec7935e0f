//! New limits for a container.

use std::{fs, sync::Arc};

use oci::{Resources, Spec};

use crate::{
    error::{EngineError, Result},
    files::{blocking, replace},
    record::ContainerRecord,
    shared::Shared,
};

/// Writes the new limits into the spec and, if it runs, into the cgroup; if that fails the
/// old spec is put back. Returns all limits it has now.
pub(crate) async fn update(
    shared: Arc<Shared>,
    container: Arc<ContainerRecord>,
    resources: Resources,
) -> Result<Resources> {
    let _stage = shared.stages.enter(container.id, "update-container");
    let path = shared.layout.spec(&container.pod, &container.id);
    let old = fs::read(&path).map_err(EngineError::io("read", &path))?;
    let mut spec: Spec = serde_json::from_slice(&old).map_err(|e| {
        EngineError::failed(format!("parse {}", path.display()), base::Kind::Internal, &e)
    })?;
    let pod = shared.pods.get(&container.pod);
    let handler = shared.handler(pod.as_ref().map_or("", |pod| pod.handler.as_str()))?;
    let config = &shared.config;
    let limits =
        oci::Limits { host: &config.host, handler: &handler.facts, policy: &config.policy };
    let updated = oci::update(&mut spec, &resources, limits)?;
    let new = oci::to_json(&spec).expect("a spec is JSON");
    let to = path.clone();
    blocking(move || replace(&to, &new)).await?;
    let now = oci::resources_of(&spec);
    if container.phase.pid().is_none() {
        return Ok(now);
    }
    let json = serde_json::to_vec(&updated.resources).expect("resources are JSON");
    let told = shared.shim(container.pod)?.update(container.id.as_str(), &json).await;
    match told {
        // It has just ended; the limits are on record all the same.
        Ok(()) | Err(shim_client::ShimError::NotFound { .. }) => Ok(now),
        Err(error) => {
            blocking(move || replace(&path, &old)).await?;
            Err(error.into())
        }
    }
}
