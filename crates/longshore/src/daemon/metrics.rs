//! `/metrics` over HTTP/1.1.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::Full;
use hyper::body::Incoming;
use telemetry::metrics::{self, Exposition};

pub(super) async fn answer(
    exposition: Exposition,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, kind, body) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => match exposition.text() {
            Ok(text) => (StatusCode::OK, metrics::CONTENT_TYPE, text),
            Err(e) => (StatusCode::INTERNAL_SERVER_ERROR, PLAIN, format!("encode metrics: {e}\n")),
        },
        (_, "/metrics") => (StatusCode::METHOD_NOT_ALLOWED, PLAIN, "only GET\n".to_owned()),
        _ => (StatusCode::NOT_FOUND, PLAIN, "only /metrics is here\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(kind));
    Ok(response)
}

const PLAIN: &str = "text/plain; charset=utf-8";
