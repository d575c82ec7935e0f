//! What clients ask for, in the engine's words; stored as it came.

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use base::Labels;
use oci::{ContainerRequest, Profile, Resources, SelinuxRequest, UserNamespace};
use serde::{Deserialize, Serialize};

/// A pod's name: unique among all pods of a front end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodName {
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub attempt: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodRequest {
    pub name: PodName,
    /// Empty stands for the default handler.
    pub handler: String,
    /// May be empty only on the host's network.
    pub hostname: String,
    /// Where its containers' logs go, if anywhere.
    pub log_directory: Option<PathBuf>,
    /// `None`: as the host's.
    pub dns: Option<Dns>,
    pub ports: Vec<PortMapping>,
    pub labels: Labels,
    pub annotations: Labels,
    pub cgroup_parent: Option<String>,
    pub sysctls: BTreeMap<String, String>,
    pub overhead: Resources,
    pub resources: Resources,
    pub network: PodNamespace,
    pub ipc: PodNamespace,
    pub pid: PodPid,
    pub user: Option<UserNamespace>,
    pub privileged: bool,
    pub selinux: Option<SelinuxRequest>,
    pub seccomp: Option<Profile>,
    pub apparmor: Option<Profile>,
}

/// Whose namespace the containers of a pod share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PodNamespace {
    #[default]
    Pod,
    Node,
}

/// The PID namespace of a pod's containers, unless they say otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PodPid {
    /// Shared, with a PID 1 of ours.
    Pod,
    /// Each its own.
    #[default]
    Container,
    Node,
}

/// An empty one gives an empty resolv.conf.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dns {
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortMapping {
    pub protocol: Protocol,
    pub container_port: u16,
    /// 0: not published.
    pub host_port: u16,
    pub host_ip: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

/// A new container of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NewContainer {
    pub attempt: u32,
    pub image: ImageChoice,
    pub labels: Labels,
    /// Relative to the pod's log directory; either missing means no log.
    pub log_path: Option<PathBuf>,
    pub container: ContainerRequest,
}

/// The image as the client named it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageChoice {
    pub reference: String,
    /// What the user wrote, before the client resolved it.
    pub user_specified: String,
    pub annotations: Labels,
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, namespace, uid, attempt } = self;
        write!(f, "{name}_{namespace}_{uid}_{attempt}")
    }
}

impl NewContainer {
    /// Unique among all containers of a front end.
    pub(crate) fn full_name(&self, pod: &PodName) -> String {
        let PodName { name, namespace, uid, .. } = pod;
        format!("{}_{name}_{namespace}_{uid}_{}", self.container.name, self.attempt)
    }
}

/// An archive to be made of a running container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointRequest {
    /// The file to be written; what is there is replaced.
    pub location: PathBuf,
    /// `None`: the engine's own limit.
    pub limit: Option<Duration>,
}
