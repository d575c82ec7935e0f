//! Whose namespaces a container is in. A kind that is not in the list is the host's.
//!
//! **Invariant:** a container leaves its pod's namespaces only for its own or another container's,
//! never for the host's: what the pod was not given, no container of it gets.

use std::path::PathBuf;

use base::Id;
use oci_spec::runtime::{
    LinuxIdMapping, LinuxIdMappingBuilder, LinuxNamespace, LinuxNamespaceType,
};

use crate::{
    builder::Inputs,
    error::{OciError, Result},
    facts::{CgroupVersion, NamespacePaths},
    request::{IdMapping, IdMappings, NamespaceMode, UserNamespace},
};

/// Where a container stands with one kind of namespace.
enum Place {
    Host,
    New,
    Join(PathBuf),
}

/// What `/proc/<pid>/ns` calls them, and what the request does.
struct Kind {
    typ: LinuxNamespaceType,
    file: &'static str,
    field: &'static str,
}

const NETWORK: Kind = kind(LinuxNamespaceType::Network, "net", "network");
const IPC: Kind = kind(LinuxNamespaceType::Ipc, "ipc", "ipc");
const UTS: Kind = kind(LinuxNamespaceType::Uts, "uts", "uts");
const PID: Kind = kind(LinuxNamespaceType::Pid, "pid", "pid");

const fn kind(typ: LinuxNamespaceType, file: &'static str, field: &'static str) -> Kind {
    Kind { typ, file, field }
}

pub(crate) fn build(inputs: &Inputs<'_>) -> Result<Vec<LinuxNamespace>> {
    let asked = &inputs.request.security.namespaces;
    let pod = &inputs.pod.namespaces;
    let mut list = vec![entry(LinuxNamespaceType::Mount, None)];
    for (kind, mode, path) in [
        (NETWORK, asked.network, &pod.network),
        (IPC, asked.ipc, &pod.ipc),
        (UTS, asked.uts, &pod.uts),
    ] {
        push(&mut list, kind.typ, shared(&kind, mode, path.as_ref(), inputs)?);
    }
    push(&mut list, PID.typ, pid(inputs)?);
    push(&mut list, LinuxNamespaceType::Cgroup, cgroup(inputs)?);
    if let Some(path) = user(inputs)? {
        list.push(entry(LinuxNamespaceType::User, Some(path)));
    }
    Ok(list)
}

/// Returns the namespaces that a pod has of its own, each with the file to join it by.
pub(crate) fn of_pod(pod: &NamespacePaths) -> Vec<LinuxNamespace> {
    let NamespacePaths { network, ipc, uts, pid, host_pid: _, user } = pod;
    let own = [
        (LinuxNamespaceType::Network, network),
        (LinuxNamespaceType::Ipc, ipc),
        (LinuxNamespaceType::Uts, uts),
        (LinuxNamespaceType::Pid, pid),
        (LinuxNamespaceType::User, user),
    ];
    let own = own.into_iter().filter_map(|(typ, path)| Some((typ, path.clone()?)));
    own.map(|(typ, path)| entry(typ, Some(path))).collect()
}

fn push(list: &mut Vec<LinuxNamespace>, typ: LinuxNamespaceType, place: Place) {
    match place {
        Place::Host => {}
        Place::New => list.push(entry(typ, None)),
        Place::Join(path) => list.push(entry(typ, Some(path))),
    }
}

fn entry(typ: LinuxNamespaceType, path: Option<PathBuf>) -> LinuxNamespace {
    let mut namespace = LinuxNamespace::default();
    namespace.set_typ(typ).set_path(path);
    namespace
}

fn shared(
    kind: &Kind,
    mode: NamespaceMode,
    pod: Option<&PathBuf>,
    inputs: &Inputs<'_>,
) -> Result<Place> {
    match (mode, pod) {
        (NamespaceMode::Pod, Some(path)) => Ok(Place::Join(path.clone())),
        (NamespaceMode::Pod | NamespaceMode::Node, None) => Ok(Place::Host),
        (NamespaceMode::Node, Some(_)) => Err(not_the_pods(kind)),
        (NamespaceMode::Container, _) => Ok(Place::New),
        (NamespaceMode::Target(id), _) => target(kind, &id, inputs),
    }
}

fn pid(inputs: &Inputs<'_>) -> Result<Place> {
    let mode = inputs.request.security.namespaces.pid;
    let pod = &inputs.pod.namespaces;
    match (mode, &pod.pid) {
        (NamespaceMode::Pod, Some(path)) => Ok(Place::Join(path.clone())),
        (NamespaceMode::Pod | NamespaceMode::Node, _) if pod.host_pid => Ok(Place::Host),
        (NamespaceMode::Pod, None) => {
            Err(OciError::invalid(PID.request_field(), "the pod shares no PID namespace"))
        }
        (NamespaceMode::Node, _) => Err(not_the_pods(&PID)),
        (NamespaceMode::Container, _) => Ok(Place::New),
        (NamespaceMode::Target(id), _) => target(&PID, &id, inputs),
    }
}

fn not_the_pods(kind: &Kind) -> OciError {
    OciError::invalid(kind.request_field(), "the pod is not in the host's namespace")
}

fn target(kind: &Kind, id: &Id, inputs: &Inputs<'_>) -> Result<Place> {
    match inputs.container.targets.get(id) {
        Some(dir) => Ok(Place::Join(dir.join(kind.file))),
        None => Err(OciError::NotFound {
            field: kind.request_field(),
            why: format!("no running container {}", id.short()),
        }),
    }
}

/// Hides where in the host's tree the container is. v1 cannot, and the privileged want to see.
fn cgroup(inputs: &Inputs<'_>) -> Result<Place> {
    let field = "security.namespaces.cgroup";
    match inputs.request.security.namespaces.cgroup {
        None if inputs.host.cgroup.version == CgroupVersion::V1 => Ok(Place::Host),
        None if inputs.request.security.privileged => Ok(Place::Host),
        None | Some(NamespaceMode::Container) => Ok(Place::New),
        Some(NamespaceMode::Node | NamespaceMode::Pod) => Ok(Place::Host),
        Some(NamespaceMode::Target(_)) => {
            Err(OciError::invalid(field, "another container's cgroup namespace cannot be joined"))
        }
    }
}

// === user ===

/// The pod's, and the container must want what the pod has.
fn user(inputs: &Inputs<'_>) -> Result<Option<PathBuf>> {
    const FIELD: &str = "security.namespaces.user";
    let pod = match (&inputs.pod.namespaces.user, &inputs.pod.mapping) {
        (Some(path), Some(mapping)) => Some((path, mapping)),
        (None, None) => None,
        _ => return Err(OciError::Missing { what: "one half of the pod's user namespace".into() }),
    };
    match (&inputs.request.security.namespaces.user, pod) {
        (Some(UserNamespace::Pod(asked)), Some((_, mapping))) if asked != mapping => {
            return Err(OciError::invalid(FIELD, "the mapping is not that of the pod"));
        }
        (Some(UserNamespace::Pod(_)), None) => {
            return Err(OciError::invalid(FIELD, "the pod has no user namespace"));
        }
        (Some(UserNamespace::Node), Some(_)) => {
            return Err(OciError::invalid(FIELD, "the pod has a user namespace"));
        }
        _ => {}
    }
    let Some((path, mapping)) = pod else { return Ok(None) };
    if !inputs.handler.abilities.user_namespaces {
        return Err(inputs.unable(FIELD));
    }
    check_mappings(mapping, FIELD)?;
    let namespaces = &inputs.pod.namespaces;
    if namespaces.host_pid || namespaces.ipc.is_none() {
        let why = "a user namespace cannot be had with the host's PID or IPC namespace";
        return Err(OciError::invalid(FIELD, why));
    }
    Ok(Some(path.clone()))
}

/// What can be a user namespace: one range each, with root in it.
pub fn check_mappings(mappings: &IdMappings, field: &str) -> Result<()> {
    for (what, ranges) in [("uids", &mappings.uids), ("gids", &mappings.gids)] {
        let field = || format!("{field}.{what}");
        let [range] = ranges.as_slice() else {
            let why = format!("exactly one range is supported, not {}", ranges.len());
            return Err(OciError::invalid(field(), why));
        };
        if range.container != 0 {
            return Err(OciError::invalid(field(), "id 0 of the container is not mapped"));
        }
        let end = u64::from(range.host) + u64::from(range.len);
        if range.len == 0 || end > u64::from(u32::MAX) {
            let why = format!("{} ids from {} are no range", range.len, range.host);
            return Err(OciError::invalid(field(), why));
        }
    }
    Ok(())
}

pub(crate) fn mappings_to_spec(ranges: &[IdMapping]) -> Result<Vec<LinuxIdMapping>> {
    let to_spec = |range: &IdMapping| {
        LinuxIdMappingBuilder::default()
            .container_id(range.container)
            .host_id(range.host)
            .size(range.len)
            .build()
    };
    Ok(ranges.iter().map(to_spec).collect::<std::result::Result<_, _>>()?)
}

impl Kind {
    fn request_field(&self) -> String {
        format!("security.namespaces.{}", self.field)
    }
}
