//! The files every container of a pod sees: hosts, hostname, resolv.conf, /dev/shm.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
};

use base::Id;
use oci::{IdMapping, UserNamespace};
use sys::mount::{self, Attrs, Tmpfs, Unmount};

use crate::{
    error::{EngineError, Result},
    files::{make_dir, write},
    layout::Layout,
    record::PodRecord,
    request::{Dns, PodNamespace, PodRequest},
};

/// What Docker and Kubernetes users are used to.
const SHM_BYTES: u64 = 64 << 20;

/// The directories of a pod, which its shim and its containers will use. Blocking.
pub(super) fn make_dirs(layout: &Layout, id: &Id, request: &PodRequest) -> Result<()> {
    make_dir(&layout.pods(), 0o711)?;
    make_dir(&layout.pod(id), 0o700)?;
    if let Some(ids) = root_of(request) {
        admit(&layout.pod(id), ids)?;
    }
    if request.network == PodNamespace::Pod {
        make_dir(layout.netns_dir(), 0o755)?;
    }
    let dirs = [layout.pod(id).join("ns"), layout.exec(id), layout.pod(id).join("c")];
    dirs.iter().try_for_each(|dir| make_dir(dir, 0o711))?;
    make_dir(&layout.files(id), 0o711)
}

/// With a SELinux label, where there is one. Blocking.
pub(super) fn make(layout: &Layout, pod: &PodRecord, label: Option<&str>) -> Result<()> {
    let PodRecord { id, request, .. } = pod;
    let files = layout.files(id);
    write(&files.join("hostname"), format!("{}\n", hostname(request)?).as_bytes(), 0o644)?;
    write(&files.join("hosts"), &hosts(request)?, 0o644)?;
    write(&files.join("resolv.conf"), resolv_conf(request.dns.as_ref())?.as_bytes(), 0o644)?;
    if let Some(label) = label {
        sys::label::set_tree(&files, label)?;
    }
    if request.ipc == PodNamespace::Pod {
        make_shm(layout, id, root_of(request), label)?;
    }
    Ok(())
}

/// Who is root in the pod's user namespace: its uid and gid on the host.
pub(crate) fn root_of(request: &PodRequest) -> Option<(u32, u32)> {
    let Some(UserNamespace::Pod(maps)) = &request.user else { return None };
    let first = |ranges: &[IdMapping]| ranges.iter().find(|r| r.container == 0).map(|r| r.host);
    Some((first(&maps.uids)?, first(&maps.gids)?))
}

/// The pod's own root passes through the pod's directory to its root file systems; the roots
/// of other pods do not.
fn admit(dir: &Path, (_, gid): (u32, u32)) -> Result<()> {
    let failed = |e| EngineError::io("admit the pod's root to", dir)(e);
    chown(dir, None, Some(gid)).map_err(failed)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o710)).map_err(failed)
}

/// Blocking, idempotent.
pub(super) fn remove(layout: &Layout, id: &Id) -> Result<()> {
    let dir = layout.pod(id);
    mount::unmount_tree(&dir, Unmount::Lazy)?;
    crate::files::remove_dir(&dir)
}

fn make_shm(layout: &Layout, id: &Id, root: Option<(u32, u32)>, label: Option<&str>) -> Result<()> {
    let shm = layout.shm(id);
    make_dir(&shm, 0o1777)?;
    if !mount::is_mount_point(&shm)? {
        let attrs = Attrs { no_suid: true, no_dev: true, no_exec: true, ..Attrs::default() };
        let tmpfs = Tmpfs { bytes: SHM_BYTES, inodes: 0, mode: 0o1777 };
        tmpfs.create_labelled(attrs, label)?.attach(&shm)?;
    }
    if let Some((uid, gid)) = root {
        chown(&shm, Some(uid), Some(gid)).map_err(EngineError::io("give away", &shm))?;
    }
    Ok(())
}

/// On the host's network a pod has the host's name.
pub(crate) fn hostname(request: &PodRequest) -> Result<String> {
    if request.hostname.is_empty() { host_name() } else { Ok(request.hostname.clone()) }
}

/// Returns the name of the host as it is now.
pub(super) fn host_name() -> Result<String> {
    let path = "/proc/sys/kernel/hostname";
    let name = fs::read_to_string(path).map_err(EngineError::io("read", path))?;
    Ok(name.trim().to_owned())
}

/// The kubelet mounts its own over it; others start from the host's.
fn hosts(request: &PodRequest) -> Result<Vec<u8>> {
    let mut text = match fs::read("/etc/hosts") {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(e) => return Err(EngineError::io("read", "/etc/hosts")(e)),
    };
    if request.network == PodNamespace::Pod && !request.hostname.is_empty() {
        text.extend_from_slice(format!("127.0.1.1\t{}\n", request.hostname).as_bytes());
    }
    Ok(text)
}

fn resolv_conf(dns: Option<&Dns>) -> Result<String> {
    let Some(dns) = dns else {
        return match fs::read_to_string("/etc/resolv.conf") {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            read => read.map_err(EngineError::io("read", "/etc/resolv.conf")),
        };
    };
    let mut text = String::new();
    if !dns.searches.is_empty() {
        text += &format!("search {}\n", dns.searches.join(" "));
    }
    for server in &dns.servers {
        text += &format!("nameserver {server}\n");
    }
    if !dns.options.is_empty() {
        text += &format!("options {}\n", dns.options.join(" "));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_in_the_order_resolvers_want() {
        let dns = Dns {
            servers: vec!["10.0.0.1".into(), "10.0.0.2".into()],
            searches: vec!["a.example".into(), "b.example".into()],
            options: vec!["ndots:8".into()],
        };
        assert_eq!(
            resolv_conf(Some(&dns)).unwrap(),
            "search a.example b.example\nnameserver 10.0.0.1\nnameserver 10.0.0.2\noptions ndots:8\n"
        );
        assert_eq!(resolv_conf(Some(&Dns::default())).unwrap(), "");
    }
}
