//! Which OCI runtimes the engine is given.
//!
//! Each has really run a container once; that takes a tenth of a second, and is remembered for as
//! long as the binary is the same and the machine runs.

use std::{
    ffi::OsString,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use engine::{ForeignShim, Handler};
use oci::{Abilities, CgroupDriver, HandlerFacts, PrivilegedDevices, Spec};
use probe::{HostPaths, Runtime};
use serde::{Deserialize, Serialize};
use store::{Record, Store};

use crate::config::{self, HandlerSettings, Handlers, Settings};

/// A runtime that works, as it was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct TriedRuntime {
    name: String,
    seen: Seen,
    spec_version: String,
    features: Option<serde_json::Value>,
    /// Absent in what older daemons remembered.
    #[serde(default)]
    built_with: Option<String>,
}

/// What a trial is good for: the same file, in the same boot, with the same cgroups.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Seen {
    path: PathBuf,
    modified: (i64, i64),
    bytes: u64,
    boot: String,
    systemd: bool,
}

impl Record for TriedRuntime {
    const TABLE: &'static str = "tried_runtimes";
    const VERSION: u32 = 1;
    type Key = String;

    fn key(&self) -> String {
        self.name.clone()
    }
}

/// Those that work, the default first.
pub(super) async fn find(
    settings: &Settings,
    driver: CgroupDriver,
    store: &Store,
) -> anyhow::Result<Vec<Handler>> {
    let table = store.table::<TriedRuntime>()?;
    let (known, looked) = (table.list(), settings.clone());
    let looking = move || (try_all(&looked, driver, &known), find_shims(&looked));
    let (tried, shims) = tokio::task::spawn_blocking(looking).await?;
    for tried in &tried {
        if table.get(&tried.name).as_deref() != Some(tried) {
            table.put(tried.clone()).await?;
        }
    }
    let Handlers::Given { handlers, .. } = &settings.handlers else {
        return tried.into_iter().map(|tried| handler(None, driver, Some(tried), None)).collect();
    };
    let found = handlers.iter().filter_map(|given| {
        let tried = tried.iter().find(|tried| tried.name == given.name).cloned();
        let shim = shims.iter().find(|(name, _)| *name == given.name).map(|(_, shim)| shim.clone());
        let works = tried.is_some() || given.binary.as_os_str().is_empty();
        let there = shim.is_some() == given.shim.is_some();
        (works && there).then(|| handler(Some(given), driver, tried, shim))
    });
    found.collect()
}

/// The shims of handlers that are not ours, where they are installed. Blocking.
fn find_shims(settings: &Settings) -> Vec<(String, ForeignShim)> {
    let path: OsString = std::env::var_os("PATH").unwrap_or_default();
    let find = |given: &HandlerSettings| {
        let shim = given.shim.as_ref()?;
        match ForeignShim::find(&shim.name, &path, shim.config.clone()) {
            Ok(found) => Some((given.name.clone(), ForeignShim { sandbox: shim.sandbox, ..found })),
            Err(reason) => {
                tracing::warn!(handler = given.name, %reason, "handler not used");
                None
            }
        }
    };
    settings.handlers.given().iter().filter_map(find).collect()
}

/// Blocking.
fn try_all(
    settings: &Settings,
    driver: CgroupDriver,
    known: &[Arc<TriedRuntime>],
) -> Vec<TriedRuntime> {
    let given = settings.handlers.given();
    if !given.is_empty() && given.iter().all(|handler| handler.binary.as_os_str().is_empty()) {
        return Vec::new();
    }
    let path: OsString = std::env::var_os("PATH").unwrap_or_default();
    let host = HostPaths::real(&path);
    let wanted = probe::candidates(&host, &settings.probe());
    let remembered = |(name, path): &(String, PathBuf)| {
        let seen = see(path, driver)?;
        known.iter().find(|tried| tried.name == *name && tried.seen == seen)
    };
    let new: Vec<_> = wanted.iter().filter(|one| remembered(one).is_none()).cloned().collect();
    if !new.is_empty() {
        let names: Vec<_> = new.iter().map(|(name, _)| name.as_str()).collect();
        tracing::info!(names = ?names, "OCI runtimes tried, each with a container");
    }
    let mut tried = probe::try_runtimes(&host, &settings.probe(), &new).into_iter();
    let found = wanted.iter().filter_map(|one| match remembered(one) {
        Some(known) => Some(TriedRuntime::clone(known)),
        None => tried.next().and_then(|runtime| judge(runtime, driver)),
    });
    found.collect()
}

fn judge(runtime: Runtime, driver: CgroupDriver) -> Option<TriedRuntime> {
    if let Err(broken) = &runtime.works {
        tracing::warn!(handler = runtime.name, reason = %broken, "OCI runtime not used");
        return None;
    }
    let seen = see(&runtime.path, driver)?;
    let Runtime { name, spec_version, features, built_with, .. } = runtime;
    Some(TriedRuntime { name, seen, spec_version, features, built_with })
}

fn see(path: &Path, driver: CgroupDriver) -> Option<Seen> {
    let meta = fs::metadata(path).ok()?;
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(Seen {
        path: path.to_owned(),
        modified: (meta.mtime(), meta.mtime_nsec()),
        bytes: meta.size(),
        boot: boot.trim().to_owned(),
        systemd: driver == CgroupDriver::Systemd,
    })
}

/// One of `given` and `tried` is there.
fn handler(
    given: Option<&HandlerSettings>,
    driver: CgroupDriver,
    tried: Option<TriedRuntime>,
    shim: Option<ForeignShim>,
) -> anyhow::Result<Handler> {
    let name = given.map(|h| h.name.clone()).or_else(|| tried.as_ref().map(|t| t.name.clone()));
    let name = name.unwrap_or_default();
    let features = tried.as_ref().and_then(|tried| tried.features.as_ref());
    let built_with = tried.as_ref().and_then(|tried| tried.built_with.as_deref());
    let abilities = Abilities::of_features(features).built_with(built_with);
    let facts = HandlerFacts {
        name: name.clone(),
        oci_version: tried.as_ref().map_or("1.0.2", |tried| &tried.spec_version).to_owned(),
        cgroup_driver: driver,
        abilities: if shim.is_some() { abilities.behind_foreign_shim() } else { abilities },
        base_spec: given.map(base_spec).transpose()?.flatten(),
        pod_annotations: given.map(|h| h.pod_annotations.clone()).unwrap_or_default(),
        container_annotations: given.map(|h| h.container_annotations.clone()).unwrap_or_default(),
        cgroup_writable: given.is_some_and(|h| h.cgroup_writable),
        privileged_devices: given.map_or(PrivilegedDevices::Host, |h| h.privileged_devices),
        unset_seccomp: given.and_then(|h| h.seccomp.clone()),
    };
    Ok(Handler {
        name,
        binary: tried.map(|tried| tried.seen.path).unwrap_or_default(),
        shim,
        args: given.map(|h| h.args.clone()).unwrap_or_default(),
        snapshotter: given.and_then(|h| h.snapshotter.clone()),
        facts,
    })
}

fn base_spec(handler: &HandlerSettings) -> anyhow::Result<Option<Spec>> {
    let Some(path) = &handler.base_spec else { return Ok(None) };
    let key = || format!("handlers.{}.base_spec: {}", handler.name, path.display());
    let text = fs::read(path).with_context(key)?;
    serde_json::from_slice(&text).map(Some).with_context(key)
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
