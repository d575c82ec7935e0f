//! What cannot be had is refused, and the message starts with the field that asks for it.

use base::Kind;
use oci::{
    Abilities, DeviceRequest, GroupRef, HugepageLimit, MountRequest, MountSource, NamespaceMode,
    PodFacts, Profile, Propagation, Rlimit, SelinuxRequest, SourceFacts, SourcePropagation,
    UserNamespace, UserRef,
};

use crate::world::{World, host_namespaces, labels, mappings, no_abilities, systemd};

#[track_caller]
fn check(kind: Kind, want: &str, change: impl FnOnce(&mut World)) {
    let error = World::with(change).build().map(|_| ()).expect_err(want);
    assert_eq!(error.to_string(), want);
    assert_eq!(error.kind(), kind, "{want}");
}

#[track_caller]
fn invalid(want: &str, change: impl FnOnce(&mut World)) {
    check(Kind::Invalid, want, change);
}

#[test]
fn process() {
    invalid("command: no command specified", |w| {
        (w.image.entrypoint, w.image.cmd) = (vec![String::new()], vec![]);
    });
    invalid("command[1]: contains a NUL byte", |w| w.request.args = vec!["a\0b".into()]);
    invalid("working_dir: srv is not an absolute path", |w| {
        w.request.working_dir = Some("srv".into());
    });
    invalid("env[1]: \"A=B\" is not a name", |w| {
        w.request.env = vec![("X".into(), None), ("A=B".into(), None)];
    });
    invalid("env[0]: KEY contains a NUL byte", |w| {
        w.request.env = vec![("KEY".into(), Some("\0".into()))];
    });
    invalid("image.env[0]: contains a NUL byte", |w| w.image.env = vec!["A=\0".into()]);
    invalid("rlimits[0]: \"files\" is not a resource limit", |w| {
        w.request.rlimits = vec![Rlimit { name: "files".into(), soft: 0, hard: 0 }];
    });
    invalid("rlimits[0]: soft limit 2 is above the hard limit 1", |w| {
        w.request.rlimits = vec![Rlimit { name: "nofile".into(), soft: 2, hard: 1 }];
    });
    invalid("resources.oom_score_adj: -1001 is not in -1000..=1000", |w| {
        w.request.resources.oom_score_adj = Some(-1001);
    });
    invalid("image.stop_signal: \"SIGWHAT\" is not a signal", |w| {
        w.image.stop_signal = Some("SIGWHAT".into());
    });
}

#[test]
fn user() {
    check(Kind::NotFound, "security.user.user: no user \"web\" in the image's /etc/passwd", |w| {
        w.request.security.user.user = Some(UserRef::Name("web".into()))
    });
    check(
        Kind::NotFound,
        "image.user: user \"app\" cannot be looked up: the image has no /etc/passwd",
        |w| (w.image.user, w.accounts.passwd) = ("app".into(), None),
    );
    invalid("security.user.group: a group needs a user beside it", |w| {
        w.request.security.user.group = Some(GroupRef::Id(1));
    });
    invalid("security.user: uid 70000 is not mapped in the pod's user namespace", |w| {
        w.user_namespace();
        w.request.security.user.user = Some(UserRef::Id(70_000));
    });
}

/// One mount, and what was found at its source.
#[track_caller]
fn mount(kind: Kind, want: &str, request: MountRequest, propagation: SourcePropagation) {
    check(kind, want, |w| {
        w.handler.abilities.recursive_readonly = false;
        w.mount(request, SourceFacts { path: "/srv".into(), propagation });
    });
}

#[test]
fn mounts() {
    use SourcePropagation::{Private, Slave};
    let data = || MountRequest { container_path: "/data".into(), ..MountRequest::default() };
    let mount_invalid = |want: &str, request| mount(Kind::Invalid, want, request, Private);
    mount_invalid(
        "mounts[0].container_path: \"data\" is not an absolute path",
        MountRequest { container_path: "data".into(), ..data() },
    );
    mount_invalid(
        "mounts[0].container_path: the root cannot be mounted over",
        MountRequest { container_path: "/x/..".into(), ..data() },
    );
    mount_invalid(
        "mounts[0].propagation: /srv is not on a shared or slave mount",
        MountRequest { propagation: Propagation::HostToContainer, ..data() },
    );
    mount(
        Kind::Invalid,
        "mounts[0].propagation: /srv is not on a shared mount",
        MountRequest { propagation: Propagation::Bidirectional, ..data() },
        Slave,
    );
    mount_invalid(
        "mounts[0].recursive_readonly: needs readonly beside it",
        MountRequest { recursive_readonly: true, ..data() },
    );
    let readonly = || MountRequest { readonly: true, recursive_readonly: true, ..data() };
    mount(
        Kind::Invalid,
        "mounts[0].recursive_readonly: needs private propagation",
        MountRequest { propagation: Propagation::HostToContainer, ..readonly() },
        Slave,
    );
    mount(
        Kind::Unimplemented,
        "RROUnsupported: mounts[0].recursive_readonly: handler \"crun\" has no recursive \
         read-only mounts",
        readonly(),
        Private,
    );
    let image = MountSource::Image { reference: "m".into(), sub_path: None };
    mount_invalid(
        "mounts[0].readonly: an image can only be mounted read-only",
        MountRequest { source: image, ..data() },
    );
    mount_invalid(
        "mounts[0].options[1]: \"rbind\" is not an option here",
        MountRequest { options: vec!["nodev".into(), "rbind".into()], ..data() },
    );
    mount_invalid(
        "mounts[0].options[0]: \"size=1m\" is not an option here",
        MountRequest { options: vec!["size=1m".into()], ..data() },
    );
}

#[test]
fn mapped_mounts() {
    let add = |w: &mut World| {
        let to = "/data".into();
        let mapping = Some(mappings());
        w.mount(
            MountRequest { container_path: to, mapping, ..MountRequest::default() },
            SourceFacts::default(),
        );
    };
    check(
        Kind::FailedPrecondition,
        "mounts[0].mapping: mounting with mapped ids is not available on this host",
        |w| {
            add(w);
            w.host.kernel.major = 4;
        },
    );
    check(Kind::Unimplemented, "mounts[0].mapping: handler \"crun\" cannot do that", |w| {
        add(w);
        w.handler.abilities = Abilities { idmapped_mounts: false, ..Abilities::default() };
    });
}

#[test]
fn devices() {
    let asked = |permissions: &str| DeviceRequest {
        host_path: "/dev/fuse".into(),
        container_path: "/dev/fuse".into(),
        permissions: permissions.into(),
    };
    check(Kind::NotFound, "devices[0].host_path: no device at /dev/fuse", |w| {
        w.request.devices = vec![asked("rw")];
    });
    for permissions in ["rx", "rr"] {
        let why = "is not made of r, w and m";
        invalid(&format!("devices[0].permissions: {permissions:?} {why}"), |w| {
            w.request.devices = vec![asked(permissions)];
        });
    }
    check(Kind::NotFound, "cdi_devices[0]: no CDI device \"v/gpu=0\"", |w| {
        w.request.cdi_devices = vec!["v/gpu=0".into()];
    });
    invalid("cdi_devices[0]: \"gpu\" is not a name such as vendor.com/class=name", |w| {
        w.request.cdi_devices = vec!["gpu".into()];
    });
    check(Kind::NotFound, "annotations[\"cdi.k8s.io/x\"]: no CDI device \"v/gpu=0\"", |w| {
        w.request.annotations = labels(&[("cdi.k8s.io/x", "v/gpu=0")]);
    });
}

#[test]
fn privileges() {
    invalid("security.privileged: no privileged container allowed in a pod that is not", |w| {
        w.request.security.privileged = true;
    });
    invalid("security.capabilities.drop[0]: \"ROOT\" is not a capability", |w| {
        w.request.security.capabilities.drop = vec!["ROOT".into()];
    });
    invalid("security.masked_paths[0]: is not an absolute path", |w| {
        w.request.security.masked_paths = Some(vec!["proc".into()]);
    });
    invalid("security.selinux.level: \"high\" is not a level such as s0:c1,c2", |w| {
        let level = "high".into();
        w.request.security.selinux = Some(SelinuxRequest { level, ..SelinuxRequest::default() });
    });
}

#[test]
fn profiles() {
    let default = || Some(Profile::RuntimeDefault);
    check(
        Kind::FailedPrecondition,
        "security.seccomp: seccomp is not available on this host",
        |w| (w.host.seccomp, w.request.security.seccomp) = (false, default()),
    );
    check(Kind::Unimplemented, "security.seccomp: handler \"crun\" cannot do that", |w| {
        (w.handler.abilities, w.request.security.seccomp) = (no_abilities(), default());
    });
    check(
        Kind::FailedPrecondition,
        "security.apparmor: AppArmor is not available on this host",
        |w| w.request.security.apparmor = default(),
    );
    let unloaded = |world: &mut World| {
        (world.host.apparmor, world.container.apparmor_loaded) = (true, false);
    };
    let why = "security.apparmor: no AppArmor profile \"mine\" is loaded on this host";
    check(Kind::NotFound, why, |w| {
        unloaded(w);
        w.request.security.apparmor = Some(Profile::Localhost("localhost/mine".into()));
    });
    let why = "security.apparmor: the default AppArmor profile is not available on this host";
    check(Kind::FailedPrecondition, why, |w| {
        unloaded(w);
        w.request.security.apparmor = default();
    });
    check(Kind::Unimplemented, "security.apparmor: handler \"crun\" cannot do that", |w| {
        w.host.apparmor = true;
        (w.handler.abilities, w.request.security.apparmor) = (no_abilities(), default());
    });
    check(Kind::Internal, "seccomp profile \"/etc/p.json\" was not looked up", |w| {
        w.request.security.seccomp = Some(Profile::Localhost("/etc/p.json".into()));
    });
}

#[test]
fn nobody_is_refused_for_what_was_not_asked() {
    let world = World::with(|w| {
        w.handler.abilities = no_abilities();
        (w.host.seccomp, w.host.apparmor, w.host.selinux) = (false, true, true);
        w.policy.unset_seccomp = Profile::RuntimeDefault;
    });
    let spec = world.json();
    assert!(spec["linux"]["seccomp"].is_null());
    assert!(spec["process"]["apparmorProfile"].is_null());
    let world = World::with(|w| {
        (w.host.apparmor, w.container.apparmor_loaded) = (true, false);
    });
    assert!(world.json()["process"]["apparmorProfile"].is_null());
}

#[test]
fn namespaces() {
    let id = "d".repeat(64).parse().unwrap();
    let target = NamespaceMode::Target(id);
    invalid("security.namespaces.network: the pod is not in the host's namespace", |w| {
        w.request.security.namespaces.network = NamespaceMode::Node;
    });
    invalid("security.namespaces.pid: the pod is not in the host's namespace", |w| {
        w.request.security.namespaces.pid = NamespaceMode::Node;
    });
    invalid("security.namespaces.pid: the pod shares no PID namespace", |w| {
        w.request.security.namespaces.pid = NamespaceMode::Pod;
    });
    check(Kind::NotFound, "security.namespaces.pid: no running container dddddddddddd", |w| {
        w.request.security.namespaces.pid = target
    });
    invalid(
        "security.namespaces.cgroup: another container's cgroup namespace cannot be joined",
        |w| w.request.security.namespaces.cgroup = Some(target),
    );
    invalid("sysctls[\"net.core.somaxconn\"]: its namespace is the host's", |w| {
        host_namespaces(w);
        w.request.sysctls = [("net.core.somaxconn".into(), "1".into())].into();
    });
}

/// Keeps the pod's namespace and its mapping in step, as the engine does.
#[track_caller]
fn user_namespace(want: &str, change: impl FnOnce(&mut PodFacts)) {
    invalid(&format!("security.namespaces.user{want}"), |w| {
        w.user_namespace();
        change(&mut w.pod);
    });
}

#[test]
fn user_namespaces() {
    let asked = |w: &mut World, user| w.request.security.namespaces.user = Some(user);
    invalid("security.namespaces.user: the pod has no user namespace", |w| {
        asked(w, UserNamespace::Pod(mappings()));
    });
    invalid("security.namespaces.user: the pod has a user namespace", |w| {
        w.user_namespace();
        asked(w, UserNamespace::Node);
    });
    invalid("security.namespaces.user: the mapping is not that of the pod", |w| {
        w.user_namespace();
        let mut other = mappings();
        other.uids[0].host += 1;
        asked(w, UserNamespace::Pod(other));
    });
    check(Kind::Unimplemented, "security.namespaces.user: handler \"crun\" cannot do that", |w| {
        w.user_namespace();
        w.handler.abilities = no_abilities();
    });
    let ranges = |pod: &mut PodFacts, change: fn(&mut oci::IdMappings)| {
        pod.mapping.as_mut().map(change);
    };
    user_namespace(".uids: exactly one range is supported, not 2", |pod| {
        ranges(pod, |m| m.uids.push(m.uids[0]));
    });
    user_namespace(".gids: exactly one range is supported, not 0", |pod| {
        ranges(pod, |m| m.gids.clear());
    });
    user_namespace(".gids: id 0 of the container is not mapped", |pod| {
        ranges(pod, |m| m.gids[0].container = 1);
    });
    user_namespace(".uids: 0 ids from 65536 are no range", |pod| {
        ranges(pod, |m| m.uids[0].len = 0);
    });
    let why = ": a user namespace cannot be had with the host's PID or IPC namespace";
    user_namespace(why, |pod| pod.namespaces.host_pid = true);
    user_namespace(why, |pod| pod.namespaces.ipc = None);
    check(Kind::Internal, "one half of the pod's user namespace was not looked up", |w| {
        w.pod.namespaces.user = Some("/run/ns/user".into());
    });
}

#[test]
fn resources() {
    let on_host = |want: &str, change: fn(&mut World)| {
        check(Kind::FailedPrecondition, want, |w| {
            w.host.cgroup.controllers.clear();
            w.policy.ignore_hugepages = false;
            w.policy.tolerate_missing_hugetlb = false;
            change(w);
        });
    };
    let end = "is not available on this host";
    on_host(&format!("resources.cpu_quota: the cpu controller {end}"), |w| {
        w.request.resources.cpu_quota = Some(1000);
    });
    on_host(&format!("resources.cpuset_cpus: the cpuset controller {end}"), |w| {
        w.request.resources.cpuset_cpus = Some("0".into());
    });
    on_host(&format!("resources.memory_limit: the memory controller {end}"), |w| {
        w.request.resources.memory_limit = Some(1 << 30);
    });
    on_host(&format!("resources.pids_limit: the pids controller {end}"), |w| {
        w.request.resources.pids_limit = Some(10);
    });
    on_host(&format!("resources.hugepages: the hugetlb controller {end}"), |w| {
        let page_size = "2MB".into();
        w.request.resources.hugepages = vec![HugepageLimit { page_size, limit: 0 }];
    });
    on_host(&format!("resources.unified: cgroup v2 {end}"), |w| {
        w.v1();
        w.request.resources.unified = [("memory.high".into(), "1".into())].into();
    });
    on_host(
        &format!("resources.cpu_realtime_runtime: real-time scheduling in cgroup v2 {end}"),
        |w| w.request.resources.cpu_realtime_period = Some(1),
    );
}

#[test]
fn values() {
    invalid("resources.cpu_quota: 999 is below 1000", |w| {
        w.request.resources.cpu_quota = Some(999);
    });
    invalid("resources.cpu_period: 10 is not in 1000..=1000000", |w| {
        w.request.resources.cpu_period = Some(10);
    });
    for list in ["", "a", "1-", "3-1", "1,,2", "+1"] {
        invalid(&format!("resources.cpuset_mems: {list:?} is not a list of numbers"), |w| {
            w.request.resources.cpuset_mems = Some(list.into());
        });
    }
    invalid("resources.memory_limit: -2 is below -1", |w| {
        w.request.resources.memory_limit = Some(-2);
    });
    invalid("resources.memory_swap: 1 is less than the memory limit 2", |w| {
        let resources = &mut w.request.resources;
        (resources.memory_limit, resources.memory_swap) = (Some(2), Some(1));
    });
    invalid("resources.memory_swap: needs a memory limit beside it", |w| {
        w.request.resources.memory_swap = Some(1);
    });
    invalid("resources.memory_swappiness: 101 is not in 0..=100", |w| {
        w.request.resources.memory_swappiness = Some(101);
    });
    invalid("resources.hugepages[0].page_size: \"2MB/../x\" is not the size of a page", |w| {
        w.policy.ignore_hugepages = false;
        let page_size = "2MB/../x".into();
        w.request.resources.hugepages = vec![HugepageLimit { page_size, limit: 0 }];
    });
    invalid("resources.unified[\"../memory.max\"]: is not a file of a cgroup", |w| {
        w.request.resources.unified = [("../memory.max".into(), "1".into())].into();
    });
    invalid("cgroup_parent: \"/pods\" is not a slice, and systemd owns the cgroups here", |w| {
        systemd(w);
        w.pod.cgroup_parent = Some("/pods".into());
    });
}

#[test]
fn what_the_handler_lacks() {
    let unable = |field: &str, change: fn(&mut World)| {
        check(Kind::Unimplemented, &format!("{field}: handler \"crun\" cannot do that"), |w| {
            w.handler.abilities = no_abilities();
            w.policy.ignore_hugepages = false;
            change(w);
        });
    };
    unable("resources.memory_swappiness", |w| {
        w.v1();
        w.request.resources.memory_swappiness = Some(1);
    });
    unable("resources.hugepages", |w| {
        let page_size = "2MB".into();
        w.request.resources.hugepages = vec![HugepageLimit { page_size, limit: 0 }];
    });
    unable("resources.unified", |w| {
        w.request.resources.unified = [("memory.high".into(), "1".into())].into();
    });
    unable("annotations[\"io.kubernetes.cri.rdt-class\"]", |w| {
        w.container.classes.rdt = Some(["gold".to_owned()].into());
        w.request.annotations = labels(&[("io.kubernetes.cri.rdt-class", "gold")]);
    });
}

#[test]
fn classes() {
    check(
        Kind::NotFound,
        "annotations[\"io.kubernetes.cri.blockio-class\"]: no block I/O class \"slow\"",
        |w| w.request.annotations = labels(&[("io.kubernetes.cri.blockio-class", "slow")]),
    );
    let key = "rdt.resources.beta.kubernetes.io/pod";
    check(
        Kind::FailedPrecondition,
        &format!("annotations[{key:?}]: resctrl is not available on this host"),
        |w| w.pod.annotations = labels(&[(key, "gold")]),
    );
}

#[test]
fn facts_the_engine_owes() {
    check(Kind::Internal, "0 of 1 mount sources was not looked up", |w| {
        w.request.mounts.push(MountRequest::default());
    });
    check(Kind::Internal, "volume /db was not looked up", |w| {
        w.image.volumes = ["/db".into()].into();
    });
    check(Kind::Internal, "the init program was not looked up", |w| w.request.init = true);
}
