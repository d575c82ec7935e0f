//! From a request to a bundle that can be started.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use base::Id;
use oci::{
    ContainerRequest, IdMappings, NamespaceMode, NamespacePaths, PodFacts, PodFiles, Priorities,
    Spec, UserNamespace,
};
use tokio::sync::OwnedMutexGuard;

use super::{
    facts::{self, Known},
    images, labels, volumes,
};
use crate::{
    error::Result,
    files::{blocking, make_dir, remove_dir, write},
    layout::Layout,
    owner::Turn,
    phase::ContainerEvent,
    plugins::Adjusted,
    pod::files::root_of,
    record::{ContainerRecord, Made, PodRecord},
    request::{PodNamespace, PodPid},
    shared::Shared,
    stages::Stages,
    steps::Plan,
    storage::NewRootfs,
};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    Directory,
    Rootfs,
    Volumes,
    Spec,
    /// Plugins are asked, and what they make of the spec is written.
    Plugins,
}

/// Works on a record that nobody else writes while it is being made.
#[derive(Debug)]
pub(crate) struct MakeContainer {
    pub(crate) shared: Arc<Shared>,
    pod: Arc<PodRecord>,
    pub(crate) container: ContainerRecord,
    spec: Option<Box<Spec>>,
    turn: Turn,
    /// From asking plugins to the end: once they know it they may change its limits.
    held: Option<OwnedMutexGuard<()>>,
}

impl MakeContainer {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        pod: &Arc<PodRecord>,
        container: ContainerRecord,
        turn: Turn,
    ) -> Self {
        let (shared, pod) = (Arc::clone(shared), Arc::clone(pod));
        Self { shared, pod, container, spec: None, turn, held: None }
    }
}

impl Plan for MakeContainer {
    type Step = Step;

    const OPERATION: &'static str = "create-container";
    const STEPS: &'static [Step] =
        &[Step::Directory, Step::Rootfs, Step::Volumes, Step::Spec, Step::Plugins];

    fn name(step: Step) -> &'static str {
        match step {
            Step::Directory => "directory",
            Step::Rootfs => "rootfs",
            Step::Volumes => "volumes",
            Step::Spec => "spec",
            Step::Plugins => "plugins",
        }
    }

    fn id(&self) -> Id {
        self.container.id
    }

    fn stages(&self) -> &Stages {
        &self.shared.stages
    }

    async fn intend(&mut self, step: Step) -> Result<()> {
        let begun = ContainerEvent::Begun { step: Self::name(step) };
        self.container.phase = self.container.phase.on(&begun)?;
        self.shared.containers.put(self.container.clone()).await?;
        Ok(())
    }

    async fn act(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Directory => {
                let rootfs = self.shared.layout.rootfs(&self.pod.id, &self.container.id);
                let log = self.container.log_path.clone();
                blocking(move || {
                    make_dir(&rootfs, 0o711)?;
                    log.as_deref()
                        .and_then(|path| path.parent())
                        .map_or(Ok(()), |dir| make_dir(dir, 0o755))
                })
                .await
            }
            Step::Rootfs => self.shared.storage.mount(self.rootfs()?).await,
            Step::Volumes => {
                let shown = images::show(&self.shared, &self.pod, &self.container).await?;
                self.container.made.images = shown;
                self.blocking(|shared, pod, container| volumes_of(shared, pod, container).map(drop))
                    .await
            }
            Step::Spec => {
                let (spec, made) = self.blocking(make_spec).await?;
                self.container.made = made;
                self.spec = Some(spec);
                Ok(())
            }
            Step::Plugins => {
                self.held = Some(Arc::clone(&self.turn).lock_owned().await);
                Box::pin(self.ask_plugins()).await
            }
        }
    }

    async fn complete(&mut self) -> Result<()> {
        let phase = self.container.phase.on(&ContainerEvent::Made)?;
        let made = ContainerRecord { phase, ..self.container.clone() };
        self.shared.containers.put(made.clone()).await?;
        self.container = made;
        Ok(())
    }

    async fn undo(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Directory => {
                let bundle = self.shared.layout.bundle(&self.pod.id, &self.container.id);
                blocking(move || remove_dir(&bundle)).await
            }
            Step::Rootfs => {
                let target = self.shared.layout.rootfs(&self.pod.id, &self.container.id);
                self.shared.storage.release(self.container.id, target).await
            }
            Step::Volumes => give_back_volumes(&self.shared, &self.container).await,
            Step::Spec => Ok(()),
            // What was written lies in the directory.
            Step::Plugins => {
                self.shared.plugins.undo_container(&self.shared, &self.container).await;
                self.shared.stories.delete(&self.container.id).await?;
                Ok(())
            }
        }
    }
}

impl MakeContainer {
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared, &PodRecord, &ContainerRecord) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (shared, pod) = (Arc::clone(&self.shared), Arc::clone(&self.pod));
        let container = self.container.clone();
        blocking(move || work(&shared, &pod, &container)).await
    }

    fn rootfs(&self) -> Result<NewRootfs> {
        Ok(NewRootfs {
            container: self.container.id,
            image: self.container.image.id.clone(),
            chain: self.container.image.chain.clone(),
            snapshotter: self.shared.handler(&self.pod.handler)?.snapshotter.clone(),
            target: self.shared.layout.rootfs(&self.pod.id, &self.container.id),
            mapping: mapping(&self.pod),
            label: self.label()?,
        })
    }

    /// Of the files of its own.
    fn label(&self) -> Result<Option<String>> {
        let labels = labels::of(&self.shared, &self.pod, &self.container.request.container)?;
        Ok(labels.map(|labels| labels.mount))
    }

    /// Writes config.json as plugins want it, and says what came of it.
    async fn ask_plugins(&mut self) -> Result<()> {
        let spec = *self.spec.take().expect("the step before makes it");
        let (shared, pod) = (&self.shared, &self.pod);
        let adjusted = shared.plugins.create(shared, pod, &self.container, spec).await?;
        let kept = self.keep(adjusted).await;
        if let Err(error) = &kept {
            let shared = &self.shared;
            shared.plugins.creation_failed(shared, &self.container, error).await;
        }
        kept
    }

    async fn keep(&mut self, adjusted: Adjusted) -> Result<()> {
        let (shared, pod) = (&self.shared, &self.pod);
        for ignored in &adjusted.ignored {
            tracing::info!(container = %self.container.id, field = ignored.field, why = ignored.why,
                "asked for by a plugin, and without effect");
        }
        let Adjusted { mut spec, block_io_class, rdt_class, ignored, story } = adjusted;
        shared.plugins.remember(shared, self.container.id, story, ignored).await?;
        let abilities = shared.handler(&pod.handler)?.facts.abilities;
        let priorities = Priorities::take(&mut spec, abilities);
        let json = oci::to_json(&spec).expect("a spec is JSON");
        let path = shared.layout.spec(&pod.id, &self.container.id);
        blocking(move || write(&path, &json, 0o600)).await?;
        let made = &mut self.container.made;
        made.resources = oci::resources_of(&spec);
        made.cgroup_path = cgroup_path(&spec);
        made.priorities = priorities;
        made.block_io_class = block_io_class.filter(|class| !class.is_empty());
        made.rdt_class = rdt_class.filter(|class| !class.is_empty());
        Ok(())
    }
}

/// What the image calls volumes, each with the directory that stands for it; makes those that
/// are not there. Blocking, idempotent.
fn volumes_of(
    shared: &Shared,
    pod: &PodRecord,
    container: &ContainerRecord,
) -> Result<BTreeMap<PathBuf, PathBuf>> {
    let wanted = oci::image_volumes(&container.request.container, &container.image.facts);
    let rootfs = shared.layout.rootfs(&pod.id, &container.id);
    let dir = shared.layout.volumes(&container.id);
    let made = volumes::make(&dir, &rootfs, &wanted, root_of(&pod.request))?;
    if let Some(labels) = labels::of(shared, pod, &container.request.container)? {
        made.values().try_for_each(|volume| sys::label::set_tree(volume, &labels.mount))?;
    }
    Ok(made)
}

pub(crate) async fn give_back_volumes(shared: &Shared, container: &ContainerRecord) -> Result<()> {
    images::hide(shared, container).await?;
    let dir = shared.layout.volumes(&container.id);
    blocking(move || remove_dir(&dir)).await
}

fn cgroup_path(spec: &Spec) -> String {
    let path = spec.linux().as_ref().and_then(|linux| linux.cgroups_path().clone());
    path.unwrap_or_default().to_string_lossy().into_owned()
}

/// The spec that was asked for, and what came of it. Blocking.
fn make_spec(
    shared: &Shared,
    pod: &PodRecord,
    container: &ContainerRecord,
) -> Result<(Box<Spec>, Made)> {
    let handler = shared.handler(&pod.handler)?;
    let request = &effective(pod, &container.request.container);
    let cdi = cdi(&shared.config.cdi_dirs, request);
    let rootfs = shared.layout.rootfs(&pod.id, &container.id);
    let known = Known {
        id: container.id,
        rootfs: "rootfs".into(),
        request,
        pids: &pids(shared, pod.id),
        device_paths: oci::device_paths(request, &cdi)?.into_iter().collect(),
        volumes: volumes_of(shared, pod, container)?,
        pod_annotations: &pod.request.annotations,
        block_io_classes: &shared.config.block_io_classes,
        apparmor_loaded: apparmor_loaded(shared, request),
        selinux: labels::of(shared, pod, request)?,
        image: &|number| shared.layout.image(&pod.id, &container.id, number),
    };
    if let Some(labels) = &known.selinux {
        labels::relabel(request, labels)?;
    }
    let built = oci::build(&oci::Inputs {
        request,
        container: &facts::gather(&known)?,
        pod: &pod_facts(&shared.layout, pod),
        image: &container.image.facts,
        accounts: &facts::accounts(&rootfs)?,
        host: &shared.config.host,
        handler: &handler.facts,
        policy: &shared.config.policy,
        cdi: &cdi,
    })?;
    let made = Made {
        uid: built.user.uid,
        gid: built.user.gid,
        groups: built.user.groups.clone(),
        stop_signal: built.stop_signal.to_string(),
        resources: oci::resources_of(&built.spec),
        cgroup_path: cgroup_path(&built.spec),
        images: container.made.images.clone(),
        ..Made::default()
    };
    Ok((Box::new(built.spec), made))
}

/// Whether the profile it is to have is there, which for our own we see to.
fn apparmor_loaded(shared: &Shared, request: &ContainerRequest) -> bool {
    let config = &shared.config;
    let name = oci::apparmor_profile(&request.security, &config.policy);
    config.host.apparmor && name.is_none_or(|name| config.profiles().has(name))
}

/// Read when somebody asks for a device, so that one described a moment ago counts. A file that
/// is of no use takes nothing with it but its own devices.
fn cdi(dirs: &[PathBuf], request: &ContainerRequest) -> oci::cdi::Registry {
    if !oci::cdi::is_asked(request) {
        return oci::cdi::Registry::default();
    }
    let (registry, faults) = oci::cdi::load(dirs);
    for fault in faults {
        tracing::warn!(error = %base::Chain(&fault), "CDI file not used");
    }
    registry
}

/// What the request means in this pod. Clients leave the PID namespace unset, which reads
/// as the pod's, also where the pod shares none; and a container cannot get nearer to the
/// host than its pod is.
pub(crate) fn effective(pod: &PodRecord, request: &ContainerRequest) -> ContainerRequest {
    let mut request = request.clone();
    let pid = &mut request.security.namespaces.pid;
    *pid = match (*pid, pod.request.pid) {
        (NamespaceMode::Pod | NamespaceMode::Node, PodPid::Container) => NamespaceMode::Container,
        (NamespaceMode::Node, PodPid::Pod) => NamespaceMode::Pod,
        (mode, _) => mode,
    };
    request
}

fn pids(shared: &Shared, pod: Id) -> BTreeMap<Id, u32> {
    let containers = shared.containers_of(pod);
    containers.iter().filter_map(|c| Some((c.id, c.phase.pid()?))).collect()
}

pub(crate) fn mapping(pod: &PodRecord) -> Option<IdMappings> {
    match &pod.request.user {
        Some(UserNamespace::Pod(maps)) => Some(maps.clone()),
        _ => None,
    }
}

pub(crate) fn pod_facts(layout: &Layout, pod: &PodRecord) -> PodFacts {
    let request = &pod.request;
    let pinned = |kind: &str, own: bool| own.then(|| layout.namespace(&pod.id, kind));
    let (own_network, own_ipc) = (pod.own_network(), request.ipc == PodNamespace::Pod);
    let files = layout.files(&pod.id);
    let host_shm = || std::path::PathBuf::from("/dev/shm");
    PodFacts {
        id: pod.id,
        name: request.name.name.clone(),
        namespace: request.name.namespace.clone(),
        uid: request.name.uid.clone(),
        hostname: if own_network { request.hostname.clone() } else { String::new() },
        annotations: request.annotations.clone(),
        privileged: request.privileged,
        namespaces: NamespacePaths {
            network: own_network.then(|| layout.netns(&pod.id)),
            ipc: pinned("ipc", own_ipc),
            uts: pinned("uts", own_network),
            pid: pod.pid_path(),
            host_pid: request.pid == PodPid::Node,
            user: pinned("user", mapping(pod).is_some()),
        },
        mapping: mapping(pod),
        files: PodFiles {
            hosts: Some(files.join("hosts")),
            hostname: Some(files.join("hostname")),
            resolv_conf: Some(files.join("resolv.conf")),
            shm: Some(if own_ipc { layout.shm(&pod.id) } else { host_shm() }),
        },
        cgroup_parent: request.cgroup_parent.clone(),
    }
}
