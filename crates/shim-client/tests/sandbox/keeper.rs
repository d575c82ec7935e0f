//! The shim of these tests: testkit's.

use std::{
    fs,
    path::{Path, PathBuf},
};

use shim_client::{
    BootstrapForm, Foreign, PodConfig, PodPids, RuntimeOptions, Sandboxer, Shim, ShimError,
    StartForeign, StartPod, bury,
};

use crate::world::{LIMIT, Pod, World};

/// What a failed creation may leave in the bundle.
pub(crate) const LEAVINGS: [&str; 1] = ["config.json"];
/// Of the shim, beside containers: the sandbox.
pub(crate) const CHILDREN: usize = 1;
/// How the deletion of what runs is refused.
pub(crate) const BUSY: base::Kind = base::Kind::FailedPrecondition;

pub(crate) fn missing() -> Option<&'static str> {
    None
}

pub(crate) fn binary() -> PathBuf {
    testkit::sandbox_shim(std::env::current_exe().expect("a test is a program"))
}

/// Each its own events server, as each daemon has. The test's runtime ends it.
fn host(dir: &Path) -> Foreign {
    Foreign::open(&dir.join("events.sock")).expect("an events server")
}

pub(crate) fn describe(world: &World, spec: &StartPod) -> StartForeign {
    let runtime = world.oci_runtime();
    let bundle = world.dir.path().join("bundles").join(&spec.id);
    fs::create_dir_all(&bundle).expect("a bundle");
    let config = PodConfig {
        name: "pod".to_owned(),
        hostname: spec.hostname.clone().unwrap_or_default(),
        sysctls: spec.sysctls.clone(),
        cgroup_parent: world.cgroup(),
        host_network: spec.namespaces.net.is_none(),
        pids: if spec.namespaces.pid { PodPids::Pod } else { PodPids::Container },
        ..PodConfig::default()
    };
    StartForeign {
        id: spec.id.clone(),
        dir: spec.dir.clone(),
        bundle,
        sandboxer: Sandboxer::Service(Box::new(config)),
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
