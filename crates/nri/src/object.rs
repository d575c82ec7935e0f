//! Pods and containers as a runtime describes them, without a word of protobuf: what is in
//! their OCI specification is read off it.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use nri_wire::{
    api::{self, security_profile::ProfileType},
    oci::UnknownName,
};
use oci_spec::runtime as oci;

type Map = BTreeMap<String, String>;

/// A pod, or whatever a front end groups containers by.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pod {
    /// The front end it belongs to.
    pub domain: String,
    pub id: String,
    pub name: String,
    pub uid: String,
    pub namespace: String,
    pub labels: Map,
    pub annotations: Map,
    /// The name of the OCI runtime that handles it.
    pub handler: String,
    /// Of its first process, where there is one.
    pub pid: Option<u32>,
    pub ips: Vec<String>,
    pub cgroup_parent: String,
    pub cgroups_path: String,
    /// Type and path, as in OCI.
    pub namespaces: Vec<(String, PathBuf)>,
    /// What the pod itself costs.
    pub overhead: Option<Resources>,
    /// What its containers may have together.
    pub total: Option<Resources>,
    /// Of its own cgroup.
    pub resources: Option<Resources>,
}

/// A container. `spec` is what it will be, or was, started with.
#[derive(Clone, Debug, Default)]
pub struct Container {
    pub id: String,
    pub pod_id: String,
    pub name: String,
    pub state: State,
    pub labels: Map,
    /// Besides those of the specification, which win.
    pub annotations: Map,
    pub spec: Arc<oci::Spec>,
    /// What it has now, where that is not what the specification says.
    pub resources: Option<Resources>,
    pub pid: Option<u32>,
    /// Nanoseconds since 1970; 0 is "not yet".
    pub created_at: i64,
    pub started_at: i64,
    pub finished_at: i64,
    pub exit_code: i32,
    pub status_reason: String,
    pub status_message: String,
    /// By their qualified names, as asked for by the user.
    pub cdi_devices: Vec<String>,
    pub image: Image,
    pub seccomp: SeccompProfile,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Not created yet.
    #[default]
    Unknown,
    Created,
    Paused,
    Running,
    Stopped,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    pub name: String,
    pub digest: String,
    pub config_digest: String,
}

/// The system calls a user asked for, whatever became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SeccompProfile {
    #[default]
    Unspecified,
    RuntimeDefault,
    Unconfined,
    Localhost(PathBuf),
}

/// Resources of OCI, and the classes that only a host can resolve; an empty class clears.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resources {
    pub linux: oci::LinuxResources,
    pub block_io_class: Option<String>,
    pub rdt_class: Option<String>,
}

impl Resources {
    pub(crate) fn to_wire(&self) -> api::LinuxResources {
        let class =
            |class: &Option<String>| class.clone().map(|value| api::OptionalString { value });
        api::LinuxResources {
            blockio_class: class(&self.block_io_class),
            rdt_class: class(&self.rdt_class),
            ..(&self.linux).into()
        }
    }

    pub(crate) fn from_wire(wire: &api::LinuxResources) -> Result<Self, UnknownName> {
        Ok(Self {
            linux: wire.try_into()?,
            block_io_class: wire.blockio_class.as_ref().map(|class| class.value.clone()),
            rdt_class: wire.rdt_class.as_ref().map(|class| class.value.clone()),
        })
    }
}

impl Pod {
    pub(crate) fn to_wire(&self) -> api::PodSandbox {
        let namespace = |(kind, path): &(String, PathBuf)| api::LinuxNamespace {
            r#type: kind.clone(),
            path: path.to_string_lossy().into_owned(),
        };
        let resources = |resources: &Option<Resources>| resources.as_ref().map(Resources::to_wire);
        api::PodSandbox {
            id: self.id.clone(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            namespace: self.namespace.clone(),
            labels: self.labels.clone(),
            annotations: self.annotations.clone(),
            runtime_handler: self.handler.clone(),
            linux: Some(api::LinuxPodSandbox {
                pod_overhead: resources(&self.overhead),
                pod_resources: resources(&self.total),
                cgroup_parent: self.cgroup_parent.clone(),
                cgroups_path: self.cgroups_path.clone(),
                namespaces: self.namespaces.iter().map(namespace).collect(),
                resources: resources(&self.resources),
            }),
            pid: self.pid.unwrap_or_default(),
            ips: self.ips.clone(),
        }
    }
}

impl Container {
    pub(crate) fn to_wire(&self) -> api::Container {
        let mut wire = api::Container::from(&*self.spec);
        let mut annotations = self.annotations.clone();
        annotations.append(&mut wire.annotations);
        if let Some(linux) = &mut wire.linux {
            linux.seccomp_profile = self.seccomp.to_wire();
            if let Some(resources) = &self.resources {
                linux.resources = Some(resources.to_wire());
            }
        }
        let device = |name: &String| api::CdiDevice { name: name.clone() };
        let image = (self.image != Image::default()).then(|| api::Image {
            name: self.image.name.clone(),
            digest: self.image.digest.clone(),
            config_digest: self.image.config_digest.clone(),
        });
        api::Container {
            id: self.id.clone(),
            pod_sandbox_id: self.pod_id.clone(),
            name: self.name.clone(),
            state: self.state.to_wire().into(),
            labels: self.labels.clone(),
            annotations,
            pid: self.pid.unwrap_or_default(),
            created_at: self.created_at,
            started_at: self.started_at,
            finished_at: self.finished_at,
            exit_code: self.exit_code,
            status_reason: self.status_reason.clone(),
            status_message: self.status_message.clone(),
            cdi_devices: self.cdi_devices.iter().map(device).collect(),
            image,
            ..wire
        }
    }
}

impl State {
    fn to_wire(self) -> api::ContainerState {
        match self {
            Self::Unknown => api::ContainerState::ContainerUnknown,
            Self::Created => api::ContainerState::ContainerCreated,
            Self::Paused => api::ContainerState::ContainerPaused,
            Self::Running => api::ContainerState::ContainerRunning,
            Self::Stopped => api::ContainerState::ContainerStopped,
        }
    }
}

impl SeccompProfile {
    fn to_wire(&self) -> Option<api::SecurityProfile> {
        let (kind, localhost_ref) = match self {
            Self::Unspecified => return None,
            Self::RuntimeDefault => (ProfileType::RuntimeDefault, String::new()),
            Self::Unconfined => (ProfileType::Unconfined, String::new()),
            Self::Localhost(path) => (ProfileType::Localhost, path.to_string_lossy().into_owned()),
        };
        Some(api::SecurityProfile { profile_type: kind.into(), localhost_ref })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_its_specification_and_what_is_around_it() {
        let mut spec = oci::Spec::default();
        spec.set_annotations(Some([("k".to_owned(), "spec".to_owned())].into()));
        let asked = [("k".to_owned(), "asked".to_owned()), ("l".to_owned(), "asked".to_owned())];
        let container = Container {
            id: "c0".to_owned(),
            annotations: asked.into(),
            spec: Arc::new(spec),
            seccomp: SeccompProfile::Localhost("/p".into()),
            resources: Some(Resources { rdt_class: Some("gold".to_owned()), ..Default::default() }),
            ..Default::default()
        };
        let wire = container.to_wire();
        assert_eq!(
            (wire.annotations["k"].as_str(), wire.annotations["l"].as_str()),
            ("spec", "asked")
        );
        assert_eq!(wire.args, ["sh"]);
        let linux = wire.linux.unwrap();
        assert_eq!(linux.seccomp_profile.unwrap().localhost_ref, "/p");
        assert_eq!(linux.resources.unwrap().rdt_class.unwrap().value, "gold");
        assert_eq!(wire.image, None);
    }

    #[test]
    fn resources_keep_their_classes() {
        let resources = Resources {
            block_io_class: Some(String::new()),
            rdt_class: Some("gold".to_owned()),
            ..Default::default()
        };
        assert_eq!(Resources::from_wire(&resources.to_wire()).unwrap(), resources);
    }
}
