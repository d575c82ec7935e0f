//! Putting a spec together.
//!
//! Parts are built each from the request and the facts, CDI edits come over them, and the spec is
//! assembled last: no part looks at what another has written.

use std::collections::BTreeSet;

use oci_spec::runtime::{
    Linux, LinuxDevice, LinuxDeviceCgroup, LinuxNamespaceType, Mount, Process, Root, Spec,
};

use crate::{
    annotations, capabilities, cdi,
    cgroup::{CgroupPath, container_cgroup_path},
    devices::Devices,
    error::{OciError, Result},
    facts::{Accounts, ContainerFacts, HandlerFacts, HostFacts, PodFacts, Policy},
    mounts::Mounts,
    namespaces::{self, mappings_to_spec},
    process,
    request::{ContainerRequest, ImageFacts, NamespaceMode},
    resources::{self, Ignored, Limits},
    security,
    signal::{Signal, SignalError},
    sysctl::{self, OwnNamespaces},
    user::{self, ResolvedUser},
};

/// All that a spec is made of.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    pub request: &'a ContainerRequest,
    pub image: &'a ImageFacts,
    pub container: &'a ContainerFacts,
    pub accounts: &'a Accounts,
    pub pod: &'a PodFacts,
    pub host: &'a HostFacts,
    pub handler: &'a HandlerFacts,
    pub policy: &'a Policy,
    pub cdi: &'a cdi::Registry,
}

/// A spec, and what the engine wants to know of it without reading it.
#[derive(Clone, Debug, PartialEq)]
pub struct Built {
    pub spec: Spec,
    pub user: ResolvedUser,
    pub stop_signal: Signal,
    pub cgroup: CgroupPath,
    /// What was asked for and has no effect on this host.
    pub ignored: Vec<Ignored>,
}

impl Inputs<'_> {
    pub(crate) fn unable(&self, field: &str) -> OciError {
        OciError::Unable { field: field.to_owned(), handler: self.handler.name.clone() }
    }

    fn cgroup(&self) -> Result<CgroupPath> {
        let parent = self.pod.cgroup_parent.as_deref();
        container_cgroup_path(self.handler.cgroup_driver, parent, &self.pod.id, &self.container.id)
    }
}

/// The spec of a new container, or which field of the request stands in its way.
pub fn build(inputs: &Inputs<'_>) -> Result<Built> {
    security::check_privileged(inputs)?;
    let mut base = Base::of(inputs.handler.base_spec.as_ref());
    join(inputs, &mut base.linux)?;
    let mut user = user::resolve(&inputs.request.security, &inputs.image.user, inputs.accounts)?;
    let capabilities = security::capabilities(inputs, base.capabilities.take())?;

    let mut process = process::build(inputs, base.process.take())?;
    let mut mounts = Mounts::build(inputs, base.mounts.take())?;
    let mut devices = Devices::build(inputs, base.devices.take(), base.rules.take(), &user)?;
    let mut linux = base.linux;
    if let Some(rdt) = security::rdt(inputs)? {
        linux.set_intel_rdt(Some(rdt));
    }
    let mut spec = base.spec;
    cdi::apply(
        inputs,
        &mut user,
        &mut cdi::Target {
            process: &mut process,
            devices: &mut devices,
            mounts: &mut mounts,
            spec: &mut spec,
            linux: &mut linux,
        },
    )?;
    if let Some(mapping) = &inputs.pod.mapping {
        user::check_mapped(&user, mapping)?;
    }
    process
        .set_user(process::user_to_spec(&user))
        .set_capabilities(Some(capabilities::to_spec(&capabilities)));

    confine(inputs, &mut linux, &mut process, &capabilities.all)?;
    let ignored = limit(inputs, &mut linux, devices)?;
    let cgroup = inputs.cgroup()?;
    linux.set_cgroups_path(Some(cgroup.spec.clone()));
    if let Some(propagation) = mounts.root_propagation {
        linux.set_rootfs_propagation(Some(propagation.to_owned()));
    }

    let mut annotations = spec.annotations().clone().unwrap_or_default();
    annotations.extend(annotations::build(inputs));
    spec.set_version(inputs.handler.oci_version.clone())
        .set_root(Some(root(inputs)))
        .set_hostname(hostname(inputs))
        .set_mounts(Some(mounts.finish()))
        .set_process(Some(process))
        .set_annotations(Some(annotations))
        .set_linux(Some(linux));
    Ok(Built { spec, user, stop_signal: stop_signal(inputs)?, cgroup, ignored })
}

fn root(inputs: &Inputs<'_>) -> Root {
    let mut root = Root::default();
    root.set_path(inputs.container.rootfs.clone())
        .set_readonly(Some(inputs.request.security.readonly_rootfs));
    root
}

/// The pod's name was set when its namespace was made; only a new one needs it.
fn hostname(inputs: &Inputs<'_>) -> Option<String> {
    let own = inputs.request.security.namespaces.uts == NamespaceMode::Container;
    (own && !inputs.pod.hostname.is_empty()).then(|| inputs.pod.hostname.clone())
}

/// The request's, else the image's, else the one everybody knows.
fn stop_signal(inputs: &Inputs<'_>) -> Result<Signal> {
    match (inputs.request.stop_signal, &inputs.image.stop_signal) {
        (Some(signal), _) => Ok(signal),
        (None, Some(text)) if !text.is_empty() => text.parse().map_err(|error: SignalError| {
            OciError::invalid("image.stop_signal", error.to_string())
        }),
        _ => Ok(Signal::TERM),
    }
}

/// Namespaces, what they map, and the settings that live in them.
fn join(inputs: &Inputs<'_>, linux: &mut Linux) -> Result<()> {
    let list = namespaces::build(inputs)?;
    let has = |typ: LinuxNamespaceType| list.iter().any(|namespace| namespace.typ() == typ);
    let own = OwnNamespaces {
        network: has(LinuxNamespaceType::Network),
        ipc: has(LinuxNamespaceType::Ipc),
        uts: has(LinuxNamespaceType::Uts),
        user: has(LinuxNamespaceType::User),
    };
    let asked = sysctl::check(&inputs.request.sysctls, own)?;
    if !asked.is_empty() {
        linux.sysctl_mut().get_or_insert_default().extend(asked);
    }
    if let Some(mapping) = &inputs.pod.mapping {
        linux.set_uid_mappings(Some(mappings_to_spec(&mapping.uids)?));
        linux.set_gid_mappings(Some(mappings_to_spec(&mapping.gids)?));
    }
    linux.set_namespaces(Some(list));
    Ok(())
}

fn confine(
    inputs: &Inputs<'_>,
    linux: &mut Linux,
    process: &mut Process,
    capabilities: &BTreeSet<String>,
) -> Result<()> {
    let base = (linux.masked_paths().clone(), linux.readonly_paths().clone());
    let (masked, readonly) = security::paths(inputs, base)?;
    let seccomp = security::seccomp(inputs, linux.seccomp().clone(), capabilities)?;
    let labels = security::selinux(inputs)?;
    let apparmor = security::apparmor(inputs, process.apparmor_profile().clone())?;
    linux
        .set_masked_paths(Some(masked))
        .set_readonly_paths(Some(readonly))
        .set_seccomp(seccomp)
        .set_mount_label(labels.map(|labels| labels.mount.clone()));
    process
        .set_apparmor_profile(apparmor)
        .set_selinux_label(labels.map(|labels| labels.process.clone()));
    Ok(())
}

fn limit(inputs: &Inputs<'_>, linux: &mut Linux, devices: Devices) -> Result<Vec<Ignored>> {
    let mut resources = linux.resources().clone().unwrap_or_default();
    if let Some(class) = annotations::asked_class(inputs, "blockio") {
        let Some(block_io) = &inputs.container.classes.block_io else {
            let why = format!("no block I/O class {:?}", class.name);
            return Err(OciError::NotFound { field: class.field, why });
        };
        resources.set_block_io(Some(block_io.clone()));
    }
    let limits = Limits { host: inputs.host, handler: inputs.handler, policy: inputs.policy };
    let ignored = resources::apply(&mut resources, &inputs.request.resources, limits)?;
    let (nodes, rules) = devices.finish();
    resources.set_devices(Some(rules));
    linux.set_devices((!nodes.is_empty()).then_some(nodes)).set_resources(Some(resources));
    Ok(ignored)
}

// === base ===

/// A handler's base spec taken apart, so that what a part finds of it is what the operator wrote.
/// Without one, nothing but our own lists of paths.
struct Base {
    spec: Spec,
    linux: Linux,
    process: Option<Process>,
    capabilities: Option<BTreeSet<String>>,
    mounts: Option<Vec<Mount>>,
    devices: Option<Vec<LinuxDevice>>,
    rules: Option<Vec<LinuxDeviceCgroup>>,
}

impl Base {
    fn of(written: Option<&Spec>) -> Self {
        let Some(written) = written else { return Self::empty() };
        let mut spec = written.clone();
        let process = spec.process().clone();
        let mounts = spec.mounts().clone();
        let mut linux = spec.linux().clone().unwrap_or_else(empty_linux);
        let devices = linux.devices().clone();
        let resources = linux.resources_mut().as_mut();
        let rules = resources.and_then(|resources| resources.devices_mut().take());
        spec.set_process(None).set_mounts(None).set_linux(None);
        let capabilities = process.as_ref().and_then(|process| process.capabilities().as_ref());
        let capabilities = capabilities.map(|set| capabilities::from_spec(Some(set)));
        Self { spec, linux, process, capabilities, mounts, devices, rules }
    }

    fn empty() -> Self {
        let spec = empty_spec();
        let (process, capabilities, mounts, devices, rules) = (None, None, None, None, None);
        Self { spec, linux: empty_linux(), process, capabilities, mounts, devices, rules }
    }
}

/// Returns a spec that says nothing; the library's default is a spec of its own taste.
pub(crate) fn empty_spec() -> Spec {
    let mut spec = Spec::default();
    spec.set_process(None)
        .set_root(None)
        .set_hostname(None)
        .set_mounts(None)
        .set_annotations(None)
        .set_linux(None);
    spec
}

fn empty_linux() -> Linux {
    let list = |paths: &[&str]| Some(paths.iter().map(|&path| path.to_owned()).collect());
    let mut linux = Linux::default();
    linux
        .set_resources(None)
        .set_namespaces(None)
        .set_masked_paths(list(&security::MASKED_PATHS))
        .set_readonly_paths(list(&security::READONLY_PATHS));
    linux
}
