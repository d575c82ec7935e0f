//! What a user asked for, in words of our own.
//!
//! Both front ends fill these in and the store keeps them, so they hold no protobuf, no HTTP and
//! no OCI type, and every struct reads with fields missing: a record written by an older daemon
//! stays readable.
//!
//! **Invariant:** absent means "not asked for". Front ends turn the zeros and empty strings of
//! their wire into `None` before they come here; nothing below tells 0 from unset by guessing.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use base::{Id, Labels};
use serde::{Deserialize, Serialize};

use crate::signal::Signal;

/// Everything about a container that ends in its OCI spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerRequest {
    /// The container's name inside its pod; what kata and plugins see. Empty for Docker.
    pub name: String,
    /// Replaces the image's entrypoint, and its command with it.
    pub command: Vec<String>,
    /// Replaces the image's command.
    pub args: Vec<String>,
    /// In order; a later one of the same name wins. Docker's bare `KEY` is `None`: it removes
    /// what the image set.
    pub env: Vec<(String, Option<String>)>,
    pub working_dir: Option<PathBuf>,
    pub mounts: Vec<MountRequest>,
    pub devices: Vec<DeviceRequest>,
    /// Rules of the device cgroup beyond those of `devices`.
    pub device_rules: Vec<DeviceRule>,
    /// Qualified names, `vendor.com/class=name`.
    pub cdi_devices: Vec<String>,
    pub annotations: Labels,
    pub tty: bool,
    pub console_size: Option<ConsoleSize>,
    pub stdin: bool,
    /// The first attached client that ends closes stdin for good.
    pub stdin_once: bool,
    pub security: SecurityRequest,
    pub resources: Resources,
    pub rlimits: Vec<Rlimit>,
    /// Of the container. A pod's own were set in its namespaces when it was made.
    pub sysctls: BTreeMap<String, String>,
    pub stop_signal: Option<Signal>,
    /// Size of a `/dev/shm` that is the container's own, in bytes. A pod's is in its facts.
    pub shm_size: Option<u64>,
    /// Adds a process that reaps in front of the command.
    pub init: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsoleSize {
    pub height: u16,
    pub width: u16,
}

// === mounts ===

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountRequest {
    pub source: MountSource,
    pub container_path: PathBuf,
    pub readonly: bool,
    /// Read-only with everything mounted below it.
    pub recursive_readonly: bool,
    pub propagation: Propagation,
    /// Gives the files the container's SELinux label.
    pub selinux_relabel: bool,
    /// The ids on disk, seen through this map.
    pub mapping: Option<IdMappings>,
    /// Appended to the options we make: `noexec`, `nodev`, `nosuid`, `size=…`.
    pub options: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountSource {
    /// A file or directory of the host, also behind a named volume.
    Host(PathBuf),
    /// The content of an image, read-only.
    Image {
        reference: String,
        sub_path: Option<PathBuf>,
    },
    Tmpfs,
}

impl Default for MountSource {
    fn default() -> Self {
        Self::Host(PathBuf::new())
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Propagation {
    #[default]
    Private,
    HostToContainer,
    Bidirectional,
}

// === devices ===

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceRequest {
    /// A device, a link to one, or a directory: then every device below it.
    pub host_path: PathBuf,
    pub container_path: PathBuf,
    /// Any of `r`, `w`, `m`; empty means all three.
    pub permissions: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRule {
    pub allow: bool,
    pub kind: DeviceKind,
    /// Absent: all.
    pub major: Option<u32>,
    pub minor: Option<u32>,
    pub permissions: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// Of a rule only.
    All,
    Block,
    Char,
    Fifo,
}

// === security ===

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SecurityRequest {
    pub privileged: bool,
    pub capabilities: CapabilityRequest,
    pub user: UserRequest,
    pub supplemental_groups: Vec<GroupRef>,
    pub groups_policy: GroupsPolicy,
    pub no_new_privileges: bool,
    pub readonly_rootfs: bool,
    /// `None` takes our defaults; CRI always says, if only an empty list.
    pub masked_paths: Option<Vec<String>>,
    /// As `masked_paths`.
    pub readonly_paths: Option<Vec<String>>,
    /// `None` takes what the policy says of the unset.
    pub seccomp: Option<Profile>,
    /// `None` takes the default profile where AppArmor is on.
    pub apparmor: Option<Profile>,
    pub selinux: Option<SelinuxRequest>,
    pub namespaces: NamespaceRequest,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    RuntimeDefault,
    Unconfined,
    /// Seccomp: the absolute path of a file. AppArmor: the name of a loaded profile.
    Localhost(String),
}

/// `NET_ADMIN` and `CAP_NET_ADMIN` are the same, in any case; `ALL` is all we have ourselves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CapabilityRequest {
    pub add: Vec<String>,
    pub drop: Vec<String>,
    /// Added too, and kept by programs that a user other than root executes.
    pub ambient: Vec<String>,
}

/// Neither: the image says, else root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UserRequest {
    pub user: Option<UserRef>,
    /// Needs `user`.
    pub group: Option<GroupRef>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UserRef {
    Id(u32),
    /// Looked up in the image; a number nobody is called by is an id.
    Name(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupRef {
    Id(u32),
    Name(String),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupsPolicy {
    /// With the groups the image's `/etc/group` puts the user in.
    #[default]
    Merge,
    /// Only the groups of the request.
    Strict,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SelinuxRequest {
    pub user: String,
    pub role: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub level: String,
    /// Docker's `label=disable`.
    pub disable: bool,
}

// === namespaces ===

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamespaceRequest {
    pub network: NamespaceMode,
    pub pid: NamespaceMode,
    pub ipc: NamespaceMode,
    pub uts: NamespaceMode,
    /// `None`: the container's own on cgroup v2 unless privileged, else the host's.
    pub cgroup: Option<NamespaceMode>,
    /// `None`: as the pod. Anything else must equal what the pod has.
    pub user: Option<UserNamespace>,
}

/// Everything with the pod, but a process table of one's own.
impl Default for NamespaceRequest {
    fn default() -> Self {
        Self {
            network: NamespaceMode::Pod,
            pid: NamespaceMode::Container,
            ipc: NamespaceMode::Pod,
            uts: NamespaceMode::Pod,
            cgroup: None,
            user: None,
        }
    }
}

/// Whose namespace a container is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NamespaceMode {
    /// What all containers of the pod share, which may be the host's.
    Pod,
    /// A new one for this container.
    Container,
    Node,
    /// That of another container.
    Target(Id),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UserNamespace {
    /// The pod's, mapped like this.
    Pod(IdMappings),
    Node,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IdMappings {
    pub uids: Vec<IdMapping>,
    pub gids: Vec<IdMapping>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdMapping {
    pub container: u32,
    pub host: u32,
    pub len: u32,
}

// === resources ===

/// Limits and shares. The same type asks for a new container and for an update; in an update
/// absent means unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    pub cpu_shares: Option<u64>,
    /// Microseconds per period; −1 is no limit.
    pub cpu_quota: Option<i64>,
    /// Microseconds.
    pub cpu_period: Option<u64>,
    pub cpu_realtime_runtime: Option<i64>,
    pub cpu_realtime_period: Option<u64>,
    /// As the kernel writes lists: `0-3,7`.
    pub cpuset_cpus: Option<String>,
    pub cpuset_mems: Option<String>,
    /// Bytes; −1 is no limit.
    pub memory_limit: Option<i64>,
    pub memory_reservation: Option<i64>,
    /// Memory and swap together, in bytes; −1 is no limit. Absent beside a limit: no swap.
    pub memory_swap: Option<i64>,
    pub memory_swappiness: Option<u64>,
    pub oom_kill_disable: Option<bool>,
    /// −1000 to 1000. Of the first process; an update leaves it alone.
    pub oom_score_adj: Option<i32>,
    pub hugepages: Vec<HugepageLimit>,
    /// Files of cgroup v2, by name.
    pub unified: BTreeMap<String, String>,
    /// −1 is no limit.
    pub pids_limit: Option<i64>,
    pub block_io: Option<BlockIo>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugepageLimit {
    /// As the kernel names them: `2MB`, `1GB`.
    pub page_size: String,
    /// Bytes.
    pub limit: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BlockIo {
    /// 10 to 1000.
    pub weight: Option<u16>,
    pub weight_devices: Vec<DeviceWeight>,
    pub read_bps: Vec<DeviceRate>,
    pub write_bps: Vec<DeviceRate>,
    pub read_iops: Vec<DeviceRate>,
    pub write_iops: Vec<DeviceRate>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceWeight {
    pub major: u32,
    pub minor: u32,
    pub weight: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRate {
    pub major: u32,
    pub minor: u32,
    pub rate: u64,
}

/// `name` as in `RLIMIT_NOFILE`, with or without the prefix, in any case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimit {
    pub name: String,
    pub soft: u64,
    pub hard: u64,
}

// === exec ===

/// One more process in a running container. What it does not say is as the container's first
/// process has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecRequest {
    pub command: Vec<String>,
    pub env: Vec<(String, Option<String>)>,
    pub working_dir: Option<PathBuf>,
    pub tty: bool,
    pub console_size: Option<ConsoleSize>,
    pub user: UserRequest,
    pub privileged: bool,
}

// === image ===

/// What the image's configuration says. Part of the stored record: the image may be gone when
/// the container is started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageFacts {
    /// As the user named it; an annotation only.
    pub name: String,
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    /// `KEY=value`, as the image has them.
    pub env: Vec<String>,
    pub working_dir: Option<PathBuf>,
    /// `user`, `uid`, `user:group`, `uid:gid`.
    pub user: String,
    /// As written; checked when it is needed.
    pub stop_signal: Option<String>,
    pub volumes: BTreeSet<PathBuf>,
    pub labels: Labels,
}
