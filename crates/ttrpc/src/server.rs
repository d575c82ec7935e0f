//! The serving side.
//!
//! A [`Server`] is a set of services; it serves any number of connections and stops them
//! together. Each call runs in a task of its own.
//!
//! **Invariant:** a call is answered exactly once, unless its connection is gone. A handler
//! is dropped at its next await when its deadline passes or its client goes away; what must
//! not stop half-way belongs in a task of its own. When serving a connection returns, none
//! of its handlers runs any longer.

mod connection;

use std::{collections::HashMap, io, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixListener,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, warn};

use crate::{MessageWriter, Service, StreamWriter};

/// Calls in flight on one connection, unless [`ServerBuilder::max_calls`] says otherwise.
const MAX_CALLS: usize = 1024;

/// Serves calls. Clones share everything.
#[derive(Clone, Debug)]
pub struct Server {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    services: HashMap<String, Service>,
    max_calls: usize,
    connections: TaskTracker,
    /// No new calls or connections.
    drain: CancellationToken,
    /// Nothing at all.
    abort: CancellationToken,
}

#[derive(Debug)]
pub struct ServerBuilder {
    services: HashMap<String, Service>,
    max_calls: usize,
}

// === impl ServerBuilder ===

impl ServerBuilder {
    /// # Panics
    /// When a service of that name is there already.
    pub fn service(mut self, service: impl Into<Service>) -> Self {
        let service = service.into();
        let name = service.name.clone();
        let twin = self.services.insert(name, service);
        assert!(twin.is_none(), "two services of one name: {twin:?}");
        self
    }

    /// How many calls may be in flight on one connection. One more is refused with
    /// `RESOURCE_EXHAUSTED` at once: were it to wait, data for the calls in flight would
    /// wait behind it.
    pub fn max_calls(mut self, max_calls: usize) -> Self {
        self.max_calls = max_calls;
        self
    }

    pub fn build(self) -> Server {
        let shared = Shared {
            services: self.services,
            max_calls: self.max_calls,
            connections: TaskTracker::new(),
            drain: CancellationToken::new(),
            abort: CancellationToken::new(),
        };
        Server { shared: Arc::new(shared) }
    }
}

// === impl Server ===

impl Server {
    pub fn builder() -> ServerBuilder {
        ServerBuilder { services: HashMap::new(), max_calls: MAX_CALLS }
    }

    /// Serves one client over any byte stream until either side ends it.
    ///
    /// Not cancel safe: dropping it ends the connection and its handlers.
    pub async fn serve_connection<T>(&self, io: T) -> io::Result<()>
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (reader, writer) = tokio::io::split(io);
        self.serve_parts(reader, StreamWriter::new(writer)).await
    }

    /// Serves one client over a transport that wants to know where messages end.
    ///
    /// Not cancel safe: dropping it ends the connection and its handlers.
    pub async fn serve_parts<R, W>(&self, reader: R, writer: W) -> io::Result<()>
    where
        R: AsyncRead + Unpin,
        W: MessageWriter,
    {
        let serving = connection::serve(Arc::clone(&self.shared), reader, writer);
        self.shared.connections.track_future(serving).await
    }

    /// Serves all who connect until [`shutdown`](Self::shutdown). Returns an error only
    /// where the listener itself is broken.
    ///
    /// Not cancel safe: dropping it stops listening; open connections are served on.
    pub async fn serve(&self, listener: UnixListener) -> io::Result<()> {
        let mut pause = Pause::default();
        let accept = async {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => {
                        pause = Pause::default();
                        let server = self.clone();
                        self.shared.connections.spawn(async move {
                            let end = connection::serve_stream(server.shared, stream).await;
                            debug!(?end, "connection ended");
                        });
                    }
                    Err(error) if is_passing(&error) => {
                        warn!(%error, "accept failed, trying again");
                        tokio::time::sleep(pause.next()).await;
                    }
                    Err(error) => return error,
                }
            }
        };
        self.shared.drain.run_until_cancelled(accept).await.map_or(Ok(()), Err)
    }

    /// Ends in order: no new connections, new calls are refused, those in flight finish and
    /// are answered. Returns when the last connection has ended; wrap it in a timeout and
    /// [`abort`](Self::abort) after it.
    ///
    /// Cancel safe: what was begun goes on.
    pub async fn shutdown(&self) {
        self.shared.drain.cancel();
        self.shared.connections.close();
        self.shared.connections.wait().await;
    }

    /// Ends every connection now; handlers are dropped.
    pub fn abort(&self) {
        self.shared.drain.cancel();
        self.shared.abort.cancel();
    }
}

/// Waits between attempts to accept: 1 ms, doubling to 1 s.
#[derive(Default)]
struct Pause(u32);

impl Pause {
    fn next(&mut self) -> Duration {
        let pause = Duration::from_millis(1 << self.0);
        self.0 = (self.0 + 1).min(10);
        pause.min(Duration::from_secs(1))
    }
}

/// Out of descriptors or memory, or a client that left too early: it may be better soon.
fn is_passing(error: &io::Error) -> bool {
    const ENOMEM: i32 = 12;
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    const ENOBUFS: i32 = 105;
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted)
        || matches!(error.raw_os_error(), Some(ENOMEM | ENFILE | EMFILE | ENOBUFS))
}
