//! What the tests share: a service with one method of each temper, a connected pair, and a
//! peer that speaks in raw frames.
#![allow(dead_code, unreachable_pub, reason = "each test target uses its own part")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use prost::Message;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    sync::Notify,
};
use tokio_util::task::TaskTracker;
use ttrpc::{
    Client, Context, Decoded, Decoder, Error, Flags, Header, MessageType, MethodName, Receiver,
    ReplySender, Server, ServerContext, Service, Status,
};

pub const SERVICE: &str = "test.Temper";

pub fn name(method: &str) -> MethodName<'_> {
    MethodName::new(SERVICE, method)
}

/// A call that owns what it needs, so that it can be joined, boxed and dropped.
pub async fn ask<Req: Message, Res: Message + Default>(
    client: &Client,
    method: &str,
    ctx: Context,
    request: Req,
) -> Result<Res, Error> {
    client.call(name(method), &ctx, &request).await
}

/// Generous: a test that fails by it hangs otherwise.
pub const LONG: Duration = Duration::from_secs(90);

/// What tests learn from inside handlers.
#[derive(Debug, Default)]
pub struct Seen {
    pub started: AtomicUsize,
    /// Handlers that ended, also by being dropped.
    pub ended: AtomicUsize,
    pub sent: AtomicUsize,
    /// Lets `Wait` return.
    pub go: Notify,
}

struct Ended(Arc<Seen>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl Seen {
    fn start(self: &Arc<Self>) -> Ended {
        self.started.fetch_add(1, Ordering::SeqCst);
        Ended(Arc::clone(self))
    }
}

/// `Echo`, `Panic`, `Fail`, `Wait` (until told), `Big` (as many bytes as asked for),
/// `Count` (to a number), `Sum`, `Shout` (each back in upper case).
pub fn service(seen: &Arc<Seen>) -> Service {
    let (wait, count) = (Arc::clone(seen), Arc::clone(seen));
    Service::new(SERVICE)
        .unary("Echo", async |_: ServerContext, text: String| Ok(text))
        .unary("Panic", async |_: ServerContext, text: String| -> Result<(), Status> {
            panic!("{text}")
        })
        .unary("Fail", async |_: ServerContext, text: String| -> Result<(), Status> {
            let details = vec![ttrpc::Any { type_url: "t/x".into(), value: "v".into() }];
            Err(Status { details, ..Status::not_found(text) })
        })
        .unary("Big", async |_: ServerContext, len: u64| {
            Ok(vec![b'x'; usize::try_from(len).expect("64 bits")])
        })
        .unary("Metadata", async |ctx: ServerContext, key: String| {
            let values: Vec<_> = ctx.metadata.get_all(&key).collect();
            Ok(format!("{} {}", values.join(","), ctx.remaining().is_some()))
        })
        .unary("Wait", move |_: ServerContext, text: String| {
            let seen = Arc::clone(&wait);
            async move {
                let _ended = seen.start();
                seen.go.notified().await;
                Ok(text)
            }
        })
        .server_stream("Count", move |_: ServerContext, to: u64, replies: ReplySender<u64>| {
            count_to(Arc::clone(&count), to, replies)
        })
        .client_stream("Sum", async |_: ServerContext, mut numbers: Receiver<u64>| {
            let mut sum = 0;
            while let Some(number) = numbers.recv().await? {
                if number == u64::MAX {
                    return Err(Status::invalid_argument("too much"));
                }
                sum += number;
            }
            Ok(sum)
        })
        .duplex("Shout", shout)
}

async fn count_to(seen: Arc<Seen>, to: u64, mut replies: ReplySender<u64>) -> Result<(), Status> {
    let _ended = seen.start();
    for number in 0..to {
        replies.send(&number).await?;
        seen.sent.fetch_add(1, Ordering::SeqCst);
    }
    if to == 13 { Err(Status::unavailable("unlucky")) } else { Ok(()) }
}

async fn shout(
    _: ServerContext,
    mut words: Receiver<String>,
    mut replies: ReplySender<String>,
) -> Result<(), Status> {
    while let Some(word) = words.recv().await? {
        replies.send(&word.to_uppercase()).await?;
    }
    Ok(())
}

/// A client and a server in one process.
pub struct Pair {
    pub client: Client,
    pub server: Server,
    pub seen: Arc<Seen>,
    /// Holds the task that serves.
    pub tasks: TaskTracker,
}

impl Pair {
    /// Joined by a pipe that holds `pipe` bytes each way.
    pub fn new(pipe: usize) -> Self {
        Self::with(pipe, 1024)
    }

    pub fn with(pipe: usize, max_calls: usize) -> Self {
        let seen = Arc::default();
        let server = Server::builder().service(service(&seen)).max_calls(max_calls).build();
        let (near, far) = tokio::io::duplex(pipe);
        let tasks = TaskTracker::new();
        let serving = server.clone();
        tasks.spawn(async move { serving.serve_connection(far).await });
        tasks.close();
        Self { client: Client::new(near), server, seen, tasks }
    }

    pub async fn echo(&self, text: &str) -> Result<String, Error> {
        ask(&self.client, "Echo", Context::timeout(LONG), text.to_owned()).await
    }

    /// Waits until as many `Wait` and `Count` handlers have started.
    pub async fn started(&self, count: usize) {
        eventually("handlers start", || self.seen.started.load(Ordering::SeqCst) >= count).await;
    }

    pub async fn ended(&self, count: usize) {
        eventually("handlers end", || self.seen.ended.load(Ordering::SeqCst) >= count).await;
    }
}

pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(LONG, wait).await.is_ok(), "in vain: {what}");
}

/// A peer that says exactly what a test wants.
pub struct Raw {
    pub io: DuplexStream,
    buf: BytesMut,
    decoder: Decoder,
}

#[derive(Clone, PartialEq, Message)]
pub struct RawRequest {
    #[prost(string, tag = "1")]
    pub service: String,
    #[prost(string, tag = "2")]
    pub method: String,
    #[prost(bytes = "vec", tag = "3")]
    pub payload: Vec<u8>,
    #[prost(int64, tag = "4")]
    pub timeout_nano: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct RawResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<RawStatus>,
    #[prost(bytes = "vec", tag = "2")]
    pub payload: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RawStatus {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
}

pub fn frame(stream_id: u32, kind: MessageType, flags: Flags, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).expect("a test payload");
    [&Header { len, stream_id, kind, flags }.to_bytes()[..], payload].concat()
}

pub fn request(stream_id: u32, method: &str, argument: &impl Message) -> Vec<u8> {
    let request = RawRequest {
        service: SERVICE.into(),
        method: method.into(),
        payload: argument.encode_to_vec(),
        timeout_nano: 0,
    };
    frame(stream_id, MessageType::REQUEST, Flags::NONE, &request.encode_to_vec())
}

impl Raw {
    pub fn new(io: DuplexStream) -> Self {
        Self { io, buf: BytesMut::new(), decoder: Decoder::default() }
    }

    pub async fn write(&mut self, bytes: &[u8]) {
        self.io.write_all(bytes).await.expect("the peer reads");
    }

    pub async fn frame(&mut self) -> Option<(Header, Bytes)> {
        loop {
            match self.decoder.decode(&mut self.buf) {
                Some(Decoded::Frame(header, payload)) => return Some((header, payload)),
                Some(Decoded::Oversize(header)) => panic!("too large: {header:?}"),
                None => {}
            }
            if self.io.read_buf(&mut self.buf).await.expect("the pipe works") == 0 {
                return None;
            }
        }
    }

    /// The next frame must be a response: its stream and status code, 0 for none.
    pub async fn response(&mut self) -> (u32, i32, RawResponse) {
        let (header, payload) = self.frame().await.expect("an answer");
        assert_eq!(header.kind, MessageType::RESPONSE, "{header:?}");
        let response = RawResponse::decode(payload).expect("a response");
        (header.stream_id, response.status.as_ref().map_or(0, |s| s.code), response)
    }
}

/// A server of the test service with a raw peer.
pub fn raw_client() -> (Raw, Server, TaskTracker) {
    let server = Server::builder().service(service(&Arc::default())).build();
    let (near, far) = tokio::io::duplex(64 << 10);
    let tasks = TaskTracker::new();
    let serving = server.clone();
    tasks.spawn(async move { serving.serve_connection(far).await });
    tasks.close();
    (Raw::new(near), server, tasks)
}
