//! The limits of a container: in its spec, and in its cgroup while it runs.

use std::{fs, path::Path, sync::Arc};

use base::Kind;
use oci::{CgroupFacts, CgroupVersion, LinuxResources, Resources, Spec};
use shim_client::ShimError;

use crate::{
    error::{EngineError, Result},
    files::{blocking, replace},
    owner::Turn,
    plugins,
    record::{ContainerRecord, Made},
    shared::Shared,
};

/// Limits as they are after a change.
#[derive(Debug)]
pub(crate) struct Changed {
    resources: Resources,
    /// Classes that were set; an empty one was taken away.
    block_io_class: Option<String>,
    rdt_class: Option<String>,
}

impl Changed {
    pub(crate) fn put_into(self, made: &mut Made) {
        made.resources = self.resources;
        for (class, into) in
            [(self.block_io_class, &mut made.block_io_class), (self.rdt_class, &mut made.rdt_class)]
        {
            if let Some(class) = class {
                *into = (!class.is_empty()).then_some(class);
            }
        }
    }
}

/// What a client asked for, as plugins want it.
pub(crate) async fn update(
    shared: Arc<Shared>,
    container: Arc<ContainerRecord>,
    asked: Resources,
    turn: Turn,
) -> Result<Changed> {
    let _stage = shared.stages.enter(container.id, "update-container");
    let asked = nri::Resources { linux: oci::to_linux(&asked)?, ..nri::Resources::default() };
    let asked = shared.plugins.update(&shared, &container, asked).await?;
    let changed = change(&shared, &container, &asked, &turn).await;
    let changed = changed.map_err(|error| shared.plugins.blame_update(&container, error))?;
    shared.plugins.post_update(&shared, &container).await;
    Ok(changed)
}

/// Writes the new limits into the spec and, if there is a task, into the cgroup; if that
/// fails the old spec is put back. Not cancel safe.
pub(crate) async fn change(
    shared: &Shared,
    container: &ContainerRecord,
    asked: &nri::Resources,
    turn: &Turn,
) -> Result<Changed> {
    let _turn = turn.lock().await;
    // Its phase may have changed while others had theirs.
    let now = shared.containers.get(&container.id);
    let live = now.is_some_and(|now| now.phase.is_live());
    let path = shared.layout.spec(&container.pod, &container.id);
    let (old, mut spec) = {
        let path = path.clone();
        blocking(move || read_spec(&path)).await?
    };
    let resources = put(shared, container, &mut spec, asked, live)?;
    let new = oci::to_json(&spec).expect("a spec is JSON");
    let to = path.clone();
    blocking(move || replace(&to, &new)).await?;
    if live {
        let json = serde_json::to_vec(&resources).expect("resources are JSON");
        match shared.shim(container.pod)?.update(container.id.as_str(), &json).await {
            // It has just ended, or is not there yet; the limits are in its spec.
            Ok(()) | Err(ShimError::NotFound { .. }) => {}
            Err(error) => {
                blocking(move || replace(&path, &old)).await?;
                return Err(error.into());
            }
        }
    }
    Ok(Changed {
        resources: oci::resources_of(&spec),
        block_io_class: asked.block_io_class.clone(),
        rdt_class: asked.rdt_class.clone(),
    })
}

/// Returns what the cgroup is to be told.
fn put(
    shared: &Shared,
    container: &ContainerRecord,
    spec: &mut Spec,
    asked: &nri::Resources,
    live: bool,
) -> Result<LinuxResources> {
    let pod = shared.pods.get(&container.pod);
    let limits = shared.limits_of(pod.as_ref().map_or("", |pod| pod.handler.as_str()))?;
    let mut linux = asked.linux.clone();
    if let Some(class) = asked.block_io_class.as_deref() {
        if class.is_empty() {
            return Err(fixed("blockio_class", "cannot be taken away"));
        }
        let known = plugins::block_io(shared, class);
        linux.set_block_io(Some(known.map_err(|e| EngineError::invalid("blockio_class", e))?));
    }
    if asked.rdt_class.is_some() && live {
        return Err(fixed("rdt_class", "cannot be changed while the container runs"));
    }
    let updated = oci::update_linux(spec, &linux, limits)?;
    if let Some(class) = asked.rdt_class.as_deref() {
        let rdt = plugins::rdt(class).map_err(|e| EngineError::invalid("rdt_class", e))?;
        let mut linux = spec.linux().clone().unwrap_or_default();
        linux.set_intel_rdt(rdt);
        spec.set_linux(Some(linux));
    }
    Ok(updated.resources)
}

fn fixed(field: &str, why: &str) -> EngineError {
    EngineError::invalid(field, why)
}

/// What a container has now, complete enough to be put back: what is not limited is said to
/// be unlimited. Blocking.
pub(crate) fn read(shared: &Shared, container: &ContainerRecord) -> Result<nri::Resources> {
    let (_, spec) = read_spec(&shared.layout.spec(&container.pod, &container.id))?;
    let mut now = oci::resources_of(&spec);
    let cgroup = &shared.config.host.cgroup;
    complete(&mut now, cgroup);
    if cgroup.has("cpuset") && container.phase.is_live() {
        cpusets(shared, container, &spec, &mut now)?;
    }
    Ok(nri::Resources {
        linux: oci::to_linux(&now)?,
        // Its meaning is among the limits already.
        block_io_class: None,
        rdt_class: None,
    })
}

/// Says of what is not limited that it is not.
pub(crate) fn complete(now: &mut Resources, cgroup: &CgroupFacts) {
    if cgroup.has("cpu") {
        now.cpu_shares.get_or_insert(1024);
        now.cpu_quota.get_or_insert(-1);
        now.cpu_period.get_or_insert(100_000);
    }
    if cgroup.has("memory") {
        now.memory_limit.get_or_insert(-1);
        let none = if cgroup.version == CgroupVersion::V2 { 0 } else { -1 };
        now.memory_reservation.get_or_insert(none);
        if cgroup.swap {
            now.memory_swap.get_or_insert(-1);
        }
    }
    if cgroup.has("pids") {
        now.pids_limit.get_or_insert(-1);
    }
}

/// Who has none given shares its parent's, which is what the kernel says of it.
fn cpusets(
    shared: &Shared,
    container: &ContainerRecord,
    spec: &Spec,
    now: &mut Resources,
) -> Result<()> {
    let path = spec.linux().as_ref().and_then(|linux| linux.cgroups_path().clone());
    let dir = match shared.config.cgroup_driver {
        oci::CgroupDriver::Cgroupfs => path.unwrap_or_default(),
        oci::CgroupDriver::Systemd => {
            let pod = shared.pods.get(&container.pod);
            let parent = pod.as_ref().and_then(|pod| pod.request.cgroup_parent.as_deref());
            let driver = shared.config.cgroup_driver;
            oci::container_cgroup_path(driver, parent, &container.pod, &container.id)?.dir
        }
    };
    let Some(group) = shared.groups.open(&dir)? else { return Ok(()) };
    for (file, into) in
        [("cpuset.cpus", &mut now.cpuset_cpus), ("cpuset.mems", &mut now.cpuset_mems)]
    {
        if into.is_none() {
            let text = group.read("cpuset", file)?.unwrap_or_default();
            *into = Some(text.trim().to_owned()).filter(|list| !list.is_empty());
        }
    }
    Ok(())
}

/// Blocking.
fn read_spec(path: &Path) -> Result<(Vec<u8>, Spec)> {
    let text = fs::read(path).map_err(EngineError::io("read", path))?;
    let spec = serde_json::from_slice(&text).map_err(|e| {
        EngineError::failed(format!("parse {}", path.display()), Kind::Internal, &e)
    })?;
    Ok((text, spec))
}
