//! Changes of other containers, as plugins ask for them: all or none.
//!
//! Containers are taken in the order of their ids. What each has is read before it is
//! changed; a failure that may not be ignored puts all of them back. Evictions come last,
//! since they cannot be taken back. A container that is gone is skipped.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use nri_wire::api::{ContainerEviction, ContainerUpdate, LinuxResources, SynchronizeResponse};
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::{ContainerRecord, Shared, flight::with_resources, sync::SyncError};
use crate::{
    ChangeError, Updates,
    domain::{Domain, DomainError},
    journal::{Evicted, Updated},
    object::Resources,
    owners::Owners,
    peer::Peer,
    watch::{self, Notice, whole},
};

/// The cause of changes that come with no answer.
const UNSOLICITED: &str = "unsolicited";

/// What came of one change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    Changed,
    /// There is no such container, or not any more.
    Unknown,
}

/// What was changed and how it was before, for taking it back.
#[derive(Default)]
pub(super) struct Made {
    before: Vec<(String, Arc<dyn Domain>, Resources)>,
}

impl Shared {
    /// Makes all changes, or none and says why.
    ///
    /// `cause` is the request with whose answer they came.
    pub(super) async fn change(
        &self,
        cause: &str,
        changes: &Updates,
        owners: &Owners,
    ) -> Result<Made, ChangeError> {
        let limits = self.settings.load();
        let (limit, patience) = (limits.change_timeout, limits.eviction_timeout);
        drop(limits);
        let evicted = |id: &str| changes.evictions().iter().any(|e| e.container_id == id);
        let mut updates: Vec<_> =
            changes.updates().filter(|update| !evicted(&update.container_id)).collect();
        updates.sort_by(|a, b| a.container_id.cmp(&b.container_id));

        let one_at_a_time = self.changes.lock().await;
        let (mut made, mut changed) = (Made::default(), Updates::default());
        for update in updates {
            let done = self.update(update, limit, &mut made).await;
            self.tell_update(cause, update, owners, &done);
            let source = match done {
                Ok(Done::Changed) => {
                    changed.push(update.clone());
                    continue;
                }
                Ok(Done::Unknown) => continue,
                Err(source) => source,
            };
            self.metrics.change_failed("update");
            self.remember_failed(update, owners, &source).await;
            match update.ignore_failure {
                true => {
                    let (container, error) = (&update.container_id, whole(&source));
                    warn!(container, error, cause, "update that may fail");
                }
                false => {
                    let container = update.container_id.clone();
                    let not_restored = self.take_back(made, limit).await;
                    return Err(ChangeError { container, doing: "update", source, not_restored });
                }
            }
        }
        drop(one_at_a_time);
        let mut evictions: Vec<_> = changes.evictions().iter().collect();
        evictions.sort_by(|a, b| a.container_id.cmp(&b.container_id));
        for eviction in evictions {
            let by = changes.evictor(&eviction.container_id);
            if let Err(source) = self.evict(by, cause, eviction, patience).await {
                let container = eviction.container_id.clone();
                let not_restored = self.take_back(made, limit).await;
                return Err(ChangeError { container, doing: "evict", source, not_restored });
            }
        }
        self.remember(&changed, owners).await;
        Ok(made)
    }

    async fn update(
        &self,
        update: &ContainerUpdate,
        limit: Duration,
        made: &mut Made,
    ) -> Result<Done, DomainError> {
        let id = update.container_id.as_str();
        let Some(domain) = self.domain_of(id) else { return Ok(Done::Unknown) };
        let asked = update.linux.as_ref().and_then(|linux| linux.resources.as_ref());
        let asked = Resources::from_wire(asked.unwrap_or(&LinuxResources::default()))
            .map_err(|unknown| DomainError::Failed(unknown.into()))?;
        let Some(before) = within(limit, domain.resources(id)).await? else {
            return Ok(Done::Unknown);
        };
        match within(limit, domain.update(id, &asked)).await {
            Ok(()) => {
                made.before.push((id.to_owned(), domain, before));
                Ok(Done::Changed)
            }
            Err(DomainError::Gone) => Ok(Done::Unknown),
            Err(error) => {
                // It may have been changed in part.
                made.before.push((id.to_owned(), domain, before));
                Err(error)
            }
        }
    }

    /// Evicts one container, and tells everybody who keeps books.
    async fn evict(
        &self,
        by: &str,
        cause: &str,
        eviction: &ContainerEviction,
        limit: Duration,
    ) -> Result<(), DomainError> {
        let ContainerEviction { container_id: id, reason } = eviction;
        let Some(domain) = self.domain_of(id) else { return Ok(()) };
        let (pod, container) = self.names_of(id);
        let done = within(limit, domain.evict(id, reason)).await;
        if let Err(DomainError::Gone) = done {
            return Ok(());
        }
        match &done {
            Ok(()) => {
                info!(plugin = by, id, pod, container, reason, cause, "container evicted");
                let (by, reason, cause) = (by.to_owned(), reason.clone(), cause.to_owned());
                domain.evicted(id, &Evicted { by, reason, cause }).await;
            }
            Err(error) => {
                self.metrics.change_failed("evict");
                let error = whole(error);
                warn!(
                    plugin = by,
                    id, pod, container, reason, cause, error, "container not evicted"
                );
            }
        }
        self.feed.tell(|| Notice::Changed {
            container: id.clone(),
            pod_name: pod,
            container_name: container,
            by: by.to_owned(),
            cause: cause.to_owned(),
            asked: watch::asked(None, &[], std::slice::from_ref(eviction)),
            error: done.as_ref().err().map(|error| whole(error)),
        });
        done
    }

    /// Puts back what was there, last first. Returns what could not be, and what it has now.
    pub(super) async fn take_back(
        &self,
        made: Made,
        limit: Duration,
    ) -> Vec<(String, Option<Resources>)> {
        let mut not_restored = Vec::new();
        for (id, domain, before) in made.before.into_iter().rev() {
            match within(limit, domain.update(&id, &before)).await {
                Ok(()) | Err(DomainError::Gone) => {}
                Err(error) => {
                    self.metrics.change_failed("rollback");
                    let error = whole(&error);
                    warn!(container = id, error, "container cannot be put back as it was");
                    let now = within(limit, domain.resources(&id)).await.ok().flatten();
                    not_restored.push((id, now));
                }
            }
        }
        not_restored
    }

    /// Updates and evictions a plugin asks for out of turn: each for itself. Returns the
    /// updates that failed and were not allowed to, and the first eviction that did.
    pub(super) async fn change_each(
        &self,
        by: &str,
        changes: &Updates,
        owners: &Owners,
    ) -> (Vec<ContainerUpdate>, Option<DomainError>) {
        let limits = self.settings.load_full();
        let one_at_a_time = self.changes.lock().await;
        let (mut failed, mut done) = (Vec::new(), Updates::default());
        for update in changes.updates() {
            let result = self.update(update, limits.change_timeout, &mut Made::default()).await;
            self.tell_update(UNSOLICITED, update, owners, &result);
            match result {
                Ok(Done::Changed) => done.push(update.clone()),
                Ok(Done::Unknown) => {}
                Err(error) => {
                    self.metrics.change_failed("update");
                    self.remember_failed(update, owners, &error).await;
                    let (container, error) = (&update.container_id, whole(&error));
                    warn!(plugin = by, container, error, "unsolicited update");
                    if !update.ignore_failure {
                        failed.push(update.clone());
                    }
                }
            }
        }
        drop(one_at_a_time);
        self.remember(&done, owners).await;
        let mut refused = None;
        for eviction in changes.evictions() {
            let limit = limits.eviction_timeout;
            if let Err(error) = self.evict(by, UNSOLICITED, eviction, limit).await {
                refused.get_or_insert(error);
            }
        }
        (failed, refused)
    }

    fn tell_update(
        &self,
        cause: &str,
        update: &ContainerUpdate,
        owners: &Owners,
        done: &Result<Done, DomainError>,
    ) {
        if let Ok(Done::Unknown) = done {
            return;
        }
        self.feed.tell(|| {
            let id = update.container_id.as_str();
            let own = owners.iter().filter(|(container, ..)| *container == id);
            let by: BTreeSet<_> = own.map(|(_, _, plugin)| plugin).collect();
            let (pod_name, container_name) = self.names_of(id);
            Notice::Changed {
                container: id.to_owned(),
                pod_name,
                container_name,
                cause: cause.to_owned(),
                by: by.into_iter().collect::<Vec<_>>().join(","),
                asked: watch::asked(None, std::slice::from_ref(update), &[]),
                error: done.as_ref().err().map(|error| whole(error)),
            }
        });
    }

    /// The domain of a container that exists and runs, or is to.
    fn domain_of(&self, id: &str) -> Option<Arc<dyn Domain>> {
        let domain = {
            let state = self.state.lock();
            state.containers.is_live(id).then(|| state.containers.get(id).cloned())??
        };
        self.domains.read().get(&*domain.domain).cloned()
    }

    /// Containers are known, and will be shown to plugins, as they are now.
    async fn remember(&self, changes: &Updates, owners: &Owners) {
        for update in changes.updates() {
            let id = update.container_id.as_str();
            let Some(updated) = self.note(update, owners) else { continue };
            if let Some(domain) = self.domain_of(id) {
                domain.updated(id, &updated).await;
            }
        }
    }

    /// That an update could not be made is kept, too.
    async fn remember_failed(&self, update: &ContainerUpdate, owners: &Owners, why: &DomainError) {
        let id = update.container_id.as_str();
        let Some(domain) = self.domain_of(id) else { return };
        let asked = update.linux.as_ref().and_then(|linux| linux.resources.clone());
        let updated = {
            let mut state = self.state.lock();
            let journal = state.journals.entry(id.to_owned()).or_default();
            let (asked, error) = (asked.unwrap_or_default(), Some(whole(why)));
            journal.update("plugins", id, asked, owners, error).clone()
        };
        domain.updated(id, &updated).await;
    }

    /// Of a container's pod, and its own; empty where it is not known.
    fn names_of(&self, id: &str) -> (String, String) {
        let state = self.state.lock();
        let Some(container) = state.containers.get(id) else { return Default::default() };
        let pod = state.pods.get(&container.wire.pod_sandbox_id);
        let pod = pod.map(|pod| pod.wire.name.clone()).unwrap_or_default();
        (pod, container.wire.name.clone())
    }

    /// Tells that a plugin was told what exists, pods and containers.
    pub(super) fn tell_synchronized(
        &self,
        peer: &Peer,
        (pods, containers): (usize, usize),
        begun: Instant,
        told: &Result<SynchronizeResponse, SyncError>,
    ) {
        self.feed.tell(|| Notice::Synchronized {
            plugin: peer.id.to_string(),
            pods,
            containers,
            micros: super::flight::micros(begun),
            asked: match told {
                Ok(answer) => watch::asked(None, &answer.update, &[]),
                Err(_) => serde_json::Value::Null,
            },
            error: told.as_ref().err().map(|error| whole(error)),
        });
    }

    fn note(&self, update: &ContainerUpdate, owners: &Owners) -> Option<Updated> {
        let id = update.container_id.as_str();
        let mut state = self.state.lock();
        let record = state.containers.get(id).cloned()?;
        let asked = update.linux.as_ref().and_then(|linux| linux.resources.clone());
        let asked = asked.unwrap_or_default();
        let known = record.wire.linux.as_ref().and_then(|linux| linux.resources.clone());
        let mut resources = known.unwrap_or_default();
        crate::merge::overlay_unclaimed(&mut resources, &asked);
        let wire = Arc::new(with_resources(&record.wire, resources));
        let domain = record.domain.clone();
        state.containers.refresh(id, || ContainerRecord { domain, wire });
        let journal = state.journals.entry(id.to_owned()).or_default();
        Some(journal.update("plugins", id, asked, owners, None).clone())
    }
}

/// No domain is waited for without end.
async fn within<T>(
    limit: Duration,
    call: BoxFuture<'_, Result<T, DomainError>>,
) -> Result<T, DomainError> {
    match timeout(limit, call).await {
        Ok(result) => result,
        Err(_) => Err(DomainError::Failed(format!("not done within {limit:?}").into())),
    }
}
