//! Every row of the merge table, alone, against another plugin, and taken over.

mod laws;

use std::collections::BTreeMap;

use nri_wire::api::*;

use super::*;

const ID: &str = "c0";

fn container() -> Container {
    Container {
        id: ID.to_owned(),
        args: vec!["echo".to_owned()],
        env: vec!["HOME=/".to_owned(), "SHELL=sh".to_owned()],
        annotations: map(&[("kept", "1"), ("old", "2")]),
        mounts: vec![mount("/old", "src")],
        ..Container::default()
    }
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn mount(destination: &str, source: &str) -> Mount {
    let (destination, source) = (destination.to_owned(), source.to_owned());
    Mount { destination, source, ..Mount::default() }
}

fn env(key: &str, value: &str) -> KeyValue {
    KeyValue { key: key.to_owned(), value: value.to_owned() }
}

fn device(path: &str) -> LinuxDevice {
    LinuxDevice { path: path.to_owned(), r#type: "c".to_owned(), major: 1, ..Default::default() }
}

fn linux(linux: LinuxContainerAdjustment) -> ContainerAdjustment {
    ContainerAdjustment { linux: Some(linux), ..Default::default() }
}

fn with_resources(resources: LinuxResources) -> ContainerAdjustment {
    linux(LinuxContainerAdjustment { resources: Some(resources), ..Default::default() })
}

fn response(adjust: ContainerAdjustment) -> CreateContainerResponse {
    CreateContainerResponse { adjust: Some(adjust), ..Default::default() }
}

fn merge_all(adjusts: &[ContainerAdjustment]) -> Result<Creation, MergeError> {
    let mut creation = Creation::of(container());
    for (i, adjust) in adjusts.iter().enumerate() {
        creation.merge(Claimant::new(&plugin(i)), response(adjust.clone()))?;
    }
    Ok(creation)
}

fn plugin(i: usize) -> String {
    format!("{i}0-p")
}

/// Every field, one adjustment each. All are set in the result as they were asked for, and
/// a second plugin that asks for the same is refused, but for hooks.
fn every_field() -> Vec<(Field, ContainerAdjustment)> {
    use Field as F;
    let int = |value| Some(OptionalInt64 { value });
    let uint = |value| Some(OptionalUInt64 { value });
    let memory = |memory: LinuxMemory| {
        with_resources(LinuxResources { memory: Some(memory), ..Default::default() })
    };
    let cpu =
        |cpu: LinuxCpu| with_resources(LinuxResources { cpu: Some(cpu), ..Default::default() });
    let class = || Some(OptionalString { value: "gold".to_owned() });
    let rdt =
        |rdt: LinuxRdt| linux(LinuxContainerAdjustment { rdt: Some(rdt), ..Default::default() });
    let no = ContainerAdjustment::default;
    let (m, c, r, l) = (
        LinuxMemory::default,
        LinuxCpu::default,
        LinuxResources::default,
        LinuxContainerAdjustment::default,
    );
    vec![
        (F::Annotations, ContainerAdjustment { annotations: map(&[("k", "v")]), ..no() }),
        (F::Mounts, ContainerAdjustment { mounts: vec![mount("/m", "s")], ..no() }),
        (F::Env, ContainerAdjustment { env: vec![env("E", "v")], ..no() }),
        (F::Args, ContainerAdjustment { args: vec!["run".to_owned()], ..no() }),
        (
            F::Rlimits,
            ContainerAdjustment {
                rlimits: vec![PosixRlimit { r#type: "RLIMIT_CORE".to_owned(), hard: 1, soft: 1 }],
                ..no()
            },
        ),
        (
            F::CdiDevices,
            ContainerAdjustment {
                cdi_devices: vec![CdiDevice { name: "v/c=d".to_owned() }],
                ..no()
            },
        ),
        (F::Devices, linux(LinuxContainerAdjustment { devices: vec![device("/dev/d")], ..l() })),
        (F::CgroupsPath, linux(LinuxContainerAdjustment { cgroups_path: "/x".to_owned(), ..l() })),
        (
            F::OomScoreAdj,
            linux(LinuxContainerAdjustment {
                oom_score_adj: Some(OptionalInt { value: 0 }),
                ..l()
            }),
        ),
        (
            F::IoPriority,
            linux(LinuxContainerAdjustment {
                io_priority: Some(LinuxIoPriority { class: 2, priority: 5 }),
                ..l()
            }),
        ),
        (
            F::SeccompPolicy,
            linux(LinuxContainerAdjustment {
                seccomp_policy: Some(LinuxSeccomp::default()),
                ..l()
            }),
        ),
        (
            F::Namespace,
            linux(LinuxContainerAdjustment {
                namespaces: vec![LinuxNamespace {
                    r#type: "cgroup".to_owned(),
                    path: String::new(),
                }],
                ..l()
            }),
        ),
        (F::Sysctl, linux(LinuxContainerAdjustment { sysctl: map(&[("net.x", "1")]), ..l() })),
        (
            F::LinuxNetDevices,
            linux(LinuxContainerAdjustment {
                net_devices: BTreeMap::from([(
                    "eth1".to_owned(),
                    LinuxNetDevice { name: "in".to_owned() },
                )]),
                ..l()
            }),
        ),
        (
            F::LinuxSched,
            linux(LinuxContainerAdjustment {
                scheduler: Some(LinuxScheduler { policy: 2, ..Default::default() }),
                ..l()
            }),
        ),
        (
            F::MemoryPolicy,
            linux(LinuxContainerAdjustment {
                memory_policy: Some(LinuxMemoryPolicy { mode: 3, ..Default::default() }),
                ..l()
            }),
        ),
        (F::RdtClosId, rdt(LinuxRdt { clos_id: class(), ..Default::default() })),
        (
            F::RdtSchemata,
            rdt(LinuxRdt {
                schemata: Some(OptionalRepeatedString { value: vec!["L3".to_owned()] }),
                ..Default::default()
            }),
        ),
        (
            F::RdtEnableMonitoring,
            rdt(LinuxRdt {
                enable_monitoring: Some(OptionalBool { value: false }),
                ..Default::default()
            }),
        ),
        (F::MemLimit, memory(LinuxMemory { limit: int(0), ..m() })),
        (F::MemReservation, memory(LinuxMemory { reservation: int(1), ..m() })),
        (F::MemSwapLimit, memory(LinuxMemory { swap: int(1), ..m() })),
        (F::MemKernelLimit, memory(LinuxMemory { kernel: int(1), ..m() })),
        (F::MemTcpLimit, memory(LinuxMemory { kernel_tcp: int(1), ..m() })),
        (F::MemSwappiness, memory(LinuxMemory { swappiness: uint(1), ..m() })),
        (
            F::MemDisableOomKiller,
            memory(LinuxMemory { disable_oom_killer: Some(OptionalBool { value: true }), ..m() }),
        ),
        (
            F::MemUseHierarchy,
            memory(LinuxMemory { use_hierarchy: Some(OptionalBool { value: true }), ..m() }),
        ),
        (F::CpuShares, cpu(LinuxCpu { shares: uint(1), ..c() })),
        (F::CpuQuota, cpu(LinuxCpu { quota: int(1), ..c() })),
        (F::CpuPeriod, cpu(LinuxCpu { period: uint(1), ..c() })),
        (F::CpuRealtimeRuntime, cpu(LinuxCpu { realtime_runtime: int(1), ..c() })),
        (F::CpuRealtimePeriod, cpu(LinuxCpu { realtime_period: uint(1), ..c() })),
        (F::CpuSetCpUs, cpu(LinuxCpu { cpus: "0".to_owned(), ..c() })),
        (F::CpuSetMems, cpu(LinuxCpu { mems: "0".to_owned(), ..c() })),
        (
            F::PidsLimit,
            with_resources(LinuxResources { pids: Some(LinuxPids { limit: -1 }), ..r() }),
        ),
        (
            F::HugepageLimits,
            with_resources(LinuxResources {
                hugepage_limits: vec![HugepageLimit { page_size: "2MB".to_owned(), limit: 1 }],
                ..r()
            }),
        ),
        (F::BlockioClass, with_resources(LinuxResources { blockio_class: class(), ..r() })),
        (F::RdtClass, with_resources(LinuxResources { rdt_class: class(), ..r() })),
        (
            F::CgroupsUnified,
            with_resources(LinuxResources { unified: map(&[("memory.high", "1")]), ..r() }),
        ),
    ]
}

#[test]
fn every_field_is_carried_owned_and_conflicts() {
    let hooks = 1;
    assert_eq!(every_field().len() + hooks, FieldSet::all().0.len(), "a field has no test");
    for (field, adjust) in every_field() {
        let one = merge_all(std::slice::from_ref(&adjust)).unwrap();
        assert_eq!(one.merged().adjust, adjust, "{field:?}");
        let owners: Vec<_> = one.merged().owners.iter().collect();
        let [(container, key, owner)] = &owners[..] else { panic!("{field:?}: {owners:?}") };
        assert_eq!((*container, key.field, *owner), (ID, field, "00-p"));
        match merge_all(&[adjust.clone(), adjust]).unwrap_err() {
            MergeError::Conflict(conflict) => {
                assert_eq!(conflict.field.field, field);
                assert_eq!((conflict.claimant.as_str(), conflict.owner.as_str()), ("10-p", "00-p"));
            }
            other => panic!("{field:?}: {other}"),
        }
    }
}

/// What is there and says nothing is the same as what is not there: nobody owns it, two plugins
/// may both say it, and it is not in the result.
#[test]
fn parts_that_say_nothing_ask_for_nothing() {
    let resources = |resources: LinuxResources| with_resources(resources);
    let empties = [
        ("all", ContainerAdjustment::default()),
        ("hooks", ContainerAdjustment { hooks: Some(Hooks::default()), ..Default::default() }),
        ("linux", linux(LinuxContainerAdjustment::default())),
        (
            "rdt",
            linux(LinuxContainerAdjustment {
                rdt: Some(LinuxRdt::default()),
                ..Default::default()
            }),
        ),
        ("resources", resources(LinuxResources::default())),
        (
            "memory",
            resources(LinuxResources {
                memory: Some(LinuxMemory::default()),
                ..Default::default()
            }),
        ),
        ("cpu", resources(LinuxResources { cpu: Some(LinuxCpu::default()), ..Default::default() })),
    ];
    for (name, empty) in empties {
        let both = merge_all(&[empty.clone(), empty]).expect(name);
        assert_eq!(both.merged(), &Merged::default(), "{name}");
        assert_eq!(both.container(), &container(), "{name}");
    }
}

#[test]
fn what_a_plugin_may_not_set_is_refused_by_name() {
    for (field, adjust) in every_field() {
        let mut others = FieldSet::all();
        others.0.remove(&field);
        let by = Claimant { plugin: "10-a", fields: Some(&others) };
        let refused = Creation::of(container()).merge(by, response(adjust.clone())).unwrap_err();
        assert_eq!(refused, MergeError::Forbidden { plugin: "10-a".to_owned(), field });
        let only: FieldSet = field.as_str_name().parse().unwrap();
        let by = Claimant { plugin: "10-a", fields: Some(&only) };
        Creation::of(container()).merge(by, response(adjust)).unwrap();
    }
}

#[test]
fn hooks_add_up_in_order() {
    let hook = |path: &str| {
        let hook = Hook { path: path.to_owned(), ..Default::default() };
        let hooks = Some(Hooks { prestart: vec![hook], ..Default::default() });
        ContainerAdjustment { hooks, ..Default::default() }
    };
    let creation = merge_all(&[hook("/a"), ContainerAdjustment::default(), hook("/b")]).unwrap();
    let paths = |hooks: &Option<Hooks>| -> Vec<String> {
        hooks.iter().flat_map(|h| &h.prestart).map(|hook| hook.path.clone()).collect()
    };
    assert_eq!(paths(&creation.merged().adjust.hooks), ["/a", "/b"]);
    assert_eq!(paths(&creation.container().hooks), ["/a", "/b"]);
    assert_eq!(creation.merged().owners.owner(ID, Field::OciHooks, None), Some("00-p,20-p"));
}

#[test]
fn maps_are_taken_over_by_removing_and_setting() {
    let set = |pairs| ContainerAdjustment { annotations: map(pairs), ..Default::default() };
    let creation = merge_all(&[set(&[("k", "0")]), set(&[("-k", ""), ("k", "1")])]).unwrap();
    assert_eq!(creation.merged().adjust.annotations, map(&[("-k", ""), ("k", "1")]));
    assert_eq!(creation.container().annotations["k"], "1");
    assert_eq!(creation.merged().owners.owner(ID, Field::Annotations, Some("k")), Some("10-p"));
}

#[test]
fn what_is_removed_is_gone_for_later_plugins_and_stays_removed() {
    let set = |pairs| ContainerAdjustment { annotations: map(pairs), ..Default::default() };
    let creation = merge_all(&[set(&[("k", "0")]), set(&[("-k", ""), ("-old", "")])]).unwrap();
    assert_eq!(creation.merged().adjust.annotations, map(&[("-k", ""), ("-old", "")]));
    assert_eq!(creation.container().annotations, map(&[("kept", "1")]));
    assert_eq!(creation.merged().owners.owner(ID, Field::Annotations, Some("k")), None);
    // Who sets it afterwards must also take it over.
    let late = merge_all(&[set(&[("k", "0")]), set(&[("-k", "")]), set(&[("k", "2")])]);
    assert!(matches!(late, Err(MergeError::Conflict(c)) if c.owner == "10-p"));
    let late = merge_all(&[set(&[("-k", "")]), set(&[("-k", ""), ("k", "2")])]).unwrap();
    assert_eq!(late.container().annotations["k"], "2");
}

#[test]
fn lists_keep_a_removal_unless_it_is_set_anew() {
    let mounts = |mounts| ContainerAdjustment { mounts, ..Default::default() };
    let destinations = |mounts: &[Mount]| -> Vec<String> {
        mounts.iter().map(|mount| mount.destination.clone()).collect()
    };
    let removed = merge_all(&[mounts(vec![mount("-/old", "")])]).unwrap();
    assert_eq!(destinations(&removed.merged().adjust.mounts), ["-/old"]);
    assert!(removed.container().mounts.is_empty());

    let replaced = merge_all(&[
        mounts(vec![mount("/new", "0")]),
        mounts(vec![mount("-/new", ""), mount("/new", "1")]),
    ])
    .unwrap();
    assert_eq!(replaced.merged().adjust.mounts, [mount("/new", "1")]);
    assert_eq!(destinations(&replaced.container().mounts), ["/old", "/new"]);

    let dropped =
        merge_all(&[mounts(vec![mount("/new", "0")]), mounts(vec![mount("-/new", "")])]).unwrap();
    assert_eq!(destinations(&dropped.merged().adjust.mounts), ["-/new"]);
}

#[test]
fn env_and_devices_of_the_container_can_be_removed() {
    let adjust = ContainerAdjustment {
        env: vec![env("-HOME", ""), env("SHELL", "zsh")],
        linux: Some(LinuxContainerAdjustment {
            devices: vec![device("-/dev/null")],
            ..Default::default()
        }),
        ..Default::default()
    };
    let creation = merge_all(&[adjust]).unwrap();
    assert_eq!(creation.container().env, ["SHELL=zsh"]);
    assert_eq!(creation.merged().adjust.env, [env("-HOME", ""), env("SHELL", "zsh")]);
    assert_eq!(creation.merged().adjust.linux.as_ref().unwrap().devices[0].path, "-/dev/null");
}

#[test]
fn args_are_taken_over_by_an_empty_first_one() {
    let args = |args: &[&str]| ContainerAdjustment {
        args: args.iter().map(|&a| a.to_owned()).collect(),
        ..Default::default()
    };
    let creation = merge_all(&[args(&["a"]), args(&["", "b", "c"])]).unwrap();
    assert_eq!(creation.merged().adjust.args, ["b", "c"]);
    assert_eq!(creation.container().args, ["b", "c"]);
    let back = merge_all(&[args(&["a"]), args(&[""])]).unwrap();
    assert!(back.merged().adjust.args.is_empty());
    assert_eq!(back.container().args, ["echo"]);
}

#[test]
fn namespaces_are_never_taken_over() {
    let ns = |kinds: &[&str]| {
        let namespaces = kinds
            .iter()
            .map(|&k| LinuxNamespace { r#type: k.to_owned(), path: String::new() })
            .collect();
        linux(LinuxContainerAdjustment { namespaces, ..Default::default() })
    };
    assert!(merge_all(&[ns(&["cgroup"]), ns(&["-cgroup"])]).is_err());
    assert!(merge_all(&[ns(&["-cgroup", "cgroup"])]).is_err());
    let creation = merge_all(&[ns(&["cgroup", "-ipc"])]).unwrap();
    let kinds: Vec<_> = creation
        .container()
        .linux
        .as_ref()
        .unwrap()
        .namespaces
        .iter()
        .map(|n| n.r#type.as_str())
        .collect();
    assert_eq!(kinds, ["cgroup"]);
    assert_eq!(creation.merged().owners.entries(ID, Field::Namespace).count(), 2);
}

#[test]
fn rdt_is_taken_over_whole() {
    let rdt = |rdt| linux(LinuxContainerAdjustment { rdt: Some(rdt), ..Default::default() });
    let clos = |value: &str| Some(OptionalString { value: value.to_owned() });
    let first = LinuxRdt {
        clos_id: clos("a"),
        enable_monitoring: Some(OptionalBool { value: true }),
        ..Default::default()
    };
    let second = LinuxRdt { clos_id: clos("b"), remove: true, ..Default::default() };
    let creation = merge_all(&[rdt(first.clone()), rdt(second.clone())]).unwrap();
    assert_eq!(creation.merged().adjust, rdt(second.clone()));
    let owners: Vec<_> =
        creation.merged().owners.iter().map(|(_, key, owner)| (key.field, owner)).collect();
    assert_eq!(owners, [(Field::RdtClosId, "10-p")]);
    let pure = LinuxRdt { remove: true, ..Default::default() };
    let late = merge_all(&[rdt(first.clone()), rdt(pure), rdt(first)]);
    assert!(matches!(late, Err(MergeError::Conflict(c)) if c.owner == "10-p"));
}

#[test]
fn setting_a_thing_twice_conflicts_with_oneself() {
    let twice =
        ContainerAdjustment { env: vec![env("E", "1"), env("E", "2")], ..Default::default() };
    assert!(matches!(merge_all(&[twice]), Err(MergeError::Conflict(c)) if c.owner == c.claimant));
}

#[test]
fn device_rules_add_up_without_owner() {
    let rule = LinuxDeviceCgroup { allow: true, access: "rw".to_owned(), ..Default::default() };
    let adjust =
        with_resources(LinuxResources { devices: vec![rule.clone()], ..Default::default() });
    let creation = merge_all(&[adjust.clone(), adjust]).unwrap();
    let got = creation.merged().adjust.linux.as_ref().unwrap().resources.as_ref().unwrap();
    assert_eq!(got.devices, [rule.clone(), rule]);
    assert_eq!(creation.merged().owners.iter().count(), 0);
}

// === updates ===

fn update(id: &str, resources: LinuxResources) -> ContainerUpdate {
    let linux = Some(LinuxContainerUpdate { resources: Some(resources) });
    ContainerUpdate { container_id: id.to_owned(), linux, ignore_failure: false }
}

fn shares(value: u64) -> LinuxResources {
    let shares = Some(OptionalUInt64 { value });
    LinuxResources { cpu: Some(LinuxCpu { shares, ..Default::default() }), ..Default::default() }
}

fn pids(limit: i64) -> LinuxResources {
    LinuxResources { pids: Some(LinuxPids { limit }), ..Default::default() }
}

#[test]
fn a_creation_may_update_and_evict_others_but_not_itself() {
    let by = Claimant::new("10-a");
    let answer = |update, evict| CreateContainerResponse { adjust: None, update, evict };
    let evict =
        |id: &str| ContainerEviction { container_id: id.to_owned(), reason: "r".to_owned() };
    let mut creation = Creation::of(container());
    creation
        .merge(by, answer(vec![update("c1", shares(1))], vec![evict("c2"), evict("c2")]))
        .unwrap();
    let merged = creation.merged();
    assert_eq!(merged.updates.updates().count(), 1);
    assert_eq!(merged.updates.evictions(), [evict("c2")]);
    assert_eq!(merged.owners.owner("c1", Field::CpuShares, None), Some("10-a"));
    let own = Creation::of(container())
        .merge(by, answer(vec![update(ID, shares(1))], vec![]))
        .unwrap_err();
    assert_eq!(own.to_string(), r#"plugin "10-a" asked update of "c0" during creation"#);
    let own = Creation::of(container()).merge(by, answer(vec![], vec![evict(ID)]));
    assert!(matches!(own, Err(MergeError::EvictionOfCreated { .. })));
}

#[test]
fn updates_of_one_container_by_two_plugins_are_joined_or_conflict() {
    let mut updating = Updating::of_others(ID);
    updating.merge(Claimant::new("10-a"), vec![update("c1", shares(1))], vec![]).unwrap();
    updating.merge(Claimant::new("20-b"), vec![update("c1", pids(5))], vec![]).unwrap();
    let clash =
        updating.clone().merge(Claimant::new("20-b"), vec![update("c1", shares(2))], vec![]);
    assert!(matches!(clash, Err(MergeError::Conflict(_))));
    let response = updating.into_response();
    let joined = LinuxResources { pids: Some(LinuxPids { limit: 5 }), ..shares(1) };
    assert_eq!(response.update, [update("c1", joined)]);
}

#[test]
fn an_update_overlays_the_request_and_comes_last() {
    let asked = LinuxResources {
        hugepage_limits: vec![HugepageLimit { page_size: "2MB".to_owned(), limit: 1 }],
        ..shares(1)
    };
    let mut updating = Updating::of(ID, asked);
    let mut answer = pids(7);
    answer.hugepage_limits.push(HugepageLimit { page_size: "2MB".to_owned(), limit: 9 });
    updating
        .merge(Claimant::new("10-a"), vec![update(ID, answer), update("c1", shares(3))], vec![])
        .unwrap();
    // The next plugin sees it.
    assert_eq!(updating.resources().pids, Some(LinuxPids { limit: 7 }));
    assert_eq!(updating.resources().cpu, shares(1).cpu);
    assert_eq!(updating.resources().hugepage_limits[0].limit, 9);
    let late = updating.clone().merge(Claimant::new("20-b"), vec![update(ID, pids(8))], vec![]);
    assert!(matches!(late, Err(MergeError::Conflict(c)) if c.field.field == Field::PidsLimit));
    let ids: Vec<_> = updating.into_response().update.into_iter().map(|u| u.container_id).collect();
    assert_eq!(ids, ["c1", ID]);
}

#[test]
fn an_untouched_update_is_not_in_the_response_and_keeps_what_was_asked() {
    let mut updating = Updating::of(ID, shares(1));
    updating.merge(Claimant::new("10-a"), vec![], vec![]).unwrap();
    assert!(updating.clone().into_response().update.is_empty());
    assert_eq!(updating.finish().0.cpu, shares(1).cpu);
}

#[test]
fn a_conflict_that_may_fail_leaves_no_trace() {
    let mut updating = Updating::of_others(ID);
    updating.merge(Claimant::new("10-a"), vec![update("c1", shares(1))], vec![]).unwrap();
    let mut both = LinuxResources { cpu: shares(2).cpu, ..pids(5) };
    both.memory =
        Some(LinuxMemory { limit: Some(OptionalInt64 { value: 3 }), ..Default::default() });
    let optional = ContainerUpdate { ignore_failure: true, ..update("c1", both) };
    updating.merge(Claimant::new("20-b"), vec![optional], vec![]).unwrap();
    // Not even the memory limit, which was claimed before the conflict was met.
    updating.merge(Claimant::new("30-c"), vec![update("c1", pids(6))], vec![]).unwrap();
    let (_, others, owners) = updating.finish();
    let joined = LinuxResources { pids: Some(LinuxPids { limit: 6 }), ..shares(1) };
    assert_eq!(others.updates().collect::<Vec<_>>(), [&update("c1", joined)]);
    assert_eq!(owners.owner("c1", Field::MemLimit, None), None);
}

#[test]
fn may_fail_only_if_all_say_so_and_empties_are_skipped() {
    let optional = |u: ContainerUpdate| ContainerUpdate { ignore_failure: true, ..u };
    let mut updating = Updating::of_others(ID);
    let first = vec![
        optional(update("c1", shares(1))),
        optional(update("c2", shares(1))),
        update("c3", LinuxResources::default()),
    ];
    updating.merge(Claimant::new("10-a"), first, vec![]).unwrap();
    updating
        .merge(
            Claimant::new("20-b"),
            vec![update("c1", pids(1)), optional(update("c2", pids(1)))],
            vec![],
        )
        .unwrap();
    let flags: Vec<_> = updating
        .into_response()
        .update
        .into_iter()
        .map(|u| (u.container_id, u.ignore_failure))
        .collect();
    assert_eq!(flags, [("c1".to_owned(), false), ("c2".to_owned(), true)]);
}

#[test]
fn field_sets_have_names_and_groups() {
    let memory: FieldSet = "memory".parse().unwrap();
    assert_eq!(memory.0.len(), 8);
    assert_eq!("cpu".parse::<FieldSet>().unwrap().0.len(), 7);
    assert_eq!("env, ENV".parse::<FieldSet>().unwrap().to_string(), "Env");
    assert_eq!("hats".parse::<FieldSet>(), Err(UnknownField("hats".to_owned())));
    assert_eq!(FieldSet::all().to_string().parse::<FieldSet>(), Ok(FieldSet::all()));
}
