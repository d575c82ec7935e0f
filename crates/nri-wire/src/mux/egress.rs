//! The way out of a trunk, shared by its connections.
//!
//! Who has something to send takes the lock, lays its message out in frames behind what is
//! pending, and writes. The bytes that are pending belong to the trunk, not to the writer:
//! whoever comes next finishes them first.

use std::{collections::VecDeque, io, io::IoSlice, sync::Arc};

use bytes::{Buf, Bytes, BytesMut};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::Mutex,
};
use ttrpc::MessageWriter;

use crate::frame::lay_out;

/// Enough to make system calls cheap by the message, little enough to keep latency flat.
const JOIN_BYTES: usize = 64 << 10;
const JOIN_SLICES: usize = 16;

#[derive(Debug)]
pub(crate) struct Egress<W> {
    out: Mutex<Out<W>>,
}

/// At most [`JOIN_BYTES`] and one message are pending.
#[derive(Debug)]
struct Out<W> {
    io: W,
    /// Small messages and headers, to be sent after `pending`.
    head: BytesMut,
    pending: VecDeque<Bytes>,
    pending_bytes: usize,
}

/// Sends the messages of one connection, each in frames of its own.
#[derive(Debug)]
pub struct MuxWriter<W> {
    connection: u32,
    egress: Arc<Egress<W>>,
}

impl<W> Egress<W> {
    pub(crate) fn new(io: W) -> Self {
        let (head, pending) = (BytesMut::new(), VecDeque::new());
        Self { out: Mutex::new(Out { io, head, pending, pending_bytes: 0 }) }
    }
}

impl<W: AsyncWrite + Unpin> Out<W> {
    fn push(&mut self, connection: u32, message: Bytes) {
        if let Some(rest) = lay_out(connection, message, &mut self.head) {
            self.seal();
            self.pending_bytes += rest.len();
            self.pending.push_back(rest);
        }
    }

    /// What is in `head` takes its place among what is pending.
    fn seal(&mut self) {
        if !self.head.is_empty() {
            self.pending_bytes += self.head.len();
            self.pending.push_back(self.head.split().freeze());
        }
    }

    fn is_full(&self) -> bool {
        self.pending_bytes + self.head.len() >= JOIN_BYTES
    }

    /// Cancel safe: what was written is gone from `pending`, the rest is there.
    async fn drain(&mut self) -> io::Result<()> {
        self.seal();
        while !self.pending.is_empty() {
            let mut slices = [IoSlice::new(&[]); JOIN_SLICES];
            for (slice, bytes) in slices.iter_mut().zip(&self.pending) {
                *slice = IoSlice::new(bytes);
            }
            let count = self.pending.len().min(JOIN_SLICES);
            let written = self.io.write_vectored(&slices[..count]).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.advance(written);
        }
        Ok(())
    }

    fn advance(&mut self, mut written: usize) {
        self.pending_bytes -= written;
        while let Some(first) = self.pending.front_mut() {
            if written < first.len() {
                return first.advance(written);
            }
            written -= first.len();
            self.pending.pop_front();
        }
    }
}

impl<W> MuxWriter<W> {
    pub(crate) fn new(connection: u32, egress: Arc<Egress<W>>) -> Self {
        Self { connection, egress }
    }
}

impl<W: AsyncWrite + Send + Unpin + 'static> MessageWriter for MuxWriter<W> {
    async fn write(&mut self, message: Bytes) -> io::Result<()> {
        let mut out = self.egress.out.lock().await;
        out.push(self.connection, message);
        match out.is_full() {
            true => out.drain().await,
            false => Ok(()),
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        let mut out = self.egress.out.lock().await;
        out.drain().await?;
        out.io.flush().await
    }

    /// Closing a connection inside a trunk is local; the trunk stays.
    async fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
}
