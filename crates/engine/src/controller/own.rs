//! Ours: the namespaces are files, the keeper is our shim.

use std::{path::PathBuf, sync::Arc};

use oci::{CgroupDriver, IdMapping, UserNamespace};
use shim_client::{FirstProcess, IdMap, LogLevel, Namespaces, OciRuntime, Shim, StartPod, UserNs};

use super::Controller;
use crate::{
    config::EngineConfig,
    error::Result,
    pod::{check, files::hostname},
    record::PodRecord,
    request::{PodNamespace, PodPid},
    shared::Shared,
};

#[derive(Debug)]
pub(crate) struct Own<'a>(pub(super) &'a Shared);

impl Controller for Own<'_> {
    async fn create(&self, pod: &PodRecord) -> Result<Option<Arc<Shim>>> {
        let spec = self.describe(pod)?;
        let shim = shim_client::start(&spec, self.0.config.limits.start_shim).await?;
        Ok(Some(Arc::new(shim)))
    }

    async fn start(&self, pod: &PodRecord) -> Result<Arc<Shim>> {
        self.connect(pod).await
    }

    async fn connect(&self, pod: &PodRecord) -> Result<Arc<Shim>> {
        let dir = self.0.layout.pod(&pod.id);
        Ok(Arc::new(shim_client::connect(&dir, self.0.config.limits.recover).await?))
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
            namespaces: namespaces(self.0, pod),
            // With the host's network comes the host's name.
            hostname: pod.own_network().then(|| hostname(&pod.request)).transpose()?,
            sysctls: check::sysctls(&self.0.config, &pod.request)?,
            cgroup: None,
            pid1: self.first_process(pod)?,
            log_level: LogLevel::default(),
        })
    }
}

impl Own<'_> {
    /// What the kernel counts the first process of a shared PID namespace to.
    fn first_process(&self, pod: &PodRecord) -> Result<FirstProcess> {
        let EngineConfig { cgroup_driver, host, .. } = &self.0.config;
        let parent = pod.request.cgroup_parent.as_deref();
        Ok(FirstProcess {
            cgroup: Some(oci::sandbox_cgroup_path(*cgroup_driver, parent, &pod.id)?),
            oom_score_adj: Some(oci::sandbox_oom_score_adj(host)),
        })
    }
}

pub(super) fn namespaces(shared: &Shared, pod: &PodRecord) -> Namespaces {
    let request = &pod.request;
    let pin = |kind: &str, wanted: bool| -> Option<PathBuf> {
        wanted.then(|| shared.layout.namespace(&pod.id, kind))
    };
    let user = match &request.user {
        Some(UserNamespace::Pod(maps)) => Some(UserNs {
            pin: shared.layout.namespace(&pod.id, "user"),
            uids: maps.uids.iter().map(id_map).collect(),
            gids: maps.gids.iter().map(id_map).collect(),
        }),
        _ => None,
    };
    Namespaces {
        net: pod.own_network().then(|| shared.layout.netns(&pod.id)),
        ipc: pin("ipc", request.ipc == PodNamespace::Pod),
        uts: pin("uts", pod.own_network()),
        user,
        pid: request.pid == PodPid::Pod,
        pid_pin: pin("pid", request.pid == PodPid::Pod),
    }
}

fn id_map(map: &IdMapping) -> IdMap {
    IdMap { inside: map.container, outside: map.host, count: map.len }
}
