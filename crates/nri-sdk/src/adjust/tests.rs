use std::collections::BTreeSet;

use nri_wire::api::{ContainerAdjustment, Hook, LinuxDeviceCgroup, LinuxSeccomp, LinuxSyscall};
use proptest::{
    collection::{btree_map, btree_set, vec},
    option,
    prelude::*,
};

use super::*;
use crate::{Class, Cpu, Memory, PidsLimit};

const NAMESPACES: [NamespaceKind; 8] = [
    NamespaceKind::Cgroup,
    NamespaceKind::Ipc,
    NamespaceKind::Mount,
    NamespaceKind::Network,
    NamespaceKind::Pid,
    NamespaceKind::Time,
    NamespaceKind::User,
    NamespaceKind::Uts,
];

fn word() -> impl Strategy<Value = String> + Clone {
    "[a-z]{1,3}"
}

fn keyed<V: Clone + std::fmt::Debug>(
    value: impl Strategy<Value = V> + Clone,
) -> impl Strategy<Value = Keyed<V>> {
    let change = prop_oneof![
        value.clone().prop_map(Change::Set),
        Just(Change::Remove),
        value.prop_map(Change::TakeOver),
    ];
    btree_map(word(), change, 0..4).prop_map(|changes| {
        let mut keyed = Keyed::default();
        for (key, change) in changes {
            match change {
                Change::Set(value) => keyed.set(key, value),
                Change::Remove => keyed.remove(key),
                Change::TakeOver(value) => keyed.take_over(key, value),
            };
        }
        keyed
    })
}

fn mount() -> impl Strategy<Value = Mount> + Clone {
    ("[a-z]{0,3}", "[a-z]{0,3}", vec("[a-z]{1,3}", 0..3))
        .prop_map(|(kind, source, options)| Mount { kind, source, options })
}

fn device() -> impl Strategy<Value = Device> + Clone {
    const KINDS: [DeviceKind; 4] =
        [DeviceKind::Block, DeviceKind::Character, DeviceKind::Unbuffered, DeviceKind::Fifo];
    let ids = (option::of(any::<u32>()), option::of(any::<u32>()), option::of(any::<u32>()));
    (proptest::sample::select(&KINDS[..]), any::<(i64, i64)>(), ids).prop_map(
        |(kind, (major, minor), (mode, uid, gid))| Device { kind, major, minor, mode, uid, gid },
    )
}

fn class() -> impl Strategy<Value = Option<Class>> {
    option::of(prop_oneof![word().prop_map(Class::Named), Just(Class::None)])
}

fn memory() -> impl Strategy<Value = Memory> {
    any::<(Option<i64>, Option<i64>, Option<i64>, Option<i64>, Option<i64>)>().prop_flat_map(
        |(limit, reservation, swap, kernel, kernel_tcp)| {
            any::<(Option<u64>, Option<bool>, Option<bool>)>().prop_map(
                move |(swappiness, disable_oom_killer, use_hierarchy)| Memory {
                    limit,
                    reservation,
                    swap,
                    kernel,
                    kernel_tcp,
                    swappiness,
                    disable_oom_killer,
                    use_hierarchy,
                },
            )
        },
    )
}

fn cpu() -> impl Strategy<Value = Cpu> {
    let numbers = any::<(Option<u64>, Option<i64>, Option<u64>, Option<i64>, Option<u64>)>();
    (numbers, "[0-9]{0,2}", "[0-9]{0,2}").prop_map(|(numbers, cpus, mems)| {
        let (shares, quota, period, realtime_runtime, realtime_period) = numbers;
        Cpu { shares, quota, period, realtime_runtime, realtime_period, cpus, mems }
    })
}

pub(crate) fn resources() -> impl Strategy<Value = Resources> {
    let pids = prop_oneof![(0..u64::MAX / 2).prop_map(PidsLimit::At), Just(PidsLimit::Unlimited)];
    let rule = word().prop_map(|access| LinuxDeviceCgroup { access, ..Default::default() });
    let maps = (btree_map(word(), any::<u64>(), 0..3), btree_map(word(), word(), 0..3));
    (memory(), cpu(), maps, class(), class(), vec(rule, 0..3), option::of(pids)).prop_map(
        |(memory, cpu, (hugepages, unified), blockio_class, rdt_class, devices, pids)| Resources {
            memory,
            cpu,
            hugepages,
            blockio_class,
            rdt_class,
            unified,
            devices,
            pids,
        },
    )
}

fn setting<T: Clone + std::fmt::Debug>(value: T) -> impl Strategy<Value = Option<Setting<T>>> {
    option::of(prop_oneof![Just(Setting::Set(value)), Just(Setting::Remove)])
}

fn rdt() -> impl Strategy<Value = Rdt> {
    (any::<bool>(), option::of(word()), option::of(vec(word(), 0..3)), any::<Option<bool>>())
        .prop_map(|(take_over, clos_id, schemata, enable_monitoring)| Rdt {
            take_over,
            clos_id,
            schemata,
            enable_monitoring,
        })
}

/// The part below `linux` on the wire.
fn linux() -> impl Strategy<Value = Adjustment> {
    let mut fifo = LinuxScheduler { priority: 7, ..Default::default() };
    fifo.set_policy(nri_wire::api::LinuxSchedulerPolicy::SchedFifo);
    let mut idle = LinuxIoPriority { priority: 3, ..Default::default() };
    idle.set_class(nri_wire::api::IoPrioClass::IoprioClassIdle);
    let seccomp = LinuxSeccomp {
        default_action: "SCMP_ACT_ERRNO".into(),
        syscalls: vec![LinuxSyscall { names: vec!["mount".into()], ..Default::default() }],
        ..Default::default()
    };
    let policy = LinuxMemoryPolicy { nodes: "0-1".into(), ..Default::default() };
    let namespace = prop_oneof![
        Just(Setting::Set(Namespace::New)),
        word().prop_map(|path| Setting::Set(Namespace::Join(path))),
        Just(Setting::Remove),
    ];
    let namespaces = btree_map(proptest::sample::select(&NAMESPACES[..]), namespace, 0..4);
    let wholes = (
        option::of(Just(seccomp)),
        option::of(Just(policy)),
        setting(fifo),
        setting(idle),
        any::<Option<i64>>(),
        option::of(word()),
    );
    (keyed(device()), keyed(word()), keyed(word()), resources(), rdt(), namespaces, wholes)
        .prop_map(|(devices, sysctl, net_devices, resources, rdt, namespaces, wholes)| {
            let (seccomp, memory_policy, scheduler, io_priority, oom_score_adj, cgroups_path) =
                wholes;
            Adjustment {
                devices,
                sysctl,
                net_devices,
                resources,
                rdt,
                namespaces,
                seccomp,
                memory_policy,
                scheduler,
                io_priority,
                oom_score_adj,
                cgroups_path,
                ..Default::default()
            }
        })
}

fn adjustment() -> impl Strategy<Value = Adjustment> {
    let args = option::of(prop_oneof![
        vec(word(), 1..3).prop_map(Args::Set),
        vec(word(), 1..3).prop_map(Args::TakeOver),
    ]);
    let hook = word().prop_map(|path| Hook { path, ..Default::default() });
    let hooks = vec(hook, 0..2).prop_map(|poststop| Hooks { poststop, ..Default::default() });
    let limit = any::<(u64, u64)>().prop_map(|(hard, soft)| Rlimit { hard, soft });
    let rest = (btree_map(word(), limit, 0..3), btree_set(word(), 0..3));
    (linux(), keyed(word()), keyed(mount()), keyed(word()), args, hooks, rest).prop_map(
        |(linux, annotations, mounts, env, args, hooks, (rlimits, cdi_devices))| Adjustment {
            annotations,
            mounts,
            env,
            args,
            hooks,
            rlimits,
            cdi_devices,
            ..linux
        },
    )
}

/// No key is set twice, and none is removed twice.
#[track_caller]
fn unique<'a>(keys: impl Iterator<Item = &'a str>) {
    let keys: Vec<_> = keys.collect();
    assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len(), "{keys:?}");
}

proptest! {
    #[test]
    fn adjustments_survive_the_wire(adjustment in adjustment()) {
        let wire = ContainerAdjustment::try_from(adjustment.clone()).unwrap();
        prop_assert_eq!(Adjustment::from(wire), adjustment);
    }

    #[test]
    fn no_adjustment_conflicts_with_itself(adjustment in adjustment()) {
        let wire = ContainerAdjustment::try_from(adjustment).unwrap();
        unique(wire.mounts.iter().map(|mount| mount.destination.as_str()));
        unique(wire.env.iter().map(|pair| pair.key.as_str()));
        unique(wire.rlimits.iter().map(|limit| limit.r#type.as_str()));
        unique(wire.cdi_devices.iter().map(|device| device.name.as_str()));
        let linux = wire.linux.unwrap_or_default();
        unique(linux.devices.iter().map(|device| device.path.as_str()));
        // A namespace cannot be removed and set at once.
        unique(linux.namespaces.iter().map(|ns| ns.r#type.trim_start_matches('-')));
        let resources = linux.resources.unwrap_or_default();
        unique(resources.hugepage_limits.iter().map(|page| page.page_size.as_str()));
    }

    #[test]
    fn resources_survive_the_wire(resources in resources()) {
        let wire = resources.to_wire();
        prop_assert_eq!(wire.is_none(), resources.is_empty());
        prop_assert_eq!(wire.as_ref().map(Resources::from).unwrap_or_default(), resources);
    }

    #[test]
    fn an_overlay_wins_and_keeps_the_rest(below in resources(), over in resources()) {
        let mut both = below.clone();
        both.overlay(over.clone());
        // Rules add up; all else is as if `over` were laid on twice.
        let rules = [below.devices.clone(), over.devices.clone()].concat();
        prop_assert_eq!(&both.devices, &rules);
        let mut again = both.clone();
        again.overlay(Resources { devices: Vec::new(), ..over.clone() });
        prop_assert_eq!(&again, &both);
        prop_assert_eq!(both.memory.limit, over.memory.limit.or(below.memory.limit));
        let mut nothing = below.clone();
        nothing.overlay(Resources::new());
        prop_assert_eq!(nothing, below);
    }
}

#[test]
fn removals_come_before_values_and_a_take_over_is_both() {
    let mut adjustment = Adjustment::new();
    adjustment.env.set("A", "1").remove("B").take_over("C", "3");
    let wire = ContainerAdjustment::try_from(adjustment).unwrap();
    let env: Vec<_> = wire.env.iter().map(|pair| (&*pair.key, &*pair.value)).collect();
    assert_eq!(env, [("-B", ""), ("-C", ""), ("A", "1"), ("C", "3")]);
    assert_eq!(wire.linux, None, "what is not set does not appear");
    assert_eq!(wire.hooks, None);
}

#[test]
fn the_last_word_about_an_entry_counts() {
    let mut adjustment = Adjustment::new();
    adjustment.sysctl.remove("k").set("k", "1").set("k", "2");
    assert_eq!(adjustment.sysctl.get("k"), Some(&Change::Set("2".into())));
    assert_eq!(adjustment.sysctl.value("k").unwrap(), "2");
    adjustment.sysctl.remove("k");
    assert_eq!(adjustment.sysctl.value("k"), None);
    assert!(!adjustment.is_empty() && Adjustment::new().is_empty());
}

#[test]
fn what_the_wire_cannot_say_is_refused_by_name() {
    let check = |change: &dyn Fn(&mut Adjustment), want: &str| {
        let mut adjustment = Adjustment::new();
        change(&mut adjustment);
        let error = ContainerAdjustment::try_from(adjustment).unwrap_err();
        assert_eq!(error.to_string(), want);
    };
    check(&|a| _ = a.env.set("-A", "1"), "env: key \"-A\" is empty or begins with '-'");
    check(&|a| _ = a.mounts.remove(""), "mounts: key \"\" is empty or begins with '-'");
    check(&|a| _ = a.env.set("A=B", "1"), "env: name \"A=B\" contains '='");
    let args = "args: they must not be empty nor begin with an empty one";
    check(&|a| a.args = Some(Args::Set(vec![])), args);
    check(&|a| a.args = Some(Args::TakeOver(vec!["".into(), "x".into()])), args);
}
