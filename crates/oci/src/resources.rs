//! Limits and shares, for a new container and for a running one, by the same rules.
//!
//! A missing controller cannot hold a limit, so a limit is refused; a share or a hint is no
//! promise, so it is left out and said to be.

use oci_spec::runtime::{
    LinuxBlockIo, LinuxCpu, LinuxHugepageLimit, LinuxMemory, LinuxPids, LinuxResources,
    LinuxThrottleDevice, LinuxThrottleDeviceBuilder, LinuxWeightDevice, LinuxWeightDeviceBuilder,
    Spec,
};

use crate::{
    error::{OciError, Result},
    facts::{CgroupVersion, HandlerFacts, HostFacts, Policy},
    request::{BlockIo, DeviceRate, DeviceWeight, Resources},
};

/// Part of a request that has no effect here, and why. For a log line, not for a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ignored {
    pub field: &'static str,
    pub why: &'static str,
}

/// What limits depend on beside themselves.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    pub host: &'a HostFacts,
    pub handler: &'a HandlerFacts,
    pub policy: &'a Policy,
}

/// What an update came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Updated {
    /// All limits the container has now, device rules aside: an OCI runtime that is given half a
    /// pair (a quota without its period) takes the other half from its own defaults.
    pub resources: LinuxResources,
    /// What was asked for and has no effect on this host.
    pub ignored: Vec<Ignored>,
}

/// Changes what `spec` says by what is asked for, absent meaning unchanged. On an error `spec` is
/// as it was.
///
/// `oom_score_adj` is of the first process only and stays.
pub fn update(spec: &mut Spec, asked: &Resources, limits: Limits<'_>) -> Result<Updated> {
    let mut linux = spec.linux().clone().unwrap_or_default();
    let mut resources = linux.resources().clone().unwrap_or_default();
    let ignored = apply(&mut resources, asked, limits)?;
    linux.set_resources(Some(resources.clone()));
    spec.set_linux(Some(linux));
    resources.set_devices(None);
    Ok(Updated { resources, ignored })
}

pub(crate) fn apply(
    resources: &mut LinuxResources,
    asked: &Resources,
    limits: Limits<'_>,
) -> Result<Vec<Ignored>> {
    let mut ignored = Vec::new();
    cpu(resources, asked, limits, &mut ignored)?;
    memory(resources, asked, limits, &mut ignored)?;
    hugepages(resources, asked, limits, &mut ignored)?;
    unified(resources, asked, limits)?;
    if let Some(limit) = asked.pids_limit {
        limits.need("pids", "resources.pids_limit", "the pids controller")?;
        let mut pids = LinuxPids::default();
        pids.set_limit(limit);
        resources.set_pids(Some(pids));
    }
    if let Some(asked) = &asked.block_io {
        resources.set_block_io(Some(block_io(asked)?));
    }
    Ok(ignored)
}

impl Limits<'_> {
    fn need(&self, controller: &str, field: &str, what: &'static str) -> Result<()> {
        if self.host.cgroup.has(controller) {
            return Ok(());
        }
        Err(OciError::Host { field: field.to_owned(), what })
    }

    pub(crate) fn unable(&self, field: &str) -> OciError {
        OciError::Unable { field: field.to_owned(), handler: self.handler.name.clone() }
    }
}

// === cpu ===

fn cpu(
    resources: &mut LinuxResources,
    asked: &Resources,
    limits: Limits<'_>,
    ignored: &mut Vec<Ignored>,
) -> Result<()> {
    const CPU: &str = "the cpu controller";
    let mut cpu = resources.cpu().clone().unwrap_or_default();
    if let Some(shares) = asked.cpu_shares {
        if limits.host.cgroup.has("cpu") {
            cpu.set_shares(Some(shares));
        } else {
            ignored.push(Ignored { field: "resources.cpu_shares", why: "no cpu controller" });
        }
    }
    if let Some(quota) = asked.cpu_quota {
        // Nothing to hold is held without a controller.
        if quota >= 0 {
            limits.need("cpu", "resources.cpu_quota", CPU)?;
            check_range("resources.cpu_quota", quota, 1000, i64::MAX)?;
        }
        cpu.set_quota(Some(quota));
    }
    if let Some(period) = asked.cpu_period {
        let signed = i64::try_from(period).unwrap_or(i64::MAX);
        check_range("resources.cpu_period", signed, 1000, 1_000_000)?;
        cpu.set_period(Some(period));
    }
    if asked.cpu_realtime_runtime.is_some() || asked.cpu_realtime_period.is_some() {
        if limits.host.cgroup.version == CgroupVersion::V2 {
            let field = "resources.cpu_realtime_runtime".to_owned();
            return Err(OciError::Host { field, what: "real-time scheduling in cgroup v2" });
        }
        limits.need("cpu", "resources.cpu_realtime_runtime", CPU)?;
        cpu.set_realtime_runtime(asked.cpu_realtime_runtime.or(cpu.realtime_runtime()));
        cpu.set_realtime_period(asked.cpu_realtime_period.or(cpu.realtime_period()));
    }
    cpuset(&mut cpu, asked, limits)?;
    if cpu != LinuxCpu::default() {
        resources.set_cpu(Some(cpu));
    }
    Ok(())
}

fn cpuset(cpu: &mut LinuxCpu, asked: &Resources, limits: Limits<'_>) -> Result<()> {
    let sets = [
        ("resources.cpuset_cpus", &asked.cpuset_cpus),
        ("resources.cpuset_mems", &asked.cpuset_mems),
    ];
    for (field, list) in sets {
        let Some(list) = list else { continue };
        limits.need("cpuset", field, "the cpuset controller")?;
        if !is_list(list) {
            return Err(OciError::invalid(field, format!("{list:?} is not a list of numbers")));
        }
    }
    if asked.cpuset_cpus.is_some() {
        cpu.set_cpus(asked.cpuset_cpus.clone());
    }
    if asked.cpuset_mems.is_some() {
        cpu.set_mems(asked.cpuset_mems.clone());
    }
    Ok(())
}

/// `0-3,7`, as the kernel reads lists.
fn is_list(list: &str) -> bool {
    let number = |text: &str| -> Option<u32> {
        text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
    };
    list.split(',').all(|part| match part.split_once('-') {
        Some((low, high)) => matches!((number(low), number(high)), (Some(l), Some(h)) if l <= h),
        None => number(part).is_some(),
    })
}

fn check_range(field: &str, value: i64, low: i64, high: i64) -> Result<()> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    let why = match high {
        i64::MAX => format!("{value} is below {low}"),
        _ => format!("{value} is not in {low}..={high}"),
    };
    Err(OciError::invalid(field, why))
}

// === memory ===

fn memory(
    resources: &mut LinuxResources,
    asked: &Resources,
    limits: Limits<'_>,
    ignored: &mut Vec<Ignored>,
) -> Result<()> {
    let mut memory = resources.memory().unwrap_or_default();
    if let Some(limit) = asked.memory_limit {
        check_range("resources.memory_limit", limit, -1, i64::MAX)?;
        if limit >= 0 {
            limits.need("memory", "resources.memory_limit", "the memory controller")?;
        }
        memory.set_limit(Some(limit));
    }
    swap(&mut memory, asked, limits)?;
    if let Some(reservation) = asked.memory_reservation {
        check_range("resources.memory_reservation", reservation, -1, i64::MAX)?;
        if limits.host.cgroup.has("memory") {
            memory.set_reservation(Some(reservation));
        } else {
            let field = "resources.memory_reservation";
            ignored.push(Ignored { field, why: "no memory controller" });
        }
    }
    if let Some(swappiness) = asked.memory_swappiness {
        swappiness_into(&mut memory, swappiness, limits, ignored)?;
    }
    match asked.oom_kill_disable {
        Some(true) if limits.host.cgroup.version == CgroupVersion::V2 => ignored
            .push(Ignored { field: "resources.oom_kill_disable", why: "cgroup v2 always kills" }),
        Some(disable) => drop(memory.set_disable_oom_killer(Some(disable))),
        None => {}
    }
    if memory != LinuxMemory::default() {
        resources.set_memory(Some(memory));
    }
    Ok(())
}

/// A limit alone means that much memory and no swap on top of it. Where swap is not counted it
/// cannot be limited, and nobody can be blamed for asking: both are left out.
fn swap(memory: &mut LinuxMemory, asked: &Resources, limits: Limits<'_>) -> Result<()> {
    let field = "resources.memory_swap";
    if let Some(swap) = asked.memory_swap {
        check_range(field, swap, -1, i64::MAX)?;
        let limit = asked.memory_limit.or(memory.limit());
        match limit {
            Some(limit) if swap >= 0 && swap < limit => {
                let why = format!("{swap} is less than the memory limit {limit}");
                return Err(OciError::invalid(field, why));
            }
            None if swap >= 0 => {
                return Err(OciError::invalid(field, "needs a memory limit beside it"));
            }
            _ => {}
        }
    }
    if let Some(swap) = asked.memory_swap.or(asked.memory_limit)
        && limits.host.cgroup.swap
    {
        memory.set_swap(Some(swap));
    }
    Ok(())
}

fn swappiness_into(
    memory: &mut LinuxMemory,
    swappiness: u64,
    limits: Limits<'_>,
    ignored: &mut Vec<Ignored>,
) -> Result<()> {
    const FIELD: &str = "resources.memory_swappiness";
    let signed = i64::try_from(swappiness).unwrap_or(i64::MAX);
    check_range(FIELD, signed, 0, 100)?;
    if limits.host.cgroup.version == CgroupVersion::V2 {
        ignored.push(Ignored { field: FIELD, why: "cgroup v2 has no such setting" });
        return Ok(());
    }
    if !limits.handler.abilities.swappiness {
        return Err(limits.unable(FIELD));
    }
    memory.set_swappiness(Some(swappiness));
    Ok(())
}

// === the rest ===

fn hugepages(
    resources: &mut LinuxResources,
    asked: &Resources,
    limits: Limits<'_>,
    ignored: &mut Vec<Ignored>,
) -> Result<()> {
    const FIELD: &str = "resources.hugepages";
    if asked.hugepages.is_empty() {
        return Ok(());
    }
    if limits.policy.ignore_hugepages {
        ignored.push(Ignored { field: FIELD, why: "switched off by the configuration" });
        return Ok(());
    }
    if !limits.host.cgroup.has("hugetlb") {
        if limits.policy.tolerate_missing_hugetlb {
            ignored.push(Ignored { field: FIELD, why: "no hugetlb controller" });
            return Ok(());
        }
        limits.need("hugetlb", FIELD, "the hugetlb controller")?;
    }
    if !limits.handler.abilities.hugepages {
        return Err(limits.unable(FIELD));
    }
    let mut known = resources.hugepage_limits().clone().unwrap_or_default();
    for (i, asked) in asked.hugepages.iter().enumerate() {
        let limit = i64::try_from(asked.limit).unwrap_or(i64::MAX);
        if !is_page_size(&asked.page_size) {
            let why = format!("{:?} is not the size of a page", asked.page_size);
            return Err(OciError::invalid(format!("{FIELD}[{i}].page_size"), why));
        }
        known.retain(|other| *other.page_size() != asked.page_size);
        let mut new = LinuxHugepageLimit::default();
        new.set_page_size(asked.page_size.clone()).set_limit(limit);
        known.push(new);
    }
    resources.set_hugepage_limits(Some(known));
    Ok(())
}

/// It becomes part of a file's name.
fn is_page_size(text: &str) -> bool {
    let number = ["KB", "MB", "GB"].iter().find_map(|unit| text.strip_suffix(unit));
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

fn unified(resources: &mut LinuxResources, asked: &Resources, limits: Limits<'_>) -> Result<()> {
    if asked.unified.is_empty() {
        return Ok(());
    }
    if limits.host.cgroup.version == CgroupVersion::V1 {
        return Err(OciError::Host { field: "resources.unified".to_owned(), what: "cgroup v2" });
    }
    if !limits.handler.abilities.unified {
        return Err(limits.unable("resources.unified"));
    }
    let mut all = resources.unified().clone().unwrap_or_default();
    for (file, value) in &asked.unified {
        if file.contains(['/', '\0']) || !file.contains('.') {
            let field = format!("resources.unified[{file:?}]");
            return Err(OciError::invalid(field, "is not a file of a cgroup"));
        }
        all.insert(file.clone(), value.clone());
    }
    resources.set_unified(Some(all));
    Ok(())
}

pub(crate) fn block_io(asked: &BlockIo) -> Result<LinuxBlockIo> {
    if let Some(weight) = asked.weight {
        check_range("resources.block_io.weight", i64::from(weight), 10, 1000)?;
    }
    let weight = |device: &DeviceWeight| {
        LinuxWeightDeviceBuilder::default()
            .major(device.major)
            .minor(device.minor)
            .weight(device.weight)
            .build()
    };
    let weights: std::result::Result<Vec<LinuxWeightDevice>, _> =
        asked.weight_devices.iter().map(weight).collect();
    let weights = weights?;
    let mut block_io = LinuxBlockIo::default();
    block_io
        .set_weight(asked.weight)
        .set_weight_device((!weights.is_empty()).then_some(weights))
        .set_throttle_read_bps_device(rates(&asked.read_bps)?)
        .set_throttle_write_bps_device(rates(&asked.write_bps)?)
        .set_throttle_read_iops_device(rates(&asked.read_iops)?)
        .set_throttle_write_iops_device(rates(&asked.write_iops)?);
    Ok(block_io)
}

fn rates(asked: &[DeviceRate]) -> Result<Option<Vec<LinuxThrottleDevice>>> {
    let rate = |device: &DeviceRate| {
        LinuxThrottleDeviceBuilder::default()
            .major(device.major)
            .minor(device.minor)
            .rate(device.rate)
            .build()
    };
    let rates: Vec<LinuxThrottleDevice> =
        asked.iter().map(rate).collect::<std::result::Result<_, _>>()?;
    Ok((!rates.is_empty()).then_some(rates))
}
