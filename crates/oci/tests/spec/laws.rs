//! What holds for every request.

use oci::{
    BlockIo, CapabilityRequest, CgroupDriver, ContainerRequest, GroupRef, HugepageLimit,
    MountRequest, MountSource, NamespaceMode, NamespaceRequest, Profile, Propagation, Resources,
    Rlimit, SecurityRequest, Signal, SourceFacts, SourcePropagation, UserNamespace, UserRef,
    UserRequest,
};
use proptest::{collection::vec, option, prelude::*, sample::select};

use crate::world::{World, mappings, privileged};

fn mode() -> impl Strategy<Value = NamespaceMode> {
    let target = NamespaceMode::Target("d".repeat(64).parse().unwrap());
    select(vec![NamespaceMode::Pod, NamespaceMode::Container, NamespaceMode::Node, target])
}

fn namespaces() -> impl Strategy<Value = NamespaceRequest> {
    let user = select(vec![None, Some(UserNamespace::Node), Some(UserNamespace::Pod(mappings()))]);
    (mode(), mode(), mode(), mode(), option::of(mode()), user).prop_map(
        |(network, pid, ipc, uts, cgroup, user)| NamespaceRequest {
            network,
            pid,
            ipc,
            uts,
            cgroup,
            user,
        },
    )
}

fn profile() -> impl Strategy<Value = Option<Profile>> {
    let file = Profile::Localhost("x".into());
    select(vec![None, Some(Profile::RuntimeDefault), Some(Profile::Unconfined), Some(file)])
}

fn security() -> impl Strategy<Value = SecurityRequest> {
    let capability = || select(vec!["ALL", "KILL", "cap_sys_admin", "SYS_BOOT", "what"]);
    let capabilities = || vec(capability().prop_map(str::to_owned), 0..3);
    let user = option::of(prop_oneof![
        any::<u32>().prop_map(UserRef::Id),
        "[a-z0-9]{0,4}".prop_map(UserRef::Name),
    ]);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let paths = || option::of(vec("/?[a-z./]{0,8}", 0..3));
    (
        (flags, capabilities(), capabilities(), user, option::of(any::<u32>())),
        (paths(), paths(), profile(), profile(), namespaces()),
    )
        .prop_map(
            |((flags, add, drop, user, group), (masked, readonly, seccomp, apparmor, ns))| {
                SecurityRequest {
                    privileged: flags.0,
                    no_new_privileges: flags.1,
                    readonly_rootfs: flags.2,
                    capabilities: CapabilityRequest { add, drop, ambient: vec![] },
                    user: UserRequest { user, group: group.map(GroupRef::Id) },
                    masked_paths: masked,
                    readonly_paths: readonly,
                    seccomp,
                    apparmor,
                    namespaces: ns,
                    ..SecurityRequest::default()
                }
            },
        )
}

fn resources() -> impl Strategy<Value = Resources> {
    let number = || option::of(prop_oneof![-2_i64..3, any::<i64>(), 1000_i64..2000]);
    let list = || option::of("[0-9,-]{0,5}");
    let hugepages =
        vec(("[0-9]{0,2}[KMG]?B", any::<u64>()), 0..2).prop_map(|pages| -> Vec<HugepageLimit> {
            pages.into_iter().map(|(page_size, limit)| HugepageLimit { page_size, limit }).collect()
        });
    let unified = proptest::collection::btree_map("[a-z./]{0,8}", "[0-9]{0,3}", 0..3);
    (number(), number(), number(), number(), list(), list(), hugepages, unified).prop_map(
        |(quota, limit, swap, pids, cpus, mems, hugepages, unified)| Resources {
            cpu_quota: quota,
            memory_limit: limit,
            memory_swap: swap,
            pids_limit: pids,
            cpuset_cpus: cpus,
            cpuset_mems: mems,
            oom_score_adj: pids.and_then(|n| i32::try_from(n).ok()),
            hugepages,
            unified,
            block_io: quota
                .map(|n| BlockIo { weight: u16::try_from(n).ok(), ..BlockIo::default() }),
            ..Resources::default()
        },
    )
}

fn mount() -> impl Strategy<Value = (MountRequest, SourceFacts)> {
    let propagation = select(vec![
        Propagation::Private,
        Propagation::HostToContainer,
        Propagation::Bidirectional,
    ]);
    let found = select(vec![
        SourcePropagation::Private,
        SourcePropagation::Slave,
        SourcePropagation::Shared,
    ]);
    let option = select(vec!["nodev", "exec", "size=1", "rbind"]).prop_map(str::to_owned);
    (
        "/?(dev|sys|etc|data|/|\\.\\.|x){0,5}",
        any::<(bool, bool, bool)>(),
        propagation,
        found,
        vec(option, 0..2),
    )
        .prop_map(
            |(to, (readonly, recursive_readonly, tmpfs), propagation, found, options)| {
                let source = if tmpfs { MountSource::Tmpfs } else { MountSource::default() };
                let request = MountRequest {
                    source,
                    container_path: to.into(),
                    readonly,
                    recursive_readonly,
                    propagation,
                    options,
                    ..MountRequest::default()
                };
                (request, SourceFacts { path: "/srv".into(), propagation: found })
            },
        )
}

fn request() -> impl Strategy<Value = ContainerRequest> {
    let env = vec(("[A-C=]{0,2}", option::of("[a-z\0]{0,3}")), 0..4);
    let sysctls = proptest::collection::btree_map("(net|kernel|/|\\.|x){0,4}", "[0-9]{0,2}", 0..2);
    let rlimits = vec(("(nofile|core|x)", any::<u64>(), any::<u64>()), 0..2).prop_map(|list| {
        let limit = |(name, soft, hard)| Rlimit { name, soft, hard };
        list.into_iter().map(limit).collect::<Vec<_>>()
    });
    let words = || vec("[a-z\0]{0,3}", 0..3);
    (security(), resources(), words(), words(), env, sysctls, rlimits, any::<(bool, bool, u8)>())
        .prop_map(|(security, resources, command, args, env, sysctls, rlimits, (tty, init, n))| {
            ContainerRequest {
                name: "web".into(),
                command,
                args,
                env,
                tty,
                init,
                security,
                resources,
                rlimits,
                sysctls,
                stop_signal: Signal::new(n),
                ..ContainerRequest::default()
            }
        })
}

fn world() -> impl Strategy<Value = World> {
    let flags = any::<[bool; 6]>();
    (request(), vec(mount(), 0..4), "[a-z0-9:]{0,6}", flags).prop_map(
        |(request, mounts, user, [v1, user_namespace, allowed, systemd, init, shared_pid])| {
            let mut world = World::new();
            if allowed {
                privileged(&mut world);
            }
            if v1 {
                world.v1();
            }
            if user_namespace {
                world.user_namespace();
            }
            if systemd {
                world.handler.cgroup_driver = CgroupDriver::Systemd;
                world.pod.cgroup_parent = None;
            }
            world.request = request;
            world.image.user = user;
            world.container.init = init.then(|| "/init".into());
            world.pod.namespaces.pid = shared_pid.then(|| "/proc/1/ns/pid".into());
            mounts.into_iter().for_each(|(request, source)| world.mount(request, source));
            world
        },
    )
}

/// Most random requests are refused; these are mended so that only a strange path can be.
fn buildable() -> impl Strategy<Value = World> {
    world().prop_map(|mut world| {
        let request = &mut world.request;
        request.command = vec!["app".into()];
        request.args.clear();
        request.env.clear();
        request.sysctls.clear();
        request.rlimits.clear();
        request.init = false;
        request.resources = Resources::default();
        let security = &mut request.security;
        security.namespaces = NamespaceRequest::default();
        security.privileged &= world.pod.privileged;
        security.capabilities.add.retain(|name| name != "what");
        security.capabilities.drop.retain(|name| name != "what");
        security.user = UserRequest::default();
        (security.masked_paths, security.readonly_paths) = (None, None);
        (security.seccomp, security.apparmor) = (None, None);
        world.image.user = String::new();
        for mount in &mut request.mounts {
            mount.container_path = std::path::Path::new("/m")
                .join(mount.container_path.strip_prefix("/").unwrap_or(&mount.container_path));
            mount.options.clear();
            mount.recursive_readonly = false;
            mount.propagation = Propagation::Private;
        }
        world
    })
}

proptest! {
    #[test]
    fn no_request_panics_and_the_same_gives_the_same(world in world()) {
        match (world.build(), world.clone().build()) {
            (Ok(one), Ok(two)) => {
                prop_assert_eq!(oci::to_json(&one.spec).unwrap(), oci::to_json(&two.spec).unwrap());
                prop_assert_eq!(one, two);
            }
            (Err(one), Err(two)) => prop_assert_eq!(one.to_string(), two.to_string()),
            _ => prop_assert!(false, "one of two equal builds failed"),
        }
    }

    #[test]
    fn a_request_survives_the_store(request in request()) {
        let json = serde_json::to_string(&request).unwrap();
        prop_assert_eq!(serde_json::from_str::<ContainerRequest>(&json).unwrap(), request);
    }

    #[test]
    fn what_is_built_keeps_the_invariants(world in buildable()) {
        let built = match world.build() {
            Ok(built) => built,
            Err(error) => {
                prop_assert!(error.to_string().contains("container_path"), "{}", error);
                return Ok(());
            }
        };
        let spec = serde_json::from_slice::<serde_json::Value>(&oci::to_json(&built.spec).unwrap());
        let spec = spec.unwrap();
        for set in ["bounding", "effective", "permitted"] {
            for name in spec["process"]["capabilities"][set].as_array().into_iter().flatten() {
                prop_assert!(world.host.capabilities.contains(name.as_str().unwrap()));
            }
        }
        // A user mount is never hidden by a later one above it.
        let targets: Vec<String> = spec["mounts"].as_array().unwrap().iter()
            .map(|mount| mount["destination"].as_str().unwrap().to_owned())
            .filter(|to| to.starts_with("/m"))
            .collect();
        for (i, earlier) in targets.iter().enumerate() {
            for later in &targets[i + 1..] {
                let above = earlier != later && std::path::Path::new(earlier).starts_with(later);
                prop_assert!(!above, "{} after {}", later, earlier);
            }
        }
        // Nobody but the privileged gets all devices or an unmasked /proc.
        if !world.request.security.privileged {
            prop_assert_eq!(&spec["linux"]["resources"]["devices"][0]["allow"], false);
            prop_assert!(!spec["linux"]["maskedPaths"].as_array().unwrap().is_empty());
        }
    }
}

#[test]
fn a_record_of_an_older_daemon_reads() {
    let request: ContainerRequest =
        serde_json::from_str(r#"{"command": ["a"], "security": {"namespaces": {}}}"#).unwrap();
    assert_eq!(request.security.namespaces, NamespaceRequest::default());
    assert_eq!(request.command, ["a"]);
}
