//! What the engine stores, one record per pod and container.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf};

use base::{Digest, Id};
use jiff::Timestamp;
use oci::{ImageFacts, Priorities, Resources};
use serde::{Deserialize, Serialize};
use store::Record;

use crate::{
    phase::{ContainerEvent, ContainerPhase, Illegal, PodPhase, Reason},
    request::{NewContainer, PodNamespace, PodRequest},
};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodRecord {
    pub id: Id,
    pub request: PodRequest,
    /// The configured handler that `request.handler` came to.
    pub handler: String,
    pub phase: PodPhase,
    pub created_at: Timestamp,
    /// Some client has its id. Until then it is invisible, and given to the next request
    /// of its name.
    pub delivered: bool,
    /// The PID 1 of a shared PID namespace.
    pub pid1: Option<u32>,
    /// The file that a shared PID namespace is joined by. `None` for pods that share none, and
    /// for those of earlier versions, which did not pin it.
    #[serde(default)]
    pub pid_namespace: Option<PathBuf>,
    /// Its addresses while it is on a network of its own; the first is *the* address.
    #[serde(default)]
    pub ips: Vec<IpAddr>,
    /// The addresses it had until it was stopped: plugins are told them once more when it is
    /// removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_ips: Vec<IpAddr>,
    /// Its own on a host with SELinux.
    #[serde(default)]
    pub selinux_categories: Option<String>,
    /// As the last update of the pod's resources left them.
    pub overhead: Resources,
    pub resources: Resources,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContainerRecord {
    pub id: Id,
    pub pod: Id,
    /// The full one, with the pod's: what retries are recognised by.
    pub name: String,
    pub request: NewContainer,
    pub image: PinnedImage,
    pub phase: ContainerPhase,
    pub created_at: Timestamp,
    pub delivered: bool,
    /// Absolute; `None` where nothing is logged.
    pub log_path: Option<PathBuf>,
    /// Filled in when the spec is made.
    pub made: Made,
    /// Plugins know that it has ended.
    #[serde(default)]
    pub stop_told: bool,
    /// A plugin wants it gone, and why.
    #[serde(default)]
    pub evicted: Option<String>,
}

/// What the image was when the container was created; it may be gone by now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PinnedImage {
    /// The digest of its configuration.
    pub id: Digest,
    /// Its first tag, else what the client asked for.
    pub name: String,
    /// Its first repository digest, else the id.
    pub repo_digest: String,
    pub facts: ImageFacts,
    /// Chain ids of its layers, lowest first.
    pub chain: Vec<Digest>,
}

/// What came of making the spec.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Made {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// The effective one, by name: `SIGTERM`.
    pub stop_signal: String,
    /// As the spec has them, kept in step by updates.
    pub resources: Resources,
    pub cgroup_path: String,
    /// Images that are mounted: which of the request's mounts, and what its image was.
    pub images: BTreeMap<usize, MountedImage>,
    /// Classes that plugins gave it, by name.
    pub block_io_class: Option<String>,
    pub rdt_class: Option<String>,
    /// What the shim gives its processes: it is not in the spec.
    pub priorities: Priorities,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MountedImage {
    /// The digest of its configuration.
    pub id: Digest,
    /// Its first repository digest, else the id.
    pub repo_digest: String,
}

impl PodRecord {
    /// Not the host's.
    pub fn own_network(&self) -> bool {
        self.request.network == PodNamespace::Pod
    }

    /// Returns what containers join the pod's PID namespace by, if they share one. Pods of earlier
    /// versions have only the number of its first process, whose death ends the pod.
    pub(crate) fn pid_path(&self) -> Option<PathBuf> {
        let by_number = || self.pid1.map(|pid| format!("/proc/{pid}/ns/pid").into());
        self.pid_namespace.clone().or_else(by_number)
    }

    pub fn is_visible(&self) -> bool {
        self.delivered && self.phase.is_made()
    }
}

impl ContainerRecord {
    /// As it is after `event`. One that was evicted ended for that reason, however it did.
    pub(crate) fn on(&self, event: &ContainerEvent) -> Result<Self, Illegal> {
        let mut phase = self.phase.on(event)?;
        if let (ContainerPhase::Exited(how), Some(why)) = (&mut phase, &self.evicted) {
            how.reason = Reason::Evicted;
            how.message.clone_from(why);
        }
        Ok(Self { phase, ..self.clone() })
    }

    pub fn is_visible(&self) -> bool {
        self.delivered && self.phase.is_made()
    }
}

impl Record for PodRecord {
    const TABLE: &'static str = "pods";
    const VERSION: u32 = 1;
    type Key = Id;

    fn key(&self) -> Id {
        self.id
    }
}

/// What plugins made of a container; there only if they made anything of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoryRecord {
    pub container: Id,
    pub story: nri::Story,
}

impl Record for StoryRecord {
    const TABLE: &'static str = "plugin_stories";
    const VERSION: u32 = 1;
    type Key = Id;

    fn key(&self) -> Id {
        self.container
    }
}

impl Record for ContainerRecord {
    const TABLE: &'static str = "containers";
    const VERSION: u32 = 1;
    type Key = Id;

    fn key(&self) -> Id {
        self.id
    }
}
