//! Priorities that the OCI runtime cannot give.
//!
//! ```text
//!   first process   waits to be started: every thread of it gets them, and whichever of them
//!                   becomes the container's program keeps them
//!   added process   inherits them from the runtime that makes it; what is not inherited it
//!                   gets as soon as it runs
//! ```

use std::process::Command;

use api_shim::longshore as wire;
use rustix::io::Errno;
use sys::sched::{self, IoPriority, Scheduler};

use crate::{
    error::{Error, Result},
    process::Live,
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Priorities {
    io: Option<IoPriority>,
    scheduler: Option<Scheduler>,
}

impl Priorities {
    pub(crate) fn from_wire(wanted: wire::Priorities) -> Result<Self> {
        let small = |number: u32| {
            let why = || format!("{number} is no number of the kernel's");
            u8::try_from(number).map_err(|_| Error::Invalid { field: "io_priority", why: why() })
        };
        let io = wanted.io.map(|io| -> Result<_> {
            Ok(IoPriority { class: small(io.class)?, level: small(io.level)? })
        });
        let scheduler = wanted.scheduler.map(|s| Scheduler {
            policy: s.policy,
            flags: s.flags,
            nice: s.nice,
            priority: s.priority,
            runtime: s.runtime,
            deadline: s.deadline,
            period: s.period,
        });
        Ok(Self { io: io.transpose()?, scheduler })
    }

    /// To be called before anything is awaited: until the process is reaped, which only this
    /// thread does, the number is its own.
    pub(crate) fn give(&self, live: &Live) -> Result<()> {
        let Live { pid, pidfd: Some(_) } = *live else { return Ok(()) };
        if let Some(io) = self.io {
            let given = sched::each_thread(pid, |thread| sched::set_io_priority(thread, io));
            given.map_err(|error| refused("io_priority", &error, None))?;
        }
        if let Some(scheduler) = &self.scheduler {
            let give = |thread| sched::set_scheduler(thread, scheduler);
            let given = match scheduler.policy {
                // Each thread would take its share of the CPU, and could make no others. The one
                // that becomes the program is the first, in the runtimes there are.
                Scheduler::DEADLINE => give(pid),
                _ => sched::each_thread(pid, give),
            };
            given.map_err(|error| refused("scheduler", &error, Some(scheduler)))?;
        }
        Ok(())
    }

    /// For processes added to the container: what they inherit from who makes them, and what
    /// they do not.
    pub(crate) fn for_added(&self) -> (Self, Self) {
        // Real-time policies would be handed down; but the runtime is in our cgroup, which has
        // no time for them, and cannot go to another with them.
        let handed_down = |s: &Scheduler| {
            let usual = [Scheduler::OTHER, Scheduler::BATCH, Scheduler::IDLE].contains(&s.policy);
            usual && s.flags & Scheduler::RESET_ON_FORK == 0
        };
        let (inherited, late) = match self.scheduler {
            Some(scheduler) if handed_down(&scheduler) => (Some(scheduler), None),
            other => (None, other),
        };
        (Self { io: self.io, scheduler: inherited }, Self { io: None, scheduler: late })
    }

    /// What `command` will start begins with them.
    pub(crate) fn start_with(&self, command: &mut Command) {
        if *self != Self::default() {
            sched::start_with(command, self.io, self.scheduler);
        }
    }
}

fn refused(field: &'static str, error: &sys::Error, scheduler: Option<&Scheduler>) -> Error {
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    let real_time = scheduler.is_some_and(|s| [Scheduler::FIFO, Scheduler::RR].contains(&s.policy));
    let hint = match error.errno() {
        Some(Errno::PERM) if real_time => {
            "; its cgroup may have no real-time runtime, see cpu.rt_runtime_us"
        }
        Some(Errno::PERM) if scheduler.is_some() => {
            "; with a deadline it must be allowed on all CPUs"
        }
        Some(Errno::BUSY) => "; too much CPU time is promised already",
        _ => "",
    };
    Error::Invalid { field, why: format!("the kernel refuses it: {cause}{hint}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheduled(policy: u32, flags: u64) -> Priorities {
        let io = Some(IoPriority { class: 2, level: 6 });
        Priorities { io, scheduler: Some(Scheduler { policy, flags, ..Scheduler::default() }) }
    }

    #[test]
    fn only_what_is_inherited_is_left_to_inheritance() {
        for (policy, flags, inherits) in [
            (Scheduler::BATCH, 0, true),
            (Scheduler::IDLE, Scheduler::KEEP_PARAMS, true),
            (Scheduler::BATCH, Scheduler::RESET_ON_FORK, false),
            (Scheduler::FIFO, 0, false),
            (Scheduler::DEADLINE, 0, false),
        ] {
            let all = scheduled(policy, flags);
            let (inherited, late) = all.for_added();
            assert_eq!((inherited.io, late.io), (all.io, None));
            let (with, without) = if inherits { (inherited, late) } else { (late, inherited) };
            assert_eq!((with.scheduler, without.scheduler), (all.scheduler, None), "{policy}");
        }
        assert_eq!(Priorities::default().for_added(), Default::default());
    }

    #[test]
    fn numbers_that_are_none_are_refused() {
        let io = Some(wire::IoPriority { class: 256, level: 0 });
        let odd = wire::Priorities { io, scheduler: None };
        let error = Priorities::from_wire(odd).unwrap_err();
        assert_eq!(error.to_string(), "io_priority: 256 is no number of the kernel's");
    }
}
