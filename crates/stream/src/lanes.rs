//! One direction of one stream, on either transport.
//!
//! ```text
//!   connection ──Sink──> [at most WINDOW bytes] ──Input──> work
//!   connection <──queue── pieces <── credit <──Output────── work
//! ```
//! **Invariant:** what waits is bounded, in both directions; who does not take it makes the
//! other end wait.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, ReadBuf},
    sync::{Notify, mpsc},
    time::Instant,
};

/// Bytes that wait for the work: SPDY's window of a new stream.
pub(crate) const WINDOW: usize = 64 << 10;
/// A piece as it travels.
pub(crate) const MAX_PIECE: usize = 32 << 10;
/// Pieces that wait for the connection.
const QUEUE: usize = 4;

/// Nobody is at the other end any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client is gone")]
pub struct Gone;

/// Told how many bytes the work took, so that the peer may send as many again.
pub(crate) trait Taken: Send + Sync {
    fn taken(&self, id: u32, bytes: usize);
}

// === towards the work ===

#[derive(Debug, Default)]
struct Pipe {
    waiting: BytesMut,
    /// The client has ended it, or is gone.
    ended: bool,
    /// The work has dropped its end.
    unwanted: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// What a client sends, for the work to read. Its end is the end of the stream.
pub struct Input {
    pipe: Arc<Mutex<Pipe>>,
    taken: Option<(u32, Arc<dyn Taken>)>,
}

/// The connection's end of an [`Input`]. Dropping it ends the stream.
#[derive(Debug)]
pub(crate) struct Sink {
    pipe: Arc<Mutex<Pipe>>,
}

pub(crate) fn pipe(taken: Option<(u32, Arc<dyn Taken>)>) -> (Sink, Input) {
    let pipe = Arc::<Mutex<Pipe>>::default();
    (Sink { pipe: Arc::clone(&pipe) }, Input { pipe, taken })
}

impl Sink {
    /// Waits while there is no room. [`Gone`] if nobody will read. Cancel safe: the bytes
    /// that are left are still in `bytes`.
    pub(crate) async fn write(&mut self, bytes: &mut Bytes) -> Result<(), Gone> {
        std::future::poll_fn(|context| {
            let mut pipe = self.pipe.lock();
            if pipe.unwanted {
                return Poll::Ready(Err(Gone));
            }
            let room = WINDOW - pipe.waiting.len();
            let taken = bytes.split_to(room.min(bytes.len()));
            if !taken.is_empty() {
                pipe.waiting.extend_from_slice(&taken);
                wake(&mut pipe.reader);
            }
            if bytes.is_empty() {
                return Poll::Ready(Ok(()));
            }
            pipe.writer = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let mut pipe = self.pipe.lock();
        pipe.ended = true;
        wake(&mut pipe.reader);
    }
}

impl AsyncRead for Input {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let count = {
            let mut pipe = self.pipe.lock();
            if pipe.waiting.is_empty() && !pipe.ended {
                pipe.reader = Some(context.waker().clone());
                return Poll::Pending;
            }
            let count = pipe.waiting.len().min(buffer.remaining());
            buffer.put_slice(&pipe.waiting.split_to(count));
            wake(&mut pipe.writer);
            count
        };
        if let Some((id, taken)) = &self.taken {
            taken.taken(*id, count);
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        let mut pipe = self.pipe.lock();
        pipe.unwanted = true;
        wake(&mut pipe.writer);
        let unread = pipe.waiting.len();
        pipe.waiting.clear();
        drop(pipe);
        if let Some((id, taken)) = &self.taken {
            taken.taken(*id, unread);
        }
    }
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Input").field("pipe", &self.pipe).finish_non_exhaustive()
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

// === towards the client ===

/// What a connection is to send, in order.
#[derive(Debug)]
pub(crate) enum Out {
    Data {
        id: u32,
        bytes: Bytes,
    },
    /// Nothing follows on this one.
    Fin(u32),
    /// Nothing follows at all.
    Close,
}

pub(crate) type Queue = mpsc::Sender<Out>;

pub(crate) fn queue() -> (Queue, mpsc::Receiver<Out>) {
    mpsc::channel(QUEUE)
}

/// Where the work puts what the client shall get. Clones are the same stream.
#[derive(Clone, Debug)]
pub struct Output {
    id: u32,
    queue: Queue,
    /// Of the stream, and of the connection.
    credits: [Arc<Credit>; 2],
}

impl Output {
    pub(crate) fn new(id: u32, queue: Queue, credits: [Arc<Credit>; 2]) -> Self {
        Self { id, queue, credits }
    }

    /// Waits while the client does not read. Not cancel safe: a part may be on its way.
    pub async fn send(&self, mut bytes: Bytes) -> Result<(), Gone> {
        while !bytes.is_empty() {
            let [stream, connection] = &self.credits;
            let of_stream = stream.take(bytes.len().min(MAX_PIECE)).await?;
            let granted = connection.take(of_stream).await?;
            stream.give_back(of_stream - granted);
            let piece = Out::Data { id: self.id, bytes: bytes.split_to(granted) };
            self.queue.send(piece).await.map_err(|_| Gone)?;
        }
        Ok(())
    }

    /// An empty message, which only WebSocket clients notice.
    pub(crate) async fn greet(&self) -> Result<(), Gone> {
        let empty = Out::Data { id: self.id, bytes: Bytes::new() };
        self.queue.send(empty).await.map_err(|_| Gone)
    }

    /// Tells the client that nothing follows.
    pub async fn finish(&self) {
        if self.credits[0].finish() {
            // One who is gone need not be told.
            let _ = self.queue.send(Out::Fin(self.id)).await;
        }
    }

    /// Returns when nothing that is sent arrives any more. Cancel safe.
    pub async fn gone(&self) {
        tokio::select! {
            () = self.credits[0].closed() => {}
            () = self.queue.closed() => {}
        }
    }
}

/// How much a peer has agreed to take. It binds only from the moment the peer shows that it
/// keeps count: the common client never does, and would be left without its output.
#[derive(Debug)]
pub(crate) struct Credit {
    state: Mutex<CreditState>,
    changed: Notify,
}

#[derive(Debug)]
struct CreditState {
    /// Below zero after a peer took more than its window before it spoke up.
    left: i64,
    binding: bool,
    closed: bool,
    finished: bool,
}

impl Credit {
    pub(crate) fn new(window: i64, binding: bool) -> Arc<Self> {
        let state = CreditState { left: window, binding, closed: false, finished: false };
        Arc::new(Self { state: Mutex::new(state), changed: Notify::new() })
    }

    pub(crate) fn unlimited() -> Arc<Self> {
        Self::new(0, false)
    }

    /// Some of `want`, at least one. Cancel safe.
    async fn take(&self, want: usize) -> Result<usize, Gone> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let mut state = self.state.lock();
                if state.closed {
                    return Err(Gone);
                }
                let room = usize::try_from(state.left).unwrap_or(0);
                let granted = if state.binding { want.min(room) } else { want };
                if granted > 0 {
                    state.left -= signed(granted);
                    return Ok(granted);
                }
            }
            changed.await;
        }
    }

    fn give_back(&self, bytes: usize) {
        if bytes > 0 {
            self.state.lock().left += signed(bytes);
            self.changed.notify_waiters();
        }
    }

    /// From now on the peer's count holds.
    pub(crate) fn add(&self, more: i64) {
        let mut state = self.state.lock();
        state.binding = true;
        state.left = state.left.saturating_add(more);
        drop(state);
        self.changed.notify_waiters();
    }

    /// The peer wants nothing more.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_waiters();
    }

    async fn closed(&self) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.state.lock().closed {
                return;
            }
            changed.await;
        }
    }

    /// True the first time.
    fn finish(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().finished, true)
    }

    pub(crate) fn is_over(&self) -> bool {
        let state = self.state.lock();
        state.finished || state.closed
    }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

// === time ===

/// When something last passed.
#[derive(Debug)]
pub(crate) struct Activity(Mutex<Instant>);

impl Activity {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    pub(crate) fn touch(&self) {
        *self.0.lock() = Instant::now();
    }

    /// Returns when nothing has passed for `limit`. Cancel safe.
    pub(crate) async fn idle(&self, limit: Duration) {
        loop {
            let last = *self.0.lock();
            tokio::time::sleep_until(last + limit).await;
            if *self.0.lock() == last {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_full_pipe_makes_the_connection_wait() {
        let (mut sink, mut input) = pipe(None);
        let mut bytes = Bytes::from(vec![1; WINDOW + 10]);
        let blocked =
            tokio::time::timeout(Duration::from_secs(1), sink.write(&mut bytes)).await.is_err();
        assert!(blocked);
        assert_eq!(bytes.len(), 10, "what was not taken is still ours");
        let mut got = vec![0; 20];
        input.read_exact(&mut got).await.unwrap();
        sink.write(&mut bytes).await.unwrap();
        drop(sink);
        let mut rest = Vec::new();
        input.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest.len(), WINDOW - 10);
    }

    #[tokio::test]
    async fn what_nobody_reads_is_refused() {
        let (mut sink, input) = pipe(None);
        drop(input);
        assert_eq!(sink.write(&mut Bytes::from_static(b"x")).await, Err(Gone));
    }

    #[tokio::test(start_paused = true)]
    async fn credit_binds_once_the_peer_keeps_count() {
        let (queue, mut sent) = queue();
        let (stream, connection) = (Credit::new(10, false), Credit::unlimited());
        let output = Output::new(1, queue, [Arc::clone(&stream), connection]);
        // One that never counts gets everything.
        output.send(Bytes::from(vec![0; 25])).await.unwrap();
        sent.recv().await.unwrap();
        // It has room for 20 more, of which 15 are used up.
        stream.add(20);
        let send = output.send(Bytes::from(vec![0; 8]));
        assert!(tokio::time::timeout(Duration::from_secs(1), send).await.is_err());
        let Some(Out::Data { bytes, .. }) = sent.recv().await else { panic!("data") };
        assert_eq!(bytes.len(), 5);
        stream.close();
        assert_eq!(output.send(Bytes::from_static(b"x")).await, Err(Gone));
        output.gone().await;
    }

    #[tokio::test(start_paused = true)]
    async fn idle_is_what_nothing_passed_in() {
        let activity = Activity::new();
        let start = Instant::now();
        let touching = async {
            tokio::time::sleep(Duration::from_secs(7)).await;
            activity.touch();
        };
        tokio::join!(activity.idle(Duration::from_secs(10)), touching);
        assert_eq!(start.elapsed(), Duration::from_secs(17));
    }
}
