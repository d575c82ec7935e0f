//! The process of a container: limits, priorities, scheduling, system calls, memory policy.

use std::path::PathBuf;

use oci_spec::runtime as oci;

use super::{UnknownName, named, non_empty, path_text, text};
use crate::api::{
    IoPrioClass, LinuxIoPriority, LinuxMemoryPolicy, LinuxScheduler, LinuxSchedulerFlag,
    LinuxSchedulerPolicy, LinuxSeccomp, LinuxSeccompArg, LinuxSyscall, MpolFlag, MpolMode,
    OptionalUInt32, PosixRlimit, User,
};

fn errno(value: Option<u32>) -> Option<OptionalUInt32> {
    value.map(|value| OptionalUInt32 { value })
}

impl From<&oci::User> for User {
    fn from(user: &oci::User) -> Self {
        let additional_gids = user.additional_gids().clone().unwrap_or_default();
        Self { uid: user.uid(), gid: user.gid(), additional_gids }
    }
}

impl From<&oci::PosixRlimit> for PosixRlimit {
    fn from(rlimit: &oci::PosixRlimit) -> Self {
        Self { r#type: rlimit.typ().to_string(), hard: rlimit.hard(), soft: rlimit.soft() }
    }
}

impl TryFrom<&PosixRlimit> for oci::PosixRlimit {
    type Error = UnknownName;

    fn try_from(rlimit: &PosixRlimit) -> Result<Self, UnknownName> {
        let kind: oci::PosixRlimitType = named("rlimit", &rlimit.r#type)?;
        let built = oci::PosixRlimitBuilder::default().typ(kind).hard(rlimit.hard);
        Ok(built.soft(rlimit.soft).build().expect("no part of it is required"))
    }
}

impl From<&oci::LinuxIOPriority> for LinuxIoPriority {
    fn from(io: &oci::LinuxIOPriority) -> Self {
        let class = match io.class() {
            oci::IOPriorityClass::IoprioClassRt => IoPrioClass::IoprioClassRt,
            oci::IOPriorityClass::IoprioClassBe => IoPrioClass::IoprioClassBe,
            oci::IOPriorityClass::IoprioClassIdle => IoPrioClass::IoprioClassIdle,
        };
        Self { class: class.into(), priority: i32::try_from(io.priority()).unwrap_or(i32::MAX) }
    }
}

/// The class "none" has no counterpart: it is how a plugin removes the setting.
impl TryFrom<&LinuxIoPriority> for oci::LinuxIOPriority {
    type Error = UnknownName;

    fn try_from(io: &LinuxIoPriority) -> Result<Self, UnknownName> {
        let class: oci::IOPriorityClass = named("I/O priority class", io.class().as_str_name())?;
        let built = oci::LinuxIOPriorityBuilder::default().class(class).priority(io.priority);
        Ok(built.build().expect("no part of it is required"))
    }
}

// === scheduler ===

impl From<&oci::Scheduler> for LinuxScheduler {
    fn from(scheduler: &oci::Scheduler) -> Self {
        let policy = LinuxSchedulerPolicy::from_str_name(&scheduler.policy().to_string());
        let flags = scheduler.flags().iter().flatten().map(|flag| i32::from(flag_of(*flag)));
        Self {
            policy: policy.unwrap_or(LinuxSchedulerPolicy::SchedNone).into(),
            nice: scheduler.nice().unwrap_or_default(),
            priority: scheduler.priority().unwrap_or_default(),
            flags: flags.collect(),
            runtime: scheduler.runtime().unwrap_or_default(),
            deadline: scheduler.deadline().unwrap_or_default(),
            period: scheduler.period().unwrap_or_default(),
        }
    }
}

fn flag_of(flag: oci::LinuxSchedulerFlag) -> LinuxSchedulerFlag {
    match flag {
        oci::LinuxSchedulerFlag::SchedResetOnFork => LinuxSchedulerFlag::SchedFlagResetOnFork,
        oci::LinuxSchedulerFlag::SchedFlagReclaim => LinuxSchedulerFlag::SchedFlagReclaim,
        oci::LinuxSchedulerFlag::SchedFlagDLOverrun => LinuxSchedulerFlag::SchedFlagDlOverrun,
        oci::LinuxSchedulerFlag::SchedFlagKeepPolicy => LinuxSchedulerFlag::SchedFlagKeepPolicy,
        oci::LinuxSchedulerFlag::SchedFlagKeepParams => LinuxSchedulerFlag::SchedFlagKeepParams,
        oci::LinuxSchedulerFlag::SchedFlagUtilClampMin => LinuxSchedulerFlag::SchedFlagUtilClampMin,
        oci::LinuxSchedulerFlag::SchedFlagUtilClampMax => LinuxSchedulerFlag::SchedFlagUtilClampMax,
    }
}

fn oci_flag(flag: LinuxSchedulerFlag) -> oci::LinuxSchedulerFlag {
    match flag {
        LinuxSchedulerFlag::SchedFlagResetOnFork => oci::LinuxSchedulerFlag::SchedResetOnFork,
        LinuxSchedulerFlag::SchedFlagReclaim => oci::LinuxSchedulerFlag::SchedFlagReclaim,
        LinuxSchedulerFlag::SchedFlagDlOverrun => oci::LinuxSchedulerFlag::SchedFlagDLOverrun,
        LinuxSchedulerFlag::SchedFlagKeepPolicy => oci::LinuxSchedulerFlag::SchedFlagKeepPolicy,
        LinuxSchedulerFlag::SchedFlagKeepParams => oci::LinuxSchedulerFlag::SchedFlagKeepParams,
        LinuxSchedulerFlag::SchedFlagUtilClampMin => oci::LinuxSchedulerFlag::SchedFlagUtilClampMin,
        LinuxSchedulerFlag::SchedFlagUtilClampMax => oci::LinuxSchedulerFlag::SchedFlagUtilClampMax,
    }
}

/// The policy "none" has no counterpart: it is how a plugin removes the setting.
impl TryFrom<&LinuxScheduler> for oci::Scheduler {
    type Error = UnknownName;

    fn try_from(scheduler: &LinuxScheduler) -> Result<Self, UnknownName> {
        let policy = named("scheduling policy", scheduler.policy().as_str_name())?;
        let set = |value: i32| (value != 0).then_some(value);
        let large = |value: u64| (value != 0).then_some(value);
        let mut out = Self::default();
        out.set_policy(policy)
            .set_nice(set(scheduler.nice))
            .set_priority(set(scheduler.priority))
            .set_flags(non_empty(scheduler.flags().map(oci_flag).collect()))
            .set_runtime(large(scheduler.runtime))
            .set_deadline(large(scheduler.deadline))
            .set_period(large(scheduler.period));
        Ok(out)
    }
}

// === seccomp ===

impl From<&oci::LinuxSeccomp> for LinuxSeccomp {
    fn from(seccomp: &oci::LinuxSeccomp) -> Self {
        let architectures = seccomp.architectures().iter().flatten();
        let flags = seccomp.flags().iter().flatten();
        Self {
            default_action: seccomp.default_action().to_string(),
            default_errno: errno(seccomp.default_errno_ret()),
            architectures: architectures.map(ToString::to_string).collect(),
            flags: flags.map(ToString::to_string).collect(),
            listener_path: seccomp.listener_path().as_deref().map(path_text).unwrap_or_default(),
            listener_metadata: seccomp.listener_metadata().clone().unwrap_or_default(),
            syscalls: seccomp.syscalls().iter().flatten().map(Into::into).collect(),
        }
    }
}

impl TryFrom<&LinuxSeccomp> for oci::LinuxSeccomp {
    type Error = UnknownName;

    fn try_from(seccomp: &LinuxSeccomp) -> Result<Self, UnknownName> {
        let architectures: Result<Vec<oci::Arch>, _> =
            seccomp.architectures.iter().map(|arch| named("architecture", arch)).collect();
        let flags: Result<Vec<oci::LinuxSeccompFilterFlag>, _> =
            seccomp.flags.iter().map(|flag| named("seccomp flag", flag)).collect();
        let syscalls: Result<Vec<_>, _> = seccomp.syscalls.iter().map(TryInto::try_into).collect();
        let mut out = Self::default();
        out.set_default_action(named("seccomp action", &seccomp.default_action)?)
            .set_default_errno_ret(seccomp.default_errno.map(|errno| errno.value))
            .set_architectures(non_empty(architectures?))
            .set_flags(non_empty(flags?))
            .set_listener_path(text(&seccomp.listener_path).map(PathBuf::from))
            .set_listener_metadata(text(&seccomp.listener_metadata))
            .set_syscalls(non_empty(syscalls?));
        Ok(out)
    }
}

impl From<&oci::LinuxSyscall> for LinuxSyscall {
    fn from(syscall: &oci::LinuxSyscall) -> Self {
        let arg = |arg: &oci::LinuxSeccompArg| LinuxSeccompArg {
            index: u32::try_from(arg.index()).unwrap_or(u32::MAX),
            value: arg.value(),
            value_two: arg.value_two().unwrap_or_default(),
            op: arg.op().to_string(),
        };
        Self {
            names: syscall.names().clone(),
            action: syscall.action().to_string(),
            errno_ret: errno(syscall.errno_ret()),
            args: syscall.args().iter().flatten().map(arg).collect(),
        }
    }
}

impl TryFrom<&LinuxSyscall> for oci::LinuxSyscall {
    type Error = UnknownName;

    fn try_from(syscall: &LinuxSyscall) -> Result<Self, UnknownName> {
        let args: Result<Vec<_>, _> = syscall.args.iter().map(TryInto::try_into).collect();
        let mut out = Self::default();
        out.set_names(syscall.names.clone())
            .set_action(named("seccomp action", &syscall.action)?)
            .set_errno_ret(syscall.errno_ret.map(|errno| errno.value))
            .set_args(non_empty(args?));
        Ok(out)
    }
}

impl TryFrom<&LinuxSeccompArg> for oci::LinuxSeccompArg {
    type Error = UnknownName;

    fn try_from(arg: &LinuxSeccompArg) -> Result<Self, UnknownName> {
        let op: oci::LinuxSeccompOperator = named("seccomp operator", &arg.op)?;
        let built = oci::LinuxSeccompArgBuilder::default().index(arg.index as usize).op(op);
        let built = built.value(arg.value).value_two(arg.value_two);
        Ok(built.build().expect("no part of it is required"))
    }
}

// === memory policy ===

impl TryFrom<&LinuxMemoryPolicy> for oci::LinuxMemoryPolicy {
    type Error = UnknownName;

    fn try_from(policy: &LinuxMemoryPolicy) -> Result<Self, UnknownName> {
        let flags: Result<Vec<oci::MemoryPolicyFlagType>, _> =
            policy.flags().map(|flag| named("memory policy flag", flag.as_str_name())).collect();
        let mut out = Self::default();
        out.set_mode(named("memory policy", policy.mode().as_str_name())?)
            .set_nodes(text(&policy.nodes))
            .set_flags(non_empty(flags?));
        Ok(out)
    }
}

impl From<&oci::LinuxMemoryPolicy> for LinuxMemoryPolicy {
    fn from(policy: &oci::LinuxMemoryPolicy) -> Self {
        let mode = MpolMode::from_str_name(&policy.mode().to_string());
        let flags = policy.flags().iter().flatten();
        let flags = flags.filter_map(|flag| MpolFlag::from_str_name(&flag.to_string()));
        Self {
            mode: mode.unwrap_or(MpolMode::MpolDefault).into(),
            nodes: policy.nodes().clone().unwrap_or_default(),
            flags: flags.map(i32::from).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rlimit_has_one_name() {
        let names = [
            "CPU",
            "FSIZE",
            "DATA",
            "STACK",
            "CORE",
            "RSS",
            "NPROC",
            "NOFILE",
            "MEMLOCK",
            "AS",
            "LOCKS",
            "SIGPENDING",
            "MSGQUEUE",
            "NICE",
            "RTPRIO",
            "RTTIME",
        ];
        for name in names {
            let wire = PosixRlimit { r#type: format!("RLIMIT_{name}"), hard: 2, soft: 1 };
            assert_eq!(PosixRlimit::from(&oci::PosixRlimit::try_from(&wire).unwrap()), wire);
        }
        let odd = PosixRlimit { r#type: "nofile".to_owned(), hard: 0, soft: 0 };
        assert!(oci::PosixRlimit::try_from(&odd).is_err());
    }

    #[test]
    fn every_policy_and_flag_has_a_counterpart() {
        for policy in 1..=7 {
            let wire =
                LinuxScheduler { policy, flags: (0..7).collect(), nice: -3, ..Default::default() };
            assert_eq!(LinuxScheduler::from(&oci::Scheduler::try_from(&wire).unwrap()), wire);
        }
        assert!(oci::Scheduler::try_from(&LinuxScheduler::default()).is_err());
        for mode in 0..=6 {
            let wire = LinuxMemoryPolicy { mode, nodes: "0".to_owned(), flags: vec![0, 1, 2] };
            let spec = oci::LinuxMemoryPolicy::try_from(&wire).unwrap();
            assert_eq!(LinuxMemoryPolicy::from(&spec), wire);
        }
        for class in 1..=3 {
            let wire = LinuxIoPriority { class, priority: 4 };
            assert_eq!(
                LinuxIoPriority::from(&oci::LinuxIOPriority::try_from(&wire).unwrap()),
                wire
            );
        }
    }

    #[test]
    fn seccomp_keeps_everything() {
        let op = "SCMP_CMP_MASKED_EQ".to_owned();
        let arg = LinuxSeccompArg { index: 1, value: 2, value_two: 3, op };
        let syscall = LinuxSyscall {
            names: vec!["clone".to_owned()],
            action: "SCMP_ACT_ERRNO".to_owned(),
            errno_ret: errno(Some(38)),
            args: vec![arg],
        };
        let wire = LinuxSeccomp {
            default_action: "SCMP_ACT_KILL_PROCESS".to_owned(),
            default_errno: errno(Some(1)),
            architectures: vec!["SCMP_ARCH_X86_64".to_owned(), "SCMP_ARCH_MIPSEL64N32".to_owned()],
            flags: vec!["SECCOMP_FILTER_FLAG_SPEC_ALLOW".to_owned()],
            listener_path: "/run/l".to_owned(),
            listener_metadata: "m".to_owned(),
            syscalls: vec![syscall],
        };
        let spec = oci::LinuxSeccomp::try_from(&wire).unwrap();
        assert_eq!(LinuxSeccomp::from(&spec), wire);
        let odd = LinuxSeccomp { default_action: "SCMP_ACT_SING".to_owned(), ..wire };
        assert!(oci::LinuxSeccomp::try_from(&odd).is_err());
    }
}
