//! Whose namespaces pods and containers are in.

use api_cri::v1::{self, NamespaceMode as Mode};
use base::Id;
use engine::request::{PodNamespace, PodPid, PodRequest};
use oci::{IdMapping, IdMappings, NamespaceMode, NamespaceRequest, UserNamespace};

use crate::field::{Invalid, Result, Under, known};

#[derive(Debug, PartialEq)]
pub(crate) struct PodNamespaces {
    pub(crate) network: PodNamespace,
    pub(crate) ipc: PodNamespace,
    pub(crate) pid: PodPid,
    pub(crate) user: Option<UserNamespace>,
}

/// No options at all are options at their zero: everything is the pod's, PIDs too.
pub(crate) fn of_pod(options: Option<v1::NamespaceOption>) -> Result<PodNamespaces> {
    let v1::NamespaceOption { network, pid, ipc, target_id: _, userns_options } =
        options.unwrap_or_default();
    Ok(PodNamespaces {
        network: shared("network", network)?,
        ipc: shared("ipc", ipc)?,
        pid: match known("pid", pid)? {
            Mode::Pod => PodPid::Pod,
            Mode::Container => PodPid::Container,
            Mode::Node => PodPid::Node,
            Mode::Target => return Err(Invalid::new("pid", "a pod has no TARGET")),
        },
        user: user(userns_options)?,
    })
}

pub(crate) fn of_container(options: Option<v1::NamespaceOption>) -> Result<NamespaceRequest> {
    let v1::NamespaceOption { network, pid, ipc, target_id, userns_options } =
        options.unwrap_or_default();
    Ok(NamespaceRequest {
        network: mode("network", network)?,
        pid: match known("pid", pid)? {
            Mode::Target => NamespaceMode::Target(target(&target_id)?),
            _ => mode("pid", pid)?,
        },
        ipc: mode("ipc", ipc)?,
        uts: NamespaceMode::Pod,
        cgroup: None,
        user: user(userns_options)?,
    })
}

/// Another container that this one joins, where it is named by the beginning of its id.
pub(crate) fn target_of(config: Option<&mut v1::ContainerConfig>) -> Option<&mut String> {
    let security = config?.linux.as_mut()?.security_context.as_mut()?;
    let options = security.namespace_options.as_mut()?;
    let id = &mut options.target_id;
    let partial = !id.is_empty() && id.parse::<Id>().is_err();
    (known("pid", options.pid) == Ok(Mode::Target) && partial).then_some(id)
}

/// As the pod asked for them.
pub(crate) fn wire(request: &PodRequest) -> v1::NamespaceOption {
    let shared = |namespace| match namespace {
        PodNamespace::Pod => Mode::Pod,
        PodNamespace::Node => Mode::Node,
    };
    let pid = match request.pid {
        PodPid::Pod => Mode::Pod,
        PodPid::Container => Mode::Container,
        PodPid::Node => Mode::Node,
    };
    v1::NamespaceOption {
        network: shared(request.network).into(),
        pid: pid.into(),
        ipc: shared(request.ipc).into(),
        target_id: String::new(),
        userns_options: request.user.as_ref().map(user_wire),
    }
}

/// Of a mount: nothing, or the ids on disk seen through a map.
pub(crate) fn mappings(
    (uid_field, uids): (&'static str, Vec<v1::IdMapping>),
    (gid_field, gids): (&'static str, Vec<v1::IdMapping>),
) -> Result<IdMappings> {
    let all = |field, list: Vec<v1::IdMapping>| -> Result<Vec<_>> {
        let one = |(i, id)| mapping(id).under(format_args!("{field}[{i}]"));
        list.into_iter().enumerate().map(one).collect()
    };
    Ok(IdMappings { uids: all(uid_field, uids)?, gids: all(gid_field, gids)? })
}

pub(crate) fn mappings_wire(mappings: &[IdMapping]) -> Vec<v1::IdMapping> {
    let one = |&IdMapping { container, host, len }: &IdMapping| v1::IdMapping {
        host_id: host,
        container_id: container,
        length: len,
    };
    mappings.iter().map(one).collect()
}

fn shared(field: &'static str, number: i32) -> Result<PodNamespace> {
    match known(field, number)? {
        Mode::Pod => Ok(PodNamespace::Pod),
        Mode::Node => Ok(PodNamespace::Node),
        other => Err(unfit(field, other)),
    }
}

fn mode(field: &'static str, number: i32) -> Result<NamespaceMode> {
    match known(field, number)? {
        Mode::Pod => Ok(NamespaceMode::Pod),
        Mode::Container => Ok(NamespaceMode::Container),
        Mode::Node => Ok(NamespaceMode::Node),
        Mode::Target => Err(unfit(field, Mode::Target)),
    }
}

fn unfit(field: &'static str, mode: Mode) -> Invalid {
    Invalid::new(field, format_args!("mode {} is not supported", mode.as_str_name()))
}

fn target(id: &str) -> Result<Id> {
    id.parse().map_err(|error| Invalid::new("target_id", error))
}

fn user(options: Option<v1::UserNamespace>) -> Result<Option<UserNamespace>> {
    options.map(|options| user_mode(options).under("userns_options")).transpose()
}

/// One range each, because the layers of an image are shifted by one offset.
fn user_mode(v1::UserNamespace { mode, uids, gids }: v1::UserNamespace) -> Result<UserNamespace> {
    match known("mode", mode)? {
        Mode::Pod => {
            for (field, list) in [("uids", &uids), ("gids", &gids)] {
                if list.len() != 1 {
                    let why = format_args!("exactly one mapping is supported, not {}", list.len());
                    return Err(Invalid::new(field, why));
                }
                if list[0].container_id != 0 {
                    return Err(Invalid::new(field, "id 0 of the container must be mapped"));
                }
            }
            Ok(UserNamespace::Pod(mappings(("uids", uids), ("gids", gids))?))
        }
        Mode::Node if uids.is_empty() && gids.is_empty() => Ok(UserNamespace::Node),
        Mode::Node => Err(Invalid::new("mode", "NODE takes no mappings")),
        other => Err(unfit("mode", other)),
    }
}

fn user_wire(user: &UserNamespace) -> v1::UserNamespace {
    match user {
        UserNamespace::Node => v1::UserNamespace { mode: Mode::Node.into(), ..Default::default() },
        UserNamespace::Pod(IdMappings { uids, gids }) => v1::UserNamespace {
            mode: Mode::Pod.into(),
            uids: mappings_wire(uids),
            gids: mappings_wire(gids),
        },
    }
}

/// The last id is 2³²−2: the one after it means "none" to the kernel.
fn mapping(v1::IdMapping { host_id, container_id, length }: v1::IdMapping) -> Result<IdMapping> {
    let fits = |first: u32| first.checked_add(length).is_some();
    if length == 0 || !fits(host_id) || !fits(container_id) {
        return Err(Invalid::new("length", format_args!("{length} is out of range")));
    }
    Ok(IdMapping { container: container_id, host: host_id, len: length })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff";

    fn options(network: i32, pid: i32, ipc: i32) -> v1::NamespaceOption {
        v1::NamespaceOption { network, pid, ipc, ..Default::default() }
    }

    fn range(container_id: u32, host_id: u32, length: u32) -> v1::IdMapping {
        v1::IdMapping { host_id, container_id, length }
    }

    /// What a pod asks for is what its status says.
    #[track_caller]
    fn echoed(asked: &v1::NamespaceOption) {
        let PodNamespaces { network, ipc, pid, user } = of_pod(Some(asked.clone())).unwrap();
        let request = PodRequest { network, ipc, pid, user, ..Default::default() };
        assert_eq!(wire(&request), *asked);
    }

    #[test]
    fn all_modes_of_a_pod_come_back() {
        for (network, ipc) in [(0, 0), (0, 2), (2, 0), (2, 2)] {
            for pid in 0..=2 {
                echoed(&options(network, pid, ipc));
            }
        }
        let map = vec![range(0, 100_000, 65_536)];
        let pod = v1::UserNamespace { mode: 0, uids: map.clone(), gids: map };
        let node = v1::UserNamespace { mode: 2, ..Default::default() };
        for user in [pod, node] {
            echoed(&v1::NamespaceOption { userns_options: Some(user), ..options(0, 1, 0) });
        }
        assert_eq!(of_pod(None), of_pod(Some(options(0, 0, 0))));
    }

    #[track_caller]
    fn refused(asked: v1::NamespaceOption, want: &str) {
        assert_eq!(of_pod(Some(asked)).unwrap_err().to_string(), want);
    }

    #[test]
    fn a_pod_shares_or_has_its_own() {
        refused(options(1, 0, 0), "network: mode CONTAINER is not supported");
        refused(options(0, 0, 3), "ipc: mode TARGET is not supported");
        refused(options(0, 3, 0), "pid: a pod has no TARGET");
        refused(options(0, 7, 0), "pid: unknown value 7");
    }

    #[track_caller]
    fn user_refused(mode: i32, uids: &[v1::IdMapping], gids: &[v1::IdMapping], want: &str) {
        let user = v1::UserNamespace { mode, uids: uids.to_vec(), gids: gids.to_vec() };
        let asked = v1::NamespaceOption { userns_options: Some(user), ..Default::default() };
        refused(asked.clone(), &format!("userns_options.{want}"));
        assert_eq!(
            of_container(Some(asked)).unwrap_err().to_string(),
            format!("userns_options.{want}")
        );
    }

    #[test]
    fn user_namespaces_are_checked() {
        let good = &[range(0, 1000, 10)];
        let two = &[range(0, 1000, 10), range(10, 2000, 10)];
        user_refused(0, two, good, "uids: exactly one mapping is supported, not 2");
        user_refused(0, good, two, "gids: exactly one mapping is supported, not 2");
        user_refused(0, &[], good, "uids: exactly one mapping is supported, not 0");
        user_refused(0, &[range(1, 0, 9)], good, "uids: id 0 of the container must be mapped");
        user_refused(0, good, &[range(0, 9, 0)], "gids[0].length: 0 is out of range");
        let long = range(0, u32::MAX - 8, 9);
        user_refused(0, &[long], good, "uids[0].length: 9 is out of range");
        user_refused(1, &[], &[], "mode: mode CONTAINER is not supported");
        user_refused(3, &[], &[], "mode: mode TARGET is not supported");
        user_refused(2, good, &[], "mode: NODE takes no mappings");
        user_refused(5, &[], &[], "mode: unknown value 5");
    }

    #[test]
    fn containers_may_join_another() {
        let target = v1::NamespaceOption { target_id: ID.into(), ..options(0, 3, 2) };
        let got = of_container(Some(target)).unwrap();
        assert_eq!(got.pid, NamespaceMode::Target(ID.parse().unwrap()));
        assert_eq!((got.network, got.ipc), (NamespaceMode::Pod, NamespaceMode::Node));
        assert_eq!((got.uts, got.cgroup, got.user), (NamespaceMode::Pod, None, None));

        let check = |asked, want: &str| {
            assert_eq!(of_container(Some(asked)).unwrap_err().to_string(), want);
        };
        let no_id = v1::NamespaceOption { target_id: "x".into(), ..options(0, 3, 0) };
        check(no_id, "target_id: \"x\" is not an id: 64 lower-case hexadecimal digits");
        check(options(3, 0, 0), "network: mode TARGET is not supported");
        check(options(0, 0, 9), "ipc: unknown value 9");
    }

    #[test]
    fn a_container_says_whose_processes_it_sees() {
        let pid = |number| of_container(Some(options(0, number, 0))).unwrap().pid;
        assert_eq!(
            [0, 1, 2].map(pid),
            [NamespaceMode::Pod, NamespaceMode::Container, NamespaceMode::Node]
        );
        assert_eq!(of_container(None).unwrap().pid, NamespaceMode::Pod);
    }
}
