//! Forgetting a pod that was stopped.

use std::{path::Path, process::Command, sync::Arc, time::Duration};

use base::Kind;
use oci::CgroupDriver;
use sys::process::succeed_within;

use super::files;
use crate::{
    container,
    error::{EngineError, Result},
    files::blocking,
    network,
    record::PodRecord,
    shared::Shared,
};

pub(crate) const OPERATION: &str = "remove-pod";
pub(crate) const STAGES: [&str; 5] = ["containers", "plugins", "files", "records", "forgotten"];

/// Removes its containers and its files, then the records, all at once. Idempotent.
pub(crate) async fn remove(shared: Arc<Shared>, pod: Arc<PodRecord>) -> Result<()> {
    let stage = shared.stages.enter(pod.id, OPERATION);
    stage.at(STAGES[0]);
    let containers = shared.containers_of(pod.id);
    for container in &containers {
        shared.plugins.remove(&shared, container).await?;
        container::release(&shared, container).await?;
    }
    stage.at(STAGES[1]);
    shared.plugins.remove_pod(&shared, &pod).await?;
    stage.at(STAGES[2]);
    let (layout, id) = (shared.layout.clone(), pod.id);
    blocking(move || files::remove(&layout, &id)).await?;
    network::release(&shared, &pod).await?;
    remove_cgroup(&shared, &pod).await?;

    stage.at(STAGES[3]);
    let mut batch = shared.store.batch();
    for container in &containers {
        batch.delete(&shared.containers, &container.id);
        batch.delete(&shared.stories, &container.id);
    }
    batch.delete(&shared.pods, &pod.id);
    batch.commit().await?;
    stage.at(STAGES[4]);
    for container in &containers {
        shared.container_names.release(&container.name, container.id);
    }
    shared.pod_names.release(&pod.request.name.to_string(), pod.id);
    Ok(())
}

/// Removes the pod's cgroup, unless a client gave it: else it was made for this pod alone, with its
/// first process or container. Idempotent.
pub(super) async fn remove_cgroup(shared: &Arc<Shared>, pod: &PodRecord) -> Result<()> {
    if pod.request.cgroup_parent.is_some() {
        return Ok(());
    }
    let driver = shared.config.cgroup_driver;
    let path = oci::pod_cgroup_path(driver, None, &pod.id)?;
    let (shared, limit) = (Arc::clone(shared), shared.config.limits.kill);
    blocking(move || match (shared.groups.open(&path)?, driver) {
        (None, _) => Ok(()),
        (Some(group), CgroupDriver::Cgroupfs) => Ok(group.remove(limit)?),
        (Some(group), CgroupDriver::Systemd) => {
            let stopped = stop_slice(&path, limit);
            // What systemd does not know of was made for a first process, without containers.
            group.remove(limit).or_else(|e| stopped.and(Err(e.into())))
        }
    })
    .await
}

/// systemd keeps a slice that has become empty until it is told to stop it. Blocking.
fn stop_slice(path: &Path, limit: Duration) -> Result<()> {
    let Some(slice) = path.file_name() else { return Ok(()) };
    let mut systemctl = Command::new("systemctl");
    systemctl.args(["stop", "--quiet", "--"]).arg(slice);
    succeed_within(systemctl, &[], limit).map_err(|why| {
        let doing = format!("stop {}", slice.display());
        EngineError::Failed { doing, why, kind: Kind::Unavailable }
    })
}
