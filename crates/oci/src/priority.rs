//! Priorities of a container's processes: who gives them, the OCI runtime or our shim.
//!
//! A runtime that does not know them starts the container without, and says nothing. Our shim can
//! give them as well; so what the runtime lacks is taken out of the spec and handed to the shim.

use oci_spec::runtime::{
    LinuxIOPriority, LinuxSchedulerFlag, LinuxSchedulerPolicy, Process, Scheduler, Spec,
};
use serde::{Deserialize, Serialize};

use crate::{
    abilities::Abilities,
    error::{OciError, Result},
};

const IO: &str = "io_priority";
const SCHEDULER: &str = "scheduler";

/// What our shim gives the first process of a container, and those added to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Priorities {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_priority: Option<LinuxIOPriority>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<Scheduler>,
}

impl Priorities {
    /// Takes out of a spec what its runtime would not do, and our shim does.
    pub fn take(spec: &mut Spec, abilities: Abilities) -> Self {
        let mut taken = Self::default();
        let Some(process) = spec.process_mut().as_mut() else { return taken };
        if !abilities.shim_sets_priorities {
            return taken;
        }
        if !abilities.io_priority {
            taken.io_priority = *process.io_priority();
            process.set_io_priority(None);
        }
        if !abilities.scheduler || process.scheduler().as_ref().is_some_and(is_misspelt) {
            taken.scheduler = process.scheduler().clone();
            process.set_scheduler(None);
        }
        taken
    }

    /// Into the spec they were taken out of, for those who look at it.
    pub fn put_back(&self, spec: &mut Spec) {
        let Some(process) = spec.process_mut().as_mut() else { return };
        if self.io_priority.is_some() {
            process.set_io_priority(self.io_priority);
        }
        if self.scheduler.is_some() {
            process.set_scheduler(self.scheduler.clone());
        }
    }
}

/// What plugins changed, if it can be.
pub(crate) fn check(
    before: &Process,
    after: &Process,
    abilities: Abilities,
    unable: impl Fn(&str) -> OciError,
) -> Result<()> {
    let by_shim = abilities.shim_sets_priorities;
    if let Some(io) = after.io_priority()
        && after.io_priority() != before.io_priority()
    {
        check_io(io)?;
        if !by_shim && !abilities.io_priority {
            return Err(unable(IO));
        }
    }
    if let Some(scheduler) = after.scheduler()
        && after.scheduler() != before.scheduler()
    {
        check_scheduler(scheduler)?;
        if !by_shim && (!abilities.scheduler || is_misspelt(scheduler)) {
            return Err(unable(SCHEDULER));
        }
    }
    Ok(())
}

fn check_io(io: &LinuxIOPriority) -> Result<()> {
    let level = io.priority();
    if !(0..=7).contains(&level) {
        return Err(OciError::invalid(IO, format!("{level} is not in 0..=7")));
    }
    Ok(())
}

/// What the kernel would refuse, or drop without a word.
fn check_scheduler(scheduler: &Scheduler) -> Result<()> {
    use LinuxSchedulerPolicy::{SchedDeadline, SchedFifo, SchedIso, SchedRr};
    let policy = *scheduler.policy();
    let invalid = |why: String| Err(OciError::invalid(SCHEDULER, why));
    let nice = scheduler.nice().unwrap_or_default();
    let priority = scheduler.priority().unwrap_or_default();
    let times = [scheduler.runtime(), scheduler.deadline(), scheduler.period()];
    let timed = times.iter().any(|time| time.unwrap_or_default() != 0);
    if policy == SchedIso {
        return invalid(format!("{policy} is not in Linux"));
    }
    if !(-20..=19).contains(&nice) {
        return invalid(format!("nice: {nice} is not in -20..=19"));
    }
    match matches!(policy, SchedFifo | SchedRr) {
        true if !(1..=99).contains(&priority) => {
            return invalid(format!("priority: {priority} is not in 1..=99"));
        }
        false if priority != 0 => return invalid(format!("{policy} has no priority")),
        _ => {}
    }
    match policy == SchedDeadline {
        true if !timed => invalid(format!("{policy} needs a runtime and a deadline")),
        false if timed => invalid(format!("{policy} has no runtime, deadline or period")),
        _ => Ok(()),
    }
}

/// The library writes two flags under names that no runtime knows.
fn is_misspelt(scheduler: &Scheduler) -> bool {
    use LinuxSchedulerFlag::{SchedFlagDLOverrun, SchedResetOnFork};
    let misspelt =
        |flag: &LinuxSchedulerFlag| matches!(flag, SchedResetOnFork | SchedFlagDLOverrun);
    scheduler.flags().iter().flatten().any(misspelt)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn old() -> Abilities {
        Abilities { io_priority: false, scheduler: false, ..Abilities::default() }
    }

    fn foreign(abilities: Abilities) -> Abilities {
        Abilities { shim_sets_priorities: false, ..abilities }
    }

    fn spec(process: &Value) -> Spec {
        let user = json!({ "uid": 0, "gid": 0 });
        let mut process = process.clone();
        process["cwd"] = "/".into();
        process["user"] = user;
        serde_json::from_value(json!({ "ociVersion": "1.0.2", "process": process })).unwrap()
    }

    fn io(class: &str, priority: i64) -> Value {
        json!({ "ioPriority": { "class": class, "priority": priority } })
    }

    #[track_caller]
    fn check_asked(process: &Value, abilities: Abilities, want: Result<(), &str>) {
        let (before, after) = (spec(&json!({})), spec(process));
        let (before, after) =
            (before.process().as_ref().unwrap(), after.process().as_ref().unwrap());
        let unable = |field: &str| OciError::invalid(field, "unable");
        let got = check(before, after, abilities, unable).map_err(|e| e.to_string());
        assert_eq!(got, want.map_err(str::to_owned), "{process}");
    }

    #[test]
    fn somebody_must_be_able_to() {
        let both = json!({
            "ioPriority": { "class": "IOPRIO_CLASS_RT", "priority": 7 },
            "scheduler": { "policy": "SCHED_BATCH", "nice": 5 },
        });
        let all = Abilities::default();
        check_asked(&both, all, Ok(()));
        check_asked(&both, old(), Ok(()));
        check_asked(&both, foreign(all), Ok(()));
        let nobody = foreign(old());
        check_asked(&both, nobody, Err("io_priority: unable"));
        let able = Abilities { io_priority: true, ..nobody };
        check_asked(&both, able, Err("scheduler: unable"));
        let misspelt =
            json!({ "scheduler": { "policy": "SCHED_OTHER", "flags": ["SCHED_RESET_ON_FORK"] } });
        check_asked(&misspelt, foreign(all), Err("scheduler: unable"));
        check_asked(&misspelt, all, Ok(()));
    }

    #[test]
    fn what_the_kernel_does_not_know_is_refused_by_name() {
        let bad_io = |class, level, why: &str| {
            check_asked(
                &io(class, level),
                Abilities::default(),
                Err(&format!("io_priority: {why}")),
            );
        };
        bad_io("IOPRIO_CLASS_BE", 8, "8 is not in 0..=7");
        bad_io("IOPRIO_CLASS_BE", -1, "-1 is not in 0..=7");
        check_asked(&io("IOPRIO_CLASS_IDLE", 0), Abilities::default(), Ok(()));
        for (scheduler, why) in [
            (json!({ "policy": "SCHED_OTHER", "nice": 20 }), "nice: 20 is not in -20..=19"),
            (json!({ "policy": "SCHED_FIFO" }), "priority: 0 is not in 1..=99"),
            (json!({ "policy": "SCHED_BATCH", "priority": 1 }), "SCHED_BATCH has no priority"),
            (json!({ "policy": "SCHED_ISO" }), "SCHED_ISO is not in Linux"),
            (
                json!({ "policy": "SCHED_DEADLINE" }),
                "SCHED_DEADLINE needs a runtime and a deadline",
            ),
            (
                json!({ "policy": "SCHED_IDLE", "runtime": 5 }),
                "SCHED_IDLE has no runtime, deadline or period",
            ),
        ] {
            let want = format!("scheduler: {why}");
            check_asked(&json!({ "scheduler": scheduler }), Abilities::default(), Err(&want));
        }
        let deadline = json!({ "policy": "SCHED_DEADLINE", "runtime": 1, "deadline": 2 });
        check_asked(&json!({ "scheduler": deadline }), Abilities::default(), Ok(()));
    }

    #[test]
    fn what_the_runtime_lacks_is_taken_out_and_can_be_put_back() {
        let mut process = io("IOPRIO_CLASS_BE", 6);
        process["scheduler"] = json!({ "policy": "SCHED_BATCH", "nice": 5 });
        let whole = spec(&process);
        for (abilities, taken_io, taken_scheduler) in [
            (Abilities::default(), false, false),
            (old(), true, true),
            (Abilities { scheduler: true, ..old() }, true, false),
            (foreign(old()), false, false),
        ] {
            let mut rest = whole.clone();
            let taken = Priorities::take(&mut rest, abilities);
            let left = rest.process().as_ref().unwrap();
            assert_eq!(taken.io_priority.is_some(), taken_io);
            assert_eq!(left.io_priority().is_none(), taken_io);
            assert_eq!(taken.scheduler.is_some(), taken_scheduler);
            assert_eq!(left.scheduler().is_none(), taken_scheduler);
            let kept: Priorities =
                serde_json::from_value(serde_json::to_value(&taken).unwrap()).unwrap();
            assert_eq!(kept, taken);
            kept.put_back(&mut rest);
            assert_eq!(rest, whole);
        }
    }

    /// Once the library spells them right, the runtime may have them.
    #[test]
    fn two_flags_are_misspelt_by_the_library() {
        let text = |flag| serde_json::to_value::<LinuxSchedulerFlag>(flag).unwrap();
        assert_eq!(text(LinuxSchedulerFlag::SchedResetOnFork), "SCHED_RESET_ON_FORK");
        assert_eq!(text(LinuxSchedulerFlag::SchedFlagDLOverrun), "SCHED_FLAG_D_L_OVERRUN");
        assert_eq!(text(LinuxSchedulerFlag::SchedFlagReclaim), "SCHED_FLAG_RECLAIM");
    }
}
