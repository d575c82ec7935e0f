//! Priorities as the kernel counts them.

use oci::{IOPriorityClass, LinuxSchedulerFlag, LinuxSchedulerPolicy};
use shim_client::{IoPriority, Priorities, Scheduler};

/// What the shim is told. The values were checked when the container was created.
pub(super) fn of(wanted: &oci::Priorities) -> Priorities {
    let io = wanted.io_priority.as_ref().map(|io| IoPriority {
        class: match io.class() {
            IOPriorityClass::IoprioClassRt => 1,
            IOPriorityClass::IoprioClassBe => 2,
            IOPriorityClass::IoprioClassIdle => 3,
        },
        level: u8::try_from(io.priority()).unwrap_or(u8::MAX),
    });
    Priorities { io, scheduler: wanted.scheduler.as_ref().map(scheduler) }
}

fn scheduler(wanted: &oci::Scheduler) -> Scheduler {
    let flags = wanted.flags().iter().flatten().map(flag);
    Scheduler {
        policy: match wanted.policy() {
            LinuxSchedulerPolicy::SchedOther => Scheduler::OTHER,
            LinuxSchedulerPolicy::SchedFifo => Scheduler::FIFO,
            LinuxSchedulerPolicy::SchedRr => Scheduler::RR,
            LinuxSchedulerPolicy::SchedBatch => Scheduler::BATCH,
            LinuxSchedulerPolicy::SchedIso => Scheduler::ISO,
            LinuxSchedulerPolicy::SchedIdle => Scheduler::IDLE,
            LinuxSchedulerPolicy::SchedDeadline => Scheduler::DEADLINE,
        },
        flags: flags.fold(0, |all, flag| all | flag),
        nice: wanted.nice().unwrap_or_default(),
        priority: wanted.priority().unwrap_or_default().try_into().unwrap_or(u32::MAX),
        runtime: wanted.runtime().unwrap_or_default(),
        deadline: wanted.deadline().unwrap_or_default(),
        period: wanted.period().unwrap_or_default(),
    }
}

fn flag(flag: &LinuxSchedulerFlag) -> u64 {
    match flag {
        LinuxSchedulerFlag::SchedResetOnFork => Scheduler::RESET_ON_FORK,
        LinuxSchedulerFlag::SchedFlagReclaim => Scheduler::RECLAIM,
        LinuxSchedulerFlag::SchedFlagDLOverrun => Scheduler::DL_OVERRUN,
        LinuxSchedulerFlag::SchedFlagKeepPolicy => Scheduler::KEEP_POLICY,
        LinuxSchedulerFlag::SchedFlagKeepParams => Scheduler::KEEP_PARAMS,
        LinuxSchedulerFlag::SchedFlagUtilClampMin => Scheduler::UTIL_CLAMP_MIN,
        LinuxSchedulerFlag::SchedFlagUtilClampMax => Scheduler::UTIL_CLAMP_MAX,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_become_the_numbers_of_the_kernel() {
        let wanted = json!({
            "io_priority": { "class": "IOPRIO_CLASS_IDLE", "priority": 4 },
            "scheduler": {
                "policy": "SCHED_DEADLINE",
                "flags": ["SCHED_RESET_ON_FORK", "SCHED_FLAG_RECLAIM"],
                "runtime": 1, "deadline": 2, "period": 3,
            },
        });
        let got = of(&serde_json::from_value(wanted).unwrap());
        assert_eq!(got.io, Some(IoPriority { class: 3, level: 4 }));
        let want = Scheduler {
            policy: 6,
            flags: 3,
            runtime: 1,
            deadline: 2,
            period: 3,
            ..Scheduler::default()
        };
        assert_eq!(got.scheduler, Some(want));
        let batch = json!({ "scheduler": { "policy": "SCHED_BATCH", "nice": -5 } });
        let got = of(&serde_json::from_value(batch).unwrap()).scheduler.unwrap();
        assert_eq!((got.policy, got.nice, got.flags), (3, -5, 0));
        assert_eq!(of(&oci::Priorities::default()), Priorities::default());
    }
}
