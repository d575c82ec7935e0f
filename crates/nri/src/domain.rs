//! What a front end does for plugins: a domain of containers they can change and evict.

use futures_util::future::BoxFuture;

use crate::{
    journal::{Evicted, Updated},
    object::Resources,
};

/// The containers of one front end. Implemented by the runtime.
///
/// Calls come while plugins are being asked about other containers of the same domain, and
/// must not wait for those: an implementation that holds a pod while it asks NRI about it
/// would wait for itself.
pub trait Domain: Send + Sync + 'static {
    /// As plugins and settings call it, such as `k8s.io`.
    fn name(&self) -> &str;

    /// What the container has now, to be put back if a change fails; `None` if it is gone.
    fn resources<'a>(
        &'a self,
        container: &'a str,
    ) -> BoxFuture<'a, Result<Option<Resources>, DomainError>>;

    /// Sets what is set in `resources` and leaves the rest.
    fn update<'a>(
        &'a self,
        container: &'a str,
        resources: &'a Resources,
    ) -> BoxFuture<'a, Result<(), DomainError>>;

    /// Stops the container at once; `reason` is for its status. Done when its process has
    /// exited: it must not wait for NRI to have announced that.
    fn evict<'a>(
        &'a self,
        container: &'a str,
        reason: &'a str,
    ) -> BoxFuture<'a, Result<(), DomainError>>;

    /// An update of a container is done and stays, or could not be made, for whoever keeps books.
    fn updated<'a>(&'a self, container: &'a str, update: &'a Updated) -> BoxFuture<'a, ()> {
        let _ = (container, update);
        Box::pin(std::future::ready(()))
    }

    /// An eviction of a container is done, for whoever keeps books.
    fn evicted<'a>(&'a self, container: &'a str, evicted: &'a Evicted) -> BoxFuture<'a, ()> {
        let _ = (container, evicted);
        Box::pin(std::future::ready(()))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum DomainError {
    /// There is nothing to change any more, which is no failure.
    #[error("container is gone")]
    Gone,
    #[error(transparent)]
    Failed(#[from] Box<dyn std::error::Error + Send + Sync>),
}
