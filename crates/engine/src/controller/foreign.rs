//! What the controllers of shims that are not ours have in common.

use std::sync::Arc;

use oci::CgroupDriver;
use shim_client::{RuntimeOptions, Sandboxer, Shim, StartForeign};

use super::own::namespaces;
use crate::{
    config::{ForeignShim, Handler},
    error::{EngineError, Result},
    record::PodRecord,
    shared::Shared,
};

/// The record of the pod, and its namespaces.
pub(super) async fn prepare(shared: &Shared, pod: &PodRecord, sandboxer: Sandboxer) -> Result<()> {
    let spec = describe(shared, pod, sandboxer)?;
    Ok(shared.foreign().await?.prepare(&spec).await?)
}

/// The bundle of the sandbox is there.
pub(super) async fn launch(shared: &Shared, pod: &PodRecord) -> Result<Arc<Shim>> {
    let dir = shared.layout.pod(&pod.id);
    let limit = shared.config.limits.start_shim;
    Ok(Arc::new(shared.foreign().await?.launch(&dir, limit).await?))
}

pub(super) async fn connect(shared: &Shared, pod: &PodRecord) -> Result<Arc<Shim>> {
    let dir = shared.layout.pod(&pod.id);
    let limit = shared.config.limits.recover;
    Ok(Arc::new(shared.foreign().await?.connect(&dir, limit).await?))
}

fn describe(shared: &Shared, pod: &PodRecord, sandboxer: Sandboxer) -> Result<StartForeign> {
    let handler = shared.handler(&pod.handler)?;
    let Some(shim) = &handler.shim else {
        return Err(EngineError::NoHandler(pod.handler.clone()));
    };
    Ok(StartForeign {
        id: pod.id.to_string(),
        dir: shared.layout.pod(&pod.id),
        bundle: shared.layout.sandbox(&pod.id),
        sandboxer,
        binary: shim.binary.clone(),
        form: shim.form,
        options: options(shared, handler, shim),
        namespaces: namespaces(shared, pod),
    })
}

fn options(shared: &Shared, handler: &Handler, shim: &ForeignShim) -> RuntimeOptions {
    match &shim.config {
        Some(file) => RuntimeOptions::ConfigFile(file.clone()),
        None if handler.binary.as_os_str().is_empty() => RuntimeOptions::None,
        None => RuntimeOptions::Runc {
            binary: handler.binary.clone(),
            root: shared.layout.foreign_runtime_root(),
            systemd_cgroup: shared.config.cgroup_driver == CgroupDriver::Systemd,
        },
    }
}
