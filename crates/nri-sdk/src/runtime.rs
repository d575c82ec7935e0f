//! The runtime as a plugin sees it, over all connections it has with it.

use std::{sync::Arc, time::Duration};

use nri_wire::api::RuntimeClient;
use tokio::sync::watch;
use ttrpc::Status;

use crate::{Changes, RuntimeInfo, Updates};

/// How long a runtime may take for updates: it may have to write to many cgroups.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(30);

/// A handle on the runtime. Clones share it; it outlives connections.
#[derive(Clone, Debug)]
pub struct Runtime {
    state: Arc<watch::Sender<State>>,
    timeout: Duration,
}

#[derive(Clone, Debug, Default)]
struct State {
    client: Option<RuntimeClient>,
    /// Once the runtime has configured us on this connection.
    info: Option<Arc<RuntimeInfo>>,
}

/// Why updates were not applied, or not all.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError {
    #[error("not connected to a runtime")]
    NotConnected,
    /// All others were applied.
    #[error("{} of the containers could not be updated: {}", failed.len(), ids(failed))]
    Partial { failed: Updates },
    /// Older runtimes answer a partial failure like this, without saying whose.
    #[error("the runtime refused the updates")]
    Refused(#[source] Status),
    /// Whether anything was applied is not known.
    #[error("updating containers")]
    Lost(#[source] ttrpc::Error),
}

/// What to do about a failed update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateErrorKind {
    /// Again, once connected; after a reconnection the world is synchronised first.
    Retry,
    /// Something is wrong with some of the updates.
    Partial,
    /// Something is wrong with all.
    Refused,
}

impl UpdateError {
    pub fn kind(&self) -> UpdateErrorKind {
        match self {
            Self::NotConnected | Self::Lost(_) => UpdateErrorKind::Retry,
            Self::Partial { .. } => UpdateErrorKind::Partial,
            Self::Refused(_) => UpdateErrorKind::Refused,
        }
    }
}

fn ids(failed: &Updates) -> String {
    let ids: Vec<_> = failed.iter().map(|update| update.container_id.as_str()).collect();
    ids.join(", ")
}

// === impl Runtime ===

impl Runtime {
    pub(crate) fn new() -> Self {
        Self { state: Arc::new(watch::Sender::default()), timeout: UPDATE_TIMEOUT }
    }

    /// The same runtime, with another limit to the time of a call.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Changes containers at a moment the plugin chooses, also from inside a handler.
    ///
    /// Cancel safe for the connection; the runtime may or may not carry it out.
    pub async fn update_containers(&self, changes: impl Into<Changes>) -> Result<(), UpdateError> {
        let changes = changes.into();
        if changes.is_empty() {
            return Ok(());
        }
        let client = self.state.borrow().client.clone().ok_or(UpdateError::NotConnected)?;
        let ctx = ttrpc::Context::timeout(self.timeout);
        let response = client.update_containers(&ctx, &changes.into()).await.map_err(lost)?;
        match response.failed.is_empty() {
            true => Ok(()),
            false => Err(UpdateError::Partial { failed: response.failed.into() }),
        }
    }

    /// Who it is; `None` while there is no connection.
    pub fn info(&self) -> Option<Arc<RuntimeInfo>> {
        self.state.borrow().info.clone()
    }

    /// Waits until the runtime has configured the plugin.
    ///
    /// Cancel safe.
    pub async fn connected(&self) -> Arc<RuntimeInfo> {
        let mut state = self.state.subscribe();
        let state = state.wait_for(|state| state.info.is_some()).await;
        let info = state.ok().and_then(|state| state.info.clone());
        info.expect("the sender is ours, and the state was waited for")
    }

    /// Waits until there is no connection.
    ///
    /// Cancel safe.
    pub async fn disconnected(&self) {
        // Fails only without a sender, and that is ours.
        let _ = self.state.subscribe().wait_for(|state| state.client.is_none()).await;
    }

    pub(crate) fn connect(&self, client: RuntimeClient) {
        self.state.send_replace(State { client: Some(client), info: None });
    }

    pub(crate) fn configured(&self, info: RuntimeInfo) {
        self.state.send_modify(|state| state.info = Some(Arc::new(info)));
    }

    pub(crate) fn disconnect(&self) {
        self.state.send_replace(State::default());
    }
}

fn lost(error: ttrpc::Error) -> UpdateError {
    match error {
        ttrpc::Error::Status(status) => UpdateError::Refused(status),
        other => UpdateError::Lost(other),
    }
}
