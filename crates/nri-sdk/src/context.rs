//! What a handler knows about the request besides its content.

use std::time::Duration;

use nri_wire::api::Event;
use tokio::time::Instant;
use tokio_util::sync::WaitForCancellationFuture;
use ttrpc::{Metadata, ServerContext};

use crate::Runtime;

/// Goes along with every request.
///
/// A handler is dropped at its next await when the deadline passes or the runtime goes
/// away: what must not stop half-way belongs in a task of its own.
#[derive(Clone, Debug)]
pub struct Context {
    call: ServerContext,
    event: Option<Event>,
    deadline: Option<Instant>,
    runtime: Runtime,
}

impl Context {
    /// `allowed` is what the runtime grants where the request itself does not say.
    pub(crate) fn new(
        call: ServerContext,
        event: Option<Event>,
        allowed: Option<Duration>,
        runtime: Runtime,
    ) -> Self {
        let configured = || allowed.and_then(|allowed| Instant::now().checked_add(allowed));
        let deadline = call.deadline.or_else(configured);
        Self { call, event, deadline, runtime }
    }

    /// The event that is handled; `None` for configure, synchronize and shutdown.
    pub fn event(&self) -> Option<Event> {
        self.event
    }

    /// When the runtime stops waiting. Most runtimes then drop the plugin, so an error
    /// before it is better than an answer after it.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    pub fn remaining(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// What came with the request, as the context of a trace: `traceparent`, `tracestate`.
    pub fn metadata(&self) -> &Metadata {
        &self.call.metadata
    }

    /// Resolves when the request is over, also for work that was handed to other tasks.
    ///
    /// Cancel safe.
    pub fn cancelled(&self) -> WaitForCancellationFuture<'_> {
        self.call.cancelled()
    }

    /// The runtime that asks, for requests of the plugin's own. Clone it to keep it: it
    /// stays valid over reconnections.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }
}
