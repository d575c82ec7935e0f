//! The pipeline of requests through plugins, as a pure model.
//!
//! ```text
//!                lane 10-a        lane 20-b        lane 30-c (joining at 4)
//!  place 1                          in call
//!  place 2                          waits            -
//!  place 3        in call           -                -
//!  place 4        . . . . . . . . . . . . . . . . .  Synchronize: all before 4
//!  place 5        waits             waits            waits for the end of Synchronize
//! ```
//!
//! Every request gets a *place* in one total order and visits its plugins in the order of
//! their names. Each plugin has a *lane*: it takes one request at a time, in the order of
//! places, unless it is concurrent. So request 5 is in one plugin while request 3 is in the
//! next, and all plugins see the same order.
//!
//! A new plugin *joins* at a place of its own. It is synchronised once the creations before
//! that place have left the pipeline, and visited by every request after it: each object is
//! in its Synchronize or announced to it, and never both.
//!
//! A plugin whose Synchronize takes too long is *overdue*: requests that can do without it pass
//! its lane and keep their place there. Once it is synchronised it is told of each of them, in
//! the order of places, as soon as that request has left the pipeline. A request that failed is
//! not told of, because the plugin has never heard of it.
//!
//! The model decides, the caller acts: inputs are methods, what is to be done comes back as
//! [`Action`]s, in order.
//!
//! **Invariants**, explored in `model/explore.rs`: a lane that is not concurrent has one call
//! at a time; visits to a lane are in the order of places; a request visits lanes in order,
//! each once; as long as every call ends, every request ends. A creation that fails is undone
//! at exactly the plugins that were called about it. What passed a lane is told to it once, or
//! never if it failed, and nothing after it is told before.

#[cfg(test)]
mod explore;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use nri_wire::{EventMask, PluginId, api::Event};

/// A place in the total order of requests and joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(u64);

/// A plugin from its joining to its leaving. The same program joining anew is another lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(u64);

/// What a plugin is to the pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    pub id: PluginId,
    pub events: EventMask,
    /// Takes any number of requests at once.
    pub concurrent: bool,
    /// Is asked to validate updates too; creations it validates if its events say so.
    pub validates_updates: bool,
}

/// What the caller has to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Ask the plugin, then [`Pipeline::answered`].
    Call { place: Place, lane: Lane },
    /// Have the plugin validate the result, then [`Pipeline::answered`].
    Validate { place: Place, lane: Lane },
    /// All plugins were asked and all validators agree: [`Pipeline::commit`] or
    /// [`Pipeline::finish`].
    Routed { place: Place },
    /// It is this request's turn to change other containers: do it, then [`Pipeline::finish`].
    Commit { place: Place },
    /// Tell the plugin all that existed at the place it joins, then [`Pipeline::synced`].
    Synchronize { lane: Lane, at: Place },
    /// Tell the plugin of a request that has passed it and left, then [`Pipeline::answered`].
    Announce { place: Place, lane: Lane },
    /// A creation failed; this request undoes it at the plugins that knew of it.
    Undo { of: Place, event: Event, place: Place },
}

/// What an answer means for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// On to the next plugin.
    Continue,
    /// No further plugin is asked; the caller finishes the request.
    Stop,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pipeline {
    next_place: u64,
    next_lane: u64,
    lanes: BTreeMap<Lane, LaneState>,
    flights: BTreeMap<Place, Flight>,
    /// Those that may yet change other containers.
    committing: BTreeSet<Place>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LaneState {
    member: Member,
    phase: Phase,
    /// Requests that can do without the plugin no longer wait for its Synchronize.
    overdue: bool,
    /// Calls in progress.
    busy: usize,
    /// Requests that will visit, whether or not they are here yet.
    pending: BTreeSet<Place>,
    /// Those of them that are here.
    here: BTreeSet<Place>,
    /// Requests that will come to be validated, and those that are here for it.
    expected: BTreeSet<Place>,
    validations: BTreeSet<Place>,
    /// Requests that have passed the lane and are still in the pipeline.
    passed: BTreeSet<Place>,
    /// Those of them that have left it, until the plugin has been told.
    late: BTreeSet<Place>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Waits for earlier creations.
    Joining(Place),
    Syncing,
    Active,
    /// Takes no new requests; those on their way are answered for it.
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Flight {
    event: Event,
    stage: Stage,
    /// Still to visit, first first.
    route: VecDeque<Lane>,
    validators: BTreeSet<Lane>,
    /// Lanes that it may not pass, of those that were not synchronised when it was admitted.
    needs: BTreeSet<Lane>,
    /// Were called.
    visited: Vec<Lane>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// In the queue of the first lane of the route.
    Waits,
    In(Lane),
    /// Not yet answered by these.
    Validating(BTreeSet<Lane>),
    Routed,
    AwaitsCommit,
    Commits,
}

/// What undoes a creation, in order.
fn undo_of(event: Event) -> &'static [Event] {
    match event {
        Event::CreateContainer => &[Event::StopContainer, Event::RemoveContainer],
        Event::RunPodSandbox => &[Event::StopPodSandbox, Event::RemovePodSandbox],
        _ => &[],
    }
}

/// Whether a plugin can prevent what it is asked about. Of anything else every plugin is told,
/// whatever the others say.
pub fn is_refusable(event: Event) -> bool {
    matches!(
        event,
        Event::RunPodSandbox
            | Event::UpdatePodSandbox
            | Event::CreateContainer
            | Event::StartContainer
            | Event::UpdateContainer
    )
}

/// Whether plugins may answer with changes of other containers.
fn may_commit(event: Event) -> bool {
    matches!(event, Event::CreateContainer | Event::UpdateContainer | Event::StopContainer)
}

impl Pipeline {
    /// Gives a request its place. It will visit the plugins that have joined by now, want the
    /// event and may see its object. `needs` are those it waits for however long they take to
    /// be synchronised.
    pub fn admit(
        &mut self,
        event: Event,
        sees: impl Fn(Lane) -> bool,
        needs: impl Fn(Lane) -> bool,
    ) -> (Place, Vec<Action>) {
        let wanted = |lane: Lane, state: &LaneState| {
            state.takes_new() && state.member.events.contains(event) && sees(lane)
        };
        let route = self.in_order(wanted);
        let validates = |lane: Lane, state: &LaneState| {
            state.takes_new()
                && sees(lane)
                && state.member.events.contains(Event::ValidateContainerAdjustment)
                && match event {
                    Event::CreateContainer => true,
                    Event::UpdateContainer => state.member.validates_updates,
                    _ => false,
                }
        };
        let validators: BTreeSet<Lane> = self.in_order(validates).into_iter().collect();
        let joining = |lane: &Lane| self.lanes.get(lane).is_some_and(LaneState::is_joining);
        let needed =
            route.iter().chain(&validators).copied().filter(|lane| joining(lane) && needs(*lane));
        let needs = needed.collect();
        self.depart(event, route, validators, needs)
    }

    /// A plugin wants to be part of it. Requests from here on will visit it.
    pub fn join(&mut self, member: Member) -> (Lane, Place, Vec<Action>) {
        let (lane, at) = (Lane(self.next_lane), self.take_place());
        self.next_lane += 1;
        let state = LaneState {
            member,
            phase: Phase::Joining(at),
            overdue: false,
            busy: 0,
            pending: BTreeSet::new(),
            here: BTreeSet::new(),
            expected: BTreeSet::new(),
            validations: BTreeSet::new(),
            passed: BTreeSet::new(),
            late: BTreeSet::new(),
        };
        self.lanes.insert(lane, state);
        (lane, at, self.begin_syncs())
    }

    /// The plugin knows all that was there before its place.
    pub fn synced(&mut self, lane: Lane) -> Vec<Action> {
        match self.lanes.get_mut(&lane) {
            Some(state) if state.phase == Phase::Syncing => {
                state.phase = Phase::Active;
                state.overdue = false;
            }
            _ => return Vec::new(),
        }
        self.pump(lane)
    }

    /// The plugin has been waited for long enough: what can do without it, here or still to
    /// come, passes it until it is synchronised.
    pub fn overdue(&mut self, lane: Lane) -> Vec<Action> {
        let Some(state) = self.lanes.get_mut(&lane).filter(|state| state.is_joining()) else {
            return Vec::new();
        };
        state.overdue = true;
        let visits = [&state.pending, &state.expected, &state.validations];
        let visits: BTreeSet<Place> = visits.into_iter().flatten().copied().collect();
        visits.into_iter().flat_map(|place| self.pass(place, lane)).collect()
    }

    /// The plugin is gone. Requests that were to visit it still call it, so that the caller
    /// decides what its absence means to each.
    pub fn leave(&mut self, lane: Lane) -> Vec<Action> {
        let Some(state) = self.lanes.get_mut(&lane) else { return Vec::new() };
        state.phase = Phase::Gone;
        state.overdue = false;
        state.passed.clear();
        state.late.clear();
        self.pump(lane)
    }

    /// A call, validation or announcement has ended, whatever became of its request meanwhile.
    pub fn answered(&mut self, place: Place, lane: Lane, verdict: Verdict) -> Vec<Action> {
        if let Some(state) = self.lanes.get_mut(&lane) {
            state.busy = state.busy.saturating_sub(1);
            state.late.remove(&place);
        }
        let mut actions = match verdict {
            Verdict::Continue => self.advance(place, lane),
            Verdict::Stop => self.give_up(place),
        };
        actions.extend(self.pump(lane));
        actions
    }

    /// A call or validation that was decided and never begun: the plugin knows nothing of it. Its
    /// request is about to [finish](Pipeline::finish).
    pub fn give_back(&mut self, place: Place, lane: Lane) -> Vec<Action> {
        if let Some(state) = self.lanes.get_mut(&lane) {
            state.busy = state.busy.saturating_sub(1);
        }
        // One that was to validate may have been called before.
        if let Some(flight) = self.flights.get_mut(&place)
            && flight.stage == Stage::In(lane)
        {
            flight.visited.retain(|visited| *visited != lane);
        }
        self.pump(lane)
    }

    /// The request wants to change other containers; it may when all before it are done.
    pub fn commit(&mut self, place: Place) -> Vec<Action> {
        if let Some(flight) = self.flights.get_mut(&place) {
            flight.stage = Stage::AwaitsCommit;
        }
        self.next_commit()
    }

    /// The request leaves the pipeline, at any stage. A creation that did not succeed is
    /// undone.
    pub fn finish(&mut self, place: Place, success: bool) -> Vec<Action> {
        let Some(flight) = self.flights.remove(&place) else { return Vec::new() };
        self.committing.remove(&place);
        let mut touched = self.forget_visits(place);
        touched.extend(self.leave_behind(place, success || !is_refusable(flight.event)));
        let mut actions = Vec::new();
        if !success {
            actions.extend(self.undo(place, &flight));
        }
        actions.extend(self.begin_syncs());
        actions.extend(touched.into_iter().flat_map(|lane| self.pump(lane)));
        actions.extend(self.next_commit());
        actions
    }

    /// The earliest place a plugin is still to be synchronised at: what ended after it must
    /// be remembered.
    pub fn earliest_join(&self) -> Option<Place> {
        self.lanes.values().filter_map(|lane| lane.joining()).min()
    }

    /// Whether a plugin is still to be told of a request that has left.
    pub fn is_late(&self, place: Place) -> bool {
        self.lanes.values().any(|lane| lane.late.contains(&place))
    }

    /// Whether requests pass the plugin because it is not synchronised.
    pub fn is_overdue(&self, lane: Lane) -> bool {
        self.lanes.get(&lane).is_some_and(|lane| lane.overdue)
    }

    pub fn member(&self, lane: Lane) -> Option<&Member> {
        self.lanes.get(&lane).map(|lane| &lane.member)
    }

    /// Requests in the pipeline.
    pub fn len(&self) -> usize {
        self.flights.len()
    }

    pub fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// Where a request is, for people.
    pub fn stage(&self, place: Place) -> Option<String> {
        let flight = self.flights.get(&place)?;
        let name = |lane: &Lane| match self.lanes.get(lane) {
            Some(state) => state.member.id.to_string(),
            None => "a plugin that is gone".to_owned(),
        };
        let names = |lanes: &BTreeSet<Lane>| lanes.iter().map(name).collect::<Vec<_>>().join(", ");
        Some(match &flight.stage {
            Stage::Waits => match flight.route.front() {
                Some(lane) => format!("waits for {}", name(lane)),
                None => "leaves".to_owned(),
            },
            Stage::In(lane) => format!("in {}", name(lane)),
            Stage::Validating(left) => format!("validated by {}", names(left)),
            Stage::Routed => "all plugins were asked".to_owned(),
            Stage::AwaitsCommit => "waits to change other containers".to_owned(),
            Stage::Commits => "changes other containers".to_owned(),
        })
    }

    // === steps ===

    fn take_place(&mut self) -> Place {
        self.next_place += 1;
        Place(self.next_place)
    }

    fn in_order(&self, wanted: impl Fn(Lane, &LaneState) -> bool) -> Vec<Lane> {
        let mut lanes: Vec<_> = self.lanes.iter().filter(|(lane, s)| wanted(**lane, s)).collect();
        // Those of one name come in the order in which they joined.
        lanes.sort_by(|(a, x), (b, y)| x.member.id.cmp(&y.member.id).then(a.cmp(b)));
        lanes.into_iter().map(|(lane, _)| *lane).collect()
    }

    fn depart(
        &mut self,
        event: Event,
        route: Vec<Lane>,
        validators: BTreeSet<Lane>,
        needs: BTreeSet<Lane>,
    ) -> (Place, Vec<Action>) {
        let place = self.take_place();
        let mut overdue = BTreeSet::new();
        for lane in &route {
            if let Some(state) = self.lanes.get_mut(lane) {
                state.pending.insert(place);
                overdue.extend(state.overdue.then_some(*lane));
            }
        }
        for lane in &validators {
            if let Some(state) = self.lanes.get_mut(lane) {
                state.expected.insert(place);
                overdue.extend(state.overdue.then_some(*lane));
            }
        }
        if may_commit(event) {
            self.committing.insert(place);
        }
        let (stage, visited) = (Stage::Waits, Vec::new());
        let flight = Flight { event, stage, route: route.into(), validators, needs, visited };
        self.flights.insert(place, flight);
        // It is in no queue yet, so that passing brings it nowhere.
        overdue.into_iter().for_each(|lane| drop(self.pass(place, lane)));
        (place, self.enter(place))
    }

    /// The request goes on without the lane, unless it needs it, and is told to it later.
    fn pass(&mut self, place: Place, lane: Lane) -> Vec<Action> {
        let (Some(flight), Some(state)) = (self.flights.get_mut(&place), self.lanes.get_mut(&lane))
        else {
            return Vec::new();
        };
        if flight.needs.contains(&lane) {
            return Vec::new();
        }
        if state.pending.remove(&place) {
            state.passed.insert(place);
        }
        let waits = state.here.remove(&place);
        state.expected.remove(&place);
        let validated = state.validations.remove(&place);
        flight.route.retain(|at| *at != lane);
        flight.validators.remove(&lane);
        match (waits, validated) {
            (true, _) => self.enter(place),
            (_, true) => self.advance(place, lane),
            _ => Vec::new(),
        }
    }

    /// The request has left the pipeline: the lanes it passed are told of it, or forget it.
    fn leave_behind(&mut self, place: Place, tell: bool) -> Vec<Lane> {
        let passed = self.lanes.iter_mut().filter_map(|(lane, state)| {
            state.passed.remove(&place).then(|| {
                if tell {
                    state.late.insert(place);
                }
                *lane
            })
        });
        passed.collect()
    }

    /// The request goes to the queue of its next lane, or to what follows the last.
    fn enter(&mut self, place: Place) -> Vec<Action> {
        let Some(flight) = self.flights.get_mut(&place) else { return Vec::new() };
        if let Some(lane) = flight.route.front().copied() {
            flight.stage = Stage::Waits;
            if let Some(state) = self.lanes.get_mut(&lane) {
                state.here.insert(place);
            }
            return self.pump(lane);
        }
        if flight.validators.is_empty() {
            flight.stage = Stage::Routed;
            return vec![Action::Routed { place }];
        }
        let validators = std::mem::take(&mut flight.validators);
        flight.stage = Stage::Validating(validators.clone());
        for lane in &validators {
            if let Some(state) = self.lanes.get_mut(lane) {
                state.expected.remove(&place);
                state.validations.insert(place);
            }
        }
        validators.into_iter().flat_map(|lane| self.pump(lane)).collect()
    }

    /// The lane has answered: the request moves on, if it still waits for that.
    fn advance(&mut self, place: Place, lane: Lane) -> Vec<Action> {
        let Some(flight) = self.flights.get_mut(&place) else { return Vec::new() };
        match &mut flight.stage {
            Stage::In(at) if *at == lane => self.enter(place),
            Stage::Validating(left) => {
                left.remove(&lane);
                if !left.is_empty() {
                    return Vec::new();
                }
                flight.stage = Stage::Routed;
                vec![Action::Routed { place }]
            }
            _ => Vec::new(),
        }
    }

    /// No further plugin is asked.
    fn give_up(&mut self, place: Place) -> Vec<Action> {
        let Some(flight) = self.flights.get_mut(&place) else { return Vec::new() };
        flight.stage = Stage::Routed;
        flight.route.clear();
        flight.validators.clear();
        let touched = self.forget_visits(place);
        touched.into_iter().flat_map(|lane| self.pump(lane)).collect()
    }

    /// The lanes that no longer wait for the request.
    fn forget_visits(&mut self, place: Place) -> Vec<Lane> {
        let gone = |state: &mut LaneState| {
            state.here.remove(&place);
            let sets = [&mut state.pending, &mut state.expected, &mut state.validations];
            sets.map(|set| set.remove(&place)).contains(&true)
        };
        self.lanes.iter_mut().filter_map(|(lane, state)| gone(state).then_some(*lane)).collect()
    }

    /// Starts what the lane can start now.
    fn pump(&mut self, lane: Lane) -> Vec<Action> {
        let mut actions = Vec::new();
        while let Some(state) = self.lanes.get(&lane) {
            let Some(next) = state.next(lane) else { break };
            actions.push(next.clone());
            self.start(&next);
        }
        if self.lanes.get(&lane).is_some_and(LaneState::is_drained) {
            self.lanes.remove(&lane);
        }
        actions
    }

    fn start(&mut self, action: &Action) {
        match *action {
            Action::Call { place, lane } => {
                if let Some(state) = self.lanes.get_mut(&lane) {
                    state.pending.remove(&place);
                    state.here.remove(&place);
                    state.busy += 1;
                }
                if let Some(flight) = self.flights.get_mut(&place) {
                    flight.route.pop_front();
                    flight.visited.push(lane);
                    flight.stage = Stage::In(lane);
                }
            }
            Action::Validate { place, lane } => {
                if let Some(state) = self.lanes.get_mut(&lane) {
                    state.validations.remove(&place);
                    state.busy += 1;
                }
            }
            Action::Announce { lane, .. } => {
                if let Some(state) = self.lanes.get_mut(&lane) {
                    state.busy += 1;
                }
            }
            _ => {}
        }
    }

    /// Joins whose earlier creations have all left.
    fn begin_syncs(&mut self) -> Vec<Action> {
        let creates = |(_, flight): &(&Place, &Flight)| !undo_of(flight.event).is_empty();
        let first = self.flights.iter().find(creates).map(|(place, _)| *place);
        let mut actions = Vec::new();
        for (lane, state) in &mut self.lanes {
            if let Some(at) = state.joining().filter(|at| first.is_none_or(|first| first > *at)) {
                state.phase = Phase::Syncing;
                actions.push(Action::Synchronize { lane: *lane, at });
            }
        }
        actions
    }

    fn undo(&mut self, of: Place, flight: &Flight) -> Vec<Action> {
        let mut actions = Vec::new();
        for event in undo_of(flight.event) {
            let knows = |lane: &Lane| {
                let wants =
                    |state: &LaneState| state.takes_new() && state.member.events.contains(*event);
                self.lanes.get(lane).is_some_and(wants)
            };
            let route: Vec<Lane> = flight.visited.iter().copied().filter(knows).collect();
            if !route.is_empty() {
                let (place, follow) = self.depart(*event, route, BTreeSet::new(), BTreeSet::new());
                actions.push(Action::Undo { of, event: *event, place });
                actions.extend(follow);
            }
        }
        actions
    }

    fn next_commit(&mut self) -> Vec<Action> {
        let Some(place) = self.committing.first().copied() else { return Vec::new() };
        match self.flights.get_mut(&place) {
            Some(flight) if flight.stage == Stage::AwaitsCommit => {
                flight.stage = Stage::Commits;
                vec![Action::Commit { place }]
            }
            _ => Vec::new(),
        }
    }
}

impl LaneState {
    fn takes_new(&self) -> bool {
        self.phase != Phase::Gone
    }

    /// Gone, and nothing will ask for it any more.
    fn is_drained(&self) -> bool {
        let visits = [&self.pending, &self.expected, &self.validations];
        self.phase == Phase::Gone && self.busy == 0 && visits.iter().all(|set| set.is_empty())
    }

    /// Is not synchronised yet.
    fn is_joining(&self) -> bool {
        matches!(self.phase, Phase::Joining(_) | Phase::Syncing)
    }

    fn joining(&self) -> Option<Place> {
        match self.phase {
            Phase::Joining(at) => Some(at),
            _ => None,
        }
    }

    /// What the lane would do next, if it can do anything.
    fn next(&self, lane: Lane) -> Option<Action> {
        // What is still to be told comes before anything after it, also to who is concurrent.
        let owed = self.passed.first().into_iter().chain(self.late.first()).min();
        let open = match self.phase {
            Phase::Joining(_) | Phase::Syncing => return None,
            Phase::Active => self.member.concurrent && owed.is_none(),
            Phase::Gone => true,
        };
        if !open && self.busy > 0 {
            return None;
        }
        // In the order of places; only who is open to all may let one pass that is not here yet.
        let (first, coming) = (self.here.first(), self.pending.first());
        let call = first.filter(|place| open || coming == Some(place));
        let call = call.filter(|place| owed.is_none_or(|owed| *place < owed));
        let announce = self.late.first().filter(|place| owed == Some(place));
        let announce = announce.filter(|place| coming.is_none_or(|coming| *place < coming));
        let (call, announce) = (call.copied(), announce.copied());
        match (call.or(announce), self.validations.first().copied()) {
            (Some(next), Some(place)) if place < next => Some(Action::Validate { place, lane }),
            (Some(place), _) if call.is_some() => Some(Action::Call { place, lane }),
            (Some(place), _) => Some(Action::Announce { place, lane }),
            (None, Some(place)) => Some(Action::Validate { place, lane }),
            (None, None) => None,
        }
    }
}
