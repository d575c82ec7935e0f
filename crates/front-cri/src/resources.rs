//! Limits and shares, both ways. Zero means "not given" on this wire.

use api_cri::v1;
use oci::{HugepageLimit, Resources};

use crate::field::{Invalid, Result, Under, number, set};

/// What the kernel takes for the badness of a process.
const OOM_SCORES: std::ops::RangeInclusive<i64> = -1000..=1000;

pub(crate) fn request(wire: Option<v1::LinuxContainerResources>) -> Result<Resources> {
    let v1::LinuxContainerResources {
        cpu_period,
        cpu_quota,
        cpu_shares,
        memory_limit_in_bytes,
        oom_score_adj,
        cpuset_cpus,
        cpuset_mems,
        hugepage_limits,
        unified,
        memory_swap_limit_in_bytes,
    } = wire.unwrap_or_default();
    if !OOM_SCORES.contains(&oom_score_adj) {
        return Err(Invalid::new("oom_score_adj", format_args!("{oom_score_adj} is out of range")));
    }
    Ok(Resources {
        cpu_period: set(number("cpu_period", cpu_period)?),
        cpu_quota: limit("cpu_quota", cpu_quota)?,
        cpu_shares: set(number("cpu_shares", cpu_shares)?),
        memory_limit: limit("memory_limit_in_bytes", memory_limit_in_bytes)?,
        memory_swap: limit("memory_swap_limit_in_bytes", memory_swap_limit_in_bytes)?,
        oom_score_adj: set(number("oom_score_adj", oom_score_adj)?),
        cpuset_cpus: set(cpuset_cpus),
        cpuset_mems: set(cpuset_mems),
        hugepages: hugepages(hugepage_limits)?,
        unified,
        ..Resources::default()
    })
}

/// Returns the limits of a container to be made. It starts with the OOM score on the wire, 0
/// included: without one it would inherit the daemon's.
pub(crate) fn initial(wire: Option<v1::LinuxContainerResources>) -> Result<Resources> {
    let asked = request(wire)?;
    Ok(Resources { oom_score_adj: Some(asked.oom_score_adj.unwrap_or_default()), ..asked })
}

/// Returns the limits of a pod as a whole. A kubelet subtracts the pod's overhead also from the −1
/// of what has no limit, so anything below zero is no limit here.
pub(crate) fn of_pod(wire: Option<v1::LinuxContainerResources>) -> Result<Resources> {
    let wire = wire.unwrap_or_default();
    request(Some(v1::LinuxContainerResources {
        cpu_quota: wire.cpu_quota.max(-1),
        memory_limit_in_bytes: wire.memory_limit_in_bytes.max(-1),
        ..wire
    }))
}

pub(crate) fn wire(resources: &Resources) -> v1::LinuxContainerResources {
    v1::LinuxContainerResources {
        cpu_period: signed(resources.cpu_period),
        cpu_quota: resources.cpu_quota.unwrap_or_default(),
        cpu_shares: signed(resources.cpu_shares),
        memory_limit_in_bytes: resources.memory_limit.unwrap_or_default(),
        oom_score_adj: resources.oom_score_adj.unwrap_or_default().into(),
        cpuset_cpus: resources.cpuset_cpus.clone().unwrap_or_default(),
        cpuset_mems: resources.cpuset_mems.clone().unwrap_or_default(),
        hugepage_limits: resources
            .hugepages
            .iter()
            .map(|HugepageLimit { page_size, limit }| v1::HugepageLimit {
                page_size: page_size.clone(),
                limit: *limit,
            })
            .collect(),
        unified: resources.unified.clone(),
        memory_swap_limit_in_bytes: resources.memory_swap.unwrap_or_default(),
    }
}

/// −1 lifts a limit; nothing else is below zero.
fn limit(field: &'static str, value: i64) -> Result<Option<i64>> {
    if value < -1 {
        return Err(Invalid::new(field, format_args!("{value} is out of range")));
    }
    Ok(set(value))
}

/// A limit of 0 is one: no huge pages of that size.
fn hugepages(limits: Vec<v1::HugepageLimit>) -> Result<Vec<HugepageLimit>> {
    let one = |(i, v1::HugepageLimit { page_size, limit })| {
        let page_size = crate::field::not_empty("page_size", page_size)
            .under(format_args!("hugepage_limits[{i}]"))?;
        Ok(HugepageLimit { page_size, limit })
    };
    limits.into_iter().enumerate().map(one).collect()
}

/// Plugins may set more than the wire can say.
fn signed(value: Option<u64>) -> i64 {
    value.map_or(0, |value| i64::try_from(value).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::{collection, prelude::*};

    use super::*;

    fn any_wire() -> impl Strategy<Value = v1::LinuxContainerResources> {
        let numbers = (0..i64::MAX, -1..i64::MAX, 0..i64::MAX, -1..i64::MAX, -1..i64::MAX);
        let pages = collection::vec(("[1-9](KB|MB|GB)", any::<u64>()), 0..3);
        let unified = collection::btree_map("[a-z.]{1,9}", ".{0,9}", 0..3);
        (numbers, OOM_SCORES, "[0-9,-]{0,9}", "[0-9,-]{0,9}", pages, unified).prop_map(
            |((period, quota, shares, memory, swap), oom, cpus, mems, pages, unified)| {
                v1::LinuxContainerResources {
                    cpu_period: period,
                    cpu_quota: quota,
                    cpu_shares: shares,
                    memory_limit_in_bytes: memory,
                    oom_score_adj: oom,
                    cpuset_cpus: cpus,
                    cpuset_mems: mems,
                    hugepage_limits: pages
                        .into_iter()
                        .map(|(page_size, limit)| v1::HugepageLimit { page_size, limit })
                        .collect(),
                    unified,
                    memory_swap_limit_in_bytes: swap,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_valid_comes_back_as_it_was(asked in any_wire()) {
            prop_assert_eq!(wire(&request(Some(asked.clone())).unwrap()), asked);
        }
    }

    #[test]
    fn nothing_asks_for_nothing() {
        assert_eq!(request(None), Ok(Resources::default()));
        assert_eq!(request(Some(v1::LinuxContainerResources::default())), request(None));
    }

    #[test]
    fn a_container_starts_with_the_oom_score_on_the_wire() {
        let asked = |oom_score_adj| {
            Some(v1::LinuxContainerResources { oom_score_adj, ..Default::default() })
        };
        assert_eq!(initial(asked(-7)).unwrap().oom_score_adj, Some(-7));
        assert_eq!(initial(asked(0)).unwrap().oom_score_adj, Some(0));
        assert_eq!(initial(None).unwrap().oom_score_adj, Some(0));
    }

    #[test]
    fn what_a_pod_lacks_a_limit_of_may_have_lost_its_overhead() {
        let asked = v1::LinuxContainerResources {
            cpu_quota: -10_001,
            memory_limit_in_bytes: -4097,
            ..Default::default()
        };
        let got = of_pod(Some(asked)).unwrap();
        assert_eq!((got.cpu_quota, got.memory_limit), (Some(-1), Some(-1)));
    }

    #[test]
    fn more_than_the_wire_holds_is_clamped() {
        let resources = Resources { cpu_shares: Some(u64::MAX), ..Default::default() };
        assert_eq!(wire(&resources).cpu_shares, i64::MAX);
    }

    #[track_caller]
    fn refused(change: impl FnOnce(&mut v1::LinuxContainerResources), want: &str) {
        let mut asked = v1::LinuxContainerResources::default();
        change(&mut asked);
        assert_eq!(request(Some(asked)).unwrap_err().to_string(), want);
    }

    #[test]
    fn negative_values_are_refused_by_name() {
        refused(|r| r.cpu_shares = -1, "cpu_shares: -1 is out of range");
        refused(|r| r.cpu_period = -1, "cpu_period: -1 is out of range");
        refused(|r| r.cpu_quota = -2, "cpu_quota: -2 is out of range");
        refused(|r| r.memory_limit_in_bytes = -2, "memory_limit_in_bytes: -2 is out of range");
        refused(
            |r| r.memory_swap_limit_in_bytes = -9,
            "memory_swap_limit_in_bytes: -9 is out of range",
        );
        refused(|r| r.oom_score_adj = 1001, "oom_score_adj: 1001 is out of range");
        refused(|r| r.oom_score_adj = -1001, "oom_score_adj: -1001 is out of range");
        refused(
            |r| r.hugepage_limits = vec![v1::HugepageLimit::default()],
            "hugepage_limits[0].page_size: must not be empty",
        );
    }
}
