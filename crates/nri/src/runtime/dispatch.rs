//! Between the model and the pilots: turns are given out, ends are reported.

use std::sync::Arc;

use nri_wire::api::Event;
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use super::{
    ContainerRecord, MAX_LATE, PodRecord, Shared, State, announce,
    flight::{Flight, Pilot, Post, Subject, Turn, Work},
    join::JoinError,
    status::Absence,
    sync::{self, SyncError},
};
use crate::{
    error::NriError,
    model::{Action, Lane, Place, Verdict, is_refusable},
    peer::{Origin, Peer},
    watch::{Notice, whole},
};

impl Shared {
    /// Gives a request its place, unless it makes no sense where it would be. It is on its way
    /// when its pilot flies.
    pub(super) fn depart(
        self: &Arc<Self>,
        event: Event,
        subject: &Subject,
        work: Work,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Option<Pilot> {
        let hidden = self.is_hidden(&subject.domain);
        let mut state = self.state.lock();
        if !state.makes_sense(event, subject) {
            return None;
        }
        let State { pipeline, peers, .. } = &mut *state;
        let sees = |lane: Lane| peers.get(&lane).is_some_and(|p| p.sees(&subject.domain, hidden));
        let needs = |lane: Lane| {
            is_refusable(event) && peers.get(&lane).is_some_and(|p| self.needs(p, event, subject))
        };
        let (place, actions) = pipeline.admit(event, sees, needs);
        state.note(event, subject, place);
        let pilot = self.pilot(&mut state, place, subject.clone(), work, permit);
        self.deliver(&mut state, actions, None);
        Some(pilot)
    }

    /// Whether a request waits for the plugin however long it takes to be synchronised.
    fn needs(&self, peer: &Peer, event: Event, subject: &Subject) -> bool {
        let validator = &self.settings.load().validator;
        let annotations = &subject.pod.annotations;
        let container = subject.container.as_ref().map_or("", |container| &container.name);
        if validator.tolerates_missing(annotations, container).unwrap_or(false) {
            return false;
        }
        let validated = matches!(event, Event::CreateContainer | Event::UpdateContainer);
        let names = validator.required(annotations, container).unwrap_or_default();
        peer.treatment().policy.required.is_some()
            || validated && names.iter().any(|name| peer.id.is_called(name))
    }

    fn pilot(
        self: &Arc<Self>,
        state: &mut State,
        place: Place,
        subject: Subject,
        work: Work,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Pilot {
        let post = Arc::new(Post::default());
        let event = work.event();
        state.flights.insert(place, Flight { post: Arc::clone(&post), subject, event });
        self.metrics.in_flight.inc();
        Pilot { shared: Arc::clone(self), place, work: Box::new(work), post, _permit: permit }
    }

    /// Brings a request to its end that nobody waits for.
    pub(super) fn fly_alone(&self, mut pilot: Pilot) {
        if pilot.take_off().is_none() {
            self.tasks.spawn(async move { drop(pilot.fly().await) });
        }
    }

    /// Does what the model decided. `undone` is whose creation failed.
    pub(super) fn deliver(
        self: &Arc<Self>,
        state: &mut State,
        actions: Vec<Action>,
        undone: Option<&Subject>,
    ) {
        for action in actions {
            match action {
                Action::Call { place, lane } => state.give_turn(place, lane, Turn::Call),
                Action::Validate { place, lane } => state.give_turn(place, lane, Turn::Validate),
                Action::Routed { place } => state.turn(place, Turn::Routed),
                Action::Commit { place } => state.turn(place, Turn::Commit),
                Action::Synchronize { lane, at } => sync::begin(self, state, lane, at),
                Action::Announce { place, lane } => announce::begin(self, state, place, lane),
                Action::Undo { event, place, .. } => {
                    if let Some(subject) = undone {
                        let work = Work::event_of(event, subject);
                        let pilot = self.pilot(state, place, subject.clone(), work, None);
                        // Not at once: we hold the state.
                        self.tasks.spawn(async move { drop(pilot.fly().await) });
                    }
                }
            }
        }
        // Plugins that are gone stay known as long as a request may still ask for them.
        let State { pipeline, peers, .. } = state;
        peers.retain(|lane, _| pipeline.member(*lane).is_some());
    }

    /// A call has ended, and the lane is free for the next.
    pub(super) fn answered(self: &Arc<Self>, place: Place, lane: Lane, verdict: Verdict) {
        let mut state = self.state.lock();
        let actions = state.pipeline.answered(place, lane, verdict);
        self.deliver(&mut state, actions, None);
    }

    pub(super) fn await_commit(self: &Arc<Self>, place: Place) {
        let mut state = self.state.lock();
        let actions = state.pipeline.commit(place);
        self.deliver(&mut state, actions, None);
    }

    /// The plugin has been waited for long enough.
    pub(super) fn overdue(self: &Arc<Self>, lane: Lane) {
        let mut state = self.state.lock();
        let actions = state.pipeline.overdue(lane);
        self.deliver(&mut state, actions, None);
    }

    /// The plugin has been told of a request that had passed it.
    pub(super) fn announced(self: &Arc<Self>, place: Place, lane: Lane) {
        let mut state = self.state.lock();
        let actions = state.pipeline.answered(place, lane, Verdict::Continue);
        if !state.pipeline.is_late(place) {
            state.late.remove(&place);
        }
        self.deliver(&mut state, actions, None);
        self.settled(&mut state);
    }

    /// The request leaves the pipeline; if it succeeded, its work becomes known. `false`, and
    /// nothing of that, if its caller gave up before.
    pub(super) fn conclude(self: &Arc<Self>, place: Place, work: &mut Work, success: bool) -> bool {
        let mut state = self.state.lock();
        if success && state.flights.contains_key(&place) {
            work.succeeded(&mut state, place);
        }
        self.end_flight(&mut state, place, success, Some(work))
    }

    /// The caller has given up. Whether it was in time to make a difference.
    pub(super) fn withdraw(self: &Arc<Self>, place: Place) -> bool {
        let mut state = self.state.lock();
        if let Some(Flight { event, subject, .. }) = state.flights.get(&place) {
            let error = Some("its caller gave up".to_owned());
            self.feed.tell(|| Notice::Decided { about: subject.about(*event), error });
        }
        self.end_flight(&mut state, place, false, None)
    }

    /// Tells that a request failed before plugins were asked, or after they had agreed.
    pub(super) fn tell_failed(&self, event: Event, subject: &Subject, error: &NriError) {
        let error = Some(whole(error));
        self.feed.tell(|| Notice::Decided { about: subject.about(event), error });
    }

    fn end_flight(
        self: &Arc<Self>,
        state: &mut State,
        place: Place,
        success: bool,
        work: Option<&mut Work>,
    ) -> bool {
        let Some(flight) = state.flights.remove(&place) else { return false };
        self.metrics.in_flight.dec();
        let mut actions = Vec::new();
        for turn in flight.post.close() {
            if let Turn::Call(lane, _) | Turn::Validate(lane, _) = turn {
                actions.extend(state.pipeline.give_back(place, lane));
            }
        }
        actions.extend(state.pipeline.finish(place, success));
        if state.pipeline.is_late(place)
            && let Some(work) = work
        {
            state.late.insert(place, Arc::new(work.announcement()));
        }
        self.deliver(state, actions, Some(&flight.subject));
        if state.late.len() > MAX_LATE {
            self.drop_overdue(state);
        }
        self.settled(state);
        true
    }

    /// Ends the plugins for which more events are kept than we have room for.
    fn drop_overdue(self: &Arc<Self>, state: &mut State) {
        for (lane, peer) in state.peers.clone() {
            if !state.pipeline.is_overdue(lane) {
                continue;
            }
            let (plugin, source) = (peer.id.clone(), SyncError::TooManyEvents(state.late.len()));
            if let Some(waiting) = state.syncing.remove(&lane) {
                let _ = waiting.send(Err(JoinError::Sync { plugin, source }));
            }
            self.leave_at(state, &peer);
        }
    }

    /// A request has left.
    fn settled(&self, state: &mut State) {
        state.prune();
        if state.is_idle() {
            self.idle.notify_waiters();
        }
    }

    /// The plugin is gone, by its own will or ours.
    pub(super) fn leave(self: &Arc<Self>, peer: &Arc<Peer>) {
        self.leave_at(&mut self.state.lock(), peer);
    }

    /// The same for who holds the state.
    pub(super) fn leave_at(self: &Arc<Self>, state: &mut State, peer: &Arc<Peer>) {
        peer.trunk.close();
        let lane = state.peers.iter().find(|(_, have)| Arc::ptr_eq(have, peer));
        let Some(lane) = lane.map(|(lane, _)| *lane) else { return };
        if state.active.remove(&lane) {
            self.feed.tell(|| Notice::Left { plugin: peer.id.to_string() });
            if let Origin::External { .. } = peer.origin {
                let (why, now) = (peer.gone_because(), Instant::now());
                let mut absentees = self.absentees.lock();
                absentees.note(peer.id.as_str(), peer.origin.clone(), Absence::Down, &why, now);
            }
        }
        if let Some(waiting) = state.syncing.remove(&lane) {
            let _ = waiting.send(Err(JoinError::Closed));
        }
        let actions = state.pipeline.leave(lane);
        let State { late, pipeline, .. } = state;
        late.retain(|place, _| pipeline.is_late(*place));
        self.deliver(state, actions, None);
        self.count_members(state);
    }

    pub(super) fn count_members(&self, state: &State) {
        self.metrics.active.set(i64::try_from(state.active.len()).unwrap_or(i64::MAX));
        self.members.send_modify(|count| *count += 1);
    }

    /// Where a request is, for the error of a caller that waits no longer.
    pub(super) fn stage(&self, place: Place) -> String {
        let stage = self.state.lock().pipeline.stage(place);
        stage.unwrap_or_else(|| "done".to_owned())
    }
}

impl State {
    /// Nothing is on its way, and nobody is still to be told of anything.
    pub(super) fn is_idle(&self) -> bool {
        self.flights.is_empty() && self.late.is_empty()
    }

    fn give_turn(&mut self, place: Place, lane: Lane, turn: impl Fn(Lane, Arc<Peer>) -> Turn) {
        if let Some(peer) = self.peers.get(&lane) {
            let turn = turn(lane, Arc::clone(peer));
            self.turn(place, turn);
        }
    }

    fn turn(&mut self, place: Place, turn: Turn) {
        if let Some(flight) = self.flights.get(&place) {
            flight.post.put(turn);
        }
    }

    /// What exists cannot be created; what does not cannot end, and nothing ends twice.
    fn makes_sense(&self, event: Event, subject: &Subject) -> bool {
        let id = subject.id();
        match event {
            Event::CreateContainer => !self.containers.is_known(id),
            Event::StopPodSandbox => self.pods.is_live(id),
            Event::RemovePodSandbox => self.pods.is_known(id),
            Event::StopContainer => self.containers.is_live(id),
            Event::RemoveContainer => self.containers.is_known(id),
            _ => true,
        }
    }

    /// What a request changes by being asked: what is known is as it says, and ends are known
    /// before plugins are told.
    fn note(&mut self, event: Event, subject: &Subject, place: Place) {
        let Subject { domain, pod, container } = subject;
        self.pods
            .refresh(&pod.id, || PodRecord { domain: Arc::clone(domain), wire: Arc::clone(pod) });
        if let Some(wire) = container {
            self.containers.refresh(&wire.id, || ContainerRecord {
                domain: Arc::clone(domain),
                wire: Arc::clone(wire),
            });
        }
        let id = subject.id();
        match event {
            Event::StopPodSandbox => self.pods.stop(id, place),
            Event::RemovePodSandbox => self.pods.remove(id, place),
            Event::StopContainer => self.containers.stop(id, place),
            Event::RemoveContainer => {
                self.containers.remove(id, place);
                self.journals.remove(id);
            }
            _ => return,
        }
        self.prune();
    }

    pub(super) fn prune(&mut self) {
        let earliest = self.pipeline.earliest_join();
        self.pods.prune(earliest);
        self.containers.prune(earliest);
    }
}
