//! Containers as plugins change and evict them.
//!
//! These calls come while NRI is being asked about other containers, maybe of the same pod,
//! and what is asked about them waits for these calls to end. So none of them waits for a
//! start, an update or a removal that may be waiting for plugins: an update takes only its
//! turn at the container's limits, which is never held while plugins are asked about what
//! exists, and an eviction breaks off a start.

use std::sync::{Arc, Weak};

use base::{Id, Kind};
use futures_util::future::BoxFuture;
use nri::{Domain, DomainError, Evicted, Resources, Updated};
use tokio::sync::oneshot;

use crate::{
    container::limits,
    error::{EngineError, Result},
    files::blocking,
    owner::{Ask, Life, Message, Reply},
    record::ContainerRecord,
    shared::Shared,
};

/// What plugins call the containers of the kubelet.
pub(crate) const K8S: &str = "k8s.io";

pub(super) struct Containers {
    /// The plugins are a part of it.
    shared: Weak<Shared>,
}

impl Containers {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::downgrade(shared) }
    }

    fn find(&self, container: &str) -> Result<(Arc<Shared>, Arc<ContainerRecord>)> {
        let shared = self.shared.upgrade().ok_or(EngineError::Closing)?;
        let gone = || EngineError::NotFound { what: "container", id: container.to_owned() };
        let id: Id = container.parse().map_err(|_| gone())?;
        let record = shared.containers.get(&id).ok_or_else(gone)?;
        Ok((shared, record))
    }

    async fn read(&self, container: &str) -> Result<Resources> {
        let (shared, record) = self.find(container)?;
        blocking(move || limits::read(&shared, &record)).await
    }

    async fn amend(&self, container: &str, resources: &Resources) -> Result<()> {
        let (shared, record) = self.find(container)?;
        let (id, resources) = (record.id, Box::new(resources.clone()));
        ask(&shared, record.pod, |reply| Ask::Amend { id, resources, reply }).await
    }

    async fn end(&self, container: &str, reason: &str) -> Result<()> {
        let (shared, record) = self.find(container)?;
        let (id, reason) = (record.id, reason.to_owned());
        let ended = ask(&shared, record.pod, |reply| Ask::Evict { id, reason, reply }).await?;
        if let Some(mut life) = ended {
            life.wait_for(|life| *life >= Life::Ended).await.map_err(|_| EngineError::Closing)?;
        }
        Ok(())
    }
}

async fn ask<T>(shared: &Shared, pod: Id, ask: impl FnOnce(Reply<T>) -> Ask) -> Result<T> {
    let gone = || EngineError::NotFound { what: "pod", id: pod.to_string() };
    let (reply, answer) = oneshot::channel();
    let owner = shared.owner(pod)?;
    owner.send(Message::Ask(ask(reply))).await.map_err(|_| gone())?;
    answer.await.map_err(|_| gone())?
}

fn told(error: EngineError) -> DomainError {
    match error.kind() {
        Kind::NotFound => DomainError::Gone,
        _ => DomainError::Failed(Box::new(error)),
    }
}

impl Domain for Containers {
    fn name(&self) -> &str {
        K8S
    }

    fn resources<'a>(
        &'a self,
        container: &'a str,
    ) -> BoxFuture<'a, Result<Option<Resources>, DomainError>> {
        Box::pin(async move {
            match self.read(container).await.map_err(told) {
                Ok(resources) => Ok(Some(resources)),
                Err(DomainError::Gone) => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    fn update<'a>(
        &'a self,
        container: &'a str,
        resources: &'a Resources,
    ) -> BoxFuture<'a, Result<(), DomainError>> {
        Box::pin(async move { self.amend(container, resources).await.map_err(told) })
    }

    fn evict<'a>(
        &'a self,
        container: &'a str,
        reason: &'a str,
    ) -> BoxFuture<'a, Result<(), DomainError>> {
        Box::pin(async move { self.end(container, reason).await.map_err(told) })
    }

    fn updated<'a>(&'a self, container: &'a str, update: &'a Updated) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Ok((shared, record)) = self.find(container) {
                super::remember_update(&shared, record.id, update).await;
            }
        })
    }

    fn evicted<'a>(&'a self, container: &'a str, evicted: &'a Evicted) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Ok((shared, record)) = self.find(container) {
                super::remember_eviction(&shared, record.id, evicted).await;
            }
        })
    }
}
