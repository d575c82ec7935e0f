//! Explores the model: every order in which calls can end, plugins join, leave and fail, and
//! callers give up, for three plugins and four requests; and long random runs beyond that.
//!
//! The world below plays the caller, who acts on [`Action`]s, and the plugins, who remember
//! what they were told. Its checks are the promises of the pipeline.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use nri_wire::{EventMask, api::Event};

use super::*;
use crate::registry::Table;

/// What happens to whom, in the order in which the engine would ask.
#[derive(Clone, Copy, Debug)]
struct Step {
    event: Event,
    object: &'static str,
    /// The answer changes other containers.
    commits: bool,
}

const fn step(event: Event, object: &'static str) -> Step {
    Step { event, object, commits: false }
}

/// How much may go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Budget {
    /// A plugin that refuses, or a caller that gives up.
    failures: u8,
    leaves: u8,
    joins: u8,
    /// Plugins that joined and are no longer waited for.
    overdue: u8,
    /// Who joins is needed: nothing that it may refuse passes it.
    required: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    pipeline: Pipeline,
    objects: Table<()>,
    /// Index of the next step of the script.
    next: usize,
    budget: Budget,
    /// Calls, validations and synchronisations that have not ended.
    calls: BTreeSet<(Place, Lane)>,
    validations: BTreeSet<(Place, Lane)>,
    syncs: BTreeMap<Lane, Place>,
    /// Plugins that are being told of what passed them.
    announcements: BTreeSet<(Place, Lane)>,
    commits: BTreeSet<Place>,
    requests: BTreeMap<Place, Request>,
    plugins: BTreeMap<Lane, Told>,
    last_commit: Option<Place>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Request {
    event: Event,
    object: String,
    commits: bool,
    visited: Vec<Lane>,
    /// Out of the pipeline, though a call about it may still be running.
    finished: bool,
    succeeded: bool,
}

/// What a plugin knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Told {
    index: u8,
    concurrent: bool,
    required: bool,
    /// Where it joined.
    at: Option<Place>,
    last: Option<Place>,
    /// By Synchronize or by an event; how often.
    known: BTreeMap<String, u8>,
    stopped: BTreeMap<String, u8>,
    removed: BTreeMap<String, u8>,
    gone: bool,
}

/// What may happen next.
#[derive(Clone, Copy, Debug)]
enum Choice {
    Ask,
    Answer(Place, Lane, Verdict),
    Validated(Place, Lane, Verdict),
    Announced(Place, Lane),
    Synced(Lane),
    Overdue(Lane),
    Committed(Place),
    GiveUp(Place),
    /// Before what was decided for it has begun.
    GiveUpEarly(Place),
    Leave(Lane),
    Join,
}

impl Choice {
    /// Joining and leaving are free to happen or not; all else has to end.
    fn is_optional(&self) -> bool {
        matches!(self, Self::Join | Self::Leave(_) | Self::Overdue(_))
    }
}

fn aborts(event: Event) -> bool {
    matches!(event, Event::RunPodSandbox | Event::CreateContainer | Event::UpdateContainer)
}

fn creates(event: Event) -> bool {
    matches!(event, Event::RunPodSandbox | Event::CreateContainer)
}

impl World {
    fn new(plugins: &[(u8, bool)], budget: Budget) -> Self {
        let mut world = Self {
            pipeline: Pipeline::default(),
            objects: Table::default(),
            next: 0,
            budget,
            calls: BTreeSet::new(),
            validations: BTreeSet::new(),
            syncs: BTreeMap::new(),
            announcements: BTreeSet::new(),
            commits: BTreeSet::new(),
            requests: BTreeMap::new(),
            plugins: BTreeMap::new(),
            last_commit: None,
        };
        for (index, concurrent) in plugins {
            world.join(*index, *concurrent);
            let lane = *world.syncs.keys().next().expect("nothing is in the way of the first");
            world.take(Choice::Synced(lane), &[]);
        }
        world
    }

    fn join(&mut self, index: u8, concurrent: bool) {
        let id = PluginId::new(&format!("{index}0"), "p").unwrap();
        let events = EventMask::ALL;
        let member = Member { id, events, concurrent, validates_updates: false };
        let (lane, at, actions) = self.pipeline.join(member);
        let required = self.budget.required;
        let told = Told { index, concurrent, required, at: Some(at), ..Told::default() };
        self.plugins.insert(lane, told);
        self.act(actions);
    }

    fn choices(&self, script: &[Step]) -> Vec<Choice> {
        let mut choices = Vec::new();
        if self.next < script.len() {
            choices.push(Choice::Ask);
        }
        let may_fail =
            |place: &Place| self.budget.failures > 0 && aborts(self.requests[place].event);
        for (place, lane) in &self.calls {
            choices.push(Choice::Answer(*place, *lane, Verdict::Continue));
            if may_fail(place) && !self.requests[place].finished {
                choices.push(Choice::Answer(*place, *lane, Verdict::Stop));
            }
        }
        for (place, lane) in &self.validations {
            choices.push(Choice::Validated(*place, *lane, Verdict::Continue));
            if may_fail(place) && !self.requests[place].finished {
                choices.push(Choice::Validated(*place, *lane, Verdict::Stop));
            }
        }
        choices.extend(self.announcements.iter().map(|(of, lane)| Choice::Announced(*of, *lane)));
        choices.extend(self.syncs.keys().map(|lane| Choice::Synced(*lane)));
        if self.budget.overdue > 0 {
            choices.extend(self.syncs.keys().map(|lane| Choice::Overdue(*lane)));
        }
        choices.extend(self.commits.iter().map(|place| Choice::Committed(*place)));
        let open = self.requests.iter().filter(|(place, r)| !r.finished && may_fail(place));
        for (place, _) in open {
            choices.push(Choice::GiveUp(*place));
            if self.calls.iter().chain(&self.validations).any(|(of, _)| of == place) {
                choices.push(Choice::GiveUpEarly(*place));
            }
        }
        if self.budget.leaves > 0 {
            let here = self.plugins.iter().filter(|(_, told)| !told.gone);
            choices.extend(here.map(|(lane, _)| Choice::Leave(*lane)));
        }
        if self.budget.joins > 0 {
            choices.push(Choice::Join);
        }
        choices
    }

    fn take(&mut self, choice: Choice, script: &[Step]) {
        match choice {
            Choice::Ask => self.ask(script[self.next]),
            Choice::Answer(place, lane, verdict) => {
                self.calls.remove(&(place, lane));
                self.answer(place, lane, verdict);
            }
            Choice::Validated(place, lane, verdict) => {
                self.validations.remove(&(place, lane));
                self.answer(place, lane, verdict);
            }
            Choice::Synced(lane) => {
                self.syncs.remove(&lane);
                let actions = self.pipeline.synced(lane);
                self.act(actions);
            }
            Choice::Announced(place, lane) => {
                self.announcements.remove(&(place, lane));
                let actions = self.pipeline.answered(place, lane, Verdict::Continue);
                self.act(actions);
            }
            Choice::Overdue(lane) => {
                self.budget.overdue -= 1;
                let actions = self.pipeline.overdue(lane);
                self.act(actions);
            }
            Choice::Committed(place) => {
                self.commits.remove(&place);
                self.finish(place, true);
            }
            Choice::GiveUp(place) => {
                self.budget.failures -= 1;
                self.commits.remove(&place);
                self.finish(place, false);
            }
            Choice::GiveUpEarly(place) => {
                self.budget.failures -= 1;
                self.give_back(place);
                self.finish(place, false);
            }
            Choice::Leave(lane) => {
                self.budget.leaves -= 1;
                self.syncs.remove(&lane);
                self.plugins.get_mut(&lane).unwrap().gone = true;
                let actions = self.pipeline.leave(lane);
                self.act(actions);
            }
            Choice::Join => {
                self.budget.joins -= 1;
                // One that takes several at once, or not, by when it comes.
                self.join(2, self.next % 2 == 1);
            }
        }
        self.objects
            .prune(self.pipeline.earliest_join().or_else(|| self.syncs.values().min().copied()));
    }

    /// As the engine does: only what exists is stopped or removed, and once.
    fn ask(&mut self, step: Step) {
        self.next += 1;
        let refused = match step.event {
            Event::StopContainer => !self.objects.is_live(step.object),
            Event::RemoveContainer => !self.objects.is_known(step.object),
            _ => false,
        };
        if refused {
            return;
        }
        if step.event == Event::RemoveContainer && self.objects.is_live(step.object) {
            self.request(Step { event: Event::StopContainer, ..step });
        }
        self.request(step);
    }

    fn request(&mut self, step: Step) {
        let needs = |lane: Lane| self.plugins[&lane].required && is_refusable(step.event);
        let (place, actions) = self.pipeline.admit(step.event, |_| true, needs);
        match step.event {
            Event::StopContainer => self.objects.stop(step.object, place),
            Event::RemoveContainer => self.objects.remove(step.object, place),
            _ => {}
        }
        self.note(place, step.event, step.object.to_owned(), step.commits);
        self.act(actions);
    }

    fn note(&mut self, place: Place, event: Event, object: String, commits: bool) {
        let (finished, succeeded) = (false, false);
        let request = Request { event, object, commits, visited: vec![], finished, succeeded };
        self.requests.insert(place, request);
    }

    fn answer(&mut self, place: Place, lane: Lane, verdict: Verdict) {
        let actions = self.pipeline.answered(place, lane, verdict);
        self.act(actions);
        if verdict == Verdict::Stop {
            self.budget.failures -= 1;
            self.finish(place, false);
        }
    }

    /// As if the plugins that were about to be asked had never been chosen.
    fn give_back(&mut self, place: Place) {
        let of_this = |set: &mut BTreeSet<(Place, Lane)>| -> Vec<Lane> {
            set.extract_if(.., |(of, _)| *of == place).map(|(_, lane)| lane).collect()
        };
        let mut actions = Vec::new();
        for lane in of_this(&mut self.calls) {
            let request = self.requests.get_mut(&place).unwrap();
            request.visited.retain(|visited| *visited != lane);
            if creates(request.event) {
                let told = self.plugins.get_mut(&lane).unwrap();
                told.known.entry(request.object.clone()).and_modify(|times| *times -= 1);
                told.known.retain(|_, times| *times > 0);
            }
            actions.extend(self.pipeline.give_back(place, lane));
        }
        for lane in of_this(&mut self.validations) {
            actions.extend(self.pipeline.give_back(place, lane));
        }
        self.act(actions);
    }

    fn finish(&mut self, place: Place, success: bool) {
        let request = self.requests.get_mut(&place).unwrap();
        request.finished = true;
        request.succeeded = success;
        if success && creates(request.event) {
            self.objects.created(&request.object, std::sync::Arc::new(()), place);
        }
        let actions = self.pipeline.finish(place, success);
        self.act(actions);
    }

    fn act(&mut self, actions: Vec<Action>) {
        // What undoes has to be known before it is called.
        for action in &actions {
            if let Action::Undo { of, event, place } = action {
                let object = self.requests[of].object.clone();
                self.note(*place, *event, object, false);
            }
        }
        for action in actions {
            match action {
                Action::Call { place, lane } => self.call(place, lane),
                Action::Validate { place, lane } => {
                    self.check_free(lane);
                    self.validations.insert((place, lane));
                }
                Action::Routed { place } => match self.requests[&place].commits {
                    true => {
                        let actions = self.pipeline.commit(place);
                        self.act(actions);
                    }
                    false => self.finish(place, true),
                },
                Action::Commit { place } => {
                    assert!(self.last_commit < Some(place), "commits are in order");
                    self.last_commit = Some(place);
                    self.commits.insert(place);
                }
                Action::Synchronize { lane, at } => {
                    self.check_free(lane);
                    let told = self.plugins.get_mut(&lane).unwrap();
                    for (id, ()) in self.objects.live_at(at).map(|(id, o)| (id, **o)) {
                        *told.known.entry(id.to_owned()).or_default() += 1;
                    }
                    self.syncs.insert(lane, at);
                }
                Action::Announce { place, lane } => self.announce(place, lane),
                Action::Undo { .. } => {}
            }
        }
    }

    fn check_free(&self, lane: Lane) {
        let told = &self.plugins[&lane];
        let in_lane = |set: &BTreeSet<(Place, Lane)>| set.iter().any(|(_, at)| *at == lane);
        let busy = in_lane(&self.calls) || in_lane(&self.validations);
        assert!(!busy || told.concurrent || told.gone, "one call at a time");
        // A Synchronize that was not answered is sent again: it is still the first that counts.
        assert!(!self.syncs.contains_key(&lane), "nothing else is told during Synchronize");
        let announced = in_lane(&self.announcements);
        assert!(!announced || told.gone, "what passed is told before all that follows it");
    }

    fn call(&mut self, place: Place, lane: Lane) {
        self.check_free(lane);
        let request = self.requests.get_mut(&place).unwrap();
        let told = self.plugins.get_mut(&lane).unwrap();
        assert!(told.last < Some(place) || told.concurrent || told.gone, "in the order of places");
        assert!(!request.finished, "nobody is called about what is over");
        told.last = told.last.max(Some(place));
        request.visited.push(lane);
        let order: Vec<_> =
            request.visited.iter().map(|lane| (self.plugins[lane].index, *lane)).collect();
        assert!(order.is_sorted() && order.windows(2).all(|w| w[0] != w[1]), "plugins in order");
        self.tell(place, lane);
        self.calls.insert((place, lane));
    }

    fn announce(&mut self, place: Place, lane: Lane) {
        self.check_free(lane);
        let request = &self.requests[&place];
        let told = self.plugins.get_mut(&lane).unwrap();
        assert!(request.finished && !request.visited.contains(&lane), "passed, and left");
        assert!(request.succeeded || !is_refusable(request.event), "what failed is not told");
        assert!(!told.required || !is_refusable(request.event), "it was to be asked");
        assert!(told.last < Some(place), "in the order of places");
        told.last = Some(place);
        self.tell(place, lane);
        self.announcements.insert((place, lane));
    }

    fn tell(&mut self, place: Place, lane: Lane) {
        let request = &self.requests[&place];
        let told = self.plugins.get_mut(&lane).unwrap();
        let count =
            |of: &mut BTreeMap<String, u8>| *of.entry(request.object.clone()).or_default() += 1;
        match request.event {
            Event::RunPodSandbox | Event::CreateContainer => count(&mut told.known),
            Event::StopContainer | Event::StopPodSandbox => {
                let known = told.known.contains_key(&request.object);
                assert!(known || told.gone, "the end of what it knows");
                count(&mut told.stopped);
            }
            Event::RemoveContainer | Event::RemovePodSandbox => count(&mut told.removed),
            _ => {}
        }
    }

    /// Nothing can happen any more: was everything promised kept?
    fn check_end(&self) {
        assert!(self.pipeline.is_empty(), "stuck: {self:#?}");
        assert_eq!(self.pipeline.earliest_join(), None);
        for told in self.plugins.values().filter(|told| !told.gone) {
            for (object, times) in &told.known {
                assert_eq!(*times, 1, "{object} is told of once");
            }
            for (object, ()) in self.objects.iter().map(|(id, o)| (id, **o)) {
                let live = self.objects.is_live(object);
                assert!(!live || told.known.contains_key(object), "{object} is told of");
            }
            let made = |(_, r): &(&Place, &Request)| r.succeeded && creates(r.event);
            for (_, request) in
                self.requests.iter().filter(made).filter(|(p, _)| Some(**p) > told.at)
            {
                assert!(told.known.contains_key(&request.object), "also of what has ended since");
            }
            for times in told.stopped.values().chain(told.removed.values()) {
                assert_eq!(*times, 1, "ends are told of once");
            }
            for object in told.known.keys() {
                let exists = self.objects.is_known(object);
                let undone = told.stopped.contains_key(object) && told.removed.contains_key(object);
                assert!(exists || undone, "the end of {object} is told of");
                assert!(!self.objects.is_live(object) || !told.stopped.contains_key(object));
            }
        }
    }
}

/// Visits every state that can be reached, each once. Returns how many there were.
fn explore(start: World, script: &[Step]) -> usize {
    let mut seen: HashSet<World> = HashSet::new();
    let mut open = vec![start];
    while let Some(world) = open.pop() {
        let choices = world.choices(script);
        if choices.iter().all(Choice::is_optional) {
            world.check_end();
        }
        for choice in choices {
            let mut next = world.clone();
            next.take(choice, script);
            if !seen.contains(&next) {
                seen.insert(next.clone());
                open.push(next);
            }
        }
    }
    seen.len()
}

const CREATE_STOP: &[Step] = &[
    step(Event::CreateContainer, "a"),
    Step { event: Event::CreateContainer, object: "b", commits: true },
    step(Event::StopContainer, "a"),
    step(Event::RemoveContainer, "a"),
];

const POD: &[Step] = &[
    step(Event::RunPodSandbox, "pod"),
    Step { event: Event::CreateContainer, object: "a", commits: true },
    step(Event::UpdateContainer, "a"),
    Step { event: Event::StopContainer, object: "a", commits: true },
];

#[test]
fn all_interleavings_with_a_plugin_that_joins() {
    for script in [CREATE_STOP, POD] {
        let budget = Budget { joins: 1, ..Budget::default() };
        let states = explore(World::new(&[(1, false), (3, false)], budget), script);
        assert!(states > 500, "{states} states");
    }
}

#[test]
fn all_interleavings_with_a_failure() {
    for script in [CREATE_STOP, POD] {
        let budget = Budget { joins: 1, failures: 1, ..Budget::default() };
        let states = explore(World::new(&[(1, false), (3, false)], budget), script);
        assert!(states > 5_000, "{states} states");
    }
}

#[test]
fn all_interleavings_with_a_plugin_that_leaves() {
    let budget = Budget { joins: 1, leaves: 1, ..Budget::default() };
    let states = explore(World::new(&[(1, false), (3, false)], budget), CREATE_STOP);
    assert!(states > 5_000, "{states} states");
}

const SHORT_LIFE: &[Step] = &[
    step(Event::CreateContainer, "a"),
    step(Event::StopContainer, "a"),
    step(Event::RemoveContainer, "a"),
    Step { event: Event::CreateContainer, object: "b", commits: true },
];

#[test]
fn all_interleavings_with_a_plugin_that_is_not_waited_for() {
    for script in [CREATE_STOP, SHORT_LIFE, POD] {
        for required in [false, true] {
            let budget = Budget { joins: 1, overdue: 1, required, ..Budget::default() };
            let states = explore(World::new(&[(1, false), (3, false)], budget), script);
            assert!(states > 1_000, "{states} states");
        }
    }
}

#[test]
fn all_interleavings_with_a_failure_while_a_plugin_is_not_waited_for() {
    for script in [SHORT_LIFE, POD] {
        let budget = Budget { joins: 1, overdue: 1, failures: 1, ..Budget::default() };
        let states = explore(World::new(&[(1, false), (3, false)], budget), script);
        assert!(states > 5_000, "{states} states");
    }
}

#[test]
fn all_interleavings_with_a_plugin_that_leaves_while_it_is_not_waited_for() {
    let budget = Budget { joins: 1, overdue: 1, leaves: 1, ..Budget::default() };
    let states = explore(World::new(&[(1, false), (3, false)], budget), SHORT_LIFE);
    assert!(states > 5_000, "{states} states");
}

#[test]
fn all_interleavings_with_three_plugins_one_of_them_concurrent() {
    let budget = Budget { failures: 1, ..Budget::default() };
    let states = explore(World::new(&[(1, false), (2, true), (3, false)], budget), CREATE_STOP);
    assert!(states > 5_000, "{states} states");
}

/// Long runs with everything at once, by a scheduler with a seed.
#[test]
fn random_runs_of_many_requests() {
    const STORM: &[Step] = &[
        step(Event::RunPodSandbox, "p"),
        step(Event::CreateContainer, "a"),
        Step { event: Event::CreateContainer, object: "b", commits: true },
        step(Event::CreateContainer, "c"),
        step(Event::StopContainer, "a"),
        Step { event: Event::UpdateContainer, object: "b", commits: true },
        step(Event::RemoveContainer, "a"),
        step(Event::CreateContainer, "d"),
        Step { event: Event::StopContainer, object: "b", commits: true },
        step(Event::CreateContainer, "e"),
        step(Event::RemoveContainer, "b"),
        step(Event::StopContainer, "c"),
    ];
    for seed in 1..3000_u64 {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let required = seed % 3 == 0;
        let budget = Budget { failures: 3, leaves: 1, joins: 3, overdue: 2, required };
        let plugins = [(1, false), (2, seed % 2 == 0), (3, false)];
        let mut world = World::new(&plugins[..1 + random.below(3)], budget);
        loop {
            let choices = world.choices(STORM);
            if choices.iter().all(Choice::is_optional) {
                break;
            }
            let choice = choices[random.below(choices.len())];
            world.take(choice, STORM);
        }
        world.check_end();
    }
}

/// xorshift: the same runs on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }
}
