//! The spec of a sandbox: the first task of a pod whose shim knows no other way to keep one.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
};

use oci_spec::runtime::{Linux, Mount, Spec};

use crate::{
    annotations,
    builder::{Inputs, build, empty_spec},
    cdi,
    cgroup::pod_cgroup_path,
    error::Result,
    facts::{
        Accounts, ClassFacts, ContainerFacts, DeviceFacts, HandlerFacts, HostFacts, PodFacts,
        Policy,
    },
    namespaces::{self, mappings_to_spec},
    request::{
        CapabilityRequest, ContainerRequest, GroupRef, GroupsPolicy, ImageFacts, NamespaceMode,
        NamespaceRequest, Profile, Resources, SecurityRequest, UserRef, UserRequest,
    },
};

/// Nobody's.
const ID: u32 = 65_535;

/// The OOM score adjustment of a pod's first process: with it every container of the pod would go,
/// so it goes after nearly everything else. It is containerd's value too.
const OOM_SCORE_ADJ: i32 = -998;

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

/// What a pod is described by.
#[derive(Clone, Copy, Debug)]
pub struct PodInputs<'a> {
    pub pod: &'a PodFacts,
    /// The name in the pod's UTS namespace; `None` where that is the host's.
    pub hostname: Option<&'a str>,
    /// The sysctls that are set in the pod's namespaces.
    pub sysctls: &'a BTreeMap<String, String>,
    pub handler: &'a HandlerFacts,
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

/// Returns what a pod is, as a spec without a process: its namespaces, cgroup, sysctls, name and
/// annotations. This is what clients are shown of a pod that has no first task.
pub fn describe_pod(inputs: &PodInputs<'_>) -> Result<Spec> {
    let PodInputs { pod, hostname, sysctls, handler } = *inputs;
    let cgroup = pod_cgroup_path(handler.cgroup_driver, pod.cgroup_parent.as_deref(), &pod.id)?;
    let mut linux = Linux::default();
    linux.set_resources(None).set_masked_paths(None).set_readonly_paths(None);
    if let Some(mapping) = &pod.mapping {
        linux.set_uid_mappings(Some(mappings_to_spec(&mapping.uids)?));
        linux.set_gid_mappings(Some(mappings_to_spec(&mapping.gids)?));
    }
    let sysctls: HashMap<_, _> = sysctls.clone().into_iter().collect();
    linux
        .set_namespaces(Some(namespaces::of_pod(&pod.namespaces)))
        .set_cgroups_path(Some(cgroup))
        .set_sysctl((!sysctls.is_empty()).then_some(sysctls));
    let mut spec = empty_spec();
    spec.set_version(handler.oci_version.clone())
        .set_hostname(hostname.map(str::to_owned))
        .set_annotations(Some(annotations::of_sandbox(pod, handler)))
        .set_linux(Some(linux));
    Ok(spec)
}

/// Returns the OOM score adjustment of a pod's first process, as low as this host lets us set it.
pub fn sandbox_oom_score_adj(host: &HostFacts) -> i32 {
    host.oom_score_floor.map_or(OOM_SCORE_ADJ, |floor| OOM_SCORE_ADJ.max(floor))
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
            oom_score_adj: Some(OOM_SCORE_ADJ),
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
