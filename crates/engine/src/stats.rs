//! What pods and containers use: read from the kernel when somebody asks.
//!
//! ```text
//!   Engine::container_stats ──> records (memory)
//!                               groups: an open cgroup per container and pod ──> files
//!                               storage: what the writable layer took when last counted
//! ```
//!
//! **Invariants**
//! - No shim is asked and no tree is walked. Nothing runs while nobody asks.
//! - What the kernel does not offer is absent, never zero.

mod details;
mod rate;

use std::{
    collections::BTreeMap,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use base::Id;
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use sys::{
    cgroup::{Cgroup, Layout, LayoutMode, Membership},
    namespace,
};
pub use sys::{
    cgroup::{
        Cpu, Hugetlb, IoDevice, Memory, MemoryDetails, Pids,
        parse::{Pressure, Stall},
    },
    netdev::{Interface, Traffic},
};
use tokio::time::Instant;

pub use self::details::{ContainerDetails, Device, PodDetails, Processes, Space};
use self::rate::Rate;
use crate::{
    error::Result,
    record::{ContainerRecord, PodRecord},
    shared::Shared,
    storage::LayerUsage,
};

/// Those whose files are read here.
const CONTROLLERS: [&str; 7] = ["cpu", "cpuacct", "memory", "pids", "io", "blkio", "hugetlb"];

/// What a container uses.
#[derive(Clone, Debug)]
pub struct ContainerStats {
    pub container: Arc<ContainerRecord>,
    /// `None` if it does not run.
    pub usage: Option<Usage>,
    pub writable_layer: Option<LayerUsage>,
}

/// What a pod uses, all of its containers together.
#[derive(Clone, Debug)]
pub struct PodStats {
    pub pod: Arc<PodRecord>,
    pub usage: Option<Usage>,
    /// `None` on the host's network.
    pub network: Option<Network>,
    pub processes: Option<u64>,
    pub at: Timestamp,
    pub containers: Vec<ContainerStats>,
}

/// What a control group uses.
#[derive(Clone, Debug)]
pub struct Usage {
    pub at: Timestamp,
    pub cpu: Option<CpuUsage>,
    pub memory: Option<Memory>,
    pub pressure: Pressures,
}

#[derive(Clone, Copy, Debug)]
pub struct CpuUsage {
    pub total_ns: u64,
    /// Billionths of one CPU, over the last second or more; `None` at the first look.
    pub nano_cores: Option<u64>,
}

/// Waiting, where the kernel counts it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pressures {
    pub cpu: Option<Pressure>,
    pub memory: Option<Pressure>,
    pub io: Option<Pressure>,
}

#[derive(Clone, Debug)]
pub struct Network {
    pub at: Timestamp,
    /// Without the loopback one.
    pub interfaces: Vec<Interface>,
}

impl Network {
    /// The one that carries the pod's address.
    pub fn default_interface(&self) -> Option<&Interface> {
        let named = self.interfaces.iter().find(|interface| interface.name == "eth0");
        named.or_else(|| self.interfaces.first())
    }
}

/// The groups that were asked about, open.
#[derive(Debug)]
pub(crate) struct Groups {
    layout: Layout,
    open: RwLock<BTreeMap<Id, Arc<Group>>>,
}

#[derive(Debug)]
pub(crate) struct Group {
    cgroup: Cgroup,
    rate: Mutex<Rate>,
}

impl Groups {
    /// Blocking.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { layout: Layout::detect()?, open: RwLock::default() })
    }

    pub(crate) fn is_unified(&self) -> bool {
        self.layout.mode == LayoutMode::V2
    }

    pub(crate) fn forget(&self, id: Id) {
        self.open.write().remove(&id);
    }

    /// In all its hierarchies. Blocking.
    pub(crate) fn open(&self, path: &Path) -> Result<Option<Cgroup>> {
        Ok(Cgroup::open(&self.layout, path)?)
    }

    /// The group of a container or pod, opened by the first who asks. Blocking.
    fn get(&self, id: Id, path: impl FnOnce() -> Option<PathBuf>) -> Option<Arc<Group>> {
        if let Some(group) = self.open.read().get(&id) {
            return Some(Arc::clone(group));
        }
        let cgroup = Cgroup::open_for(&self.layout, &path()?, &CONTROLLERS).ok()??;
        let group = Arc::new(Group { cgroup, rate: Mutex::default() });
        let mut open = self.open.write();
        Some(Arc::clone(open.entry(id).or_insert(group)))
    }
}

impl Group {
    /// `None`: the group is gone.
    fn usage(&self) -> Result<Option<Usage>> {
        let (at, now) = (Timestamp::now(), Instant::now());
        let total_ns = self.cgroup.cpu_usage_ns()?;
        let memory = self.cgroup.memory()?;
        if total_ns.is_none() && memory.is_none() {
            return Ok(None);
        }
        let cpu =
            |total_ns| CpuUsage { total_ns, nano_cores: self.rate.lock().take(now, total_ns) };
        Ok(Some(Usage {
            at,
            cpu: total_ns.map(cpu),
            memory,
            pressure: Pressures {
                cpu: self.cgroup.cpu_pressure()?,
                memory: self.cgroup.memory_pressure()?,
                io: self.cgroup.io_pressure()?,
            },
        }))
    }
}

/// All blocking.
impl Shared {
    pub(crate) fn stats_of(&self, container: Arc<ContainerRecord>) -> Result<ContainerStats> {
        let usage = match self.group_of(&container) {
            Some(group) => group.usage()?,
            None => None,
        };
        let writable_layer = self.storage.usage(container.id);
        Ok(ContainerStats { container, usage, writable_layer })
    }

    fn group_of(&self, container: &ContainerRecord) -> Option<Arc<Group>> {
        let pid = container.phase.pid()?;
        self.groups.get(container.id, || {
            let path = &container.made.cgroup_path;
            // With systemd the spec names a scope, and only systemd knows where that is.
            if path.starts_with('/') { Some(path.into()) } else { self.groups.path_of(pid) }
        })
    }

    pub(crate) fn pod_stats_of(&self, pods: Vec<Arc<PodRecord>>) -> Result<Vec<PodStats>> {
        let networks = self.networks_of(&pods)?;
        let mut all = Vec::with_capacity(pods.len());
        for (pod, network) in pods.into_iter().zip(networks) {
            let usage = self.pod_usage(&pod)?;
            let at = Timestamp::now();
            let containers = self.containers_of(pod.id);
            let visible = containers.into_iter().filter(|container| container.is_visible());
            let containers = visible.map(|c| self.stats_of(c)).collect::<Result<Vec<_>>>()?;
            let processes = self.processes_of(&containers)?;
            all.push(PodStats { pod, usage, network, processes, at, containers });
        }
        Ok(all)
    }

    fn pod_usage(&self, pod: &PodRecord) -> Result<Option<Usage>> {
        let path = || {
            let parent = pod.request.cgroup_parent.as_deref();
            oci::pod_cgroup_path(self.config.cgroup_driver, parent, &pod.id).ok()
        };
        if let Some(group) = self.groups.get(pod.id, path) {
            if let Some(usage) = group.usage()? {
                return Ok(Some(usage));
            }
            // Removed, and perhaps made again by whoever owns it.
            self.groups.forget(pod.id);
        }
        match self.groups.get(pod.id, path) {
            Some(group) => group.usage(),
            None => Ok(None),
        }
    }

    fn processes_of(&self, containers: &[ContainerStats]) -> Result<Option<u64>> {
        let mut count = None;
        for container in containers {
            if let Some(group) = self.group_of(&container.container) {
                *count.get_or_insert(0) += group.cgroup.all_pids()?.len() as u64;
            }
        }
        Ok(count)
    }

    /// In the order of `pods`.
    pub(crate) fn networks_of(&self, pods: &[Arc<PodRecord>]) -> Result<Vec<Option<Network>>> {
        let open = |pod: &Arc<PodRecord>| {
            pod.own_network().then(|| namespace::open(&self.layout.netns(&pod.id)).ok()).flatten()
        };
        let spaces: Vec<_> = pods.iter().map(open).collect();
        let held: Vec<_> = spaces.iter().flatten().map(|space| space.as_fd()).collect();
        let mut read = sys::netdev::of_each(&held)?.into_iter();
        let at = Timestamp::now();
        let one = |space: &Option<_>| {
            let mut interfaces = space.as_ref().and_then(|_| read.next())?.ok()?;
            interfaces.retain(|interface| interface.name != "lo");
            Some(Network { at, interfaces })
        };
        Ok(spaces.iter().map(one).collect())
    }
}

impl Groups {
    fn path_of(&self, pid: u32) -> Option<PathBuf> {
        let (_, names) = self.layout.hierarchies().into_iter().next()?;
        let memberships = Membership::of(pid).ok()?;
        let by_name =
            memberships.iter().find(|m| m.controllers.iter().any(|own| names.contains(own)));
        let found = by_name.or_else(|| memberships.iter().find(|m| m.is_unified()))?;
        Some(found.path.clone())
    }
}
