//! What a runtime tells plugins, one method per event.
//!
//! Requests that can be refused wait for all plugins. What has happened already, or happens
//! in any case, is told to every plugin whatever the others say; of that, posts and removals
//! are not waited for. Ends are told once, and only of what was announced.

use std::{sync::Arc, time::Duration};

use nri_wire::api::Event;
use oci_spec::runtime as oci;
use tokio::{
    sync::{OwnedSemaphorePermit, oneshot},
    time::{Instant, timeout_at},
};
use ttrpc::Metadata;

use super::{
    ContainerRecord, Nri, PodRecord, Shared, State,
    dispatch::{Departure, Effect},
    flight::{Outcome, Subject, Work},
};
use crate::{
    apply::Host,
    error::NriError,
    model::Place,
    object::{Container, Pod, Resources},
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
    pub spec: oci::Spec,
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
        self.shared.require(pod, "", ask).await?;
        let work = |subject: &Subject| Work::event_of(Event::RunPodSandbox, subject);
        self.ask(Event::RunPodSandbox, subject(pod, None), work, ask).await.map(drop)
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
        self.tell_end(Event::StopPodSandbox, subject.clone()).await;
        self.tell_end(Event::RemovePodSandbox, subject).await;
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
        self.shared.require(pod, &container.name, ask).await?;
        let subject = subject(pod, Some(container));
        let wire = subject.container.clone().unwrap_or_default();
        let spec = Arc::clone(&container.spec);
        let work = move |subject: &Subject| Work::create(subject, wire, spec, host);
        match self.ask(Event::CreateContainer, subject, work, ask).await? {
            Outcome::Created(created) => Ok(*created),
            _ => Err(NriError::Exists(container.id.clone())),
        }
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
        self.tell_end(Event::StopContainer, subject.clone()).await;
        self.tell_end(Event::RemoveContainer, subject).await;
    }
}

// === how ===

fn subject(pod: &Pod, container: Option<&Container>) -> Subject {
    Subject {
        domain: pod.domain.clone(),
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
        let (answer, waiting) = oneshot::channel();
        let known = subject.clone();
        let departure = Departure {
            event,
            sensible: Box::new(sense(event, &known)),
            effect: refresh(&known),
            subject,
            work,
            answer: Some(answer),
            permit: Some(permit),
        };
        let Some(place) = self.shared.depart(departure) else {
            let id = known.container.as_ref().map_or(&known.pod.id, |container| &container.id);
            return Err(NriError::Exists(id.clone()));
        };
        let creates = matches!(event, Event::RunPodSandbox | Event::CreateContainer);
        let undo = creates.then_some(known);
        let mut waiter =
            Waiter { shared: Arc::clone(&self.shared), place, waiting, undo, armed: true };
        waiter.wait(ask.deadline).await
    }

    /// Tells plugins of an end, and waits until they know.
    async fn end(&self, event: Event, subject: Subject, ask: &Ask) -> Result<(), NriError> {
        let permit = self.room(ask).await?;
        let (answer, mut waiting) = oneshot::channel();
        let mut departure = self.shared.ending(event, subject, Some(permit));
        departure.answer = Some(answer);
        departure.work.trace = ask.metadata();
        let Some(place) = self.shared.depart(departure) else { return Ok(()) };
        let answer = match ask.deadline {
            None => (&mut waiting).await,
            Some(deadline) => match timeout_at(deadline, &mut waiting).await {
                Ok(answer) => answer,
                // It goes on; only the waiting ends.
                Err(_) => return Err(NriError::Deadline(self.shared.stage(place))),
            },
        };
        answer.unwrap_or(Err(NriError::Stopped)).map(drop)
    }

    async fn tell_end(&self, event: Event, subject: Subject) {
        if let Ok(permit) = self.room(&Ask::default()).await {
            let departure = self.shared.ending(event, subject, Some(permit));
            self.shared.depart(departure);
        }
    }

    async fn tell(&self, event: Event, subject: Subject) {
        let Ok(permit) = self.room(&Ask::default()).await else { return };
        let known = subject.clone();
        let work = Work::event_of(event, &subject);
        self.shared.depart(Departure {
            event,
            subject,
            work,
            answer: None,
            permit: Some(permit),
            sensible: Box::new(|_| true),
            effect: refresh(&known),
        });
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

/// What exists cannot be created, and what does not cannot be asked about.
fn sense(event: Event, subject: &Subject) -> impl FnOnce(&State) -> bool + use<> {
    let created = match event {
        Event::CreateContainer => subject.container.as_ref().map(|c| c.id.clone()),
        _ => None,
    };
    move |state| created.is_none_or(|id| !state.containers.is_known(&id))
}

/// The newest state of what a request is about.
fn refresh(subject: &Subject) -> Effect<'static> {
    let subject = subject.clone();
    Box::new(move |state, _| {
        let Subject { domain, pod, container } = subject;
        let id = pod.id.clone();
        let record = PodRecord { domain: domain.clone(), wire: pod };
        state.pods.refresh(&id, Arc::new(record));
        if let Some(wire) = container {
            let id = wire.id.clone();
            state.containers.refresh(&id, Arc::new(ContainerRecord { domain, wire }));
        }
    })
}

impl Shared {
    /// A stop or removal, which is told at most once, of what is known.
    fn ending(
        &self,
        event: Event,
        subject: Subject,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Departure<'static> {
        let work = Work::event_of(event, &subject);
        let id = subject.container.as_ref().map_or(&subject.pod.id, |container| &container.id);
        let (id, again) = (id.clone(), id.clone());
        let refresh = refresh(&subject);
        let sensible = move |state: &State| match event {
            Event::StopPodSandbox => state.pods.is_live(&id),
            Event::RemovePodSandbox => state.pods.is_known(&id),
            Event::StopContainer => state.containers.is_live(&id),
            _ => state.containers.is_known(&id),
        };
        let effect = move |state: &mut State, place: Place| {
            refresh(state, place);
            match event {
                Event::StopPodSandbox => state.pods.stop(&again, place),
                Event::RemovePodSandbox => state.pods.remove(&again, place),
                Event::StopContainer => state.containers.stop(&again, place),
                _ => {
                    state.containers.remove(&again, place);
                    state.journals.remove(&again);
                }
            }
            state.prune();
        };
        let (sensible, effect) = (Box::new(sensible), Box::new(effect));
        Departure { event, subject, work, answer: None, permit, sensible, effect }
    }

    /// Waits until all required plugins are there, as long as their policies and the caller
    /// have time. The request has no place in the order yet, so nothing waits for it.
    async fn require(&self, pod: &Pod, container: &str, ask: &Ask) -> Result<(), NriError> {
        let mut members = self.members.subscribe();
        let begun = Instant::now();
        loop {
            members.mark_unchanged();
            let (missing, patience) = self.missing(pod, container)?;
            if missing.is_empty() {
                return Ok(());
            }
            let until = begun + patience;
            let until = ask.deadline.map_or(until, |deadline| deadline.min(until));
            if timeout_at(until, members.changed()).await.is_err() {
                return Err(NriError::Missing(missing));
            }
        }
    }

    /// Required plugins that are not there, and how long to wait for the first of them.
    fn missing(&self, pod: &Pod, container: &str) -> Result<(Vec<String>, Duration), NriError> {
        let settings = self.settings.load();
        let none = (Vec::new(), Duration::ZERO);
        if !settings.enabled || settings.required().next().is_none() {
            return Ok(none);
        }
        if settings.validator.tolerates_missing(&pod.annotations, container)? {
            return Ok(none);
        }
        let hidden = self.is_hidden(&pod.domain);
        let state = self.state.lock();
        let here = |name: &str| {
            let active = state.active.iter().filter_map(|lane| state.peers.get(lane));
            active
                .filter(|peer| peer.sees(&pod.domain, hidden) && !peer.is_gone())
                .any(|peer| peer.id.name() == name || peer.id.to_string() == name)
        };
        let missing: Vec<_> = settings.required().filter(|(name, _)| !here(name)).collect();
        let patience = missing.iter().map(|(_, wait)| *wait).min().unwrap_or_default();
        Ok((missing.into_iter().map(|(name, _)| name.to_owned()).collect(), patience))
    }
}

/// Waits for a request; gives it up when dropped.
struct Waiter {
    shared: Arc<Shared>,
    place: Place,
    waiting: oneshot::Receiver<Result<Outcome, NriError>>,
    /// What was created if it succeeds.
    undo: Option<Subject>,
    armed: bool,
}

impl Waiter {
    async fn wait(&mut self, deadline: Option<Instant>) -> Result<Outcome, NriError> {
        let answer = match deadline {
            None => Ok((&mut self.waiting).await),
            Some(deadline) => timeout_at(deadline, &mut self.waiting).await,
        };
        self.armed = false;
        if let Ok(answer) = answer {
            return answer.unwrap_or(Err(NriError::Stopped));
        }
        let stage = self.shared.stage(self.place);
        match self.shared.withdraw(self.place) {
            true => Err(NriError::Deadline(stage)),
            // It ended at this very moment.
            false => self.waiting.try_recv().unwrap_or(Err(NriError::Stopped)),
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if !self.armed || self.shared.withdraw(self.place) {
            return;
        }
        // It succeeded, and nobody will ever know.
        let (Some(subject), Ok(Ok(_))) = (self.undo.take(), self.waiting.try_recv()) else {
            return;
        };
        let ends = match subject.container {
            Some(_) => [Event::StopContainer, Event::RemoveContainer],
            None => [Event::StopPodSandbox, Event::RemovePodSandbox],
        };
        for event in ends {
            let departure = self.shared.ending(event, subject.clone(), None);
            self.shared.depart(departure);
        }
    }
}
