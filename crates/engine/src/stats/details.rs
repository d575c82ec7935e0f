//! Everything that can be said about what pods and containers use. Costs more than the
//! plain stats: for those who collect metrics.

use std::{fs, sync::Arc};

use jiff::Timestamp;
pub use sys::host::Space;
use sys::{
    cgroup::{Cpu, Hugetlb, Io, IoDevice, MemoryDetails, Pids},
    process,
};

use super::{ContainerStats, Network, Usage};
use crate::{
    error::Result,
    record::{ContainerRecord, PodRecord},
    shared::Shared,
};

#[derive(Clone, Debug)]
pub struct PodDetails {
    pub pod: Arc<PodRecord>,
    pub network: Option<Network>,
    /// Those that run.
    pub containers: Vec<ContainerDetails>,
    pub at: Timestamp,
}

#[derive(Clone, Debug)]
pub struct ContainerDetails {
    pub stats: ContainerStats,
    pub usage: Usage,
    pub cpu: Option<Cpu>,
    pub memory: Option<MemoryDetails>,
    /// Processes that were ended for want of memory.
    pub oom_kills: Option<u64>,
    pub io: Vec<Device>,
    pub hugetlb: Vec<Hugetlb>,
    pub tasks: Option<Pids>,
    pub processes: Processes,
    /// That which the writable layer is on.
    pub file_system: Option<Space>,
}

/// What went to and from a block device.
#[derive(Clone, Debug)]
pub struct Device {
    pub major: u32,
    pub minor: u32,
    /// `/dev/vda`; empty if it has none.
    pub name: String,
    pub io: IoDevice,
}

#[derive(Clone, Debug, Default)]
pub struct Processes {
    pub count: u64,
    pub descriptors: u64,
    pub sockets: u64,
    /// Of the first one, those that limit, by the kernel's names.
    pub soft_limits: Vec<(String, u64)>,
}

/// All blocking.
impl Shared {
    pub(crate) fn details_of(&self, pods: Vec<Arc<PodRecord>>) -> Result<Vec<PodDetails>> {
        let networks = self.networks_of(&pods)?;
        let mut all = Vec::with_capacity(pods.len());
        for (pod, network) in pods.into_iter().zip(networks) {
            let mut containers = Vec::new();
            for container in self.containers_of(pod.id) {
                if container.is_visible() {
                    containers.extend(self.container_details_of(container)?);
                }
            }
            all.push(PodDetails { pod, network, containers, at: Timestamp::now() });
        }
        Ok(all)
    }

    /// `None` if it does not run.
    fn container_details_of(
        &self,
        container: Arc<ContainerRecord>,
    ) -> Result<Option<ContainerDetails>> {
        let (pid, group) = (container.phase.pid(), self.group_of(&container));
        let stats = self.stats_of(container)?;
        let (Some(pid), Some(group), Some(usage)) = (pid, group, stats.usage.clone()) else {
            return Ok(None);
        };
        let cgroup = &group.cgroup;
        let layer = stats.writable_layer.as_ref();
        Ok(Some(ContainerDetails {
            cpu: cgroup.cpu()?,
            memory: cgroup.memory_details()?,
            oom_kills: cgroup.oom_kills()?,
            io: devices(cgroup.io()?.unwrap_or_default()),
            hugetlb: cgroup.hugetlb()?.unwrap_or_default(),
            tasks: cgroup.pids_usage()?,
            processes: Processes::of(pid, &cgroup.all_pids()?),
            file_system: layer.and_then(|layer| Space::of(&layer.mountpoint).ok()),
            usage,
            stats,
        }))
    }
}

impl Processes {
    /// What ends while it is looked at is not counted.
    fn of(first: u32, pids: &[u32]) -> Self {
        let open: Vec<_> = pids.iter().filter_map(|pid| process::descriptors(*pid).ok()).collect();
        Self {
            count: pids.len() as u64,
            descriptors: open.iter().map(|open| open.all).sum(),
            sockets: open.iter().map(|open| open.sockets).sum(),
            soft_limits: process::soft_limits(first).unwrap_or_default(),
        }
    }
}

fn devices(io: Io) -> Vec<Device> {
    let device = |((major, minor), io)| {
        let link = fs::read_link(format!("/sys/dev/block/{major}:{minor}"));
        let base = link.ok().and_then(|to| Some(to.file_name()?.to_string_lossy().into_owned()));
        let name = base.map(|base| format!("/dev/{base}")).unwrap_or_default();
        Device { major, minor, name, io }
    };
    io.devices.into_iter().map(device).collect()
}
