//! `interop.Test` on the published crate of the same name: what its generator would make,
//! by hand and without types, since messages are wrappers that prost encodes.
#![allow(dead_code, unreachable_pub, reason = "each test target uses its own part")]

use std::{collections::HashMap, pin::Pin, sync::Arc, time::Duration};

use futures_util::stream;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use ttrpc_peer::{
    Code, Error, Request, Response, Result,
    asynchronous::{
        Client, MethodHandler, Server, Service, StreamHandler, StreamInner, TtrpcContext,
        transport::{Listener, Socket},
    },
    error::get_rpc_status,
    get_status,
};

type Boxed<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

struct Unary<F>(F);

/// What `async_trait` makes of `async fn handler(&self, ctx, req) -> Result<Response>`.
impl<F, Fut> MethodHandler for Unary<F>
where
    F: Fn(TtrpcContext, Vec<u8>) -> Fut + Send + Sync,
    Fut: Future<Output = Result<Vec<u8>>> + Send + 'static,
{
    fn handler<'a, 'b>(&'a self, ctx: TtrpcContext, req: Request) -> Boxed<'b, Response>
    where
        'a: 'b,
        Self: 'b,
    {
        let work = (self.0)(ctx, req.payload);
        Box::pin(async move {
            let mut response = Response::new();
            match work.await {
                Ok(payload) => response.payload = payload,
                Err(Error::RpcStatus(status)) => response.set_status(status),
                Err(other) => response.set_status(get_status(Code::UNKNOWN, other)),
            }
            Ok(response)
        })
    }
}

struct Streaming<F>(F);

impl<F, Fut> StreamHandler for Streaming<F>
where
    F: Fn(StreamInner) -> Fut + Send + Sync,
    Fut: Future<Output = Result<Option<Vec<u8>>>> + Send + 'static,
{
    fn handler<'a, 'b>(&'a self, _: TtrpcContext, end: StreamInner) -> Boxed<'b, Option<Response>>
    where
        'a: 'b,
        Self: 'b,
    {
        let work = (self.0)(end);
        Box::pin(async move {
            let mut response = Response::new();
            match work.await {
                Ok(None) => return Ok(None),
                Ok(Some(payload)) => response.payload = payload,
                Err(Error::RpcStatus(status)) => response.set_status(status),
                Err(other) => response.set_status(get_status(Code::UNKNOWN, other)),
            }
            Ok(Some(response))
        })
    }
}

fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M> {
    M::decode(bytes).map_err(|e| get_rpc_status(Code::INVALID_ARGUMENT, e))
}

fn service() -> Service {
    let mut methods: HashMap<String, Box<dyn MethodHandler + Send + Sync>> = HashMap::new();
    methods.insert("Echo".into(), Box::new(Unary(async |_, bytes| Ok(bytes))));
    methods.insert("Empty".into(), Box::new(Unary(async |_, _| Ok(Vec::new()))));
    methods.insert("Metadata".into(), Box::new(Unary(metadata)));
    methods.insert("Fail".into(), Box::new(Unary(fail)));
    methods.insert("Sleep".into(), Box::new(Unary(sleep)));
    let mut streams: HashMap<String, Arc<dyn StreamHandler + Send + Sync>> = HashMap::new();
    streams.insert("Count".into(), Arc::new(Streaming(count)));
    streams.insert("Sum".into(), Arc::new(Streaming(sum)));
    streams.insert("Double".into(), Arc::new(Streaming(double)));
    Service { methods, streams }
}

async fn metadata(ctx: TtrpcContext, key: Vec<u8>) -> Result<Vec<u8>> {
    let key: String = decode(&key)?;
    let values = ctx.metadata.get(&key).cloned().unwrap_or_default();
    Ok(format!("{} {}", values.join(","), ctx.timeout_nano != 0).encode_to_vec())
}

async fn sleep(_: TtrpcContext, ms: Vec<u8>) -> Result<Vec<u8>> {
    tokio::time::sleep(Duration::from_millis(decode::<i64>(&ms)?.unsigned_abs())).await;
    Ok(Vec::new())
}

async fn fail(_: TtrpcContext, code: Vec<u8>) -> Result<Vec<u8>> {
    let code: i64 = decode(&code)?;
    let index = usize::try_from(code).expect("a code");
    Err(get_rpc_status(CODES[index], format!("code {code}")))
}

const CODES: [Code; 17] = [
    Code::OK,
    Code::CANCELLED,
    Code::UNKNOWN,
    Code::INVALID_ARGUMENT,
    Code::DEADLINE_EXCEEDED,
    Code::NOT_FOUND,
    Code::ALREADY_EXISTS,
    Code::PERMISSION_DENIED,
    Code::RESOURCE_EXHAUSTED,
    Code::FAILED_PRECONDITION,
    Code::ABORTED,
    Code::OUT_OF_RANGE,
    Code::UNIMPLEMENTED,
    Code::INTERNAL,
    Code::UNAVAILABLE,
    Code::DATA_LOSS,
    Code::UNAUTHENTICATED,
];

async fn count(mut end: StreamInner) -> Result<Option<Vec<u8>>> {
    let to: i64 = decode(&end.recv().await?)?;
    for number in 0..to {
        end.send(number.encode_to_vec()).await?;
    }
    if to == 13 { Err(get_rpc_status(Code::UNAVAILABLE, "unlucky")) } else { Ok(None) }
}

async fn sum(mut end: StreamInner) -> Result<Option<Vec<u8>>> {
    let mut sum = 0i64;
    loop {
        match end.recv().await {
            Ok(number) => sum += decode::<i64>(&number)?,
            Err(Error::Eof) => return Ok(Some(sum.encode_to_vec())),
            Err(error) => return Err(error),
        }
    }
}

async fn double(mut end: StreamInner) -> Result<Option<Vec<u8>>> {
    loop {
        match end.recv().await {
            Ok(number) => end.send((2 * decode::<i64>(&number)?).encode_to_vec()).await?,
            Err(Error::Eof) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// A server of the peer on one end of a pipe or socket.
pub async fn serve<T>(io: T) -> Server
where
    T: AsyncRead + AsyncWrite + Send + Sync + 'static,
{
    // One connection, then none, but no end: an end would stop the server.
    let connections = stream::unfold(Some(io), async |io| match io {
        Some(io) => Some((Ok(io), None)),
        None => std::future::pending().await,
    });
    let mut server = Server::new()
        .add_listener(Listener::new(Box::pin(connections)))
        .register_service([(super::interop::SERVICE.to_owned(), service())].into());
    server.start().await.expect("the peer starts");
    server
}

pub fn connect<T>(io: T) -> Client
where
    T: AsyncRead + AsyncWrite + Send + Sync + 'static,
{
    Client::new(Socket::new(io))
}

pub fn request(method: &str, payload: Vec<u8>, timeout: Duration) -> Request {
    let mut request = Request::new();
    request.service = super::interop::SERVICE.into();
    request.method = method.into();
    request.timeout_nano = i64::try_from(timeout.as_nanos()).expect("short");
    request.payload = payload;
    request
}
