//! What a container may use: in adjustments, in updates, and as runtimes report it.

use std::collections::BTreeMap;

use nri_wire::api::{
    HugepageLimit, LinuxCpu, LinuxDeviceCgroup, LinuxMemory, LinuxPids, LinuxResources,
    OptionalBool, OptionalInt64, OptionalString, OptionalUInt64,
};

/// Resources; what is not set is left as it is.
///
/// ```
/// # use nri_sdk::Resources;
/// let mut resources = Resources::new();
/// resources.memory.limit = Some(512 << 20);
/// resources.cpu.cpus = "0-3,8".into();
/// resources.unified.insert("memory.high".into(), "400M".into());
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Resources {
    pub memory: Memory,
    pub cpu: Cpu,
    /// Bytes by page size, as in `2MB`.
    pub hugepages: BTreeMap<String, u64>,
    /// A class that the runtime knows the meaning of.
    pub blockio_class: Option<Class>,
    pub rdt_class: Option<Class>,
    /// Files of cgroup v2 and what is written to them.
    pub unified: BTreeMap<String, String>,
    /// Rules of the device cgroup, in order, after those there are. Only at creation.
    pub devices: Vec<LinuxDeviceCgroup>,
    pub pids: Option<PidsLimit>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memory {
    pub limit: Option<i64>,
    pub reservation: Option<i64>,
    /// Memory and swap together.
    pub swap: Option<i64>,
    pub kernel: Option<i64>,
    pub kernel_tcp: Option<i64>,
    pub swappiness: Option<u64>,
    pub disable_oom_killer: Option<bool>,
    pub use_hierarchy: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cpu {
    pub shares: Option<u64>,
    pub quota: Option<i64>,
    pub period: Option<u64>,
    pub realtime_runtime: Option<i64>,
    pub realtime_period: Option<u64>,
    /// A list as in `0-3,7`; empty is not set.
    pub cpus: String,
    pub mems: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Class {
    Named(String),
    /// Takes the container out of the class it is in.
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PidsLimit {
    At(u64),
    Unlimited,
}

// === impl Resources ===

impl Resources {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Sets all that `other` sets.
    pub fn overlay(&mut self, other: Self) {
        self.memory.overlay(other.memory);
        self.cpu.overlay(other.cpu);
        self.hugepages.extend(other.hugepages);
        overlay(&mut self.blockio_class, other.blockio_class);
        overlay(&mut self.rdt_class, other.rdt_class);
        self.unified.extend(other.unified);
        self.devices.extend(other.devices);
        overlay(&mut self.pids, other.pids);
    }

    /// `None` where nothing is set.
    pub fn to_wire(&self) -> Option<LinuxResources> {
        let page = |(size, limit): (&String, &u64)| HugepageLimit {
            page_size: size.clone(),
            limit: *limit,
        };
        let wire = LinuxResources {
            memory: self.memory.to_wire(),
            cpu: self.cpu.to_wire(),
            hugepage_limits: self.hugepages.iter().map(page).collect(),
            blockio_class: self.blockio_class.as_ref().map(Class::to_wire),
            rdt_class: self.rdt_class.as_ref().map(Class::to_wire),
            unified: self.unified.clone(),
            devices: self.devices.clone(),
            pids: self.pids.map(PidsLimit::to_wire),
        };
        Some(wire).filter(|wire| *wire != LinuxResources::default())
    }
}

impl From<&LinuxResources> for Resources {
    fn from(wire: &LinuxResources) -> Self {
        let pages = wire.hugepage_limits.iter();
        Self {
            memory: wire.memory.as_ref().map(Memory::from).unwrap_or_default(),
            cpu: wire.cpu.as_ref().map(Cpu::from).unwrap_or_default(),
            hugepages: pages.map(|page| (page.page_size.clone(), page.limit)).collect(),
            blockio_class: wire.blockio_class.as_ref().map(Class::from),
            rdt_class: wire.rdt_class.as_ref().map(Class::from),
            unified: wire.unified.clone(),
            devices: wire.devices.clone(),
            pids: wire.pids.as_ref().map(PidsLimit::from),
        }
    }
}

/// What is set in `over` replaces what is below.
fn overlay<T>(below: &mut Option<T>, over: Option<T>) {
    if over.is_some() {
        *below = over;
    }
}

// === impl Memory ===

impl Memory {
    fn overlay(&mut self, other: Self) {
        overlay(&mut self.limit, other.limit);
        overlay(&mut self.reservation, other.reservation);
        overlay(&mut self.swap, other.swap);
        overlay(&mut self.kernel, other.kernel);
        overlay(&mut self.kernel_tcp, other.kernel_tcp);
        overlay(&mut self.swappiness, other.swappiness);
        overlay(&mut self.disable_oom_killer, other.disable_oom_killer);
        overlay(&mut self.use_hierarchy, other.use_hierarchy);
    }

    fn to_wire(self) -> Option<LinuxMemory> {
        let int = |value: i64| OptionalInt64 { value };
        let flag = |value: bool| OptionalBool { value };
        let wire = LinuxMemory {
            limit: self.limit.map(int),
            reservation: self.reservation.map(int),
            swap: self.swap.map(int),
            kernel: self.kernel.map(int),
            kernel_tcp: self.kernel_tcp.map(int),
            swappiness: self.swappiness.map(|value| OptionalUInt64 { value }),
            disable_oom_killer: self.disable_oom_killer.map(flag),
            use_hierarchy: self.use_hierarchy.map(flag),
        };
        Some(wire).filter(|wire| *wire != LinuxMemory::default())
    }
}

impl From<&LinuxMemory> for Memory {
    fn from(wire: &LinuxMemory) -> Self {
        Self {
            limit: wire.limit.map(|set| set.value),
            reservation: wire.reservation.map(|set| set.value),
            swap: wire.swap.map(|set| set.value),
            kernel: wire.kernel.map(|set| set.value),
            kernel_tcp: wire.kernel_tcp.map(|set| set.value),
            swappiness: wire.swappiness.map(|set| set.value),
            disable_oom_killer: wire.disable_oom_killer.map(|set| set.value),
            use_hierarchy: wire.use_hierarchy.map(|set| set.value),
        }
    }
}

// === impl Cpu ===

impl Cpu {
    fn overlay(&mut self, other: Self) {
        overlay(&mut self.shares, other.shares);
        overlay(&mut self.quota, other.quota);
        overlay(&mut self.period, other.period);
        overlay(&mut self.realtime_runtime, other.realtime_runtime);
        overlay(&mut self.realtime_period, other.realtime_period);
        if !other.cpus.is_empty() {
            self.cpus = other.cpus;
        }
        if !other.mems.is_empty() {
            self.mems = other.mems;
        }
    }

    fn to_wire(&self) -> Option<LinuxCpu> {
        let int = |value: i64| OptionalInt64 { value };
        let uint = |value: u64| OptionalUInt64 { value };
        let wire = LinuxCpu {
            shares: self.shares.map(uint),
            quota: self.quota.map(int),
            period: self.period.map(uint),
            realtime_runtime: self.realtime_runtime.map(int),
            realtime_period: self.realtime_period.map(uint),
            cpus: self.cpus.clone(),
            mems: self.mems.clone(),
        };
        Some(wire).filter(|wire| *wire != LinuxCpu::default())
    }
}

impl From<&LinuxCpu> for Cpu {
    fn from(wire: &LinuxCpu) -> Self {
        Self {
            shares: wire.shares.map(|set| set.value),
            quota: wire.quota.map(|set| set.value),
            period: wire.period.map(|set| set.value),
            realtime_runtime: wire.realtime_runtime.map(|set| set.value),
            realtime_period: wire.realtime_period.map(|set| set.value),
            cpus: wire.cpus.clone(),
            mems: wire.mems.clone(),
        }
    }
}

// === impl Class, PidsLimit ===

impl Class {
    fn to_wire(&self) -> OptionalString {
        let value = match self {
            Self::Named(name) => name.clone(),
            Self::None => String::new(),
        };
        OptionalString { value }
    }
}

impl From<&OptionalString> for Class {
    fn from(wire: &OptionalString) -> Self {
        match wire.value.as_str() {
            "" => Self::None,
            name => Self::Named(name.to_owned()),
        }
    }
}

impl PidsLimit {
    /// A limit beyond what the wire can say is none.
    fn to_wire(self) -> LinuxPids {
        let limit = match self {
            Self::At(limit) => i64::try_from(limit).unwrap_or(-1),
            Self::Unlimited => -1,
        };
        LinuxPids { limit }
    }
}

impl From<&LinuxPids> for PidsLimit {
    fn from(wire: &LinuxPids) -> Self {
        u64::try_from(wire.limit).map_or(Self::Unlimited, Self::At)
    }
}
