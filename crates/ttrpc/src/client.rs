//! The calling side of a connection.
//!
//! Callers write their requests themselves. One task drives the connection: it hands what it
//! reads to those who wait, ends calls at their deadlines, and writes on where the byte stream
//! took no more of a caller.
//!
//! **Invariant:** a call may be dropped at any moment. Its message is then sent whole, or,
//! where it still waits in the queue, not at all; its answer is dropped on arrival; the
//! connection and all other calls never notice.

use std::{convert::Infallible, io, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::{Either, select};
use prost::Message;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::debug;

use crate::{
    ClientStream, Context, Direction, Error, Flags, Header, MessageType, MessageWriter, Oversize,
    Receiver, RequestSender, StreamWriter,
    frame::{Decoded, FrameReader},
    link::{self, Ended, Event, Haste, Link, Role, Slot, Waiter},
    message::{Envelope, Outgoing},
    wire::Response,
};

/// A server that fails while we write may have answered other calls before; this long we
/// still listen.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A connection to a server. Clones share it; it closes when the last clone and the last
/// stream are gone.
#[derive(Clone, Debug)]
pub struct Client {
    handle: Arc<Handle>,
}

/// What clones and open streams hold.
#[derive(Debug)]
struct Handle {
    link: Arc<Link>,
    driver: TaskTracker,
    stop: CancellationToken,
}

/// A call in the table of streams; dropping it takes it out.
#[derive(Debug)]
pub(crate) struct Call {
    handle: Arc<Handle>,
    stream_id: u32,
}

/// A unary call that is queued or sent.
struct Waiting {
    answer: oneshot::Receiver<Result<Bytes, Error>>,
    _call: Call,
}

/// The name of a method, in the two parts a request carries.
#[derive(Clone, Copy, Debug)]
pub struct MethodName<'a> {
    /// With its package, as in `containerd.task.v3.Task`.
    pub service: &'a str,
    pub method: &'a str,
}

// === impl Client ===

impl Client {
    /// Talks to a server over any byte stream. Must be called inside a tokio runtime.
    pub fn new<T>(io: T) -> Self
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (reader, writer) = tokio::io::split(io);
        Self::from_parts(reader, StreamWriter::new(writer))
    }

    /// Talks over a transport that wants to know where messages end.
    pub fn from_parts<R, W>(reader: R, writer: W) -> Self
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: MessageWriter,
    {
        let (client, driver) = Self::driven(reader, writer);
        // Who waits for its end waits by the client's own tracker.
        TaskTracker::new().spawn(driver);
        client
    }

    /// The same without a task: the connection lives while the second value is polled, and
    /// ends when that is dropped. For those who have a task for it already, as every hop
    /// between tasks costs a call more than its bytes do.
    pub fn driven<R, W>(reader: R, writer: W) -> (Self, impl Future<Output = ()> + Send + 'static)
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: MessageWriter,
    {
        let link = Link::new(Role::Client, writer);
        let (driver, stop) = (TaskTracker::new(), CancellationToken::new());
        let work = drive(Ended(Arc::clone(&link)), stop.clone(), reader);
        let work = driver.track_future(work);
        driver.close();
        (Self { handle: Arc::new(Handle { link, driver, stop }) }, work)
    }

    /// One request, one response.
    ///
    /// Cancel safe for the connection; whether the server acts on a dropped call depends on
    /// whether its request was on the way.
    pub async fn call<Req, Res>(
        &self,
        name: MethodName<'_>,
        ctx: &Context,
        request: &Req,
    ) -> Result<Res, Error>
    where
        Req: Message,
        Res: Message + Default,
    {
        let message = Outgoing::request(name.envelope(ctx), Some(request), Flags::NONE)?;
        Ok(Res::decode(self.unary(ctx, message).await?)?)
    }

    /// One request, one response, both as the bytes that a method's messages are on the wire: for
    /// those who send the same to many.
    ///
    /// Cancel safe as [`Client::call`].
    pub async fn call_encoded(
        &self,
        name: MethodName<'_>,
        ctx: &Context,
        request: &[u8],
    ) -> Result<Bytes, Error> {
        self.unary(ctx, Outgoing::encoded_request(name.envelope(ctx), request)?).await
    }

    /// The same, but it is not sent before somebody calls [`Client::flush`], to which `queued`
    /// has to see: for those who have more to send, and know when they have not.
    ///
    /// Cancel safe as [`Client::call`]; what was not sent yet is not sent.
    pub async fn call_encoded_later(
        &self,
        name: MethodName<'_>,
        ctx: &Context,
        request: &[u8],
        queued: impl FnOnce(&Self),
    ) -> Result<Bytes, Error> {
        let message = Outgoing::encoded_request(name.envelope(ctx), request)?;
        let waiting = self.open_unary(ctx, message, Haste::Later).await?;
        queued(self);
        waiting.answer().await
    }

    /// Sends what [`Client::call_encoded_later`] has left.
    pub fn flush(&self) {
        self.handle.link.pump();
    }

    /// One request, many responses.
    ///
    /// Cancel safe.
    pub async fn server_stream<Req, Res>(
        &self,
        name: MethodName<'_>,
        ctx: &Context,
        request: &Req,
    ) -> Result<Receiver<Res>, Error>
    where
        Req: Message,
        Res: Message + Default,
    {
        let flags = Flags::REMOTE_CLOSED;
        let message = Outgoing::request(name.envelope(ctx), Some(request), flags)?;
        let (_, receiver) = self.stream::<Req, Res>(ctx, message).await?;
        Ok(receiver)
    }

    /// Many requests, one response.
    ///
    /// Cancel safe.
    pub async fn client_stream<Req, Res>(
        &self,
        name: MethodName<'_>,
        ctx: &Context,
    ) -> Result<ClientStream<Req, Res>, Error>
    where
        Req: Message,
        Res: Message + Default,
    {
        let (sender, receiver) = self.duplex(name, ctx).await?;
        Ok(ClientStream::new(sender, receiver))
    }

    /// Many requests, many responses, in any order.
    ///
    /// Cancel safe.
    pub async fn duplex<Req, Res>(
        &self,
        name: MethodName<'_>,
        ctx: &Context,
    ) -> Result<(RequestSender<Req>, Receiver<Res>), Error>
    where
        Req: Message,
        Res: Message + Default,
    {
        // Go looks at neither flag; the Rust peer takes a request without "no data" for the
        // first item as well.
        let flags = Flags::REMOTE_OPEN | Flags::NO_DATA;
        let message = Outgoing::request::<Req>(name.envelope(ctx), None, flags)?;
        self.stream(ctx, message).await
    }

    /// Ends the connection now; calls in flight fail with [`Error::Closed`].
    pub fn close(&self) {
        self.handle.stop.cancel();
    }

    pub fn is_closed(&self) -> bool {
        self.handle.link.is_closed()
    }

    /// Resolves when the connection is gone, whoever ended it: all calls have their error,
    /// the byte stream is dropped and nothing of this connection runs any longer.
    ///
    /// Cancel safe.
    pub async fn closed(&self) {
        self.handle.driver.wait().await;
    }

    async fn unary(&self, ctx: &Context, message: Outgoing) -> Result<Bytes, Error> {
        self.open_unary(ctx, message, Haste::Now).await?.answer().await
    }

    async fn open_unary(
        &self,
        ctx: &Context,
        message: Outgoing,
        haste: Haste,
    ) -> Result<Waiting, Error> {
        let (deadline, (answer, waiting)) = (ctx.deadline(), oneshot::channel());
        let slot = Slot::Unary(Waiter { answer, deadline });
        let stream_id = self.handle.link.open(message, deadline, slot, haste).await?;
        let call = Call { handle: Arc::clone(&self.handle), stream_id };
        Ok(Waiting { answer: waiting, _call: call })
    }

    async fn stream<Req, Res>(
        &self,
        ctx: &Context,
        message: Outgoing,
    ) -> Result<(RequestSender<Req>, Receiver<Res>), Error>
    where
        Req: Message,
        Res: Message + Default,
    {
        let deadline = ctx.deadline();
        let (sender, receiver) = link::inbox();
        let slot = Slot::Stream(Some(sender));
        let stream_id = self.handle.link.open(message, deadline, slot, Haste::Now).await?;
        let call = Arc::new(Call { handle: Arc::clone(&self.handle), stream_id });
        let requests = RequestSender::new(Arc::clone(&call), deadline);
        Ok((requests, Receiver::of_client(receiver, call, deadline)))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

// === impl Call ===

impl Waiting {
    async fn answer(self) -> Result<Bytes, Error> {
        let response = self.answer.await.unwrap_or_else(|_| Err(Error::closed()))?;
        Response::open(response)
    }
}

impl Call {
    pub(crate) async fn send(&self, message: Outgoing) -> Result<(), Error> {
        self.handle.link.send(self.stream_id, message).await
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.handle.link.forget(self.stream_id);
    }
}

impl<'a> MethodName<'a> {
    pub fn new(service: &'a str, method: &'a str) -> Self {
        Self { service, method }
    }

    fn envelope(self, ctx: &'a Context) -> Envelope<'a> {
        Envelope { service: self.service, method: self.method, metadata: &ctx.metadata }
    }
}

// === the driving task ===

/// `ended` comes from outside: also a future that was never polled ends its connection.
async fn drive<R>(ended: Ended, stop: CancellationToken, reader: R)
where
    R: AsyncRead + Unpin,
{
    let end = stop.run_until_cancelled(async {
        tokio::select! {
            biased;
            end = converse(&ended.0, reader) => end,
            never = expire(&ended.0) => match never {},
        }
    });
    if let Some(error) = end.await {
        ended.0.fail_all(error);
    }
}

/// Ends unary calls at their deadlines. One timer for all, which is rarely set anew: a timer
/// per call would wake a sleeping thread for each.
async fn expire(link: &Link) -> Infallible {
    loop {
        match link.end_overdue(Instant::now()) {
            None => link.sooner.notified().await,
            Some(next) => {
                tokio::select! {
                    () = sleep_until(next) => {}
                    () = link.sooner.notified() => {}
                }
            }
        }
    }
}

/// Reads and writes until one of them cannot; returns why.
async fn converse<R>(link: &Link, reader: R) -> Error
where
    R: AsyncRead + Unpin,
{
    let read = pin!(read_loop(link, FrameReader::new(reader)));
    let write = pin!(link.write());
    match select(read, write).await {
        Either::Left((end, _)) => closed_by(end),
        Either::Right((end, read)) => {
            let error = closed_by(end);
            link.refuse_new(error.clone());
            let _ = timeout(LAST_WORDS, read).await;
            error
        }
    }
}

fn closed_by(end: io::Result<()>) -> Error {
    Error::Closed { cause: end.err().map(Arc::new) }
}

async fn read_loop<R: AsyncRead + Unpin>(
    link: &Link,
    mut reader: FrameReader<R>,
) -> io::Result<()> {
    while let Some(decoded) = reader.next().await? {
        let (header, payload) = match decoded {
            Decoded::Frame(header, payload) => (header, Ok(payload)),
            Decoded::Oversize(header) => {
                let len = header.len as usize;
                (header, Err(Oversize { direction: Direction::Received, len }.into()))
            }
        };
        deliver(link, header, payload).await;
    }
    Ok(())
}

/// Hands one message to whoever waits for it.
async fn deliver(link: &Link, header: Header, payload: Result<Bytes, Error>) {
    let id = header.stream_id;
    let inbox = match link.waiter(id) {
        Some(Slot::Unary(waiter)) => {
            // A caller that has just been dropped wants no answer.
            let _ = waiter.answer.send(payload.and_then(|payload| unary_answer(header, payload)));
            return;
        }
        Some(Slot::Stream(Some(inbox))) => inbox,
        Some(Slot::Stream(None)) | None => {
            return debug!(?header, "message on a stream nobody waits for");
        }
    };
    let payload = match payload {
        Ok(payload) => payload,
        Err(error) => return link.push_last(id, &inbox, Event::Failed(error)),
    };
    match header.kind {
        MessageType::RESPONSE => {
            let last = Response::open(payload).map_or_else(Event::Failed, Event::Result);
            link.push_last(id, &inbox, last);
        }
        MessageType::DATA => {
            if !header.flags.contains(Flags::NO_DATA) {
                link.push(id, &inbox, payload).await;
            }
            if header.flags.contains(Flags::REMOTE_CLOSED) {
                link.push_last(id, &inbox, Event::End);
            }
        }
        _ => debug!(?header, "message of an unknown type"),
    }
}

fn unary_answer(header: Header, payload: Bytes) -> Result<Bytes, Error> {
    match header.kind {
        MessageType::RESPONSE => Ok(payload),
        _ => Err(Error::Protocol("a unary call was not answered by a response")),
    }
}
