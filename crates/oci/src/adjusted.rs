//! What plugins made of a spec, held against what the handler and the host can do.
//!
//! An OCI runtime drops what it does not know without a word; so what a plugin asks for is
//! checked by the same rules as what a user asks for, and refused by the field's name.

use oci_spec::runtime::{Linux, LinuxResources, Process, Spec};

use crate::{
    error::{OciError, Result},
    facts::CgroupDriver,
    linux::{check_heard, from_linux},
    priority,
    request::Resources,
    resources::{self, Ignored, Limits},
};

/// Puts in order what can be, and names the first field that nobody here can do. What was in
/// the spec `before` is not looked at again.
pub fn check_adjusted(before: &Spec, after: &mut Spec, limits: Limits<'_>) -> Result<Vec<Ignored>> {
    let nothing = (Process::default(), Linux::default());
    let old = before.process().as_ref().unwrap_or(&nothing.0);
    if let Some(process) = after.process_mut() {
        check_process(old, process, limits)?;
    }
    let old = before.linux().as_ref().unwrap_or(&nothing.1);
    match after.linux_mut() {
        Some(linux) => {
            check_linux(old, linux, limits)?;
            check_resources(old, linux, limits)
        }
        None => Ok(Vec::new()),
    }
}

fn check_process(before: &Process, after: &mut Process, limits: Limits<'_>) -> Result<()> {
    priority::check(before, after, limits.handler.abilities, |field| limits.unable(field))?;
    // Lower than ours it cannot be without the capability for it.
    if let (Some(score), Some(floor)) = (after.oom_score_adj(), limits.host.oom_score_floor) {
        after.set_oom_score_adj(Some(score.max(floor)));
    }
    Ok(())
}

fn check_linux(before: &Linux, after: &Linux, limits: Limits<'_>) -> Result<()> {
    let abilities = limits.handler.abilities;
    let host = |field: &str, what| Err(OciError::Host { field: field.to_owned(), what });
    if after.net_devices() != before.net_devices() && !abilities.net_devices {
        return Err(limits.unable("net_devices"));
    }
    if after.memory_policy() != before.memory_policy() && !abilities.memory_policy {
        return Err(limits.unable("memory_policy"));
    }
    if after.intel_rdt().is_some() && after.intel_rdt() != before.intel_rdt() {
        if !limits.host.resctrl {
            return host("rdt", "resctrl");
        }
        if !abilities.intel_rdt {
            return Err(limits.unable("rdt"));
        }
    }
    if after.seccomp().is_some() && after.seccomp() != before.seccomp() {
        if !limits.host.seccomp {
            return host("seccomp_policy", "seccomp");
        }
        if !abilities.seccomp {
            return Err(limits.unable("seccomp_policy"));
        }
    }
    if after.cgroups_path() != before.cgroups_path() {
        check_cgroup(after, limits)?;
    }
    Ok(())
}

/// It becomes a directory, or for systemd the name of a unit.
fn check_cgroup(after: &Linux, limits: Limits<'_>) -> Result<()> {
    let path = after.cgroups_path().clone().unwrap_or_default();
    let text = path.to_string_lossy();
    let sound = match limits.handler.cgroup_driver {
        CgroupDriver::Systemd => text.split(':').count() == 3,
        CgroupDriver::Cgroupfs => path.is_absolute(),
    };
    if sound && !text.split('/').any(|part| part == "..") && !text.contains('\0') {
        return Ok(());
    }
    Err(OciError::invalid("cgroups_path", format!("{text:?} is no place for a container")))
}

/// The limits that changed, by the rules for those of a request.
fn check_resources(before: &Linux, after: &mut Linux, limits: Limits<'_>) -> Result<Vec<Ignored>> {
    let nothing = LinuxResources::default();
    let old = before.resources().as_ref().unwrap_or(&nothing);
    let Some(new) = after.resources() else { return Ok(Vec::new()) };
    if new == old {
        return Ok(Vec::new());
    }
    check_heard(new)?;
    let asked = changed(&from_linux(old), from_linux(new));
    let mut all = old.clone();
    let ignored = resources::apply(&mut all, &asked, limits)?;
    all.set_devices(new.devices().clone()).set_block_io(new.block_io().clone());
    after.set_resources(Some(all));
    Ok(ignored)
}

/// What of `new` is not as it was. Swap goes with the limit it contains.
fn changed(old: &Resources, new: Resources) -> Resources {
    fn differs<T: PartialEq>(old: &Option<T>, new: Option<T>) -> Option<T> {
        new.filter(|new| old.as_ref() != Some(new))
    }
    let memory_limit = differs(&old.memory_limit, new.memory_limit);
    Resources {
        cpu_shares: differs(&old.cpu_shares, new.cpu_shares),
        cpu_quota: differs(&old.cpu_quota, new.cpu_quota),
        cpu_period: differs(&old.cpu_period, new.cpu_period),
        cpu_realtime_runtime: differs(&old.cpu_realtime_runtime, new.cpu_realtime_runtime),
        cpu_realtime_period: differs(&old.cpu_realtime_period, new.cpu_realtime_period),
        cpuset_cpus: differs(&old.cpuset_cpus, new.cpuset_cpus),
        cpuset_mems: differs(&old.cpuset_mems, new.cpuset_mems),
        memory_swap: match memory_limit {
            Some(_) => new.memory_swap,
            None => differs(&old.memory_swap, new.memory_swap),
        },
        memory_limit,
        memory_reservation: differs(&old.memory_reservation, new.memory_reservation),
        memory_swappiness: differs(&old.memory_swappiness, new.memory_swappiness),
        oom_kill_disable: differs(&old.oom_kill_disable, new.oom_kill_disable),
        hugepages: new.hugepages.into_iter().filter(|h| !old.hugepages.contains(h)).collect(),
        unified: new.unified.into_iter().filter(|(k, v)| old.unified.get(k) != Some(v)).collect(),
        pids_limit: differs(&old.pids_limit, new.pids_limit),
        oom_score_adj: None,
        block_io: None,
    }
}
