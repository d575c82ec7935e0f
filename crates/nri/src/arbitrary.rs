//! Adjustments and updates for property tests: few keys, so that plugins meet on them.

use std::collections::BTreeMap;

use nri_wire::api::*;
use proptest::{collection::vec, option, prelude::*};

/// What entries are called; plugins with different universes are disjoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Universe {
    pub(crate) keys: &'static [&'static str],
    /// Whether keys may carry the `-` that removes, and `remove` and the like be set.
    pub(crate) removals: bool,
}

pub(crate) const SHARED: Universe = Universe { keys: &["a", "b", "c"], removals: true };

fn key(universe: Universe) -> BoxedStrategy<String> {
    let plain = prop::sample::select(universe.keys).prop_map(str::to_owned).boxed();
    match universe.removals {
        true => prop_oneof![3 => plain.clone(), 1 => plain.prop_map(|k| format!("-{k}"))].boxed(),
        false => plain,
    }
}

fn text() -> BoxedStrategy<String> {
    "[a-z]{1,3}".boxed()
}

/// Entries of a list with different keys: a plugin that sets one twice is a plugin in error.
fn entries<T: std::fmt::Debug + 'static>(
    universe: Universe,
    make: impl Fn(String, String) -> T + 'static,
) -> BoxedStrategy<Vec<T>> {
    vec((key(universe), text()), 0..3)
        .prop_map(move |pairs| {
            let unique: BTreeMap<String, String> = pairs.into_iter().collect();
            unique.into_iter().map(|(k, v)| make(k, v)).collect()
        })
        .boxed()
}

fn map<V: std::fmt::Debug + 'static>(
    universe: Universe,
    make: impl Fn(String) -> V + 'static,
) -> BoxedStrategy<BTreeMap<String, V>> {
    vec((key(universe), text()), 0..3)
        .prop_map(move |pairs| pairs.into_iter().map(|(k, v)| (k, make(v))).collect())
        .boxed()
}

pub(crate) fn resources(universe: Universe) -> BoxedStrategy<LinuxResources> {
    let plain = Universe { removals: false, ..universe };
    let huge = |page_size: String, v: String| HugepageLimit { page_size, limit: v.len() as u64 };
    let class = || option::weighted(0.2, text().prop_map(|value| OptionalString { value }));
    let pids = option::weighted(0.2, (-1i64..9).prop_map(|limit| LinuxPids { limit }));
    let parts = (memory(), cpu(), entries(plain, huge), map(plain, |v| v), class(), class(), pids);
    parts
        .prop_map(|(memory, cpu, hugepage_limits, unified, blockio_class, rdt_class, pids)| {
            let devices = vec![];
            LinuxResources {
                memory,
                cpu,
                hugepage_limits,
                blockio_class,
                rdt_class,
                unified,
                devices,
                pids,
            }
        })
        .boxed()
}

fn memory() -> BoxedStrategy<Option<LinuxMemory>> {
    // Limits and swap never meet: swap that equals a limit follows it, see `apply`.
    let i64s = |from: i64| {
        option::weighted(0.2, (from..from + 50).prop_map(|value| OptionalInt64 { value }))
    };
    let bools = || option::weighted(0.2, any::<bool>().prop_map(|value| OptionalBool { value }));
    let swappiness = option::weighted(0.2, (0u64..100).prop_map(|value| OptionalUInt64 { value }));
    let parts = (i64s(100), i64s(50), i64s(1000), i64s(10), i64s(10), swappiness, bools(), bools());
    let memory = parts.prop_map(
        |(
            limit,
            reservation,
            swap,
            kernel,
            kernel_tcp,
            swappiness,
            disable_oom_killer,
            use_hierarchy,
        )| LinuxMemory {
            limit,
            reservation,
            swap,
            kernel,
            kernel_tcp,
            swappiness,
            disable_oom_killer,
            use_hierarchy,
        },
    );
    option::weighted(0.5, memory.boxed()).boxed()
}

fn cpu() -> BoxedStrategy<Option<LinuxCpu>> {
    let i64s = || option::weighted(0.2, (1i64..50).prop_map(|value| OptionalInt64 { value }));
    let u64s = || option::weighted(0.2, (1u64..50).prop_map(|value| OptionalUInt64 { value }));
    let sets = || prop_oneof![4 => Just(String::new()), 1 => Just("0-3".to_owned())];
    let parts = (u64s(), i64s(), u64s(), i64s(), u64s(), sets(), sets());
    let cpu =
        parts.prop_map(|(shares, quota, period, realtime_runtime, realtime_period, cpus, mems)| {
            LinuxCpu { shares, quota, period, realtime_runtime, realtime_period, cpus, mems }
        });
    option::weighted(0.5, cpu.boxed()).boxed()
}

fn rdt(universe: Universe) -> BoxedStrategy<Option<LinuxRdt>> {
    let clos = option::weighted(0.3, text().prop_map(|value| OptionalString { value }));
    let lines =
        option::weighted(0.3, vec(text(), 1..2).prop_map(|value| OptionalRepeatedString { value }));
    let monitoring = option::weighted(0.3, any::<bool>().prop_map(|value| OptionalBool { value }));
    let remove = if universe.removals { any::<bool>().boxed() } else { Just(false).boxed() };
    let rdt = (clos, lines, monitoring, remove).prop_map(
        |(clos_id, schemata, enable_monitoring, remove)| LinuxRdt {
            clos_id,
            schemata,
            enable_monitoring,
            remove,
        },
    );
    option::weighted(0.2, rdt).boxed()
}

fn linux(universe: Universe) -> BoxedStrategy<LinuxContainerAdjustment> {
    let rare = 0.15;
    let device = |path: String, v: String| LinuxDevice {
        path,
        r#type: "c".to_owned(),
        major: 1,
        minor: v.len() as i64,
        ..LinuxDevice::default()
    };
    let oom = option::weighted(rare, (0i64..9).prop_map(|value| OptionalInt { value }));
    let io = option::weighted(
        rare,
        (0i32..4, 0i32..8).prop_map(|(class, priority)| LinuxIoPriority { class, priority }),
    );
    let seccomp = option::weighted(
        rare,
        Just(LinuxSeccomp {
            default_action: "SCMP_ACT_ERRNO".to_owned(),
            default_errno: Some(OptionalUInt32 { value: 7 }),
            ..LinuxSeccomp::default()
        }),
    );
    let scheduler = option::weighted(
        rare,
        (0i32..8).prop_map(|policy| LinuxScheduler { policy, ..Default::default() }),
    );
    let policy = option::weighted(
        rare,
        (0i32..7).prop_map(|mode| LinuxMemoryPolicy { mode, nodes: "0".to_owned(), flags: vec![] }),
    );
    let path = prop_oneof![5 => Just(String::new()), 1 => text()];
    let net = |name: String| LinuxNetDevice { name };
    let lists = (entries(universe, device), map(universe, |v| v), map(universe, net));
    let options = (oom, io, seccomp, scheduler, policy, path);
    (lists, options, option::of(resources(universe)), rdt(universe))
        .prop_map(
            |(
                (devices, sysctl, net_devices),
                (oom, io, seccomp, scheduler, policy, path),
                resources,
                rdt,
            )| {
                LinuxContainerAdjustment {
                    devices,
                    resources,
                    cgroups_path: path,
                    oom_score_adj: oom,
                    io_priority: io,
                    seccomp_policy: seccomp,
                    namespaces: vec![],
                    sysctl,
                    net_devices,
                    scheduler,
                    rdt,
                    memory_policy: policy,
                }
            },
        )
        .boxed()
}

/// Without namespaces, whose names are a fixed set, and CDI devices, which are injected.
pub(crate) fn adjustment(universe: Universe) -> BoxedStrategy<ContainerAdjustment> {
    let plain = Universe { removals: false, ..universe };
    let absolute = |k: &str| match k.strip_prefix('-') {
        Some(k) => format!("-/{k}"),
        None => format!("/{k}"),
    };
    let mount = move |k: String, source: String| Mount {
        destination: absolute(&k),
        source,
        ..Mount::default()
    };
    let rlimit = |k: String, v: String| PosixRlimit {
        r#type: rlimit_name(&k),
        hard: 9,
        soft: v.len() as u64,
    };
    let args = match universe.removals {
        true => prop_oneof![4 => Just(vec![]), 1 => vec(text(), 1..3), 1 => text().prop_map(|t| vec![String::new(), t])].boxed(),
        false => Just(vec![]).boxed(),
    };
    let lists = (
        map(universe, |v| v),
        entries(universe, mount),
        entries(universe, |key, value| KeyValue { key, value }),
        entries(plain, rlimit),
        args,
    );
    (lists, option::of(linux(universe)))
        .prop_map(|((annotations, mounts, env, rlimits, args), linux)| ContainerAdjustment {
            annotations,
            mounts,
            env,
            rlimits,
            args,
            linux,
            ..Default::default()
        })
        .boxed()
}

/// Rlimits have names that the OCI knows.
fn rlimit_name(key: &str) -> String {
    let names =
        ["RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_CORE", "RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_DATA"];
    let at = usize::from(key.as_bytes()[0] - b'a') % names.len();
    names[at].to_owned()
}

/// Lists whose order says nothing, put in order.
pub(crate) fn sorted(mut adjust: ContainerAdjustment) -> ContainerAdjustment {
    adjust.mounts.sort_by(|a, b| a.destination.cmp(&b.destination));
    adjust.env.sort_by(|a, b| a.key.cmp(&b.key));
    adjust.rlimits.sort_by(|a, b| a.r#type.cmp(&b.r#type));
    if let Some(linux) = &mut adjust.linux {
        linux.devices.sort_by(|a, b| a.path.cmp(&b.path));
        if let Some(resources) = &mut linux.resources {
            resources.hugepage_limits.sort_by(|a, b| a.page_size.cmp(&b.page_size));
        }
    }
    adjust
}
