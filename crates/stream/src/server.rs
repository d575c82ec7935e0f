//! HTTP in, sessions out.

use std::{convert::Infallible, io, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{
    body::Incoming as Body,
    server::conn::http1,
    service::service_fn,
    upgrade::{OnUpgrade, Upgraded},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustix::net::sockopt;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    backend::{Attach, Backend, Exec, PortForward},
    command::Command,
    negotiate::{ACCEPTED_PROTOCOLS, Agreed, Kind, Refusal, STREAM_PROTOCOL, Transport, negotiate},
    session::Session,
    tokens::{Busy, Tokens},
};

/// For commands to tell their clients that the server has stopped.
const STOP_GRACE: Duration = Duration::from_secs(2);
/// A file limit that is reached for a moment must not end the service.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// For TLS, and for the headers of a request.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Connections at a time; each may be anybody's.
const MAX_CONNECTIONS: usize = 4096;
/// A peer that is silent is asked after half a minute, and given up a minute later.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(15);
const KEEPALIVE_TRIES: u32 = 4;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A connection on which nothing passes for so long is closed.
    pub idle: Duration,
    /// For the client to open the streams it asked for.
    pub open: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { idle: Duration::from_secs(4 * 3600), open: Duration::from_secs(30) }
    }
}

/// What a token stands for.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Command(Command),
    Forward(PortForward),
}

/// Clones are the same server.
#[derive(Debug)]
pub struct Server<B>(Arc<Shared<B>>);

impl<B> Clone for Server<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

#[derive(Debug)]
struct Shared<B> {
    backend: Arc<B>,
    base: String,
    limits: Limits,
    tokens: Mutex<Tokens<Work>>,
}

impl<B: Backend> Server<B> {
    /// `base` is where clients find it: `http://127.0.0.1:1234`.
    pub fn new(backend: B, base: impl Into<String>, limits: Limits) -> Self {
        let (backend, base) = (Arc::new(backend), base.into());
        Self(Arc::new(Shared { backend, base, limits, tokens: Mutex::default() }))
    }

    /// The URL under which the client of an exec is served, once, within a minute.
    pub fn exec(&self, exec: Exec) -> Result<String, Busy> {
        self.url("exec", Work::Command(Command::Exec(exec)))
    }

    pub fn attach(&self, attach: Attach) -> Result<String, Busy> {
        self.url("attach", Work::Command(Command::Attach(attach)))
    }

    pub fn port_forward(&self, forward: PortForward) -> Result<String, Busy> {
        self.url("portforward", Work::Forward(forward))
    }

    fn url(&self, place: &str, work: Work) -> Result<String, Busy> {
        let token = self.0.tokens.lock().issue(work)?;
        Ok(format!("{}/{place}/{token}", self.0.base))
    }

    /// Serves until `stop`, then ends all connections and the work of each; commands that end by
    /// themselves within two seconds still reach their clients. Errors only if accepting fails
    /// for good.
    pub async fn serve(
        &self,
        listener: TcpListener,
        tls: Option<TlsAcceptor>,
        stop: CancellationToken,
    ) -> io::Result<()> {
        let tasks = Tasks { tracker: TaskTracker::new(), stop };
        let result = loop {
            let accepted = tokio::select! {
                biased;
                () = tasks.stop.cancelled() => break Ok(()),
                accepted = listener.accept() => accepted,
            };
            match accepted {
                // Dropping it says so to the client.
                Ok(_) if tasks.tracker.len() >= MAX_CONNECTIONS => {}
                Ok((socket, _)) => {
                    let connection = self.clone().connection(socket, tls.clone(), tasks.clone());
                    tasks.spawn(Duration::ZERO, connection);
                }
                Err(e) if is_passing(&e) => {
                    tracing::warn!(error = %e, "cannot accept a connection, trying again");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
                Err(e) => break Err(e),
            }
        };
        tasks.stop.cancel();
        tasks.tracker.close();
        tasks.tracker.wait().await;
        result
    }

    async fn connection(self, socket: TcpStream, tls: Option<TlsAcceptor>, tasks: Tasks) {
        if let Err(error) = watch_over(&socket) {
            tracing::debug!(%error, "keep a connection alive");
        }
        match tls {
            None => self.http(socket, tasks).await,
            Some(tls) => match tokio::time::timeout(HANDSHAKE, tls.accept(socket)).await {
                Ok(Ok(socket)) => self.http(socket, tasks).await,
                Ok(Err(error)) => tracing::debug!(%error, "TLS handshake"),
                Err(_) => tracing::debug!("TLS handshake took too long"),
            },
        }
    }

    async fn http(
        self,
        socket: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        tasks: Tasks,
    ) {
        let service = service_fn(move |request| {
            let answer = self.answer(request, &tasks);
            async move { Ok::<_, Infallible>(answer) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HANDSHAKE)
            .serve_connection(TokioIo::new(socket), service)
            .with_upgrades();
        // Clients that vanish are everyday.
        if let Err(error) = connection.await {
            tracing::debug!(%error, "streaming connection ended");
        }
    }

    fn answer(&self, mut request: Request<Body>, tasks: &Tasks) -> Response<Full<Bytes>> {
        let (session, response) = match self.agree(&request) {
            Ok(agreed) => agreed,
            Err(refusal) => return refuse(&refusal),
        };
        let upgrade = hyper::upgrade::on(&mut request);
        let grace = match &session.work {
            Work::Command(_) => STOP_GRACE,
            Work::Forward(_) => Duration::ZERO,
        };
        tasks.spawn(grace, run(upgrade, session));
        response
    }

    /// Spends the token.
    fn agree(
        &self,
        request: &Request<Body>,
    ) -> Result<(Session<B>, Response<Full<Bytes>>), Refusal> {
        if !matches!(*request.method(), Method::GET | Method::POST) {
            let why = "GET or POST is required";
            return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, why));
        }
        let work = self.spend(request.uri().path()).ok_or_else(|| {
            let why =
                "no such streaming request: it was used, is older than a minute, or never was";
            Refusal::new(StatusCode::NOT_FOUND, why)
        })?;
        let kind = match &work {
            Work::Command(_) => Kind::Command,
            Work::Forward(_) => Kind::Forward,
        };
        let agreed = negotiate(kind, request.headers())?;
        let response = accept(&agreed)?;
        let Shared { backend, limits, .. } = &*self.0;
        let session = Session {
            backend: Arc::clone(backend),
            limits: *limits,
            work,
            transport: agreed.transport,
        };
        Ok((session, response))
    }

    fn spend(&self, path: &str) -> Option<Work> {
        let (place, token) = path.strip_prefix('/')?.split_once('/')?;
        let work = self.0.tokens.lock().spend(token)?;
        let right = match &work {
            Work::Command(Command::Exec(_)) => "exec",
            Work::Command(Command::Attach(_)) => "attach",
            Work::Forward(_) => "portforward",
        };
        (place == right).then_some(work)
    }
}

async fn run<B: Backend>(upgrade: OnUpgrade, session: Session<B>) {
    match upgrade.await {
        Ok(upgraded) => session.run(TokioIo::<Upgraded>::new(upgraded)).await,
        Err(error) => tracing::debug!(%error, "upgrade a streaming connection"),
    }
}

/// All that runs for connections; it ends when the server does.
#[derive(Clone, Debug)]
struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Tasks {
    /// `grace` is what the work has to end by itself once the server stops.
    fn spawn(&self, grace: Duration, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tracker.spawn(async move {
            let mut work = std::pin::pin!(work);
            tokio::select! {
                () = work.as_mut() => return,
                () = stop.cancelled() => {}
            }
            let _ = tokio::time::timeout(grace, work).await;
        });
    }
}

fn accept(agreed: &Agreed) -> Result<Response<Full<Bytes>>, Refusal> {
    let response = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(header::CONNECTION, "Upgrade");
    let response = match &agreed.transport {
        Transport::Spdy { .. } => {
            response.header(header::UPGRADE, "SPDY/3.1").header(STREAM_PROTOCOL, agreed.protocol)
        }
        Transport::Socket { key, .. } | Transport::Tunnel { key } => {
            let response = response
                .header(header::UPGRADE, "websocket")
                .header(header::SEC_WEBSOCKET_ACCEPT, derive_accept_key(key.as_bytes()));
            if agreed.protocol.is_empty() {
                response
            } else {
                response.header(header::SEC_WEBSOCKET_PROTOCOL, agreed.protocol)
            }
        }
    };
    let internal = |e: http::Error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string());
    response.body(Full::default()).map_err(internal)
}

fn refuse(refusal: &Refusal) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(format!("{}\n", refusal.why)));
    *response.status_mut() = refusal.status;
    for protocol in refusal.accepted.iter().filter(|protocol| !protocol.is_empty()) {
        response.headers_mut().append(ACCEPTED_PROTOCOLS, HeaderValue::from_static(protocol));
    }
    response
}

fn is_passing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    error.kind() == io::ErrorKind::ConnectionAborted
        || [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS]
            .iter()
            .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// A client whose host has died says nothing: the kernel finds out for us.
fn watch_over(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_AFTER)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_EVERY)?;
    Ok(sockopt::set_tcp_keepcnt(socket, KEEPALIVE_TRIES)?)
}
