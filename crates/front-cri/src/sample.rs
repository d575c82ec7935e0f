//! Requests with every field set, and records made of them, for tests.

use std::collections::BTreeMap;

use api_cri::v1;
use base::{Digest, Id, time};
use engine::{
    phase::{ContainerPhase, PodPhase},
    record::{ContainerRecord, Made, PinnedImage, PodRecord},
    request::{NewContainer, PodRequest},
};
use oci::ImageFacts;

pub(crate) const CREATED_AT: i64 = 1_700_000_000_123_456_789;

pub(crate) fn pod_record(request: PodRequest) -> PodRecord {
    PodRecord {
        selinux_categories: Some("c1,c2".into()),
        id: Id::random(),
        handler: "crun".into(),
        phase: PodPhase::Ready,
        created_at: time::from_unix_nanos(CREATED_AT),
        delivered: true,
        pid1: None,
        pid_namespace: None,
        ips: Vec::new(),
        last_ips: Vec::new(),
        overhead: request.overhead.clone(),
        resources: request.resources.clone(),
        request,
    }
}

pub(crate) fn container_record(request: NewContainer) -> ContainerRecord {
    let id: Digest = format!("sha256:{}", "ab".repeat(32)).parse().unwrap();
    ContainerRecord {
        id: Id::random(),
        pod: Id::random(),
        name: "web_pod_ns_uid_0".into(),
        image: PinnedImage {
            id,
            name: "registry.example/web:1".into(),
            repo_digest: format!("registry.example/web@sha256:{}", "cd".repeat(32)),
            facts: ImageFacts::default(),
            chain: Vec::new(),
        },
        phase: ContainerPhase::Created,
        created_at: time::from_unix_nanos(CREATED_AT),
        delivered: true,
        log_path: Some("/var/log/pods/web/0.log".into()),
        made: Made {
            uid: 1000,
            gid: 1001,
            groups: vec![1001, 2000],
            stop_signal: "SIGQUIT".into(),
            resources: request.container.resources.clone(),
            cgroup_path: "/kubepods/x".into(),
            ..Made::default()
        },
        stop_told: false,
        evicted: None,
        request,
    }
}

pub(crate) fn run_pod() -> v1::RunPodSandboxRequest {
    let port = |protocol, container_port, host_port| v1::PortMapping {
        protocol,
        container_port,
        host_port,
        host_ip: "127.0.0.1".into(),
    };
    let metadata = v1::PodSandboxMetadata {
        name: "pod".into(),
        uid: "uid".into(),
        namespace: "ns".into(),
        attempt: 3,
    };
    let linux = v1::LinuxPodSandboxConfig {
        cgroup_parent: "/kubepods/burstable/pod1".into(),
        security_context: Some(pod_security()),
        sysctls: map(&[("net.core.somaxconn", "1024")]),
        overhead: Some(v1::LinuxContainerResources { cpu_shares: 10, ..Default::default() }),
        resources: Some(resources()),
    };
    let config = v1::PodSandboxConfig {
        metadata: Some(metadata),
        hostname: "pod-host".into(),
        log_directory: "/var/log/pods/web".into(),
        dns_config: Some(v1::DnsConfig {
            servers: vec!["10.0.0.10".into()],
            searches: vec!["svc.cluster.local".into()],
            options: vec!["ndots:5".into()],
        }),
        port_mappings: vec![port(0, 80, 8080), port(1, 53, 0), port(2, 36, -1)],
        labels: odd_map(),
        annotations: odd_map(),
        linux: Some(linux),
        windows: None,
    };
    v1::RunPodSandboxRequest { config: Some(config), runtime_handler: "kata".into() }
}

pub(crate) fn container_config() -> v1::ContainerConfig {
    let image = v1::ImageSpec {
        image: format!("sha256:{}", "ab".repeat(32)),
        annotations: map(&[("arch", "amd64")]),
        user_specified_image: "web".into(),
        ..Default::default()
    };
    let env =
        |key: &str, value: &'static str| v1::KeyValue { key: key.into(), value: value.into() };
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: "web".into(), attempt: 2 }),
        image: Some(image),
        command: vec!["/bin/web".into()],
        args: vec!["--port".into(), "80".into()],
        working_dir: "/srv".into(),
        envs: vec![env("LANG", "C.UTF-8"), env("EMPTY", "")],
        mounts: mounts(),
        devices: vec![v1::Device {
            container_path: "/dev/in".into(),
            host_path: "/dev/out".into(),
            permissions: "rw".into(),
        }],
        labels: odd_map(),
        annotations: odd_map(),
        log_path: "web/0.log".into(),
        stdin: true,
        stdin_once: true,
        tty: true,
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(resources()),
            security_context: Some(container_security()),
        }),
        windows: None,
        cdi_devices: vec![v1::CdiDevice { name: "vendor.com/gpu=0".into() }],
        stop_signal: v1::Signal::Sigrtminplus3.into(),
    }
}

fn resources() -> v1::LinuxContainerResources {
    v1::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: -1,
        cpu_shares: 512,
        memory_limit_in_bytes: 64 << 20,
        oom_score_adj: -997,
        cpuset_cpus: "0-1".into(),
        cpuset_mems: "0".into(),
        hugepage_limits: vec![v1::HugepageLimit { page_size: "2MB".into(), limit: 0 }],
        unified: map(&[("memory.high", "60000000")]),
        memory_swap_limit_in_bytes: 128 << 20,
    }
}

fn selinux() -> v1::SeLinuxOption {
    v1::SeLinuxOption {
        user: "system_u".into(),
        role: "system_r".into(),
        r#type: "container_t".into(),
        level: "s0:c1,c2".into(),
    }
}

fn profile(kind: v1::security_profile::ProfileType, name: &str) -> v1::SecurityProfile {
    v1::SecurityProfile { profile_type: kind.into(), localhost_ref: name.into() }
}

fn userns() -> v1::UserNamespace {
    let map = vec![v1::IdMapping { host_id: 100_000, container_id: 0, length: 65_536 }];
    v1::UserNamespace { mode: 0, uids: map.clone(), gids: map }
}

#[expect(deprecated, reason = "every field is set, the old ones too")]
fn pod_security() -> v1::LinuxSandboxSecurityContext {
    v1::LinuxSandboxSecurityContext {
        namespace_options: Some(v1::NamespaceOption {
            network: v1::NamespaceMode::Node.into(),
            pid: v1::NamespaceMode::Container.into(),
            ipc: v1::NamespaceMode::Node.into(),
            target_id: String::new(),
            userns_options: Some(userns()),
        }),
        selinux_options: Some(selinux()),
        run_as_user: Some(v1::Int64Value { value: 1000 }),
        run_as_group: Some(v1::Int64Value { value: 1001 }),
        readonly_rootfs: true,
        supplemental_groups: vec![2000],
        supplemental_groups_policy: v1::SupplementalGroupsPolicy::Strict.into(),
        privileged: true,
        seccomp: Some(profile(v1::security_profile::ProfileType::RuntimeDefault, "")),
        apparmor: Some(profile(v1::security_profile::ProfileType::Localhost, "strict")),
        seccomp_profile_path: "unconfined".into(),
    }
}

#[expect(deprecated, reason = "every field is set, the old ones too")]
fn container_security() -> v1::LinuxContainerSecurityContext {
    v1::LinuxContainerSecurityContext {
        capabilities: Some(v1::Capability {
            add_capabilities: vec!["NET_ADMIN".into()],
            drop_capabilities: vec!["ALL".into()],
            add_ambient_capabilities: Vec::new(),
        }),
        privileged: true,
        namespace_options: Some(v1::NamespaceOption {
            network: v1::NamespaceMode::Node.into(),
            pid: v1::NamespaceMode::Target.into(),
            ipc: v1::NamespaceMode::Pod.into(),
            target_id: "0f".repeat(32),
            userns_options: Some(userns()),
        }),
        selinux_options: Some(selinux()),
        run_as_user: Some(v1::Int64Value { value: 0 }),
        run_as_group: Some(v1::Int64Value { value: 0 }),
        run_as_username: String::new(),
        readonly_rootfs: true,
        supplemental_groups: vec![2000, 0],
        supplemental_groups_policy: v1::SupplementalGroupsPolicy::Strict.into(),
        no_new_privs: true,
        masked_paths: vec!["/proc/kcore".into()],
        readonly_paths: vec!["/proc/sys".into()],
        seccomp: Some(profile(v1::security_profile::ProfileType::Localhost, "/etc/p.json")),
        apparmor: Some(profile(v1::security_profile::ProfileType::Unconfined, "")),
        apparmor_profile: "runtime/default".into(),
        seccomp_profile_path: "unconfined".into(),
    }
}

fn mounts() -> Vec<v1::Mount> {
    let ids = vec![v1::IdMapping { host_id: 100_000, container_id: 0, length: 65_536 }];
    let host = v1::Mount {
        container_path: "/data".into(),
        host_path: "/srv/data".into(),
        readonly: true,
        selinux_relabel: true,
        propagation: v1::MountPropagation::PropagationPrivate.into(),
        uid_mappings: ids.clone(),
        gid_mappings: ids,
        recursive_read_only: true,
        image: None,
        image_sub_path: String::new(),
        mount_options: vec!["noexec".into()],
    };
    let shared = v1::Mount {
        container_path: "/shared".into(),
        host_path: "/srv/shared".into(),
        propagation: v1::MountPropagation::PropagationBidirectional.into(),
        ..Default::default()
    };
    let image = v1::Mount {
        container_path: "/model".into(),
        readonly: true,
        propagation: v1::MountPropagation::PropagationHostToContainer.into(),
        image: Some(v1::ImageSpec { image: "models/a:1".into(), ..Default::default() }),
        image_sub_path: "weights".into(),
        ..Default::default()
    };
    vec![host, shared, image]
}

/// Keys and values that a careless copy would change.
fn odd_map() -> BTreeMap<String, String> {
    map(&[("", "no key"), ("empty", ""), ("app.example/a b", " spaces\n\tand é\u{0}\" ")])
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}
