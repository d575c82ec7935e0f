//! From a spec to what is started: the one way, for the daemon and on paper.

use std::sync::Arc;

use nri::{Ask, Nri, Story};
use oci::{Ignored, Limits, Spec};

use crate::error::Result;

/// A container as plugins want it, and as host and handler can have it.
#[derive(Clone, Debug)]
pub struct Adjusted {
    pub spec: Spec,
    /// Classes that plugins gave it, by name; an empty one was taken away.
    pub block_io_class: Option<String>,
    pub rdt_class: Option<String>,
    /// Asked for, and without effect.
    pub ignored: Vec<Ignored>,
    /// Who set what.
    pub story: Story,
}

/// Asks plugins about a container that is to be created from `container.spec`. An error means
/// that it must not be.
///
/// Cancel safe: a dropped request is undone.
pub(crate) async fn adjust(
    nri: &Nri,
    pod: &nri::Pod,
    container: &nri::Container,
    host: Arc<dyn nri::Host + Send + Sync>,
    limits: Limits<'_>,
) -> Result<Adjusted> {
    let created = nri.create_container(pod, container, host, &Ask::default()).await?;
    let mut spec = Arc::unwrap_or_clone(created.spec);
    let ignored = oci::check_adjusted(&container.spec, &mut spec, limits)?;
    let journal = nri.journal(&container.id);
    let story = journal.map(|journal| journal.story(&container.id, &spec)).unwrap_or_default();
    let (block_io_class, rdt_class) = (created.block_io_class, created.rdt_class);
    Ok(Adjusted { spec, block_io_class, rdt_class, ignored, story })
}
