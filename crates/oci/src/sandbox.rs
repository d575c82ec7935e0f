//! The spec of a sandbox: the first task of a pod whose shim knows no other way to keep one.

use std::{collections::BTreeMap, path::PathBuf};

use oci_spec::runtime::{Mount, Spec};

use crate::{
    annotations,
    builder::{Inputs, build},
    cdi,
    error::Result,
    facts::{
        Accounts, ClassFacts, ContainerFacts, DeviceFacts, HandlerFacts, HostFacts, PodFacts,
        Policy,
    },
    request::{
        CapabilityRequest, ContainerRequest, GroupRef, GroupsPolicy, ImageFacts, NamespaceMode,
        NamespaceRequest, Profile, Resources, SecurityRequest, UserRef, UserRequest,
    },
};

/// Nobody's.
const ID: u32 = 65_535;

/// What the sandbox of a pod is made of.
#[derive(Clone, Copy, Debug)]
pub struct SandboxInputs<'a> {
    /// Its namespaces are joined, but for a PID namespace, which is the sandbox's own.
    pub pod: &'a PodFacts,
    /// Of the UTS namespace, where that is the pod's.
    pub hostname: Option<&'a str>,
    /// To be set in the pod's namespaces.
    pub sysctls: &'a BTreeMap<String, String>,
    /// With [`crate::pause_program`] in it, as `/pause`.
    pub rootfs: &'a PathBuf,
    pub host: &'a HostFacts,
    pub handler: &'a HandlerFacts,
    pub policy: &'a Policy,
}

/// Like a container of the pod that may do nothing and does nothing.
pub fn build_sandbox(inputs: &SandboxInputs<'_>) -> Result<Spec> {
    let mut pod = inputs.pod.clone();
    let pid = match pod.namespaces.host_pid {
        true => NamespaceMode::Node,
        false => NamespaceMode::Container,
    };
    pod.namespaces.pid = None;
    let request = request(inputs, pid);
    let container = facts(inputs);
    let built = build(&Inputs {
        request: &request,
        image: &ImageFacts::default(),
        container: &container,
        accounts: &Accounts::default(),
        pod: &pod,
        host: inputs.host,
        handler: inputs.handler,
        policy: inputs.policy,
        cdi: &cdi::Registry::default(),
    })?;
    let mut spec = built.spec;
    spec.set_mounts(Some(mounts()))
        .set_hostname(inputs.hostname.map(str::to_owned))
        .set_annotations(Some(annotations::of_sandbox(inputs.pod, inputs.handler)));
    Ok(spec)
}

fn request(inputs: &SandboxInputs<'_>, pid: NamespaceMode) -> ContainerRequest {
    ContainerRequest {
        command: vec!["/pause".to_owned()],
        working_dir: Some("/".into()),
        sysctls: inputs.sysctls.clone(),
        security: SecurityRequest {
            capabilities: CapabilityRequest { drop: vec!["ALL".to_owned()], ..Default::default() },
            user: UserRequest { user: Some(UserRef::Id(ID)), group: Some(GroupRef::Id(ID)) },
            groups_policy: GroupsPolicy::Strict,
            no_new_privileges: true,
            readonly_rootfs: true,
            seccomp: Some(Profile::RuntimeDefault),
            namespaces: NamespaceRequest { pid, ..NamespaceRequest::default() },
            ..SecurityRequest::default()
        },
        resources: Resources {
            cpu_shares: Some(2),
            oom_score_adj: Some(-998),
            ..Resources::default()
        },
        ..ContainerRequest::default()
    }
}

fn facts(inputs: &SandboxInputs<'_>) -> ContainerFacts {
    ContainerFacts {
        id: inputs.pod.id,
        rootfs: inputs.rootfs.clone(),
        sources: Vec::new(),
        volumes: BTreeMap::new(),
        targets: BTreeMap::new(),
        seccomp: None,
        apparmor_loaded: false,
        selinux: None,
        devices: DeviceFacts::default(),
        classes: ClassFacts::default(),
        init: None,
    }
}

/// What OCI runtimes insist on; the program looks at nothing.
fn mounts() -> Vec<Mount> {
    let mount = |place: &str, kind: &str, options: &[&str]| {
        let mut mount = Mount::default();
        mount
            .set_destination(place.into())
            .set_typ(Some(kind.to_owned()))
            .set_source(Some(kind.into()))
            .set_options(Some(options.iter().map(|&option| option.to_owned()).collect()));
        mount
    };
    vec![
        mount("/proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
    ]
}
