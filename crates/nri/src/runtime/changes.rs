//! Changes of other containers, as plugins ask for them: all or none.
//!
//! Containers are taken in the order of their ids. What each has is read before it is
//! changed; a failure that may not be ignored puts all of them back. Evictions come last,
//! since they cannot be taken back. A container that is gone is skipped.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use nri_wire::api::{ContainerEviction, ContainerUpdate, LinuxResources};
use tokio::time::timeout;
use tracing::warn;

use super::{ContainerRecord, Shared, flight::with_resources};
use crate::{
    ChangeError, Updates,
    domain::{Domain, DomainError},
    journal::Updated,
    object::Resources,
    owners::Owners,
    watch::{self, Notice, whole},
};

/// What was changed and how it was before, for taking it back.
#[derive(Default)]
pub(super) struct Made {
    before: Vec<(String, Arc<dyn Domain>, Resources)>,
}

impl Shared {
    /// Makes all changes, or none and says why.
    pub(super) async fn change(
        &self,
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
        let mut made = Made::default();
        for update in updates {
            let done = self.update(update, limit, &mut made).await;
            self.tell_update(update, owners, &done);
            match done {
                Ok(()) => {}
                Err(source) if update.ignore_failure => {
                    self.metrics.change_failed("update");
                    warn!(container = update.container_id, %source, "update that may fail");
                }
                Err(source) => {
                    self.metrics.change_failed("update");
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
            let done = self.evict(&eviction.container_id, &eviction.reason, patience).await;
            self.tell_eviction(eviction, &done);
            if let Err(source) = done {
                let container = eviction.container_id.clone();
                let not_restored = self.take_back(made, limit).await;
                return Err(ChangeError { container, doing: "evict", source, not_restored });
            }
        }
        self.remember(changes, owners).await;
        Ok(made)
    }

    async fn update(
        &self,
        update: &ContainerUpdate,
        limit: Duration,
        made: &mut Made,
    ) -> Result<(), DomainError> {
        let id = update.container_id.as_str();
        let Some(domain) = self.domain_of(id) else { return Ok(()) };
        let asked = update.linux.as_ref().and_then(|linux| linux.resources.as_ref());
        let asked = Resources::from_wire(asked.unwrap_or(&LinuxResources::default()))
            .map_err(|unknown| DomainError::Failed(unknown.into()))?;
        let Some(before) = within(limit, domain.resources(id)).await? else { return Ok(()) };
        match within(limit, domain.update(id, &asked)).await {
            Ok(()) => {
                made.before.push((id.to_owned(), domain, before));
                Ok(())
            }
            Err(DomainError::Gone) => Ok(()),
            Err(error) => {
                // It may have been changed in part.
                made.before.push((id.to_owned(), domain, before));
                Err(error)
            }
        }
    }

    async fn evict(&self, id: &str, reason: &str, limit: Duration) -> Result<(), DomainError> {
        let Some(domain) = self.domain_of(id) else { return Ok(()) };
        match within(limit, domain.evict(id, reason)).await {
            Ok(()) | Err(DomainError::Gone) => Ok(()),
            Err(error) => {
                self.metrics.change_failed("evict");
                Err(error)
            }
        }
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
                    warn!(container = id, %error, "container cannot be put back as it was");
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
            self.tell_update(update, owners, &result);
            match result {
                Ok(()) => done.push(update.clone()),
                Err(error) => {
                    self.metrics.change_failed("update");
                    warn!(plugin = by, container = update.container_id, %error, "unsolicited update");
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
            let (id, reason) = (&eviction.container_id, &eviction.reason);
            let done = self.evict(id, reason, limits.eviction_timeout).await;
            self.tell_eviction(eviction, &done);
            if let Err(error) = done {
                warn!(plugin = by, container = id, %error, "unsolicited eviction");
                refused.get_or_insert(error);
            }
        }
        (failed, refused)
    }

    fn tell_update(
        &self,
        update: &ContainerUpdate,
        owners: &Owners,
        done: &Result<(), DomainError>,
    ) {
        self.feed.tell(|| {
            let id = update.container_id.as_str();
            let own = owners.iter().filter(|(container, ..)| *container == id);
            let by: BTreeSet<_> = own.map(|(_, _, plugin)| plugin).collect();
            Notice::Changed {
                container: id.to_owned(),
                by: by.into_iter().collect::<Vec<_>>().join(","),
                asked: watch::asked(None, std::slice::from_ref(update), &[]),
                error: done.as_ref().err().map(|error| whole(error)),
            }
        });
    }

    fn tell_eviction(&self, eviction: &ContainerEviction, done: &Result<(), DomainError>) {
        self.feed.tell(|| Notice::Changed {
            container: eviction.container_id.clone(),
            by: String::new(),
            asked: watch::asked(None, &[], std::slice::from_ref(eviction)),
            error: done.as_ref().err().map(|error| whole(error)),
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
        Some(journal.update("plugins", id, asked, owners).clone())
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
