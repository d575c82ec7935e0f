//! A shim that knows only tasks: the pod is an annotated first one, which sleeps, in namespaces
//! that are pinned before it. Containers are further tasks of the same shim.

use std::{path::Path, sync::Arc};

use oci::{CgroupDriver, SandboxInputs};
use shim_client::{RuntimeOptions, Shim, StartForeign};

use super::{Controller, own::namespaces};
use crate::{
    config::{ForeignShim, Handler},
    container::pod_facts,
    error::{EngineError, Result},
    files::{blocking, make_dir, write},
    pod::{check, files::hostname},
    record::PodRecord,
    shared::Shared,
};

#[derive(Debug)]
pub(crate) struct TaskOnly<'a>(pub(super) &'a Shared);

impl Controller for TaskOnly<'_> {
    /// Only the namespaces: what looks at the network when it starts, as virtual machines do,
    /// has to find it.
    async fn create(&self, pod: &PodRecord) -> Result<Option<Arc<Shim>>> {
        let spec = self.describe(pod)?;
        self.0.foreign().await?.prepare(&spec).await?;
        Ok(None)
    }

    async fn start(&self, pod: &PodRecord) -> Result<Arc<Shim>> {
        let (spec, program) = self.sandbox(pod)?;
        let bundle = self.0.layout.sandbox(&pod.id);
        blocking(move || make_bundle(&bundle, &spec, &program)).await?;
        let dir = self.0.layout.pod(&pod.id);
        let limit = self.0.config.limits.start_shim;
        Ok(Arc::new(self.0.foreign().await?.launch(&dir, limit).await?))
    }

    async fn connect(&self, pod: &PodRecord) -> Result<Arc<Shim>> {
        let dir = self.0.layout.pod(&pod.id);
        let limit = self.0.config.limits.recover;
        Ok(Arc::new(self.0.foreign().await?.connect(&dir, limit).await?))
    }
}

impl TaskOnly<'_> {
    fn describe(&self, pod: &PodRecord) -> Result<StartForeign> {
        let handler = self.0.handler(&pod.handler)?;
        let Some(shim) = &handler.shim else {
            return Err(EngineError::NoHandler(pod.handler.clone()));
        };
        Ok(StartForeign {
            id: pod.id.to_string(),
            dir: self.0.layout.pod(&pod.id),
            bundle: self.0.layout.sandbox(&pod.id),
            binary: shim.binary.clone(),
            form: shim.form,
            options: self.options(handler, shim),
            namespaces: namespaces(self.0, pod),
        })
    }

    fn options(&self, handler: &Handler, shim: &ForeignShim) -> RuntimeOptions {
        match &shim.config {
            Some(file) => RuntimeOptions::ConfigFile(file.clone()),
            None if handler.binary.as_os_str().is_empty() => RuntimeOptions::None,
            None => RuntimeOptions::Runc {
                binary: handler.binary.clone(),
                root: self.0.layout.foreign_runtime_root(),
                systemd_cgroup: self.0.config.cgroup_driver == CgroupDriver::Systemd,
            },
        }
    }

    /// Its spec as JSON, and the program in it.
    fn sandbox(&self, pod: &PodRecord) -> Result<(Vec<u8>, Vec<u8>)> {
        let config = &self.0.config;
        let program = oci::pause_program(config.host.arch).ok_or_else(|| EngineError::Failed {
            doing: "make a sandbox".to_owned(),
            why: format!("there is no program for {:?}", config.host.arch),
            kind: base::Kind::Unimplemented,
        })?;
        // With the host's network comes the host's name.
        let name = pod.own_network().then(|| hostname(&pod.request)).transpose()?;
        let spec = oci::build_sandbox(&SandboxInputs {
            pod: &pod_facts(&self.0.layout, pod),
            hostname: name.as_deref(),
            sysctls: &check::sysctls(config, &pod.request)?,
            rootfs: &self.0.layout.sandbox(&pod.id).join("rootfs"),
            host: &config.host,
            handler: &self.0.handler(&pod.handler)?.facts,
            policy: &config.policy,
        })?;
        let json = oci::to_json(&spec)
            .map_err(|e| EngineError::failed("write down a sandbox", base::Kind::Internal, &e))?;
        Ok((json, program))
    }
}

/// Blocking.
fn make_bundle(bundle: &Path, spec: &[u8], program: &[u8]) -> Result<()> {
    make_dir(bundle, 0o711)?;
    let rootfs = bundle.join("rootfs");
    for dir in [rootfs.clone(), rootfs.join("dev"), rootfs.join("proc")] {
        make_dir(&dir, 0o755)?;
    }
    write(&rootfs.join("pause"), program, 0o555)?;
    write(&bundle.join("config.json"), spec, 0o600)
}
