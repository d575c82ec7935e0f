//! Between the model and the tasks: turns are given out, ends are reported.

use std::sync::Arc;

use nri_wire::api::Event;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    Shared, State,
    flight::{Flight, Outcome, Pilot, Subject, Turn, Work},
    join::JoinError,
    sync,
};
use crate::{
    error::NriError,
    model::{Action, Lane, Place, Verdict},
    peer::Peer,
    watch::Notice,
};

/// How the end of a request reaches whoever waits for it, if anybody does.
pub(super) type Answer = Option<oneshot::Sender<Result<Outcome, NriError>>>;

/// A change of what is known, made at a place.
pub(super) type Effect<'a> = Box<dyn FnOnce(&mut State, Place) + Send + 'a>;

/// A request about to get its place.
pub(super) struct Departure<'a> {
    pub(super) event: Event,
    pub(super) subject: Subject,
    pub(super) work: Work,
    pub(super) answer: Answer,
    pub(super) permit: Option<OwnedSemaphorePermit>,
    /// Asked at its place: whether to go there at all.
    pub(super) sensible: Box<dyn FnOnce(&State) -> bool + Send + 'a>,
    /// What it changes by being asked, at its place.
    pub(super) effect: Effect<'a>,
}

impl Shared {
    /// Gives a request its place and sets it off, unless it makes no sense where it would be.
    pub(super) fn depart(self: &Arc<Self>, departure: Departure<'_>) -> Option<Place> {
        let Departure { event, subject, work, answer, permit, sensible, effect } = departure;
        let hidden = self.is_hidden(&subject.domain);
        let mut state = self.state.lock();
        if !sensible(&state) {
            return None;
        }
        let State { pipeline, peers, .. } = &mut *state;
        let sees = |lane: Lane| peers.get(&lane).is_some_and(|p| p.sees(&subject.domain, hidden));
        let (place, actions) = pipeline.admit(event, sees);
        effect(&mut state, place);
        self.launch_flight(&mut state, place, subject, work, answer, permit);
        self.deliver(&mut state, actions, None);
        Some(place)
    }

    fn launch_flight(
        self: &Arc<Self>,
        state: &mut State,
        place: Place,
        subject: Subject,
        work: Work,
        answer: Answer,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        // A turn per plugin to be asked and to validate, one at the end and one to commit:
        // it cannot be full.
        let (turns, taken) = mpsc::channel(2 * state.peers.len() + 2);
        let over = CancellationToken::new();
        state.flights.insert(place, Flight { turns, over: over.clone(), subject });
        self.metrics.in_flight.inc();
        let pilot = Pilot { shared: Arc::clone(self), place, work, turns: taken, over, answer };
        self.tasks.spawn(async move {
            pilot.fly().await;
            drop(permit);
        });
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
                Action::Undo { event, place, .. } => {
                    if let Some(subject) = undone {
                        let work = Work::undo(event, subject);
                        self.launch_flight(state, place, subject.clone(), work, None, None);
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

    /// The request leaves the pipeline, with `effect` on the registry, and its caller is
    /// answered. `false`, and nothing of that, if the caller gave up before.
    pub(super) fn conclude(
        self: &Arc<Self>,
        place: Place,
        answer: Answer,
        outcome: Result<Outcome, NriError>,
        effect: impl FnOnce(&mut State, Place),
    ) -> bool {
        let mut state = self.state.lock();
        let Some(flight) = state.flights.remove(&place) else { return false };
        self.metrics.in_flight.dec();
        let success = outcome.is_ok();
        if success {
            effect(&mut state, place);
        }
        // Inside the lock, so that who finds the request gone finds its answer.
        if let Some(answer) = answer {
            let _ = answer.send(outcome);
        }
        let actions = state.pipeline.finish(place, success);
        self.deliver(&mut state, actions, Some(&flight.subject));
        self.settled(&mut state);
        true
    }

    /// The caller has given up. Whether it was in time to make a difference.
    pub(super) fn withdraw(self: &Arc<Self>, place: Place) -> bool {
        let mut state = self.state.lock();
        let Some(flight) = state.flights.remove(&place) else { return false };
        self.metrics.in_flight.dec();
        flight.over.cancel();
        let actions = state.pipeline.finish(place, false);
        self.deliver(&mut state, actions, Some(&flight.subject));
        self.settled(&mut state);
        true
    }

    /// A request has left.
    fn settled(&self, state: &mut State) {
        state.prune();
        if state.flights.is_empty() {
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
        }
        if let Some(waiting) = state.syncing.remove(&lane) {
            let _ = waiting.send(Err(JoinError::Closed));
        }
        let actions = state.pipeline.leave(lane);
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
    fn give_turn(&mut self, place: Place, lane: Lane, turn: impl Fn(Lane, Arc<Peer>) -> Turn) {
        if let Some(peer) = self.peers.get(&lane) {
            let turn = turn(lane, Arc::clone(peer));
            self.turn(place, turn);
        }
    }

    fn turn(&mut self, place: Place, turn: Turn) {
        if let Some(flight) = self.flights.get(&place) {
            // Sized for all the turns there are; a pilot that is gone needs none.
            let _ = flight.turns.try_send(turn);
        }
    }

    pub(super) fn prune(&mut self) {
        let earliest = self.pipeline.earliest_join();
        self.pods.prune(earliest);
        self.containers.prune(earliest);
    }
}
