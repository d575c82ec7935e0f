//! Forgetting a container that does not run.

use std::sync::Arc;

use shim_client::ShimError;

use crate::{
    error::Result,
    files::{blocking, remove_dir},
    record::ContainerRecord,
    shared::Shared,
};

pub(crate) const OPERATION: &str = "remove-container";
pub(crate) const STAGES: [&str; 4] = ["plugins", "release", "record", "forgotten"];

/// Gives back what it holds; its record stays. Idempotent.
pub(crate) async fn release(shared: &Shared, container: &ContainerRecord) -> Result<()> {
    let (pod, id) = (container.pod, container.id);
    if let Some(shim) = shared.live.shim(pod) {
        // Only a task that its exit handling could not delete is still known there. What a shim
        // that is gone had is cleaned up with it.
        match shim.delete(id.as_str()).await {
            Ok(_) | Err(ShimError::NotFound { .. } | ShimError::Gone { .. }) => {}
            Err(e) => return Err(e.into()),
        }
    }
    super::make::give_back_volumes(shared, container).await?;
    shared.storage.release(id, shared.layout.rootfs(&pod, &id)).await?;
    let (bundle, checkpoint) = (shared.layout.bundle(&pod, &id), shared.layout.checkpoint(&id));
    blocking(move || {
        super::checkpoint::discard(&checkpoint)?;
        remove_dir(&bundle)
    })
    .await
}

/// The log file stays: it is the client's. Idempotent.
pub(crate) async fn remove(shared: Arc<Shared>, container: Arc<ContainerRecord>) -> Result<()> {
    let stage = shared.stages.enter(container.id, OPERATION);
    stage.at(STAGES[0]);
    shared.plugins.remove(&shared, &container).await?;
    stage.at(STAGES[1]);
    release(&shared, &container).await?;
    stage.at(STAGES[2]);
    let mut batch = shared.store.batch();
    batch.delete(&shared.containers, &container.id);
    batch.delete(&shared.stories, &container.id);
    batch.commit().await?;
    stage.at(STAGES[3]);
    shared.container_names.release(&container.name, container.id);
    Ok(())
}
