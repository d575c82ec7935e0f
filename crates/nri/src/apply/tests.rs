use std::{collections::BTreeMap, sync::Arc};

use nri_wire::api::*;
use proptest::prelude::*;

use super::*;
use crate::{
    Claimant, Creation, Journal, Merged,
    arbitrary::{self, SHARED},
};

/// Knows block I/O classes and CDI devices, and that `/shared` and `/slave` are.
struct TestHost;

impl Host for TestHost {
    fn allows_annotation(&self, key: &str, _: &str) -> bool {
        key != "forbidden"
    }

    fn block_io(&self, class: &str) -> Result<oci::LinuxBlockIo, HostError> {
        let mut block_io = oci::LinuxBlockIo::default();
        block_io.set_weight(u16::try_from(class.len()).ok());
        Ok(block_io)
    }

    fn inject_cdi(&self, spec: &mut oci::Spec, devices: &[String]) -> Result<(), HostError> {
        let annotations = spec.annotations_mut().get_or_insert_default();
        annotations.insert("cdi".to_owned(), devices.join(","));
        Ok(())
    }

    fn check_resources(&self, resources: &mut oci::LinuxResources) -> Result<(), HostError> {
        let huge = resources.hugepage_limits_mut().take();
        let kept: Vec<_> = huge.into_iter().flatten().filter(|h| h.page_size() != "16GB").collect();
        resources.set_hugepage_limits((!kept.is_empty()).then_some(kept));
        Ok(())
    }

    fn propagation(&self, source: &Path) -> Result<Propagation, HostError> {
        Ok(match source.to_str() {
            Some("/shared") => Propagation::Shared,
            Some("/slave") => Propagation::Slave,
            _ => Propagation::Private,
        })
    }
}

/// A specification with something in every field an adjustment can reach.
fn spec() -> oci::Spec {
    let json = r#"{
        "ociVersion": "1.2.0",
        "process": {
            "user": {"uid": 1, "gid": 1}, "cwd": "/", "args": ["sleep", "1"],
            "env": ["PATH=/bin", "a=1", "flag"],
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 10, "soft": 10}],
            "oomScoreAdj": 5
        },
        "annotations": {"a": "1", "kept": "2"},
        "mounts": [{"destination": "/proc", "type": "proc"}, {"destination": "/b/c"}, {"destination": "/a"}],
        "linux": {
            "sysctl": {"b": "1"},
            "netDevices": {"c": {"name": "eth1"}},
            "devices": [{"path": "a", "type": "c", "major": 1, "minor": 3}],
            "namespaces": [{"type": "pid"}, {"type": "network", "path": "/n"}],
            "intelRdt": {"closID": "old", "l3CacheSchema": "L3"},
            "resources": {
                "memory": {"limit": 60, "swap": 60},
                "hugepageLimits": [{"pageSize": "a", "limit": 1}],
                "devices": [{"allow": false, "access": "rwm"}],
                "unified": {"a": "1"}
            }
        }
    }"#;
    serde_json::from_str(json).unwrap()
}

#[track_caller]
fn applied(adjust: &ContainerAdjustment) -> oci::Spec {
    let mut spec = spec();
    apply(&mut spec, adjust, &TestHost).unwrap();
    spec
}

fn linux_adjust(linux: LinuxContainerAdjustment) -> ContainerAdjustment {
    ContainerAdjustment { linux: Some(linux), ..Default::default() }
}

fn with_resources(resources: LinuxResources) -> ContainerAdjustment {
    linux_adjust(LinuxContainerAdjustment { resources: Some(resources), ..Default::default() })
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn mount(destination: &str, source: &str, options: &[&str]) -> Mount {
    Mount {
        destination: destination.to_owned(),
        source: source.to_owned(),
        options: options.iter().map(|&o| o.to_owned()).collect(),
        ..Default::default()
    }
}

#[test]
fn nothing_changes_nothing() {
    assert_eq!(applied(&ContainerAdjustment::default()), spec());
    // As merges of the reference look: everything allocated, nothing set.
    let resources = LinuxResources {
        memory: Some(LinuxMemory::default()),
        cpu: Some(LinuxCpu::default()),
        ..Default::default()
    };
    let linux = LinuxContainerAdjustment {
        resources: Some(resources),
        rdt: Some(LinuxRdt::default()),
        ..Default::default()
    };
    let empty = ContainerAdjustment {
        hooks: Some(Hooks::default()),
        linux: Some(linux),
        ..Default::default()
    };
    assert_eq!(applied(&empty), spec());
    let mut bare = oci::Spec::default();
    bare.set_linux(None);
    let before = bare.clone();
    apply(&mut bare, &ContainerAdjustment::default(), &BareHost).unwrap();
    assert_eq!(bare, before);
}

#[test]
fn env_is_changed_in_place_added_and_removed() {
    let env = |pairs: &[(&str, &str)]| {
        let env =
            pairs.iter().map(|(k, v)| KeyValue { key: (*k).to_owned(), value: (*v).to_owned() });
        let spec = applied(&ContainerAdjustment { env: env.collect(), ..Default::default() });
        spec.process().as_ref().unwrap().env().clone().unwrap()
    };
    assert_eq!(env(&[("new", "x=y"), ("PATH", "/sbin")]), ["PATH=/sbin", "a=1", "flag", "new=x=y"]);
    assert_eq!(env(&[("-a", ""), ("-absent", "")]), ["PATH=/bin", "flag"]);
    assert_eq!(env(&[("-a", ""), ("a", "2")]), ["PATH=/bin", "a=2", "flag"]);
}

#[test]
fn maps_lose_removals_and_get_additions() {
    let adjust = ContainerAdjustment {
        annotations: map(&[("-a", ""), ("a", "new"), ("-kept", "")]),
        linux: Some(LinuxContainerAdjustment {
            sysctl: map(&[("-b", "")]),
            net_devices: BTreeMap::from([
                ("-c".to_owned(), LinuxNetDevice::default()),
                ("d".to_owned(), LinuxNetDevice { name: "in".to_owned() }),
            ]),
            ..Default::default()
        }),
        ..Default::default()
    };
    let spec = applied(&adjust);
    assert_eq!(spec.annotations().clone().unwrap(), [("a".to_owned(), "new".to_owned())].into());
    let linux = spec.linux().as_ref().unwrap();
    assert_eq!(linux.sysctl(), &None);
    let devices: Vec<_> = linux.net_devices().as_ref().unwrap().keys().cloned().collect();
    assert_eq!(devices, ["d"]);
}

#[test]
fn an_annotation_the_host_does_not_allow_fails_and_changes_nothing() {
    let mut spec = spec();
    let before = spec.clone();
    let adjust = ContainerAdjustment {
        annotations: map(&[("a", "x"), ("forbidden", "y")]),
        ..Default::default()
    };
    let error = apply(&mut spec, &adjust, &TestHost).unwrap_err();
    assert_eq!(error.to_string(), r#"annotation "forbidden" may not be set by a plugin"#);
    assert_eq!(spec, before);
}

#[test]
fn args_and_rlimits_are_replaced() {
    let args = vec!["run".to_owned()];
    let rlimit = |kind: &str, hard| PosixRlimit { r#type: kind.to_owned(), hard, soft: 1 };
    let rlimits = vec![rlimit("RLIMIT_NOFILE", 7), rlimit("RLIMIT_CORE", 8)];
    let spec = applied(&ContainerAdjustment { args, rlimits, ..Default::default() });
    let process = spec.process().as_ref().unwrap();
    assert_eq!(process.args().as_ref().unwrap(), &["run"]);
    let hard: Vec<_> = process.rlimits().as_ref().unwrap().iter().map(|r| r.hard()).collect();
    assert_eq!(hard, [7, 8]);
}

#[test]
fn a_device_replaces_one_of_its_path_and_may_be_used() {
    let device = |path: &str, kind: &str| LinuxDevice {
        path: path.to_owned(),
        r#type: kind.to_owned(),
        major: 7,
        ..Default::default()
    };
    let devices = vec![
        device("a", "b"),
        device("/dev/x", "c"),
        LinuxDevice { path: "-/dev/gone".to_owned(), ..Default::default() },
    ];
    let spec = applied(&linux_adjust(LinuxContainerAdjustment { devices, ..Default::default() }));
    let linux = spec.linux().as_ref().unwrap();
    let majors: Vec<_> = linux.devices().as_ref().unwrap().iter().map(|d| d.major()).collect();
    assert_eq!(majors, [7, 7]);
    let rules = linux.resources().as_ref().unwrap().devices().as_ref().unwrap();
    let access: Vec<_> = rules.iter().map(|rule| rule.access().clone().unwrap()).collect();
    assert_eq!(access, ["rwm", "rwm", "rw"]);
    let removal = vec![LinuxDevice { path: "-a".to_owned(), ..Default::default() }];
    let spec =
        applied(&linux_adjust(LinuxContainerAdjustment { devices: removal, ..Default::default() }));
    assert_eq!(spec.linux().as_ref().unwrap().devices(), &None);
}

#[test]
fn mounts_are_replaced_removed_and_sorted_by_depth() {
    let mounts = vec![
        mount("/b/c/d", "", &[]),
        mount("/b", "", &[]),
        mount("-/proc", "", &[]),
        mount("/a", "new", &[]),
        mount("/x/../b/./", "", &[]),
    ];
    let spec = applied(&ContainerAdjustment { mounts, ..Default::default() });
    let got: Vec<_> = spec
        .mounts()
        .as_ref()
        .unwrap()
        .iter()
        .map(|m| m.destination().to_str().unwrap().to_owned())
        .collect();
    assert_eq!(got, ["/a", "/b", "/x/../b/./", "/b/c", "/b/c/d"]);
}

#[test]
fn propagation_is_checked_mount_by_mount() {
    let rootfs = |mounts: Vec<Mount>| {
        let mut spec = spec();
        apply(&mut spec, &ContainerAdjustment { mounts, ..Default::default() }, &TestHost)
            .map(|()| spec.linux().as_ref().unwrap().rootfs_propagation().clone())
    };
    let shared = || mount("/s", "/shared", &["rbind", "rshared"]);
    let slave = || mount("/l", "/slave", &["rslave"]);
    assert_eq!(rootfs(vec![shared()]).unwrap().as_deref(), Some("rshared"));
    assert_eq!(rootfs(vec![slave()]).unwrap().as_deref(), Some("rslave"));
    assert_eq!(rootfs(vec![shared(), slave()]).unwrap().as_deref(), Some("rshared"));
    assert_eq!(rootfs(vec![slave(), shared()]).unwrap().as_deref(), Some("rshared"));
    // The option of one mount says nothing about the next.
    assert_eq!(
        rootfs(vec![shared(), mount("/p", "/private", &[])]).unwrap().as_deref(),
        Some("rshared")
    );
    assert_eq!(rootfs(vec![mount("/p", "/private", &["rshared", "rprivate"])]).unwrap(), None);
    let error = rootfs(vec![mount("/p", "/private", &["rshared"])]).unwrap_err();
    assert!(matches!(error, ApplyError::NotPropagated { wanted: "rshared", .. }));
    assert!(rootfs(vec![mount("/p", "/slave", &["rshared"])]).is_err());
}

#[test]
fn namespaces_are_set_and_removed_by_type() {
    let ns =
        |kind: &str, path: &str| LinuxNamespace { r#type: kind.to_owned(), path: path.to_owned() };
    let namespaces =
        vec![ns("network", "/other"), ns("cgroup", ""), ns("-pid", ""), ns("-ipc", "")];
    let spec =
        applied(&linux_adjust(LinuxContainerAdjustment { namespaces, ..Default::default() }));
    let got: Vec<LinuxNamespace> =
        spec.linux().as_ref().unwrap().namespaces().iter().flatten().map(Into::into).collect();
    assert_eq!(got, [ns("network", "/other"), ns("cgroup", "")]);
    let odd = linux_adjust(LinuxContainerAdjustment {
        namespaces: vec![ns("hat", "")],
        ..Default::default()
    });
    assert!(apply(&mut super::tests::spec(), &odd, &TestHost).is_err());
}

#[test]
fn priorities_are_set_and_removed() {
    let adjust = |oom, class, policy| {
        linux_adjust(LinuxContainerAdjustment {
            oom_score_adj: Some(OptionalInt { value: oom }),
            io_priority: Some(LinuxIoPriority { class, priority: 3 }),
            scheduler: Some(LinuxScheduler { policy, ..Default::default() }),
            ..Default::default()
        })
    };
    let spec = applied(&adjust(0, 2, 2));
    let process = spec.process().as_ref().unwrap();
    assert_eq!(process.oom_score_adj(), Some(0));
    assert_eq!(process.io_priority().unwrap().priority(), 3);
    assert_eq!(
        *process.scheduler().as_ref().unwrap().policy(),
        oci::LinuxSchedulerPolicy::SchedFifo
    );
    let mut spec = spec;
    apply(&mut spec, &adjust(-1000, 0, 0), &TestHost).unwrap();
    let process = spec.process().as_ref().unwrap();
    assert_eq!(process.oom_score_adj(), Some(-1000));
    assert!(process.io_priority().is_none() && process.scheduler().is_none());
}

#[test]
fn all_memory_fields_are_applied_and_swap_follows_the_limit() {
    let int = |value| Some(OptionalInt64 { value });
    let memory = |memory: LinuxMemory| {
        let spec =
            applied(&with_resources(LinuxResources { memory: Some(memory), ..Default::default() }));
        (*spec.linux().as_ref().unwrap().resources().as_ref().unwrap().memory()).unwrap()
    };
    let all = LinuxMemory {
        limit: int(1),
        reservation: int(2),
        swap: int(3),
        kernel: int(4),
        kernel_tcp: int(5),
        swappiness: Some(OptionalUInt64 { value: 6 }),
        disable_oom_killer: Some(OptionalBool { value: true }),
        use_hierarchy: Some(OptionalBool { value: false }),
    };
    assert_eq!(LinuxMemory::from(&memory(all)), all);
    let only = |limit| {
        let m = memory(LinuxMemory { limit: int(limit), ..Default::default() });
        (m.limit(), m.swap())
    };
    assert_eq!(only(100), (Some(100), Some(100)));
    assert_eq!(only(30), (Some(30), Some(30)));
    assert_eq!(only(-1), (Some(-1), Some(-1)));
    // Below the limit no kernel takes it.
    let low = memory(LinuxMemory { limit: int(100), swap: int(80), ..Default::default() });
    assert_eq!(low.swap(), Some(100));
    let unlimited = memory(LinuxMemory { limit: int(100), swap: int(-1), ..Default::default() });
    assert_eq!(unlimited.swap(), Some(-1));
}

#[test]
fn other_resources() {
    let resources = LinuxResources {
        cpu: Some(LinuxCpu {
            shares: Some(OptionalUInt64 { value: 2 }),
            quota: Some(OptionalInt64 { value: -1 }),
            cpus: "0-1".to_owned(),
            ..Default::default()
        }),
        hugepage_limits: vec![
            HugepageLimit { page_size: "a".to_owned(), limit: 9 },
            HugepageLimit { page_size: "16GB".to_owned(), limit: 1 },
        ],
        unified: map(&[("memory.high", "5")]),
        pids: Some(LinuxPids { limit: -7 }),
        blockio_class: Some(OptionalString { value: "gold".to_owned() }),
        rdt_class: Some(OptionalString { value: "silver".to_owned() }),
        ..Default::default()
    };
    let spec = applied(&with_resources(resources));
    let linux = spec.linux().as_ref().unwrap();
    let got = linux.resources().as_ref().unwrap();
    let cpu = got.cpu().as_ref().unwrap();
    assert_eq!(
        (cpu.shares(), cpu.quota(), cpu.cpus().as_deref(), cpu.period()),
        (Some(2), Some(-1), Some("0-1"), None)
    );
    let huge: Vec<_> = got.hugepage_limits().as_ref().unwrap().iter().map(|h| h.limit()).collect();
    assert_eq!(huge, [9], "the checker drops what the host has not");
    assert_eq!(got.unified().as_ref().unwrap().len(), 2);
    assert_eq!(got.pids().unwrap().limit(), -1);
    assert_eq!(got.block_io().as_ref().unwrap().weight(), Some(4));
    assert_eq!(linux.intel_rdt().as_ref().unwrap().clos_id().as_deref(), Some("silver"));

    let clear = || Some(OptionalString::default());
    let mut spec = spec.clone();
    let cleared = with_resources(LinuxResources {
        blockio_class: clear(),
        rdt_class: clear(),
        ..Default::default()
    });
    apply(&mut spec, &cleared, &TestHost).unwrap();
    let linux = spec.linux().as_ref().unwrap();
    assert!(
        linux.intel_rdt().is_none() && linux.resources().as_ref().unwrap().block_io().is_none()
    );
}

#[test]
fn rdt_is_set_by_member_or_removed_first() {
    let rdt = |rdt| {
        let spec = applied(&linux_adjust(LinuxContainerAdjustment {
            rdt: Some(rdt),
            ..Default::default()
        }));
        spec.linux().as_ref().unwrap().intel_rdt().clone()
    };
    let clos_id = Some(OptionalString { value: "new".to_owned() });
    let set = rdt(LinuxRdt { clos_id: clos_id.clone(), ..Default::default() }).unwrap();
    assert_eq!(
        (set.clos_id().as_deref(), set.l3_cache_schema().as_deref()),
        (Some("new"), Some("L3"))
    );
    let fresh = rdt(LinuxRdt { clos_id, remove: true, ..Default::default() }).unwrap();
    assert_eq!((fresh.clos_id().as_deref(), fresh.l3_cache_schema()), (Some("new"), &None));
    assert_eq!(rdt(LinuxRdt { remove: true, ..Default::default() }), None);
}

#[test]
fn seccomp_and_memory_policy_and_cgroup_path() {
    let seccomp_policy = Some(LinuxSeccomp {
        default_action: "SCMP_ACT_ERRNO".to_owned(),
        default_errno: Some(OptionalUInt32 { value: 38 }),
        ..Default::default()
    });
    let memory_policy = Some(LinuxMemoryPolicy {
        mode: MpolMode::MpolInterleave.into(),
        nodes: "0-1".to_owned(),
        flags: vec![0],
    });
    let spec = applied(&linux_adjust(LinuxContainerAdjustment {
        seccomp_policy,
        memory_policy,
        cgroups_path: "/x".to_owned(),
        ..Default::default()
    }));
    let linux = spec.linux().as_ref().unwrap();
    assert_eq!(linux.seccomp().as_ref().unwrap().default_errno_ret(), Some(38));
    assert_eq!(linux.memory_policy().as_ref().unwrap().nodes().as_deref(), Some("0-1"));
    assert_eq!(linux.cgroups_path().as_deref(), Some(Path::new("/x")));
}

/// Each with the field it is about, by which its plugin is found.
#[test]
fn values_that_no_container_can_have_are_refused() {
    #[track_caller]
    fn check(adjust: &ContainerAdjustment, want: &str) {
        let error = apply(&mut spec(), adjust, &TestHost).unwrap_err();
        assert_eq!(error.to_string(), want);
        let field = &error.fields()[0];
        assert!(want.starts_with(&field.to_string()), "{field}");
    }
    let env = |key: &str, value: &str| ContainerAdjustment {
        env: vec![KeyValue { key: key.to_owned(), value: value.to_owned() }],
        ..Default::default()
    };
    check(&env("", "x"), r#"Env "": a variable needs a name"#);
    check(&env("-", ""), r#"Env "": a variable needs a name"#);
    check(&env("A=B", "x"), r#"Env "A=B": the name of a variable must not hold '='"#);
    check(&env("A\0", "x"), r#"Env "A\0": the name of a variable must not hold a NUL byte"#);
    check(&env("A", "x\0"), r#"Env "A": the value of a variable must not hold a NUL byte"#);
    let oom = |value| {
        let oom_score_adj = Some(OptionalInt { value });
        linux_adjust(LinuxContainerAdjustment { oom_score_adj, ..Default::default() })
    };
    check(&oom(5000), "OomScoreAdj: 5000 is not in -1000..=1000");
    check(&oom(-1001), "OomScoreAdj: -1001 is not in -1000..=1000");
    check(&oom(i64::MAX), "OomScoreAdj: 9223372036854775807 is not in -1000..=1000");
    let rlimit = PosixRlimit { r#type: "RLIMIT_CORE".to_owned(), hard: 1, soft: 2 };
    let rlimits = ContainerAdjustment { rlimits: vec![rlimit], ..Default::default() };
    check(&rlimits, r#"Rlimits "RLIMIT_CORE": soft 2 is above hard 1"#);
    let mounts = vec![mount("", "/x", &[])];
    let nowhere = ContainerAdjustment { mounts, ..Default::default() };
    check(&nowhere, r#"Mounts "": a mount needs a destination"#);
}

/// Also what is refused for another reason says which field it is about.
#[test]
fn every_refusal_knows_its_field() {
    #[track_caller]
    fn check(adjust: &ContainerAdjustment, want: &str) {
        let error = apply(&mut spec(), adjust, &BareHost).unwrap_err();
        let fields: Vec<_> = error.fields().iter().map(ToString::to_string).collect();
        assert_eq!(fields, [want], "{error}");
    }
    let named = |value: &str| Some(OptionalString { value: value.to_owned() });
    let class = LinuxResources { blockio_class: named("gold"), ..Default::default() };
    check(&with_resources(class), "BlockioClass");
    let cdi_devices = vec![CdiDevice { name: "v/c=d".to_owned() }];
    check(&ContainerAdjustment { cdi_devices, ..Default::default() }, r#"CdiDevices "v/c=d""#);
    let rlimits = vec![PosixRlimit { r#type: "RLIMIT_ODD".to_owned(), ..Default::default() }];
    check(&ContainerAdjustment { rlimits, ..Default::default() }, "Rlimits");
    let mounts = vec![mount("/p", "/private", &["rshared"])];
    check(&ContainerAdjustment { mounts, ..Default::default() }, r#"Mounts "/p""#);
    let namespaces = vec![LinuxNamespace { r#type: "odd".to_owned(), ..Default::default() }];
    let linux = LinuxContainerAdjustment { namespaces, ..Default::default() };
    check(&linux_adjust(linux), "Namespace");
}

#[test]
fn what_the_host_does_not_know_is_refused_by_name() {
    let cdi = ContainerAdjustment {
        cdi_devices: vec![CdiDevice { name: "v/c=d".to_owned() }],
        ..Default::default()
    };
    assert_eq!(applied(&cdi).annotations().as_ref().unwrap()["cdi"], "v/c=d");
    assert_eq!(apply(&mut spec(), &cdi, &BareHost).unwrap_err().to_string(), "inject CDI devices");
    let class = with_resources(LinuxResources {
        blockio_class: Some(OptionalString { value: "gold".to_owned() }),
        ..Default::default()
    });
    assert_eq!(
        apply(&mut spec(), &class, &BareHost).unwrap_err().to_string(),
        r#"resolve block I/O class "gold""#
    );
    let mut bare = spec();
    bare.set_process(None);
    let args = ContainerAdjustment { args: vec!["x".to_owned()], ..Default::default() };
    assert!(matches!(apply(&mut bare, &args, &BareHost), Err(ApplyError::NoProcess(_))));
}

#[test]
fn a_spec_without_a_linux_part_gets_only_what_is_asked_for() {
    let mut bare = spec();
    bare.set_linux(None);
    let adjust =
        linux_adjust(LinuxContainerAdjustment { sysctl: map(&[("k", "v")]), ..Default::default() });
    apply(&mut bare, &adjust, &BareHost).unwrap();
    let json = serde_json::to_value(bare.linux().as_ref().unwrap()).unwrap();
    assert_eq!(json, serde_json::json!({"sysctl": {"k": "v"}}));
}

/// Lists whose order says nothing, put in order.
fn sorted(mut spec: oci::Spec) -> oci::Spec {
    if let Some(process) = spec.process_mut() {
        let mut env = process.env().clone().unwrap_or_default();
        env.sort();
        process.set_env(Some(env));
        let mut rlimits = process.rlimits().clone().unwrap_or_default();
        rlimits.sort_by_key(|rlimit| rlimit.typ().to_string());
        process.set_rlimits(Some(rlimits));
    }
    let linux = linux(&mut spec);
    let mut devices = linux.devices().clone().unwrap_or_default();
    devices.sort_by(|a, b| a.path().cmp(b.path()));
    linux.set_devices(Some(devices));
    let resources = linux.resources_mut().get_or_insert_default();
    let mut huge = resources.hugepage_limits().clone().unwrap_or_default();
    huge.sort_by(|a, b| a.page_size().cmp(b.page_size()));
    resources.set_hugepage_limits(Some(huge));
    // A device that was dropped again leaves its rule; rights are not owned.
    resources.set_devices(None);
    spec
}

proptest! {
    #[test]
    fn applying_twice_is_applying_once(adjust in arbitrary::adjustment(SHARED)) {
        let once = applied(&adjust);
        let mut twice = once.clone();
        apply(&mut twice, &adjust, &TestHost).unwrap();
        prop_assert_eq!(twice, once);
    }

    #[test]
    fn merge_then_apply_equals_apply_in_order(adjusts in prop::collection::vec(arbitrary::adjustment(SHARED), 1..4)) {
        // A class and the members are two ways to say one thing, and the members win: that
        // order is of the whole, so the law holds for each way by itself.
        let linux = || adjusts.iter().filter_map(|adjust| adjust.linux.as_ref());
        let by_class = linux().any(|l| l.resources.as_ref().is_some_and(|r| r.rdt_class.is_some()));
        let by_member = linux().any(|l| l.rdt.is_some());
        prop_assume!(!(by_class && by_member));
        let mut creation = Creation::of(Container { id: "c".to_owned(), ..Default::default() });
        let mut in_order = spec();
        for (i, adjust) in adjusts.iter().enumerate() {
            let response = CreateContainerResponse { adjust: Some(adjust.clone()), ..Default::default() };
            if creation.clone().merge(Claimant::new(&i.to_string()), response.clone()).is_err() {
                break;
            }
            creation.merge(Claimant::new(&i.to_string()), response).unwrap();
            apply(&mut in_order, adjust, &TestHost).unwrap();
        }
        let merged = applied(&creation.merged().adjust);
        prop_assert_eq!(sorted(merged), sorted(in_order));
    }

    /// What plugins set is where a container's story looks for it.
    #[test]
    fn every_field_that_was_set_is_found(adjust in arbitrary::adjustment(SHARED)) {
        let mut creation = Creation::of(Container { id: "c".to_owned(), ..Default::default() });
        let response = CreateContainerResponse { adjust: Some(adjust), ..Default::default() };
        prop_assume!(creation.merge(Claimant::new("10-a"), response).is_ok());
        let Merged { adjust, owners, .. } = creation.finish();
        // Classes and policies that mean none are set, to nothing.
        let linux = adjust.linux.clone().unwrap_or_default();
        prop_assume!(linux.io_priority.is_none_or(|io| io.class != 0));
        prop_assume!(linux.scheduler.is_none_or(|scheduler| scheduler.policy != 0));
        let adjusted = applied(&adjust);
        let set: Vec<_> = owners.iter().map(|(_, field, _)| field.to_string()).collect();
        let original = Some(Arc::new(spec()));
        let journal = Journal { original, merged: adjust, owners, ..Journal::default() };
        let fields = journal.story("c", &adjusted).fields;
        prop_assert!(set.iter().all(|field| fields.iter().any(|f| f.field == *field)));
        for field in fields {
            prop_assert_eq!(field.plugin.as_str(), "10-a");
            let there = !field.after.is_null();
            prop_assert_eq!(there, set.contains(&field.field), "{:?}", field);
        }
    }
}
