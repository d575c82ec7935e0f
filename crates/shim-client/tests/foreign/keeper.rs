//! The shim of these tests: containerd's.

use std::path::{Path, PathBuf};

use shim_client::{
    BootstrapForm, Foreign, RuntimeOptions, Sandboxer, Shim, ShimError, StartForeign, StartPod,
    bury,
};

use crate::world::{LIMIT, Pod, Wish, World};

const NAME: &str = "io.containerd.runc.v2";

/// What a failed creation may leave in the bundle: notes of the shim, gone with the bundle.
pub(crate) const LEAVINGS: [&str; 4] = ["config.json", "runtime", "options.json", "log.json"];
/// Of the shim, beside containers: the sandbox.
pub(crate) const CHILDREN: usize = 1;
/// How the deletion of what runs is refused: in words only.
pub(crate) const BUSY: base::Kind = base::Kind::Internal;

pub(crate) fn missing() -> Option<&'static str> {
    (!binary().exists()).then_some("no containerd-shim-runc-v2")
}

pub(crate) fn binary() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    shim_client::find_shim(NAME, &path).unwrap_or_default()
}

/// Each its own events server, as each daemon has. The test's runtime ends it.
fn host(dir: &Path) -> Foreign {
    Foreign::open(&dir.join("events.sock")).expect("an events server")
}

pub(crate) fn describe(world: &World, spec: &StartPod) -> StartForeign {
    let runtime = world.oci_runtime();
    StartForeign {
        id: spec.id.clone(),
        dir: spec.dir.clone(),
        // The kernel keeps it asleep; a signal that ends it is the end of the pod.
        bundle: world.bundle(&spec.id, &["sleep", "100000"], &Wish::default()),
        sandboxer: Sandboxer::Task,
        binary: binary(),
        form: BootstrapForm::Options,
        options: RuntimeOptions::Runc {
            binary: runtime.binary,
            root: runtime.root,
            systemd_cgroup: false,
        },
        namespaces: spec.namespaces.clone(),
    }
}

pub(crate) async fn start(world: &World, spec: &StartPod) -> Shim {
    let (host, spec) = (host(world.dir.path()), describe(world, spec));
    host.prepare(&spec).await.expect("a pod on record");
    host.launch(&spec.dir, LIMIT).await.expect("a shim")
}

/// As a new daemon does.
pub(crate) async fn connect(pod: &Pod) -> Result<Shim, ShimError> {
    host(pod.world.dir.path()).connect(&pod.world.pod_dir(), LIMIT).await
}

pub(crate) async fn end(pod: &Pod) {
    let socket = pod.shim.info().address.clone();
    assert!(bury(&pod.world.pod_dir(), LIMIT).await.expect("burial").is_empty());
    assert!(!Path::new(socket.trim_start_matches("unix://")).exists(), "{socket} is left");
}
