//! Forgetting a pod that was stopped.

use std::sync::Arc;

use oci::CgroupDriver;

use super::files;
use crate::{
    container, error::Result, files::blocking, network, record::PodRecord, shared::Shared,
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

/// One that nobody gave us was made with its first container, for it alone. systemd drops an
/// empty slice by itself.
async fn remove_cgroup(shared: &Arc<Shared>, pod: &PodRecord) -> Result<()> {
    let driver = shared.config.cgroup_driver;
    if pod.request.cgroup_parent.is_some() || driver != CgroupDriver::Cgroupfs {
        return Ok(());
    }
    let path = oci::pod_cgroup_path(driver, None, &pod.id)?;
    let (shared, limit) = (Arc::clone(shared), shared.config.limits.kill);
    blocking(move || match shared.groups.open(&path)? {
        Some(group) => Ok(group.remove(limit)?),
        None => Ok(()),
    })
    .await
}
