//! What children tell, and what follows from it.

use std::sync::Arc;

use base::{Chain, Id, Kind};
use jiff::Timestamp;
use shim_client::{Buried, Exit, Shim, ShimError, TaskState};
use store::{Record, Table};

use super::{
    Ask, FIRST_RETRY, Life, News, Owner, Reply, doubled, report,
    slot::{Slot, send},
};
use crate::{
    container::{Started, limits::Changed},
    controller::{self, Controller, Keeper},
    error::{EngineError, Result},
    phase::{ContainerEvent, ContainerPhase, PodEvent, PodPhase, Reason},
    pod::update::PodLimits,
    record::{ContainerRecord, PodRecord},
    shared::Shared,
    steps::Failure,
};

impl Owner {
    pub(super) async fn on_news(&mut self, news: News) {
        match news {
            News::PodMade { made } => self.pod_made(made).await,
            News::ContainerMade { id, name, made } => self.container_made(id, &name, made).await,
            News::Started { id, started } => self.started(id, started).await,
            News::Exited { id, exit } => self.exited(id, exit).await,
            News::Vanished { id } => self.vanished(id, Reason::Unknown).await,
            News::Updated { id, updated } => self.updated(id, updated).await,
            News::Amended { id, amended, reply } => {
                super::slot::send(reply, self.save_limits(id, amended).await);
            }
            News::Checkpointed { id, done } => self.checkpointed(id, done).await,
            News::StopTold { id, told } => self.stop_told(id, told).await,
            News::Removed { id, removed } => self.removed(id, removed).await,
            News::ShimDied => self.shim_died().await,
            News::ShimAnswers { shim, tasks } => self.shim_answers(shim, &tasks).await,
            News::StartsOverdue => self.starts_overdue().await,
            News::BuryAgain => self.bury_again(),
            News::Buried { buried } => self.buried(buried).await,
            News::PodUpdated { updated, reply } => self.pod_updated(updated, reply).await,
            News::PodStopped { stopped } => self.pod_stopped(stopped).await,
            News::PodRemoved { removed } => self.pod_removed(removed),
            News::Expired { container } => self.expired(container).await,
        }
    }

    // === made ===

    async fn pod_made(&mut self, made: Result<(Box<PodRecord>, Arc<Shim>), Box<Failure>>) {
        let name = self.pod.request.name.to_string();
        let outcome = match made {
            Ok((pod, shim)) => {
                self.shared.live.set_shim(pod.id, Arc::clone(&shim));
                self.watch_shim(&shim);
                self.pod = Arc::new(*pod);
                Ok(())
            }
            Err(failure) => {
                report_leftovers(&failure.leftovers);
                // Undone; what could not be is tried again when the engine starts anew.
                if failure.leftovers.is_empty() {
                    forget(&self.shared, &self.shared.pods, self.pod.id).await;
                }
                Err(failure.error)
            }
        };
        match &outcome {
            Ok(()) => {
                self.shared.pod_names.made(&name);
                self.expiry = self.expiry(None);
            }
            Err(_) => {
                self.shared.pod_names.release(&name, self.pod.id);
                self.over = true;
            }
        }
        if let Some(tell) = self.tell.take() {
            tell.send_replace(Some(outcome));
        }
    }

    async fn container_made(&mut self, id: Id, name: &str, made: Result<(), Box<Failure>>) {
        let tell = self.slots.get_mut(&id).and_then(|slot| slot.tell.take());
        let outcome = match made {
            Ok(()) => {
                self.shared.container_names.made(name);
                self.expire_later(id);
                Ok(())
            }
            Err(failure) => {
                report_leftovers(&failure.leftovers);
                if failure.leftovers.is_empty() {
                    forget(&self.shared, &self.shared.containers, id).await;
                }
                self.shared.container_names.release(name, id);
                self.slots.remove(&id);
                Err(failure.error)
            }
        };
        if let Some(tell) = tell {
            tell.send_replace(Some(outcome));
        }
        self.work_done(id).await;
    }

    fn expire_later(&mut self, id: Id) {
        let expiry = self.expiry(Some(id));
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.expiry = expiry;
        }
    }

    async fn expired(&mut self, container: Option<Id>) {
        let (reply, _) = tokio::sync::oneshot::channel();
        match container {
            None if !self.pod.delivered => {
                tracing::info!(pod = %self.pod.id, "nobody asked for this pod: undone");
                Box::pin(self.on_ask(Ask::RemovePod { reply })).await;
            }
            Some(id) if self.container(id).is_ok_and(|c| !c.delivered) => {
                tracing::info!(container = %id, "nobody asked for this container: undone");
                self.exclusive(Ask::Remove { id, reply }).await;
            }
            _ => {}
        }
    }

    // === work on containers ===

    async fn started(&mut self, id: Id, started: Result<Started>) {
        let event = match &started {
            Ok(Started { pid, at }) => ContainerEvent::Started { pid: *pid, at: *at },
            Err(error) => ContainerEvent::StartFailed {
                at: Timestamp::now(),
                message: Chain(error).to_string(),
            },
        };
        let saved = self.advance(id, &event).await;
        match (&started, &saved) {
            (Ok(_), saved) => self.watch_exit(id, saved.as_ref().ok().map(Arc::clone)),
            (Err(_), Ok(ended)) => self.tell_end(Arc::clone(ended)),
            (Err(_), Err(_)) => {}
        }
        let result = started.map(drop).and(saved.map(drop));
        if let Some(slot) = self.slots.get_mut(&id) {
            if let Err(error) = &result {
                slot.attaching.refuse(error);
            }
            slot.answer(result);
        }
        self.work_done(id).await;
    }

    async fn exited(&mut self, id: Id, exit: Exit) {
        let code = i32::try_from(exit.code).unwrap_or(crate::phase::UNKNOWN_CODE);
        let event = ContainerEvent::Exited { code, at: exit.at, oom: exit.oom };
        match self.advance(id, &event).await {
            Ok(ended) => {
                self.tell_end(ended);
                self.collect(id);
            }
            Err(error) => {
                let error = Chain(&error);
                tracing::error!(container = %id, %error, "record an exit: tried again");
                self.later(FIRST_RETRY, News::Exited { id, exit });
            }
        }
    }

    /// One that is not on its way out: whoever removes it deletes the record, and a late
    /// word must not bring it back.
    fn kept(&self, id: Id) -> Result<Arc<ContainerRecord>> {
        let record = self.container(id)?;
        let leaves = record.phase == ContainerPhase::Removing
            || matches!(self.pod.phase, PodPhase::Removing);
        if leaves {
            return Err(EngineError::NotFound { what: "container", id: id.to_string() });
        }
        Ok(record)
    }

    /// On record, so that the next daemon does not tell it again.
    async fn stop_told(&mut self, id: Id, told: Result<()>) {
        if told.is_err() {
            return;
        }
        if let Ok(record) = self.kept(id)
            && !record.stop_told
        {
            let record = ContainerRecord { stop_told: true, ..ContainerRecord::clone(&record) };
            if let Err(error) = self.shared.containers.put(record).await {
                let error = EngineError::from(error);
                tracing::warn!(container = %id, error = %Chain(&error), "record what plugins know");
            }
        }
        if let Some(slot) = self.slots.get(&id) {
            slot.life.send_replace(Life::Told);
        }
    }

    /// The exit is on record: the shim need not keep it any longer. Tried until it works.
    fn collect(&self, id: Id) {
        let (shared, pod, stop) = (Arc::clone(&self.shared), self.pod.id, self.shared.stop.clone());
        self.shared.tasks.spawn(async move {
            let mut delay = FIRST_RETRY;
            while let Some(shim) = shared.live.shim(pod) {
                match shim.delete(id.as_str()).await {
                    // What a shim that is gone had is buried with it.
                    Ok(_) | Err(ShimError::NotFound { .. } | ShimError::Gone { .. }) => return,
                    Err(error) => {
                        tracing::warn!(container = %id, error = %Chain(&error), "delete a task");
                    }
                }
                tokio::select! {
                    () = tokio::time::sleep(delay) => delay = doubled(delay),
                    () = stop.cancelled() => return,
                }
            }
        });
    }

    async fn updated(&mut self, id: Id, updated: Result<Box<Changed>>) {
        let result = self.save_limits(id, updated).await;
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.answer(result);
        }
        self.work_done(id).await;
    }

    async fn checkpointed(&mut self, id: Id, done: Result<()>) {
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.checkpoint = None;
            slot.answer(done);
        }
        self.work_done(id).await;
    }

    async fn save_limits(&mut self, id: Id, changed: Result<Box<Changed>>) -> Result<()> {
        let changed = changed?;
        let mut container = ContainerRecord::clone(&*self.kept(id)?);
        changed.put_into(&mut container.made);
        self.shared.containers.put(container).await?;
        Ok(())
    }

    async fn removed(&mut self, id: Id, removed: Result<()>) {
        let gone = removed.is_ok();
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.answer(removed);
        }
        if gone {
            for ask in self.slots.remove(&id).map(|slot| slot.queue).unwrap_or_default() {
                refuse_gone(ask, id);
            }
        }
        self.work_done(id).await;
    }

    /// The next in the queue of `id`, and the end of the pod if that was waited for.
    async fn work_done(&mut self, id: Id) {
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.busy = false;
        }
        while let Some(next) = self.slots.get_mut(&id).and_then(Slot::next) {
            Box::pin(self.on_ask(next)).await;
        }
        self.end().await;
    }

    // === limits of the pod ===

    async fn pod_updated(&mut self, updated: Result<Box<PodLimits>>, reply: Reply<()>) {
        self.updates.running = false;
        let saved = match updated {
            // Its record may be gone by now.
            Ok(_) if self.pod.phase == PodPhase::Removing => Err(self.state_error("change it")),
            Ok(limits) => {
                let PodLimits { overhead, resources } = *limits;
                let pod = PodRecord { overhead, resources, ..PodRecord::clone(&self.pod) };
                self.save_pod(pod).await
            }
            Err(error) => Err(error),
        };
        send(reply, saved);
        self.next_update();
    }

    // === the shim ===

    async fn shim_died(&mut self) {
        // Stopped pods have no shim; that of one being stopped is expected to end.
        if self.ending.running || !matches!(self.pod.phase, PodPhase::Ready) {
            return;
        }
        // Shims that are not ours write theirs elsewhere.
        let log = self.shared.layout.pod(&self.pod.id).join("shim.log");
        let log = log.exists().then(|| tracing::field::display(log.display()));
        tracing::warn!(pod = %self.pod.id, log, "the pod's shim died, or its sandbox");
        self.lose_shim().await;
    }

    /// Only with the shim ends a runtime that it called and that does not come back.
    async fn starts_overdue(&mut self) {
        self.ending.patient = false;
        let hangs = self.slots.keys().any(|id| self.starting(*id));
        if self.is_ending() && hangs && self.pod.phase.is_ready() {
            tracing::warn!(pod = %self.pod.id, "a start hangs while the pod is to stop");
            self.lose_shim().await;
        }
    }

    async fn lose_shim(&mut self) {
        self.shared.live.drop_shim(self.pod.id);
        if let Err(error) = self.advance_pod(&PodEvent::Lost { at: Timestamp::now() }).await {
            tracing::error!(pod = %self.pod.id, error = %Chain(&error), "record a lost pod");
        }
        self.bury();
    }

    fn bury(&mut self) {
        self.burying = true;
        let (shared, pod) = (Arc::clone(&self.shared), Arc::clone(&self.pod));
        let work = async move { controller::bury(&shared, &pod).await };
        self.child("bury", work, |buried| News::Buried { buried });
    }

    fn bury_again(&mut self) {
        let lost = matches!(self.pod.phase, PodPhase::Lost { .. });
        if lost && !self.burying && !self.ending.running {
            self.bury();
        }
    }

    async fn buried(&mut self, buried: Result<Vec<Buried>>) {
        self.burying = false;
        match buried {
            Ok(buried) => self.note_ends(&buried).await,
            Err(error) => {
                tracing::error!(pod = %self.pod.id, error = %Chain(&error), "bury: tried again");
                let delay = self.burial_retry;
                self.burial_retry = doubled(delay);
                self.later(delay, News::BuryAgain);
            }
        }
        self.end().await;
    }

    async fn note_ends(&mut self, buried: &[Buried]) {
        let live: Vec<_> = self.slots.keys().copied().collect();
        for id in live {
            // A start that is still in flight tells by itself.
            if self.starting(id) || !self.container(id).is_ok_and(|c| c.phase.is_live()) {
                continue;
            }
            let exit = buried.iter().find(|b| b.id == id.as_str()).and_then(|b| b.exit);
            match exit {
                Some(exit) => self.exited(id, exit).await,
                None => self.vanished(id, Reason::ShimLost).await,
            }
        }
    }

    /// What it says counts, for containers that nobody could tell about meanwhile.
    async fn shim_answers(&mut self, shim: Arc<Shim>, tasks: &[TaskState]) {
        if self.ending.running || self.burying || !self.pod.phase.is_ready() {
            return;
        }
        tracing::info!(pod = %self.pod.id, "the pod's shim answers again");
        for container in self.shared.containers_of(self.pod.id) {
            let task = tasks.iter().find(|task| task.id == container.id.as_str());
            let Some(event) = crate::recover::told(&container.phase, task) else { continue };
            match self.advance(container.id, &event).await {
                Ok(now) if matches!(now.phase, ContainerPhase::Exited(_)) => self.tell_end(now),
                Ok(_) => {}
                Err(error) => {
                    tracing::error!(container = %container.id, error = %Chain(&error), "take over");
                }
            }
        }
        self.watch(&shim);
    }

    async fn vanished(&mut self, id: Id, reason: Reason) {
        let event = ContainerEvent::Vanished { at: Timestamp::now(), reason };
        match self.advance(id, &event).await {
            Ok(ended) => self.tell_end(ended),
            Err(error) => tracing::error!(container = %id, error = %Chain(&error), "record an end"),
        }
    }

    // === the end of the pod ===

    async fn pod_stopped(&mut self, stopped: Result<Vec<Buried>>) {
        self.ending.running = false;
        let result = match stopped {
            Ok(buried) => {
                self.note_ends(&buried).await;
                self.save_stopped().await
            }
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => self.end().await,
            Err(error) => self.fail_end(&error),
        }
    }

    async fn save_stopped(&mut self) -> Result<()> {
        let phase = self.pod.phase.on(&PodEvent::Stopped { at: Timestamp::now() })?;
        let mut pod = PodRecord { phase, ..PodRecord::clone(&self.pod) };
        if !pod.ips.is_empty() {
            pod.last_ips = std::mem::take(&mut pod.ips);
        }
        self.save_pod(pod).await
    }

    fn pod_removed(&mut self, removed: Result<()>) {
        match removed {
            Ok(()) => {
                self.over = true;
                for reply in self.ending.remove.drain(..) {
                    send(reply, Ok(()));
                }
            }
            Err(error) => self.fail_end(&error),
        }
    }

    // === after a restart ===

    /// The records were brought up to date by recovery: what runs is watched again.
    pub(super) fn resume(&mut self, shim: Option<Arc<Shim>>) {
        for container in self.shared.containers_of(self.pod.id) {
            let ended = matches!(container.phase, ContainerPhase::Exited(_));
            let slot = Slot::default();
            if ended && container.stop_told {
                slot.life.send_replace(Life::Told);
            }
            self.slots.insert(container.id, slot);
            if ended && !container.stop_told {
                self.tell_end(container);
            }
        }
        match shim {
            Some(shim) => self.watch(&shim),
            None if self.pod.phase.is_ready() => self.reconnect(),
            None => {
                self.settle_checkpoints();
                // Recovery may have failed to clean up after a lost shim; of others, nothing.
                self.later(FIRST_RETRY, News::BuryAgain);
            }
        }
        if !self.pod.delivered {
            self.expiry = self.expiry(None);
        }
        for container in self.shared.containers_of(self.pod.id) {
            if !container.delivered {
                self.expire_later(container.id);
            }
        }
    }
}

impl Owner {
    fn watch(&mut self, shim: &Arc<Shim>) {
        self.shared.live.set_shim(self.pod.id, Arc::clone(shim));
        self.watch_shim(shim);
        self.settle_checkpoints();
        for container in self.shared.containers_of(self.pod.id) {
            match container.phase {
                ContainerPhase::Running { .. } => self.watch_exit(container.id, None),
                ContainerPhase::Exited(_) => self.collect(container.id),
                _ => {}
            }
        }
    }

    /// Tries until a shim that did not answer does, or turns out to be gone.
    fn reconnect(&self) {
        let (shared, pod, me) = (Arc::clone(&self.shared), Arc::clone(&self.pod), self.me.clone());
        self.shared.tasks.spawn(async move {
            let mut delay = FIRST_RETRY;
            while me.upgrade().is_some() {
                tokio::select! {
                    () = tokio::time::sleep(delay) => delay = doubled(delay),
                    () = shared.stop.cancelled() => return,
                }
                match reach(&shared, &pod).await {
                    Ok(news) => return report(&me, news).await,
                    Err(error) => {
                        tracing::warn!(pod = %pod.id, error = %Chain(&error), "reach its shim");
                    }
                }
            }
        });
    }
}

async fn reach(shared: &Shared, pod: &PodRecord) -> Result<News> {
    match Keeper::of(shared, pod).connect(pod).await {
        Ok(shim) => Ok(News::ShimAnswers { tasks: shim.list().await?, shim }),
        Err(error) if matches!(error.kind(), Kind::NotFound | Kind::Unavailable) => {
            Ok(News::ShimDied)
        }
        Err(error) => Err(error),
    }
}

/// Of something that was undone. A disk that is too full even for that takes it later.
async fn forget<T: Record<Key = Id>>(shared: &Arc<Shared>, table: &Table<T>, id: Id) {
    if table.delete(&id).await.is_ok() {
        return;
    }
    let (table, stop) = (table.clone(), shared.stop.clone());
    shared.tasks.spawn(async move {
        let mut delay = FIRST_RETRY;
        loop {
            tokio::select! {
                () = tokio::time::sleep(delay) => delay = doubled(delay),
                () = stop.cancelled() => return,
            }
            match table.delete(&id).await {
                Ok(_) => return,
                Err(error) => tracing::warn!(%id, error = %Chain(&error), "forget a record"),
            }
        }
    });
}

impl Slot {
    /// The next of its queue, if nothing is running.
    fn next(&mut self) -> Option<Ask> {
        if self.busy { None } else { self.queue.pop_front() }
    }
}

fn refuse_gone(ask: Ask, id: Id) {
    match ask {
        // Removing what is gone is done.
        Ask::Remove { reply, .. } => send(reply, Ok(())),
        ask => super::asks::refuse(
            ask,
            EngineError::NotFound { what: "container", id: id.to_string() },
        ),
    }
}

fn report_leftovers(leftovers: &[EngineError]) {
    for error in leftovers {
        tracing::error!(error = %Chain(error), "left behind");
    }
}
