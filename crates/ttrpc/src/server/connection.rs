//! One connection of a server.
//!
//! ```text
//!   FrameReader -> request -> task per call -> answer --> outbox -> writer
//!               -> data ----> inbox of the call ^ refusals ^
//! ```
//!
//! Reading and refusing are one future; only handlers are tasks, and write their answers
//! themselves.

use std::{io, panic::AssertUnwindSafe, pin::pin, sync::Arc};

use bytes::Bytes;
use futures_util::FutureExt;
use prost::Message;
use tokio::{
    io::AsyncRead,
    net::UnixStream,
    time::{Instant, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::debug;

use super::Shared;
use crate::{
    Direction, Error, Flags, Header, MessageType, MessageWriter, Metadata, Oversize, ServerContext,
    Status,
    context::deadline_from_wire,
    frame::{Decoded, FrameReader},
    link::{self, Ended, Event, Link, Role, Slot},
    message::Outgoing,
    service::{Answer, Method, StreamEnd},
    transport::StreamWriter,
    wire::Request,
};

struct Connection {
    server: Arc<Shared>,
    link: Arc<Link>,
    calls: TaskTracker,
    /// Cancelled when the connection ends.
    gone: CancellationToken,
    last_id: u32,
}

/// How a connection ended.
enum End {
    /// The peer closed, or reading or writing failed.
    Peer(io::Result<()>),
    /// The server drains and the last call is answered.
    Drained,
    Aborted,
}

pub(super) async fn serve_stream(server: Arc<Shared>, stream: UnixStream) -> io::Result<()> {
    let (reader, writer) = stream.into_split();
    serve(server, reader, StreamWriter::new(writer)).await
}

pub(super) async fn serve<R, W>(server: Arc<Shared>, reader: R, writer: W) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: MessageWriter,
{
    let link = Link::new(Role::Server, writer);
    // Also when this future is dropped, as below.
    let _ended = Ended(Arc::clone(&link));
    let gone = CancellationToken::new();
    let _gone = gone.clone().drop_guard();
    let calls = TaskTracker::new();
    let (drain, abort) = (server.drain.clone(), server.abort.clone());
    let mut connection = Connection {
        server,
        link: Arc::clone(&link),
        calls: calls.clone(),
        gone: gone.clone(),
        last_id: 0,
    };
    let mut write = pin!(link.write());
    let end = tokio::select! {
        end = connection.read_loop(FrameReader::new(reader)) => End::Peer(end),
        end = &mut write => End::Peer(end),
        () = drained(&drain, &calls) => End::Drained,
        () = abort.cancelled() => End::Aborted,
    };
    link.fail_all(Error::closed());
    gone.cancel();
    calls.close();
    calls.wait().await;
    match end {
        End::Peer(end) => end,
        End::Aborted => Ok(()),
        End::Drained => {
            link.close_after_queued();
            abort.run_until_cancelled(write).await.unwrap_or(Ok(()))
        }
    }
}

async fn drained(drain: &CancellationToken, calls: &TaskTracker) {
    drain.cancelled().await;
    calls.close();
    calls.wait().await;
}

impl Connection {
    async fn read_loop<R: AsyncRead + Unpin>(
        &mut self,
        mut reader: FrameReader<R>,
    ) -> io::Result<()> {
        while let Some(decoded) = reader.next().await? {
            let (header, refusal) = match decoded {
                Decoded::Oversize(header) => (header, self.oversize(header)),
                Decoded::Frame(header, _) if header.stream_id.is_multiple_of(2) => {
                    let why = "streams of clients have odd ids";
                    (header, Err(Status::invalid_argument(why)))
                }
                Decoded::Frame(header, payload) => (header, self.take(header, payload).await),
            };
            if let Err(status) = refusal {
                // Waits where the client does not read its answers: then we need not read
                // its questions.
                self.link.answer(header.stream_id, Outgoing::refusal(status)).await;
            }
        }
        Ok(())
    }

    async fn take(&mut self, header: Header, payload: Bytes) -> Result<(), Status> {
        match header.kind {
            MessageType::REQUEST => self.request(header.stream_id, payload),
            MessageType::DATA => self.data(header, payload).await,
            _ => {
                debug!(?header, "message of an unknown type");
                Ok(())
            }
        }
    }

    /// A message that was too large and is not there any more.
    fn oversize(&self, header: Header) -> Result<(), Status> {
        let error = Oversize { direction: Direction::Received, len: header.len as usize };
        match self.link.waiter(header.stream_id) {
            // The handler learns it, and it answers.
            Some(Slot::Stream(Some(inbox))) if header.kind == MessageType::DATA => {
                self.link.push_last(header.stream_id, &inbox, Event::Failed(error.into()));
                Ok(())
            }
            _ => Err(error.into()),
        }
    }

    /// One more item of a stream.
    async fn data(&self, header: Header, payload: Bytes) -> Result<(), Status> {
        let id = header.stream_id;
        let Some(Slot::Stream(inbox)) = self.link.waiter(id) else {
            return Err(Status::invalid_argument("stream is not open"));
        };
        let Some(inbox) = inbox else {
            debug!(?header, "data after the end of a stream");
            return Ok(());
        };
        if !header.flags.contains(Flags::NO_DATA) {
            self.link.push(id, &inbox, payload).await;
        }
        if header.flags.contains(Flags::REMOTE_CLOSED) {
            self.link.push_last(id, &inbox, Event::End);
        }
        Ok(())
    }

    /// Starts a call, or says why not.
    fn request(&mut self, id: u32, payload: Bytes) -> Result<(), Status> {
        if id <= self.last_id {
            return Err(Status::invalid_argument("stream ids cannot be reused and must increase"));
        }
        self.last_id = id;
        let request = Request::decode(payload)
            .map_err(|e| Status::invalid_argument(format!("decode request envelope: {e}")))?;
        let service = self.server.services.get(&request.service);
        let service =
            service.ok_or_else(|| Status::unimplemented(format!("service {}", request.service)))?;
        let method = service
            .method(&request.method)
            .ok_or_else(|| Status::unimplemented(format!("method {}", request.method)))?;
        if self.server.drain.is_cancelled() {
            return Err(Status::unavailable("server is shutting down"));
        }
        if self.calls.len() >= self.server.max_calls {
            return Err(Status::resource_exhausted("too many calls in flight on this connection"));
        }
        let deadline = deadline_from_wire(request.timeout_nano);
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(past_deadline());
        }
        self.spawn(id, method.clone(), deadline, request);
        Ok(())
    }

    fn spawn(&self, id: u32, method: Method, deadline: Option<Instant>, request: Request) {
        let Request { payload, metadata, .. } = request;
        let over = self.gone.child_token();
        let metadata = Metadata::from_wire(metadata);
        let ctx = ServerContext::new(metadata, deadline, over.clone(), self.gone.clone());
        let link = Arc::clone(&self.link);
        let stream = matches!(method, Method::Streaming(_)).then(|| {
            let (sender, inbox) = link::inbox();
            link.accept(id, Some(sender));
            StreamEnd { link: Arc::clone(&link), stream_id: id, inbox }
        });
        // The handler is called inside the future, where its panic is caught.
        let work = async move {
            match (method, stream) {
                (Method::Unary(handler), _) => handler(ctx, payload).await,
                (Method::Streaming(handler), Some(end)) => handler(ctx, payload, end).await,
                (Method::Streaming(_), None) => Err(Status::internal("stream was not opened")),
            }
        };
        let call = async move {
            let _over = over.drop_guard();
            let answer = finish(deadline, Box::pin(work)).await;
            link.answer(id, answer).await;
        };
        let gone = self.gone.clone();
        self.calls.spawn(async move { gone.run_until_cancelled(call).await });
    }
}

/// Runs a handler to its end, whatever that is.
async fn finish(deadline: Option<Instant>, work: Answer) -> Outgoing {
    let work = AssertUnwindSafe(work).catch_unwind();
    let done = match deadline {
        Some(deadline) => timeout_at(deadline, work).await,
        None => Ok(work.await),
    };
    match done {
        Ok(Ok(Ok(answer))) => answer,
        Ok(Ok(Err(status))) => Outgoing::refusal(status),
        Ok(Err(_panic)) => Outgoing::refusal(Status::internal("handler panicked")),
        Err(_elapsed) => Outgoing::refusal(past_deadline()),
    }
}

fn past_deadline() -> Status {
    Status::deadline_exceeded("deadline exceeded")
}
