//! Whole specs, as an OCI runtime reads them. `cargo insta review` shows what a change does.

use std::collections::BTreeMap;

use oci::{
    BlockIo, CapabilityRequest, ConsoleSize, DeviceKind, DeviceRate, DeviceRequest, DeviceRule,
    GroupRef, GroupsPolicy, HugepageLimit, MountRequest, MountSource, NamespaceMode, Profile,
    Propagation, Resources, Rlimit, SelinuxLabels, SelinuxRequest, SourceFacts, SourcePropagation,
    UserRef, UserRequest,
};
use serde_json::Value;

use crate::world::{World, device, host_namespaces, labels, mappings, privileged, systemd};

/// What `changed` has that differs from a plain container, by path.
fn difference(change: impl FnOnce(&mut World)) -> BTreeMap<String, Value> {
    let (plain, changed) = (World::new().json(), World::with(change).json());
    let mut found = BTreeMap::new();
    compare("", &plain, &changed, &mut found);
    found
}

fn compare(path: &str, old: &Value, new: &Value, found: &mut BTreeMap<String, Value>) {
    let (Some(old_map), Some(new_map)) = (old.as_object(), new.as_object()) else {
        if old != new {
            found.insert(path.to_owned(), new.clone());
        }
        return;
    };
    let keys: std::collections::BTreeSet<_> = old_map.keys().chain(new_map.keys()).collect();
    for key in keys {
        let part = |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or_default();
        compare(&format!("{path}/{key}"), &part(old_map), &part(new_map), found);
    }
}

#[test]
fn minimal() {
    insta::assert_json_snapshot!(World::new().json());
}

#[test]
fn minimal_on_cgroup_v1() {
    insta::assert_json_snapshot!(difference(World::v1));
}

#[test]
fn privileged_container() {
    insta::assert_json_snapshot!(World::with(privileged).json());
}

#[test]
fn host_namespaces_of_a_pod() {
    insta::assert_json_snapshot!(difference(host_namespaces));
}

#[test]
fn user_namespace() {
    insta::assert_json_snapshot!(difference(World::user_namespace));
}

#[test]
fn user_namespace_on_the_host_network() {
    insta::assert_json_snapshot!(difference(|world| {
        world.user_namespace();
        world.pod.namespaces.network = None;
        world.pod.namespaces.uts = None;
    }));
}

#[test]
fn terminal() {
    insta::assert_json_snapshot!(difference(|world| {
        world.request.tty = true;
        world.request.stdin = true;
        world.request.console_size = Some(ConsoleSize { height: 24, width: 80 });
    }));
}

#[test]
fn process_settings() {
    insta::assert_json_snapshot!(difference(|world| {
        world.request.command = vec!["/bin/sh".into(), "-c".into()];
        world.request.args = vec!["exec app".into()];
        world.request.env = vec![
            ("LANG".into(), Some("C.UTF-8".into())),
            ("EMPTY".into(), Some(String::new())),
            ("HOSTNAME".into(), None),
            ("PATH".into(), Some("/bin".into())),
        ];
        world.request.working_dir = Some("/srv".into());
        world.policy.rlimits = vec![
            Rlimit { name: "nofile".into(), soft: 1, hard: 2 },
            Rlimit { name: "RLIMIT_CORE".into(), soft: 0, hard: 0 },
        ];
        world.request.rlimits = vec![Rlimit { name: "NOFILE".into(), soft: 10, hard: 20 }];
        world.request.resources.oom_score_adj = Some(-998);
        world.host.oom_score_floor = Some(-500);
    }));
}

#[test]
fn readonly_rootfs() {
    insta::assert_json_snapshot!(difference(|world| world.request.security.readonly_rootfs = true));
}

#[test]
fn devices() {
    insta::assert_json_snapshot!(difference(|world| {
        let asked = |host: &str, container: &str, permissions: &str| DeviceRequest {
            host_path: host.into(),
            container_path: container.into(),
            permissions: permissions.into(),
        };
        world.request.devices = vec![
            asked("/dev/fuse", "/dev/fuse", "rw"),
            asked("/dev/link", "/dev/card", ""),
            asked("/dev/dri", "/dev/gpu", "r"),
        ];
        world.request.device_rules = vec![DeviceRule {
            allow: true,
            kind: DeviceKind::Block,
            major: Some(8),
            minor: None,
            permissions: "rw".into(),
        }];
        world.container.devices.by_path = [
            ("/dev/fuse".into(), vec![device("/dev/fuse", 10, 229)]),
            ("/dev/link".into(), vec![device("/dev/card0", 226, 0)]),
            (
                "/dev/dri".into(),
                vec![device("/dev/dri/card0", 226, 0), device("/dev/dri/by-path/x", 226, 128)],
            ),
        ]
        .into();
        world.policy.device_ownership = true;
        world.request.security.user.user = Some(UserRef::Id(1000));
    }));
}

#[test]
fn mounts() {
    insta::assert_json_snapshot!(difference(|world| {
        let at = |to: &str| MountRequest { container_path: to.into(), ..MountRequest::default() };
        let from = |path: &str, propagation| SourceFacts { path: path.into(), propagation };
        let private = |path: &str| from(path, SourcePropagation::Private);
        world.mount(
            MountRequest { readonly: true, recursive_readonly: true, ..at("/data/deep/ro") },
            private("/srv/ro"),
        );
        world.mount(
            MountRequest { propagation: Propagation::HostToContainer, ..at("/data") },
            from("/srv/data", SourcePropagation::Slave),
        );
        world.mount(
            MountRequest { options: vec!["noexec".into(), "nodev".into()], ..at("/etc//hosts") },
            private("/srv/hosts"),
        );
        world.mount(
            MountRequest {
                source: MountSource::Image { reference: "model:1".into(), sub_path: None },
                readonly: true,
                ..at("/model")
            },
            private("/run/images/model"),
        );
        world.mount(
            MountRequest {
                source: MountSource::Tmpfs,
                options: vec!["size=64k".into(), "exec".into()],
                ..at("/scratch")
            },
            SourceFacts::default(),
        );
        world.mount(MountRequest { mapping: Some(mappings()), ..at("/mapped") }, private("/srv/m"));
        world.image.volumes = ["/var/lib/db".into(), "/data".into()].into();
        world.container.volumes.insert("/var/lib/db".into(), "/run/volumes/1".into());
    }));
}

#[test]
fn dev_of_ones_own() {
    insta::assert_json_snapshot!(difference(|world| {
        let dev = MountRequest {
            container_path: "/dev".into(),
            propagation: Propagation::Bidirectional,
            ..MountRequest::default()
        };
        let propagation = SourcePropagation::Shared;
        world.mount(dev, SourceFacts { path: "/dev".into(), propagation });
    }));
}

#[test]
fn own_ipc_and_uts_and_init() {
    insta::assert_json_snapshot!(difference(|world| {
        let asked = &mut world.request.security.namespaces;
        (asked.ipc, asked.uts) = (NamespaceMode::Container, NamespaceMode::Container);
        world.request.shm_size = Some(1 << 20);
        world.request.init = true;
        world.container.init = Some("/usr/libexec/longshore/init".into());
    }));
}

#[test]
fn target_and_shared_pid_namespaces() {
    insta::assert_json_snapshot!(difference(|world| {
        let id = "d".repeat(64).parse().unwrap();
        world.request.security.namespaces.pid = NamespaceMode::Target(id);
        world.container.targets.insert(id, "/proc/42/ns".into());
    }));
    insta::assert_json_snapshot!(
        "shared_pid",
        difference(|world| {
            world.request.security.namespaces.pid = NamespaceMode::Pod;
            world.pod.namespaces.pid = Some("/proc/41/ns/pid".into());
        })
    );
}

fn all_resources() -> Resources {
    Resources {
        cpu_shares: Some(512),
        cpu_quota: Some(50_000),
        cpu_period: Some(100_000),
        cpuset_cpus: Some("0-1,3".into()),
        cpuset_mems: Some("0".into()),
        memory_limit: Some(64 << 20),
        memory_reservation: Some(32 << 20),
        oom_score_adj: Some(900),
        hugepages: vec![HugepageLimit { page_size: "2MB".into(), limit: 4 << 20 }],
        pids_limit: Some(100),
        block_io: Some(BlockIo {
            weight: Some(500),
            read_bps: vec![DeviceRate { major: 8, minor: 0, rate: 1 << 20 }],
            ..BlockIo::default()
        }),
        ..Resources::default()
    }
}

#[test]
fn resources_on_v2() {
    insta::assert_json_snapshot!(difference(|world| {
        world.request.resources = all_resources();
        world.request.resources.unified = [("memory.high".into(), "1000".into())].into();
        world.policy.ignore_hugepages = false;
    }));
}

#[test]
fn resources_on_v1() {
    insta::assert_json_snapshot!(difference(|world| {
        world.v1();
        world.request.resources = all_resources();
        world.request.resources.memory_swap = Some(-1);
        world.request.resources.memory_swappiness = Some(0);
        world.request.resources.oom_kill_disable = Some(true);
        world.request.resources.cpu_realtime_runtime = Some(1000);
    }));
}

#[test]
fn security_settings() {
    insta::assert_json_snapshot!(difference(|world| {
        let security = &mut world.request.security;
        security.capabilities = CapabilityRequest {
            add: vec!["NET_ADMIN".into()],
            drop: vec!["MKNOD".into(), "cap_kill".into()],
            ambient: vec!["NET_RAW".into()],
        };
        security.user =
            UserRequest { user: Some(UserRef::Name("app".into())), group: Some(GroupRef::Id(7)) };
        security.supplemental_groups = vec![GroupRef::Id(8)];
        security.groups_policy = GroupsPolicy::Strict;
        security.no_new_privileges = true;
        security.masked_paths = Some(vec!["/proc/acpi".into()]);
        security.readonly_paths = Some(vec![]);
        security.apparmor = Some(Profile::Localhost("localhost/mine".into()));
        security.selinux =
            Some(SelinuxRequest { level: "s0:c1,c2".into(), ..SelinuxRequest::default() });
        (world.host.apparmor, world.host.selinux) = (true, true);
        world.container.selinux =
            Some(SelinuxLabels { process: "p:s0:c1,c2".into(), mount: "m:s0:c1,c2".into() });
        world.request.sysctls = [("net/core/somaxconn".into(), "1024".into())].into();
    }));
}

#[test]
fn default_profiles() {
    insta::assert_json_snapshot!(difference(|world| {
        world.request.security.seccomp = Some(Profile::RuntimeDefault);
        world.host.apparmor = true;
    }));
}

#[test]
fn annotations_and_classes() {
    insta::assert_json_snapshot!(difference(|world| {
        world.request.annotations = labels(&[
            ("run.oci.keep_original_groups", "1"),
            ("secret", "x"),
            ("io.kubernetes.cri.sandbox-id", "forged"),
        ]);
        world.pod.annotations = labels(&[
            ("io.katacontainers.config/x", "y"),
            ("blockio.resources.beta.kubernetes.io/pod", "slow"),
            ("rdt.resources.beta.kubernetes.io/container.web", "gold"),
        ]);
        world.handler.container_annotations = vec!["run.oci.*".into(), "io.kubernetes.*".into()];
        world.handler.pod_annotations = vec!["io.katacontainers.*/*".into()];
        let mut slow = oci::LinuxBlockIo::default();
        slow.set_weight(Some(10));
        world.container.classes.block_io = Some(slow);
        world.container.classes.rdt = Some(["gold".to_owned()].into());
    }));
}

#[test]
fn systemd_driver_and_newer_version() {
    insta::assert_json_snapshot!(difference(|world| {
        systemd(world);
        world.handler.oci_version = "1.2.1".into();
        world.handler.cgroup_writable = true;
    }));
}

#[test]
fn base_spec_of_a_handler() {
    let base = r#"{
        "ociVersion": "9.9.9",
        "hostname": "forgotten",
        "process": {
            "user": {"uid": 5, "gid": 5}, "cwd": "/base", "args": ["forgotten"],
            "env": ["BASE=1", "LANG=forgotten"],
            "capabilities": {"bounding": ["CAP_KILL", "CAP_NET_ADMIN"]},
            "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 5, "hard": 6}]
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/run", "type": "tmpfs", "source": "tmpfs"},
            {"destination": "/dev/shm", "type": "tmpfs", "source": "forgotten"}
        ],
        "hooks": {"createRuntime": [{"path": "/bin/hook"}]},
        "annotations": {"base": "kept"},
        "linux": {
            "resources": {"pids": {"limit": 7}, "devices": [{"allow": true, "access": "rwm"}]},
            "maskedPaths": ["/base"],
            "seccomp": {"defaultAction": "SCMP_ACT_LOG"}
        }
    }"#;
    let base = serde_json::from_str(base).unwrap();
    let world = World::with(|world| world.handler.base_spec = Some(base));
    insta::assert_json_snapshot!(world.json());
}

const GPU: &str = r#"
cdiVersion: "1.1.0"
kind: vendor.com/gpu
containerEdits:
  env: ["VENDOR=all", "LANG=vendor"]
  additionalGids: [0, 44]
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - {path: /dev/gpu0, permissions: rw}
    - {path: /dev/ctl, hostPath: /dev/hostctl, type: c, major: 195, minor: 255, fileMode: 438, uid: 3}
    - {path: /dev/pipe, type: p, permissions: none}
    mounts:
    - {hostPath: /usr/lib/gpu, containerPath: /usr/lib/gpu, options: [ro, nosuid]}
    - {hostPath: tmpfs, containerPath: /etc/hosts, type: tmpfs}
    hooks:
    - {hookName: createContainer, path: /usr/bin/hook, args: [hook, ldcache], timeout: 5}
    intelRdt: {closID: gpu}
    netDevices: [{hostInterfaceName: ib0, name: eth1}]
"#;

#[test]
fn cdi_devices() {
    insta::assert_json_snapshot!(difference(|world| {
        world.with_cdi(GPU);
        world.request.cdi_devices = vec!["vendor.com/gpu=0".into()];
        world.request.security.user.user = Some(UserRef::Id(1000));
        let paths = oci::device_paths(&world.request, &world.cdi).unwrap();
        assert_eq!(paths, ["/dev/gpu0", "/dev/hostctl", "/dev/pipe"].map(Into::into).into());
        let nodes = vec![device("/dev/gpu0", 195, 0)];
        world.container.devices.by_path.insert("/dev/gpu0".into(), nodes);
    }));
}

#[test]
fn a_small_mapping_has_no_group_of_terminals() {
    let world = World::with(|world| {
        world.user_namespace();
        if let Some(mapping) = &mut world.pod.mapping {
            mapping.gids[0].len = 5;
        }
        world.accounts.group = None;
    });
    let spec = world.json();
    let mounts = spec["mounts"].as_array().unwrap();
    let pts = mounts.iter().find(|mount| mount["destination"] == "/dev/pts").unwrap();
    assert!(!pts["options"].as_array().unwrap().iter().any(|option| option == "gid=5"));
}

#[test]
fn the_request_then_the_image_says_how_to_stop() {
    let check = |request: Option<&str>, image: Option<&str>, want: &str| {
        let world = World::with(|world| {
            world.request.stop_signal = request.map(|name| name.parse().unwrap());
            world.image.stop_signal = image.map(str::to_owned);
        });
        assert_eq!(world.build().unwrap().stop_signal.to_string(), want);
    };
    check(None, None, "SIGTERM");
    check(None, Some(""), "SIGTERM");
    check(None, Some("RTMIN+3"), "SIGRTMIN+3");
    check(Some("SIGINT"), Some("SIGQUIT"), "SIGINT");
    check(Some("SIGINT"), Some("nonsense"), "SIGINT");
}

#[test]
fn an_operator_forbids_new_privileges_for_all() {
    let base = r#"{"process": {"user": {}, "cwd": "/", "noNewPrivileges": true}}"#;
    let base = serde_json::from_str(base).unwrap();
    let spec = World::with(|world| world.handler.base_spec = Some(base)).json();
    assert_eq!(spec["process"]["noNewPrivileges"], true);
}
