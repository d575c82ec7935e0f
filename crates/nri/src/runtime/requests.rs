//! What a runtime tells plugins, one method per event.
//!
//! Requests that can be refused wait for all plugins. What has happened already, or happens
//! in any case, is told to every plugin whatever the others say; of that, posts and removals
//! are not waited for. Ends are told once, and only of what was announced.

use std::{sync::Arc, time::Duration};

use futures_util::future::{BoxFuture, FutureExt};
use nri_wire::api::Event;
use oci_spec::runtime as oci;
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, timeout_at},
};
use ttrpc::Metadata;

use super::{
    Nri, Shared,
    flight::{Outcome, Pilot, Subject, Work},
};
use crate::{
    apply::Host,
    error::NriError,
    model::Place,
    object::{Container, Pod, Resources},
    watch::Notice,
};

/// What goes along with a request.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    /// When the caller stops waiting. It is answered at once then, and what it began is
    /// undone; no plugin is blamed.
    pub deadline: Option<Instant>,
    /// W3C trace context (`traceparent`, `tracestate`, `baggage`), passed on to plugins.
    pub trace: Vec<(String, String)>,
}

/// A container as plugins want it.
#[derive(Clone, Debug)]
pub struct Created {
    /// The one that was asked about where no plugin wanted it changed.
    pub spec: Arc<oci::Spec>,
    /// Classes that plugins gave it, whose meaning is in the specification already; an empty
    /// one was taken away.
    pub block_io_class: Option<String>,
    pub rdt_class: Option<String>,
}

impl Ask {
    pub fn within(time: Duration) -> Self {
        Self { deadline: Some(Instant::now() + time), ..Self::default() }
    }

    fn metadata(&self) -> Metadata {
        let mut metadata = Metadata::new();
        self.trace.iter().for_each(|(key, value)| metadata.append(key, value.clone()));
        metadata
    }
}

// === pods ===

impl Nri {
    /// A pod is about to be ready. An error means it must not be; plugins that agreed have
    /// been told that it is gone again.
    ///
    /// Cancel safe: a dropped request is undone.
    pub async fn run_pod(&self, pod: &Pod, ask: &Ask) -> Result<(), NriError> {
        let subject = subject(pod, None);
        let missing = |error: &NriError| {
            self.shared.tell_failed(Event::RunPodSandbox, &subject, error);
        };
        self.shared.require(pod, "", ask).await.inspect_err(missing)?;
        let work = |subject: &Subject| Work::event_of(Event::RunPodSandbox, subject);
        self.ask(Event::RunPodSandbox, subject, work, ask).await.map(drop)
    }

    /// Resources of a pod are about to change.
    ///
    /// Cancel safe.
    pub async fn update_pod(
        &self,
        pod: &Pod,
        overhead: Option<&Resources>,
        resources: Option<&Resources>,
        ask: &Ask,
    ) -> Result<(), NriError> {
        let wire = |resources: Option<&Resources>| resources.map(Resources::to_wire);
        let work = |subject: &Subject| Work::update_pod(subject, wire(overhead), wire(resources));
        self.ask(Event::UpdatePodSandbox, subject(pod, None), work, ask).await.map(drop)
    }

    /// Resources of a pod have changed.
    ///
    /// Cancel safe once there is room for it.
    pub async fn post_update_pod(&self, pod: &Pod) {
        self.tell(Event::PostUpdatePodSandbox, subject(pod, None)).await;
    }

    /// A pod's containers have stopped; its network is still there. Told once.
    ///
    /// Cancel safe once there is room for it: plugins are told though nobody waits.
    pub async fn stop_pod(&self, pod: &Pod, ask: &Ask) -> Result<(), NriError> {
        self.end(Event::StopPodSandbox, subject(pod, None), ask).await
    }

    /// A pod is gone. Told once, after its stop.
    ///
    /// Cancel safe once there is room for it.
    pub async fn remove_pod(&self, pod: &Pod) {
        let subject = subject(pod, None);
        self.tell(Event::StopPodSandbox, subject.clone()).await;
        self.tell(Event::RemovePodSandbox, subject).await;
    }
}

// === containers ===

impl Nri {
    /// A container is about to be created from its specification: plugins adjust it, and may
    /// change and evict others, which is done when this returns. An error means it must not
    /// be created; plugins that agreed have been told that it is gone again.
    ///
    /// Cancel safe: a dropped request is undone.
    pub async fn create_container(
        &self,
        pod: &Pod,
        container: &Container,
        host: Arc<dyn Host + Send + Sync>,
        ask: &Ask,
    ) -> Result<Created, NriError> {
        let subject = subject(pod, Some(container));
        let missing = |error: &NriError| {
            self.shared.tell_failed(Event::CreateContainer, &subject, error);
        };
        self.shared.require(pod, &container.name, ask).await.inspect_err(missing)?;
        let spec = Arc::clone(&container.spec);
        let work = move |subject: &Subject| Work::create(subject, spec, host);
        match self.ask(Event::CreateContainer, subject, work, ask).await? {
            Outcome::Created(created) => Ok(*created),
            _ => Err(NriError::Exists(container.id.clone())),
        }
    }

    /// A creation that plugins agreed to has failed all the same. Told to those who watch;
    /// plugins are told by [`Nri::remove_container`].
    pub fn creation_failed(&self, pod: &Pod, container: &Container, why: String) {
        let subject = subject(pod, Some(container));
        let about = || subject.about(Event::CreateContainer);
        self.shared.feed.tell(|| Notice::Decided { about: about(), error: Some(why) });
    }

    /// A container exists.
    ///
    /// Cancel safe once there is room for it.
    pub async fn post_create_container(&self, pod: &Pod, container: &Container) {
        self.tell(Event::PostCreateContainer, subject(pod, Some(container))).await;
    }

    /// A container's process is there and is about to run. An error means it must not.
    ///
    /// Cancel safe.
    pub async fn start_container(
        &self,
        pod: &Pod,
        container: &Container,
        ask: &Ask,
    ) -> Result<(), NriError> {
        let work = |subject: &Subject| Work::event_of(Event::StartContainer, subject);
        self.ask(Event::StartContainer, subject(pod, Some(container)), work, ask).await.map(drop)
    }

    /// A container runs.
    ///
    /// Cancel safe once there is room for it.
    pub async fn post_start_container(&self, pod: &Pod, container: &Container) {
        self.tell(Event::PostStartContainer, subject(pod, Some(container))).await;
    }

    /// A container's resources are about to become these; returns what plugins make of them.
    ///
    /// Cancel safe.
    pub async fn update_container(
        &self,
        pod: &Pod,
        container: &Container,
        resources: &Resources,
        ask: &Ask,
    ) -> Result<Resources, NriError> {
        let wire = resources.to_wire();
        let work = move |subject: &Subject| Work::update(subject, wire);
        let subject = subject(pod, Some(container));
        match self.ask(Event::UpdateContainer, subject, work, ask).await? {
            Outcome::Updated(resources) => Ok(*resources),
            _ => Ok(resources.clone()),
        }
    }

    /// A container's resources have changed.
    ///
    /// Cancel safe once there is room for it.
    pub async fn post_update_container(&self, pod: &Pod, container: &Container) {
        self.tell(Event::PostUpdateContainer, subject(pod, Some(container))).await;
    }

    /// A container's process has ended, by whatever means. Told once.
    ///
    /// Cancel safe once there is room for it: plugins are told though nobody waits.
    pub async fn stop_container(
        &self,
        pod: &Pod,
        container: &Container,
        ask: &Ask,
    ) -> Result<(), NriError> {
        self.end(Event::StopContainer, subject(pod, Some(container)), ask).await
    }

    /// A container is gone. Told once, after its stop.
    ///
    /// Cancel safe once there is room for it.
    pub async fn remove_container(&self, pod: &Pod, container: &Container) {
        let subject = subject(pod, Some(container));
        self.tell(Event::StopContainer, subject.clone()).await;
        self.tell(Event::RemoveContainer, subject).await;
    }
}

// === how ===

fn subject(pod: &Pod, container: Option<&Container>) -> Subject {
    Subject {
        domain: pod.domain.as_str().into(),
        pod: Arc::new(pod.to_wire()),
        container: container.map(|container| Arc::new(container.to_wire())),
    }
}

impl Nri {
    /// Asks plugins for their agreement.
    async fn ask(
        &self,
        event: Event,
        subject: Subject,
        work: impl FnOnce(&Subject) -> Work,
        ask: &Ask,
    ) -> Result<Outcome, NriError> {
        let permit = self.room(ask).await?;
        let mut work = work(&subject);
        work.trace = ask.metadata();
        match self.shared.depart(event, &subject, work, Some(permit)) {
            Some(pilot) => Journey::of(pilot, OnLeaving::Undo, ask.deadline).await,
            None => Err(NriError::Exists(subject.id().to_owned())),
        }
    }

    /// Tells plugins of an end, and waits until they know.
    async fn end(&self, event: Event, subject: Subject, ask: &Ask) -> Result<(), NriError> {
        let permit = self.room(ask).await?;
        let mut work = Work::event_of(event, &subject);
        work.trace = ask.metadata();
        match self.shared.depart(event, &subject, work, Some(permit)) {
            Some(pilot) => Journey::of(pilot, OnLeaving::GoOn, ask.deadline).await.map(drop),
            None => Ok(()),
        }
    }

    /// Tells plugins, and does not wait. An end is told at most once, of what is known.
    async fn tell(&self, event: Event, subject: Subject) {
        let Ok(permit) = self.room(&Ask::default()).await else { return };
        let work = Work::event_of(event, &subject);
        if let Some(pilot) = self.shared.depart(event, &subject, work, Some(permit)) {
            self.shared.fly_alone(pilot);
        }
    }

    async fn room(&self, ask: &Ask) -> Result<OwnedSemaphorePermit, NriError> {
        let room = Arc::clone(&self.shared.room).acquire_owned();
        let permit = match ask.deadline {
            None => room.await,
            Some(deadline) => timeout_at(deadline, room)
                .await
                .map_err(|_| NriError::Deadline("too many requests are in flight".to_owned()))?,
        };
        permit.map_err(|_| NriError::Stopped)
    }
}

impl Shared {
    /// Waits until all required plugins are there, as long as their policies and the caller
    /// have time, and for as long as one of them is being synchronised. The request has no place
    /// in the order yet, so nothing waits for it.
    async fn require(&self, pod: &Pod, container: &str, ask: &Ask) -> Result<(), NriError> {
        let mut members = self.members.subscribe();
        let begun = Instant::now();
        loop {
            members.mark_unchanged();
            let (missing, patience) = self.missing(pod, container)?;
            if missing.is_empty() {
                return Ok(());
            }
            let until = patience.map(|patience| begun + patience);
            let until = until.into_iter().chain(ask.deadline).min();
            let changed = match until {
                Some(until) => timeout_at(until, members.changed()).await.is_ok(),
                None => members.changed().await.is_ok(),
            };
            if !changed {
                return Err(NriError::Missing(missing));
            }
        }
    }

    /// Required plugins that are not there, and how long to wait for the first of them. `None`
    /// is for as long as it takes, where all of them are being synchronised.
    fn missing(
        &self,
        pod: &Pod,
        container: &str,
    ) -> Result<(Vec<String>, Option<Duration>), NriError> {
        let settings = self.settings.load();
        let none = (Vec::new(), None);
        if !settings.enabled || settings.required().next().is_none() {
            return Ok(none);
        }
        if settings.validator.tolerates_missing(&pod.annotations, container)? {
            return Ok(none);
        }
        let hidden = self.is_hidden(&pod.domain);
        let state = self.state.lock();
        let here = |name: &str, active: bool| {
            let peers =
                state.peers.iter().filter(|(lane, _)| state.active.contains(lane) == active);
            peers
                .map(|(_, peer)| peer)
                .filter(|peer| peer.sees(&pod.domain, hidden) && !peer.is_gone())
                .any(|peer| peer.id.is_called(name))
        };
        let missing: Vec<_> = settings.required().filter(|(name, _)| !here(name, true)).collect();
        let absent = missing.iter().filter(|(name, _)| !here(name, false));
        let patience = absent.map(|(_, wait)| *wait).min();
        Ok((missing.into_iter().map(|(name, _)| name.to_owned()).collect(), patience))
    }
}

/// A caller with its request. Nobody else brings it on its way, until the caller leaves.
struct Journey {
    shared: Arc<Shared>,
    place: Place,
    /// Not at its end.
    flight: Option<BoxFuture<'static, Result<Outcome, NriError>>>,
    on_leaving: OnLeaving,
}

/// What becomes of a request whose caller leaves it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnLeaving {
    /// It is taken back.
    Undo,
    /// Plugins are told all the same.
    GoOn,
}

impl Journey {
    /// To the end of the request, or of the caller's time.
    async fn of(
        mut pilot: Pilot,
        on_leaving: OnLeaving,
        deadline: Option<Instant>,
    ) -> Result<Outcome, NriError> {
        if let Some(outcome) = pilot.take_off() {
            return outcome;
        }
        let (shared, place) = (Arc::clone(&pilot.shared), pilot.place);
        let journey = Self { shared, place, flight: Some(pilot.fly().boxed()), on_leaving };
        journey.end(deadline).await
    }

    async fn end(mut self, deadline: Option<Instant>) -> Result<Outcome, NriError> {
        let Some(flight) = &mut self.flight else { return Err(NriError::Stopped) };
        let outcome = match deadline {
            None => Ok(flight.await),
            Some(deadline) => timeout_at(deadline, flight).await,
        };
        match outcome {
            Ok(outcome) => {
                self.flight = None;
                outcome
            }
            Err(_) => Err(NriError::Deadline(self.shared.stage(self.place))),
        }
    }
}

impl Drop for Journey {
    fn drop(&mut self) {
        let Some(flight) = self.flight.take() else { return };
        // Without a runtime there is nobody left to tell.
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        if self.on_leaving == OnLeaving::Undo {
            self.shared.withdraw(self.place);
        }
        // A call that has begun is brought to its end.
        self.shared.tasks.spawn(flight);
    }
}
