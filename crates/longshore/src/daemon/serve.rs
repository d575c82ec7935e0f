//! Accept loops whose connections end when the daemon does.
//!
//! tonic and axum have servers of their own, but those detach their connections: after
//! their shutdown nobody knows when the last handler ended. Here every connection, and
//! every task a connection spawns, is tracked; [`Connections::close`] returns when all
//! are gone.

use std::{io, time::Duration};

use bytes::Bytes;
use h2_authority::AuthorityStream;
use http::{Request, Response};
use hyper::{
    body::{Body, Incoming},
    rt::Executor,
    server::conn::{http1, http2},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulConnection,
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::Service;

/// How long calls in flight may still take once the daemon stops.
const GRACE: Duration = Duration::from_secs(5);

/// A file limit that is reached for a moment must not end a service.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The connections of one service.
#[derive(Clone, Debug, Default)]
pub(super) struct Connections {
    tasks: TaskTracker,
    /// Connections finish what is in flight and take nothing new.
    drain: CancellationToken,
    /// Whatever is left ends here.
    kill: CancellationToken,
}

/// Where connections come from.
pub(super) trait Listener: Send + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// Cancel safe.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Listener for UnixListener {
    type Stream = tokio::net::UnixStream;
    async fn accept(&self) -> io::Result<Self::Stream> {
        Ok(UnixListener::accept(self).await?.0)
    }
}

impl Listener for TcpListener {
    type Stream = tokio::net::TcpStream;
    async fn accept(&self) -> io::Result<Self::Stream> {
        Ok(TcpListener::accept(self).await?.0)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Protocol {
    /// gRPC, by prior knowledge. Any `:authority` is accepted, as clients of unix sockets need it.
    Http2,
    Http1,
}

/// Serves until `stop`, then closes every connection. Errors only if accepting fails for good.
pub(super) async fn serve<S, B>(
    listener: impl Listener,
    protocol: Protocol,
    service: S,
    stop: CancellationToken,
) -> io::Result<()>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let connections = Connections::default();
    let result = loop {
        let stream = tokio::select! {
            biased;
            () = stop.cancelled() => break Ok(()),
            accepted = listener.accept() => accepted,
        };
        match stream {
            Ok(stream) => connections.spawn(stream, protocol, service.clone()),
            Err(e) if is_passing(&e) => {
                tracing::warn!(error = %e, "cannot accept a connection, trying again");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
            Err(e) => break Err(e),
        }
    };
    connections.close().await;
    result
}

fn is_passing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    error.kind() == io::ErrorKind::ConnectionAborted
        || [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS]
            .iter()
            .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

impl Connections {
    fn spawn<S, B>(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        protocol: Protocol,
        service: S,
    ) where
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError>,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let service = TowerToHyperService::new(service);
        match protocol {
            Protocol::Http2 => self.drive(
                http2::Builder::new(self.clone())
                    .timer(TokioTimer::new())
                    .serve_connection(TokioIo::new(AuthorityStream::new(stream)), service),
            ),
            Protocol::Http1 => self.drive(
                http1::Builder::new()
                    .timer(TokioTimer::new())
                    .serve_connection(TokioIo::new(stream), service),
            ),
        }
    }

    fn drive(&self, connection: impl GracefulConnection<Error = hyper::Error> + Send + 'static) {
        let drain = self.drain.clone();
        self.execute(async move {
            let mut connection = std::pin::pin!(connection);
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = drain.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            // Clients that vanish are everyday; only the curious want to know.
            if let Err(error) = ended {
                tracing::debug!(%error, "connection ended");
            }
        });
    }

    /// Returns when no connection and no handler is left. Not cancel safe: a dropped close
    /// leaves them draining.
    async fn close(&self) {
        self.drain.cancel();
        self.tasks.close();
        if tokio::time::timeout(GRACE, self.tasks.wait()).await.is_err() {
            self.kill.cancel();
            self.tasks.wait().await;
        }
    }
}

/// hyper runs each HTTP/2 call as a task of its own: through here they are tracked too.
impl<F> Executor<F> for Connections
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, future: F) {
        let kill = self.kill.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                _ = future => {}
                () = kill.cancelled() => {}
            }
        });
    }
}
