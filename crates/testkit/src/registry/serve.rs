use std::{
    convert::Infallible,
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use base::Digest;
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Frame, Incoming},
    header::{
        AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, LOCATION, RANGE, RETRY_AFTER,
        WWW_AUTHENTICATE,
    },
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Access, Fault, Seen, State, TokenFrom};
use crate::image::Blob;

type Body = UnsyncBoxBody<Bytes, io::Error>;
type Answer = Response<Body>;

#[derive(Clone)]
pub(super) struct Server {
    pub(super) state: Arc<State>,
    pub(super) tls: Option<tokio_rustls::TlsAcceptor>,
    pub(super) base: String,
    pub(super) tracker: TaskTracker,
    pub(super) stop: CancellationToken,
}

impl Server {
    pub(super) async fn run(self, listener: TcpListener) {
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                accepted = listener.accept() => {
                    // A client that went away again is its own business.
                    let Ok((stream, _)) = accepted else { continue };
                    let (server, stop) = (self.clone(), self.stop.clone());
                    self.tracker.spawn(stop.run_until_cancelled_owned(server.connection(stream)));
                }
            }
        }
    }

    async fn connection(self, stream: TcpStream) {
        match self.tls.clone() {
            None => self.requests(TokioIo::new(stream)).await,
            Some(tls) => {
                if let Ok(stream) = tls.accept(stream).await {
                    self.requests(TokioIo::new(stream)).await;
                }
            }
        }
    }

    async fn requests(self, io: impl hyper::rt::Read + hyper::rt::Write + Unpin) {
        let service = service_fn(|request| {
            let server = self.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        // Faults end connections half-way; that is what they are for.
        let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let seen = see(&request);
        self.state.seen.lock().push(seen.clone());
        let fault = self.take_fault(&seen.path);
        match &fault {
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::AnswerAfter(pause)) => tokio::time::sleep(*pause).await,
            Some(Fault::Status(status)) => return error(*status, "FAULT"),
            Some(Fault::TooMany { retry_after }) => {
                let mut answer = error(429, "TOOMANYREQUESTS");
                answer.headers_mut().insert(RETRY_AFTER, (*retry_after).into());
                return answer;
            }
            Some(Fault::Redirect(base)) => {
                let to = format!("{base}{}?{}", seen.path, seen.query);
                return build(Response::builder().status(307).header(LOCATION, to), empty());
            }
            _ => {}
        }
        if seen.path == "/token" {
            let form = request.into_body().collect().await.map(|body| body.to_bytes());
            return self.token(&seen, &form.unwrap_or_default());
        }
        if let Some(refusal) = self.refuse(&seen) {
            return refusal;
        }
        self.content(&seen, fault.as_ref())
    }

    fn take_fault(&self, path: &str) -> Option<Fault> {
        let mut faults = self.state.faults.lock();
        let armed = faults.iter_mut().find(|armed| armed.left > 0 && armed.target.is(path))?;
        armed.left -= 1;
        Some(armed.fault.clone())
    }

    // === who ===

    fn refuse(&self, seen: &Seen) -> Option<Answer> {
        let given = seen.headers.get(AUTHORIZATION.as_str());
        let (allowed, challenge) = match &*self.state.access.lock() {
            Access::Anyone => return None,
            Access::Basic { username, password } => {
                (given == Some(&basic(username, password)), "Basic realm=\"testkit\"".to_owned())
            }
            Access::Token { .. } => {
                let token = given.and_then(|given| given.strip_prefix("Bearer "));
                (token.is_some_and(|token| self.use_token(token)), self.challenge(&seen.path))
            }
        };
        if allowed {
            return None;
        }
        let mut answer = error(401, "UNAUTHORIZED");
        let challenge = challenge.try_into().expect("is a header");
        answer.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        Some(answer)
    }

    fn challenge(&self, path: &str) -> String {
        let repository = path.trim_start_matches("/v2/");
        let end = repository.find("/manifests/").or_else(|| repository.find("/blobs/"));
        let repository = &repository[..end.unwrap_or(repository.len())];
        let base = &self.base;
        format!(
            "Bearer realm=\"{base}/token\",service=\"testkit\",scope=\"repository:{repository}:pull\""
        )
    }

    fn use_token(&self, token: &str) -> bool {
        let mut tokens = self.state.tokens.lock();
        let Some(left) = tokens.get_mut(token).filter(|left| **left > 0) else { return false };
        *left -= 1;
        true
    }

    fn token(&self, seen: &Seen, form: &[u8]) -> Answer {
        let access = self.state.access.lock().clone();
        let Access::Token { from, uses } = access else { return error(404, "NO_TOKENS") };
        let form: Vec<(String, String)> = url::form_urlencoded::parse(form).into_owned().collect();
        let field =
            |name: &str| form.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let granted = match &from {
            TokenFrom::Anyone => true,
            TokenFrom::Password { username, password } => {
                seen.headers.get(AUTHORIZATION.as_str()) == Some(&basic(username, password))
            }
            TokenFrom::Identity(identity) => {
                seen.method == "POST"
                    && field("grant_type") == Some("refresh_token")
                    && field("refresh_token") == Some(identity)
            }
        };
        if !granted {
            return error(401, "BAD_CREDENTIALS");
        }
        let number = self.state.token_count.fetch_add(1, Ordering::Relaxed);
        let token = format!("token-{number}");
        self.state.tokens.lock().insert(token.clone(), uses);
        let body = serde_json::json!({ "access_token": token, "expires_in": 300 }).to_string();
        build(Response::builder().header(CONTENT_TYPE, "application/json"), full(body))
    }

    // === what ===

    fn content(&self, seen: &Seen, fault: Option<&Fault>) -> Answer {
        let Some(path) = seen.path.strip_prefix("/v2/") else { return error(404, "NOT_FOUND") };
        if path.is_empty() {
            return build(Response::builder(), full("{}"));
        }
        let contents = self.state.contents.lock();
        if let Some((repository, reference)) = path.split_once("/manifests/") {
            let key = (repository.to_owned(), reference.to_owned());
            return match contents.manifests.get(&key) {
                Some(manifest) => manifest_answer(seen, manifest, fault),
                None => error(404, "MANIFEST_UNKNOWN"),
            };
        }
        let blob = path.split_once("/blobs/").and_then(|(repository, digest)| {
            let digest: Digest = digest.parse().ok()?;
            contents.blobs.get(&digest).filter(|_| contents.repositories.contains(repository))
        });
        match blob {
            Some(blob) => self.blob_answer(seen, blob.clone(), fault),
            None => error(404, "BLOB_UNKNOWN"),
        }
    }

    fn blob_answer(&self, seen: &Seen, blob: Blob, fault: Option<&Fault>) -> Answer {
        let Blob { digest, mut bytes, .. } = blob;
        let total = bytes.len();
        let mut builder = Response::builder().header(CONTENT_TYPE, "application/octet-stream");
        let range = seen.headers.get(RANGE.as_str()).and_then(|range| range_start(range));
        if let Some(from) = range.filter(|_| fault != Some(&Fault::IgnoreRange)) {
            if from >= total || fault == Some(&Fault::RefuseRange) {
                return error(416, "RANGE");
            }
            let (said, begin) = match fault {
                Some(Fault::LieAboutRange) => (from, 0),
                Some(Fault::OtherRange) => (0, 0),
                _ => (from, from),
            };
            let said = format!("bytes {said}-{}/{total}", total - 1);
            builder = builder.status(StatusCode::PARTIAL_CONTENT).header(CONTENT_RANGE, said);
            bytes = match fault {
                Some(Fault::LieAboutRange) => bytes.slice(..total - from),
                _ => bytes.slice(begin..),
            };
        }
        match fault {
            Some(Fault::WrongBytes) => bytes = bytes.iter().map(|byte| byte ^ 0x55).collect(),
            Some(Fault::TooLong | Fault::TooLongChunked) => {
                bytes = [&bytes[..], b"and more"].concat().into();
            }
            _ => {}
        }
        if fault != Some(&Fault::TooLongChunked) {
            builder = builder.header(CONTENT_LENGTH, bytes.len());
        }
        let state = Arc::clone(&self.state);
        let count = move |sent: usize| {
            *state.sent.lock().entry(digest.clone()).or_default() += sent as u64;
        };
        build(builder, pieces(bytes, fault, count))
    }
}

fn manifest_answer(seen: &Seen, manifest: &Blob, fault: Option<&Fault>) -> Answer {
    if fault == Some(&Fault::NoDigest) && seen.method == Method::HEAD.as_str() {
        return error(405, "UNSUPPORTED");
    }
    let mut bytes = manifest.bytes.clone();
    match fault {
        Some(Fault::WrongBytes) => bytes = bytes.iter().map(|byte| byte ^ 1).collect(),
        Some(Fault::TooLong) => bytes = vec![b' '; 5 << 20].into(),
        _ => {}
    }
    let mut builder = Response::builder().header(CONTENT_TYPE, &manifest.media_type);
    match fault {
        Some(Fault::NoDigest) => {}
        Some(Fault::ClaimDigest(other)) => {
            builder = builder.header("docker-content-digest", other.as_str());
        }
        _ => builder = builder.header("docker-content-digest", manifest.digest.as_str()),
    }
    match seen.method == Method::HEAD.as_str() {
        true => build(builder.header(CONTENT_LENGTH, bytes.len()), empty()),
        false => {
            let announced = builder.header(CONTENT_LENGTH, bytes.len());
            build(announced, pieces(bytes, fault, |_| ()))
        }
    }
}

/// A body in pieces, with whatever the fault does to it. `count` is told what went out.
fn pieces(bytes: Bytes, fault: Option<&Fault>, count: impl Fn(usize) + Send + 'static) -> Body {
    let (piece, pause, stop, hang) = match fault {
        Some(Fault::Slow { piece, pause }) => (*piece, *pause, usize::MAX, false),
        Some(Fault::StallAfter(stop)) => (64 << 10, Duration::ZERO, *stop, true),
        Some(Fault::TruncateAfter(stop)) => (64 << 10, Duration::ZERO, *stop, false),
        _ => (64 << 10, Duration::ZERO, usize::MAX, false),
    };
    let stream = stream::unfold((bytes, 0), move |(mut rest, sent)| {
        let next = rest.split_to(piece.min(rest.len()).min(stop.saturating_sub(sent)));
        let stopped = next.is_empty() && !rest.is_empty();
        count(next.len());
        async move {
            if stopped && hang {
                std::future::pending::<()>().await;
            }
            if stopped {
                // What was sent so far shall leave before the connection breaks.
                tokio::time::sleep(Duration::from_millis(20)).await;
                return Some((Err(io::Error::other("cut")), (Bytes::new(), sent)));
            }
            if next.is_empty() {
                return None;
            }
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            let sent = sent + next.len();
            Some((Ok(Frame::data(next)), (rest, sent)))
        }
    });
    StreamBody::new(stream).boxed_unsync()
}

fn see(request: &Request<Incoming>) -> Seen {
    let header = |(name, value): (&hyper::header::HeaderName, &hyper::header::HeaderValue)| {
        (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    Seen {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        query: request.uri().query().unwrap_or_default().to_owned(),
        headers: request.headers().iter().map(header).collect(),
    }
}

fn basic(username: &str, password: &str) -> String {
    format!("Basic {}", BASE64_STANDARD.encode(format!("{username}:{password}")))
}

/// Of `bytes=5-`.
fn range_start(range: &str) -> Option<usize> {
    range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
}

fn error(status: u16, code: &str) -> Answer {
    let body = serde_json::json!({ "errors": [{ "code": code, "message": code.to_lowercase() }] });
    build(Response::builder().status(status), full(body.to_string()))
}

fn build(builder: hyper::http::response::Builder, body: Body) -> Answer {
    builder.body(body).expect("a test's headers are headers")
}

fn full(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).map_err(|never| match never {}).boxed_unsync()
}

fn empty() -> Body {
    full(Bytes::new())
}
