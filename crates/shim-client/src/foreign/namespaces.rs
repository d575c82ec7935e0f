//! The namespaces of a pod that the daemon makes: pinned before there is a shim, so that the pod
//! can be put on its networks, and furnished where no task of the shim does that.

use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use sys::{
    namespace::{self, Holder, Namespace, Spaces},
    sysctl,
};

use super::{
    PodConfig,
    record::{PodFile, Sandboxer},
};

impl PodFile {
    /// Blocking.
    pub(super) fn make_namespaces(&self) -> io::Result<()> {
        let pins = self.pins();
        pin(&pins)?;
        match &self.sandboxer {
            // Its spec says what is to be set.
            Sandboxer::Task => Ok(()),
            Sandboxer::Service(config) => furnish(&pins, config),
        }
    }

    fn pins(&self) -> Vec<(Namespace, &Path)> {
        let wanted = &self.namespaces;
        let pins = [
            (Namespace::Network, wanted.net.as_deref()),
            (Namespace::Ipc, wanted.ipc.as_deref()),
            (Namespace::Uts, wanted.uts.as_deref()),
        ];
        pins.into_iter().filter_map(|(kind, path)| Some((kind, path?))).collect()
    }
}

/// Makes the namespaces in a child that only waits, so that no thread of ours enters them.
fn pin(pins: &[(Namespace, &Path)]) -> sys::Result<()> {
    if pins.is_empty() {
        return Ok(());
    }
    let others = pins.iter().map(|(kind, _)| *kind).collect();
    let holder = Holder::park(&Spaces { user: None, others })?;
    pins.iter().try_for_each(|(kind, path)| holder.pin(*kind, path))
}

/// Name and settings, from inside; what a sandbox does in namespaces of its own nobody sees.
fn furnish(pins: &[(Namespace, &Path)], config: &PodConfig) -> io::Result<()> {
    let named = pins.iter().any(|(kind, _)| *kind == Namespace::Uts);
    let hostname = Some(&config.hostname).filter(|name| named && !name.is_empty());
    let settings = settings(&config.sysctls)?;
    if hostname.is_none() && settings.is_empty() {
        return Ok(());
    }
    let opened = pins.iter().map(|(_, path)| namespace::open(path));
    let opened = opened.collect::<sys::Result<Vec<OwnedFd>>>()?;
    let joined: Vec<_> = opened.iter().map(AsFd::as_fd).collect();
    namespace::in_thread(&joined, || {
        if let Some(name) = hostname {
            rustix::system::sethostname(name.as_bytes())?;
        }
        settings.iter().try_for_each(|(path, value)| {
            let named = |e: io::Error| {
                io::Error::new(e.kind(), format!("set {} to {value:?}: {e}", path.display()))
            };
            fs::write(path, value).map_err(named)
        })
    })?
}

fn settings(sysctls: &BTreeMap<String, String>) -> io::Result<Vec<(PathBuf, String)>> {
    let one = |(name, value): (&String, &String)| -> io::Result<(PathBuf, String)> {
        let invalid =
            || io::Error::new(io::ErrorKind::InvalidInput, format!("sysctl {name:?} is no name"));
        let path = sysctl::path(name).ok_or_else(invalid)?;
        Ok((Path::new(sysctl::DIR).join(path), value.clone()))
    };
    sysctls.iter().map(one).collect()
}

/// Whether the process is in a PID namespace that is not ours: containers must not be let into
/// the host's by mistake.
pub(super) fn has_own_pids(pid: u32) -> bool {
    let of = |process: &str| namespace::identity(Path::new(&format!("/proc/{process}/ns/pid")));
    match (of(&pid.to_string()), of("self")) {
        (Ok(its), Ok(ours)) => its != ours,
        _ => false,
    }
}
