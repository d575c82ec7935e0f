//! What keeps a pod's namespaces and runs its containers.
//!
//! ```text
//!   Own       one `longshore-shim` per pod, without a pause container
//!   TaskOnly  a shim that others wrote, which knows only tasks: the pod is the first of them
//!   Service   one that makes the pod itself, by its Sandbox service
//! ```
//! The engine drives every pod through one trait, by the handler of the pod while it is made and
//! by what it finds in the pod's directory from then on: a handler may have left the configuration.

mod foreign;
mod own;
mod service;
mod task_only;

use std::sync::Arc;

use shim_client::{Buried, Foreign, Sandboxer, Shim, ShimError};

use crate::{config::SandboxKind, error::Result, record::PodRecord, shared::Shared};
use own::Own;
use service::Service;
use task_only::TaskOnly;

/// A pod's keeper. All of it is idempotent: a call that was cut off is made again.
pub(crate) trait Controller: Send + Sync {
    /// Makes the namespaces, and what answers for the pod if that needs no network. The pod's
    /// directory exists.
    fn create(&self, pod: &PodRecord) -> impl Future<Output = Result<Option<Arc<Shim>>>> + Send;

    /// What answers for the pod, now that it is on its networks.
    fn start(&self, pod: &PodRecord) -> impl Future<Output = Result<Arc<Shim>>> + Send;

    /// Finds what an earlier daemon started; an error of kind `NotFound` if it is gone.
    fn connect(&self, pod: &PodRecord) -> impl Future<Output = Result<Arc<Shim>>> + Send;
}

/// The controller of a pod.
#[derive(Debug)]
pub(crate) enum Keeper<'a> {
    Own(Own<'a>),
    TaskOnly(TaskOnly<'a>),
    Service(Service<'a>),
}

impl<'a> Keeper<'a> {
    /// Of a pod that is being made.
    pub(crate) fn by_handler(shared: &'a Shared, pod: &PodRecord) -> Result<Self> {
        let shim = shared.handler(&pod.handler)?.shim.as_ref();
        Ok(match shim.map(|shim| shim.sandbox) {
            None => Self::Own(Own(shared)),
            Some(SandboxKind::Task) => Self::TaskOnly(TaskOnly(shared)),
            Some(SandboxKind::Service) => Self::Service(Service(shared)),
        })
    }

    /// Of a pod that was made.
    pub(crate) fn of(shared: &'a Shared, pod: &PodRecord) -> Self {
        match Foreign::sandboxer_in(&shared.layout.pod(&pod.id)) {
            None => Self::Own(Own(shared)),
            Some(Sandboxer::Task) => Self::TaskOnly(TaskOnly(shared)),
            Some(Sandboxer::Service(_)) => Self::Service(Service(shared)),
        }
    }
}

impl Controller for Keeper<'_> {
    async fn create(&self, pod: &PodRecord) -> Result<Option<Arc<Shim>>> {
        match self {
            Self::Own(own) => own.create(pod).await,
            Self::TaskOnly(task) => task.create(pod).await,
            Self::Service(service) => service.create(pod).await,
        }
    }

    async fn start(&self, pod: &PodRecord) -> Result<Arc<Shim>> {
        match self {
            Self::Own(own) => own.start(pod).await,
            Self::TaskOnly(task) => task.start(pod).await,
            Self::Service(service) => service.start(pod).await,
        }
    }

    async fn connect(&self, pod: &PodRecord) -> Result<Arc<Shim>> {
        match self {
            Self::Own(own) => own.connect(pod).await,
            Self::TaskOnly(task) => task.connect(pod).await,
            Self::Service(service) => service.connect(pod).await,
        }
    }
}

/// Ends what keeps a pod, alive or dead, with all that runs in it, and releases the namespaces,
/// but that of the network. Tells how its containers ended. What it does not find is done.
pub(crate) async fn bury(shared: &Shared, pod: &PodRecord) -> Result<Vec<Buried>> {
    let dir = shared.layout.pod(&pod.id);
    match shim_client::bury(&dir, shared.config.limits.kill).await {
        Err(ShimError::NotFound { .. }) => Ok(Vec::new()),
        other => Ok(other?),
    }
}
