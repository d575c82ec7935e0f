//! The way out of a connection: who has something to send sends it.
//!
//! ```text
//!   callers, handlers --queue--> waiting --pump--> MessageWriter
//!                                           ^ also by the connection's own future, where the
//!                                             transport would take no more before
//! ```
//!
//! A hop to a task that writes would cost more than the writing.
//!
//! **Invariants:** messages go out in the order in which they were queued. One at a time is at
//! the writer; who finds somebody there leaves, and that one looks at the queue again after it
//! has let go of the writer. Room is given back when a message is on its way.

use std::{
    fmt,
    future::poll_fn,
    io, mem,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::{
    MessageWriter,
    queue::{Held, Room},
};

/// Bytes that may wait to be written; callers wait when there is no room.
const OUTBOX_BYTES: u32 = 1 << 20;
/// So often a caller goes on with what others queue meanwhile, before the connection's own
/// future does.
const ROUNDS: usize = 16;

pub(crate) struct Outbox {
    room: Room,
    queue: Mutex<Queue>,
    writer: Mutex<Writer>,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Queued>,
    /// Nothing follows what is queued.
    closing: bool,
}

struct Queued {
    stream_id: u32,
    message: Bytes,
    cost: u32,
}

struct Writer {
    /// Gone when the connection is.
    io: Option<Box<dyn MessageWriter>>,
    /// Wakes the connection's own future.
    own: Waker,
    /// Empty; what waits changes places with it.
    spare: Vec<Queued>,
    /// The room of what the transport has not yet taken.
    held: u32,
    closing: bool,
    /// The transport took no more, and will wake `own`.
    stuck: bool,
    end: Option<io::Result<()>>,
}

impl Outbox {
    pub(crate) fn new(io: impl MessageWriter) -> Self {
        let writer = Writer {
            io: Some(Box::new(io)),
            own: Waker::noop().clone(),
            spare: Vec::new(),
            held: 0,
            closing: false,
            stuck: false,
            end: None,
        };
        Self { room: Room::new(OUTBOX_BYTES), queue: Mutex::default(), writer: Mutex::new(writer) }
    }

    pub(crate) fn room(&self) -> &Room {
        &self.room
    }

    /// Takes a message whose room is there. It is on its way after [`Outbox::pump`].
    pub(crate) fn queue(&self, room: Held<'_>, stream_id: u32, message: Bytes) {
        let cost = room.keep();
        self.queue.lock().waiting.push(Queued { stream_id, message, cost });
    }

    /// The connection ends in order once all that is queued now is written.
    pub(crate) fn close_after_queued(&self) {
        self.queue.lock().closing = true;
        self.pump(|_| true);
    }

    /// Writes what waits, as far as the transport takes it, but for what is not wanted any longer.
    pub(crate) fn pump(&self, wanted: impl Fn(u32) -> bool) {
        for _ in 0..ROUNDS {
            let Some(mut writer) = self.writer.try_lock() else { return };
            if !writer.write(&self.queue, &self.room, &wanted) {
                return;
            }
            drop(writer);
            if self.queue.lock().is_empty() {
                return;
            }
        }
        self.writer.lock().own.wake_by_ref();
    }

    /// Writes on where callers could not, until the transport fails or has closed.
    ///
    /// Cancel safe.
    pub(crate) async fn run(&self, wanted: impl Fn(u32) -> bool) -> io::Result<()> {
        poll_fn(|cx| self.poll_run(cx, &wanted)).await
    }

    fn poll_run(
        &self,
        cx: &mut Context<'_>,
        wanted: &impl Fn(u32) -> bool,
    ) -> Poll<io::Result<()>> {
        loop {
            // Waits for it: who has it may just have found the transport full and have no more to
            // do with it.
            let mut writer = self.writer.lock();
            writer.own.clone_from(cx.waker());
            let on = writer.write(&self.queue, &self.room, wanted);
            if let Some(end) = writer.end.take() {
                return Poll::Ready(end);
            }
            drop(writer);
            if !on || self.queue.lock().is_empty() {
                return Poll::Pending;
            }
        }
    }

    /// Drops the transport and all that waits for it; nobody waits for room any longer.
    pub(crate) fn end(&self) {
        self.room.close();
        let io = self.writer.lock().io.take();
        let queue = mem::take(&mut *self.queue.lock());
        // Whatever they do when dropped, they do it without our locks.
        drop((io, queue));
    }
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && !self.closing
    }
}

impl Writer {
    /// Writes what is queued now. Whether there is any use in looking for more.
    fn write(&mut self, queue: &Mutex<Queue>, room: &Room, wanted: &impl Fn(u32) -> bool) -> bool {
        // As long as the transport is full what waits goes on waiting: its caller may leave.
        if self.stuck && !self.flush(room) {
            return false;
        }
        let Some(io) = &mut self.io else { return false };
        {
            let mut queue = queue.lock();
            mem::swap(&mut queue.waiting, &mut self.spare);
            self.closing |= mem::take(&mut queue.closing);
        }
        for Queued { stream_id, message, cost } in self.spare.drain(..) {
            self.held += cost;
            if wanted(stream_id) {
                io.put(message);
            }
        }
        self.flush(room)
    }

    /// Whether the transport has taken everything and will take more.
    fn flush(&mut self, room: &Room) -> bool {
        let Some(io) = &mut self.io else { return false };
        let cx = &mut Context::from_waker(&self.own);
        let mut done = io.poll_flush(cx);
        if let Poll::Ready(Ok(())) = done {
            room.release(mem::take(&mut self.held));
            if self.closing {
                done = io.poll_close(cx);
            } else {
                self.stuck = false;
                return true;
            }
        }
        match done {
            Poll::Pending => self.stuck = true,
            Poll::Ready(end) => {
                (self.io, self.end) = (None, Some(end));
                self.own.wake_by_ref();
            }
        }
        false
    }
}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox").field("room", &self.room).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        thread,
    };

    use futures_util::{FutureExt, task::noop_waker_ref};

    use super::*;

    /// A transport that can be shut, and shows what came through.
    #[derive(Clone, Default)]
    pub(crate) struct Gate(Arc<Mutex<State>>);

    #[derive(Default)]
    struct State {
        sent: Vec<Bytes>,
        taken: Vec<Bytes>,
        shut: bool,
        closed: bool,
        broken: bool,
        waker: Option<Waker>,
    }

    impl Gate {
        pub(crate) fn sent(&self) -> Vec<Bytes> {
            self.0.lock().sent.clone()
        }

        fn shut(&self) {
            self.0.lock().shut = true;
        }

        fn open(&self) {
            let waker = {
                let mut state = self.0.lock();
                state.shut = false;
                state.waker.take()
            };
            waker.into_iter().for_each(Waker::wake);
        }
    }

    impl MessageWriter for Gate {
        fn put(&mut self, message: Bytes) {
            self.0.lock().taken.push(message);
        }

        fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            let mut state = self.0.lock();
            if state.broken {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            if state.shut {
                state.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            let State { sent, taken, .. } = &mut *state;
            sent.append(taken);
            Poll::Ready(Ok(()))
        }

        fn poll_close(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.0.lock().closed = true;
            Poll::Ready(Ok(()))
        }
    }

    fn outbox() -> (Arc<Outbox>, Gate) {
        let gate = Gate::default();
        (Arc::new(Outbox::new(gate.clone())), gate)
    }

    fn send(outbox: &Outbox, stream_id: u32, message: &'static str) {
        let room = outbox.room().try_reserve(message.len()).unwrap().expect("room");
        outbox.queue(room, stream_id, message.into());
        outbox.pump(|id| id != 13);
    }

    fn free(outbox: &Outbox) -> u32 {
        let mut free = OUTBOX_BYTES;
        while outbox.room().try_reserve(free as usize - 64).unwrap().is_none() {
            free -= 1;
        }
        free
    }

    #[test]
    fn who_queues_sends_and_what_is_not_wanted_stays() {
        let (outbox, gate) = outbox();
        send(&outbox, 1, "a");
        assert_eq!(gate.sent(), ["a"]);
        send(&outbox, 13, "b");
        send(&outbox, 3, "c");
        assert_eq!(gate.sent(), ["a", "c"]);
        assert_eq!(free(&outbox), OUTBOX_BYTES);
    }

    #[test]
    fn what_the_transport_does_not_take_is_sent_by_the_connection_later() {
        let (outbox, gate) = outbox();
        let woken = Arc::new(CountWakes::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut run = Box::pin(outbox.run(|_| true));
        assert!(run.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        gate.shut();
        send(&outbox, 1, "a");
        send(&outbox, 3, "b");
        assert_eq!((gate.sent().len(), woken.count()), (0, 0));
        assert_eq!(free(&outbox), OUTBOX_BYTES - 2 * 65, "they still hold their room");
        gate.open();
        assert_eq!(woken.count(), 1);
        assert!(run.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(gate.sent(), ["a", "b"]);
        assert_eq!(free(&outbox), OUTBOX_BYTES);
    }

    #[test]
    fn closing_comes_after_what_is_queued() {
        let (outbox, gate) = outbox();
        gate.shut();
        send(&outbox, 1, "a");
        outbox.close_after_queued();
        assert!(outbox.run(|_| true).now_or_never().is_none());
        assert!(!gate.0.lock().closed);
        gate.open();
        assert!(outbox.run(|_| true).now_or_never().unwrap().is_ok());
        assert_eq!(gate.sent(), ["a"]);
        assert!(gate.0.lock().closed);
    }

    #[test]
    fn a_failure_that_a_caller_meets_ends_the_connection() {
        let (outbox, gate) = outbox();
        let woken = Arc::new(CountWakes::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut run = Box::pin(outbox.run(|_| true));
        assert!(run.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        gate.0.lock().broken = true;
        send(&outbox, 1, "a");
        assert_eq!(woken.count(), 1);
        let end = run.as_mut().poll(&mut Context::from_waker(noop_waker_ref()));
        assert!(matches!(end, Poll::Ready(Err(e)) if e.kind() == io::ErrorKind::BrokenPipe));
        outbox.end();
        assert!(outbox.room().try_reserve(1).is_err());
    }

    #[derive(Default)]
    struct CountWakes(AtomicUsize);

    impl CountWakes {
        fn count(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    impl std::task::Wake for CountWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Callers on three threads, the connection on a fourth, and a transport that shuts and opens.
    #[test]
    fn nothing_is_lost_and_order_is_kept_whoever_comes_between() {
        const EACH: u32 = 2000;
        let (outbox, gate) = outbox();
        let sending = |first: u32| {
            let outbox = Arc::clone(&outbox);
            move || {
                for number in 0..EACH {
                    let message = Bytes::from(format!("{first} {number}"));
                    let room = block_on(outbox.room().reserve(message.len()));
                    outbox.queue(room.unwrap(), 1, message);
                    outbox.pump(|_| true);
                }
            }
        };
        let callers: Vec<_> = (0..3).map(|first| thread::spawn(sending(first))).collect();
        let connection = {
            let outbox = Arc::clone(&outbox);
            thread::spawn(move || block_on(outbox.run(|_| true)))
        };
        while callers.iter().any(|caller| !caller.is_finished()) {
            gate.shut();
            thread::yield_now();
            gate.open();
            thread::yield_now();
        }
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        outbox.close_after_queued();
        connection.join().unwrap().unwrap();
        let sent = gate.sent();
        assert_eq!(sent.len(), 3 * EACH as usize);
        for first in 0..3 {
            let prefix = format!("{first} ");
            let own =
                sent.iter().filter_map(|m| std::str::from_utf8(m).ok()?.strip_prefix(&prefix));
            assert!(own.map(|number| number.parse::<u32>().unwrap()).eq(0..EACH));
        }
    }

    /// Runs a future on this thread, parked while it waits.
    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(future)
    }
}
