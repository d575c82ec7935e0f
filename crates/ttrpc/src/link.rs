//! What both ends of a connection share: the way out and the table of streams.
//!
//! ```text
//!   callers, handlers --reserve--> outbox --> MessageWriter
//!   FrameReader --> deliver --> slot of the stream --> caller or handler
//! ```
//!
//! **Invariants:** requests enter the outbox in the order of their ids, because both
//! happen under one lock. Nothing is queued on a stream that is no longer in the table.
//! Once the table is closed nothing enters it, so nobody waits on a dead connection.

use std::{collections::HashMap, io, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, timeout},
};

use crate::{
    Error, MessageWriter,
    context::deadline_to_wire,
    message::Outgoing,
    outbox::Outbox,
    queue::{self, Closed},
    stream::within,
};

/// Bytes a stream may have waiting for its reader.
const INBOX_BYTES: u32 = 1 << 20;
/// How long a full stream may hold up its connection before it is cut off. ttrpc has no
/// flow control for single streams; Go peers allow the same second.
const STALL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Link {
    role: Role,
    outbox: Outbox,
    streams: Mutex<Streams>,
    /// A deadline is sooner than the one [`Link::end_overdue`] told of last.
    pub(crate) sooner: Notify,
}

/// Which end of the connection this is. The protocol is not symmetrical: the last word of
/// a server ends a stream, that of a client only its own half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// The open streams of a connection.
#[derive(Debug)]
struct Streams {
    open: HashMap<u32, Slot>,
    /// The id of the next stream of a client; `None` when all are used.
    next_id: Option<u32>,
    closed: Option<Error>,
    /// The deadline that is waited for.
    awaited: Option<Instant>,
}

/// A connection that nobody drives any longer is gone, whoever still holds its link.
#[derive(Debug)]
pub(crate) struct Ended(pub(crate) Arc<Link>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// When a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Haste {
    Now,
    /// With the next that is, or by [`Link::pump`].
    Later,
}

/// Who waits for the one answer of a call.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) answer: oneshot::Sender<Result<Bytes, Error>>,
    pub(crate) deadline: Option<Instant>,
}

/// Who waits for what comes on a stream.
#[derive(Debug)]
pub(crate) enum Slot {
    Unary(Waiter),
    /// Without an inbox the peer has said its last word, but we have not.
    Stream(Option<Inbox>),
}

pub(crate) type Inbox = queue::Sender<Event>;

/// What a stream brings.
#[derive(Debug)]
pub(crate) enum Event {
    Item(Bytes),
    /// The last: the encoded result that came in a response.
    Result(Bytes),
    /// The last: no more items.
    End,
    /// The last.
    Failed(Error),
}

pub(crate) fn inbox() -> (Inbox, queue::Receiver<Event>) {
    queue::channel(INBOX_BYTES)
}

impl Link {
    pub(crate) fn new(role: Role, writer: impl MessageWriter) -> Arc<Self> {
        let streams =
            Streams { open: HashMap::new(), next_id: Some(1), closed: None, awaited: None };
        let (streams, sooner) = (Mutex::new(streams), Notify::new());
        Arc::new(Self { role, outbox: Outbox::new(writer), streams, sooner })
    }

    /// Opens a stream of ours: sends the request and files who waits for the answer. Waits
    /// for room until the deadline.
    ///
    /// Cancel safe: either both happened or neither.
    pub(crate) async fn open(
        &self,
        request: Outgoing,
        deadline: Option<Instant>,
        slot: Slot,
        haste: Haste,
    ) -> Result<u32, Error> {
        let (room, haste) = match self.outbox.room().try_reserve(request.len()) {
            Ok(Some(room)) => (room, haste),
            Ok(None) => {
                // What was left for later may be all that is in the way. Who was to send this,
                // too, may have come and gone when there is room.
                self.pump();
                let room = self.outbox.room().reserve(request.len());
                let room = within(deadline, async { room.await.map_err(|_| self.closed()) });
                (room.await?, Haste::Now)
            }
            Err(Closed) => return Err(self.closed()),
        };
        let request = request.with_timeout(deadline_to_wire(deadline))?;
        let mut streams = self.streams.lock();
        if let Some(error) = &streams.closed {
            return Err(error.clone());
        }
        let stream_id = streams.next_id.ok_or(Error::Exhausted)?;
        self.outbox.queue(room, stream_id, request.on(stream_id));
        streams.next_id = stream_id.checked_add(2);
        if let Slot::Unary(Waiter { deadline: Some(deadline), .. }) = &slot
            && streams.awaited.is_none_or(|awaited| *deadline < awaited)
        {
            streams.awaited = Some(*deadline);
            self.sooner.notify_one();
        }
        streams.open.insert(stream_id, slot);
        drop(streams);
        if haste == Haste::Now {
            self.pump();
        }
        Ok(stream_id)
    }

    /// Ends the calls whose time is over, and tells the next deadline.
    pub(crate) fn end_overdue(&self, now: Instant) -> Option<Instant> {
        let (mut overdue, mut next) = (Vec::new(), None::<Instant>);
        let mut streams = self.streams.lock();
        for (id, slot) in &streams.open {
            match slot {
                Slot::Unary(Waiter { deadline: Some(at), .. }) if *at <= now => overdue.push(*id),
                Slot::Unary(Waiter { deadline: Some(at), .. }) => {
                    next = Some(next.map_or(*at, |next| next.min(*at)));
                }
                _ => {}
            }
        }
        streams.awaited = next;
        for id in overdue {
            if let Some(Slot::Unary(waiter)) = streams.open.remove(&id) {
                let _ = waiter.answer.send(Err(Error::Timeout));
            }
        }
        next
    }

    /// Files a stream the peer opened.
    pub(crate) fn accept(&self, stream_id: u32, inbox: Option<Inbox>) {
        self.streams.lock().open.insert(stream_id, Slot::Stream(inbox));
    }

    /// Sends on a stream that is open.
    ///
    /// Cancel safe: the message is queued whole or not at all.
    pub(crate) async fn send(&self, stream_id: u32, message: Outgoing) -> Result<(), Error> {
        let room = self.outbox.room().reserve(message.len()).await.map_err(|_| self.closed())?;
        let streams = self.streams.lock();
        if !streams.open.contains_key(&stream_id) {
            return Err(streams.closed.clone().unwrap_or(Error::StreamEnded));
        }
        self.outbox.queue(room, stream_id, message.on(stream_id));
        drop(streams);
        self.pump();
        Ok(())
    }

    /// Sends the last message of a stream, whether it is in the table or was refused entry.
    pub(crate) async fn answer(&self, stream_id: u32, message: Outgoing) {
        // A peer that is gone needs no answer.
        let Ok(room) = self.outbox.room().reserve(message.len()).await else { return };
        let mut streams = self.streams.lock();
        streams.open.remove(&stream_id);
        self.outbox.queue(room, stream_id, message.on(stream_id));
        drop(streams);
        self.pump();
    }

    /// Writing ends once what is queued now is written.
    pub(crate) fn close_after_queued(&self) {
        self.outbox.close_after_queued();
    }

    /// Writes where callers could not, until writing fails or [`Link::close_after_queued`] is
    /// done.
    ///
    /// Cancel safe.
    pub(crate) async fn write(&self) -> io::Result<()> {
        self.outbox.run(|id| self.is_wanted(id)).await
    }

    pub(crate) fn pump(&self) {
        self.outbox.pump(|id| self.is_wanted(id));
    }

    /// What a dropped call left in the queue is not worth sending.
    fn is_wanted(&self, stream_id: u32) -> bool {
        self.role == Role::Server || self.streams.lock().open.contains_key(&stream_id)
    }

    /// Nobody waits for the stream any longer. What it still has queued is not sent.
    pub(crate) fn forget(&self, stream_id: u32) {
        self.streams.lock().open.remove(&stream_id);
    }

    /// Takes a unary waiter out of the table, or shows where a stream's items go.
    pub(crate) fn waiter(&self, stream_id: u32) -> Option<Slot> {
        let mut streams = self.streams.lock();
        match streams.open.get(&stream_id)? {
            Slot::Unary(_) => streams.open.remove(&stream_id),
            Slot::Stream(inbox) => Some(Slot::Stream(inbox.clone())),
        }
    }

    /// Brings an item to a stream, waiting a little where its reader is behind.
    pub(crate) async fn push(&self, stream_id: u32, inbox: &Inbox, item: Bytes) {
        let room = match inbox.try_reserve(item.len()) {
            Ok(Some(permit)) => Ok(Ok(permit)),
            Ok(None) => timeout(STALL, inbox.reserve(item.len())).await,
            Err(Closed) => Ok(Err(Closed)),
        };
        match room {
            // Where the reader is gone the stream goes too, or soon will.
            Ok(permit) => drop(permit.and_then(|permit| permit.send(Event::Item(item)))),
            Err(_) => self.push_last(stream_id, inbox, Event::Failed(Error::Lagged)),
        }
    }

    /// Brings the peer's last event to a stream; what comes after it is dropped.
    pub(crate) fn push_last(&self, stream_id: u32, inbox: &Inbox, event: Event) {
        let mut streams = self.streams.lock();
        match self.role {
            Role::Client => drop(streams.open.remove(&stream_id)),
            Role::Server => {
                if let Some(slot) = streams.open.get_mut(&stream_id) {
                    *slot = Slot::Stream(None);
                }
            }
        }
        drop(streams);
        inbox.send_last(event);
    }

    /// Takes no new streams, for the given reason; those that are open stay.
    pub(crate) fn refuse_new(&self, error: Error) {
        self.streams.lock().closed.get_or_insert(error);
    }

    /// The byte stream is dropped, and nobody waits on it.
    pub(crate) fn end(&self) {
        self.fail_all(Error::closed());
        self.outbox.end();
    }

    /// Ends every stream with the error. The first reason given is the one all get.
    pub(crate) fn fail_all(&self, error: Error) {
        let (open, error) = {
            let mut streams = self.streams.lock();
            let error = streams.closed.get_or_insert(error).clone();
            (std::mem::take(&mut streams.open), error)
        };
        for slot in open.into_values() {
            match slot {
                Slot::Unary(waiter) => drop(waiter.answer.send(Err(error.clone()))),
                Slot::Stream(Some(inbox)) => inbox.send_last(Event::Failed(error.clone())),
                Slot::Stream(None) => {}
            }
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.streams.lock().closed.is_some()
    }

    fn closed(&self) -> Error {
        self.streams.lock().closed.clone().unwrap_or_else(Error::closed)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::{Flags, HEADER_LEN, Header, Metadata, message::Envelope, outbox::tests::Gate};

    fn request() -> Outgoing {
        let metadata = Metadata::new();
        let envelope = Envelope { service: "s", method: "m", metadata: &metadata };
        Outgoing::request::<()>(envelope, None, Flags::NONE).unwrap()
    }

    #[tokio::test]
    async fn stream_ids_are_odd_rise_and_run_out() {
        let gate = Gate::default();
        let link = Link::new(Role::Client, gate.clone());
        let open = async || link.open(request(), None, Slot::Stream(None), Haste::Now).await;
        assert_eq!([open().await.unwrap(), open().await.unwrap()], [1, 3]);
        link.streams.lock().next_id = Some(u32::MAX);
        assert_eq!(open().await.unwrap(), u32::MAX);
        assert!(matches!(open().await, Err(Error::Exhausted)));
        assert!(matches!(open().await, Err(Error::Exhausted)));
        let id = |message: &Bytes| {
            Header::from_bytes(*message.first_chunk::<HEADER_LEN>().unwrap()).stream_id
        };
        assert_eq!(gate.sent().iter().map(id).collect::<Vec<_>>(), [1, 3, u32::MAX]);
    }

    #[tokio::test]
    async fn calls_end_at_their_deadlines_and_the_sooner_one_is_awaited() {
        let link = Link::new(Role::Client, Gate::default());
        let now = Instant::now();
        let open = |seconds: u64| {
            let (answer, waiting) = oneshot::channel();
            let deadline = Some(now + Duration::from_secs(seconds));
            let slot = Slot::Unary(Waiter { answer, deadline });
            link.open(request(), deadline, slot, Haste::Now).now_or_never().unwrap().unwrap();
            waiting
        };
        let is_told = || link.sooner.notified().now_or_never().is_some();
        let mut late = open(9);
        assert!(is_told(), "the first one is awaited");
        let mut soon = open(2);
        assert!(is_told(), "one that is sooner too");
        let mut between = open(5);
        assert!(!is_told(), "a later one changes nothing");
        let at = |seconds: u64| now + Duration::from_secs(seconds);
        assert_eq!(link.end_overdue(at(1)), Some(at(2)));
        assert_eq!(link.end_overdue(at(5)), Some(at(9)));
        assert!(matches!(soon.try_recv(), Ok(Err(Error::Timeout))));
        assert!(matches!(between.try_recv(), Ok(Err(Error::Timeout))));
        assert!(late.try_recv().is_err(), "it has time");
        assert_eq!(link.end_overdue(at(10)), None);
    }

    #[tokio::test]
    async fn nothing_enters_a_closed_table() {
        let link = Link::new(Role::Client, Gate::default());
        let (answer, waiting) = oneshot::channel();
        let slot = Slot::Unary(Waiter { answer, deadline: None });
        let early = link.open(request(), None, slot, Haste::Now).await.unwrap();
        link.fail_all(Error::Timeout);
        assert!(matches!(waiting.await.unwrap(), Err(Error::Timeout)));
        // The first reason stays.
        link.fail_all(Error::Lagged);
        let late = link.open(request(), None, Slot::Stream(None), Haste::Now).await;
        assert!(matches!(late, Err(Error::Timeout)), "{late:?}");
        assert!(matches!(link.send(early, request()).await, Err(Error::Timeout)));
    }
}
