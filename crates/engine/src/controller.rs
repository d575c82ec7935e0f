//! What keeps a pod's namespaces and runs its containers.
//!
//! The engine drives every pod through this trait; ours starts one `longshore-shim` per
//! pod, without a pause container.

use std::{path::PathBuf, sync::Arc};

use oci::{CgroupDriver, IdMapping, UserNamespace};
use shim_client::{IdMap, LogLevel, Namespaces, OciRuntime, Shim, StartPod, UserNs};

use crate::{
    error::Result,
    pod::{check, files::hostname},
    record::PodRecord,
    request::{PodNamespace, PodPid},
    shared::Shared,
};

/// A pod's keeper. All of it is idempotent: a call that was cut off is made again.
pub(crate) trait Controller: Send + Sync {
    /// Makes the namespaces and what answers for the pod. Its directory exists.
    fn start(&self, pod: &PodRecord) -> impl Future<Output = Result<Arc<Shim>>> + Send;

    /// Finds what an earlier daemon started; an error of kind `NotFound` if it is gone.
    fn connect(&self, pod: &PodRecord) -> impl Future<Output = Result<Arc<Shim>>> + Send;

    /// Ends the pod's keeper and releases the namespaces, but that of the network. Its
    /// containers have ended.
    fn stop(&self, pod: &PodRecord) -> impl Future<Output = Result<()>> + Send;

    /// After its keeper died: ends what it left, and tells how its containers ended.
    fn bury(
        &self,
        pod: &PodRecord,
    ) -> impl Future<Output = Result<Vec<shim_client::Buried>>> + Send;
}

/// Ours: the namespaces are files, the keeper is our shim.
#[derive(Debug)]
pub(crate) struct Own<'a>(pub(crate) &'a Shared);

impl Controller for Own<'_> {
    async fn start(&self, pod: &PodRecord) -> Result<Arc<Shim>> {
        let spec = self.describe(pod)?;
        let shim = shim_client::start(&spec, self.0.config.limits.start_shim).await?;
        Ok(Arc::new(shim))
    }

    async fn connect(&self, pod: &PodRecord) -> Result<Arc<Shim>> {
        let dir = self.0.layout.pod(&pod.id);
        Ok(Arc::new(shim_client::connect(&dir, self.0.config.limits.recover).await?))
    }

    async fn stop(&self, pod: &PodRecord) -> Result<()> {
        let dir = self.0.layout.pod(&pod.id);
        // Burying is also how a live one ends: what it does not find is done.
        match shim_client::bury(&dir, self.0.config.limits.kill).await {
            Err(shim_client::ShimError::NotFound { .. }) => Ok(()),
            other => other.map(drop).map_err(Into::into),
        }
    }

    async fn bury(&self, pod: &PodRecord) -> Result<Vec<shim_client::Buried>> {
        let dir = self.0.layout.pod(&pod.id);
        match shim_client::bury(&dir, self.0.config.limits.kill).await {
            Err(shim_client::ShimError::NotFound { .. }) => Ok(Vec::new()),
            other => Ok(other?),
        }
    }
}

impl Own<'_> {
    fn describe(&self, pod: &PodRecord) -> Result<StartPod> {
        let handler = self.0.handler(&pod.handler)?;
        Ok(StartPod {
            id: pod.id.to_string(),
            dir: self.0.layout.pod(&pod.id),
            shim_binary: self.0.config.shim_binary.clone(),
            runtime: OciRuntime {
                binary: handler.binary.clone(),
                args: handler.args.clone(),
                root: self.0.layout.runtime_root(&handler.name),
                systemd_cgroup: self.0.config.cgroup_driver == CgroupDriver::Systemd,
            },
            namespaces: self.namespaces(pod),
            // With the host's network comes the host's name.
            hostname: pod.own_network().then(|| hostname(&pod.request)).transpose()?,
            sysctls: check::sysctls(&self.0.config, &pod.request)?,
            cgroup: None,
            log_level: LogLevel::default(),
        })
    }

    fn namespaces(&self, pod: &PodRecord) -> Namespaces {
        let request = &pod.request;
        let pin = |kind: &str, wanted: bool| -> Option<PathBuf> {
            wanted.then(|| self.0.layout.namespace(&pod.id, kind))
        };
        let user = match &request.user {
            Some(UserNamespace::Pod(maps)) => Some(UserNs {
                pin: self.0.layout.namespace(&pod.id, "user"),
                uids: maps.uids.iter().map(id_map).collect(),
                gids: maps.gids.iter().map(id_map).collect(),
            }),
            _ => None,
        };
        Namespaces {
            net: pod.own_network().then(|| self.0.layout.netns(&pod.id)),
            ipc: pin("ipc", request.ipc == PodNamespace::Pod),
            uts: pin("uts", pod.own_network()),
            user,
            pid: request.pid == PodPid::Pod,
        }
    }
}

fn id_map(map: &IdMapping) -> IdMap {
    IdMap { inside: map.container, outside: map.host, count: map.len }
}
