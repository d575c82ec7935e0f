//! Where everything of a pod lies.
//!
//! ```text
//! STATE/pods/POD/          the shim's own files, and
//!                ns/       pinned namespaces, but that of the network
//!                files/    hosts, hostname, resolv.conf
//!                shm/      a tmpfs
//!                exec/     pipes of commands
//!                c/CONTAINER/  a bundle: config.json, rootfs/, and
//!                              images/N  images shown to the container
//!                c/POD/    that of the sandbox, with a shim that is not ours
//! STATE/oci/HANDLER/       the OCI runtime's own state
//! STATE/events.sock        hears the shims that are not ours
//! ROOT/volumes/CONTAINER/N what its image calls a volume: on disk, it may grow
//! ROOT/checkpoints/CONTAINER/  of a checkpoint in the making; see container/checkpoint.rs
//! NETNS/longshore-POD      the pinned network namespace, where CNI programs look for it
//! ```

use std::path::{Path, PathBuf};

use base::Id;

use crate::config::EngineConfig;

#[derive(Clone, Debug)]
pub(crate) struct Layout {
    state: PathBuf,
    root: PathBuf,
    netns: PathBuf,
}

impl Layout {
    pub(crate) fn new(config: &EngineConfig) -> Self {
        let (state, root, netns) = (&config.state, &config.root, &config.netns);
        Self { state: state.clone(), root: root.clone(), netns: netns.clone() }
    }

    /// Of a daemon that nobody has configured.
    pub(crate) fn usual() -> Self {
        let (state, root) = ("/run/longshore".into(), "/var/lib/longshore".into());
        Self { state, root, netns: "/var/run/netns".into() }
    }

    pub(crate) fn pods(&self) -> PathBuf {
        self.state.join("pods")
    }

    pub(crate) fn pod(&self, pod: &Id) -> PathBuf {
        self.pods().join(pod)
    }

    pub(crate) fn namespace(&self, pod: &Id, kind: &str) -> PathBuf {
        self.pod(pod).join("ns").join(kind)
    }

    pub(crate) fn netns_dir(&self) -> &Path {
        &self.netns
    }

    /// Of its network.
    pub(crate) fn netns(&self, pod: &Id) -> PathBuf {
        self.netns.join(format!("longshore-{pod}"))
    }

    pub(crate) fn files(&self, pod: &Id) -> PathBuf {
        self.pod(pod).join("files")
    }

    pub(crate) fn shm(&self, pod: &Id) -> PathBuf {
        self.pod(pod).join("shm")
    }

    pub(crate) fn exec(&self, pod: &Id) -> PathBuf {
        self.pod(pod).join("exec")
    }

    pub(crate) fn bundle(&self, pod: &Id, container: &Id) -> PathBuf {
        self.pod(pod).join("c").join(container)
    }

    /// Of the task that is the pod, for a shim that is not ours.
    pub(crate) fn sandbox(&self, pod: &Id) -> PathBuf {
        self.bundle(pod, pod)
    }

    /// Where foreign shims send their events.
    pub(crate) fn events(&self) -> PathBuf {
        self.state.join("events.sock")
    }

    pub(crate) fn spec(&self, pod: &Id, container: &Id) -> PathBuf {
        self.bundle(pod, container).join("config.json")
    }

    pub(crate) fn rootfs(&self, pod: &Id, container: &Id) -> PathBuf {
        self.bundle(pod, container).join("rootfs")
    }

    pub(crate) fn image(&self, pod: &Id, container: &Id, number: usize) -> PathBuf {
        self.bundle(pod, container).join("images").join(number.to_string())
    }

    pub(crate) fn volumes(&self, container: &Id) -> PathBuf {
        self.root.join("volumes").join(container)
    }

    pub(crate) fn checkpoint(&self, container: &Id) -> PathBuf {
        self.root.join("checkpoints").join(container)
    }

    pub(crate) fn runtime_root(&self, handler: &str) -> PathBuf {
        self.state.join("oci").join(handler)
    }

    /// For shims that put a directory of their own between this and the state of a container.
    pub(crate) fn foreign_runtime_root(&self) -> PathBuf {
        self.state.join("oci")
    }
}
