//! What a plugin asks of a container that is about to be created.
//!
//! Fields are plain data. Those with named entries are [`Keyed`], where removal and taking
//! over from another plugin are words of their own; in the others each value has one place.
//!
//! **Invariant:** an adjustment never conflicts with itself, and what is not set does not
//! appear on the wire.

mod keyed;
#[cfg(test)]
mod tests;
mod wire;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

pub use keyed::{Change, Keyed};
use nri_wire::api::{Hooks, LinuxIoPriority, LinuxMemoryPolicy, LinuxScheduler, LinuxSeccomp};
#[cfg(feature = "oci")]
pub(crate) use wire::{device_from_wire, device_to_wire, mount_from_wire, mount_to_wire};

use crate::Resources;

/// The changes a plugin wants in a container. Empty asks for none.
///
/// ```
/// # use nri_sdk::{Adjustment, Device, Mount};
/// let mut adjustment = Adjustment::new();
/// adjustment.mounts.set("/etc/tls", Mount::bind("/var/lib/tls").option("ro"));
/// adjustment.devices.set("/dev/fuse", Device::character(10, 229));
/// adjustment.resources.cpu.cpus = "0-3".into();
/// adjustment.oom_score_adj = Some(100);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Adjustment {
    pub annotations: Keyed<String>,
    /// By destination.
    pub mounts: Keyed<Mount>,
    pub env: Keyed<String>,
    pub args: Option<Args>,
    /// Added to those of the container and of other plugins; hooks never conflict.
    pub hooks: Hooks,
    /// By type, as in `RLIMIT_NOFILE`.
    pub rlimits: BTreeMap<String, Rlimit>,
    /// By qualified name, `vendor/class=device`.
    pub cdi_devices: BTreeSet<String>,
    /// By path in the container.
    pub devices: Keyed<Device>,
    pub resources: Resources,
    pub cgroups_path: Option<String>,
    pub oom_score_adj: Option<i64>,
    pub io_priority: Option<Setting<LinuxIoPriority>>,
    pub seccomp: Option<LinuxSeccomp>,
    /// Namespaces cannot be taken over: of two plugins that want the same the second fails.
    pub namespaces: BTreeMap<NamespaceKind, Setting<Namespace>>,
    pub sysctl: Keyed<String>,
    /// By name on the host; the value is the name in the container.
    pub net_devices: Keyed<String>,
    pub scheduler: Option<Setting<LinuxScheduler>>,
    pub rdt: Rdt,
    pub memory_policy: Option<LinuxMemoryPolicy>,
}

/// A value that can also be removed from what the container has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting<T> {
    Set(T),
    Remove,
}

/// The command line of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Args {
    /// Conflicts with another plugin that sets it.
    Set(Vec<String>),
    /// Whoever set it before.
    TakeOver(Vec<String>),
}

/// What is mounted; where is its key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    pub kind: String,
    pub source: String,
    pub options: Vec<String>,
}

/// A device node; its path is its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    pub kind: DeviceKind,
    pub major: i64,
    pub minor: i64,
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceKind {
    Block,
    Character,
    /// Unbuffered; Linux makes it a character device.
    Unbuffered,
    Fifo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rlimit {
    pub hard: u64,
    pub soft: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NamespaceKind {
    Cgroup,
    Ipc,
    Mount,
    Network,
    Pid,
    Time,
    User,
    Uts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespace {
    New,
    /// The one that this file pins.
    Join(String),
}

/// The container's place in Resource Director Technology, without classes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rdt {
    /// Drops all of it, whoever set it, before the other fields are set.
    pub take_over: bool,
    pub clos_id: Option<String>,
    pub schemata: Option<Vec<String>>,
    pub enable_monitoring: Option<bool>,
}

/// Why an adjustment cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdjustmentError {
    /// The wire marks a removal by a dash before the key.
    #[error("{field}: key {key:?} is empty or begins with '-'")]
    Key { field: &'static str, key: String },
    #[error("env: name {0:?} contains '='")]
    EnvName(String),
    /// The wire marks a take-over by an empty first argument.
    #[error("args: they must not be empty nor begin with an empty one")]
    Args,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} {text:?}")]
pub struct UnknownKind {
    pub what: &'static str,
    pub text: String,
}

// === impl Adjustment ===

impl Adjustment {
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether it asks for nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

// === impl Mount, Device ===

impl Mount {
    pub fn new(kind: impl Into<String>, source: impl Into<String>) -> Self {
        Self { kind: kind.into(), source: source.into(), options: Vec::new() }
    }

    /// A file or directory of the host, with all that is mounted below.
    pub fn bind(source: impl Into<String>) -> Self {
        Self::new("bind", source).option("rbind")
    }

    #[must_use]
    pub fn option(mut self, option: impl Into<String>) -> Self {
        self.options.push(option.into());
        self
    }
}

impl Device {
    pub fn new(kind: DeviceKind, major: i64, minor: i64) -> Self {
        Self { kind, major, minor, mode: None, uid: None, gid: None }
    }

    pub fn character(major: i64, minor: i64) -> Self {
        Self::new(DeviceKind::Character, major, minor)
    }

    pub fn block(major: i64, minor: i64) -> Self {
        Self::new(DeviceKind::Block, major, minor)
    }
}

// === names of kinds ===

macro_rules! named {
    ($type:ident, $what:literal, $($variant:ident = $name:literal),*) => {
        impl $type {
            /// As the OCI runtime specification writes it.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }

        impl FromStr for $type {
            type Err = UnknownKind;

            fn from_str(text: &str) -> Result<Self, UnknownKind> {
                match text {
                    $($name => Ok(Self::$variant),)*
                    _ => Err(UnknownKind { what: $what, text: text.to_owned() }),
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

named!(DeviceKind, "device type", Block = "b", Character = "c", Unbuffered = "u", Fifo = "p");
named!(
    NamespaceKind,
    "namespace type",
    Cgroup = "cgroup",
    Ipc = "ipc",
    Mount = "mount",
    Network = "network",
    Pid = "pid",
    Time = "time",
    User = "user",
    Uts = "uts"
);
