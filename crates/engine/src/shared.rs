//! What all parts of the engine hold together.

use std::{collections::BTreeMap, sync::Arc};

use base::Id;
use net::Networks;
use parking_lot::RwLock;
use shim_client::{Foreign, Shim};
use store::{Store, Table};
use tokio::sync::OnceCell;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    config::{EngineConfig, Handler},
    error::{EngineError, Result},
    events::Events,
    layout::Layout,
    names::Names,
    owner::Mailbox,
    plugins::Plugins,
    record::{ContainerRecord, PodRecord, StoryRecord},
    stages::Stages,
    stats::Groups,
    storage::Storage,
};

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: EngineConfig,
    pub(crate) layout: Layout,
    pub(crate) store: Store,
    pub(crate) pods: Table<PodRecord>,
    pub(crate) containers: Table<ContainerRecord>,
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) networks: Networks,
    pub(crate) plugins: Plugins,
    pub(crate) stories: Table<StoryRecord>,
    pub(crate) pod_names: Names,
    pub(crate) container_names: Names,
    pub(crate) stages: Stages,
    pub(crate) events: Events,
    pub(crate) groups: Groups,
    pub(crate) live: Live,
    /// Once there is a pod of a shim that is not ours.
    pub(crate) foreign: OnceCell<Foreign>,
    /// Every task of the engine; closing waits for them.
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
    /// Cancelled before the callers of the engine are ended, see [`crate::Engine::leave_commands`].
    pub(crate) stopping: CancellationToken,
}

/// Pods that have an owner, and the shims of those that run.
#[derive(Debug, Default)]
pub(crate) struct Live {
    owners: RwLock<BTreeMap<Id, Mailbox>>,
    shims: RwLock<BTreeMap<Id, Arc<Shim>>>,
}

impl Live {
    pub(crate) fn add(&self, pod: Id, mailbox: Mailbox) {
        self.owners.write().insert(pod, mailbox);
    }

    pub(crate) fn remove(&self, pod: Id) {
        self.owners.write().remove(&pod);
        self.shims.write().remove(&pod);
    }

    pub(crate) fn owner(&self, pod: Id) -> Option<Mailbox> {
        self.owners.read().get(&pod).cloned()
    }

    pub(crate) fn set_shim(&self, pod: Id, shim: Arc<Shim>) {
        self.shims.write().insert(pod, shim);
    }

    pub(crate) fn drop_shim(&self, pod: Id) {
        self.shims.write().remove(&pod);
    }

    pub(crate) fn shim(&self, pod: Id) -> Option<Arc<Shim>> {
        self.shims.read().get(&pod).cloned()
    }
}

impl Shared {
    pub(crate) fn handler(&self, name: &str) -> Result<&Handler> {
        let mut handlers = self.config.handlers.iter();
        let found = if name.is_empty() {
            handlers.next()
        } else {
            handlers.find(|handler| handler.name == name)
        };
        found.ok_or_else(|| EngineError::NoHandler(name.to_owned()))
    }

    /// The daemon's side of shims that are not ours.
    pub(crate) async fn foreign(&self) -> Result<&Foreign> {
        let open = async || Foreign::open(&self.layout.events());
        Ok(self.foreign.get_or_try_init(open).await?)
    }

    /// What limits depend on, under a handler.
    pub(crate) fn limits_of(&self, handler: &str) -> Result<oci::Limits<'_>> {
        let EngineConfig { host, policy, .. } = &self.config;
        Ok(oci::Limits { host, handler: &self.handler(handler)?.facts, policy })
    }

    pub(crate) fn owner(&self, pod: Id) -> Result<Mailbox> {
        let gone = || EngineError::NotFound { what: "pod", id: pod.to_string() };
        self.live.owner(pod).ok_or_else(gone)
    }

    pub(crate) fn shim(&self, pod: Id) -> Result<Arc<Shim>> {
        self.live.shim(pod).ok_or_else(|| EngineError::State {
            what: "pod",
            id: pod,
            state: "without a shim".to_owned(),
            action: "reach its containers",
        })
    }

    /// The one record whose id is `id` or begins with it. Undelivered ones count: who
    /// knows the id was told.
    pub(crate) fn find_pod(&self, id: &str) -> Result<Arc<PodRecord>> {
        find("pod", id, self.pods.prefix(id), |pod| pod.phase.is_made())
    }

    pub(crate) fn find_container(&self, id: &str) -> Result<Arc<ContainerRecord>> {
        find("container", id, self.containers.prefix(id), |c| c.phase.is_made())
    }

    pub(crate) fn containers_of(&self, pod: Id) -> Vec<Arc<ContainerRecord>> {
        let mut all = self.containers.list();
        all.retain(|container| container.pod == pod);
        all
    }
}

fn find<T>(
    what: &'static str,
    id: &str,
    mut found: Vec<Arc<T>>,
    exists: impl Fn(&T) -> bool,
) -> Result<Arc<T>> {
    found.retain(|record| exists(record));
    match found.len() {
        _ if id.is_empty() => Err(EngineError::invalid(format!("{what} id"), "is empty")),
        0 => Err(EngineError::NotFound { what, id: id.to_owned() }),
        1 => Ok(found.remove(0)),
        _ => Err(EngineError::Ambiguous { what, id: id.to_owned() }),
    }
}
