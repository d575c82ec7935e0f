//! What a request asks of plugins and what it collects from them.

use std::{collections::VecDeque, mem, sync::Arc};

use bytes::Bytes;
use nri_wire::{About as Request, PluginId, api::*};
use oci_spec::runtime as oci;
use serde_json::Value;
use tokio::time::Instant;
use ttrpc::Metadata;

use super::with_resources;
use crate::{
    Claimant, Creation, MergeError, Merged, Owners, Updates, Updating,
    apply::{self, Host},
    error::NriError,
    journal::{Adjusted, Journal},
    model::{Place, is_refusable},
    object::Resources,
    peer::{Failure, Peer},
    runtime::{ContainerRecord, Created, PodRecord, Shared, State, announce::Announcement},
    settings::OnFailure,
    watch::{self, About},
};

/// Whom a request is about.
#[derive(Clone, Debug)]
pub(in crate::runtime) struct Subject {
    pub(in crate::runtime) domain: Arc<str>,
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
    event: Event,
    kind: Kind,
    /// What plugins are asked, as it goes over the wire: the same for all until one of them wants
    /// it changed.
    request: Option<Bytes>,
    pub(in crate::runtime) trace: Metadata,
    pub(super) heard: Heard,
    /// Of requests that ask every plugin whatever the others say.
    pub(super) errors: Vec<NriError>,
    /// Plugins that answered.
    consulted: Vec<PluginId>,
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
    adjusted: Option<Arc<oci::Spec>>,
}

impl Work {
    fn new(event: Event, subject: &Subject, kind: Kind) -> Self {
        Self {
            subject: subject.clone(),
            event,
            kind,
            request: None,
            trace: Metadata::new(),
            heard: Heard::default(),
            errors: Vec::new(),
            consulted: Vec::new(),
            validation: None,
        }
    }

    pub(in crate::runtime) fn event_of(event: Event, subject: &Subject) -> Self {
        let kind = match event {
            Event::StopContainer => Kind::Stop(Box::new(Updating::of_others(subject.id()))),
            _ => Kind::Event,
        };
        Self::new(event, subject, kind)
    }

    pub(in crate::runtime) fn update_pod(
        subject: &Subject,
        overhead: Option<LinuxResources>,
        resources: Option<LinuxResources>,
    ) -> Self {
        let kind = Kind::UpdatePod(Box::new((overhead, resources)));
        Self::new(Event::UpdatePodSandbox, subject, kind)
    }

    pub(in crate::runtime) fn create(
        subject: &Subject,
        spec: Arc<oci::Spec>,
        host: Arc<dyn Host + Send + Sync>,
    ) -> Self {
        let creation = Creation::of(subject.container.clone().unwrap_or_default());
        let creating = Creating { creation, spec, host, answers: Vec::new(), adjusted: None };
        Self::new(Event::CreateContainer, subject, Kind::Create(Box::new(creating)))
    }

    pub(in crate::runtime) fn update(subject: &Subject, resources: LinuxResources) -> Self {
        let updating = Box::new(Updating::of(subject.id(), resources));
        Self::new(Event::UpdateContainer, subject, Kind::Update(updating, None))
    }

    pub(in crate::runtime) fn event(&self) -> Event {
        self.event
    }

    pub(super) fn about(&self) -> About {
        self.subject.about(self.event)
    }

    /// Every plugin hears of what has happened, or is to happen in any case.
    pub(super) fn asks_all(&self) -> bool {
        !is_refusable(self.event)
    }

    /// What a plugin that was passed is told, once the request has left.
    pub(in crate::runtime) fn announcement(&mut self) -> Announcement {
        let (event, subject, about) = (self.event, self.subject.clone(), self.about());
        Announcement { event, subject, about, request: self.request(), trace: self.trace.clone() }
    }

    fn request(&mut self) -> Bytes {
        let Self { kind, subject, request, .. } = self;
        let encode = || {
            let Subject { pod, container, .. } = &*subject;
            let about = Request { pod, container: container.as_deref() };
            match &*kind {
                Kind::Event | Kind::Stop(_) => about.encode(),
                Kind::UpdatePod(asked) => {
                    about.encode_pod_update(asked.0.as_ref(), asked.1.as_ref())
                }
                Kind::Create(creating) => {
                    Request { container: Some(creating.creation.container()), ..about }.encode()
                }
                Kind::Update(updating, _) => about.encode_update(updating.resources()),
            }
        };
        request.get_or_insert_with(encode).clone()
    }

    /// Asks one plugin and merges what it says. The outer failure is the plugin's, the inner
    /// one that of all together.
    pub(super) async fn ask(&mut self, peer: &Peer) -> Result<Result<(), MergeError>, Failure> {
        let (request, begun) = (self.request(), Instant::now());
        let answer = match &self.kind {
            Kind::Event => {
                let Subject { pod, container, .. } = &self.subject;
                let about = Request { pod, container: container.as_deref() };
                peer.event(self.event, about, &request, &self.trace).await?;
                Answer::Nothing
            }
            Kind::UpdatePod(_) => {
                peer.update_pod(&request, &self.trace).await?;
                Answer::Nothing
            }
            Kind::Create(_) => Answer::Create(Box::new(peer.create(&request, &self.trace).await?)),
            Kind::Update(..) => {
                let UpdateContainerResponse { update, evict } =
                    peer.update(&request, &self.trace).await?;
                Answer::Update(update, evict)
            }
            Kind::Stop(_) => {
                Answer::Update(peer.stop(&request, &self.trace).await?.update, Vec::new())
            }
        };
        self.consulted.push(peer.id.clone());
        Ok(self.hear(peer, begun, answer))
    }

    fn hear(&mut self, peer: &Peer, begun: Instant, answer: Answer) -> Result<(), MergeError> {
        let treatment = peer.treatment();
        let fields = treatment.policy.fields.as_ref();
        let by = Claimant { plugin: peer.id.as_str(), fields };
        match (&mut self.kind, answer) {
            (Kind::Create(creating), Answer::Create(mut answer)) => {
                // Go plugins that want nothing say so by an adjustment without anything in it.
                answer.adjust.take_if(|adjust| *adjust == ContainerAdjustment::default());
                self.heard.note(answer.adjust.as_ref(), &answer.update, &answer.evict);
                let (plugin, took) = (peer.id.clone(), begun.elapsed());
                let adjust = answer.adjust.clone().map(Box::new);
                creating.answers.push(Adjusted { plugin, took, adjust, refused: None });
                if *answer == CreateContainerResponse::default() {
                    return Ok(());
                }
                self.request = None;
                let forgiving = treatment.policy.on_failure() == Some(OnFailure::Ignore);
                creating.merge(by, forgiving, *answer)
            }
            (Kind::Update(updating, _) | Kind::Stop(updating), Answer::Update(update, evict)) => {
                self.heard.note(None, &update, &evict);
                if update.is_empty() && evict.is_empty() {
                    return Ok(());
                }
                self.request = None;
                updating.merge(by, update, evict)
            }
            _ => Ok(()),
        }
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
                let container = self.subject.container.as_deref().cloned().unwrap_or_default();
                let update = updating.as_ref().clone().into_response().update;
                (None, update, updating.owners(), container)
            }
            _ => return Arc::default(),
        };
        let request = Arc::new(ValidateContainerAdjustmentRequest {
            pod: Some(PodSandbox::clone(&self.subject.pod)),
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
        let (event, hidden) = (self.event, shared.is_hidden(&self.subject.domain));
        let state = shared.state.lock();
        let others = state.active.iter().filter_map(|lane| state.peers.get(lane));
        let others = others
            .filter(|peer| !peer.events.contains(event) && peer.sees(&self.subject.domain, hidden));
        let instance = |id: &PluginId| PluginInstance {
            name: id.name().to_owned(),
            index: id.index().to_owned(),
        };
        self.consulted.iter().chain(others.map(|peer| &peer.id)).map(instance).collect()
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
                let resources = Resources::from_wire(updating.resources()).map_err(|unknown| {
                    NriError::not_applied(updating.owners(), self.subject.id(), unknown.into())
                })?;
                *settled = Some(Box::new(resources));
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
    pub(in crate::runtime) fn succeeded(&mut self, state: &mut State, place: Place) {
        let Subject { domain, pod, container } = &self.subject;
        let domain = Arc::clone(domain);
        match (&mut self.kind, container) {
            (Kind::Event, _) if self.event == Event::RunPodSandbox => {
                let record = PodRecord { domain, wire: Arc::clone(pod) };
                state.pods.created(&pod.id, Arc::new(record), place);
            }
            (Kind::Create(creating), _) => creating.succeeded(domain, state, place),
            (Kind::Update(updating, _), Some(container)) => {
                let (id, resources) = (container.id.as_str(), updating.resources().clone());
                let wire = Arc::new(with_resources(container, resources.clone()));
                let journal = state.journals.entry(id.to_owned()).or_default();
                journal.update("UpdateContainer", id, resources, updating.owners(), None);
                state.containers.refresh(id, || ContainerRecord { domain, wire });
            }
            _ => {}
        }
    }
}

/// What a plugin said.
enum Answer {
    Nothing,
    Create(Box<CreateContainerResponse>),
    Update(Vec<ContainerUpdate>, Vec<ContainerEviction>),
}

impl Subject {
    /// Of what it is about.
    pub(in crate::runtime) fn id(&self) -> &str {
        self.container.as_ref().map_or(&self.pod.id, |container| &container.id)
    }

    /// What a request about it is called.
    pub(in crate::runtime) fn about(&self, event: Event) -> About {
        let container = self.container.as_deref();
        About {
            event: event.method().to_owned(),
            pod: self.pod.id.clone(),
            pod_name: self.pod.name.clone(),
            container: container.map(|c| c.id.clone()).unwrap_or_default(),
            container_name: container.map(|c| c.name.clone()).unwrap_or_default(),
        }
    }
}

impl Creating {
    fn merge(
        &mut self,
        by: Claimant<'_>,
        forgiving: bool,
        answer: CreateContainerResponse,
    ) -> Result<(), MergeError> {
        // An answer that may not be given counts as none where the plugin's failures do.
        let before = (forgiving && by.fields.is_some()).then(|| self.creation.clone());
        match (self.creation.merge(by, answer), before) {
            (Err(MergeError::Forbidden { plugin, field }), Some(before)) => {
                let field = field.as_str_name();
                tracing::warn!(plugin, field, "plugin may not set this");
                if let Some(answer) = self.answers.last_mut() {
                    answer.refused = Some(format!("the plugin may not set {field}"));
                }
                self.creation = before;
                Ok(())
            }
            (merged, _) => merged,
        }
    }

    fn settle(&mut self) -> Result<(), NriError> {
        let Merged { adjust, owners, .. } = self.creation.merged();
        let id = self.creation.original().id.as_str();
        self.adjusted = Some(match *adjust == ContainerAdjustment::default() {
            true => Arc::clone(&self.spec),
            false => {
                let applied = apply::applied(&self.spec, adjust, &*self.host);
                Arc::new(applied.map_err(|source| NriError::not_applied(owners, id, source))?)
            }
        });
        Ok(())
    }

    fn created(&mut self) -> Created {
        let linux = self.creation.merged().adjust.linux.as_ref();
        let resources = linux.and_then(|linux| linux.resources.as_ref());
        let class = |class: &Option<OptionalString>| class.as_ref().map(|c| c.value.clone());
        Created {
            block_io_class: resources.and_then(|r| class(&r.blockio_class)),
            rdt_class: resources.and_then(|r| class(&r.rdt_class)),
            spec: self.adjusted.take().unwrap_or_else(|| Arc::clone(&self.spec)),
        }
    }

    fn succeeded(&mut self, domain: Arc<str>, state: &mut State, place: Place) {
        let wire = self.creation.shared_container();
        let id = wire.id.clone();
        state.containers.created(&id, Arc::new(ContainerRecord { domain, wire }), place);
        let Merged { owners, adjust, .. } = self.creation.merged().clone();
        let journal = Journal {
            original: Some(Arc::clone(&self.spec)),
            adjustments: mem::take(&mut self.answers),
            merged: adjust,
            owners,
            updates: VecDeque::new(),
        };
        state.journals.insert(id, Box::new(journal));
    }
}
