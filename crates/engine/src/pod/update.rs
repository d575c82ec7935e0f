//! New limits for a pod as a whole.

use std::sync::Arc;

use oci::{CgroupDriver, Resources};
use sys::cgroup::{Cgroup, Version};

use crate::{
    error::{EngineError, Result},
    files::blocking,
    record::PodRecord,
    shared::Shared,
};

/// What a pod is allowed: `resources` for its containers, and `overhead` for itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodLimits {
    pub(crate) overhead: Resources,
    pub(crate) resources: Resources,
}

/// Writes the sum of both into the pod's cgroup, all or nothing. The kubelet, which calls
/// this, has done so before: then it changes nothing. A slice is systemd's to change, and a
/// pod without a cgroup has nothing to write to.
pub(crate) async fn update(
    shared: Arc<Shared>,
    pod: Arc<PodRecord>,
    limits: Box<PodLimits>,
) -> Result<Box<PodLimits>> {
    let _stage = shared.stages.enter(pod.id, "update-pod");
    shared.plugins.update_pod(&shared, &pod, &limits).await?;
    let driver = shared.config.cgroup_driver;
    if driver == CgroupDriver::Cgroupfs {
        let path = oci::pod_cgroup_path(driver, pod.request.cgroup_parent.as_deref(), &pod.id)?;
        let (sum, shared) = (Sum::of(&limits), Arc::clone(&shared));
        blocking(move || match shared.groups.open(&path)? {
            Some(group) => apply(&group, &sum),
            None => Ok(()),
        })
        .await?;
    }
    let PodLimits { overhead, resources } = &*limits;
    let (overhead, resources) = (overhead.clone(), resources.clone());
    let now = PodRecord { overhead, resources, ..PodRecord::clone(&pod) };
    shared.plugins.post_update_pod(&shared, &now).await;
    Ok(limits)
}

/// What is given of either; `None` is left as it is. −1 is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sum {
    shares: Option<u64>,
    period: Option<u64>,
    quota: Option<i64>,
    memory: Option<i64>,
}

impl Sum {
    fn of(PodLimits { overhead, resources }: &PodLimits) -> Self {
        let (periods, quotas) = (
            (resources.cpu_period, overhead.cpu_period),
            (resources.cpu_quota, overhead.cpu_quota),
        );
        // Shares of time add up only over one period.
        let same = periods.0.is_none() || periods.1.is_none() || periods.0 == periods.1;
        Self {
            shares: given(resources.cpu_shares, overhead.cpu_shares, u64::saturating_add),
            period: periods.0.or(periods.1),
            quota: if same { given(quotas.0, quotas.1, no_limit_or_sum) } else { quotas.0 },
            memory: given(resources.memory_limit, overhead.memory_limit, no_limit_or_sum),
        }
    }
}

fn given<T>(a: Option<T>, b: Option<T>, add: fn(T, T) -> T) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(add(a, b)),
        (a, b) => a.or(b),
    }
}

fn no_limit_or_sum(a: i64, b: i64) -> i64 {
    if a < 0 || b < 0 { -1 } else { a.saturating_add(b) }
}

type Write = (&'static str, &'static str, String);

/// In an order the kernel takes: a quota after its period.
fn plan(sum: &Sum, cpu: Option<Version>, memory: Option<Version>) -> Vec<Write> {
    let mut writes: Vec<Write> = Vec::new();
    let max = |limit: i64| if limit < 0 { "max".to_owned() } else { limit.to_string() };
    match cpu {
        Some(Version::V1) => {
            let shares = sum.shares.map(|shares| ("cpu", "cpu.shares", shares.to_string()));
            let period = sum.period.map(|period| ("cpu", "cpu.cfs_period_us", period.to_string()));
            let quota = sum.quota.map(|quota| ("cpu", "cpu.cfs_quota_us", quota.to_string()));
            writes.extend([shares, period, quota].into_iter().flatten());
        }
        Some(Version::V2) => {
            let weight = sum.shares.map(|shares| ("cpu", "cpu.weight", weight(shares)));
            let time = sum.quota.map(|quota| match sum.period {
                Some(period) => format!("{} {period}", max(quota)),
                None => max(quota),
            });
            writes.extend(weight);
            writes.extend(time.map(|time| ("cpu", "cpu.max", time)));
        }
        None => {}
    }
    let memory = match (memory, sum.memory) {
        (Some(Version::V1), Some(limit)) => Some(("memory.limit_in_bytes", limit.to_string())),
        (Some(Version::V2), Some(limit)) => Some(("memory.max", max(limit))),
        _ => None,
    };
    writes.extend(memory.map(|(file, value)| ("memory", file, value)));
    writes
}

/// 2 … 262144 becomes 1 … 10000.
fn weight(shares: u64) -> String {
    (1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142).to_string()
}

/// A write that the kernel refuses takes back those before it.
fn apply(group: &Cgroup, sum: &Sum) -> Result<()> {
    let mut done: Vec<(&str, &str, String)> = Vec::new();
    for (controller, file, value) in plan(sum, group.version_of("cpu"), group.version_of("memory"))
    {
        let before = group.read(controller, file)?;
        if let Err(error) = group.write(controller, file, &value) {
            for (controller, file, value) in done.iter().rev() {
                if let Err(error) = group.write(controller, file, value) {
                    tracing::error!(file, error = %base::Chain(&error), "take back a pod's limit");
                }
            }
            return Err(EngineError::from(error));
        }
        done.extend(before.map(|before| (controller, file, before.trim().to_owned())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use sys::cgroup::Layout;

    use super::*;

    fn limits(shares: u64, quota: i64, memory: i64) -> Resources {
        Resources {
            cpu_shares: Some(shares),
            cpu_period: Some(100_000),
            cpu_quota: Some(quota),
            memory_limit: Some(memory),
            ..Resources::default()
        }
    }

    #[track_caller]
    fn check(resources: Resources, overhead: Resources, version: Version, want: &[&str]) {
        let sum = Sum::of(&PodLimits { overhead, resources });
        let got: Vec<_> = plan(&sum, Some(version), Some(version))
            .into_iter()
            .map(|(_, file, value)| format!("{file}={value}"))
            .collect();
        assert_eq!(got, want);
    }

    #[test]
    fn what_is_given_of_both_is_added() {
        let v1 = [
            "cpu.shares=1100",
            "cpu.cfs_period_us=100000",
            "cpu.cfs_quota_us=60000",
            "memory.limit_in_bytes=5000",
        ];
        check(limits(1000, 50_000, 4000), limits(100, 10_000, 1000), Version::V1, &v1);
        let v2 = ["cpu.weight=42", "cpu.max=60000 100000", "memory.max=5000"];
        check(limits(1000, 50_000, 4000), limits(100, 10_000, 1000), Version::V2, &v2);
        let none = ["cpu.weight=39", "cpu.max=max 100000", "memory.max=max"];
        check(limits(1000, -1, -1), limits(2, 10_000, 1000), Version::V2, &none);
        check(Resources::default(), Resources::default(), Version::V1, &[]);
        let memory = Resources { memory_limit: Some(7), ..Resources::default() };
        check(memory, Resources::default(), Version::V1, &["memory.limit_in_bytes=7"]);
    }

    #[test]
    fn quotas_of_different_periods_do_not_add_up() {
        let odd = Resources { cpu_period: Some(7), ..limits(1, 5, 1) };
        let sum = Sum::of(&PodLimits { overhead: odd, resources: limits(1, 50_000, 1) });
        assert_eq!((sum.period, sum.quota), (Some(100_000), Some(50_000)));
    }

    #[test]
    fn a_refused_write_takes_back_those_before_it() {
        let layout = Layout::detect().unwrap();
        let path = PathBuf::from(format!("/ls-limits-{}", base::Id::random().short()));
        let Ok(group) = Cgroup::create(&layout, &path, &["cpu", "memory"]) else {
            return testkit::skip("a_refused_write", "needs a cgroup of its own");
        };
        let file = match group.version_of("cpu") {
            Some(Version::V1) => "cpu.shares",
            _ => "cpu.weight",
        };
        let read = || group.read("cpu", file).unwrap();
        let before = read();
        let good = Sum { shares: Some(777), ..Sum::default() };
        apply(&group, &good).unwrap();
        let changed = read();
        // No kernel takes a quota of one microsecond.
        let bad = Sum { shares: Some(555), quota: Some(1), ..Sum::default() };
        let refused = apply(&group, &bad);
        let after = read();
        group.remove(std::time::Duration::from_secs(5)).unwrap();
        assert_ne!(changed, before);
        assert!(refused.is_err());
        assert_eq!(after, changed, "as it was");
    }
}
