//! Pods and containers as plugins see them: from the records, and from the spec on disk.

use std::{path::PathBuf, sync::Arc};

use base::{Labels, time};
use nri::{Container, Image, Pod, SeccompProfile, State};
use oci::{CgroupDriver, Profile, Resources, Spec};

use super::K8S;
use crate::{
    files::blocking,
    layout::Layout,
    phase::{ContainerPhase, PodPhase},
    record::{ContainerRecord, PodRecord},
    request::PodNamespace,
    shared::Shared,
};

type Map = std::collections::BTreeMap<String, String>;

pub(super) fn pod(shared: &Shared, pod: &PodRecord) -> Pod {
    let cgroup = cgroup(shared.config.cgroup_driver, pod);
    let mut namespaces = namespaces(&shared.layout, pod);
    // As long as they are there.
    namespaces.retain(|(_, path)| path.exists());
    pod_with(pod, cgroup, namespaces)
}

/// What a record does not say is given.
pub(crate) fn pod_with(
    pod: &PodRecord,
    cgroups_path: String,
    namespaces: Vec<(String, PathBuf)>,
) -> Pod {
    let request = &pod.request;
    let ips = if pod.ips.is_empty() { &pod.last_ips } else { &pod.ips };
    Pod {
        domain: K8S.to_owned(),
        id: pod.id.to_string(),
        name: request.name.name.clone(),
        uid: request.name.uid.clone(),
        namespace: request.name.namespace.clone(),
        labels: map(&request.labels),
        annotations: map(&request.annotations),
        handler: pod.handler.clone(),
        pid: pod.pid1,
        ips: ips.iter().map(ToString::to_string).collect(),
        cgroup_parent: request.cgroup_parent.clone().unwrap_or_default(),
        cgroups_path,
        namespaces,
        overhead: limits(&pod.overhead),
        total: limits(&pod.resources),
        resources: None,
    }
}

/// One whose record is gone.
fn bare_pod(id: base::Id) -> Pod {
    Pod { domain: K8S.to_owned(), id: id.to_string(), ..Pod::default() }
}

fn map(labels: &Labels) -> Map {
    labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

pub(crate) fn cgroup(driver: CgroupDriver, pod: &PodRecord) -> String {
    let parent = pod.request.cgroup_parent.as_deref();
    let path = oci::pod_cgroup_path(driver, parent, &pod.id);
    path.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Those that are the pod's own.
pub(crate) fn namespaces(layout: &Layout, pod: &PodRecord) -> Vec<(String, PathBuf)> {
    let request = &pod.request;
    let own_network = request.network == PodNamespace::Pod;
    let pin = |kind| layout.namespace(&pod.id, kind);
    let pinned = [
        ("network", layout.netns(&pod.id), own_network),
        ("ipc", pin("ipc"), request.ipc == PodNamespace::Pod),
        ("uts", pin("uts"), own_network),
        ("user", pin("user"), crate::container::mapping(pod).is_some()),
    ];
    let pinned = pinned.into_iter().filter(|(_, _, own)| *own);
    let pinned = pinned.map(|(kind, path, _)| (kind.to_owned(), path));
    let pid = pod.pid_path().map(|path| ("pid".to_owned(), path));
    pinned.chain(pid).collect()
}

/// `None` where nothing is limited.
pub(crate) fn limits(resources: &Resources) -> Option<nri::Resources> {
    let linux = oci::to_linux(resources).ok()?;
    (linux != oci::LinuxResources::default())
        .then(|| nri::Resources { linux, ..nri::Resources::default() })
}

/// `spec` is what it will be, or was, started with.
pub(crate) fn container(record: &ContainerRecord, spec: Arc<Spec>) -> Container {
    let request = &record.request;
    let (state, pid) = match &record.phase {
        ContainerPhase::Making { .. } | ContainerPhase::Unknown { .. } => (State::Unknown, None),
        ContainerPhase::Created | ContainerPhase::Starting => (State::Created, None),
        ContainerPhase::Running { pid, .. } => (State::Running, Some(*pid)),
        ContainerPhase::Exited(_) | ContainerPhase::Removing => (State::Stopped, None),
    };
    let nanos = |at: Option<jiff::Timestamp>| at.map_or(0, time::to_unix_nanos);
    let mut described = Container {
        id: record.id.to_string(),
        pod_id: record.pod.to_string(),
        name: request.container.name.clone(),
        state,
        labels: map(&request.labels),
        annotations: map(&request.container.annotations),
        resources: resources(record, &spec),
        spec,
        pid,
        created_at: nanos(Some(record.created_at)),
        started_at: nanos(record.phase.started()),
        cdi_devices: request.container.cdi_devices.clone(),
        image: Image {
            name: record.image.name.clone(),
            digest: record.image.repo_digest.clone(),
            config_digest: record.image.id.to_string(),
        },
        seccomp: seccomp(request.container.security.seccomp.as_ref()),
        ..Container::default()
    };
    if let ContainerPhase::Exited(how) = &record.phase {
        described.finished_at = nanos(Some(how.at));
        described.exit_code = how.code;
        described.status_reason = how.reason.as_str().to_owned();
        described.status_message.clone_from(&how.message);
    }
    described
}

/// The spec has all but the names of classes.
fn resources(record: &ContainerRecord, spec: &Spec) -> Option<nri::Resources> {
    let made = &record.made;
    if made.block_io_class.is_none() && made.rdt_class.is_none() {
        return None;
    }
    let linux = spec.linux().as_ref().and_then(|linux| linux.resources().clone());
    Some(nri::Resources {
        linux: linux.unwrap_or_default(),
        block_io_class: made.block_io_class.clone(),
        rdt_class: made.rdt_class.clone(),
    })
}

fn seccomp(profile: Option<&Profile>) -> SeccompProfile {
    match profile {
        None => SeccompProfile::Unspecified,
        Some(Profile::RuntimeDefault) => SeccompProfile::RuntimeDefault,
        Some(Profile::Unconfined) => SeccompProfile::Unconfined,
        Some(Profile::Localhost(path)) => SeccompProfile::Localhost(path.into()),
    }
}

/// A container and its pod, as they are now.
pub(super) async fn both(shared: &Shared, record: &ContainerRecord) -> (Pod, Container) {
    let path = shared.layout.spec(&record.pod, &record.id);
    let spec = blocking(move || Ok(read(&path))).await.unwrap_or_else(|_| empty());
    (pod_of(shared, record), container(record, whole(spec, record)))
}

fn pod_of(shared: &Shared, record: &ContainerRecord) -> Pod {
    match shared.pods.get(&record.pod) {
        Some(found) => pod(shared, &found),
        None => bare_pod(record.pod),
    }
}

/// What cannot be read any more, because it is being removed or the host was restarted, is
/// described without it. Blocking.
fn read(path: &std::path::Path) -> Spec {
    let text = std::fs::read(path).ok();
    text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_else(empty)
}

/// With what is the shim's part of it.
fn whole(mut spec: Spec, record: &ContainerRecord) -> Arc<Spec> {
    record.made.priorities.put_back(&mut spec);
    Arc::new(spec)
}

fn empty() -> Spec {
    serde_json::from_str(r#"{ "ociVersion": "1.0.2" }"#).expect("the rest is optional")
}

/// All that is there when plugins are let in. Blocking.
pub(super) fn world(shared: &Shared) -> (Vec<(Pod, State)>, Vec<Container>) {
    let pods = shared.pods.list().into_iter().filter(|pod| pod.phase.is_made());
    let pods = pods.map(|record| {
        let stopped = matches!(record.phase, PodPhase::Stopped { .. } | PodPhase::Removing);
        let state = if stopped { State::Stopped } else { State::Running };
        (pod(shared, &record), state)
    });
    let containers = shared.containers.list().into_iter().filter(|c| c.phase.is_made());
    let containers = containers.map(|record| {
        let spec = read(&shared.layout.spec(&record.pod, &record.id));
        let mut described = container(&record, whole(spec, &record));
        // As far as plugins were told; the rest they hear next.
        let ended = matches!(record.phase, ContainerPhase::Exited(_));
        if ended && !record.stop_told {
            described.state = State::Running;
        }
        described
    });
    (pods.collect(), containers.collect())
}
