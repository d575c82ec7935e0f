//! What a request asks of plugins and what it collects from them.

use std::{collections::VecDeque, mem, sync::Arc};

use nri_wire::api::*;
use oci_spec::runtime as oci;
use serde_json::Value;
use tokio::time::Instant;
use ttrpc::Metadata;

use super::with_resources;
use crate::{
    Claimant, Creation, MergeError, Merged, Owners, Updates, Updating,
    apply::{self, ApplyError, Host},
    error::NriError,
    journal::{Adjusted, Journal},
    object::Resources,
    peer::{Failure, Peer},
    runtime::{ContainerRecord, Created, PodRecord, Shared, dispatch::Effect},
    settings::OnFailure,
    watch::{self, About},
};

/// Whom a request is about.
#[derive(Clone, Debug)]
pub(in crate::runtime) struct Subject {
    pub(in crate::runtime) domain: String,
    pub(in crate::runtime) pod: Arc<PodSandbox>,
    pub(in crate::runtime) container: Option<Arc<Container>>,
}

/// How a request ended well.
#[derive(Debug)]
pub(in crate::runtime) enum Outcome {
    Done,
    Created(Box<Created>),
    Updated(Box<Resources>),
}

pub(in crate::runtime) struct Work {
    subject: Subject,
    /// Event, pod and, where it is not being adjusted, container.
    change: StateChangeEvent,
    kind: Kind,
    pub(in crate::runtime) trace: Metadata,
    pub(super) heard: Heard,
    /// Of requests that ask every plugin whatever the others say.
    pub(super) errors: Vec<NriError>,
    /// Plugins that answered.
    consulted: Vec<PluginInstance>,
    validation: Option<Arc<ValidateContainerAdjustmentRequest>>,
}

/// The last answer, in words, for those who watch.
#[derive(Default)]
pub(super) struct Heard {
    pub(super) watched: bool,
    pub(super) asked: Value,
}

impl Heard {
    fn note(
        &mut self,
        adjust: Option<&ContainerAdjustment>,
        updates: &[ContainerUpdate],
        evictions: &[ContainerEviction],
    ) {
        if self.watched {
            self.asked = watch::asked(adjust, updates, evictions);
        }
    }
}

enum Kind {
    /// Nothing comes back.
    Event,
    /// Overhead and resources.
    UpdatePod(Box<(Option<LinuxResources>, Option<LinuxResources>)>),
    Create(Box<Creating>),
    Update(Box<Updating>, Option<Box<Resources>>),
    Stop(Box<Updating>),
}

struct Creating {
    creation: Creation,
    spec: Arc<oci::Spec>,
    host: Arc<dyn Host + Send + Sync>,
    answers: Vec<Adjusted>,
    adjusted: Option<Box<oci::Spec>>,
}

impl Work {
    fn new(event: Event, subject: &Subject, kind: Kind) -> Self {
        let container = match &kind {
            Kind::Create(_) => None,
            _ => subject.container.as_deref().cloned(),
        };
        let pod = Some(PodSandbox::clone(&subject.pod));
        Self {
            subject: subject.clone(),
            change: StateChangeEvent { event: event.into(), pod, container },
            kind,
            trace: Metadata::new(),
            heard: Heard::default(),
            errors: Vec::new(),
            consulted: Vec::new(),
            validation: None,
        }
    }

    pub(in crate::runtime) fn event_of(event: Event, subject: &Subject) -> Self {
        let id = subject.container.as_ref().map_or("", |container| &container.id);
        let kind = match event {
            Event::StopContainer => Kind::Stop(Box::new(Updating::of_others(id))),
            _ => Kind::Event,
        };
        Self::new(event, subject, kind)
    }

    pub(in crate::runtime) fn undo(event: Event, subject: &Subject) -> Self {
        Self::event_of(event, subject)
    }

    pub(in crate::runtime) fn update_pod(
        subject: &Subject,
        overhead: Option<LinuxResources>,
        resources: Option<LinuxResources>,
    ) -> Self {
        Self::new(
            Event::UpdatePodSandbox,
            subject,
            Kind::UpdatePod(Box::new((overhead, resources))),
        )
    }

    pub(in crate::runtime) fn create(
        subject: &Subject,
        container: Arc<Container>,
        spec: Arc<oci::Spec>,
        host: Arc<dyn Host + Send + Sync>,
    ) -> Self {
        let creation = Creation::of(container);
        let creating = Creating { creation, spec, host, answers: Vec::new(), adjusted: None };
        Self::new(Event::CreateContainer, subject, Kind::Create(Box::new(creating)))
    }

    pub(in crate::runtime) fn update(subject: &Subject, resources: LinuxResources) -> Self {
        let id = subject.container.as_ref().map_or("", |container| &container.id);
        let updating = Box::new(Updating::of(id, resources));
        Self::new(Event::UpdateContainer, subject, Kind::Update(updating, None))
    }

    pub(super) fn event(&self) -> Event {
        self.change.event()
    }

    pub(super) fn about(&self) -> About {
        let container = self.subject.container.as_deref();
        About {
            event: self.event().method().to_owned(),
            pod: self.subject.pod.id.clone(),
            pod_name: self.subject.pod.name.clone(),
            container: container.map(|c| c.id.clone()).unwrap_or_default(),
            container_name: container.map(|c| c.name.clone()).unwrap_or_default(),
        }
    }

    /// Every plugin hears of what has happened, or is to happen in any case.
    pub(super) fn asks_all(&self) -> bool {
        !matches!(
            self.event(),
            Event::RunPodSandbox
                | Event::UpdatePodSandbox
                | Event::CreateContainer
                | Event::StartContainer
                | Event::UpdateContainer
        )
    }

    /// Asks one plugin and merges what it says. The outer failure is the plugin's, the inner
    /// one that of all together.
    pub(super) async fn ask(&mut self, peer: &Peer) -> Result<Result<(), MergeError>, Failure> {
        let treatment = peer.treatment().clone();
        let plugin = peer.id.to_string();
        let by = Claimant { plugin: &plugin, fields: treatment.policy.fields.as_ref() };
        let forgiving = treatment.policy.on_failure() == Some(OnFailure::Ignore);
        let merged = match &mut self.kind {
            Kind::Event => {
                peer.event(&mut self.change, &self.trace).await?;
                Ok(())
            }
            Kind::UpdatePod(asked) => {
                let (overhead, resources) = &mut **asked;
                let request = UpdatePodSandboxRequest {
                    pod: self.change.pod.take(),
                    overhead_linux_resources: overhead.take(),
                    linux_resources: resources.take(),
                };
                let answer = peer.update_pod(&request, &self.trace).await;
                self.change.pod = request.pod;
                *overhead = request.overhead_linux_resources;
                *resources = request.linux_resources;
                answer?;
                Ok(())
            }
            Kind::Create(creating) => {
                let asking =
                    Asking { change: &mut self.change, trace: &self.trace, heard: &mut self.heard };
                creating.ask(peer, by, forgiving, asking).await?
            }
            Kind::Update(updating, _) => {
                let resources = updating.resources().clone();
                let (pod, container) = (self.change.pod.take(), self.change.container.take());
                let linux_resources = Some(resources);
                let request = UpdateContainerRequest { pod, container, linux_resources };
                let answer = peer.update(&request, &self.trace).await;
                (self.change.pod, self.change.container) = (request.pod, request.container);
                let UpdateContainerResponse { update, evict } = answer?;
                self.heard.note(None, &update, &evict);
                updating.merge(by, update, evict)
            }
            Kind::Stop(updating) => {
                let (pod, container) = (self.change.pod.take(), self.change.container.take());
                let request = StopContainerRequest { pod, container };
                let answer = peer.stop(&request, &self.trace).await;
                (self.change.pod, self.change.container) = (request.pod, request.container);
                let update = answer?.update;
                self.heard.note(None, &update, &[]);
                updating.merge(by, update, Vec::new())
            }
        };
        let (name, index) = (peer.id.name().to_owned(), peer.id.index().to_owned());
        self.consulted.push(PluginInstance { name, index });
        Ok(merged)
    }

    /// What validators are asked, made once.
    pub(super) fn validation(
        &mut self,
        shared: &Shared,
    ) -> Arc<ValidateContainerAdjustmentRequest> {
        if let Some(made) = &self.validation {
            return Arc::clone(made);
        }
        let (adjust, updates, owners, container) = match &self.kind {
            Kind::Create(creating) => {
                let Merged { adjust, updates, owners } = creating.creation.merged();
                let original = creating.creation.original().clone();
                (Some(adjust.clone()), updates.updates().cloned().collect(), owners, original)
            }
            Kind::Update(updating, _) => {
                let container = self.change.container.clone().unwrap_or_default();
                let update = updating.as_ref().clone().into_response().update;
                (None, update, updating.owners(), container)
            }
            _ => return Arc::default(),
        };
        let request = Arc::new(ValidateContainerAdjustmentRequest {
            pod: self.change.pod.clone(),
            container: Some(container),
            adjust,
            update: updates,
            owners: Some(owners.to_wire()),
            plugins: self.consulted(shared),
        });
        self.validation = Some(Arc::clone(&request));
        request
    }

    /// Those that answered, and those that are there and did not want to be asked.
    fn consulted(&self, shared: &Shared) -> Vec<PluginInstance> {
        let (event, hidden) = (self.event(), shared.is_hidden(&self.subject.domain));
        let state = shared.state.lock();
        let others = state.active.iter().filter_map(|lane| state.peers.get(lane));
        let others = others
            .filter(|peer| !peer.events.contains(event) && peer.sees(&self.subject.domain, hidden));
        let others = others.map(|peer| PluginInstance {
            name: peer.id.name().to_owned(),
            index: peer.id.index().to_owned(),
        });
        self.consulted.iter().cloned().chain(others).collect()
    }

    /// All plugins were asked and validators agree: works out what is to be.
    pub(super) fn settle(&mut self, shared: &Shared) -> Result<(), NriError> {
        if matches!(self.kind, Kind::Create(_) | Kind::Update(..)) {
            let settings = shared.settings.load();
            if settings.validator.applies_to(&self.subject.pod.annotations) {
                settings.validator.check(&self.validation(shared))?;
            }
        }
        match &mut self.kind {
            Kind::Create(creating) => creating.settle()?,
            Kind::Update(updating, settled) => {
                let resources = Resources::from_wire(updating.resources());
                *settled = Some(Box::new(resources.map_err(ApplyError::from)?));
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn has_changes(&self) -> bool {
        match &self.kind {
            Kind::Create(creating) => !creating.creation.merged().updates.is_empty(),
            Kind::Update(updating, _) | Kind::Stop(updating) => !updating.others().is_empty(),
            _ => false,
        }
    }

    pub(super) fn changes(&self) -> Updates {
        match &self.kind {
            Kind::Create(creating) => creating.creation.merged().updates.clone(),
            Kind::Update(updating, _) | Kind::Stop(updating) => updating.others().clone(),
            _ => Updates::default(),
        }
    }

    pub(super) fn owners(&self) -> Owners {
        match &self.kind {
            Kind::Create(creating) => creating.creation.merged().owners.clone(),
            Kind::Update(updating, _) | Kind::Stop(updating) => updating.owners().clone(),
            _ => Owners::default(),
        }
    }

    pub(super) fn outcome(&mut self) -> Result<Outcome, NriError> {
        let mut errors = mem::take(&mut self.errors);
        match errors.len() {
            0 => {}
            1 => return Err(errors.remove(0)),
            _ => return Err(NriError::Several(errors)),
        }
        Ok(match &mut self.kind {
            Kind::Create(creating) => Outcome::Created(Box::new(creating.created())),
            Kind::Update(_, settled) => Outcome::Updated(settled.take().unwrap_or_default()),
            _ => Outcome::Done,
        })
    }

    /// What success means to the registry.
    pub(super) fn effect(&mut self) -> Effect<'static> {
        let domain = self.subject.domain.clone();
        match &mut self.kind {
            Kind::Event if self.change.event() == Event::RunPodSandbox => {
                let wire = Arc::clone(&self.subject.pod);
                Box::new(move |state, place| {
                    let id = wire.id.clone();
                    state.pods.created(&id, Arc::new(PodRecord { domain, wire }), place);
                })
            }
            Kind::Create(creating) => creating.effect(domain),
            Kind::Update(updating, _) => {
                let Some(container) = &self.subject.container else { return nothing() };
                let (resources, _, owners) = updating.as_ref().clone().finish();
                let wire = Arc::new(with_resources(container, resources.clone()));
                Box::new(move |state, _| {
                    let id = wire.id.clone();
                    let journal = state.journals.entry(id.clone()).or_default();
                    journal.update("UpdateContainer", &id, resources, &owners);
                    state.containers.refresh(&id, Arc::new(ContainerRecord { domain, wire }));
                })
            }
            _ => nothing(),
        }
    }
}

/// What a creation borrows of its work while it asks.
struct Asking<'a> {
    change: &'a mut StateChangeEvent,
    trace: &'a Metadata,
    heard: &'a mut Heard,
}

fn nothing() -> Effect<'static> {
    Box::new(|_, _| {})
}

impl Creating {
    async fn ask(
        &mut self,
        peer: &Peer,
        by: Claimant<'_>,
        forgiving: bool,
        Asking { change, trace, heard }: Asking<'_>,
    ) -> Result<Result<(), MergeError>, Failure> {
        let container = Some(self.creation.lend());
        let request = CreateContainerRequest { pod: change.pod.take(), container };
        let begun = Instant::now();
        let answer = peer.create(&request, trace).await;
        change.pod = request.pod;
        self.creation.put_back(request.container.unwrap_or_default());
        let answer = answer?;
        heard.note(answer.adjust.as_ref(), &answer.update, &answer.evict);
        let (plugin, took, adjust) = (peer.id.clone(), begun.elapsed(), answer.adjust.clone());
        self.answers.push(Adjusted { plugin, took, adjust });
        // An answer that may not be given counts as none where the plugin's failures do.
        let before = (forgiving && by.fields.is_some()).then(|| self.creation.clone());
        match (self.creation.merge(by, answer), before) {
            (Err(MergeError::Forbidden { plugin, field }), Some(before)) => {
                tracing::warn!(plugin, field = field.as_str_name(), "plugin may not set this");
                self.creation = before;
                Ok(Ok(()))
            }
            (merged, _) => Ok(merged),
        }
    }

    fn settle(&mut self) -> Result<(), ApplyError> {
        let mut spec = oci::Spec::clone(&self.spec);
        apply::apply(&mut spec, &self.creation.merged().adjust, &*self.host)?;
        self.adjusted = Some(Box::new(spec));
        Ok(())
    }

    fn created(&mut self) -> Created {
        let spec = self.adjusted.take();
        let linux = self.creation.merged().adjust.linux.as_ref();
        let resources = linux.and_then(|linux| linux.resources.as_ref());
        let class = |class: &Option<OptionalString>| class.as_ref().map(|c| c.value.clone());
        Created {
            block_io_class: resources.and_then(|r| class(&r.blockio_class)),
            rdt_class: resources.and_then(|r| class(&r.rdt_class)),
            spec: spec.map_or_else(|| oci::Spec::clone(&self.spec), |spec| *spec),
        }
    }

    fn effect(&mut self, domain: String) -> Effect<'static> {
        let mut container = self.creation.container().clone();
        container.set_state(ContainerState::ContainerCreated);
        let Merged { owners, adjust, .. } = self.creation.merged().clone();
        let (adjustments, original) = (mem::take(&mut self.answers), Arc::clone(&self.spec));
        Box::new(move |state, place| {
            let id = container.id.clone();
            let record = ContainerRecord { domain, wire: Arc::new(container) };
            state.containers.created(&id, Arc::new(record), place);
            let original = Some(original);
            let updates = VecDeque::new();
            let journal = Journal { original, adjustments, merged: adjust, owners, updates };
            state.journals.insert(id, journal);
        })
    }
}
