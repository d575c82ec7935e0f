//! What an adjustment does to resources: limits, device rules, classes, RDT.

use nri_wire::api::{Field, LinuxCpu, LinuxMemory, LinuxRdt, LinuxResources, OptionalString};
use oci_spec::runtime as oci;

use super::{ApplyError, Host};

pub(super) fn resources(
    linux: &mut oci::Linux,
    adjust: &LinuxResources,
    host: &dyn Host,
) -> Result<(), ApplyError> {
    let mut all = linux.resources().clone().unwrap_or_default();
    overlay(&mut all, adjust)?;
    let rules: Result<Vec<_>, _> = adjust.devices.iter().map(TryInto::try_into).collect();
    let rules: Vec<oci::LinuxDeviceCgroup> = rules?;
    append_rules(&mut all, rules);
    host.check_resources(&mut all).map_err(ApplyError::host("check resources", []))?;
    block_io_class(&mut all, adjust.blockio_class.as_ref(), host)?;
    let nothing = linux.resources().is_none() && all == oci::LinuxResources::default();
    if !nothing {
        linux.set_resources(Some(all));
    }
    rdt_class(linux, adjust.rdt_class.as_ref(), host)
}

/// Sets what is set, and no more.
pub(crate) fn overlay(
    all: &mut oci::LinuxResources,
    adjust: &LinuxResources,
) -> Result<(), ApplyError> {
    if let Some(cpu) = adjust.cpu.as_ref().filter(|cpu| **cpu != LinuxCpu::default()) {
        overlay_cpu(all.cpu_mut().get_or_insert_default(), cpu);
    }
    if let Some(memory) = adjust.memory.as_ref().filter(|m| **m != LinuxMemory::default()) {
        overlay_memory(all.memory_mut().get_or_insert_default(), memory);
    }
    for limit in &adjust.hugepage_limits {
        let limit: oci::LinuxHugepageLimit = limit.into();
        let limits = all.hugepage_limits_mut().get_or_insert_default();
        match limits.iter_mut().find(|have| have.page_size() == limit.page_size()) {
            Some(have) => *have = limit,
            None => limits.push(limit),
        }
    }
    for (key, value) in &adjust.unified {
        all.unified_mut().get_or_insert_default().insert(key.clone(), value.clone());
    }
    if let Some(pids) = &adjust.pids {
        all.set_pids(Some(pids.into()));
    }
    Ok(())
}

fn overlay_cpu(cpu: &mut oci::LinuxCpu, adjust: &LinuxCpu) {
    if let Some(shares) = adjust.shares {
        cpu.set_shares(Some(shares.value));
    }
    if let Some(quota) = adjust.quota {
        cpu.set_quota(Some(quota.value));
    }
    if let Some(period) = adjust.period {
        cpu.set_period(Some(period.value));
    }
    if let Some(runtime) = adjust.realtime_runtime {
        cpu.set_realtime_runtime(Some(runtime.value));
    }
    if let Some(period) = adjust.realtime_period {
        cpu.set_realtime_period(Some(period.value));
    }
    if !adjust.cpus.is_empty() {
        cpu.set_cpus(Some(adjust.cpus.clone()));
    }
    if !adjust.mems.is_empty() {
        cpu.set_mems(Some(adjust.mems.clone()));
    }
}

fn overlay_memory(memory: &mut oci::LinuxMemory, adjust: &LinuxMemory) {
    let before = (memory.limit(), memory.swap());
    if let Some(limit) = adjust.limit {
        memory.set_limit(Some(limit.value));
    }
    if let Some(reservation) = adjust.reservation {
        memory.set_reservation(Some(reservation.value));
    }
    if let Some(kernel) = adjust.kernel {
        memory.set_kernel(Some(kernel.value));
    }
    if let Some(kernel) = adjust.kernel_tcp {
        memory.set_kernel_tcp(Some(kernel.value));
    }
    if let Some(swappiness) = adjust.swappiness {
        memory.set_swappiness(Some(swappiness.value));
    }
    if let Some(disable) = adjust.disable_oom_killer {
        memory.set_disable_oom_killer(Some(disable.value));
    }
    if let Some(hierarchy) = adjust.use_hierarchy {
        memory.set_use_hierarchy(Some(hierarchy.value));
    }
    if let Some(swap) = adjust.swap {
        memory.set_swap(Some(swap.value));
    } else if let Some(limit) = adjust.limit {
        memory.set_swap(Some(follow(limit.value, before)));
    }
    // Swap counts memory in: below the limit it is no setting any kernel takes.
    if let (Some(limit), Some(swap)) = (memory.limit(), memory.swap())
        && (0..limit).contains(&swap)
    {
        memory.set_swap(Some(limit));
    }
}

/// The swap that goes with a new limit: none, as it was while swap was the limit or was not
/// set, else what somebody set it to.
fn follow(limit: i64, before: (Option<i64>, Option<i64>)) -> i64 {
    match before {
        (_, None) => limit,
        (old, Some(swap)) if old == Some(swap) => limit,
        (_, Some(swap)) => swap,
    }
}

// === device rules ===

/// Read and write, and for block devices also the making of nodes.
pub(super) fn rule_for(device: &oci::LinuxDevice) -> oci::LinuxDeviceCgroup {
    let access = if device.typ() == oci::LinuxDeviceType::B { "rwm" } else { "rw" };
    let mut rule = oci::LinuxDeviceCgroup::from(device);
    rule.set_access(Some(access.to_owned()));
    rule
}

pub(super) fn add_rules(linux: &mut oci::Linux, rules: Vec<oci::LinuxDeviceCgroup>) {
    if !rules.is_empty() {
        append_rules(linux.resources_mut().get_or_insert_default(), rules);
    }
}

/// The last rule that matches decides, so the same rule earlier says nothing.
fn append_rules(all: &mut oci::LinuxResources, rules: Vec<oci::LinuxDeviceCgroup>) {
    for rule in rules {
        let have = all.devices_mut().get_or_insert_default();
        have.retain(|other| *other != rule);
        have.push(rule);
    }
}

// === classes ===

fn block_io_class(
    all: &mut oci::LinuxResources,
    class: Option<&OptionalString>,
    host: &dyn Host,
) -> Result<(), ApplyError> {
    match class.map(|class| class.value.as_str()) {
        None => {}
        Some("") => drop(all.set_block_io(None)),
        Some(class) => {
            let doing = format!("resolve block I/O class {class:?}");
            let refused = ApplyError::host(doing, [Field::BlockioClass.into()]);
            let block_io = host.block_io(class).map_err(refused)?;
            all.set_block_io(Some(block_io));
        }
    }
    Ok(())
}

fn rdt_class(
    linux: &mut oci::Linux,
    class: Option<&OptionalString>,
    host: &dyn Host,
) -> Result<(), ApplyError> {
    match class.map(|class| class.value.as_str()) {
        None => {}
        Some("") => drop(linux.set_intel_rdt(None)),
        Some(class) => {
            let doing = format!("resolve RDT class {class:?}");
            let refused = ApplyError::host(doing, [Field::RdtClass.into()]);
            let rdt = host.rdt(class).map_err(refused)?;
            linux.set_intel_rdt(Some(rdt));
        }
    }
    Ok(())
}

pub(super) fn rdt(linux: &mut oci::Linux, adjust: &LinuxRdt) {
    if adjust.remove {
        linux.set_intel_rdt(None);
    }
    let LinuxRdt { clos_id, schemata, enable_monitoring, remove: _ } = adjust;
    if clos_id.is_none() && schemata.is_none() && enable_monitoring.is_none() {
        return;
    }
    let rdt = linux.intel_rdt_mut().get_or_insert_default();
    if let Some(clos_id) = clos_id {
        rdt.set_clos_id(Some(clos_id.value.clone()));
    }
    if let Some(schemata) = schemata {
        rdt.set_schemata(Some(schemata.value.clone()));
    }
    if let Some(enable) = enable_monitoring {
        rdt.set_enable_monitoring(Some(enable.value));
    }
}
