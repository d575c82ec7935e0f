//! From a plugin to a [`Stub`].

use std::{fmt, io, path::PathBuf, sync::Arc, time::Duration};

use nri_wire::{api::FailurePolicy, defaults};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};

use super::{Reconnect, Source, Stub};
use crate::{Environment, Plugin, Runtime, UnknownIdentity};

/// Between the two ends of a plugin that lives in the process of its runtime.
const IN_PROCESS_BUFFER: usize = 64 * 1024;

/// Names a plugin and says how it reaches its runtime. What is not said comes from the
/// environment, as it does for the Go library.
///
/// The connection is, in this order: the one given, that of a dialer, the descriptor a
/// runtime left in the environment, the socket. The last and the dialer are tried again when
/// the connection is lost.
///
/// ```no_run
/// # use nri_sdk::{Handlers, Plugin, Stub};
/// # struct Greeter;
/// # impl Plugin for Greeter {
/// #     fn handlers() -> Handlers<Self> { Handlers::new() }
/// # }
/// # async fn start() -> Result<(), Box<dyn std::error::Error>> {
/// let stub = Stub::builder(Greeter).name("greeter").index("10").build()?;
/// stub.run_until(async { _ = tokio::signal::ctrl_c().await }).await?;
/// # Ok(())
/// # }
/// ```
pub struct Builder<P> {
    plugin: P,
    name: Option<String>,
    index: Option<String>,
    socket: Option<PathBuf>,
    source: Option<Source>,
    environment: Environment,
    reconnect: Option<Reconnect>,
    registration_timeout: Duration,
    failure_policy: Option<FailurePolicy>,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    #[error(transparent)]
    Identity(#[from] UnknownIdentity),
    /// On the wire an empty subscription means all events.
    #[error("the plugin handles no event")]
    NoEvents,
}

// === impl Builder ===

impl<P: Plugin> Builder<P> {
    pub(super) fn new(plugin: P) -> Self {
        Self {
            plugin,
            name: None,
            index: None,
            socket: None,
            source: None,
            environment: Environment::of_process(),
            reconnect: Some(Reconnect::default()),
            registration_timeout: defaults::REGISTRATION_TIMEOUT,
            failure_policy: None,
        }
    }

    /// The name to register, instead of that of the environment or the executable.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The place among all plugins: two digits. An error where the environment has one.
    #[must_use]
    pub fn index(mut self, index: impl Into<String>) -> Self {
        self.index = Some(index.into());
        self
    }

    /// The socket of the runtime, instead of `/var/run/nri/nri.sock`.
    #[must_use]
    pub fn socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.socket = Some(path.into());
        self
    }

    /// A connection that exists already. The plugin ends with it.
    #[must_use]
    pub fn connection<T: AsyncRead + AsyncWrite + Send + 'static>(mut self, io: T) -> Self {
        self.source = Some(Source::given(io));
        self
    }

    /// A way to connect, for every connection anew.
    #[must_use]
    pub fn dialer<F, Fut, T>(mut self, dial: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<T>> + Send + 'static,
        T: AsyncRead + AsyncWrite + Send + 'static,
    {
        self.source = Some(Source::dialer(dial));
        self
    }

    /// Runs the plugin inside the process of its runtime: give the stream to the runtime as
    /// one end of a connection, and run the stub that is built.
    #[must_use]
    pub fn in_process(self) -> (Self, DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(IN_PROCESS_BUFFER);
        (self.connection(ours), theirs)
    }

    /// Instead of that of the process. The default one says nothing.
    #[must_use]
    pub fn environment(mut self, environment: Environment) -> Self {
        self.environment = environment;
        self
    }

    /// How to come back after a lost connection.
    #[must_use]
    pub fn reconnect(mut self, reconnect: Reconnect) -> Self {
        self.reconnect = Some(reconnect);
        self
    }

    /// Ends with the first connection, or without one.
    #[must_use]
    pub fn no_reconnect(mut self) -> Self {
        self.reconnect = None;
        self
    }

    /// What the runtime may take to register, and then to configure, the plugin.
    #[must_use]
    pub fn registration_timeout(mut self, limit: Duration) -> Self {
        self.registration_timeout = limit;
        self
    }

    /// What the runtime is asked to do when the plugin does not answer; its operator has the
    /// last word. Without it a request goes on, and the plugin is disconnected.
    #[must_use]
    pub fn failure_policy(mut self, policy: FailurePolicy) -> Self {
        self.failure_policy = Some(policy);
        self
    }

    pub fn build(self) -> Result<Stub<P>, BuildError> {
        let id = self.environment.identify(self.name.as_deref(), self.index.as_deref())?;
        let handlers = P::handlers();
        if handlers.events().is_empty() {
            return Err(BuildError::NoEvents);
        }
        let socket = self.socket.unwrap_or_else(|| defaults::SOCKET_PATH.into());
        let source = match (self.source, self.environment.socket) {
            (Some(source), _) => source,
            (None, Some(fd)) => Source::Inherited(fd),
            (None, None) => Source::Socket(socket),
        };
        Ok(Stub {
            id,
            plugin: Arc::new(self.plugin),
            handlers: Arc::new(handlers),
            source,
            reconnect: self.reconnect,
            registration_timeout: self.registration_timeout,
            failure_policy: self.failure_policy,
            runtime: Runtime::new(),
        })
    }
}

impl<P> fmt::Debug for Builder<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("name", &self.name)
            .field("index", &self.index)
            .field("socket", &self.socket)
            .field("environment", &self.environment)
            .field("reconnect", &self.reconnect)
            .finish_non_exhaustive()
    }
}
