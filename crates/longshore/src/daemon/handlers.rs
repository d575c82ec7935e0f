//! Which OCI runtimes the engine is given.

use std::ffi::OsString;

use engine::Handler;
use oci::{Abilities, CgroupDriver, HandlerFacts};
use probe::HostPaths;

use crate::config::{self, Settings};

/// Those that work, the default first. Each has really run a container; that takes a tenth
/// of a second. Blocking.
pub(super) fn find(settings: &Settings, driver: CgroupDriver) -> Vec<Handler> {
    let path: OsString = std::env::var_os("PATH").unwrap_or_default();
    let host = HostPaths::real(&path);
    let mut runtimes = probe::runtimes(&host, &settings.probe());
    for runtime in &runtimes {
        if let Err(broken) = &runtime.works {
            tracing::warn!(handler = runtime.name, reason = %broken, "OCI runtime not used");
        }
    }
    runtimes.retain(|runtime| runtime.works.is_ok());
    runtimes
        .into_iter()
        .map(|runtime| Handler {
            facts: HandlerFacts {
                name: runtime.name.clone(),
                oci_version: runtime.spec_version.clone(),
                cgroup_driver: driver,
                abilities: Abilities::of_features(runtime.features.as_ref()),
                ..HandlerFacts::default()
            },
            name: runtime.name,
            binary: runtime.path,
            snapshotter: None,
        })
        .collect()
}

/// Of all pods: systemd where it runs, unless the operator decided.
pub(super) fn cgroup_driver(settings: &Settings) -> CgroupDriver {
    let host = HostPaths::real(OsString::new().as_os_str());
    match settings.cgroup_driver {
        config::CgroupDriver::Systemd => CgroupDriver::Systemd,
        config::CgroupDriver::Cgroupfs => CgroupDriver::Cgroupfs,
        config::CgroupDriver::Auto => match host.default_driver() {
            probe::Driver::Systemd => CgroupDriver::Systemd,
            probe::Driver::Cgroupfs => CgroupDriver::Cgroupfs,
        },
    }
}
