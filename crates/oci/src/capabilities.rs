//! Which capabilities a container has.
//!
//! **Invariant:** never one that we do not have ourselves. The kernel would refuse it, and with it
//! the whole container, where all that was meant is "as much as there is".

use std::collections::BTreeSet;

use oci_spec::runtime::{Capabilities, Capability, LinuxCapabilities};

use crate::{
    error::{OciError, Result},
    request::CapabilityRequest,
};

/// What every container has unless it drops it; the same set on all engines.
pub(crate) const DEFAULT: [&str; 14] = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

const FIELD: &str = "security.capabilities";

/// What a container may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Granted {
    pub(crate) all: BTreeSet<String>,
    /// Of these, what its programs keep though they are not root's.
    pub(crate) ambient: BTreeSet<String>,
}

/// `ALL` first, whichever list it is in, then one by one; what is added and dropped by name is
/// dropped.
pub(crate) fn resolve(
    request: &CapabilityRequest,
    start: &BTreeSet<String>,
    ours: &BTreeSet<String>,
) -> Result<Granted> {
    let (add_all, add) = names(&request.add, "add")?;
    let (drop_all, drop) = names(&request.drop, "drop")?;
    let (ambient_all, mut ambient) = names(&request.ambient, "ambient")?;
    let mut set = match (add_all, drop_all) {
        (_, true) => BTreeSet::new(),
        (true, false) => ours.clone(),
        (false, false) => start.clone(),
    };
    set.extend(add);
    set.extend(ambient.iter().cloned());
    set.retain(|name| !drop.contains(name) && ours.contains(name));
    if ambient_all {
        ambient.clone_from(&set);
    }
    ambient.retain(|name| set.contains(name));
    Ok(Granted { all: set, ambient })
}

/// Whether `ALL` is among them, and the rest as the kernel spells it.
fn names(list: &[String], which: &str) -> Result<(bool, BTreeSet<String>)> {
    let mut all = false;
    let mut names = BTreeSet::new();
    for (i, name) in list.iter().enumerate() {
        let upper = name.to_ascii_uppercase();
        if upper == "ALL" {
            all = true;
            continue;
        }
        let full = if upper.starts_with("CAP_") { upper } else { format!("CAP_{upper}") };
        if capability(&full).is_none() {
            let field = format!("{FIELD}.{which}[{i}]");
            return Err(OciError::invalid(field, format!("{name:?} is not a capability")));
        }
        names.insert(full);
    }
    Ok((all, names))
}

/// Ambient and inheritable stay empty unless asked for: a set-uid program inside gains nothing by
/// them. The kernel wants what is ambient to be inheritable.
pub(crate) fn to_spec(granted: &Granted) -> LinuxCapabilities {
    let known = |names: &BTreeSet<String>| -> Capabilities {
        names.iter().filter_map(|name| capability(name)).collect()
    };
    let set = known(&granted.all);
    let ambient = (!granted.ambient.is_empty()).then(|| known(&granted.ambient));
    let mut capabilities = LinuxCapabilities::default();
    capabilities
        .set_bounding(Some(set.clone()))
        .set_effective(Some(set.clone()))
        .set_permitted(Some(set))
        .set_inheritable(ambient.clone())
        .set_ambient(ambient);
    capabilities
}

/// As the kernel spells them.
pub(crate) fn from_spec(capabilities: Option<&LinuxCapabilities>) -> BTreeSet<String> {
    let bounding = capabilities.and_then(|c| c.bounding().as_ref());
    bounding.into_iter().flatten().map(|c| format!("CAP_{c}")).collect()
}

fn capability(full: &str) -> Option<Capability> {
    full.strip_prefix("CAP_")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| format!("CAP_{name}")).collect()
    }

    #[track_caller]
    fn check(add: &[&str], drop: &[&str], want: &[&str]) {
        let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let request = CapabilityRequest { add: list(add), drop: list(drop), ambient: vec![] };
        let ours = set(&["CHOWN", "KILL", "NET_ADMIN", "SYS_ADMIN"]);
        let got = resolve(&request, &set(&["CHOWN", "KILL", "NET_RAW"]), &ours).unwrap();
        assert_eq!(got, Granted { all: set(want), ambient: set(&[]) }, "add {add:?} drop {drop:?}");
    }

    #[test]
    fn lists_and_all() {
        check(&[], &[], &["CHOWN", "KILL"]);
        check(&["NET_ADMIN"], &[], &["CHOWN", "KILL", "NET_ADMIN"]);
        check(&["cap_net_admin"], &["Kill"], &["CHOWN", "NET_ADMIN"]);
        check(&["ALL"], &[], &["CHOWN", "KILL", "NET_ADMIN", "SYS_ADMIN"]);
        check(&["ALL"], &["SYS_ADMIN"], &["CHOWN", "KILL", "NET_ADMIN"]);
        check(&["KILL"], &["ALL"], &["KILL"]);
        check(&["ALL"], &["ALL"], &[]);
        check(&["KILL"], &["KILL"], &["CHOWN"]);
    }

    #[test]
    fn what_is_ambient_is_among_the_rest() {
        let check = |ambient: &[&str], drop: &[&str], want: &[&str]| {
            let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
            let request =
                CapabilityRequest { add: vec![], drop: list(drop), ambient: list(ambient) };
            let ours = set(&["CHOWN", "KILL", "NET_ADMIN"]);
            let got = resolve(&request, &set(&["CHOWN", "KILL"]), &ours).unwrap();
            assert_eq!(got.ambient, set(want), "{ambient:?} {drop:?}");
            assert!(got.all.is_superset(&got.ambient));
            let spec = to_spec(&got);
            assert_eq!(spec.inheritable(), spec.ambient());
        };
        check(&[], &[], &[]);
        check(&["KILL"], &[], &["KILL"]);
        check(&["NET_ADMIN"], &[], &["NET_ADMIN"]);
        check(&["NET_ADMIN", "SYS_BOOT"], &["ALL"], &["NET_ADMIN"]);
        check(&["ALL"], &["KILL"], &["CHOWN"]);
        check(&["KILL"], &["KILL"], &[]);
    }

    #[test]
    fn what_we_lack_is_left_out() {
        check(&["SYS_RESOURCE"], &[], &["CHOWN", "KILL"]);
    }

    #[test]
    fn an_unknown_name_is_refused() {
        let request = CapabilityRequest {
            add: vec!["KILL".into(), "FLY".into()],
            ..CapabilityRequest::default()
        };
        let error = resolve(&request, &BTreeSet::new(), &BTreeSet::new()).unwrap_err();
        assert_eq!(error.to_string(), "security.capabilities.add[1]: \"FLY\" is not a capability");
    }

    #[test]
    fn every_default_is_a_capability() {
        let names: BTreeSet<String> = DEFAULT.map(str::to_owned).into();
        let granted = Granted { all: names.clone(), ambient: BTreeSet::new() };
        assert_eq!(from_spec(Some(&to_spec(&granted))), names);
    }
}
