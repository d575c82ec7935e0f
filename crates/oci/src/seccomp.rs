//! Seccomp profiles: rules with conditions, made into the flat list an OCI runtime takes.
//!
//! A profile is read once, from a file or from our own table, and resolved per container, because
//! what it allows depends on the container's capabilities and on the machine.

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
