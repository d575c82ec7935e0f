//! What readers get: records, and what belongs together.

use std::sync::Arc;

use base::{Id, Selector};
use jiff::Timestamp;

use crate::record::{ContainerRecord, PodRecord};

/// A pod and its containers, at one moment.
#[derive(Clone, Debug)]
pub struct PodView {
    pub pod: Arc<PodRecord>,
    pub containers: Vec<Arc<ContainerRecord>>,
    /// The moment.
    pub at: Timestamp,
}

/// Which pods to list; all that is given must hold.
#[derive(Clone, Debug, Default)]
pub struct PodFilter {
    /// An id or a prefix of one.
    pub id: Option<String>,
    pub ready: Option<bool>,
    pub labels: Selector,
}

/// Which containers to list; all that is given must hold.
#[derive(Clone, Debug, Default)]
pub struct ContainerFilter {
    pub id: Option<String>,
    pub state: Option<ContainerState>,
    /// A pod's id or a prefix of one.
    pub pod: Option<String>,
    pub labels: Selector,
}

/// The phases as clients tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerState {
    Created,
    Running,
    Exited,
    Unknown,
}

/// A configured handler and what it can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerView {
    pub name: String,
    pub is_default: bool,
    pub recursive_readonly: bool,
    /// With idmapped mounts: without them a root file system cannot be shown shifted.
    pub user_namespaces: bool,
}

/// What a command run to its end gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub code: i32,
}

impl ContainerRecord {
    pub fn state(&self) -> ContainerState {
        use crate::phase::ContainerPhase as P;
        match self.phase {
            P::Making { .. } | P::Created | P::Starting => ContainerState::Created,
            P::Running { .. } => ContainerState::Running,
            P::Exited(_) => ContainerState::Exited,
            P::Unknown { .. } | P::Removing => ContainerState::Unknown,
        }
    }
}

impl PodFilter {
    pub(crate) fn matches(&self, pod: &PodRecord) -> bool {
        starts(self.id.as_ref(), &pod.id)
            && self.ready.is_none_or(|ready| ready == pod.phase.is_ready())
            && pod.request.labels.matches(&self.labels)
    }
}

impl ContainerFilter {
    pub(crate) fn matches(&self, container: &ContainerRecord) -> bool {
        starts(self.id.as_ref(), &container.id)
            && starts(self.pod.as_ref(), &container.pod)
            && self.state.is_none_or(|state| state == container.state())
            && container.request.labels.matches(&self.labels)
    }
}

fn starts(prefix: Option<&String>, id: &Id) -> bool {
    prefix.is_none_or(|prefix| id.as_str().starts_with(prefix.as_str()))
}
