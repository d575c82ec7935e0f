//! SELinux labels: what a request comes to by the host's policy.
//!
//! ```text
//!   the policy's contexts for containers ─┐
//!   categories of the pod ────────────────┼─> label of the process, label of its files
//!   what pod and container ask for ───────┘
//! ```
//! Containers of one pod have the same categories, unless they ask for others, and no two pods
//! have the same: that is what keeps pods from each other's files.

use std::{collections::BTreeSet, fmt};

use base::Id;

use crate::{facts::SelinuxLabels, request::SelinuxRequest};

/// `c0` to `c1023`.
const CATEGORIES: u64 = 1024;

/// The contexts that a policy has for containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelinuxContexts {
    process: Context,
    file: Context,
}

/// `user:role:type:level`; the last is absent where the policy has no levels, and may have
/// colons of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Context {
    user: String,
    role: String,
    kind: String,
    level: String,
}

impl Context {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, ':').map(str::to_owned);
        let (user, role, kind) = (parts.next()?, parts.next()?, parts.next()?);
        let level = parts.next().unwrap_or_default();
        let whole = [&user, &role, &kind].iter().all(|part| !part.is_empty());
        whole.then_some(Self { user, role, kind, level })
    }

    fn has_levels(&self) -> bool {
        !self.level.is_empty()
    }

    fn sensitivity(&self) -> &str {
        self.level.split(':').next().unwrap_or_default()
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, role, kind, level } = self;
        write!(f, "{user}:{role}:{kind}")?;
        if self.has_levels() { write!(f, ":{level}") } else { Ok(()) }
    }
}

impl SelinuxContexts {
    /// From the file `contexts/lxc_contexts` of a policy; `None` if it does not say both.
    pub fn parse(text: &str) -> Option<Self> {
        let value = |key: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once('='));
            let (_, value) = lines.find(|(name, _)| name.trim() == key)?;
            Context::parse(value.trim().trim_matches('"'))
        };
        Some(Self { process: value("process")?, file: value("file")? })
    }

    /// Of processes and files, before anybody asks for anything.
    pub fn defaults(&self) -> [String; 2] {
        [self.process.to_string(), self.file.to_string()]
    }

    /// `asked`: by the pod, then by the container, whose word counts. User and level are those
    /// of the files too.
    pub fn labels(&self, asked: [Option<&SelinuxRequest>; 2], categories: &str) -> SelinuxLabels {
        let (mut process, mut file) = (self.process.clone(), self.file.clone());
        for context in [&mut process, &mut file] {
            if context.has_levels() {
                context.level = format!("{}:{categories}", context.sensitivity());
            }
        }
        let set = |to: &mut String, value: &String| {
            if !value.is_empty() {
                to.clone_from(value);
            }
        };
        for asked in asked.into_iter().flatten() {
            set(&mut process.role, &asked.role);
            set(&mut process.kind, &asked.kind);
            for context in [&mut process, &mut file] {
                set(&mut context.user, &asked.user);
                set(&mut context.level, &asked.level);
            }
        }
        SelinuxLabels { process: process.to_string(), mount: file.to_string() }
    }
}

/// Two categories for a new pod, `c7,c921`: the first pair that nobody has taken, in an order
/// that begins where the id says. With all taken, one of them.
pub fn pod_categories(id: &Id, taken: &BTreeSet<&str>) -> String {
    let pairs = CATEGORIES * (CATEGORIES - 1);
    let start = u64::from_str_radix(&id.as_str()[..12], 16).unwrap_or_default();
    let pair = |step: u64| {
        let number = (start + step) % pairs;
        let (first, second) = (number / (CATEGORIES - 1), number % (CATEGORIES - 1));
        // Never twice the same.
        let second = if second >= first { second + 1 } else { second };
        format!("c{},c{}", first.min(second), first.max(second))
    };
    let free = (0..pairs).map(pair).find(|pair| !taken.contains(pair.as_str()));
    free.unwrap_or_else(|| pair(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "process = \"system_u:system_r:container_t:s0\"\n\
                        content = \"system_u:object_r:virt_var_lib_t:s0\"\n\
                        file = \"system_u:object_r:container_file_t:s0\"\n";

    fn asked(fields: [&str; 4]) -> SelinuxRequest {
        let [user, role, kind, level] = fields.map(str::to_owned);
        SelinuxRequest { user, role, kind, level, disable: false }
    }

    #[track_caller]
    fn check(file: &str, pod: [&str; 4], container: [&str; 4], want: (&str, &str)) {
        let contexts = SelinuxContexts::parse(file).unwrap();
        let (pod, container) = (asked(pod), asked(container));
        let got = contexts.labels([Some(&pod), Some(&container)], "c1,c2");
        assert_eq!((got.process.as_str(), got.mount.as_str()), want);
    }

    #[test]
    fn labels_are_the_policys_with_what_is_asked_for() {
        let none = [""; 4];
        check(
            FILE,
            none,
            none,
            (
                "system_u:system_r:container_t:s0:c1,c2",
                "system_u:object_r:container_file_t:s0:c1,c2",
            ),
        );
        check(
            FILE,
            ["", "", "", "s0:c7,c8"],
            none,
            (
                "system_u:system_r:container_t:s0:c7,c8",
                "system_u:object_r:container_file_t:s0:c7,c8",
            ),
        );
        check(
            FILE,
            ["", "", "a_t", "s0:c7,c8"],
            ["u", "r", "b_t", "s0:c9"],
            ("u:r:b_t:s0:c9", "u:object_r:container_file_t:s0:c9"),
        );
    }

    #[test]
    fn a_policy_without_levels_gets_none() {
        let file = FILE.replace(":s0", "");
        let none = [""; 4];
        check(
            &file,
            none,
            none,
            ("system_u:system_r:container_t", "system_u:object_r:container_file_t"),
        );
    }

    #[test]
    fn half_a_file_is_none() {
        assert_eq!(SelinuxContexts::parse(""), None);
        assert_eq!(SelinuxContexts::parse("process = \"a:b:c:s0\"\n"), None);
        assert_eq!(SelinuxContexts::parse("process = \"a:b\"\nfile = \"a:b:c\"\n"), None);
    }

    #[test]
    fn no_two_pods_have_the_same_categories() {
        let ids = ["0", "f", "a"].map(|digit| digit.repeat(64).parse::<Id>().unwrap());
        for id in ids {
            let mut taken = BTreeSet::new();
            for _ in 0..2000 {
                let next = pod_categories(&id, &taken.iter().map(String::as_str).collect());
                let numbers = next.split(',').map(|c| c[1..].parse::<u64>().unwrap());
                let numbers: Vec<_> = numbers.collect();
                assert!(numbers[0] < numbers[1] && numbers[1] < CATEGORIES, "{next}");
                assert!(taken.insert(next));
            }
        }
        let id: Id = "0".repeat(64).parse().unwrap();
        assert_eq!(pod_categories(&id, &BTreeSet::new()), "c0,c1");
    }
}
