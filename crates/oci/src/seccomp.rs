//! Seccomp profiles: rules with conditions, made into the flat list an OCI runtime takes.
//!
//! A profile is read once, from a file or from our own table, and resolved per container, because
//! what it allows depends on the container's capabilities and on the machine.

mod default;

use std::{collections::BTreeSet, path::PathBuf};

use oci_spec::runtime::{
    Arch as ScmpArch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompFilterFlag,
    LinuxSyscall,
};
use serde::Deserialize;

use crate::facts::{Arch, Kernel};

/// Both dialects: the OCI one is what is left when no rule has a condition, and Docker's adds
/// `archMap`, `includes` and `excludes`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SeccompProfile {
    default_action: LinuxSeccompAction,
    default_errno_ret: Option<u32>,
    architectures: Option<Vec<ScmpArch>>,
    arch_map: Option<Vec<ArchMap>>,
    flags: Option<Vec<LinuxSeccompFilterFlag>>,
    listener_path: Option<PathBuf>,
    listener_metadata: Option<String>,
    syscalls: Option<Vec<Rule>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ArchMap {
    architecture: ScmpArch,
    sub_architectures: Option<Vec<ScmpArch>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    names: Option<Vec<String>>,
    /// How the oldest Docker profiles have it.
    name: Option<String>,
    action: LinuxSeccompAction,
    errno_ret: Option<u32>,
    args: Option<Vec<LinuxSeccompArg>>,
    includes: Option<Condition>,
    excludes: Option<Condition>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    caps: Option<Vec<String>>,
    /// In Go's words: `amd64`.
    arches: Option<Vec<String>>,
    min_kernel: Option<MinKernel>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct MinKernel(Kernel);

impl TryFrom<String> for MinKernel {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let parsed = text.split_once('.').and_then(|(major, minor)| {
            Some(Kernel { major: major.parse().ok()?, minor: minor.parse().ok()? })
        });
        parsed.map(Self).ok_or_else(|| format!("{text:?} is not a kernel version"))
    }
}

#[derive(Debug, thiserror::Error)]
#[error("read seccomp profile")]
pub struct SeccompError(#[from] serde_json::Error);

/// What conditions are asked about.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The container's, as the kernel spells them.
    pub capabilities: &'a BTreeSet<String>,
    pub arch: Arch,
    pub kernel: Kernel,
}

impl SeccompProfile {
    /// From the text of a file.
    pub fn parse(text: &str) -> Result<Self, SeccompError> {
        Ok(serde_json::from_str(text)?)
    }

    /// The rules that hold for this container.
    pub fn resolve(&self, subject: Subject<'_>) -> LinuxSeccomp {
        let rules = self.syscalls.iter().flatten();
        let syscalls = rules.filter(|rule| rule.holds(subject)).map(Rule::to_spec).collect();
        let mut seccomp = LinuxSeccomp::default();
        seccomp
            .set_default_action(self.default_action)
            .set_default_errno_ret(self.default_errno_ret)
            .set_architectures(self.architectures(subject.arch))
            .set_flags(self.flags.clone())
            .set_listener_path(self.listener_path.clone())
            .set_listener_metadata(self.listener_metadata.clone())
            .set_syscalls(Some(syscalls));
        seccomp
    }

    fn architectures(&self, arch: Arch) -> Option<Vec<ScmpArch>> {
        let Some(map) = &self.arch_map else { return self.architectures.clone() };
        let entry = map.iter().find(|entry| entry.architecture == arch.scmp())?;
        let subs = entry.sub_architectures.iter().flatten().copied();
        Some([entry.architecture].into_iter().chain(subs).collect())
    }
}

impl Rule {
    fn holds(&self, subject: Subject<'_>) -> bool {
        let included = self.includes.as_ref().is_none_or(|condition| condition.all(subject));
        let excluded = self.excludes.as_ref().is_some_and(|condition| condition.any(subject));
        included && !excluded
    }

    fn to_spec(&self) -> LinuxSyscall {
        let names = self.names.iter().flatten().chain(&self.name).cloned().collect();
        let mut syscall = LinuxSyscall::default();
        syscall
            .set_names(names)
            .set_action(self.action)
            .set_errno_ret(self.errno_ret)
            .set_args(self.args.clone().filter(|args| !args.is_empty()));
        syscall
    }
}

impl Condition {
    fn all(&self, subject: Subject<'_>) -> bool {
        let caps = self.caps.iter().flatten();
        caps.into_iter().all(|cap| subject.capabilities.contains(cap))
            && self.names_no_other(subject.arch)
            && self.min_kernel.is_none_or(|min| subject.kernel >= min.0)
    }

    fn any(&self, subject: Subject<'_>) -> bool {
        let mut caps = self.caps.iter().flatten();
        let mut arches = self.arches.iter().flatten();
        caps.any(|cap| subject.capabilities.contains(cap))
            || arches.any(|name| name == subject.arch.go_name())
            || self.min_kernel.is_some_and(|min| subject.kernel >= min.0)
    }

    fn names_no_other(&self, arch: Arch) -> bool {
        let arches = self.arches.as_deref().unwrap_or_default();
        arches.is_empty() || arches.iter().any(|name| name == arch.go_name())
    }
}

impl Arch {
    fn scmp(self) -> ScmpArch {
        match self {
            Self::X86_64 => ScmpArch::ScmpArchX86_64,
            Self::Aarch64 => ScmpArch::ScmpArchAarch64,
            Self::Riscv64 => ScmpArch::ScmpArchRiscv64,
            Self::S390x => ScmpArch::ScmpArchS390x,
            Self::Ppc64le => ScmpArch::ScmpArchPpc64le,
            Self::Loongarch64 => ScmpArch::ScmpArchLoongarch64,
        }
    }

    fn go_name(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
            Self::Riscv64 => "riscv64",
            Self::S390x => "s390x",
            Self::Ppc64le => "ppc64le",
            Self::Loongarch64 => "loong64",
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KERNEL: Kernel = Kernel { major: 6, minor: 1 };

    fn caps(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| format!("CAP_{name}")).collect()
    }

    fn default_on(capabilities: &[&str], arch: Arch, kernel: Kernel) -> LinuxSeccomp {
        let capabilities = &caps(capabilities);
        let subject = Subject { capabilities, arch, kernel };
        SeccompProfile::default_for_containers().resolve(subject)
    }

    /// How a call ends, over all rules that name it and ask for no argument.
    fn verdict(seccomp: &LinuxSeccomp, name: &str) -> Vec<String> {
        let rules = seccomp.syscalls().iter().flatten();
        let named = rules.filter(|rule| rule.names().iter().any(|known| known == name));
        let text = named.map(|rule| match rule.args().as_deref() {
            None => format!("{:?}", rule.action()),
            Some(args) => format!("{:?} if {:?}", rule.action(), args[0].op()),
        });
        text.collect()
    }

    #[track_caller]
    fn check(seccomp: &LinuxSeccomp, name: &str, want: &[&str]) {
        assert_eq!(verdict(seccomp, name), want, "{name}");
    }

    #[test]
    fn the_default_lets_programs_work_and_no_more() {
        let plain = default_on(&["CHOWN"], Arch::X86_64, KERNEL);
        assert_eq!(plain.default_action(), LinuxSeccompAction::ScmpActErrno);
        for name in ["read", "openat", "execve", "futex", "ptrace", "clock_adjtime", "arch_prctl"] {
            check(&plain, name, &["ScmpActAllow"]);
        }
        for name in ["mount", "unshare", "setns", "bpf", "reboot", "keyctl", "io_uring_setup"] {
            check(&plain, name, &[]);
        }
        check(&plain, "clone", &["ScmpActAllow if ScmpCmpMaskedEq"]);
        check(&plain, "clone3", &["ScmpActErrno"]);
    }

    #[test]
    fn capabilities_bring_their_calls() {
        let admin = default_on(&["SYS_ADMIN", "SYS_CHROOT"], Arch::X86_64, KERNEL);
        for name in ["mount", "unshare", "clone", "clone3", "chroot"] {
            check(&admin, name, &["ScmpActAllow"]);
        }
        check(&admin, "reboot", &[]);
    }

    #[test]
    fn machines_and_kernels_differ() {
        let old = default_on(&[], Arch::X86_64, Kernel { major: 4, minor: 7 });
        check(&old, "ptrace", &[]);
        let tracer = default_on(&["SYS_PTRACE"], Arch::X86_64, Kernel { major: 4, minor: 7 });
        check(&tracer, "ptrace", &["ScmpActAllow"]);
        let arm = default_on(&[], Arch::Aarch64, KERNEL);
        check(&arm, "arch_prctl", &[]);
        check(&arm, "set_tls", &["ScmpActAllow"]);
        let arches = arm.architectures().clone().unwrap();
        assert_eq!(arches, [ScmpArch::ScmpArchAarch64, ScmpArch::ScmpArchArm]);
    }

    #[test]
    fn the_flags_of_clone_are_looked_for_where_they_are() {
        for (arch, index) in [(Arch::X86_64, 0), (Arch::S390x, 1)] {
            let seccomp = default_on(&[], arch, KERNEL);
            let rules = seccomp.syscalls().clone().unwrap();
            let clone: Vec<_> = rules.iter().filter(|r| r.names()[0] == "clone").collect();
            assert_eq!(clone.len(), 1, "{arch:?}");
            let args = clone[0].args().clone().unwrap();
            assert_eq!(
                (args[0].index(), args[0].value(), args[0].value_two()),
                (index, 0x7e02_0000, Some(0))
            );
        }
    }

    /// What a filter with these rules does to `socket(family, …)`.
    #[test]
    fn two_socket_families_are_closed() {
        let seccomp = default_on(&[], Arch::X86_64, KERNEL);
        let rules = seccomp.syscalls().clone().unwrap();
        let socket: Vec<_> = rules.iter().filter(|rule| rule.names()[0] == "socket").collect();
        let allowed = |family: u64| {
            socket.iter().any(|rule| {
                rule.args().iter().flatten().all(|arg| match arg.op() {
                    oci_spec::runtime::LinuxSeccompOperator::ScmpCmpLt => family < arg.value(),
                    oci_spec::runtime::LinuxSeccompOperator::ScmpCmpEq => family == arg.value(),
                    oci_spec::runtime::LinuxSeccompOperator::ScmpCmpGt => family > arg.value(),
                    other => panic!("unexpected {other:?}"),
                })
            })
        };
        let closed: Vec<u64> = (0..64).filter(|&family| !allowed(family)).collect();
        assert_eq!(closed, [38, 40]);
    }

    #[test]
    fn no_name_is_in_the_default_twice() {
        let seccomp = default_on(&[], Arch::X86_64, KERNEL);
        let rules = seccomp.syscalls().clone().unwrap();
        let mut names: Vec<_> =
            rules.iter().filter(|r| r.args().is_none()).flat_map(|r| r.names().clone()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    const DOCKER: &str = r#"{
        "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1,
        "archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86"]}],
        "syscalls": [
            {"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": [], "comment": "", "includes": {}, "excludes": {}},
            {"name": "write", "action": "SCMP_ACT_ALLOW", "args": null},
            {"names": ["ptrace"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "4.8"}},
            {"names": ["bpf"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_BPF"]}},
            {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "excludes": {"caps": ["CAP_SYS_ADMIN"], "arches": ["s390x"]}},
            {"names": ["x"], "action": "SCMP_ACT_ALLOW", "includes": {"arches": ["arm64"]}}
        ]}"#;

    #[test]
    fn both_dialects_are_read() {
        let profile = SeccompProfile::parse(DOCKER).unwrap();
        let capabilities = &caps(&[]);
        let subject = Subject { capabilities, arch: Arch::X86_64, kernel: KERNEL };
        let seccomp = profile.resolve(subject);
        let names: Vec<String> =
            seccomp.syscalls().iter().flatten().map(|rule| rule.names().join(",")).collect();
        assert_eq!(names, ["read", "write", "ptrace", "clone"]);
        assert_eq!(seccomp.default_errno_ret(), Some(1));

        let oci = r#"{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"],
            "syscalls": [{"names": ["chmod"], "action": "SCMP_ACT_ERRNO", "errnoRet": 13}]}"#;
        let seccomp = SeccompProfile::parse(oci).unwrap().resolve(subject);
        assert_eq!(seccomp.architectures().clone().unwrap(), [ScmpArch::ScmpArchX86_64]);
        assert_eq!(seccomp.syscalls().clone().unwrap()[0].errno_ret(), Some(13));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "{}", r#"{"defaultAction": "SCMP_ACT_MAYBE"}"#, "[]"] {
            assert!(SeccompProfile::parse(text).is_err(), "{text}");
        }
        let kernel = r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
            {"names": [], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "new"}}]}"#;
        assert!(SeccompProfile::parse(kernel).is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[\\{\\}\\[\\]\":,a-zA-Z0-9_ ]{0,60}") {
            let _ = SeccompProfile::parse(&text);
        }
    }
}
