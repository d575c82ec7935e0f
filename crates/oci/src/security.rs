//! Profiles, labels and paths that keep a container in.

use std::collections::BTreeSet;

use oci_spec::runtime::{LinuxIntelRdt, LinuxSeccomp};

use crate::{
    annotations, apparmor,
    builder::Inputs,
    capabilities::{self, Granted},
    error::{OciError, Result},
    facts::SelinuxLabels,
    request::{Profile, SelinuxRequest},
    seccomp::{SeccompProfile, Subject},
};

/// Shown empty: they tell of the host, or let it be changed.
pub(crate) const MASKED_PATHS: [&str; 12] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];

/// Programs read these; nothing inside may write them.
pub(crate) const READONLY_PATHS: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// What stands in the way of a privileged container is one test, here.
pub(crate) fn check_privileged(inputs: &Inputs<'_>) -> Result<()> {
    if inputs.request.security.privileged && !inputs.pod.privileged {
        let why = "no privileged container allowed in a pod that is not";
        return Err(OciError::invalid("security.privileged", why));
    }
    Ok(())
}

/// Lists do not narrow "privileged": that is what it means on every engine.
pub(crate) fn capabilities(inputs: &Inputs<'_>, base: Option<BTreeSet<String>>) -> Result<Granted> {
    let security = &inputs.request.security;
    let ours = &inputs.host.capabilities;
    let start = base.unwrap_or_else(|| inputs.policy.capabilities.iter().cloned().collect());
    let set = capabilities::resolve(&security.capabilities, &start, ours)?;
    Ok(if security.privileged { Granted { all: ours.clone(), ..set } } else { set })
}

/// `base` is a base spec's, kept where the request is silent.
pub(crate) fn seccomp(
    inputs: &Inputs<'_>,
    base: Option<LinuxSeccomp>,
    capabilities: &BTreeSet<String>,
) -> Result<Option<LinuxSeccomp>> {
    const FIELD: &str = "security.seccomp";
    let asked = inputs.request.security.seccomp.as_ref();
    let profile = match asked {
        None if base.is_some() && !inputs.request.security.privileged => return Ok(base),
        asked => {
            let unset = inputs.handler.unset_seccomp.as_ref();
            asked.or(unset).unwrap_or(&inputs.policy.unset_seccomp)
        }
    };
    if *profile == Profile::Unconfined || inputs.request.security.privileged {
        return Ok(None);
    }
    if !inputs.host.seccomp || !inputs.handler.abilities.seccomp {
        // Whoever did not ask is not refused.
        return match asked {
            None => Ok(None),
            Some(_) if inputs.host.seccomp => Err(inputs.unable(FIELD)),
            Some(_) => Err(OciError::Host { field: FIELD.to_owned(), what: "seccomp" }),
        };
    }
    let (arch, kernel) = (inputs.host.arch, inputs.host.kernel);
    let subject = Subject { capabilities, arch, kernel };
    match (profile, &inputs.container.seccomp) {
        (Profile::Localhost(_), Some(profile)) => Ok(Some(profile.resolve(subject))),
        (Profile::Localhost(path), None) => {
            Err(OciError::Missing { what: format!("seccomp profile {path:?}") })
        }
        _ => Ok(Some(SeccompProfile::default_for_containers().resolve(subject))),
    }
}

pub(crate) fn apparmor(inputs: &Inputs<'_>, base: Option<String>) -> Result<Option<String>> {
    const FIELD: &str = "security.apparmor";
    let security = &inputs.request.security;
    let usable = inputs.host.apparmor && inputs.handler.abilities.apparmor;
    let loaded = inputs.container.apparmor_loaded;
    let ours = || loaded.then(|| inputs.policy.apparmor_profile.clone());
    match &security.apparmor {
        Some(Profile::Unconfined) => Ok(None),
        Some(_) if !inputs.host.apparmor => {
            Err(OciError::Host { field: FIELD.to_owned(), what: "AppArmor" })
        }
        Some(_) if !usable => Err(inputs.unable(FIELD)),
        Some(Profile::Localhost(name)) => {
            let name = apparmor::local_name(name);
            if name.is_empty() {
                return Err(OciError::invalid(FIELD, "a profile needs a name"));
            }
            if !loaded {
                let why = format!("no AppArmor profile {name:?} is loaded on this host");
                return Err(OciError::NotFound { field: FIELD.to_owned(), why });
            }
            Ok(Some(name.to_owned()))
        }
        None | Some(Profile::RuntimeDefault) if security.privileged || !usable => Ok(None),
        Some(Profile::RuntimeDefault) if !loaded => {
            Err(OciError::Host { field: FIELD.to_owned(), what: "the default AppArmor profile" })
        }
        Some(Profile::RuntimeDefault) => Ok(ours()),
        // Whoever did not ask is not refused; the daemon's status tells.
        None => Ok(base.or_else(ours)),
    }
}

// === SELinux ===

pub(crate) fn selinux<'a>(inputs: &Inputs<'a>) -> Result<Option<&'a SelinuxLabels>> {
    const FIELD: &str = "security.selinux";
    let security = &inputs.request.security;
    if let Some(asked) = &security.selinux {
        check_selinux(asked, FIELD)?;
    }
    let disabled = security.selinux.as_ref().is_some_and(|asked| asked.disable);
    // As elsewhere: options mean nothing on a host without it, and are no mistake.
    if !inputs.host.selinux || security.privileged || disabled {
        return Ok(None);
    }
    match (&inputs.container.selinux, &security.selinux) {
        (Some(_), _) if !inputs.handler.abilities.selinux => Err(inputs.unable(FIELD)),
        (Some(labels), _) => Ok(Some(labels)),
        // The policy knows no containers: there is nothing the request could change.
        (None, Some(_)) => {
            Err(OciError::Host { field: FIELD.to_owned(), what: "a SELinux policy for containers" })
        }
        (None, None) => Ok(None),
    }
}

/// The level, because it is the one part with a grammar.
pub fn check_selinux(asked: &SelinuxRequest, field: &str) -> Result<()> {
    if asked.level.is_empty() || is_level(&asked.level) {
        return Ok(());
    }
    let why = format!("{:?} is not a level such as s0:c1,c2", asked.level);
    Err(OciError::invalid(format!("{field}.level"), why))
}

/// `s0`, `s0-s1`, `s0:c1`, `s0:c1.c4,c7`.
fn is_level(level: &str) -> bool {
    let number = |text: &str, letter: char, max: usize| {
        let digits = text.strip_prefix(letter).unwrap_or_default();
        (1..=max).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit())
    };
    let (sensitivity, categories) = match level.split_once(':') {
        Some((sensitivity, categories)) => (sensitivity, Some(categories)),
        None => (level, None),
    };
    let parts = |text: &str, by: char| text.split(by).count() <= 2;
    parts(sensitivity, '-')
        && sensitivity.split('-').all(|s| number(s, 's', 1))
        && categories.is_none_or(|list| {
            list.split(',').all(|c| parts(c, '.') && c.split('.').all(|c| number(c, 'c', 4)))
        })
}

// === paths and classes ===

/// `(masked, readonly)`: the request's, else the base spec's or ours; none for the privileged.
pub(crate) fn paths(
    inputs: &Inputs<'_>,
    base: (Option<Vec<String>>, Option<Vec<String>>),
) -> Result<(Vec<String>, Vec<String>)> {
    let security = &inputs.request.security;
    if security.privileged {
        return Ok((Vec::new(), Vec::new()));
    }
    let lists = [
        ("security.masked_paths", &security.masked_paths),
        ("security.readonly_paths", &security.readonly_paths),
    ];
    for (field, list) in lists {
        let relative = list.iter().flatten().position(|path| !path.starts_with('/'));
        if let Some(i) = relative {
            return Err(OciError::invalid(format!("{field}[{i}]"), "is not an absolute path"));
        }
    }
    let pick = |asked: &Option<Vec<String>>, base: Option<Vec<String>>| {
        asked.clone().or(base).unwrap_or_default()
    };
    Ok((pick(&security.masked_paths, base.0), pick(&security.readonly_paths, base.1)))
}

pub(crate) fn rdt(inputs: &Inputs<'_>) -> Result<Option<LinuxIntelRdt>> {
    let Some(class) = annotations::asked_class(inputs, "rdt") else { return Ok(None) };
    let Some(known) = &inputs.container.classes.rdt else {
        return Err(OciError::Host { field: class.field, what: "resctrl" });
    };
    if !known.contains(class.name) {
        let why = format!("no RDT class {:?}", class.name);
        return Err(OciError::NotFound { field: class.field, why });
    }
    if !inputs.handler.abilities.intel_rdt {
        return Err(inputs.unable(&class.field));
    }
    let mut rdt = LinuxIntelRdt::default();
    rdt.set_clos_id(Some(class.name.to_owned()));
    Ok(Some(rdt))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selinux_levels() {
        for level in ["s0", "s0-s1", "s0:c1", "s0:c1,c2", "s0-s0:c0.c1023", "s1:c1.c4,c7,c1023"] {
            assert!(is_level(level), "{level}");
        }
        for level in ["", "0", "s", "s00", "s0-", "s0-s1-s2", "s0:", "s0:c", "s0:c12345"] {
            assert!(!is_level(level), "{level}");
        }
        for level in ["s0:c1,", "s0:c1.c2.c3", "s0:1", "s0:c1:c2", "s0 ", "level"] {
            assert!(!is_level(level), "{level}");
        }
    }
}
