//! What callers ask of a pod.

use std::sync::Arc;

use base::Id;
use jiff::Timestamp;
use oci::Resources;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    Ask, Begin, LAST_STARTS, Life, News, Owner, Reply, StopWith,
    slot::{Slot, send},
};
use crate::{
    attach::{self, Waiter},
    container::{self, MakeContainer},
    error::{EngineError, Result},
    names::Outcome,
    phase::{ContainerEvent, ContainerPhase, PodEvent, PodPhase},
    pod::{self, MakePod, update::PodLimits},
    record::{ContainerRecord, Made, PinnedImage, PodRecord},
    request::{CheckpointRequest, NewContainer},
    steps,
};

const SIGKILL: u32 = 9;

impl Owner {
    pub(super) fn begin(&mut self, begin: Begin) {
        match begin {
            Begin::Make { tell } => {
                self.tell = Some(tell);
                let patience = self.shared.config.limits.detach;
                let mut plan = MakePod::new(&self.shared, &self.pod, patience);
                let work = async move {
                    let made = steps::run(&mut plan).await;
                    let shim = plan.shim.take();
                    Ok(made.map(|()| (Box::new(plan.pod), shim.expect("the last step makes it"))))
                };
                self.child("run-pod", work, |done| News::PodMade { made: flatten(done) });
            }
            Begin::Recovered { shim } => self.resume(shim),
        }
    }

    pub(super) async fn on_ask(&mut self, ask: Ask) {
        match ask {
            Ask::Create { id, name, request, image, tell } => {
                self.create(id, name, *request, *image, tell);
            }
            Ask::Signal { id, with, reply } => {
                // A start in flight decides first whether there is anything to signal.
                if self.starting(id) {
                    self.queue(id, Ask::Signal { id, with, reply });
                } else {
                    send(reply, self.signal(id, with));
                }
            }
            ask @ (Ask::Start { .. }
            | Ask::Update { .. }
            | Ask::Checkpoint { .. }
            | Ask::Settle { .. }
            | Ask::Remove { .. }) => self.exclusive(ask).await,
            Ask::Amend { id, resources, reply } => self.amend(id, *resources, reply),
            Ask::Evict { id, reason, reply } => self.evict(id, reason, reply).await,
            Ask::Attach { id, waiter, reply } => send(reply, self.attach(id, waiter)),
            Ask::Deliver { container, reply } => send(reply, self.deliver(container).await),
            ask @ Ask::UpdatePod { .. } => {
                self.updates.queue.push_back(ask);
                self.next_update();
            }
            Ask::StopPod { reply } => {
                self.ending.stop.push(reply);
                self.end().await;
            }
            Ask::RemovePod { reply } => {
                self.ending.remove.push(reply);
                self.end().await;
            }
        }
    }

    // === create ===

    fn create(
        &mut self,
        id: Id,
        name: String,
        request: NewContainer,
        image: PinnedImage,
        tell: watch::Sender<Outcome>,
    ) {
        match self.new_record(id, name.clone(), request, image) {
            Ok(container) => {
                let slot = Slot { busy: true, tell: Some(tell), ..Slot::default() };
                let turn = Arc::clone(&slot.turn);
                self.slots.insert(id, slot);
                let mut plan = MakeContainer::new(&self.shared, &self.pod, container, turn);
                let work = async move {
                    let made = steps::run(&mut plan).await;
                    if made.is_ok() {
                        plan.shared.plugins.post_create(&plan.shared, &plan.container).await;
                    }
                    Ok(made)
                };
                self.child("create-container", work, move |done| News::ContainerMade {
                    id,
                    name,
                    made: flatten(done),
                });
            }
            Err(error) => {
                self.shared.container_names.release(&name, id);
                tell.send_replace(Some(Err(error)));
            }
        }
    }

    fn new_record(
        &self,
        id: Id,
        name: String,
        request: NewContainer,
        image: PinnedImage,
    ) -> Result<ContainerRecord> {
        if !self.pod.phase.is_ready() || self.is_ending() {
            return Err(self.state_error("create a container"));
        }
        let log_path = match (&self.pod.request.log_directory, &request.log_path) {
            (Some(dir), Some(path)) => Some(dir.join(path)),
            _ => None,
        };
        Ok(ContainerRecord {
            id,
            pod: self.pod.id,
            name,
            request,
            image,
            phase: ContainerPhase::Making { step: String::new() },
            created_at: Timestamp::now(),
            delivered: false,
            log_path,
            made: Made::default(),
            stop_told: false,
            evicted: None,
        })
    }

    async fn deliver(&mut self, container: Option<Id>) -> Result<()> {
        let Some(id) = container else {
            if !self.pod.delivered {
                let pod = PodRecord { delivered: true, ..PodRecord::clone(&self.pod) };
                self.save_pod(pod).await?;
            }
            self.expiry = None;
            self.shared.pod_names.delivered(&self.pod.request.name.to_string());
            return Ok(());
        };
        let record = self.container(id)?;
        if !record.delivered {
            let record = ContainerRecord { delivered: true, ..ContainerRecord::clone(&record) };
            self.shared.containers.put(record).await?;
        }
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.expiry = None;
        }
        self.shared.container_names.delivered(&record.name);
        Ok(())
    }

    // === exclusive work ===

    pub(super) async fn exclusive(&mut self, ask: Ask) {
        let id = match &ask {
            Ask::Start { id, .. }
            | Ask::Update { id, .. }
            | Ask::Checkpoint { id, .. }
            | Ask::Settle { id }
            | Ask::Remove { id, .. } => *id,
            _ => return,
        };
        match self.slots.get_mut(&id) {
            Some(slot) if slot.busy => slot.queue.push_back(ask),
            Some(_) => match ask {
                Ask::Start { reply, .. } => self.start(id, reply).await,
                Ask::Update { resources, reply, .. } => self.update(id, *resources, reply),
                Ask::Checkpoint { request, reply, .. } => self.checkpoint(id, *request, reply),
                Ask::Settle { .. } => self.settle(id),
                Ask::Remove { reply, .. } => self.remove(id, reply).await,
                _ => {}
            },
            None => refuse(ask, no_container(id)),
        }
    }

    fn queue(&mut self, id: Id, ask: Ask) {
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.queue.push_back(ask);
        }
    }

    fn begin_work(&mut self, id: Id, reply: Option<Reply<()>>) -> &Slot {
        let slot = self.slots.entry(id).or_default();
        slot.busy = true;
        slot.waiting = reply;
        slot
    }

    async fn start(&mut self, id: Id, reply: Reply<()>) {
        let begun = match self.startable(id) {
            Ok(()) => self.advance(id, &ContainerEvent::Starting).await,
            Err(error) => Err(error),
        };
        match begun {
            Ok(container) => {
                let slot = self.begin_work(id, Some(reply));
                let (turn, evicted) = (Arc::clone(&slot.turn), slot.evicted.clone());
                let attaching = Arc::clone(&slot.attaching);
                let shared = Arc::clone(&self.shared);
                let work = container::start::start(shared, container, attaching, turn, evicted);
                self.child("start-container", work, move |started| News::Started { id, started });
            }
            Err(error) => send(reply, Err(error)),
        }
    }

    fn startable(&self, id: Id) -> Result<()> {
        if !self.pod.phase.is_ready() || self.is_ending() {
            return Err(self.state_error("start a container"));
        }
        let phase = &self.container(id)?.phase;
        if *phase != ContainerPhase::Created {
            let state = phase.to_string();
            return Err(EngineError::State { what: "container", id, state, action: "start it" });
        }
        Ok(())
    }

    fn update(&mut self, id: Id, resources: Resources, reply: Reply<()>) {
        match self.container(id) {
            Ok(container) => {
                let turn = Arc::clone(&self.begin_work(id, Some(reply)).turn);
                let shared = Arc::clone(&self.shared);
                let work = container::limits::update(shared, container, resources, turn);
                self.child("update-container", work, move |updated| News::Updated {
                    id,
                    updated: updated.map(Box::new),
                });
            }
            Err(error) => send(reply, Err(error)),
        }
    }

    fn checkpoint(&mut self, id: Id, request: CheckpointRequest, reply: Reply<()>) {
        match self.checkpointable(id) {
            Ok(container) => {
                let broken_off = self.begin_checkpoint(id, Some(reply));
                let shared = Arc::clone(&self.shared);
                let work =
                    container::checkpoint::checkpoint(shared, container, request, broken_off);
                let news = move |done| News::Checkpointed { id, done };
                self.child("checkpoint-container", work, news);
            }
            Err(error) => send(reply, Err(error)),
        }
    }

    fn checkpointable(&self, id: Id) -> Result<Arc<ContainerRecord>> {
        if !self.pod.phase.is_ready() || self.is_ending() {
            return Err(self.state_error("checkpoint a container"));
        }
        let container = self.container(id)?;
        container::checkpoint::check_phase(&container)?;
        Ok(container)
    }

    fn begin_checkpoint(&mut self, id: Id, reply: Option<Reply<()>>) -> CancellationToken {
        let broken_off = CancellationToken::new();
        self.begin_work(id, reply);
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.checkpoint = Some(broken_off.clone());
        }
        broken_off
    }

    /// What checkpoints left that an earlier daemon had begun.
    pub(super) fn settle_checkpoints(&mut self) {
        for container in self.shared.containers_of(self.pod.id) {
            let id = container.id;
            if !self.shared.layout.checkpoint(&id).exists() {
                continue;
            }
            match self.slots.get_mut(&id) {
                Some(slot) if slot.busy => slot.queue.push_back(Ask::Settle { id }),
                _ => self.settle(id),
            }
        }
    }

    fn settle(&mut self, id: Id) {
        let Ok(container) = self.container(id) else { return };
        self.begin_checkpoint(id, None);
        let work = container::checkpoint::settle(Arc::clone(&self.shared), container);
        self.child("settle-checkpoint", work, move |done| News::Checkpointed { id, done });
    }

    async fn remove(&mut self, id: Id, reply: Reply<()>) {
        match self.advance(id, &ContainerEvent::Remove).await {
            Ok(container) => {
                self.begin_work(id, Some(reply));
                let work = container::remove::remove(Arc::clone(&self.shared), container);
                self.child("remove-container", work, move |removed| News::Removed { id, removed });
            }
            Err(error) => send(reply, Err(error)),
        }
    }

    // === limits of the pod ===

    pub(super) fn next_update(&mut self) {
        if self.updates.running {
            return;
        }
        let Some(Ask::UpdatePod { overhead, resources, reply }) = self.updates.queue.pop_front()
        else {
            return;
        };
        self.updates.running = true;
        let now = &self.pod;
        let limits = PodLimits {
            overhead: overhead.map_or_else(|| now.overhead.clone(), |new| *new),
            resources: resources.map_or_else(|| now.resources.clone(), |new| *new),
        };
        let (shared, pod) = (Arc::clone(&self.shared), Arc::clone(&self.pod));
        let work = pod::update::update(shared, pod, Box::new(limits));
        self.child("update-pod", work, move |updated| News::PodUpdated { updated, reply });
    }

    // === what plugins want ===

    /// Beside any other work: that may be waiting for the very plugin that asks.
    fn amend(&mut self, id: Id, resources: nri::Resources, reply: Reply<()>) {
        let (container, turn) = match (self.container(id), self.slots.get(&id)) {
            (Ok(container), Some(slot)) => (container, Arc::clone(&slot.turn)),
            _ => return send(reply, Err(no_container(id))),
        };
        let shared = Arc::clone(&self.shared);
        let work =
            async move { container::limits::change(&shared, &container, &resources, &turn).await };
        self.child("amend-container", work, move |amended| News::Amended {
            id,
            amended: amended.map(Box::new),
            reply,
        });
    }

    /// The reason is on record before the deed, so that it is told whoever sees the end.
    async fn evict(&mut self, id: Id, reason: String, reply: Reply<Option<watch::Receiver<Life>>>) {
        let Ok(container) = self.container(id) else {
            return send(reply, Err(no_container(id)));
        };
        // Its creation is about to end.
        if matches!(container.phase, ContainerPhase::Making { .. }) {
            return self.queue(id, Ask::Evict { id, reason, reply });
        }
        if !container.phase.is_live() && container.phase != ContainerPhase::Created {
            return send(reply, Ok(None));
        }
        let marked =
            ContainerRecord { evicted: Some(reason), ..ContainerRecord::clone(&container) };
        let ended = match self.shared.containers.put(marked).await {
            Ok(_) => self.end_evicted(id, &container.phase).await,
            Err(error) => Err(error.into()),
        };
        send(reply, ended);
    }

    async fn end_evicted(
        &mut self,
        id: Id,
        phase: &ContainerPhase,
    ) -> Result<Option<watch::Receiver<Life>>> {
        if *phase == ContainerPhase::Created {
            let ended = self.advance(id, &ContainerEvent::Evicted { at: Timestamp::now() }).await?;
            self.tell_end(ended);
            let (what, state) = ("container", "evicted".to_owned());
            let never = EngineError::State { what, id, state, action: "attach to it" };
            self.attaching(id).refuse(&never);
            return Ok(None);
        }
        if let Some(slot) = self.slots.get(&id) {
            slot.evicted.cancel();
        }
        self.signal(id, StopWith::Kill)
    }

    // === streams ===

    fn attaching(&self, id: Id) -> Arc<attach::Queue> {
        self.slots.get(&id).map(|slot| Arc::clone(&slot.attaching)).unwrap_or_default()
    }

    fn attach(&self, id: Id, waiter: Waiter) -> Result<()> {
        let begins = match self.container(id)?.phase {
            ContainerPhase::Making { .. } | ContainerPhase::Created => true,
            ContainerPhase::Starting => self.starting(id),
            _ => false,
        };
        let late = if begins { self.attaching(id).push(waiter) } else { Some(waiter) };
        if let Some(waiter) = late {
            let shim = self.shared.shim(self.pod.id)?;
            self.shared.tasks.spawn(async move { waiter.attach(&shim, id.as_str()).await });
        }
        Ok(())
    }

    // === signals ===

    pub(super) fn starting(&self, id: Id) -> bool {
        let busy = self.slots.get(&id).is_some_and(|slot| slot.busy);
        busy && self.container(id).is_ok_and(|c| c.phase == ContainerPhase::Starting)
    }

    /// Tells it to end, if it runs, and how to learn that it did.
    pub(super) fn signal(
        &mut self,
        id: Id,
        with: StopWith,
    ) -> Result<Option<watch::Receiver<Life>>> {
        let container = self.container(id)?;
        let Some(slot) = self.slots.get_mut(&id).filter(|_| container.phase.is_live()) else {
            return Ok(None);
        };
        let exited = slot.life.subscribe();
        let signal = match with {
            StopWith::Kill => SIGKILL,
            StopWith::Politeness if slot.signalled => return Ok(Some(exited)),
            StopWith::Politeness => {
                slot.signalled = true;
                stop_signal(&container)
            }
        };
        if self.shared.live.shim(self.pod.id).is_none() && self.is_being_ended() {
            return Ok(Some(exited));
        }
        let shim = self.shared.shim(self.pod.id)?;
        let id = container.id;
        self.shared.tasks.spawn(async move {
            let all = with == StopWith::Kill;
            if let Err(error) = shim.kill(id.as_str(), signal, all).await {
                tracing::warn!(container = %id, signal, error = %base::Chain(&error), "kill");
            }
        });
        Ok(Some(exited))
    }

    /// Whether all containers of the pod are being killed, with nobody having to tell them: with
    /// the pod, or as what a shim left that is gone.
    fn is_being_ended(&self) -> bool {
        self.burying || self.ending.running || matches!(self.pod.phase, PodPhase::Lost { .. })
    }

    // === the end of the pod ===

    pub(super) fn is_ending(&self) -> bool {
        !self.ending.stop.is_empty() || !self.ending.remove.is_empty()
    }

    /// Takes the next step towards the end that somebody waits for, once no exclusive work
    /// is running.
    pub(super) async fn end(&mut self) {
        if !self.is_ending() || self.ending.running || self.burying {
            return;
        }
        if self.slots.values().any(|slot| slot.busy) {
            return self.await_starts();
        }
        let stopped = matches!(self.pod.phase, PodPhase::Stopped { .. } | PodPhase::Removing);
        if !stopped {
            self.ending.running = true;
            let running = self.running();
            let work = pod::stop::stop(Arc::clone(&self.shared), Arc::clone(&self.pod), running);
            return self.child("stop-pod", work, |stopped| News::PodStopped { stopped });
        }
        for reply in self.ending.stop.drain(..) {
            send(reply, Ok(()));
        }
        if self.ending.remove.is_empty() {
            return;
        }
        if let Err(error) = self.advance_pod(&PodEvent::Remove).await {
            return self.fail_end(&error);
        }
        self.ending.running = true;
        let work = pod::remove::remove(Arc::clone(&self.shared), Arc::clone(&self.pod));
        self.child("remove-pod", work, |removed| News::PodRemoved { removed });
    }

    /// Kills what is being checkpointed: the pod would kill it next, and criu cannot be hurried
    /// in another way that leaves nothing running.
    fn break_off_checkpoints(&mut self) {
        let running =
            self.slots.iter().filter_map(|(id, slot)| Some((*id, slot.checkpoint.clone()?)));
        for (id, broken_off) in running.collect::<Vec<_>>() {
            if broken_off.is_cancelled() {
                continue;
            }
            broken_off.cancel();
            if let Err(error) = self.signal(id, StopWith::Kill) {
                tracing::warn!(container = %id, error = %base::Chain(&error), "kill");
            }
        }
    }

    /// A start may hang for as long as its OCI runtime does; the end of a pod may not.
    fn await_starts(&mut self) {
        self.break_off_checkpoints();
        let starts = self.slots.keys().any(|id| self.starting(*id));
        if starts && !self.ending.patient {
            self.ending.patient = true;
            self.later(LAST_STARTS, News::StartsOverdue);
        }
    }

    fn running(&self) -> pod::Running {
        let live = self.slots.iter().filter(|(id, _)| {
            self.container(**id).is_ok_and(|container| container.phase.is_live())
        });
        live.map(|(id, slot)| (id.to_string(), slot.life.subscribe())).collect()
    }

    pub(super) fn fail_end(&mut self, error: &EngineError) {
        let ending = &mut self.ending;
        ending.running = false;
        for reply in ending.stop.drain(..).chain(ending.remove.drain(..)) {
            send(reply, Err(error.clone()));
        }
    }
}

fn stop_signal(container: &ContainerRecord) -> u32 {
    const SIGTERM: u32 = 15;
    let named = container.made.stop_signal.parse::<oci::Signal>();
    named.map_or(SIGTERM, |signal| signal.number().into())
}

/// A child that died tells so as if its plan had failed.
fn flatten<T>(
    done: Result<std::result::Result<T, Box<steps::Failure>>>,
) -> std::result::Result<T, Box<steps::Failure>> {
    done.unwrap_or_else(|error| Err(Box::new(steps::Failure { error, leftovers: Vec::new() })))
}

fn no_container(id: Id) -> EngineError {
    EngineError::NotFound { what: "container", id: id.to_string() }
}

pub(super) fn refuse(ask: Ask, error: EngineError) {
    match ask {
        Ask::Evict { reply, .. } => send(reply, Err(error)),
        Ask::Start { reply, .. }
        | Ask::Update { reply, .. }
        | Ask::Checkpoint { reply, .. }
        | Ask::Remove { reply, .. } => send(reply, Err(error)),
        Ask::Signal { reply, .. } => send(reply, Err(error)),
        _ => {}
    }
}
