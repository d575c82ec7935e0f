//! The typed ends of streams, as callers and handlers hold them.
//!
//! ttrpc cannot reset a stream. A caller that drops its [`Receiver`] is done with the call
//! as far as it is concerned, and later items are dropped on arrival; the server learns of
//! it by the deadline of the call, by the end of the requests, or not at all.

use std::{
    fmt,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context as TaskContext, Poll, ready},
};

use bytes::Bytes;
use futures_util::Stream;
use prost::Message;
use tokio::time::Instant;

use crate::{
    Error,
    client::Call,
    link::{Event, Link},
    message::Outgoing,
    queue,
};

/// The requests of a client on one call.
///
/// Dropping it without [`close`](Self::close) leaves the server waiting for more: an end
/// that was not meant must not look like one that was.
pub struct RequestSender<T> {
    call: Arc<Call>,
    deadline: Option<Instant>,
    item: PhantomData<fn(&T)>,
}

impl<T: Message> RequestSender<T> {
    pub(crate) fn new(call: Arc<Call>, deadline: Option<Instant>) -> Self {
        Self { call, deadline, item: PhantomData }
    }

    /// Waits where the connection is busy.
    ///
    /// Cancel safe: an item is sent whole or not at all.
    pub async fn send(&mut self, item: &T) -> Result<(), Error> {
        self.send_message(Outgoing::data(item)?).await
    }

    /// Tells the server that no more requests follow.
    ///
    /// Cancel safe.
    pub async fn close(self) -> Result<(), Error> {
        self.send_message(Outgoing::end_of_stream()).await
    }

    async fn send_message(&self, message: Outgoing) -> Result<(), Error> {
        within(self.deadline, self.call.send(message)).await
    }
}

/// The replies of a handler on one call. The stream ends when the handler returns.
pub struct ReplySender<T> {
    link: Arc<Link>,
    stream_id: u32,
    item: PhantomData<fn(&T)>,
}

impl<T: Message> ReplySender<T> {
    pub(crate) fn new(link: Arc<Link>, stream_id: u32) -> Self {
        Self { link, stream_id, item: PhantomData }
    }

    /// Waits where the client does not read.
    ///
    /// Cancel safe: an item is sent whole or not at all.
    pub async fn send(&mut self, item: &T) -> Result<(), Error> {
        self.link.send(self.stream_id, Outgoing::data(item)?).await
    }
}

/// What the peer sends on one call, item by item; also a [`Stream`].
pub struct Receiver<T> {
    inbox: queue::Receiver<Event>,
    /// The item that came in the request itself, which Go clients may send.
    first: Option<Bytes>,
    ended: bool,
    deadline: Option<Pin<Box<tokio::time::Sleep>>>,
    /// On a client: dropping the last part of a call takes it out of the table.
    _call: Option<Arc<Call>>,
    item: PhantomData<fn() -> T>,
}

impl<T: Message + Default> Receiver<T> {
    pub(crate) fn of_client(
        inbox: queue::Receiver<Event>,
        call: Arc<Call>,
        deadline: Option<Instant>,
    ) -> Self {
        let deadline = deadline.map(|at| Box::pin(tokio::time::sleep_until(at)));
        Self { inbox, first: None, ended: false, deadline, _call: Some(call), item: PhantomData }
    }

    pub(crate) fn of_server(inbox: queue::Receiver<Event>, first: Bytes) -> Self {
        let first = Some(first).filter(|first| !first.is_empty());
        Self { inbox, first, ended: false, deadline: None, _call: None, item: PhantomData }
    }

    /// The next item, or `None` after the last. After an error comes `None`.
    ///
    /// Cancel safe.
    pub async fn recv(&mut self) -> Result<Option<T>, Error> {
        std::future::poll_fn(|cx| self.poll_recv(cx)).await
    }

    fn poll_recv(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<Option<T>, Error>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Ok(Some(T::decode(first)?)));
        }
        let item = match ready!(self.poll_event(cx)) {
            Some(Event::Item(item)) => Some(item),
            // A server may answer a call with one response instead of a stream.
            Some(Event::Result(item)) if !item.is_empty() => Some(item),
            Some(Event::Result(_) | Event::End) | None => None,
            Some(Event::Failed(error)) => return Poll::Ready(Err(error)),
        };
        Poll::Ready(item.map(T::decode).transpose().map_err(Error::from))
    }

    /// `None` once the stream has ended.
    fn poll_event(&mut self, cx: &mut TaskContext<'_>) -> Poll<Option<Event>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let event = match self.inbox.poll_recv(cx) {
            Poll::Ready(event) => event.unwrap_or(Event::Failed(Error::closed())),
            Poll::Pending => {
                let Some(deadline) = &mut self.deadline else { return Poll::Pending };
                ready!(deadline.as_mut().poll(cx));
                Event::Failed(Error::Timeout)
            }
        };
        self.ended = !matches!(event, Event::Item(_));
        Poll::Ready(Some(event))
    }

    /// The one result of a call that streams requests only.
    pub(crate) async fn result(&mut self) -> Result<T, Error> {
        match std::future::poll_fn(|cx| self.poll_event(cx)).await {
            Some(Event::Result(result)) => Ok(T::decode(result)?),
            Some(Event::Failed(error)) => Err(error),
            Some(Event::Item(_)) => Err(Error::Protocol("data in place of a response")),
            Some(Event::End) | None => Err(Error::Protocol("stream ended without a response")),
        }
    }
}

impl<T: Message + Default> Stream for Receiver<T> {
    type Item = Result<T, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_recv(cx).map(Result::transpose)
    }
}

/// A call that streams requests and gets one result.
#[derive(Debug)]
pub struct ClientStream<Req, Res> {
    requests: RequestSender<Req>,
    results: Receiver<Res>,
}

impl<Req: Message, Res: Message + Default> ClientStream<Req, Res> {
    pub(crate) fn new(requests: RequestSender<Req>, results: Receiver<Res>) -> Self {
        Self { requests, results }
    }

    /// Waits where the connection is busy. [`Error::StreamEnded`] says that the server has
    /// answered already: [`finish`](Self::finish) tells what.
    ///
    /// Cancel safe: an item is sent whole or not at all.
    pub async fn send(&mut self, item: &Req) -> Result<(), Error> {
        self.requests.send(item).await
    }

    /// Ends the requests and waits for the result.
    ///
    /// Not cancel safe: the call is given up.
    pub async fn finish(mut self) -> Result<Res, Error> {
        match self.requests.close().await {
            Ok(()) | Err(Error::StreamEnded) => self.results.result().await,
            Err(error) => Err(error),
        }
    }
}

/// Gives up at the deadline.
pub(crate) async fn within<T>(
    deadline: Option<Instant>,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match deadline {
        None => work.await,
        Some(at) => tokio::time::timeout_at(at, work).await.unwrap_or(Err(Error::Timeout)),
    }
}

impl<T> fmt::Debug for RequestSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestSender").field("call", &self.call).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for ReplySender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplySender").field("stream_id", &self.stream_id).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("ended", &self.ended).finish_non_exhaustive()
    }
}
