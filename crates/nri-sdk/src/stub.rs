//! The life of a plugin: connect, register, serve, and again.
//!
//! ```text
//!             .---------- pause, jitter <----------.
//!             v                                    | lost
//!   build -> connect -> register -> configured -> serve --stop--> drain -> end
//! ```
//!
//! **Invariant:** at most one connection at a time. A configuration that the plugin refuses
//! ends it; everything else is tried again, where there can be another connection at all.

mod backoff;
mod builder;
mod source;

use std::{fmt, pin::pin, sync::Arc, time::Duration};

pub use backoff::Reconnect;
pub use builder::{BuildError, Builder};
use nri_wire::{
    EventMask, MuxError, PluginId, Trunk,
    api::{FailurePolicy, RegisterPluginRequest, RuntimeClient},
    defaults,
};
pub use source::ConnectError;
use source::{BoxIo, Source};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{Answer, BoxError, Handlers, Plugin, Runtime, dispatch::Dispatch};

/// What handlers in flight get when the plugin is asked to end.
const DRAIN: Duration = Duration::from_secs(5);

/// A plugin with a name and a way to its runtime.
pub struct Stub<P> {
    id: PluginId,
    plugin: Arc<P>,
    handlers: Arc<Handlers<P>>,
    source: Source,
    reconnect: Option<Reconnect>,
    registration_timeout: Duration,
    failure_policy: Option<FailurePolicy>,
    runtime: Runtime,
}

/// Why a plugin ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the runtime refused to register the plugin")]
    Register(#[source] ttrpc::Error),
    #[error("the runtime did not configure the plugin in {0:?}")]
    NotConfigured(Duration),
    /// The only failure that is never tried again: it is the plugin's own.
    #[error("the plugin refused its configuration")]
    Configure(#[source] BoxError),
    #[error("the connection to the runtime broke")]
    Lost(#[source] MuxError),
    #[error("the runtime closed the connection before the plugin was configured")]
    Rejected,
}

/// How a connection ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// We were asked to.
    Stopped,
    /// By the runtime.
    Closed,
}

// === impl Stub ===

impl<P: Plugin> Stub<P> {
    pub fn builder(plugin: P) -> Builder<P> {
        Builder::new(plugin)
    }

    pub fn id(&self) -> &PluginId {
        &self.id
    }

    /// What the plugin has handlers for.
    pub fn events(&self) -> EventMask {
        self.handlers.events()
    }

    /// For requests of the plugin's own.
    pub fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    pub fn plugin(&self) -> &Arc<P> {
        &self.plugin
    }

    /// Serves the runtime for as long as there is one. With a socket or a dialer that is
    /// forever: a lost connection is replaced, and the world synchronised anew.
    ///
    /// Not cancel safe: dropping it drops the connection and the handlers in flight.
    pub async fn run(self) -> Result<(), RunError> {
        self.run_until(std::future::pending()).await
    }

    /// Like [`run`](Self::run), until `stop` resolves. New requests are then refused, and
    /// those in flight get five seconds to be answered.
    ///
    /// Not cancel safe: dropping it drops the connection and the handlers in flight.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<(), RunError> {
        let stopping = CancellationToken::new();
        let (mut stop, mut work) = (pin!(stop), pin!(self.repeat(&stopping)));
        tokio::select! {
            biased;
            result = &mut work => return result,
            () = &mut stop => stopping.cancel(),
        }
        work.await
    }

    /// Connections, one after the other.
    async fn repeat(&self, stopping: &CancellationToken) -> Result<(), RunError> {
        let mut failures = 0;
        loop {
            let begun = Instant::now();
            let ended = self.connection(stopping).await;
            match &ended {
                Ok(End::Stopped) | Err(RunError::Configure(_)) => return ended.map(|_| ()),
                Ok(End::Closed) => info!(plugin = %self.id, "the runtime closed the connection"),
                Err(error) => warn!(plugin = %self.id, error = %chain(error), "no connection"),
            }
            let Some(reconnect) = self.reconnect.filter(|_| !self.source.is_single()) else {
                return ended.map(|_| ());
            };
            // One that held for a while was a good one.
            if begun.elapsed() > reconnect.max {
                failures = 0;
            }
            let pause = reconnect.pause(failures, backoff::noise());
            failures = failures.saturating_add(1);
            if stopping.run_until_cancelled(sleep(pause)).await.is_none() {
                return Ok(());
            }
        }
    }

    /// One connection, from its beginning to its end.
    async fn connection(&self, stopping: &CancellationToken) -> Result<End, RunError> {
        let io = match stopping.run_until_cancelled(self.source.connect()).await {
            Some(connected) => connected?,
            None => return Ok(End::Stopped),
        };
        let ended = self.converse(io, stopping).await;
        self.runtime.disconnect();
        ended
    }

    async fn converse(&self, io: BoxIo, stopping: &CancellationToken) -> Result<End, RunError> {
        let (plugin, handlers) = (Arc::clone(&self.plugin), Arc::clone(&self.handlers));
        let (dispatch, configured) =
            Dispatch::new(plugin, handlers, self.runtime.clone(), self.failure_policy);
        let (runtime, trunk) = Trunk::plugin(io, dispatch);
        self.runtime.connect(runtime.clone());
        tokio::select! {
            biased;
            joined = self.join(&runtime, &trunk, configured) => joined?,
            () = stopping.cancelled() => {
                trunk.close();
                let _ = trunk.closed().await;
                return Ok(End::Stopped);
            }
        }
        info!(plugin = %self.id, runtime = ?self.runtime.info(), "connected");
        tokio::select! {
            biased;
            ended = trunk.closed() => return ended.map(|()| End::Closed).map_err(RunError::Lost),
            () = stopping.cancelled() => {}
        }
        if timeout(DRAIN, trunk.shutdown()).await.is_err() {
            warn!(plugin = %self.id, "handlers still running after {DRAIN:?} are dropped");
            trunk.close();
            let _ = trunk.closed().await;
        }
        Ok(End::Stopped)
    }

    /// Registers, and waits until the runtime has configured us.
    async fn join(
        &self,
        runtime: &RuntimeClient,
        trunk: &Trunk,
        mut configured: oneshot::Receiver<Answer>,
    ) -> Result<(), RunError> {
        let limit = self.registration_timeout;
        let request = RegisterPluginRequest {
            plugin_name: self.id.name().to_owned(),
            plugin_idx: self.id.index().to_owned(),
            nri_version: defaults::NRI_VERSION.to_owned(),
        };
        let ctx = ttrpc::Context::timeout(limit);
        let registered = runtime.register_plugin(&ctx, &request).await;
        // The runtime may configure before it answers, and not answer at all if that fails.
        let outcome = match (configured.try_recv(), registered) {
            (Ok(outcome), _) => Some(outcome),
            (Err(_), Err(error)) => return Err(RunError::Register(error)),
            (Err(_), Ok(_)) => timeout(limit, async {
                tokio::select! {
                    biased;
                    outcome = configured => outcome.ok(),
                    _ = trunk.closed() => None,
                }
            })
            .await
            .map_err(|_| RunError::NotConfigured(limit))?,
        };
        outcome.ok_or(RunError::Rejected)?.map_err(RunError::Configure)
    }
}

impl<P: Plugin> fmt::Debug for Stub<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stub").field("id", &self.id).field("handlers", &self.handlers).finish()
    }
}

/// For a log line: an error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
