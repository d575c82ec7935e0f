//! What is so, as the engine found it: the pod, the host, the handler, the files.
//!
//! A spec depends on nothing that is not in here or in the request, so that the same inputs give
//! the same spec on any machine, in any test, after any restart.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use base::{Id, Labels};
use oci_spec::runtime::{LinuxBlockIo, Spec};

use crate::{
    abilities::Abilities,
    request::{DeviceKind, IdMappings, Profile, Rlimit},
    seccomp::SeccompProfile,
};

// === container ===

/// What the engine prepared for this one container.
#[derive(Clone, Debug)]
pub struct ContainerFacts {
    pub id: Id,
    /// The root file system, absolute or relative to the bundle.
    pub rootfs: PathBuf,
    /// One for each mount of the request, in its order.
    pub sources: Vec<SourceFacts>,
    /// Where the engine keeps the image's volumes, by their place in the container. See
    /// `image_volumes` for which are wanted.
    pub volumes: BTreeMap<PathBuf, PathBuf>,
    /// For each container named as a target, if it runs and is in this pod: a directory with its
    /// namespaces, `/proc/<pid>/ns`.
    pub targets: BTreeMap<Id, PathBuf>,
    /// The file a seccomp request names.
    pub seccomp: Option<SeccompProfile>,
    /// The AppArmor profile that it is to have is loaded. See `apparmor_profile`.
    pub apparmor_loaded: bool,
    /// What the SELinux request came to on this host.
    pub selinux: Option<SelinuxLabels>,
    pub devices: DeviceFacts,
    pub classes: ClassFacts,
    /// The host's path of the program that reaps, where the request asks for one.
    pub init: Option<PathBuf>,
}

/// The source of a mount, looked at. Of a tmpfs it is not used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceFacts {
    /// With all links followed; for an image, where it is mounted.
    pub path: PathBuf,
    pub propagation: SourcePropagation,
}

/// Whether mounts made below the source travel, and which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourcePropagation {
    #[default]
    Private,
    Slave,
    Shared,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelinuxLabels {
    pub process: String,
    pub mount: String,
}

/// Device nodes of the host, at the time of asking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFacts {
    /// For each path of [`crate::device_paths`]: the node there, or all below that directory.
    pub by_path: BTreeMap<PathBuf, Vec<DeviceNode>>,
    /// All of `/dev`, for the privileged.
    pub host: Vec<DeviceNode>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceNode {
    /// On the host.
    pub path: PathBuf,
    pub kind: DeviceKind,
    pub major: u32,
    pub minor: u32,
    /// Permission bits only.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// What there is of what [`crate::classes`] names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassFacts {
    /// What that class means; `None` if nobody defined it.
    pub block_io: Option<LinuxBlockIo>,
    /// Directories of resctrl; `None` where it is not mounted.
    pub rdt: Option<BTreeSet<String>>,
}

/// The text of two files of the root file system; `None` where there is no such file.
#[derive(Clone, Debug, Default)]
pub struct Accounts {
    pub passwd: Option<String>,
    pub group: Option<String>,
}

// === pod ===

#[derive(Clone, Debug)]
pub struct PodFacts {
    pub id: Id,
    pub name: String,
    pub namespace: String,
    pub uid: String,
    /// Empty on the host's network: the host's own name is used.
    pub hostname: String,
    pub annotations: Labels,
    /// The pod may hold privileged containers.
    pub privileged: bool,
    pub namespaces: NamespacePaths,
    /// Set exactly when `namespaces.user` is.
    pub mapping: Option<IdMappings>,
    pub files: PodFiles,
    /// As the front end gave it; `None` puts the pod under our own.
    pub cgroup_parent: Option<String>,
}

/// Files to join a namespace by. `None` is the host's, except for `pid`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespacePaths {
    pub network: Option<PathBuf>,
    pub ipc: Option<PathBuf>,
    pub uts: Option<PathBuf>,
    /// The one its containers share, where they do.
    pub pid: Option<PathBuf>,
    /// The pod may use the host's.
    pub host_pid: bool,
    pub user: Option<PathBuf>,
}

/// Bound into every container of the pod unless it mounts its own there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFiles {
    pub hosts: Option<PathBuf>,
    pub hostname: Option<PathBuf>,
    pub resolv_conf: Option<PathBuf>,
    /// A directory.
    pub shm: Option<PathBuf>,
}

// === host ===

#[derive(Clone, Debug)]
pub struct HostFacts {
    pub hostname: String,
    /// Our bounding set: all that "all" can mean. `CAP_SYS_ADMIN`.
    pub capabilities: BTreeSet<String>,
    /// The lowest `oom_score_adj` we can give; `None` with CAP_SYS_RESOURCE.
    pub oom_score_floor: Option<i32>,
    pub cgroup: CgroupFacts,
    pub arch: Arch,
    pub kernel: Kernel,
    pub seccomp: bool,
    pub apparmor: bool,
    pub selinux: bool,
    /// RDT can be used.
    pub resctrl: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupFacts {
    /// That of the controllers. A v2 mount without controllers is still v1.
    pub version: CgroupVersion,
    /// `cpu`, `cpuset`, `memory`, `hugetlb`, `pids`, `devices`, `blkio` or `io`.
    pub controllers: BTreeSet<String>,
    /// Swap is counted and can be limited.
    pub swap: bool,
    /// Of the host's mount, those a container that shares its namespace must keep:
    /// `nsdelegate`, `memory_recursiveprot`.
    pub mount_options: Vec<String>,
}

impl CgroupFacts {
    pub fn has(&self, controller: &str) -> bool {
        self.controllers.contains(controller)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    V1,
    V2,
}

/// The machines the default seccomp profile knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    X86_64,
    Aarch64,
    Riscv64,
    S390x,
    Ppc64le,
    Loongarch64,
}

impl Arch {
    /// From `uname -m`; `ppc64` itself is big-endian and not ours.
    pub fn of_machine(machine: &str) -> Option<Self> {
        Some(match machine {
            "x86_64" => Self::X86_64,
            "aarch64" => Self::Aarch64,
            "riscv64" => Self::Riscv64,
            "s390x" => Self::S390x,
            "ppc64le" => Self::Ppc64le,
            "loongarch64" => Self::Loongarch64,
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kernel {
    pub major: u32,
    pub minor: u32,
}

impl Kernel {
    /// From `uname -r`: `6.1.0-28-amd64`.
    pub fn of_release(release: &str) -> Option<Self> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        let mut next = || numbers.next()?.parse().ok();
        Some(Self { major: next()?, minor: next()? })
    }
}

// === handler ===

/// A configured OCI runtime: what it is told to do and what it can.
#[derive(Clone, Debug)]
pub struct HandlerFacts {
    pub name: String,
    /// Stands where our default spec would.
    pub base_spec: Option<Spec>,
    /// What goes into `ociVersion`; old crun takes 1.0.x only.
    pub oci_version: String,
    pub abilities: Abilities,
    pub cgroup_driver: CgroupDriver,
    /// Patterns of annotations handed on to the OCI runtime; `*` does not cross a `/`.
    pub pod_annotations: Vec<String>,
    pub container_annotations: Vec<String>,
    /// Containers may write their own cgroup. v2 only.
    pub cgroup_writable: bool,
    pub privileged_devices: PrivilegedDevices,
    /// Stands in for a seccomp request that says nothing, before what the policy has.
    pub unset_seccomp: Option<Profile>,
}

impl Default for HandlerFacts {
    fn default() -> Self {
        Self {
            name: String::new(),
            base_spec: None,
            oci_version: "1.0.2".to_owned(),
            abilities: Abilities::default(),
            cgroup_driver: CgroupDriver::Cgroupfs,
            pod_annotations: Vec::new(),
            container_annotations: Vec::new(),
            cgroup_writable: false,
            privileged_devices: PrivilegedDevices::Host,
            unset_seccomp: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupDriver {
    Cgroupfs,
    Systemd,
}

/// What of the host's devices a privileged container gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrivilegedDevices {
    /// All, and leave to use any.
    #[default]
    Host,
    /// None but those it asks for.
    Own,
    /// None but those it asks for, and leave to use any it makes itself.
    OwnAllAllowed,
}

// === policy ===

/// What the operator decided for all containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Stands in for a seccomp request that says nothing.
    pub unset_seccomp: Profile,
    /// The profile `RuntimeDefault` means; the engine loads it.
    pub apparmor_profile: String,
    /// Huge page limits are neither set nor missed.
    pub ignore_hugepages: bool,
    /// Limits on huge pages are dropped where the controller is missing, else refused.
    pub tolerate_missing_hugetlb: bool,
    /// Devices belong to the container's user, not to root.
    pub device_ownership: bool,
    /// Used where the request has none of that name.
    pub rlimits: Vec<Rlimit>,
    /// A container's capabilities before it adds and drops.
    pub capabilities: Vec<String>,
    /// Pods whose network is their own may bind low ports without a capability.
    pub unprivileged_ports: bool,
    /// … and ping.
    pub unprivileged_icmp: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            unset_seccomp: Profile::Unconfined,
            apparmor_profile: "longshore-default".to_owned(),
            ignore_hugepages: true,
            tolerate_missing_hugetlb: true,
            device_ownership: false,
            rlimits: Vec::new(),
            capabilities: crate::capabilities::DEFAULT.map(str::to_owned).to_vec(),
            unprivileged_ports: true,
            unprivileged_icmp: true,
        }
    }
}
