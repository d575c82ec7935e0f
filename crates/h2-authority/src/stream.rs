//! The byte stream that applies a [`Rewriter`] to what is read from it.

use std::{
    io::{IoSlice, Result},
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::Rewriter;

/// The server's end of a connection. Reads go through a [`Rewriter`]; writes are unchanged.
#[derive(Debug)]
pub struct AuthorityStream<S> {
    inner: S,
    rewriter: Rewriter,
    /// Bytes from the client that the rewriter has not seen yet.
    input: Backlog,
    /// Rewritten bytes that h2 has not read yet.
    output: Backlog,
}

/// A buffer that is consumed from the front.
#[derive(Debug, Default)]
struct Backlog {
    bytes: Vec<u8>,
    taken: usize,
}

impl Backlog {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// Drops what is left and returns the buffer to be filled.
    fn refill(&mut self) -> &mut Vec<u8> {
        self.bytes.clear();
        self.taken = 0;
        &mut self.bytes
    }
}

impl<S> AuthorityStream<S> {
    pub fn new(inner: S) -> Self {
        let (input, output) = (Backlog::default(), Backlog::default());
        Self { inner, rewriter: Rewriter::new(), input, output }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AuthorityStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let this = self.get_mut();
        loop {
            let ready = this.output.rest();
            if !ready.is_empty() || buf.remaining() == 0 {
                let size = ready.len().min(buf.remaining());
                buf.put_slice(&ready[..size]);
                this.output.taken += size;
                return Poll::Ready(Ok(()));
            }
            if !this.input.rest().is_empty() {
                let fed = this.rewriter.feed(this.input.rest(), this.output.refill());
                this.input.taken += fed;
                if let Some(violation) = this.rewriter.violation() {
                    tracing::debug!(error = %violation, "client violated HTTP/2, connection ends");
                    this.input.refill();
                }
                continue;
            }
            if this.rewriter.violation().is_some() {
                // End of stream: h2 has read the violation and closes.
                return Poll::Ready(Ok(()));
            }
            let before = buf.filled().len();
            ready!(Pin::new(&mut this.inner).poll_read(cx, buf))?;
            let read = buf.filled().len() - before;
            // Bytes that pass through stay where they were read to.
            let passed = this.rewriter.pass(read);
            this.input.refill().extend_from_slice(&buf.filled()[before + passed..]);
            buf.set_filled(before + passed);
            if read == 0 || passed > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AuthorityStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
