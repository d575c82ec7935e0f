//! Kernel settings that belong to a namespace and not to the machine.

use std::collections::BTreeMap;

use crate::{
    error::{OciError, Result},
    facts::{Kernel, Policy},
};

/// Which namespaces of a pod or container are its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnNamespaces {
    pub network: bool,
    pub ipc: bool,
    pub uts: bool,
    pub user: bool,
}

const LOW_PORTS: &str = "net.ipv4.ip_unprivileged_port_start";
const PING: &str = "net.ipv4.ping_group_range";

/// What to set in a new pod's namespaces: what it asked for, and the settings that spare its
/// containers a capability for a low port or a ping.
pub fn pod_sysctls(
    asked: &BTreeMap<String, String>,
    own: OwnNamespaces,
    kernel: Kernel,
    policy: &Policy,
) -> Result<BTreeMap<String, String>> {
    let mut sysctls = check(asked, own)?;
    if own.network && kernel >= (Kernel { major: 4, minor: 11 }) {
        if policy.unprivileged_ports {
            sysctls.entry(LOW_PORTS.to_owned()).or_insert_with(|| "0".to_owned());
        }
        // In a user namespace the kernel refuses groups that are not mapped.
        if policy.unprivileged_icmp && !own.user {
            sysctls.entry(PING.to_owned()).or_insert_with(|| "0 2147483647".to_owned());
        }
    }
    Ok(sysctls)
}

/// With dots only, or a refusal: a setting of the whole machine, or of a namespace that is the
/// host's.
pub(crate) fn check(
    asked: &BTreeMap<String, String>,
    own: OwnNamespaces,
) -> Result<BTreeMap<String, String>> {
    let mut checked = BTreeMap::new();
    for (name, value) in asked {
        let refuse = |why: &str| Err(OciError::invalid(format!("sysctls[{name:?}]"), why));
        let dotted = dotted(name);
        let allowed = match namespace(&dotted) {
            Some(Namespace::Network) => own.network,
            Some(Namespace::Ipc) => own.ipc,
            Some(Namespace::Uts) => own.uts,
            None => return refuse("belongs to no namespace"),
        };
        if !allowed {
            return refuse("its namespace is the host's");
        }
        if value.contains('\0') {
            return refuse("contains a NUL byte");
        }
        checked.insert(dotted, value.clone());
    }
    Ok(checked)
}

enum Namespace {
    Network,
    Ipc,
    Uts,
}

fn namespace(dotted: &str) -> Option<Namespace> {
    const IPC: [&str; 8] = [
        "kernel.msgmax",
        "kernel.msgmnb",
        "kernel.msgmni",
        "kernel.sem",
        "kernel.shmall",
        "kernel.shmmax",
        "kernel.shmmni",
        "kernel.shm_rmid_forced",
    ];
    if dotted.split('.').any(|part| part.is_empty() || part == "..") {
        return None;
    }
    match dotted {
        "kernel.domainname" | "kernel.hostname" => Some(Namespace::Uts),
        name if IPC.contains(&name) || name.starts_with("fs.mqueue.") => Some(Namespace::Ipc),
        name if name.starts_with("net.") => Some(Namespace::Network),
        _ => None,
    }
}

/// Both `net/ipv4/x` and `net.ipv4.x` are in use; the first separator says which it is, and in
/// the first form a dot is part of an interface's name.
fn dotted(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(i) if name.as_bytes()[i] == b'/' => name
            .chars()
            .map(|c| {
                if c == '/' {
                    '.'
                } else if c == '.' {
                    '/'
                } else {
                    c
                }
            })
            .collect(),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: OwnNamespaces = OwnNamespaces { network: true, ipc: true, uts: true, user: false };

    #[track_caller]
    fn verdict(name: &str, own: OwnNamespaces, want: &str) {
        let asked = BTreeMap::from([(name.to_owned(), "1".to_owned())]);
        let got = match check(&asked, own) {
            Ok(checked) => checked.into_keys().collect(),
            Err(error) => error.to_string(),
        };
        assert_eq!(got, want);
    }

    #[test]
    fn only_what_belongs_to_a_namespace_of_ones_own() {
        verdict("net.core.somaxconn", ALL, "net.core.somaxconn");
        verdict("net/core/somaxconn", ALL, "net.core.somaxconn");
        verdict("net/ipv4/conf/eth0.1/forwarding", ALL, "net.ipv4.conf.eth0/1.forwarding");
        verdict("kernel.shm_rmid_forced", ALL, "kernel.shm_rmid_forced");
        verdict("fs.mqueue.msg_max", ALL, "fs.mqueue.msg_max");
        verdict("kernel.domainname", ALL, "kernel.domainname");
        for name in ["kernel.panic", "vm.swappiness", "fs.mqueue", "net", "net..core", "", "."] {
            verdict(name, ALL, &format!("sysctls[{name:?}]: belongs to no namespace"));
        }
        let host = OwnNamespaces { network: false, ..ALL };
        verdict(
            "net.core.somaxconn",
            host,
            "sysctls[\"net.core.somaxconn\"]: its namespace is the host's",
        );
    }

    #[test]
    fn a_pod_gets_low_ports_and_pings() {
        let kernel = Kernel { major: 6, minor: 1 };
        let keys = |asked: &[(&str, &str)], own, kernel| -> Vec<String> {
            let asked = asked.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect();
            let sysctls = pod_sysctls(&asked, own, kernel, &Policy::default()).unwrap();
            sysctls.into_iter().map(|(k, v)| format!("{k}={v}")).collect()
        };
        let (ports, ping) = (format!("{LOW_PORTS}=0"), format!("{PING}=0 2147483647"));
        assert_eq!(keys(&[], ALL, kernel), [ports.clone(), ping.clone()]);
        assert_eq!(keys(&[(LOW_PORTS, "80")], ALL, kernel), [format!("{LOW_PORTS}=80"), ping]);
        assert_eq!(keys(&[], OwnNamespaces { user: true, ..ALL }, kernel), [ports]);
        assert!(keys(&[], OwnNamespaces { network: false, ..ALL }, kernel).is_empty());
        assert!(keys(&[], ALL, Kernel { major: 4, minor: 9 }).is_empty());
    }
}
