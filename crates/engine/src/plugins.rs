//! NRI plugins in the life of pods and containers.
//!
//! ```text
//!   make pod      … → run_pod → ready          update   update → limits → post_update
//!   create        … spec → create → written → post_create
//!   start         task → start → process → post_start
//!   it ended      on record → stop             remove   remove → released → forgotten
//!   stop pod      containers ended → stop_pod → network, namespaces
//! ```
//!
//! What can be refused is asked before it happens, and an error undoes the operation. What
//! has happened is told, and a plugin that does not like it is logged. All of it runs in the
//! children of a pod's owner, never in the owner: a slow plugin delays what it is asked
//! about, and no stop.
//!
//! Stops and removals are told once: NRI keeps count while we live, `stop_told` in the
//! record does for the next daemon. What was told and not yet on record when a daemon died
//! is told again, to plugins that have been synchronised anew.
//!
//! **Invariant:** no call of a plugin, however it comes, waits for work that waits for
//! plugins: see [`domain`].

mod adjust;
pub(crate) mod describe;
mod domain;
mod host;

use std::{collections::BTreeSet, sync::Arc};

use base::{Chain, Id};
use nri::{Ask, Nri, NriError, RuntimeInfo, State};
use oci::Spec;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use adjust::Adjusted;
pub(crate) use adjust::adjust;
pub(crate) use domain::K8S;
pub(crate) use host::{block_io, rdt};

use crate::{
    error::{EngineError, Result},
    files::blocking,
    phase::ContainerPhase,
    pod::update::PodLimits,
    record::{ContainerRecord, PodRecord, StoryRecord},
    shared::Shared,
};

/// How plugins take part.
#[derive(Clone, Debug)]
pub struct PluginsConfig {
    pub settings: nri::Settings,
    pub metrics: nri::Metrics,
    /// A plugin that refuses `StartContainer` does not keep the container from running.
    pub ignore_start_errors: bool,
}

impl Default for PluginsConfig {
    /// No plugins.
    fn default() -> Self {
        let settings = nri::Settings::off();
        Self { settings, metrics: nri::Metrics::default(), ignore_start_errors: false }
    }
}

#[derive(Debug)]
pub(crate) struct Plugins {
    nri: Nri,
    /// They know what was there before; until then nobody tells them anything.
    ready: watch::Sender<bool>,
    ignore_start_errors: bool,
}

// === the set ===

impl Plugins {
    pub(crate) fn new(config: &PluginsConfig) -> Result<Self> {
        let info = RuntimeInfo::new("longshore", env!("CARGO_PKG_VERSION"));
        let nri = Nri::new(config.settings.clone(), info).map_err(|e| invalid(&e))?;
        let nri = nri.with_metrics(config.metrics.clone());
        let ignore_start_errors = config.ignore_start_errors;
        Ok(Self { nri, ready: watch::Sender::new(false), ignore_start_errors })
    }

    pub(crate) fn nri(&self) -> &Nri {
        &self.nri
    }

    /// Makes known what was found at start, then lets plugins in.
    pub(crate) async fn open(&self, shared: &Arc<Shared>) -> Result<()> {
        let known = Arc::clone(shared);
        let (pods, containers) = blocking(move || Ok(describe::world(&known))).await?;
        let domain = Arc::new(domain::Containers::new(shared));
        self.nri.add_domain(domain, &pods, &containers);
        self.nri.start().await.map_err(|error| not_started(&error))?;
        self.ready.send_replace(true);
        Ok(())
    }

    pub(crate) async fn reload(&self, settings: nri::Settings) -> Result<()> {
        self.nri.reload(settings).await.map_err(|error| not_started(&error))
    }

    async fn is_ready(&self, shared: &Shared) -> Result<()> {
        let mut ready = self.ready.subscribe();
        tokio::select! {
            ready = ready.wait_for(|ready| *ready) => ready.map(drop).map_err(|_| EngineError::Closing),
            () = shared.stop.cancelled() => Err(EngineError::Closing),
        }
    }
}

fn not_started(error: &nri::StartError) -> EngineError {
    EngineError::failed("start NRI", base::Kind::FailedPrecondition, error)
}

fn invalid(error: &nri::SettingsError) -> EngineError {
    EngineError::invalid("nri", error)
}

// === pods ===

impl Plugins {
    pub(crate) async fn run_pod(&self, shared: &Shared, pod: &PodRecord) -> Result<()> {
        self.is_ready(shared).await?;
        Ok(self.nri.run_pod(&describe::pod(shared, pod), &Ask::default()).await?)
    }

    pub(crate) async fn update_pod(
        &self,
        shared: &Shared,
        pod: &PodRecord,
        limits: &PodLimits,
    ) -> Result<()> {
        self.is_ready(shared).await?;
        let pod = describe::pod(shared, pod);
        let (overhead, total) =
            (describe::limits(&limits.overhead), describe::limits(&limits.resources));
        let ask = Ask::default();
        Ok(self.nri.update_pod(&pod, overhead.as_ref(), total.as_ref(), &ask).await?)
    }

    pub(crate) async fn post_update_pod(&self, shared: &Shared, pod: &PodRecord) {
        if self.is_ready(shared).await.is_ok() {
            self.nri.post_update_pod(&describe::pod(shared, pod)).await;
        }
    }

    /// Its containers have ended, which is told first; its network is still there.
    pub(crate) async fn stop_pod(&self, shared: &Shared, pod: &PodRecord) -> Result<()> {
        self.is_ready(shared).await?;
        for container in shared.containers_of(pod.id) {
            if container.phase.is_live() || matches!(container.phase, ContainerPhase::Exited(_)) {
                self.tell_stop(shared, &container).await;
            }
        }
        let told = self.nri.stop_pod(&describe::pod(shared, pod), &Ask::default()).await;
        log(pod.id, "StopPodSandbox", told);
        Ok(())
    }

    pub(crate) async fn remove_pod(&self, shared: &Shared, pod: &PodRecord) -> Result<()> {
        self.is_ready(shared).await?;
        self.nri.remove_pod(&describe::pod(shared, pod)).await;
        Ok(())
    }

    /// Takes back that it is there. Before plugins were let in there is nothing to take back.
    pub(crate) async fn undo_pod(&self, shared: &Shared, pod: &PodRecord) {
        if *self.ready.borrow() {
            self.nri.remove_pod(&describe::pod(shared, pod)).await;
        }
    }
}

// === containers ===

impl Plugins {
    /// What plugins make of a spec. An error means that it must not be created.
    pub(crate) async fn create(
        &self,
        shared: &Arc<Shared>,
        pod: &PodRecord,
        container: &ContainerRecord,
        spec: Spec,
    ) -> Result<Adjusted> {
        self.is_ready(shared).await?;
        let described = describe::container(container, Arc::new(spec));
        let host = Arc::new(host::Host::new(shared, pod));
        let limits = shared.limits_of(&pod.handler)?;
        let pod = describe::pod(shared, pod);
        let adjusted = adjust(&self.nri, &pod, &described, host, limits).await;
        match &adjusted {
            // Those who watch have been told.
            Ok(_) | Err(EngineError::Plugins(_)) => {}
            Err(error) => {
                self.nri.creation_failed(&pod, &described, Chain(error).to_string());
            }
        }
        adjusted
    }

    /// Tells those who watch plugins that a creation they agreed to has failed.
    pub(crate) async fn creation_failed(
        &self,
        shared: &Shared,
        container: &ContainerRecord,
        error: &EngineError,
    ) {
        let (pod, container) = describe::both(shared, container).await;
        self.nri.creation_failed(&pod, &container, Chain(error).to_string());
    }

    /// Puts on record what plugins made of a spec, for as long as the container is there.
    pub(crate) async fn remember(
        &self,
        shared: &Shared,
        id: Id,
        mut story: nri::Story,
        ignored: Vec<oci::Ignored>,
    ) -> Result<()> {
        story.not_granted.extend(ignored.into_iter().map(|ignored| nri::NotGranted {
            field: ignored.field.to_owned(),
            why: ignored.why.to_owned(),
            ..nri::NotGranted::default()
        }));
        if !story.is_empty() {
            shared.stories.put(StoryRecord { container: id, story }).await?;
        }
        Ok(())
    }

    pub(crate) async fn post_create(&self, shared: &Arc<Shared>, container: &ContainerRecord) {
        if self.is_ready(shared).await.is_ok() {
            let (pod, container) = describe::both(shared, container).await;
            self.nri.post_create_container(&pod, &container).await;
        }
    }

    /// Its process is there and does not run yet. An eviction does not wait for an answer.
    pub(crate) async fn start(
        &self,
        shared: &Arc<Shared>,
        container: &ContainerRecord,
        pid: u32,
        evicted: &CancellationToken,
    ) -> Result<()> {
        self.is_ready(shared).await?;
        let (pod, mut described) = describe::both(shared, container).await;
        described.pid = Some(pid);
        let ask = Ask::default();
        let asked = tokio::select! {
            biased;
            () = evicted.cancelled() => return Err(evicted_error(container.id)),
            asked = self.nri.start_container(&pod, &described, &ask) => asked,
        };
        match asked {
            Err(error) if self.ignore_start_errors => {
                log(container.id, "StartContainer", Err(error));
                Ok(())
            }
            asked => Ok(asked?),
        }
    }

    pub(crate) async fn post_start(&self, shared: &Arc<Shared>, container: &ContainerRecord) {
        if self.is_ready(shared).await.is_ok() {
            let (pod, container) = describe::both(shared, container).await;
            self.nri.post_start_container(&pod, &container).await;
        }
    }

    /// What plugins make of new limits.
    pub(crate) async fn update(
        &self,
        shared: &Arc<Shared>,
        container: &ContainerRecord,
        asked: nri::Resources,
    ) -> Result<nri::Resources> {
        self.is_ready(shared).await?;
        let id = container.id;
        let (pod, container) = describe::both(shared, container).await;
        let limits = self.nri.update_container(&pod, &container, &asked, &Ask::default()).await?;
        let journal = self.nri.journal(&container.id);
        // Where nobody had anything to say the client alone decided.
        let last = journal.as_ref().and_then(|journal| journal.updates.back());
        if let Some(update) = last.filter(|update| !update.owners.is_empty()) {
            remember_update(shared, id, update).await;
        }
        Ok(limits)
    }

    /// Names the plugin that set the limit that cannot be applied, where it was one.
    pub(crate) fn blame_update(
        &self,
        container: &ContainerRecord,
        error: EngineError,
    ) -> EngineError {
        let field = match &error {
            EngineError::Spec(refused) => refused.field(),
            EngineError::Invalid { field, .. } => Some(field.as_str()),
            _ => None,
        };
        let fields = field.map(adjust::fields_of).unwrap_or_default();
        let journal = self.nri.journal(container.id.as_str());
        let last = journal.as_ref().and_then(|journal| journal.updates.back());
        let owners = last.into_iter().flat_map(|update| &update.owners);
        let set = owners.filter(|(owned, _)| fields.iter().any(|f| f.field == owned.field));
        let plugins: BTreeSet<_> = set.map(|(_, plugin)| plugin.clone()).collect();
        match plugins.is_empty() {
            true => error,
            false => {
                let (plugins, source) = (plugins.into_iter().collect(), Box::new(error));
                EngineError::Adjustment { plugins, source }
            }
        }
    }

    pub(crate) async fn post_update(&self, shared: &Arc<Shared>, container: &ContainerRecord) {
        if self.is_ready(shared).await.is_ok() {
            let (pod, container) = describe::both(shared, container).await;
            self.nri.post_update_container(&pod, &container).await;
        }
    }

    /// It has ended. Returns when plugins know.
    pub(crate) async fn stop(
        &self,
        shared: &Arc<Shared>,
        container: &ContainerRecord,
    ) -> Result<()> {
        self.is_ready(shared).await?;
        self.tell_stop(shared, container).await;
        Ok(())
    }

    async fn tell_stop(&self, shared: &Shared, container: &ContainerRecord) {
        let (pod, mut described) = describe::both(shared, container).await;
        described.state = State::Stopped;
        described.pid = None;
        let told = self.nri.stop_container(&pod, &described, &Ask::default()).await;
        log(container.id, "StopContainer", told);
    }

    /// It is on its way out, and what it is made of still there.
    pub(crate) async fn remove(&self, shared: &Shared, container: &ContainerRecord) -> Result<()> {
        self.is_ready(shared).await?;
        self.tell_remove(shared, container).await;
        Ok(())
    }

    /// As [`Plugins::undo_pod`].
    pub(crate) async fn undo_container(&self, shared: &Shared, container: &ContainerRecord) {
        if *self.ready.borrow() {
            self.tell_remove(shared, container).await;
        }
    }

    async fn tell_remove(&self, shared: &Shared, container: &ContainerRecord) {
        let (pod, mut described) = describe::both(shared, container).await;
        described.state = State::Stopped;
        self.nri.remove_container(&pod, &described).await;
    }
}

/// Puts on record what plugins made of a container's limits.
async fn remember_update(shared: &Shared, id: Id, update: &nri::Updated) {
    let at = jiff::Timestamp::now().as_millisecond();
    add_to_story(shared, id, |story| story.update(update, at)).await;
}

/// Puts on record who evicted a container, and why.
async fn remember_eviction(shared: &Shared, id: Id, evicted: &nri::Evicted) {
    let at = jiff::Timestamp::now().as_millisecond();
    add_to_story(shared, id, |story| story.evict(evicted, at)).await;
}

async fn add_to_story(shared: &Shared, id: Id, add: impl FnOnce(&mut nri::Story)) {
    let known = shared.stories.get(&id).map(|record| record.story.clone());
    let mut story = known.unwrap_or_default();
    add(&mut story);
    let mut kept = shared.stories.put(StoryRecord { container: id, story }).await;
    // Its removal may have been quicker.
    if kept.is_ok() && shared.containers.get(&id).is_none() {
        kept = shared.stories.delete(&id).await;
    }
    if let Err(error) = kept {
        tracing::warn!(%id, error = %Chain(&error), "keep what plugins did");
    }
}

fn log(id: Id, event: &'static str, told: std::result::Result<(), NriError>) {
    if let Err(error) = told {
        tracing::warn!(%id, event, error = %Chain(&error), "plugins");
    }
}

fn evicted_error(id: Id) -> EngineError {
    EngineError::State { what: "container", id, state: "evicted".to_owned(), action: "start it" }
}
