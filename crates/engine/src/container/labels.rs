//! SELinux labels of a container and of the files it is given.

use std::path::Path;

use oci::{ContainerRequest, MountSource, SelinuxLabels};

use crate::{
    error::{EngineError, Result},
    record::PodRecord,
    shared::Shared,
};

/// To label these would break the host.
const HOSTS_OWN: [&str; 11] =
    ["/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr"];

/// `None`: SELinux is off, its policy does not know containers, or this one is to have none.
pub(crate) fn of(
    shared: &Shared,
    pod: &PodRecord,
    request: &ContainerRequest,
) -> Result<Option<SelinuxLabels>> {
    let security = &request.security;
    let asked = [pod.request.selinux.as_ref(), security.selinux.as_ref()];
    for asked in asked.into_iter().flatten() {
        oci::check_selinux(asked, "security.selinux")?;
        if asked.disable {
            return Ok(None);
        }
    }
    let Some(contexts) = &shared.config.selinux else { return Ok(None) };
    let categories = pod.selinux_categories.as_deref().unwrap_or_default();
    Ok((!security.privileged).then(|| contexts.labels(asked, categories)))
}

/// Of what all containers of a pod share.
pub(crate) fn of_pod(shared: &Shared, pod: &PodRecord) -> Option<String> {
    let contexts = shared.config.selinux.as_ref()?;
    let categories = pod.selinux_categories.as_deref().unwrap_or_default();
    let labels = contexts.labels([pod.request.selinux.as_ref(), None], categories);
    (!pod.request.privileged).then_some(labels.mount)
}

/// Gives the container's label to the mounts that are to have it. Blocking.
pub(super) fn relabel(request: &ContainerRequest, labels: &SelinuxLabels) -> Result<()> {
    for (number, mount) in request.mounts.iter().enumerate() {
        let MountSource::Host(path) = &mount.source else { continue };
        if !mount.selinux_relabel {
            continue;
        }
        // A source that is not there is made later, and labelled then as all new files are.
        let Ok(real) = path.canonicalize() else { continue };
        if is_hosts_own(&real) {
            let field = format!("mounts[{number}].selinux_relabel");
            let why = format!("{} is the host's own: its label stays", real.display());
            return Err(EngineError::invalid(field, why));
        }
        sys::label::set_tree(&real, &labels.mount)?;
    }
    Ok(())
}

fn is_hosts_own(path: &Path) -> bool {
    let pseudo = ["/dev", "/proc", "/sys"];
    HOSTS_OWN.iter().any(|own| path == Path::new(own))
        || pseudo.iter().any(|own| path.starts_with(own))
}

#[cfg(test)]
mod tests {
    use oci::MountRequest;

    use super::*;

    fn asked(path: &Path, selinux_relabel: bool) -> ContainerRequest {
        let source = MountSource::Host(path.to_owned());
        let mount = MountRequest { source, selinux_relabel, ..MountRequest::default() };
        ContainerRequest { mounts: vec![mount], ..ContainerRequest::default() }
    }

    fn labels() -> SelinuxLabels {
        SelinuxLabels { process: "u:r:p:s0".to_owned(), mount: "u:r:f:s0:c1,c2".to_owned() }
    }

    #[test]
    fn the_hosts_own_files_keep_their_labels() {
        for path in ["/", "/usr", "/etc", "/proc/self", "/dev/null", "/sys/fs"] {
            let refused = relabel(&asked(Path::new(path), true), &labels()).unwrap_err();
            assert!(refused.to_string().contains("is the host's own"), "{path}: {refused}");
            relabel(&asked(Path::new(path), false), &labels()).unwrap();
        }
        assert!(!is_hosts_own(Path::new("/usr/share/x")));
    }

    #[test]
    fn what_is_asked_for_is_labelled() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        relabel(&asked(&dir.path().join("nothing"), true), &labels()).unwrap();
        relabel(&asked(dir.path(), false), &labels()).unwrap();
        let before = sys::label::get(&file).ok();
        assert_ne!(before.as_deref(), Some("u:r:f:s0:c1,c2"));
        relabel(&asked(dir.path(), true), &labels()).unwrap();
        if let Ok(label) = sys::label::get(&file) {
            assert_eq!(label, "u:r:f:s0:c1,c2");
        }
    }
}
