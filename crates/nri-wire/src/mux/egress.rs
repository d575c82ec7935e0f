//! The way out of a trunk, shared by its connections.
//!
//! Who has something to send lays its message out in frames behind what is pending, and writes.
//! The bytes that are pending belong to the trunk, not to the writer: whoever comes next
//! finishes them first.

use std::{
    io, mem,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::io::AsyncWrite;
use ttrpc::{MessageWriter, StreamWriter};

use crate::frame::lay_out;

#[derive(Debug)]
pub(crate) struct Egress<W> {
    out: Mutex<Out<W>>,
    blocked: Arc<Blocked>,
}

/// At most what the connections have room for is pending.
#[derive(Debug)]
struct Out<W> {
    pending: StreamWriter<W>,
    /// Small messages and headers, to be sent after what is pending.
    head: BytesMut,
}

/// The connections that wait for the trunk to take more. It remembers only the last who asked.
#[derive(Debug, Default)]
struct Blocked {
    waiting: Mutex<Vec<Waker>>,
}

/// Sends the messages of one connection, each in frames of its own.
#[derive(Debug)]
pub struct MuxWriter<W> {
    connection: u32,
    egress: Arc<Egress<W>>,
}

impl<W> Egress<W> {
    pub(crate) fn new(io: W) -> Self {
        let out = Out { pending: StreamWriter::new(io), head: BytesMut::new() };
        Self { out: Mutex::new(out), blocked: Arc::default() }
    }
}

impl<W: AsyncWrite + Send + Unpin + 'static> Egress<W> {
    fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut out = self.out.lock();
        let all = Waker::from(Arc::clone(&self.blocked));
        if let Poll::Ready(done) = out.poll_drain(&mut Context::from_waker(&all)) {
            return Poll::Ready(done);
        }
        self.blocked.add(cx.waker());
        // There may have been room before we were among those who are woken by it.
        out.poll_drain(&mut Context::from_waker(&all))
    }
}

impl Blocked {
    fn add(&self, waker: &Waker) {
        let mut waiting = self.waiting.lock();
        if !waiting.iter().any(|have| have.will_wake(waker)) {
            waiting.push(waker.clone());
        }
    }
}

impl Wake for Blocked {
    fn wake(self: Arc<Self>) {
        let waiting = mem::take(&mut *self.waiting.lock());
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl<W: AsyncWrite + Send + Unpin + 'static> Out<W> {
    fn push(&mut self, connection: u32, message: Bytes) {
        if let Some(rest) = lay_out(connection, message, &mut self.head) {
            self.seal();
            self.pending.put(rest);
        }
    }

    /// What is in `head` takes its place among what is pending.
    fn seal(&mut self) {
        if !self.head.is_empty() {
            self.pending.put(self.head.split().freeze());
        }
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.seal();
        self.pending.poll_flush(cx)
    }
}

impl<W> MuxWriter<W> {
    pub(crate) fn new(connection: u32, egress: Arc<Egress<W>>) -> Self {
        Self { connection, egress }
    }
}

impl<W: AsyncWrite + Send + Unpin + 'static> MessageWriter for MuxWriter<W> {
    fn put(&mut self, message: Bytes) {
        self.egress.out.lock().push(self.connection, message);
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.egress.poll_flush(cx)
    }

    /// Closing a connection inside a trunk is local; the trunk stays.
    fn poll_close(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
