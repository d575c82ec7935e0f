//! A real client and server of HTTP/2 with the layer between them: its table stays in sync with the
//! client's over many requests, and requests arrive unchanged.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::convert::Infallible;

use bytes::Bytes;
use h2_authority::AuthorityStream;
use http_body_util::{BodyExt, Full};
use hyper::{
    HeaderMap, Request, Response,
    body::Incoming,
    client::conn::http2::SendRequest,
    header::{HeaderName, HeaderValue},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio_util::task::TaskTracker;

/// Answers with the fields and the body of the request, and with its authority in `x-authority`.
async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let mut response = Response::new(Full::new(body.collect().await.unwrap().to_bytes()));
    *response.headers_mut() = head.headers;
    let authority = head.uri.authority().map_or("none", |authority| authority.as_str());
    response.headers_mut().insert("x-authority", authority.parse().unwrap());
    Ok(response)
}

/// Returns a client. Its connection and server end with it.
async fn connect() -> SendRequest<Full<Bytes>> {
    let (near, far) = UnixStream::pair().unwrap();
    let tasks = TaskTracker::new();
    tasks.spawn(async move {
        let io = TokioIo::new(AuthorityStream::new(far));
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = server.serve_connection(io, service_fn(echo)).await;
    });
    let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (client, connection) = builder.handshake(TokioIo::new(near)).await.unwrap();
    tasks.spawn(connection);
    client
}

/// Fields that come again, that change, that are too secret to be kept, and that push others out.
fn metadata(call: usize) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut put = |name: &str, value: String| {
        let name = HeaderName::try_from(name).unwrap();
        headers.append(name, HeaderValue::try_from(value).unwrap());
    };
    put("x-few", (call % 13).to_string());
    put("x-each", format!("call {call}"));
    put(&format!("x-name-{}", call % 31), "~".repeat(call % 7));
    put("x-text", "v".repeat(call * 37 % 2999));
    put("x-twice", "first".to_owned());
    put("x-twice", format!("second {}", call % 3));
    let mut secret = HeaderValue::try_from(format!("secret {}", call % 5)).unwrap();
    secret.set_sensitive(true);
    headers.insert("authorization", secret);
    headers
}

#[tokio::test]
async fn a_thousand_requests_arrive_as_they_were_sent() {
    let mut client = connect().await;
    for call in 0..1000 {
        let body = Bytes::from(vec![b'b'; call * 91 % 40_000]);
        let mut request =
            Request::post("http://example.com:10010/a/b").body(Full::new(body.clone())).unwrap();
        *request.headers_mut() = metadata(call);
        client.ready().await.unwrap();
        let (head, answer) = client.send_request(request).await.unwrap().into_parts();
        for name in metadata(call).keys() {
            let arrived: Vec<_> = head.headers.get_all(name).iter().cloned().collect();
            let sent: Vec<_> = metadata(call).get_all(name).iter().cloned().collect();
            assert_eq!(arrived, sent, "{call}: {name}");
        }
        assert_eq!(head.headers["x-authority"], "example.com:10010");
        assert_eq!(answer.collect().await.unwrap().to_bytes(), body);
    }
}

#[tokio::test]
async fn requests_of_many_streams_at_once_arrive() {
    let client = connect().await;
    let tasks = TaskTracker::new();
    let calls = (0..200).map(|call| {
        let mut client = client.clone();
        tasks.spawn(async move {
            let body = Bytes::from(vec![b'b'; call * 997]);
            let mut request =
                Request::post("http://localhost/").body(Full::new(body.clone())).unwrap();
            *request.headers_mut() = metadata(call);
            client.ready().await.unwrap();
            let (head, answer) = client.send_request(request).await.unwrap().into_parts();
            assert_eq!(head.headers["x-each"], format!("call {call}"));
            assert_eq!(answer.collect().await.unwrap().to_bytes(), body);
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
}

/// More than h2 takes is h2's to refuse, and the connection lives on.
#[tokio::test]
async fn requests_with_too_many_fields_are_refused_alone() {
    let mut client = connect().await;
    let mut request = Request::post("http://localhost/").body(Full::new(Bytes::new())).unwrap();
    request.headers_mut().insert("x-large", HeaderValue::try_from("v".repeat(30_000)).unwrap());
    client.ready().await.unwrap();
    // The client knows the limit and does not send it; one that does gets 431.
    let refused = client.send_request(request).await;
    assert!(refused.map_or(true, |response| response.status() == 431));
    client.ready().await.unwrap();
    let request = Request::post("http://localhost/").body(Full::new(Bytes::new())).unwrap();
    assert_eq!(client.send_request(request).await.unwrap().status(), 200);
}
