//! One HTTP/2 request in, one answer out: what every CRI call has in common.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use api_cri::{
    MAX_MESSAGE_BYTES, RPCS,
    v1::{image_service_server::ImageServiceServer, runtime_service_server::RuntimeServiceServer},
};
use engine::Engine;
use http::{HeaderMap, Request, Response};
use telemetry::metrics::Registry;
use tokio::time::Instant;
use tonic::{Code, Status, body::Body, server::NamedService, service::Routes};

use crate::{image::Image, rpc_metrics::RpcMetrics, runtime::Runtime, streaming::Streaming};

/// Where the engine will be: the socket is served before the engine is ready, and until
/// then every call answers UNAVAILABLE, which the kubelet takes as "try again".
#[derive(Clone, Debug, Default)]
pub struct Slot(Arc<OnceLock<Arc<Engine>>>);

impl Slot {
    /// Opens the gate. A second engine is ignored: the first one serves.
    pub fn fill(&self, engine: Arc<Engine>) {
        let _ = self.0.set(engine);
    }

    /// The same place, for services that are mounted beside ours.
    pub fn cell(&self) -> Arc<OnceLock<Arc<Engine>>> {
        Arc::clone(&self.0)
    }

    pub(crate) fn engine(&self) -> Result<&Arc<Engine>, Status> {
        self.0.get().ok_or_else(|| Status::unavailable("server is not initialized yet"))
    }
}

/// Both CRI services, to be called with the requests of any number of connections.
#[derive(Clone, Debug)]
pub struct Service {
    slot: Slot,
    routes: Routes,
    metrics: RpcMetrics,
    /// The names of services that are not CRI's.
    guests: Vec<&'static str>,
}

impl Service {
    pub fn new(slot: Slot, streaming: Streaming, registry: &mut Registry) -> Self {
        let runtime = RuntimeServiceServer::new(Runtime::new(slot.clone(), streaming))
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let image = ImageServiceServer::new(Image::new(slot.clone()))
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let routes = Routes::new(runtime).add_service(image).prepare();
        Self { slot, routes, metrics: RpcMetrics::register(registry), guests: Vec::new() }
    }

    /// Serves another gRPC service on the same connections and by the same rules.
    #[must_use]
    pub fn with<S>(mut self, guest: S) -> Self
    where
        S: tower::Service<Request<Body>, Response = Response<Body>, Error = Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        self.guests.push(S::NAME);
        self.routes = self.routes.add_service(guest).prepare();
        self
    }

    /// Cancel safe as far as the engine is: work that changes the world goes on there.
    async fn answer<B>(mut self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<tonic::codegen::StdError>,
    {
        let rpc = rpc_name(request.uri().path(), &self.guests);
        let started = Instant::now();
        let response = match self.slot.engine() {
            Err(status) => status.into_http(),
            Ok(_) => {
                let limit = time_limit(request.headers());
                let call = tower::Service::call(&mut self.routes, request.map(Body::new));
                within(limit, call).await
            }
        };
        // Answers with a body carry their status in the trailers: those began well.
        let status = Status::from_header_map(response.headers());
        let code = status.as_ref().map_or(Code::Ok, Status::code);
        self.metrics.count(rpc, code_name(code), started.elapsed());
        if let Some(status) = status.filter(|status| status.code() != Code::Ok) {
            tracing::debug!(rpc, code = code_name(code), message = status.message(), "call failed");
        }
        response
    }
}

impl<B> tower::Service<Request<B>> for Service
where
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<tonic::codegen::StdError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let answer = self.clone().answer(request);
        Box::pin(async move { Ok(answer.await) })
    }
}

async fn within(
    limit: Option<Duration>,
    call: impl Future<Output = Result<Response<Body>, Infallible>>,
) -> Response<Body> {
    let Some(limit) = limit else {
        return call.await.unwrap_or_else(|never| match never {});
    };
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.unwrap_or_else(|never| match never {}),
        Err(_) => Status::deadline_exceeded("the caller's deadline has passed").into_http(),
    }
}

/// A name of the contract, that of a guest as a whole, or "unknown": labels are not the
/// caller's to invent.
fn rpc_name(path: &str, guests: &[&'static str]) -> &'static str {
    let path = path.strip_prefix('/').unwrap_or(path);
    let (service, method) = path.split_once('/').unwrap_or((path, ""));
    if let Some(guest) = guests.iter().find(|guest| **guest == service) {
        return guest;
    }
    let service = service.strip_prefix("runtime.v1.").unwrap_or_default();
    let known = RPCS.iter().find(|rpc| **rpc == (service, method));
    known.map_or("unknown", |(_, method)| method)
}

/// `grpc-timeout`: at most eight digits and a unit. What does not parse is no limit.
fn time_limit(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, want: Option<Duration>) {
        let headers = HeaderMap::from_iter([(
            http::HeaderName::from_static("grpc-timeout"),
            text.parse().unwrap(),
        )]);
        assert_eq!(time_limit(&headers), want, "{text:?}");
    }

    #[test]
    fn time_limits() {
        check("2S", Some(Duration::from_secs(2)));
        check("100m", Some(Duration::from_millis(100)));
        check("99999999H", Some(Duration::from_secs(99_999_999 * 3600)));
        check("7n", Some(Duration::from_nanos(7)));
        check("", None);
        check("S", None);
        check("1x", None);
        check("-1S", None);
        check("123456789S", None);
        check("1é", None);
    }

    #[test]
    fn labels_come_from_the_contract() {
        #[track_caller]
        fn check(path: &str, want: &str) {
            assert_eq!(rpc_name(path, &["admin.v1.Admin"]), want, "{path}");
        }
        check("/runtime.v1.RuntimeService/Version", "Version");
        check("/runtime.v1.ImageService/PullImage", "PullImage");
        check("/runtime.v1.ImageService/Version", "unknown");
        check("/admin.v1.Admin/Exec", "admin.v1.Admin");
        check("/other.Admin/Exec", "unknown");
        check("/x/Evil", "unknown");
        check("", "unknown");
        assert_eq!(RPCS.len(), 43);
    }
}
