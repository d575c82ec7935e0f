//! Applying an adjustment to an OCI runtime specification.
//!
//! ```text
//!   annotations, env, args, hooks, CDI, devices, cgroup path, oom score, io priority,
//!   scheduler, seccomp, namespaces, sysctls, net devices, memory policy, resources,
//!   classes, RDT, mounts, rlimits
//! ```
//!
//! In this order, and within each the removals first. What only the host can know (what a
//! class means, what a CDI device is, how a source is mounted) is asked of a [`Host`].
//!
//! **Invariants:** an error leaves the specification as it was. Deterministic. Idempotent:
//! what was applied once can be applied again and changes nothing.

mod process;
mod resources;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    path::{Component, Path, PathBuf},
};

use nri_wire::{
    api::{
        ContainerAdjustment, Field, LinuxContainerAdjustment, LinuxDevice, LinuxNamespace, Mount,
    },
    oci::UnknownName,
};
use oci_spec::runtime as oci;
use serde::Deserialize;

use crate::{merge::removed, owners::FieldKey};

/// A failure of the host, of whatever kind.
pub type HostError = Box<dyn std::error::Error + Send + Sync>;

/// What applying an adjustment needs to know of the host. The defaults know nothing and
/// refuse what cannot be done without knowing: nothing a plugin asks for is dropped silently.
pub trait Host {
    /// Whether a plugin may set the annotation.
    fn allows_annotation(&self, key: &str, value: &str) -> bool {
        let _ = (key, value);
        true
    }

    /// What a class of block I/O means.
    fn block_io(&self, class: &str) -> Result<oci::LinuxBlockIo, HostError> {
        let _ = class;
        Err("there are no classes of block I/O".into())
    }

    /// What a class of RDT means; the class of service of that name by default.
    fn rdt(&self, class: &str) -> Result<oci::LinuxIntelRdt, HostError> {
        let mut rdt = oci::LinuxIntelRdt::default();
        rdt.set_clos_id(Some(class.to_owned()));
        Ok(rdt)
    }

    /// Puts CDI devices, by their qualified names, into the specification.
    fn inject_cdi(&self, spec: &mut oci::Spec, devices: &[String]) -> Result<(), HostError> {
        let _ = (spec, devices);
        Err("there is no CDI".into())
    }

    /// Drops or refuses resources the host cannot limit, such as huge pages where their
    /// controller is off.
    fn check_resources(&self, resources: &mut oci::LinuxResources) -> Result<(), HostError> {
        let _ = resources;
        Ok(())
    }

    /// How the mount that holds `source` propagates.
    fn propagation(&self, source: &Path) -> Result<Propagation, HostError> {
        let _ = source;
        Ok(Propagation::Private)
    }
}

/// How mounts below a mount are seen elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Private,
    Slave,
    Shared,
}

/// A host that answers nothing but the defaults.
#[derive(Clone, Copy, Debug, Default)]
pub struct BareHost;

impl Host for BareHost {}

/// Why an adjustment cannot be applied. The container is not to be created then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    #[error(transparent)]
    Unknown(#[from] UnknownName),

    #[error("the specification has no process to set {0} of")]
    NoProcess(&'static str),

    /// A value that no container can be started with.
    #[error("{field}: {why}")]
    Value { field: FieldKey, why: String },

    #[error("annotation {0:?} may not be set by a plugin")]
    Annotation(String),

    #[error(
        "mount {destination:?} wants {wanted} propagation, which its source {source_path:?} does not have"
    )]
    NotPropagated { destination: String, source_path: String, wanted: &'static str },

    #[error("{doing}")]
    Host {
        doing: String,
        /// What the host was asked about.
        fields: Vec<FieldKey>,
        #[source]
        source: HostError,
    },
}

impl ApplyError {
    fn host(
        doing: impl Into<String>,
        fields: impl IntoIterator<Item = FieldKey>,
    ) -> impl FnOnce(HostError) -> Self {
        let (doing, fields) = (doing.into(), fields.into_iter().collect());
        move |source| Self::Host { doing, fields, source }
    }

    fn value(field: FieldKey, why: impl Into<String>) -> Self {
        Self::Value { field, why: why.into() }
    }

    /// The fields it is about, as far as that is known.
    pub fn fields(&self) -> Vec<FieldKey> {
        match self {
            Self::Unknown(UnknownName { what, .. }) => fields_called(what),
            Self::NoProcess(_) => Vec::new(),
            Self::Value { field, .. } => vec![field.clone()],
            Self::Annotation(key) => vec![FieldKey::new(Field::Annotations, key)],
            Self::NotPropagated { destination, .. } => {
                vec![FieldKey::new(Field::Mounts, destination)]
            }
            Self::Host { fields, .. } => fields.clone(),
        }
    }
}

/// The fields whose values are names of this kind.
fn fields_called(what: &str) -> Vec<FieldKey> {
    let field = match what {
        "rlimit" => Field::Rlimits,
        "I/O priority class" => Field::IoPriority,
        "scheduling policy" => Field::LinuxSched,
        "architecture" | "seccomp flag" | "seccomp action" | "seccomp operator" => {
            Field::SeccompPolicy
        }
        "memory policy" | "memory policy flag" => Field::MemoryPolicy,
        "device type" => Field::Devices,
        "namespace" => Field::Namespace,
        _ => return Vec::new(),
    };
    vec![field.into()]
}

/// Applies an adjustment, whole or not at all.
///
/// ```
/// use nri::{api, apply};
/// let adjust = api::ContainerAdjustment {
///     env: vec![api::KeyValue { key: "TERM".into(), value: "dumb".into() }],
///     ..Default::default()
/// };
/// let mut spec = oci_spec::runtime::Spec::default();
/// apply::apply(&mut spec, &adjust, &apply::BareHost)?;
/// let env = spec.process().as_ref().unwrap().env().clone().unwrap();
/// assert!(env.contains(&"TERM=dumb".to_owned()) && !env.contains(&"TERM=xterm".to_owned()));
/// # Ok::<(), apply::ApplyError>(())
/// ```
pub fn apply(
    spec: &mut oci::Spec,
    adjust: &ContainerAdjustment,
    host: &dyn Host,
) -> Result<(), ApplyError> {
    *spec = applied(spec, adjust, host)?;
    Ok(())
}

/// The specification with the adjustment applied.
pub fn applied(
    spec: &oci::Spec,
    adjust: &ContainerAdjustment,
    host: &dyn Host,
) -> Result<oci::Spec, ApplyError> {
    let mut spec = spec.clone();
    apply_all(&mut spec, adjust, host)?;
    Ok(spec)
}

fn apply_all(
    spec: &mut oci::Spec,
    adjust: &ContainerAdjustment,
    host: &dyn Host,
) -> Result<(), ApplyError> {
    annotations(spec, adjust, host)?;
    process::env(spec, &adjust.env)?;
    process::args(spec, &adjust.args)?;
    process::hooks(spec, adjust.hooks.as_ref());
    if !adjust.cdi_devices.is_empty() {
        let names: Vec<String> = adjust.cdi_devices.iter().map(|d| d.name.clone()).collect();
        let fields = names.iter().map(|name| FieldKey::new(Field::CdiDevices, name));
        let refused = ApplyError::host("inject CDI devices", fields);
        host.inject_cdi(spec, &names).map_err(refused)?;
    }
    if let Some(linux) = &adjust.linux {
        apply_linux(spec, linux, host)?;
    }
    mounts(spec, &adjust.mounts, host)?;
    process::rlimits(spec, &adjust.rlimits)
}

fn apply_linux(
    spec: &mut oci::Spec,
    adjust: &LinuxContainerAdjustment,
    host: &dyn Host,
) -> Result<(), ApplyError> {
    devices(spec, &adjust.devices)?;
    if !adjust.cgroups_path.is_empty() {
        linux(spec).set_cgroups_path(Some(PathBuf::from(&adjust.cgroups_path)));
    }
    process::priorities(spec, adjust)?;
    if let Some(seccomp) = &adjust.seccomp_policy {
        let seccomp = seccomp.try_into()?;
        linux(spec).set_seccomp(Some(seccomp));
    }
    namespaces(spec, &adjust.namespaces)?;
    if !adjust.sysctl.is_empty() {
        let changed = change_map(linux(spec).sysctl().clone(), adjust.sysctl.iter(), String::clone);
        linux(spec).set_sysctl(changed);
    }
    if !adjust.net_devices.is_empty() {
        let devices = linux(spec).net_devices().clone();
        let changed = change_map(devices, adjust.net_devices.iter(), Into::into);
        linux(spec).set_net_devices(changed);
    }
    if let Some(policy) = &adjust.memory_policy {
        let policy = policy.try_into()?;
        linux(spec).set_memory_policy(Some(policy));
    }
    if let Some(resources) = &adjust.resources {
        resources::resources(linux(spec), resources, host)?;
    }
    if let Some(rdt) = &adjust.rdt {
        resources::rdt(linux(spec), rdt);
    }
    Ok(())
}

/// The Linux part, empty where there was none: what oci-spec takes for its default has
/// namespaces and masked paths nobody asked for.
fn linux(spec: &mut oci::Spec) -> &mut oci::Linux {
    spec.linux_mut().get_or_insert_with(|| {
        let nothing = std::iter::empty::<(String, String)>();
        let nothing = serde::de::value::MapDeserializer::<_, serde::de::value::Error>::new(nothing);
        oci::Linux::deserialize(nothing).expect("no part of it is required")
    })
}

/// Removals first, then additions. An empty map is an absent one.
fn change_map<'a, W: 'a, V>(
    map: Option<HashMap<String, V>>,
    changes: impl Iterator<Item = (&'a String, &'a W)> + Clone,
    value: impl Fn(&'a W) -> V,
) -> Option<HashMap<String, V>> {
    let mut map = map.unwrap_or_default();
    for (key, _) in changes.clone() {
        if let Some(key) = removed(key) {
            map.remove(key);
        }
    }
    let additions = changes.filter(|(key, _)| removed(key).is_none());
    map.extend(additions.map(|(key, wire)| (key.clone(), value(wire))));
    (!map.is_empty()).then_some(map)
}

fn annotations(
    spec: &mut oci::Spec,
    adjust: &ContainerAdjustment,
    host: &dyn Host,
) -> Result<(), ApplyError> {
    if adjust.annotations.is_empty() {
        return Ok(());
    }
    for (key, value) in &adjust.annotations {
        if !host.allows_annotation(removed(key).unwrap_or(key), value) {
            return Err(ApplyError::Annotation(key.clone()));
        }
    }
    let changes = adjust.annotations.iter();
    let changed = change_map(spec.annotations().clone(), changes, String::clone);
    spec.set_annotations(changed);
    Ok(())
}

/// A device comes with the right to use it.
fn devices(spec: &mut oci::Spec, changes: &[LinuxDevice]) -> Result<(), ApplyError> {
    if changes.is_empty() {
        return Ok(());
    }
    let linux = linux(spec);
    let mut devices = linux.devices().clone().unwrap_or_default();
    let added = changes.iter().filter(|device| removed(&device.path).is_none());
    for change in changes {
        let path = removed(&change.path).unwrap_or(&change.path);
        devices.retain(|device| device.path() != Path::new(path));
    }
    let mut rules = Vec::new();
    for device in added {
        let device: oci::LinuxDevice = device.try_into()?;
        rules.push(resources::rule_for(&device));
        devices.push(device);
    }
    linux.set_devices((!devices.is_empty()).then_some(devices));
    resources::add_rules(linux, rules);
    Ok(())
}

fn namespaces(spec: &mut oci::Spec, changes: &[LinuxNamespace]) -> Result<(), ApplyError> {
    if changes.is_empty() {
        return Ok(());
    }
    let linux = linux(spec);
    let mut namespaces = linux.namespaces().clone().unwrap_or_default();
    for change in changes {
        let kind = removed(&change.r#type).unwrap_or(&change.r#type).to_owned();
        let wire = LinuxNamespace { r#type: kind, path: change.path.clone() };
        let namespace = oci::LinuxNamespace::try_from(&wire)?;
        let at = namespaces.iter().position(|have| have.typ() == namespace.typ());
        match (removed(&change.r#type).is_some(), at) {
            (true, Some(at)) => drop(namespaces.remove(at)),
            (true, None) => {}
            (false, Some(at)) => namespaces[at] = namespace,
            (false, None) => namespaces.push(namespace),
        }
    }
    linux.set_namespaces((!namespaces.is_empty()).then_some(namespaces));
    Ok(())
}

// === mounts ===

fn mounts(spec: &mut oci::Spec, changes: &[Mount], host: &dyn Host) -> Result<(), ApplyError> {
    if changes.is_empty() {
        return Ok(());
    }
    let mut mounts = spec.mounts().clone().unwrap_or_default();
    for change in changes {
        let destination = removed(&change.destination).unwrap_or(&change.destination);
        mounts.retain(|mount| mount.destination() != Path::new(destination));
    }
    for mount in changes.iter().filter(|mount| removed(&mount.destination).is_none()) {
        if mount.destination.is_empty() {
            let field = FieldKey::new(Field::Mounts, "");
            return Err(ApplyError::value(field, "a mount needs a destination"));
        }
        propagate(spec, mount, host)?;
        mounts.push(mount.into());
    }
    // A mount must not hide one that was made below it before.
    mounts.sort_by_cached_key(|mount| {
        let path = cleaned(mount.destination());
        (path.components().count(), path)
    });
    spec.set_mounts((!mounts.is_empty()).then_some(mounts));
    Ok(())
}

/// The path without `.`, `..` and doubled slashes, by its text alone.
fn cleaned(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(clean.pop()),
            Component::CurDir => {}
            part => clean.push(part),
        }
    }
    clean
}

/// A mount can pass on only what its source passes on, and only if the root file system
/// does too.
fn propagate(spec: &mut oci::Spec, mount: &Mount, host: &dyn Host) -> Result<(), ApplyError> {
    let asked = mount.options.iter().rev().map(String::as_str);
    let asked = asked.into_iter().find(|o| matches!(*o, "rprivate" | "rshared" | "rslave"));
    let wanted = match asked {
        Some("rshared") => "rshared",
        Some("rslave") => "rslave",
        _ => return Ok(()),
    };
    let doing = format!("find the mount of {:?}", mount.source);
    let field = FieldKey::new(Field::Mounts, &mount.destination);
    let refused = ApplyError::host(doing, [field]);
    let found = host.propagation(Path::new(&mount.source)).map_err(refused)?;
    let enough = match wanted {
        "rshared" => found == Propagation::Shared,
        _ => found != Propagation::Private,
    };
    if !enough {
        return Err(ApplyError::NotPropagated {
            destination: mount.destination.clone(),
            source_path: mount.source.clone(),
            wanted,
        });
    }
    let linux = linux(spec);
    let already = matches!(linux.rootfs_propagation().as_deref(), Some("rshared" | "rslave"));
    if wanted == "rshared" || !already {
        linux.set_rootfs_propagation(Some(wanted.to_owned()));
    }
    Ok(())
}
