//! A shim that knows only tasks: the pod is an annotated first one, which sleeps, in namespaces
//! that are pinned before it. Containers are further tasks of the same shim.

use std::{path::Path, sync::Arc};

use oci::SandboxInputs;
use shim_client::{Sandboxer, Shim};

use super::{Controller, foreign};
use crate::{
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
        foreign::prepare(self.0, pod, Sandboxer::Task).await?;
        Ok(None)
    }

    async fn start(&self, pod: &PodRecord) -> Result<Arc<Shim>> {
        let (spec, program) = self.sandbox(pod)?;
        let bundle = self.0.layout.sandbox(&pod.id);
        blocking(move || make_bundle(&bundle, &spec, &program)).await?;
        foreign::launch(self.0, pod).await
    }

    async fn connect(&self, pod: &PodRecord) -> Result<Arc<Shim>> {
        foreign::connect(self.0, pod).await
    }
}

impl TaskOnly<'_> {
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
