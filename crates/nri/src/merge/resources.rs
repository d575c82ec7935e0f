//! Resources: every set member of an answer goes over what is there, and is claimed.

use nri_wire::api::{Field, HugepageLimit, LinuxCpu, LinuxMemory, LinuxResources};

use super::{Ledger, MergeError};

/// Sets in `base` what `update` has set. `update.devices` is not looked at: device rules are
/// part of a creation only.
pub(super) fn overlay(
    ledger: &mut Ledger<'_>,
    base: &mut LinuxResources,
    update: &LinuxResources,
) -> Result<(), MergeError> {
    if let Some(memory) = &update.memory {
        overlay_memory(ledger, base.memory.get_or_insert_default(), memory)?;
    }
    if let Some(cpu) = &update.cpu {
        overlay_cpu(ledger, base.cpu.get_or_insert_default(), cpu)?;
    }
    for limit in &update.hugepage_limits {
        ledger.claim_entry(Field::HugepageLimits, &limit.page_size)?;
        set_hugepages(&mut base.hugepage_limits, limit);
    }
    for (key, value) in &update.unified {
        ledger.claim_entry(Field::CgroupsUnified, key)?;
        base.unified.insert(key.clone(), value.clone());
    }
    set(ledger, Field::BlockioClass, &mut base.blockio_class, update.blockio_class.as_ref())?;
    set(ledger, Field::RdtClass, &mut base.rdt_class, update.rdt_class.as_ref())?;
    set(ledger, Field::PidsLimit, &mut base.pids, update.pids.as_ref())
}

fn overlay_memory(
    ledger: &mut Ledger<'_>,
    base: &mut LinuxMemory,
    update: &LinuxMemory,
) -> Result<(), MergeError> {
    let LinuxMemory {
        limit,
        reservation,
        swap,
        kernel,
        kernel_tcp,
        swappiness,
        disable_oom_killer,
        use_hierarchy,
    } = update;
    set(ledger, Field::MemLimit, &mut base.limit, limit.as_ref())?;
    set(ledger, Field::MemReservation, &mut base.reservation, reservation.as_ref())?;
    set(ledger, Field::MemSwapLimit, &mut base.swap, swap.as_ref())?;
    set(ledger, Field::MemKernelLimit, &mut base.kernel, kernel.as_ref())?;
    set(ledger, Field::MemTcpLimit, &mut base.kernel_tcp, kernel_tcp.as_ref())?;
    set(ledger, Field::MemSwappiness, &mut base.swappiness, swappiness.as_ref())?;
    let killer = &mut base.disable_oom_killer;
    set(ledger, Field::MemDisableOomKiller, killer, disable_oom_killer.as_ref())?;
    set(ledger, Field::MemUseHierarchy, &mut base.use_hierarchy, use_hierarchy.as_ref())
}

fn overlay_cpu(
    ledger: &mut Ledger<'_>,
    base: &mut LinuxCpu,
    update: &LinuxCpu,
) -> Result<(), MergeError> {
    let LinuxCpu { shares, quota, period, realtime_runtime, realtime_period, cpus, mems } = update;
    set(ledger, Field::CpuShares, &mut base.shares, shares.as_ref())?;
    set(ledger, Field::CpuQuota, &mut base.quota, quota.as_ref())?;
    set(ledger, Field::CpuPeriod, &mut base.period, period.as_ref())?;
    let runtime = &mut base.realtime_runtime;
    set(ledger, Field::CpuRealtimeRuntime, runtime, realtime_runtime.as_ref())?;
    let period = &mut base.realtime_period;
    set(ledger, Field::CpuRealtimePeriod, period, realtime_period.as_ref())?;
    set_text(ledger, Field::CpuSetCpUs, &mut base.cpus, cpus)?;
    set_text(ledger, Field::CpuSetMems, &mut base.mems, mems)
}

/// Presence is how a plugin says "set".
pub(super) fn set<T: Clone>(
    ledger: &mut Ledger<'_>,
    field: Field,
    base: &mut Option<T>,
    update: Option<&T>,
) -> Result<(), MergeError> {
    if let Some(value) = update {
        ledger.claim(field)?;
        *base = Some(value.clone());
    }
    Ok(())
}

/// Text has no presence: empty is not set.
pub(super) fn set_text(
    ledger: &mut Ledger<'_>,
    field: Field,
    base: &mut String,
    update: &str,
) -> Result<(), MergeError> {
    if !update.is_empty() {
        ledger.claim(field)?;
        update.clone_into(base);
    }
    Ok(())
}

fn set_hugepages(limits: &mut Vec<HugepageLimit>, limit: &HugepageLimit) {
    match limits.iter_mut().find(|have| have.page_size == limit.page_size) {
        Some(have) => have.limit = limit.limit,
        None => limits.push(limit.clone()),
    }
}

/// Whether nothing is set.
pub(crate) fn is_empty(resources: &LinuxResources) -> bool {
    let LinuxResources {
        memory,
        cpu,
        hugepage_limits,
        blockio_class,
        rdt_class,
        unified,
        devices,
        pids,
    } = resources;
    memory.as_ref().is_none_or(|memory| *memory == LinuxMemory::default())
        && cpu.as_ref().is_none_or(|cpu| *cpu == LinuxCpu::default())
        && (hugepage_limits.is_empty() && unified.is_empty() && devices.is_empty())
        && (blockio_class.is_none() && rdt_class.is_none() && pids.is_none())
}
