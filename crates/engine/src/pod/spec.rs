//! The runtime spec of a pod, as clients are shown it.

use std::{fs, io};

use oci::HandlerFacts;

use crate::{
    container::pod_facts,
    error::{EngineError, Result},
    files::blocking,
    pod::{check, files::hostname},
    record::PodRecord,
    shared::Shared,
};

/// Returns the spec of the pod's first task, or a description of a pod that has none.
pub(crate) async fn shown(shared: &Shared, pod: &PodRecord) -> Result<serde_json::Value> {
    let path = shared.layout.sandbox(&pod.id).join("config.json");
    let read = blocking(move || match fs::read(&path) {
        Ok(json) => Ok(Some(json)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(EngineError::io("read", path)(e)),
    });
    let unreadable = |e: serde_json::Error| {
        EngineError::failed("show the spec of a pod", base::Kind::Internal, &e)
    };
    match read.await? {
        Some(json) => serde_json::from_slice(&json).map_err(unreadable),
        None => serde_json::to_value(describe(shared, pod)?).map_err(unreadable),
    }
}

fn describe(shared: &Shared, pod: &PodRecord) -> Result<oci::Spec> {
    // With the host's network comes the host's name.
    let name = pod.own_network().then(|| hostname(&pod.request)).transpose()?;
    // The configuration may have lost the handler since.
    let handler = shared.handler(&pod.handler).map(|handler| handler.facts.clone());
    let handler = handler.unwrap_or_else(|_| HandlerFacts {
        cgroup_driver: shared.config.cgroup_driver,
        ..HandlerFacts::default()
    });
    Ok(oci::describe_pod(&oci::PodInputs {
        pod: &pod_facts(&shared.layout, pod),
        hostname: name.as_deref(),
        sysctls: &check::sysctls(&shared.config, &pod.request)?,
        handler: &handler,
    })?)
}
