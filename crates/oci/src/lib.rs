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
//! directories aside, in one function), asks the kernel or knows a front end. What has to be
//! looked up is handed in, and what will be needed can be asked for first.

mod capabilities;
mod error;
mod facts;
mod request;
mod seccomp;
mod signal;

pub use error::{OciError, Result};
pub use facts::{
    Abilities, Accounts, Arch, CgroupDriver, CgroupFacts, CgroupVersion, ContainerFacts,
    DeviceFacts, DeviceNode, HandlerFacts, HostFacts, Kernel, NamespacePaths, PodFacts, PodFiles,
    Policy, PrivilegedDevices, SelinuxLabels, SourceFacts, SourcePropagation,
};
pub use oci_spec::runtime::{LinuxResources, Process, Spec};
pub use request::{
    BlockIo, CapabilityRequest, ConsoleSize, ContainerRequest, DeviceKind, DeviceRate,
    DeviceRequest, DeviceRule, DeviceWeight, ExecRequest, GroupRef, GroupsPolicy, HugepageLimit,
    IdMapping, IdMappings, ImageFacts, MountRequest, MountSource, NamespaceMode, NamespaceRequest,
    Profile, Propagation, Resources, Rlimit, SecurityRequest, SelinuxRequest, UserNamespace,
    UserRef, UserRequest,
};
pub use seccomp::{SeccompError, SeccompProfile, Subject};
pub use signal::{Signal, SignalError};
