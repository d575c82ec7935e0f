//! A connection and its streams.
//!
//! ```text
//!            ┌─ reader ──> Sink ──> Input ─┐
//!   socket ──┤                             ├── Streams: who serves them
//!            └─ writer <── queue <─ Output ┘
//!                 ^── urgent: replies, pings, windows (from the reader, never waited for)
//! ```
//! **Flow control.** We give a window for every byte that was taken. A peer that keeps to it
//! never finds a full pipe, so that its streams do not wait for each other. One that does not
//! (Go's) waits as a whole while one of its streams is full. Of the peer's windows, see
//! [`Credit`].

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf},
    sync::{Notify, mpsc},
};
use tokio_util::sync::CancellationToken;

use super::{
    SpdyError,
    frame::{Decoder, Encoder, Frame, INITIAL_WINDOW, reset},
    headers::Headers,
};
use crate::lanes::{Activity, Credit, Input, Out, Output, Queue, Sink, Taken, WINDOW, pipe, queue};

/// Streams of one connection at a time: what port-forward of a busy browser needs, and more.
pub const MAX_STREAMS: usize = 512;
/// Streams that wait to be served.
const BACKLOG: usize = 16;
/// Answers that wait for a peer which does not read.
const MAX_URGENT: usize = 4096;
/// Written at once, if it is there.
const BATCH: usize = 64 << 10;
/// What a peer may still send after our last word. If we closed at once, the kernel would
/// take back what the peer has not read yet.
const LINGER: Duration = Duration::from_secs(5);

/// A stream that the peer opened.
#[derive(Debug)]
pub struct Incoming {
    pub id: u32,
    pub headers: Headers,
    pub input: Input,
    pub output: Output,
}

/// The streams of a connection, to be served while [`Driver::run`] runs.
#[derive(Debug)]
pub struct Streams {
    incoming: mpsc::Receiver<Incoming>,
    queue: Queue,
    gone: CancellationToken,
}

/// What moves the bytes.
#[derive(Debug)]
pub struct Driver<T> {
    io: T,
    incoming: mpsc::Sender<Incoming>,
    queue: Queue,
    out: mpsc::Receiver<Out>,
    gone: CancellationToken,
    idle: Duration,
}

/// The connection ends, with a reset of all streams, when nothing passed for `idle`.
pub fn session<T: AsyncRead + AsyncWrite>(io: T, idle: Duration) -> (Driver<T>, Streams) {
    let (queue, out) = queue();
    let (sender, incoming) = mpsc::channel(BACKLOG);
    let gone = CancellationToken::new();
    let streams = Streams { incoming, queue: queue.clone(), gone: gone.clone() };
    (Driver { io, incoming: sender, queue, out, gone, idle }, streams)
}

impl Streams {
    /// `None` when the client is gone. Cancel safe.
    pub async fn accept(&mut self) -> Option<Incoming> {
        self.incoming.recv().await
    }

    /// Cancelled when the client is gone.
    pub fn gone(&self) -> CancellationToken {
        self.gone.clone()
    }

    /// Ends the connection after all that was sent.
    pub async fn close(self) {
        // If it ended before, all the better.
        let _ = self.queue.send(Out::Close).await;
    }
}

impl<T: AsyncRead + AsyncWrite + Send> Driver<T> {
    /// Returns when the connection is over. Dropping it breaks the connection.
    pub async fn run(self) -> Result<(), SpdyError> {
        let _gone = self.gone.drop_guard();
        let (read, write) = tokio::io::split(self.io);
        let (urgent, activity) = (Arc::<Urgent>::default(), Activity::new());
        let reader = Reader {
            read,
            incoming: self.incoming,
            queue: self.queue,
            urgent: Arc::clone(&urgent),
            streams: BTreeMap::new(),
            last: 0,
            connection: Credit::new(WINDOW as i64, false),
            window: WINDOW as i64,
            keeps_count: false,
        };
        let writer =
            Writer { write, out: self.out, urgent, encoder: Encoder::default(), closing: false };
        let mut reading = std::pin::pin!(reader.run(&activity));
        let mut writing = std::pin::pin!(writer.run(&activity));
        tokio::select! {
            ended = reading.as_mut() => ended,
            ended = writing.as_mut() => {
                ended?;
                tokio::time::timeout(LINGER, reading).await.unwrap_or(Ok(()))
            }
            () = activity.idle(self.idle) => Ok(()),
        }
    }
}

// === what is sent first ===

#[derive(Debug, Default)]
struct Urgent {
    state: Mutex<UrgentState>,
    more: Notify,
}

#[derive(Debug, Default)]
struct UrgentState {
    frames: VecDeque<Frame>,
    /// Per stream, what was taken and not told yet.
    windows: BTreeMap<u32, u32>,
    /// The newest stream of the peer.
    last: u32,
}

impl Urgent {
    fn push(&self, frame: Frame) -> Result<(), SpdyError> {
        let mut state = self.state.lock();
        if state.frames.len() == MAX_URGENT {
            return Err(SpdyError::Flood);
        }
        state.frames.push_back(frame);
        drop(state);
        self.more.notify_one();
        Ok(())
    }

    fn take(&self) -> Vec<Frame> {
        let mut state = self.state.lock();
        let mut frames: Vec<_> = state.frames.drain(..).collect();
        // Small change waits: a half-used window keeps the peer going.
        let due = |_: &u32, more: &mut u32| *more as usize >= WINDOW / 2;
        let windows = state.windows.extract_if(.., due);
        frames.extend(windows.map(|(id, more)| Frame::Window { id, more }));
        frames
    }
}

impl Taken for Urgent {
    fn taken(&self, id: u32, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let mut state = self.state.lock();
        let mut due = false;
        for id in [id, 0] {
            let more = state.windows.entry(id).or_default();
            *more = more.saturating_add(bytes);
            due |= *more as usize >= WINDOW / 2;
        }
        drop(state);
        if due {
            self.more.notify_one();
        }
    }
}

// === reader ===

struct Reader<T> {
    read: ReadHalf<T>,
    incoming: mpsc::Sender<Incoming>,
    queue: Queue,
    urgent: Arc<Urgent>,
    streams: BTreeMap<u32, Open>,
    /// The newest stream.
    last: u32,
    connection: Arc<Credit>,
    /// What the peer takes on a new stream.
    window: i64,
    keeps_count: bool,
}

struct Open {
    /// `None` once the peer has ended its side.
    sink: Option<Sink>,
    credit: Arc<Credit>,
}

impl<T: AsyncRead> Reader<T> {
    async fn run(mut self, activity: &Activity) -> Result<(), SpdyError> {
        let (mut decoder, mut wire) = (Decoder::default(), BytesMut::new());
        loop {
            while let Some(frame) = decoder.next(&mut wire)? {
                self.on(frame).await?;
            }
            wire.reserve(BATCH);
            if self.read.read_buf(&mut wire).await? == 0 {
                return Ok(());
            }
            activity.touch();
        }
    }

    async fn on(&mut self, frame: Frame) -> Result<(), SpdyError> {
        match frame {
            Frame::SynStream { id, headers, fin } => self.open(id, headers, fin)?,
            Frame::Data { id, bytes, fin } => self.data(id, bytes, fin).await?,
            Frame::Headers { id, fin: true, .. } => self.end(id),
            Frame::Reset { id, .. } => {
                if let Some(open) = self.streams.remove(&id) {
                    open.credit.close();
                }
            }
            Frame::Window { id, more } => self.credit(id, more),
            Frame::Settings(settings) => self.settings(&settings),
            // Ours would be even.
            Frame::Ping(id) if id % 2 == 1 => self.urgent.push(Frame::Ping(id))?,
            // The end of the connection tells the rest.
            Frame::GoAway { .. } => {}
            Frame::Ping(_) | Frame::Headers { .. } | Frame::SynReply { .. } | Frame::Other(_) => {}
        }
        Ok(())
    }

    fn open(&mut self, id: u32, headers: Headers, fin: bool) -> Result<(), SpdyError> {
        self.forget_ended();
        if id <= self.last || id.is_multiple_of(2) {
            return self.urgent.push(Frame::Reset { id, status: reset::PROTOCOL_ERROR });
        }
        self.last = id;
        self.urgent.state.lock().last = id;
        let refused = Frame::Reset { id, status: reset::REFUSED_STREAM };
        if self.streams.len() >= MAX_STREAMS {
            return self.urgent.push(refused);
        }
        let (sink, input) = pipe(Some((id, Arc::clone(&self.urgent) as Arc<dyn Taken>)));
        let credit = Credit::new(self.window, self.keeps_count);
        let credits = [Arc::clone(&credit), Arc::clone(&self.connection)];
        let output = Output::new(id, self.queue.clone(), credits);
        // Nobody serves streams any more, or not that many.
        if self.incoming.try_send(Incoming { id, headers, input, output }).is_err() {
            return self.urgent.push(refused);
        }
        self.streams.insert(id, Open { sink: (!fin).then_some(sink), credit });
        self.urgent.push(Frame::SynReply { id, headers: Headers::default(), fin: false })
    }

    fn forget_ended(&mut self) {
        self.streams.retain(|_, open| open.sink.is_some() || !open.credit.is_over());
        let windows = &mut self.urgent.state.lock().windows;
        windows.retain(|id, _| *id == 0 || self.streams.contains_key(id));
    }

    async fn data(&mut self, id: u32, mut bytes: Bytes, fin: bool) -> Result<(), SpdyError> {
        let sink = self.streams.get_mut(&id).and_then(|open| open.sink.as_mut());
        match sink {
            Some(sink) => {
                // What nobody wants is dropped, as if it had been taken.
                if sink.write(&mut bytes).await.is_err() {
                    self.urgent.taken(id, bytes.len());
                }
            }
            None if id > self.last => {
                self.urgent.push(Frame::Reset { id, status: reset::INVALID_STREAM })?;
            }
            None => self.urgent.taken(0, bytes.len()),
        }
        if fin {
            self.end(id);
        }
        Ok(())
    }

    fn end(&mut self, id: u32) {
        if let Some(open) = self.streams.get_mut(&id) {
            open.sink = None;
        }
    }

    fn credit(&mut self, id: u32, more: u32) {
        if id == 0 {
            self.connection.add(more.into());
        } else if let Some(open) = self.streams.get(&id) {
            open.credit.add(more.into());
        }
        self.counts();
    }

    fn settings(&mut self, settings: &[(u32, u32)]) {
        for (id, value) in settings {
            if *id == INITIAL_WINDOW {
                let change = i64::from(*value) - self.window;
                self.window = (*value).into();
                self.streams.values().for_each(|open| open.credit.add(change));
            }
        }
        self.counts();
    }

    fn counts(&mut self) {
        if !self.keeps_count {
            self.keeps_count = true;
            self.connection.add(0);
            self.streams.values().for_each(|open| open.credit.add(0));
        }
    }
}

// === writer ===

struct Writer<T> {
    write: WriteHalf<T>,
    out: mpsc::Receiver<Out>,
    urgent: Arc<Urgent>,
    encoder: Encoder,
    closing: bool,
}

impl<T: AsyncWrite> Writer<T> {
    /// Returns when the last word is sent.
    async fn run(mut self, activity: &Activity) -> Result<(), SpdyError> {
        let mut wire = BytesMut::new();
        while !self.closing {
            wire.clear();
            for frame in self.urgent.take() {
                self.encoder.put(&frame, &mut wire);
            }
            if wire.is_empty() {
                tokio::select! {
                    biased;
                    () = self.urgent.more.notified() => continue,
                    out = self.out.recv() => self.put(out.unwrap_or(Out::Close), &mut wire),
                }
            }
            while wire.len() < BATCH
                && !self.closing
                && let Ok(out) = self.out.try_recv()
            {
                self.put(out, &mut wire);
            }
            self.write.write_all(&wire).await?;
            self.write.flush().await?;
            activity.touch();
        }
        Ok(self.write.shutdown().await?)
    }

    fn put(&mut self, out: Out, wire: &mut BytesMut) {
        let frame = match out {
            Out::Data { id, bytes } => Frame::Data { id, bytes, fin: false },
            Out::Fin(id) => Frame::Data { id, bytes: Bytes::new(), fin: true },
            Out::Close => {
                self.closing = true;
                Frame::GoAway { last: self.urgent.state.lock().last, status: 0 }
            }
        };
        self.encoder.put(&frame, wire);
    }
}
