//! NRI messages and their counterparts in the OCI runtime specification.
//!
//! Each pair has a conversion in both directions. Towards NRI all of them succeed; towards
//! OCI a text that the specification does not know is refused by name. What one side cannot
//! say is said in the nearest way that is right: a process limit without limit is `-1` in
//! both, where the reference mistakes it for 0.
//!
//! ```
//! # use nri_wire::api;
//! use oci_spec::runtime as oci;
//! let mount = api::Mount { destination: "/data".into(), source: "/srv".into(), ..Default::default() };
//! let spec = oci::Mount::from(&mount);
//! assert_eq!(api::Mount::from(&spec), mount);
//! ```

mod process;
mod resources;

use std::path::PathBuf;

use oci_spec::runtime as oci;
use serde::{
    Deserialize,
    de::{IntoDeserializer, value},
};

use crate::api::{
    Container, Hook, Hooks, LinuxContainer, LinuxDevice, LinuxNamespace, LinuxNetDevice, Mount,
    OptionalFileMode, OptionalInt, OptionalUInt32,
};

/// A value OCI has no name for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} is no {what} that OCI knows")]
pub struct UnknownName {
    pub what: &'static str,
    pub value: String,
}

/// Names are those the specification's JSON has.
pub(crate) fn named<T: for<'a> Deserialize<'a>>(
    what: &'static str,
    value: &str,
) -> Result<T, UnknownName> {
    let text: value::StrDeserializer<'_, value::Error> = value.into_deserializer();
    T::deserialize(text).map_err(|_| UnknownName { what, value: value.to_owned() })
}

fn path_text(path: &std::path::Path) -> String {
    path.to_string_lossy().into_owned()
}

fn non_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

fn text(value: &str) -> Option<String> {
    (!value.is_empty()).then(|| value.to_owned())
}

// === mounts, hooks ===

impl From<&oci::Mount> for Mount {
    fn from(mount: &oci::Mount) -> Self {
        Self {
            destination: path_text(mount.destination()),
            r#type: mount.typ().clone().unwrap_or_default(),
            source: mount.source().as_deref().map(path_text).unwrap_or_default(),
            options: mount.options().clone().unwrap_or_default(),
        }
    }
}

impl From<&Mount> for oci::Mount {
    fn from(mount: &Mount) -> Self {
        let mut out = Self::default();
        out.set_destination(PathBuf::from(&mount.destination))
            .set_typ(text(&mount.r#type))
            .set_source(text(&mount.source).map(PathBuf::from))
            .set_options(non_empty(mount.options.clone()));
        out
    }
}

impl From<&oci::Hook> for Hook {
    fn from(hook: &oci::Hook) -> Self {
        Self {
            path: path_text(hook.path()),
            args: hook.args().clone().unwrap_or_default(),
            env: hook.env().clone().unwrap_or_default(),
            timeout: hook.timeout().map(|value| OptionalInt { value }),
        }
    }
}

impl From<&Hook> for oci::Hook {
    fn from(hook: &Hook) -> Self {
        let mut out = Self::default();
        out.set_path(PathBuf::from(&hook.path))
            .set_args(non_empty(hook.args.clone()))
            .set_env(non_empty(hook.env.clone()))
            .set_timeout(hook.timeout.map(|timeout| timeout.value));
        out
    }
}

impl From<&oci::Hooks> for Hooks {
    fn from(hooks: &oci::Hooks) -> Self {
        let list = |hooks: &Option<Vec<oci::Hook>>| {
            hooks.iter().flatten().map(Hook::from).collect::<Vec<_>>()
        };
        Self {
            prestart: list(hooks.prestart()),
            create_runtime: list(hooks.create_runtime()),
            create_container: list(hooks.create_container()),
            start_container: list(hooks.start_container()),
            poststart: list(hooks.poststart()),
            poststop: list(hooks.poststop()),
        }
    }
}

// === namespaces, devices ===

impl From<&oci::LinuxNamespace> for LinuxNamespace {
    fn from(namespace: &oci::LinuxNamespace) -> Self {
        let kind = match namespace.typ() {
            oci::LinuxNamespaceType::Mount => "mount",
            oci::LinuxNamespaceType::Cgroup => "cgroup",
            oci::LinuxNamespaceType::Uts => "uts",
            oci::LinuxNamespaceType::Ipc => "ipc",
            oci::LinuxNamespaceType::User => "user",
            oci::LinuxNamespaceType::Pid => "pid",
            oci::LinuxNamespaceType::Network => "network",
            oci::LinuxNamespaceType::Time => "time",
        };
        let path = namespace.path().as_deref().map(path_text).unwrap_or_default();
        Self { r#type: kind.to_owned(), path }
    }
}

impl TryFrom<&LinuxNamespace> for oci::LinuxNamespace {
    type Error = UnknownName;

    fn try_from(namespace: &LinuxNamespace) -> Result<Self, UnknownName> {
        let mut out = Self::default();
        out.set_typ(named("namespace", &namespace.r#type)?)
            .set_path(text(&namespace.path).map(PathBuf::from));
        Ok(out)
    }
}

impl From<&oci::LinuxDevice> for LinuxDevice {
    fn from(device: &oci::LinuxDevice) -> Self {
        Self {
            path: path_text(device.path()),
            r#type: device.typ().as_str().to_owned(),
            major: device.major(),
            minor: device.minor(),
            file_mode: device.file_mode().map(|value| OptionalFileMode { value }),
            uid: device.uid().map(|value| OptionalUInt32 { value }),
            gid: device.gid().map(|value| OptionalUInt32 { value }),
        }
    }
}

impl TryFrom<&LinuxDevice> for oci::LinuxDevice {
    type Error = UnknownName;

    fn try_from(device: &LinuxDevice) -> Result<Self, UnknownName> {
        let mut out = Self::default();
        out.set_path(PathBuf::from(&device.path))
            .set_typ(named("device type", &device.r#type)?)
            .set_major(device.major)
            .set_minor(device.minor)
            .set_file_mode(device.file_mode.map(|mode| mode.value))
            .set_uid(device.uid.map(|uid| uid.value))
            .set_gid(device.gid.map(|gid| gid.value));
        Ok(out)
    }
}

impl From<&oci::LinuxNetDevice> for LinuxNetDevice {
    fn from(device: &oci::LinuxNetDevice) -> Self {
        Self { name: device.name().clone().unwrap_or_default() }
    }
}

impl From<&LinuxNetDevice> for oci::LinuxNetDevice {
    fn from(device: &LinuxNetDevice) -> Self {
        let mut out = Self::default();
        out.set_name(text(&device.name));
        out
    }
}

// === a container ===

/// What a specification says about its container. Who it is, its state and its labels are
/// not in a specification.
impl From<&oci::Spec> for Container {
    fn from(spec: &oci::Spec) -> Self {
        let process = spec.process().as_ref();
        let annotations = spec.annotations().iter().flatten();
        let rlimits = process.and_then(|process| process.rlimits().as_ref());
        Self {
            annotations: annotations.map(|(k, v)| (k.clone(), v.clone())).collect(),
            args: process.and_then(|process| process.args().clone()).unwrap_or_default(),
            env: process.and_then(|process| process.env().clone()).unwrap_or_default(),
            mounts: spec.mounts().iter().flatten().map(Mount::from).collect(),
            hooks: spec.hooks().as_ref().map(Hooks::from),
            linux: spec.linux().as_ref().map(|linux| linux_of(linux, process)),
            rlimits: rlimits.into_iter().flatten().map(Into::into).collect(),
            user: process.map(|process| process.user().into()),
            ..Self::default()
        }
    }
}

fn linux_of(linux: &oci::Linux, process: Option<&oci::Process>) -> LinuxContainer {
    let oom = process.and_then(oci::Process::oom_score_adj);
    let devices = linux.net_devices().iter().flatten();
    LinuxContainer {
        namespaces: linux.namespaces().iter().flatten().map(Into::into).collect(),
        devices: linux.devices().iter().flatten().map(Into::into).collect(),
        resources: linux.resources().as_ref().map(Into::into),
        oom_score_adj: oom.map(|value| OptionalInt { value: value.into() }),
        cgroups_path: linux.cgroups_path().as_deref().map(path_text).unwrap_or_default(),
        io_priority: process.and_then(|process| process.io_priority().as_ref()).map(Into::into),
        seccomp_profile: None,
        seccomp_policy: linux.seccomp().as_ref().map(Into::into),
        sysctl: linux.sysctl().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect(),
        net_devices: devices.map(|(name, device)| (name.clone(), device.into())).collect(),
        scheduler: process.and_then(|process| process.scheduler().as_ref()).map(Into::into),
        rdt: linux.intel_rdt().as_ref().map(Into::into),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{LinuxPids, LinuxResources};

    #[test]
    fn namespaces_have_the_names_of_the_specification() {
        for kind in ["network", "pid", "mount", "ipc", "uts", "user", "cgroup", "time"] {
            let wire = LinuxNamespace { r#type: kind.to_owned(), path: "/p".to_owned() };
            let spec = oci::LinuxNamespace::try_from(&wire).unwrap();
            assert_eq!(LinuxNamespace::from(&spec), wire);
        }
        let odd = LinuxNamespace { r#type: "hat".to_owned(), path: String::new() };
        let error = oci::LinuxNamespace::try_from(&odd).unwrap_err();
        assert_eq!(error.to_string(), r#""hat" is no namespace that OCI knows"#);
    }

    #[test]
    fn devices_and_hooks_round_trip() {
        let device = LinuxDevice {
            path: "/dev/x".to_owned(),
            r#type: "b".to_owned(),
            major: 8,
            minor: -1,
            file_mode: Some(OptionalFileMode { value: 0o640 }),
            uid: Some(OptionalUInt32 { value: 0 }),
            gid: None,
        };
        assert_eq!(LinuxDevice::from(&oci::LinuxDevice::try_from(&device).unwrap()), device);
        let timeout = Some(OptionalInt { value: 0 });
        let args = vec!["a".to_owned()];
        let hook = Hook { path: "/h".to_owned(), args, env: vec![], timeout };
        assert_eq!(Hook::from(&oci::Hook::from(&hook)), hook);
    }

    #[test]
    fn a_container_is_read_off_its_specification() {
        let spec = oci::Spec::default();
        let container = Container::from(&spec);
        assert_eq!(container.args, ["sh"]);
        assert_eq!(container.rlimits[0].r#type, "RLIMIT_NOFILE");
        let linux = container.linux.unwrap();
        assert!(linux.namespaces.iter().any(|ns| ns.r#type == "network"));
        assert!(container.mounts.iter().any(|mount| mount.destination == "/proc"));
    }

    #[test]
    fn a_process_limit_without_limit_is_minus_one() {
        for (oci_limit, wire) in [(-1, -1), (0, -1), (7, 7)] {
            let mut pids = oci::LinuxPids::default();
            pids.set_limit(oci_limit);
            let mut resources = oci::LinuxResources::default();
            resources.set_pids(Some(pids));
            let resources = LinuxResources::from(&resources);
            assert_eq!(resources.pids, Some(LinuxPids { limit: wire }));
        }
    }
}
