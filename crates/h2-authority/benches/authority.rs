//! What the layer costs: the rewriting of one call's frames by itself, and whole calls over a
//! socket pair with and without it.

use std::convert::Infallible;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use h2_authority::{AuthorityStream, PREFACE, Rewriter};
use http_body_util::{BodyExt, Full};
use hyper::{
    Request, Response, body::Incoming, client::conn::http2::SendRequest, service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use loona_hpack::Encoder;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
    runtime::{Builder, Runtime},
};
use tokio_util::task::TaskTracker;

const FIELDS: [(&str, &str); 7] = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/runtime.v1.RuntimeService/Version"),
    (":authority", "/run/longshore/longshore.sock"),
    ("content-type", "application/grpc"),
    ("user-agent", "grpc-go/1.81.1"),
    ("te", "trailers"),
];

/// `grpc-timeout: 9999876u`, which changes with each call, in Huffman's code and not indexed.
const DEADLINE: &[u8] = b"\x00\x89\x9a\xca\xc8\xb2\x4d\x49\x4f\x6a\x7f\x86\x7d\xf7\xdf\x79\xd7\x2d";

/// The frames of a call: its fields, and an empty message.
fn call(encoder: &mut Encoder<'_>, extra: &[u8]) -> Vec<u8> {
    let fields = FIELDS.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    let block = [&encoder.encode(fields)[..], extra].concat();
    let length = u8::try_from(block.len()).expect("a short block");
    let mut frames = vec![0, 0, length, 1, 4, 0, 0, 0, 1];
    frames.extend(block);
    frames.extend([0, 0, 5, 0, 1, 0, 0, 0, 1]);
    frames.extend([0; 5]);
    frames
}

fn feed(rewriter: &mut Rewriter, mut input: &[u8], out: &mut Vec<u8>) {
    out.clear();
    while !input.is_empty() {
        let fed = rewriter.feed(input, out);
        input = &input[fed..];
    }
    assert_eq!(rewriter.violation(), None);
}

/// The first call of a connection fills the tables, the others find all but the deadline in them.
fn rewriting(c: &mut Criterion) {
    let mut encoder = Encoder::new();
    let (first, next) = (call(&mut encoder, DEADLINE), call(&mut encoder, DEADLINE));
    let begin = [&PREFACE[..], &first].concat();
    let (mut rewriter, mut out) = (Rewriter::new(), Vec::new());
    feed(&mut rewriter, &begin, &mut out);
    let mut group = c.benchmark_group("authority/rewriting");
    group.throughput(Throughput::Elements(1));
    group.bench_function("call", |b| b.iter(|| feed(&mut rewriter, &next, &mut out)));
    group.bench_function("first call", |b| {
        b.iter(|| feed(&mut Rewriter::new(), &begin, &mut out));
    });
    group.finish();
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.expect("a body").to_bytes();
    Ok(Response::new(Full::new(body)))
}

async fn connect<S>(near: UnixStream, far: S) -> SendRequest<Full<Bytes>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let tasks = TaskTracker::new();
    tasks.spawn(async move {
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = server.serve_connection(TokioIo::new(far), service_fn(answer)).await;
    });
    let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (client, connection) = builder.handshake(TokioIo::new(near)).await.expect("a handshake");
    tasks.spawn(connection);
    client
}

async fn ask(mut client: SendRequest<Full<Bytes>>, body: Bytes) {
    let request = Request::post("http://localhost/runtime.v1.RuntimeService/Version")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", "9999876u")
        .body(Full::new(body.clone()))
        .expect("a request");
    client.ready().await.expect("a connection");
    let response = client.send_request(request).await.expect("a response");
    let answer = response.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(answer.len(), body.len());
}

fn calls(c: &mut Criterion) {
    let runtime: Runtime =
        Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let (plain, layered) = runtime.block_on(async {
        let pair = || UnixStream::pair().expect("a socket pair");
        let ((a, b), (c, d)) = (pair(), pair());
        (connect(a, b).await, connect(c, AuthorityStream::new(d)).await)
    });
    for (label, size) in [("5B", 5), ("1MiB", 1 << 20)] {
        let body = Bytes::from(vec![0; size]);
        let mut group = c.benchmark_group(format!("authority/{label}"));
        group.throughput(Throughput::Elements(1));
        for (name, client) in [("without", &plain), ("with", &layered)] {
            group.bench_function(name, |b| {
                b.to_async(&runtime).iter(|| ask(client.clone(), body.clone()));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, rewriting, calls);
criterion_main!(benches);
