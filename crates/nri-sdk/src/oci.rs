//! From and to the types of the OCI runtime specification, as `oci-spec` has them.
//!
//! Messages ([`api`]) convert by themselves, with `From` and `TryFrom`; this is
//! for the types of this crate, whose entries have their key outside.
//!
//! ```
//! # use nri_sdk::{Adjustment, oci};
//! let mut adjustment = Adjustment::new();
//! for mount in oci_spec::runtime::get_default_mounts() {
//!     let (destination, mount) = oci::mount_from(&mount);
//!     adjustment.mounts.set(destination, mount);
//! }
//! assert_eq!(adjustment.mounts.value("/proc").unwrap().kind, "proc");
//! ```

use nri_wire::api;
pub use nri_wire::oci::UnknownName;
use oci_spec::runtime as spec;

use crate::{
    Device, Mount, Namespace, NamespaceKind, Resources, Rlimit,
    adjust::{device_from_wire, device_to_wire, mount_from_wire, mount_to_wire},
};

/// Destination and mount.
pub fn mount_from(mount: &spec::Mount) -> (String, Mount) {
    mount_from_wire(mount.into())
}

pub fn mount_to(destination: &str, mount: &Mount) -> spec::Mount {
    (&mount_to_wire(destination, mount)).into()
}

/// Path and device. `None` for the type `a`, which no single device has.
pub fn device_from(device: &spec::LinuxDevice) -> Option<(String, Device)> {
    device_from_wire(device.into())
}

pub fn device_to(path: &str, device: &Device) -> Result<spec::LinuxDevice, UnknownName> {
    (&device_to_wire(path, device)).try_into()
}

/// Type and limits.
pub fn rlimit_from(rlimit: &spec::PosixRlimit) -> (String, Rlimit) {
    let wire = api::PosixRlimit::from(rlimit);
    (wire.r#type, Rlimit { hard: wire.hard, soft: wire.soft })
}

pub fn rlimit_to(kind: &str, limit: Rlimit) -> Result<spec::PosixRlimit, UnknownName> {
    let wire = api::PosixRlimit { r#type: kind.to_owned(), hard: limit.hard, soft: limit.soft };
    (&wire).try_into()
}

/// `None` for a type of namespace that NRI has no word for.
pub fn namespace_from(namespace: &spec::LinuxNamespace) -> Option<(NamespaceKind, Namespace)> {
    let wire = api::LinuxNamespace::from(namespace);
    let kind = wire.r#type.parse().ok()?;
    let namespace = if wire.path.is_empty() { Namespace::New } else { Namespace::Join(wire.path) };
    Some((kind, namespace))
}

pub fn namespace_to(
    kind: NamespaceKind,
    namespace: &Namespace,
) -> Result<spec::LinuxNamespace, UnknownName> {
    let path = match namespace {
        Namespace::New => String::new(),
        Namespace::Join(path) => path.clone(),
    };
    (&api::LinuxNamespace { r#type: kind.to_string(), path }).try_into()
}

impl From<&spec::LinuxResources> for Resources {
    fn from(resources: &spec::LinuxResources) -> Self {
        (&api::LinuxResources::from(resources)).into()
    }
}

/// Classes are left out: only a runtime knows what is in them.
impl TryFrom<&Resources> for spec::LinuxResources {
    type Error = UnknownName;

    fn try_from(resources: &Resources) -> Result<Self, UnknownName> {
        (&resources.to_wire().unwrap_or_default()).try_into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceKind, PidsLimit};

    #[test]
    fn entries_survive_the_way_to_oci_and_back() {
        let mount = Mount::bind("/srv").option("ro");
        assert_eq!(mount_from(&mount_to("/data", &mount)), ("/data".into(), mount));
        for kind in [DeviceKind::Block, DeviceKind::Character, DeviceKind::Fifo] {
            let mut device = Device::new(kind, 10, 229);
            device.mode = Some(0o660);
            device.gid = Some(5);
            let spec = device_to("/dev/x", &device).unwrap();
            assert_eq!(device_from(&spec), Some(("/dev/x".into(), device)));
        }
        let limit = Rlimit { hard: 10, soft: 5 };
        let spec = rlimit_to("RLIMIT_NOFILE", limit).unwrap();
        assert_eq!(rlimit_from(&spec), ("RLIMIT_NOFILE".into(), limit));
        assert!(rlimit_to("NOFILE", limit).is_err());
        for namespace in [Namespace::New, Namespace::Join("/proc/1/ns/net".into())] {
            let spec = namespace_to(NamespaceKind::Network, &namespace).unwrap();
            assert_eq!(namespace_from(&spec), Some((NamespaceKind::Network, namespace)));
        }
    }

    #[test]
    fn resources_survive_the_way_to_oci_and_back() {
        let mut resources = Resources::new();
        resources.memory.limit = Some(1 << 30);
        resources.cpu.cpus = "0-3".into();
        resources.cpu.quota = Some(-1);
        resources.pids = Some(PidsLimit::Unlimited);
        resources.unified.insert("memory.high".into(), "max".into());
        resources.hugepages.insert("2MB".into(), 4 << 20);
        let spec = spec::LinuxResources::try_from(&resources).unwrap();
        assert_eq!(Resources::from(&spec), resources);
    }
}
