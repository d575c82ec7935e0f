//! What holds of all adjustments.

use std::collections::BTreeMap;

use nri_wire::api::*;
use proptest::prelude::*;

use super::{super::*, container, merge_all, plugin, response};
use crate::arbitrary::{self, SHARED, Universe, sorted};

/// What an adjustment sets and removes, read off it by other means than the merge uses.
fn asked(adjust: &ContainerAdjustment) -> (Vec<FieldKey>, Vec<FieldKey>) {
    use Field as F;
    let mut all: Vec<(Field, Option<String>)> = Vec::new();
    let mut add = |field, key: &str| all.push((field, Some(key.to_owned())));
    adjust.annotations.keys().for_each(|k| add(F::Annotations, k));
    adjust.mounts.iter().for_each(|m| add(F::Mounts, &m.destination));
    adjust.env.iter().for_each(|e| add(F::Env, &e.key));
    adjust.rlimits.iter().for_each(|r| add(F::Rlimits, &r.r#type));
    let linux = adjust.linux.clone().unwrap_or_default();
    linux.devices.iter().for_each(|d| add(F::Devices, &d.path));
    linux.sysctl.keys().for_each(|k| add(F::Sysctl, k));
    linux.net_devices.keys().for_each(|k| add(F::LinuxNetDevices, k));
    let resources = linux.resources.clone().unwrap_or_default();
    resources.hugepage_limits.iter().for_each(|h| add(F::HugepageLimits, &h.page_size));
    resources.unified.keys().for_each(|k| add(F::CgroupsUnified, k));
    let (removed, mut set): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|(_, key)| key.as_ref().is_some_and(|k| k.starts_with('-')));
    let mut removed: Vec<_> =
        removed.into_iter().map(|(field, key)| (field, key.map(|k| k[1..].to_owned()))).collect();
    let mut simple = |field, present: bool| {
        if present {
            set.push((field, None))
        }
    };
    let (memory, cpu) = (resources.memory.unwrap_or_default(), resources.cpu.unwrap_or_default());
    let rdt = linux.rdt.unwrap_or_default();
    let take_over = adjust.args.first().is_some_and(String::is_empty);
    for (field, present) in [
        (F::Args, adjust.args.len() > usize::from(take_over)),
        (F::CgroupsPath, !linux.cgroups_path.is_empty()),
        (F::OomScoreAdj, linux.oom_score_adj.is_some()),
        (F::IoPriority, linux.io_priority.is_some()),
        (F::SeccompPolicy, linux.seccomp_policy.is_some()),
        (F::LinuxSched, linux.scheduler.is_some()),
        (F::MemoryPolicy, linux.memory_policy.is_some()),
        (F::RdtClosId, rdt.clos_id.is_some()),
        (F::RdtSchemata, rdt.schemata.is_some()),
        (F::RdtEnableMonitoring, rdt.enable_monitoring.is_some()),
        (F::BlockioClass, resources.blockio_class.is_some()),
        (F::RdtClass, resources.rdt_class.is_some()),
        (F::PidsLimit, resources.pids.is_some()),
        (F::MemLimit, memory.limit.is_some()),
        (F::MemReservation, memory.reservation.is_some()),
        (F::MemSwapLimit, memory.swap.is_some()),
        (F::MemKernelLimit, memory.kernel.is_some()),
        (F::MemTcpLimit, memory.kernel_tcp.is_some()),
        (F::MemSwappiness, memory.swappiness.is_some()),
        (F::MemDisableOomKiller, memory.disable_oom_killer.is_some()),
        (F::MemUseHierarchy, memory.use_hierarchy.is_some()),
        (F::CpuShares, cpu.shares.is_some()),
        (F::CpuQuota, cpu.quota.is_some()),
        (F::CpuPeriod, cpu.period.is_some()),
        (F::CpuRealtimeRuntime, cpu.realtime_runtime.is_some()),
        (F::CpuRealtimePeriod, cpu.realtime_period.is_some()),
        (F::CpuSetCpUs, !cpu.cpus.is_empty()),
        (F::CpuSetMems, !cpu.mems.is_empty()),
    ] {
        simple(field, present);
    }
    if take_over {
        removed.push((F::Args, None));
    }
    if rdt.remove {
        removed.extend([F::RdtClosId, F::RdtSchemata, F::RdtEnableMonitoring].map(|f| (f, None)));
    }
    let keys = |list: Vec<(Field, Option<String>)>| {
        list.into_iter().map(|(field, key)| FieldKey { field, key }).collect()
    };
    (removed.into_iter().map(|(field, key)| FieldKey { field, key }).collect(), keys(set))
}

use crate::owners::FieldKey;

const LEFT: Universe = Universe { keys: &["a", "b", "c"], removals: false };
const RIGHT: Universe = Universe { keys: &["d", "e", "f"], removals: false };

proptest! {
    #[test]
    fn owners_name_exactly_the_setters(adjusts in prop::collection::vec(arbitrary::adjustment(SHARED), 1..4)) {
        // Conflicts are the subject of other tests: go up to the first.
        let mut creation = Creation::of(container());
        let mut want: BTreeMap<FieldKey, String> = BTreeMap::new();
        for (i, adjust) in adjusts.iter().enumerate() {
            let before = creation.clone();
            if creation.merge(Claimant::new(&plugin(i)), response(adjust.clone())).is_err() {
                creation = before;
                break;
            }
            let (removed, set) = asked(adjust);
            removed.iter().for_each(|key| drop(want.remove(key)));
            want.extend(set.into_iter().map(|key| (key, plugin(i))));
        }
        let got: BTreeMap<FieldKey, String> =
            creation.merged().owners.iter().map(|(_, key, owner)| (key, owner.to_owned())).collect();
        prop_assert_eq!(got, want);
    }

    #[test]
    fn conflicts_are_met_exactly_where_two_want_the_same(
        a in arbitrary::adjustment(LEFT), b in arbitrary::adjustment(LEFT),
    ) {
        let (first, second) = (asked(&a).1, asked(&b).1);
        let met = second.iter().any(|key| first.contains(key));
        prop_assert_eq!(merge_all(&[a, b]).is_err(), met);
    }

    #[test]
    fn disjoint_adjustments_commute(a in arbitrary::adjustment(LEFT), b in arbitrary::adjustment(RIGHT)) {
        let (ab, ba) = (merge_all(&[a.clone(), b.clone()]), merge_all(&[b, a]));
        // Fields without keys can still meet, and then both orders are refused.
        prop_assert_eq!(ab.is_ok(), ba.is_ok());
        if let (Ok(ab), Ok(ba)) = (ab, ba) {
            prop_assert_eq!(sorted(ab.finish().adjust), sorted(ba.finish().adjust));
        }
    }

    #[test]
    fn the_view_of_the_next_plugin_is_the_container_with_all_so_far(
        adjusts in prop::collection::vec(arbitrary::adjustment(SHARED), 1..4),
    ) {
        if let Ok(creation) = merge_all(&adjusts) {
            let again = merge_all(&[creation.merged().adjust.clone()]);
            // Merging the result in one go shows the same container.
            let mut want = again.expect("one plugin does not conflict").container().clone();
            let mut got = creation.container().clone();
            for container in [&mut want, &mut got] {
                container.env.sort();
                container.mounts.sort_by(|a, b| a.destination.cmp(&b.destination));
                container.rlimits.sort_by(|a, b| a.r#type.cmp(&b.r#type));
                let linux = container.linux.get_or_insert_default();
                linux.devices.sort_by(|a, b| a.path.cmp(&b.path));
                let resources = linux.resources.get_or_insert_default();
                resources.hugepage_limits.sort_by(|a, b| a.page_size.cmp(&b.page_size));
                resources.memory.get_or_insert_default();
                resources.cpu.get_or_insert_default();
            }
            prop_assert_eq!(got, want);
        }
    }
}
