//! A pod on a host with everything, and a container that asks for nothing: each test changes what
//! it is about.

use std::{collections::BTreeMap, path::PathBuf};

use oci::{
    Abilities, Accounts, Arch, Built, CgroupDriver, CgroupFacts, CgroupVersion, ContainerFacts,
    ContainerRequest, DeviceFacts, DeviceKind, DeviceNode, HandlerFacts, HostFacts, IdMapping,
    IdMappings, ImageFacts, Inputs, Kernel, NamespaceMode, NamespacePaths, OciError, PodFacts,
    PodFiles, Policy, PrivilegedDevices, SourceFacts, build, cdi,
};
use serde_json::Value;

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) request: ContainerRequest,
    pub(crate) image: ImageFacts,
    pub(crate) container: ContainerFacts,
    pub(crate) accounts: Accounts,
    pub(crate) pod: PodFacts,
    pub(crate) host: HostFacts,
    pub(crate) handler: HandlerFacts,
    pub(crate) policy: Policy,
    pub(crate) cdi: cdi::Registry,
}

const CAPABILITIES: [&str; 18] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_ADMIN",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_ADMIN",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_TIME",
];

impl World {
    pub(crate) fn new() -> Self {
        Self {
            request: ContainerRequest { name: "web".to_owned(), ..ContainerRequest::default() },
            image: image(),
            container: container(),
            accounts: Accounts {
                passwd: Some("root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/:\n".to_owned()),
                group: Some("root:x:0:\napp:x:1000:\nvideo:x:44:app\n".to_owned()),
            },
            pod: pod(),
            host: host(),
            handler: HandlerFacts { name: "crun".to_owned(), ..HandlerFacts::default() },
            policy: Policy::default(),
            cdi: cdi::Registry::default(),
        }
    }

    /// Changed by `change`.
    pub(crate) fn with(change: impl FnOnce(&mut Self)) -> Self {
        let mut world = Self::new();
        change(&mut world);
        world
    }

    pub(crate) fn build(&self) -> Result<Built, OciError> {
        build(&Inputs {
            request: &self.request,
            image: &self.image,
            container: &self.container,
            accounts: &self.accounts,
            pod: &self.pod,
            host: &self.host,
            handler: &self.handler,
            policy: &self.policy,
            cdi: &self.cdi,
        })
    }

    /// As the OCI runtime reads it.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        let built = self.build().unwrap();
        serde_json::from_slice(&oci::to_json(&built.spec).unwrap()).unwrap()
    }

    pub(crate) fn v1(&mut self) {
        let controllers = ["blkio", "cpu", "cpuset", "devices", "hugetlb", "memory", "pids"];
        self.host.cgroup = CgroupFacts {
            version: CgroupVersion::V1,
            controllers: controllers.map(str::to_owned).into(),
            swap: true,
            mount_options: Vec::new(),
        };
    }

    pub(crate) fn user_namespace(&mut self) {
        self.pod.namespaces.user = Some("/run/ns/user".into());
        self.pod.mapping = Some(mappings());
    }

    /// A mount with what the engine found at its source.
    pub(crate) fn mount(&mut self, request: oci::MountRequest, source: SourceFacts) {
        self.request.mounts.push(request);
        self.container.sources.push(source);
    }

    /// A registry made from these files.
    pub(crate) fn with_cdi(&mut self, yaml: &str) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("vendor.yaml"), yaml).unwrap();
        let (registry, errors) = cdi::load(&[dir.path().to_owned()]);
        assert!(errors.is_empty(), "{errors:?}");
        self.cdi = registry;
    }
}

pub(crate) fn mappings() -> IdMappings {
    let range = vec![IdMapping { container: 0, host: 65_536, len: 65_536 }];
    IdMappings { uids: range.clone(), gids: range }
}

fn image() -> ImageFacts {
    ImageFacts {
        name: "docker.io/library/web:1".to_owned(),
        entrypoint: vec!["/web".to_owned()],
        cmd: vec!["--port".to_owned(), "80".to_owned()],
        env: vec!["LANG=C".to_owned()],
        ..ImageFacts::default()
    }
}

fn container() -> ContainerFacts {
    ContainerFacts {
        id: "c".repeat(64).parse().unwrap(),
        rootfs: "rootfs".into(),
        sources: Vec::new(),
        volumes: BTreeMap::new(),
        targets: BTreeMap::new(),
        seccomp: None,
        apparmor_loaded: true,
        selinux: None,
        devices: DeviceFacts::default(),
        classes: Default::default(),
        init: None,
    }
}

fn pod() -> PodFacts {
    let file = |name: &str| Some(PathBuf::from("/run/pod").join(name));
    PodFacts {
        id: "a".repeat(64).parse().unwrap(),
        name: "shop".to_owned(),
        namespace: "default".to_owned(),
        uid: "uid-1".to_owned(),
        hostname: "shop-0".to_owned(),
        annotations: labels(&[]),
        privileged: false,
        namespaces: NamespacePaths {
            network: Some("/run/ns/net".into()),
            ipc: Some("/run/ns/ipc".into()),
            uts: Some("/run/ns/uts".into()),
            pid: None,
            host_pid: false,
            user: None,
        },
        mapping: None,
        files: PodFiles {
            hosts: file("hosts"),
            hostname: file("hostname"),
            resolv_conf: file("resolv.conf"),
            shm: file("shm"),
        },
        cgroup_parent: Some("/kubepods/pod1".to_owned()),
    }
}

fn host() -> HostFacts {
    let controllers = ["cpu", "cpuset", "hugetlb", "io", "memory", "pids"];
    HostFacts {
        hostname: "node-1".to_owned(),
        capabilities: CAPABILITIES.map(|name| format!("CAP_{name}")).into(),
        oom_score_floor: None,
        cgroup: CgroupFacts {
            version: CgroupVersion::V2,
            controllers: controllers.map(str::to_owned).into(),
            swap: true,
            mount_options: vec!["nsdelegate".to_owned()],
        },
        arch: Arch::X86_64,
        kernel: Kernel { major: 6, minor: 1 },
        seccomp: true,
        apparmor: false,
        selinux: false,
        resctrl: false,
    }
}

pub(crate) fn labels(pairs: &[(&str, &str)]) -> base::Labels {
    pairs.iter().copied().collect()
}

pub(crate) fn device(path: &str, major: u32, minor: u32) -> DeviceNode {
    let path = path.into();
    DeviceNode { path, kind: DeviceKind::Char, major, minor, mode: 0o660, uid: 0, gid: 44 }
}

/// Nothing at all.
pub(crate) fn no_abilities() -> Abilities {
    Abilities {
        user_namespaces: false,
        idmapped_mounts: false,
        recursive_readonly: false,
        seccomp: false,
        apparmor: false,
        selinux: false,
        intel_rdt: false,
        swappiness: false,
        hugepages: false,
        unified: false,
        net_devices: false,
        io_priority: false,
        scheduler: false,
        shim_sets_priorities: false,
        memory_policy: false,
        checkpoints: false,
    }
}

pub(crate) fn privileged(world: &mut World) {
    world.request.security.privileged = true;
    world.pod.privileged = true;
    world.handler.privileged_devices = PrivilegedDevices::Host;
    world.container.devices.host = vec![device("/dev/kvm", 10, 232)];
}

pub(crate) fn host_namespaces(world: &mut World) {
    world.pod.namespaces = NamespacePaths { host_pid: true, ..NamespacePaths::default() };
    world.pod.hostname = String::new();
    world.pod.files.shm = Some("/dev/shm".into());
    let asked = &mut world.request.security.namespaces;
    (asked.network, asked.ipc, asked.pid) =
        (NamespaceMode::Node, NamespaceMode::Node, NamespaceMode::Node);
}

pub(crate) fn systemd(world: &mut World) {
    world.handler.cgroup_driver = CgroupDriver::Systemd;
    world.pod.cgroup_parent = Some("/kubepods.slice/kubepods-pod1.slice".to_owned());
}
