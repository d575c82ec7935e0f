//! New resource limits, written straight into the cgroup.
//!
//! ```text
//!   JSON ──parse──> Resources ──plan──> writes, in an order the kernel accepts ──apply──>
//! ```
//! What cannot be applied is refused by name, never left out. A write that the kernel
//! refuses takes back those before it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use sys::cgroup::{Cgroup, Version, parse as text};

use crate::error::{Error, Result};

/// OCI `LinuxResources`; fields that are absent are left as they are.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Resources {
    memory: Memory,
    cpu: Cpu,
    pids: Pids,
    #[serde(rename = "blockIO")]
    block_io: BlockIo,
    hugepage_limits: Vec<Hugepages>,
    unified: BTreeMap<String, String>,
    /// What we do not know how to change.
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Memory {
    limit: Option<i64>,
    reservation: Option<i64>,
    /// Memory and swap together.
    swap: Option<i64>,
    swappiness: Option<u64>,
    #[serde(rename = "disableOOMKiller")]
    disable_oom_killer: Option<bool>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Cpu {
    shares: Option<u64>,
    quota: Option<i64>,
    burst: Option<u64>,
    period: Option<u64>,
    realtime_runtime: Option<i64>,
    realtime_period: Option<u64>,
    cpus: Option<String>,
    mems: Option<String>,
    idle: Option<i64>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Pids {
    limit: Option<i64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct BlockIo {
    weight: Option<u16>,
    throttle_read_bps_device: Vec<Throttle>,
    throttle_write_bps_device: Vec<Throttle>,
    #[serde(rename = "throttleReadIOPSDevice")]
    throttle_read_iops_device: Vec<Throttle>,
    #[serde(rename = "throttleWriteIOPSDevice")]
    throttle_write_iops_device: Vec<Throttle>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, Deserialize)]
struct Throttle {
    major: i64,
    minor: i64,
    rate: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Hugepages {
    page_size: String,
    limit: u64,
}

pub(crate) fn parse(json: &[u8]) -> Result<Resources> {
    let invalid = |why: String| Error::Invalid { field: "resources", why };
    serde_json::from_slice(json).map_err(|e| invalid(e.to_string()))
}

/// One value for one file of a controller.
#[derive(Debug, PartialEq, Eq)]
struct Write {
    controller: String,
    file: String,
    value: String,
}

/// The group as far as a plan must know it.
trait Known {
    fn version(&self, controller: &str) -> Option<Version>;
    fn read(&self, controller: &str, file: &str) -> Option<String>;
}

impl Known for Cgroup {
    fn version(&self, controller: &str) -> Option<Version> {
        self.version_of(controller)
    }

    fn read(&self, controller: &str, file: &str) -> Option<String> {
        Self::read(self, controller, file).ok().flatten()
    }
}

/// All or nothing; says what was refused.
pub(crate) fn apply(group: &Cgroup, wanted: &Resources) -> std::result::Result<(), String> {
    let mut done: Vec<(Write, Option<String>)> = Vec::new();
    for write in plan(group, wanted)? {
        let before = Known::read(group, &write.controller, &write.file);
        let Err(error) = group.write(&write.controller, &write.file, &write.value) else {
            done.push((write, before));
            continue;
        };
        for (write, before) in done.into_iter().rev() {
            // Lists of devices cannot be written back as they are read.
            if let Some(value) = before.as_deref().map(str::trim).filter(|v| !v.contains('\n')) {
                let _ = group.write(&write.controller, &write.file, value);
            }
        }
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        return Err(format!("{error}: {}", cause.unwrap_or_default()));
    }
    Ok(())
}

// === the plan ===

struct Plan<'a, G> {
    group: &'a G,
    writes: Vec<Write>,
}

fn plan(group: &impl Known, wanted: &Resources) -> std::result::Result<Vec<Write>, String> {
    let Resources { memory, cpu, pids, block_io, hugepage_limits, unified, others } = wanted;
    refuse("", others)?;
    refuse("memory.", &memory.others)?;
    refuse("cpu.", &cpu.others)?;
    refuse("blockIO.", &block_io.others)?;
    let mut plan = Plan { group, writes: Vec::new() };
    plan.memory(memory)?;
    plan.cpu(cpu)?;
    plan.cpuset(cpu)?;
    if let Some(limit) = pids.limit {
        plan.version("pids", "pids.limit")?;
        plan.add("pids", "pids.max", limit_or_max(limit.max(0)));
    }
    plan.block_io(block_io)?;
    plan.hugepages(hugepage_limits)?;
    plan.unified(unified)?;
    Ok(plan.writes)
}

/// Null and empty are how encoders say "nothing".
fn refuse(prefix: &str, others: &BTreeMap<String, Value>) -> std::result::Result<(), String> {
    let says_nothing = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        Value::Bool(true) | Value::String(_) => false,
    };
    match others.iter().find(|(_, value)| !says_nothing(value)) {
        Some((name, _)) => Err(format!("{prefix}{name} cannot be changed")),
        None => Ok(()),
    }
}

fn limit_or_max(limit: i64) -> String {
    if limit > 0 { limit.to_string() } else { "max".to_owned() }
}

/// Version 2 has no 0 for "none": a negative limit is none, 0 is nothing at all.
fn bytes_or_max(limit: i64) -> String {
    if limit < 0 { "max".to_owned() } else { limit.to_string() }
}

impl<G: Known> Plan<'_, G> {
    fn add(&mut self, controller: &str, file: &str, value: String) {
        let (controller, file) = (controller.to_owned(), file.to_owned());
        self.writes.push(Write { controller, file, value });
    }

    fn version(&self, controller: &str, field: &str) -> std::result::Result<Version, String> {
        let absent = || format!("{field}: this host has no {controller} controller");
        self.group.version(controller).ok_or_else(absent)
    }

    fn number(&self, controller: &str, file: &str) -> Option<u64> {
        text::number(&self.group.read(controller, file)?)
    }

    fn memory(&mut self, wanted: &Memory) -> std::result::Result<(), String> {
        let Memory { limit, reservation, swap, swappiness, disable_oom_killer, others: _ } = wanted;
        if limit.or(*reservation).or(*swap).is_none()
            && swappiness.is_none()
            && !disable_oom_killer.unwrap_or_default()
        {
            return Ok(());
        }
        match self.version("memory", "memory")? {
            Version::V1 => self.memory_v1(wanted),
            Version::V2 => return self.memory_v2(wanted),
        }
        Ok(())
    }

    fn memory_v1(&mut self, wanted: &Memory) {
        const BOTH: &str = "memory.memsw.limit_in_bytes";
        let limit = wanted.limit.map(|limit| ("memory.limit_in_bytes", limit.max(-1)));
        let both = wanted.swap.map(|swap| (BOTH, swap.max(-1)));
        // The sum must at no moment be below the part: who grows grows first.
        let now = self.number("memory", BOTH).unwrap_or(u64::MAX);
        let grows = both.is_some_and(|(_, both)| u64::try_from(both).is_ok_and(|both| both > now));
        let grows = grows || both.is_some_and(|(_, both)| both < 0);
        let in_order = if grows { [both, limit] } else { [limit, both] };
        for (file, value) in in_order.into_iter().flatten() {
            self.add("memory", file, value.to_string());
        }
        if let Some(reservation) = wanted.reservation {
            self.add("memory", "memory.soft_limit_in_bytes", reservation.max(-1).to_string());
        }
        if let Some(swappiness) = wanted.swappiness {
            self.add("memory", "memory.swappiness", swappiness.to_string());
        }
        if let Some(disable) = wanted.disable_oom_killer {
            self.add("memory", "memory.oom_control", u8::from(disable).to_string());
        }
    }

    fn memory_v2(&mut self, wanted: &Memory) -> std::result::Result<(), String> {
        if wanted.swappiness.is_some() {
            return Err("memory.swappiness: cgroup v2 has none".to_owned());
        }
        if wanted.disable_oom_killer == Some(true) {
            return Err("memory.disableOOMKiller: cgroup v2 has none".to_owned());
        }
        if let Some(swap) = wanted.swap {
            let only = match (swap, wanted.limit) {
                (..0, _) => "max".to_owned(),
                (both, Some(limit)) if limit >= 0 && both >= limit => (both - limit).to_string(),
                (_, Some(_)) => return Err("memory.swap is below memory.limit".to_owned()),
                (_, None) => return Err("memory.swap needs memory.limit".to_owned()),
            };
            self.add("memory", "memory.swap.max", only);
        }
        if let Some(limit) = wanted.limit {
            self.add("memory", "memory.max", bytes_or_max(limit));
        }
        if let Some(reservation) = wanted.reservation {
            self.add("memory", "memory.low", reservation.max(0).to_string());
        }
        Ok(())
    }

    fn cpu(&mut self, wanted: &Cpu) -> std::result::Result<(), String> {
        let numbers = [wanted.shares, wanted.burst, wanted.period, wanted.realtime_period];
        let signed = [wanted.quota, wanted.realtime_runtime, wanted.idle];
        if numbers.iter().all(Option::is_none) && signed.iter().all(Option::is_none) {
            return Ok(());
        }
        match self.version("cpu", "cpu")? {
            Version::V1 => self.cpu_v1(wanted),
            Version::V2 => return self.cpu_v2(wanted),
        }
        Ok(())
    }

    fn cpu_v1(&mut self, wanted: &Cpu) {
        const PERIOD: &str = "cpu.cfs_period_us";
        let nonzero = |value: Option<u64>| value.filter(|value| *value > 0);
        if let Some(shares) = nonzero(wanted.shares) {
            self.add("cpu", "cpu.shares", shares.to_string());
        }
        let period = nonzero(wanted.period).map(|period| (PERIOD, period.to_string()));
        let quota = wanted.quota.filter(|quota| *quota != 0);
        let quota = quota.map(|quota| ("cpu.cfs_quota_us", quota.max(-1).to_string()));
        // Their quotient is bounded by the parent's: it must not peak on the way.
        let now = self.number("cpu", PERIOD).unwrap_or_default();
        let longer = wanted.period.is_some_and(|period| period > now);
        let in_order = if longer { [period, quota] } else { [quota, period] };
        for (file, value) in in_order.into_iter().flatten() {
            self.add("cpu", file, value);
        }
        let rest = [
            ("cpu.cfs_burst_us", wanted.burst.map(|burst| burst.to_string())),
            ("cpu.rt_period_us", nonzero(wanted.realtime_period).map(|period| period.to_string())),
            ("cpu.rt_runtime_us", wanted.realtime_runtime.map(|runtime| runtime.to_string())),
            ("cpu.idle", wanted.idle.map(|idle| idle.to_string())),
        ];
        for (file, value) in rest {
            value.into_iter().for_each(|value| self.add("cpu", file, value));
        }
    }

    fn cpu_v2(&mut self, wanted: &Cpu) -> std::result::Result<(), String> {
        if wanted.realtime_runtime.is_some_and(|runtime| runtime != 0)
            || wanted.realtime_period.is_some_and(|period| period != 0)
        {
            return Err("cpu.realtimeRuntime: cgroup v2 has none".to_owned());
        }
        if let Some(shares) = wanted.shares.filter(|shares| *shares > 0) {
            self.add("cpu", "cpu.weight", weight_of_shares(shares).to_string());
        }
        let quota = wanted.quota.filter(|quota| *quota != 0).map(limit_or_max);
        let period = wanted.period.filter(|period| *period > 0);
        if quota.is_some() || period.is_some() {
            let now = self.group.read("cpu", "cpu.max").unwrap_or_default();
            let now = now.split_whitespace().next().unwrap_or("max").to_owned();
            let value = [quota.unwrap_or(now), period.map_or(String::new(), |p| p.to_string())];
            self.add("cpu", "cpu.max", value.join(" ").trim().to_owned());
        }
        if let Some(burst) = wanted.burst {
            self.add("cpu", "cpu.max.burst", burst.to_string());
        }
        if let Some(idle) = wanted.idle {
            self.add("cpu", "cpu.idle", idle.to_string());
        }
        Ok(())
    }

    fn cpuset(&mut self, wanted: &Cpu) -> std::result::Result<(), String> {
        for (file, list) in [("cpuset.cpus", &wanted.cpus), ("cpuset.mems", &wanted.mems)] {
            if let Some(list) = list.as_ref().filter(|list| !list.is_empty()) {
                self.version("cpuset", file)?;
                self.add("cpuset", file, list.clone());
            }
        }
        Ok(())
    }

    fn block_io(&mut self, wanted: &BlockIo) -> std::result::Result<(), String> {
        let throttles = [
            (&wanted.throttle_read_bps_device, "read_bps", "rbps"),
            (&wanted.throttle_write_bps_device, "write_bps", "wbps"),
            (&wanted.throttle_read_iops_device, "read_iops", "riops"),
            (&wanted.throttle_write_iops_device, "write_iops", "wiops"),
        ];
        let weight = wanted.weight.filter(|weight| *weight > 0);
        if weight.is_none() && throttles.iter().all(|(list, ..)| list.is_empty()) {
            return Ok(());
        }
        let v2 = self.group.version("io") == Some(Version::V2);
        let controller = if v2 { "io" } else { "blkio" };
        self.version(controller, "blockIO")?;
        if let Some(weight) = weight {
            self.io_weight(controller, weight)?;
        }
        for (list, v1_name, v2_name) in throttles {
            for Throttle { major, minor, rate } in list {
                match v2 {
                    true => self.add("io", "io.max", format!("{major}:{minor} {v2_name}={rate}")),
                    false => {
                        let file = format!("blkio.throttle.{v1_name}_device");
                        self.add("blkio", &file, format!("{major}:{minor} {rate}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Which file there is depends on the I/O scheduler.
    fn io_weight(&mut self, controller: &str, weight: u16) -> std::result::Result<(), String> {
        let candidates: &[(&str, u64)] = match controller {
            "io" => &[
                ("io.bfq.weight", u64::from(weight)),
                // From 10..1000 to 1..10000.
                ("io.weight", 1 + (u64::from(weight).saturating_sub(10)) * 9999 / 990),
            ],
            _ => &[("blkio.weight", u64::from(weight)), ("blkio.bfq.weight", u64::from(weight))],
        };
        let there = candidates.iter().find(|(file, _)| self.group.read(controller, file).is_some());
        let (file, value) = there.ok_or("blockIO.weight: the I/O scheduler has no weights")?;
        self.add(controller, file, value.to_string());
        Ok(())
    }

    fn hugepages(&mut self, wanted: &[Hugepages]) -> std::result::Result<(), String> {
        for Hugepages { page_size, limit } in wanted {
            let file = match self.version("hugetlb", "hugepageLimits")? {
                Version::V1 => format!("hugetlb.{page_size}.limit_in_bytes"),
                Version::V2 => format!("hugetlb.{page_size}.max"),
            };
            if page_size.contains('/') || self.group.read("hugetlb", &file).is_none() {
                return Err(format!("hugepageLimits: no pages of {page_size}"));
            }
            self.add("hugetlb", &file, limit.to_string());
        }
        Ok(())
    }

    /// Files of version 2 by name.
    fn unified(&mut self, wanted: &BTreeMap<String, String>) -> std::result::Result<(), String> {
        for (file, value) in wanted {
            let (controller, _) = file.split_once('.').unwrap_or_default();
            let known = self.group.version(controller) == Some(Version::V2);
            if file.contains('/') || !known || self.group.read(controller, file).is_none() {
                return Err(format!("unified: no file {file}"));
            }
            self.add(controller, file, value.clone());
        }
        Ok(())
    }
}

/// 2..262144 to 1..10000, as the OCI runtimes do at creation.
fn weight_of_shares(shares: u64) -> u64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group made of what can be read there.
    struct Fake(Version, &'static [(&'static str, &'static str)]);

    impl Known for Fake {
        fn version(&self, controller: &str) -> Option<Version> {
            let absent = match self.0 {
                Version::V1 => "io",
                Version::V2 => "blkio",
            };
            (controller != absent && controller != "rdma").then_some(self.0)
        }

        fn read(&self, _: &str, file: &str) -> Option<String> {
            self.1.iter().find_map(|(own, text)| (*own == file).then(|| (*text).to_owned()))
        }
    }

    #[track_caller]
    fn check(group: &Fake, json: &str, want: &[&str]) {
        let got = match plan(group, &parse(json.as_bytes()).unwrap()) {
            Ok(writes) => writes.iter().map(|w| format!("{}={}", w.file, w.value)).collect(),
            Err(refusal) => vec![refusal],
        };
        assert_eq!(got, want, "{json}");
    }

    const V1: Fake = Fake(
        Version::V1,
        &[("memory.memsw.limit_in_bytes", "1000\n"), ("cpu.cfs_period_us", "100000\n")],
    );
    const V2: Fake = Fake(
        Version::V2,
        &[
            ("cpu.max", "50000 100000\n"),
            ("hugetlb.2MB.max", "max\n"),
            ("memory.high", "max\n"),
            ("io.weight", "default 100"),
        ],
    );

    #[test]
    fn nothing_asked_is_nothing_written() {
        check(&V1, "{}", &[]);
        check(&V2, r#"{"memory":{},"cpu":{},"devices":[],"network":{},"rdma":null}"#, &[]);
        check(&V2, r#"{"cpu":{"shares":0,"quota":0,"period":0,"cpus":""}}"#, &[]);
    }

    #[test]
    fn the_sum_of_memory_and_swap_never_falls_below_memory() {
        check(
            &V1,
            r#"{"memory":{"limit":2000,"swap":2000}}"#,
            &["memory.memsw.limit_in_bytes=2000", "memory.limit_in_bytes=2000"],
        );
        check(
            &V1,
            r#"{"memory":{"limit":500,"swap":600}}"#,
            &["memory.limit_in_bytes=500", "memory.memsw.limit_in_bytes=600"],
        );
        check(
            &V1,
            r#"{"memory":{"limit":-1,"swap":-1}}"#,
            &["memory.memsw.limit_in_bytes=-1", "memory.limit_in_bytes=-1"],
        );
        check(
            &V2,
            r#"{"memory":{"limit":500,"swap":600,"reservation":7}}"#,
            &["memory.swap.max=100", "memory.max=500", "memory.low=7"],
        );
        check(
            &V2,
            r#"{"memory":{"limit":-1,"swap":-1}}"#,
            &["memory.swap.max=max", "memory.max=max"],
        );
        check(&V2, r#"{"memory":{"swap":1}}"#, &["memory.swap needs memory.limit"]);
        check(&V2, r#"{"memory":{"limit":9,"swap":1}}"#, &["memory.swap is below memory.limit"]);
    }

    #[test]
    fn the_quotient_of_quota_and_period_never_peaks() {
        check(
            &V1,
            r#"{"cpu":{"quota":10,"period":50000}}"#,
            &["cpu.cfs_quota_us=10", "cpu.cfs_period_us=50000"],
        );
        check(
            &V1,
            r#"{"cpu":{"quota":-1,"period":200000,"shares":512}}"#,
            &["cpu.shares=512", "cpu.cfs_period_us=200000", "cpu.cfs_quota_us=-1"],
        );
        check(&V2, r#"{"cpu":{"quota":10,"period":50000}}"#, &["cpu.max=10 50000"]);
        check(&V2, r#"{"cpu":{"quota":-1}}"#, &["cpu.max=max"]);
        check(&V2, r#"{"cpu":{"period":7000}}"#, &["cpu.max=50000 7000"]);
        check(&V2, r#"{"cpu":{"shares":1024}}"#, &["cpu.weight=39"]);
    }

    #[test]
    fn the_rest_of_the_controllers() {
        check(
            &V1,
            r#"{"pids":{"limit":9},"cpu":{"cpus":"0-1","mems":"0"}}"#,
            &["cpuset.cpus=0-1", "cpuset.mems=0", "pids.max=9"],
        );
        check(&V2, r#"{"pids":{"limit":-1}}"#, &["pids.max=max"]);
        check(&V2, r#"{"hugepageLimits":[{"pageSize":"2MB","limit":4}]}"#, &["hugetlb.2MB.max=4"]);
        check(&V2, r#"{"blockIO":{"weight":500}}"#, &["io.weight=4950"]);
        let slow = r#"{"blockIO":{"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":5}]}}"#;
        check(&V1, slow, &["blkio.throttle.read_bps_device=8:0 5"]);
        check(&V2, slow, &["io.max=8:0 rbps=5"]);
        check(&V2, r#"{"unified":{"memory.high":"7"}}"#, &["memory.high=7"]);
    }

    #[test]
    fn what_cannot_be_done_is_said() {
        check(&V2, r#"{"memory":{"swappiness":1}}"#, &["memory.swappiness: cgroup v2 has none"]);
        check(&V1, r#"{"memory":{"kernelTCP":1}}"#, &["memory.kernelTCP cannot be changed"]);
        check(&V1, r#"{"devices":[{"allow":true}]}"#, &["devices cannot be changed"]);
        check(
            &V1,
            r#"{"blockIO":{"weight":500}}"#,
            &["blockIO.weight: the I/O scheduler has no weights"],
        );
        check(
            &V2,
            r#"{"hugepageLimits":[{"pageSize":"3MB","limit":4}]}"#,
            &["hugepageLimits: no pages of 3MB"],
        );
        check(&V2, r#"{"unified":{"../x.y":"7"}}"#, &["unified: no file ../x.y"]);
        check(&V1, r#"{"unified":{"memory.high":"7"}}"#, &["unified: no file memory.high"]);
        assert!(parse(b"[]").is_err());
    }

    #[test]
    fn weights_span_their_range() {
        assert_eq!(
            (weight_of_shares(2), weight_of_shares(1024), weight_of_shares(262_144)),
            (1, 39, 10_000)
        );
        assert_eq!((weight_of_shares(0), weight_of_shares(u64::MAX)), (1, 10_000));
    }
}
