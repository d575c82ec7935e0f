//! What an adjustment does to the process and its hooks.

use nri_wire::api::{
    Field, Hooks, IoPrioClass, KeyValue, LinuxContainerAdjustment, LinuxSchedulerPolicy,
    PosixRlimit,
};
use oci_spec::runtime as oci;

use super::ApplyError;
use crate::{merge::removed, owners::FieldKey};

/// What the kernel takes for an OOM score adjustment.
const OOM_SCORES: std::ops::RangeInclusive<i32> = -1000..=1000;

fn process<'a>(
    spec: &'a mut oci::Spec,
    what: &'static str,
) -> Result<&'a mut oci::Process, ApplyError> {
    spec.process_mut().as_mut().ok_or(ApplyError::NoProcess(what))
}

/// What exists is changed in place, what is new is added at the end.
pub(super) fn env(spec: &mut oci::Spec, changes: &[KeyValue]) -> Result<(), ApplyError> {
    if changes.is_empty() {
        return Ok(());
    }
    changes.iter().try_for_each(check_variable)?;
    let process = process(spec, "the environment")?;
    let mut env = process.env().clone().unwrap_or_default();
    let named = |entry: &str, name: &str| entry.split('=').next() == Some(name);
    let is_set = |name: &str| changes.iter().any(|change| change.key == name);
    for name in changes.iter().filter_map(|change| removed(&change.key)) {
        if !is_set(name) {
            env.retain(|entry| !named(entry, name));
        }
    }
    for change in changes.iter().filter(|change| removed(&change.key).is_none()) {
        let entry = format!("{}={}", change.key, change.value);
        match env.iter_mut().find(|have| named(have, &change.key)) {
            Some(have) => *have = entry,
            None => env.push(entry),
        }
    }
    process.set_env((!env.is_empty()).then_some(env));
    Ok(())
}

/// What no process can have in its environment.
fn check_variable(change: &KeyValue) -> Result<(), ApplyError> {
    let key = removed(&change.key).unwrap_or(&change.key);
    let why = match key {
        "" => "a variable needs a name",
        key if key.contains('=') => "the name of a variable must not hold '='",
        key if key.contains('\0') => "the name of a variable must not hold a NUL byte",
        _ if change.value.contains('\0') => "the value of a variable must not hold a NUL byte",
        _ => return Ok(()),
    };
    Err(ApplyError::value(FieldKey::new(Field::Env, key), why))
}

pub(super) fn args(spec: &mut oci::Spec, args: &[String]) -> Result<(), ApplyError> {
    // An empty first argument only says from whom they are taken.
    let args = match args {
        [first, rest @ ..] if first.is_empty() => rest,
        args => args,
    };
    if !args.is_empty() {
        process(spec, "arguments")?.set_args(Some(args.to_vec()));
    }
    Ok(())
}

/// After those that are there; one that is there already is not added again.
pub(super) fn hooks(spec: &mut oci::Spec, added: Option<&Hooks>) {
    let Some(added) = added.filter(|hooks| **hooks != Hooks::default()) else { return };
    let mut hooks = spec.hooks().clone().unwrap_or_default();
    let extend = |have: &mut Option<Vec<oci::Hook>>, added: &[nri_wire::api::Hook]| {
        for hook in added.iter().map(oci::Hook::from) {
            let list = have.get_or_insert_default();
            if !list.contains(&hook) {
                list.push(hook);
            }
        }
    };
    extend(hooks.prestart_mut(), &added.prestart);
    extend(hooks.create_runtime_mut(), &added.create_runtime);
    extend(hooks.create_container_mut(), &added.create_container);
    extend(hooks.start_container_mut(), &added.start_container);
    extend(hooks.poststart_mut(), &added.poststart);
    extend(hooks.poststop_mut(), &added.poststop);
    spec.set_hooks(Some(hooks));
}

/// OOM score, I/O priority and scheduler.
pub(super) fn priorities(
    spec: &mut oci::Spec,
    adjust: &LinuxContainerAdjustment,
) -> Result<(), ApplyError> {
    if let Some(score) = adjust.oom_score_adj {
        let process = process(spec, "the OOM score")?;
        let taken = i32::try_from(score.value).ok().filter(|score| OOM_SCORES.contains(score));
        let refused = || {
            let why = format!("{} is not in {OOM_SCORES:?}", score.value);
            ApplyError::value(Field::OomScoreAdj.into(), why)
        };
        process.set_oom_score_adj(Some(taken.ok_or_else(refused)?));
    }
    if let Some(io) = &adjust.io_priority {
        let process = process(spec, "the I/O priority")?;
        let none = io.class() == IoPrioClass::IoprioClassNone;
        process.set_io_priority(if none { None } else { Some(io.try_into()?) });
    }
    if let Some(scheduler) = &adjust.scheduler {
        let process = process(spec, "the scheduler")?;
        let none = scheduler.policy() == LinuxSchedulerPolicy::SchedNone;
        process.set_scheduler(if none { None } else { Some(scheduler.try_into()?) });
    }
    Ok(())
}

pub(super) fn rlimits(spec: &mut oci::Spec, changes: &[PosixRlimit]) -> Result<(), ApplyError> {
    if changes.is_empty() {
        return Ok(());
    }
    let process = process(spec, "rlimits")?;
    let mut rlimits = process.rlimits().clone().unwrap_or_default();
    for change in changes {
        let rlimit: oci::PosixRlimit = change.try_into()?;
        if rlimit.soft() > rlimit.hard() {
            let why = format!("soft {} is above hard {}", rlimit.soft(), rlimit.hard());
            return Err(ApplyError::value(FieldKey::new(Field::Rlimits, &change.r#type), why));
        }
        match rlimits.iter_mut().find(|have| have.typ() == rlimit.typ()) {
            Some(have) => *have = rlimit,
            None => rlimits.push(rlimit),
        }
    }
    process.set_rlimits(Some(rlimits));
    Ok(())
}
