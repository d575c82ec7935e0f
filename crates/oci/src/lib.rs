//! From what a user asked for and what is so, to an OCI runtime spec, or an error that names the
//! field.
//!
//! ```text
//!  ContainerRequest  (front ends fill it in, the store keeps it)
//!  ImageFacts        (likewise)                        \
//!  ContainerFacts, PodFacts, Accounts   (the engine)    }--> build --> Built { spec, user, … }
//!  HostFacts, HandlerFacts, Policy      (at start)     /
//! ```
//!
//! **Invariant:** pure. The same inputs give the same spec; nothing here reads a file (CDI
//! directories aside, in [`cdi::load`]), asks the kernel or knows a front end. What has to be
//! looked up is handed in, and what will be needed can be asked for first: [`device_paths`],
//! [`image_volumes`].

mod abilities;
mod adjusted;
mod annotations;
mod apparmor;
mod block_io;
mod builder;
mod capabilities;
pub mod cdi;
mod cgroup;
mod devices;
mod error;
mod facts;
mod json;
mod linux;
mod mounts;
mod namespaces;
mod pause;
mod priority;
mod process;
mod request;
mod resources;
mod sandbox;
mod seccomp;
mod security;
mod selinux;
mod signal;
mod sysctl;
mod user;

pub use abilities::Abilities;
pub use adjusted::check_adjusted;
pub use annotations::{Classes, classes, of_sandbox as sandbox_annotations, path_matches};
pub use apparmor::{apparmor_profile, default_apparmor_profile, loaded_profiles};
pub use block_io::{BlockIoClasses, FindDevices};
pub use builder::{Built, Inputs, build};
pub use cgroup::{CgroupPath, container_cgroup_path, pod_cgroup_path, sandbox_cgroup_path};
pub use devices::device_paths;
pub use error::{OciError, Result};
pub use facts::{
    Accounts, Arch, CgroupDriver, CgroupFacts, CgroupVersion, ClassFacts, ContainerFacts,
    DeviceFacts, DeviceNode, HandlerFacts, HostFacts, Kernel, NamespacePaths, PodFacts, PodFiles,
    Policy, PrivilegedDevices, SelinuxLabels, SourceFacts, SourcePropagation,
};
pub use json::to_json;
pub use linux::{from_linux, resources_of, to_linux, update_linux};
pub use mounts::image_volumes;
pub use namespaces::check_mappings;
pub use oci_spec::runtime::{
    IOPriorityClass, LinuxBlockIo, LinuxIntelRdt, LinuxResources, LinuxSchedulerFlag,
    LinuxSchedulerPolicy, Process, Scheduler, Spec,
};
pub use pause::pause_program;
pub use priority::Priorities;
pub use process::exec_process;
pub use request::{
    BlockIo, CapabilityRequest, ConsoleSize, ContainerRequest, DeviceKind, DeviceRate,
    DeviceRequest, DeviceRule, DeviceWeight, ExecRequest, GroupRef, GroupsPolicy, HugepageLimit,
    IdMapping, IdMappings, ImageFacts, MountRequest, MountSource, NamespaceMode, NamespaceRequest,
    Profile, Propagation, Resources, Rlimit, SecurityRequest, SelinuxRequest, UserNamespace,
    UserRef, UserRequest,
};
pub use resources::{Ignored, Limits, Updated, update};
pub use sandbox::{PodInputs, SandboxInputs, build_sandbox, describe_pod, sandbox_oom_score_adj};
pub use seccomp::{SeccompError, SeccompProfile, Subject};
pub use security::check_selinux;
pub use selinux::{SelinuxContexts, pod_categories};
pub use signal::{Signal, SignalError};
pub use sysctl::{OwnNamespaces, pod_sysctls};
pub use user::ResolvedUser;
