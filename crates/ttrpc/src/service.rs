//! Services: names and the handlers behind them.
//!
//! Generated code builds these from a trait; by hand it is as short:
//!
//! ```
//! # use ttrpc::{Server, ServerContext, Service};
//! let echo = Service::new("example.Echo")
//!     .unary("Echo", async |_: ServerContext, text: String| Ok(text));
//! let server = Server::builder().service(echo).build();
//! # let _ = server;
//! ```

use std::{collections::HashMap, fmt, sync::Arc};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use prost::Message;

use crate::{
    Receiver, ReplySender, ServerContext, Status,
    link::{Event, Link},
    message::Outgoing,
    queue,
};

/// A named set of methods. Giving a method twice is a mistake of the program, and a panic.
pub struct Service {
    pub(crate) name: String,
    methods: HashMap<String, Method>,
}

/// The encoded last message of a call.
pub(crate) type Answer = BoxFuture<'static, Result<Outgoing, Status>>;

#[derive(Clone)]
pub(crate) enum Method {
    Unary(Arc<dyn Fn(ServerContext, Bytes) -> Answer + Send + Sync>),
    Streaming(Arc<dyn Fn(ServerContext, Bytes, StreamEnd) -> Answer + Send + Sync>),
}

/// A handler's end of a stream, before it has a type.
pub(crate) struct StreamEnd {
    pub(crate) link: Arc<Link>,
    pub(crate) stream_id: u32,
    pub(crate) inbox: queue::Receiver<Event>,
}

impl Service {
    /// The full name, with the package, as in `containerd.task.v3.Task`.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), methods: HashMap::new() }
    }

    /// One request, one response.
    pub fn unary<Req, Res, F, Fut>(self, method: &str, handler: F) -> Self
    where
        Req: Message + Default + 'static,
        Res: Message,
        F: Fn(ServerContext, Req) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Res, Status>> + Send + 'static,
    {
        self.with(
            method,
            Method::Unary(Arc::new(move |ctx, payload| {
                let work = argument(payload).map(|request| handler(ctx, request));
                Box::pin(async move { Ok(Outgoing::response(&work?.await?)?) })
            })),
        )
    }

    /// One request, many responses.
    pub fn server_stream<Req, Res, F, Fut>(self, method: &str, handler: F) -> Self
    where
        Req: Message + Default + 'static,
        Res: Message,
        F: Fn(ServerContext, Req, ReplySender<Res>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Status>> + Send + 'static,
    {
        self.with(
            method,
            Method::Streaming(Arc::new(move |ctx, payload, end| {
                let replies = ReplySender::new(end.link, end.stream_id);
                let work = argument(payload).map(|request| handler(ctx, request, replies));
                Box::pin(async move { work?.await.map(|()| Outgoing::end_of_stream()) })
            })),
        )
    }

    /// Many requests, one response.
    pub fn client_stream<Req, Res, F, Fut>(self, method: &str, handler: F) -> Self
    where
        Req: Message + Default + 'static,
        Res: Message,
        F: Fn(ServerContext, Receiver<Req>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Res, Status>> + Send + 'static,
    {
        self.with(
            method,
            Method::Streaming(Arc::new(move |ctx, payload, end| {
                let work = handler(ctx, Receiver::of_server(end.inbox, payload));
                Box::pin(async move { Ok(Outgoing::response(&work.await?)?) })
            })),
        )
    }

    /// Many requests, many responses, in any order.
    pub fn duplex<Req, Res, F, Fut>(self, method: &str, handler: F) -> Self
    where
        Req: Message + Default + 'static,
        Res: Message,
        F: Fn(ServerContext, Receiver<Req>, ReplySender<Res>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Status>> + Send + 'static,
    {
        self.with(
            method,
            Method::Streaming(Arc::new(move |ctx, payload, end| {
                let replies = ReplySender::new(end.link, end.stream_id);
                let work = handler(ctx, Receiver::of_server(end.inbox, payload), replies);
                Box::pin(async move { work.await.map(|()| Outgoing::end_of_stream()) })
            })),
        )
    }

    pub(crate) fn method(&self, name: &str) -> Option<&Method> {
        self.methods.get(name)
    }

    fn with(mut self, name: &str, method: Method) -> Self {
        let twin = self.methods.insert(name.to_owned(), method);
        assert!(twin.is_none(), "method {name} of service {} is given twice", self.name);
        self
    }
}

fn argument<Req: Message + Default>(payload: Bytes) -> Result<Req, Status> {
    Req::decode(payload).map_err(|e| Status::invalid_argument(format!("decode request: {e}")))
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let methods: Vec<_> = self.methods.keys().collect();
        f.debug_struct("Service").field("name", &self.name).field("methods", &methods).finish()
    }
}
