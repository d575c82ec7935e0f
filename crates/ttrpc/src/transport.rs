//! The way out: where whole messages go.
//!
//! Reading needs no more than bytes, and [`AsyncRead`](tokio::io::AsyncRead) does. Writing
//! is different: a multiplexer underneath must know where a message ends, because the
//! frames it makes may not span two of them. So a connection hands its messages to a
//! [`MessageWriter`], one at a time and whole.
//!
//! ```text
//!   callers --> queue --> MessageWriter --> socket: messages joined into few writes
//!                                      `--> multiplexer: messages cut into its frames
//! ```
//!
//! **Invariant:** who is at the writer hands it whole messages only, so that no dropped call
//! leaves half of one behind.

use std::{
    collections::VecDeque,
    io,
    io::IoSlice,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;

/// Takes whole messages. Any [`AsyncWrite`] becomes one inside
/// [`Client::new`](crate::Client::new) and
/// [`Server::serve_connection`](crate::Server::serve_connection); implement it for a
/// transport that cares about the borders of messages and pass it to `from_parts` and
/// `serve_parts`.
pub trait MessageWriter: Send + 'static {
    /// Takes one message: ten bytes of header and its payload, nothing before or after.
    fn put(&mut self, message: Bytes);

    /// Sends what was taken, as far as it goes; ready when all of it is sent. Whichever task
    /// calls, it is the one to be woken by `cx` that will call again.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Ends the connection in order; after a flush. A connection that is cut off drops its
    /// writer without it.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// Sends messages as they are on a byte stream: joined into one vectored write where there are
/// several, and none of them copied.
#[derive(Debug)]
pub struct StreamWriter<W> {
    io: W,
    pending: VecDeque<Bytes>,
}

/// Enough to make system calls cheap by the message.
const JOIN_MESSAGES: usize = 32;

impl<W> StreamWriter<W> {
    pub fn new(io: W) -> Self {
        Self { io, pending: VecDeque::new() }
    }

    fn advance(&mut self, mut written: usize) {
        while let Some(first) = self.pending.front_mut() {
            if written < first.len() {
                return first.advance(written);
            }
            written -= first.len();
            self.pending.pop_front();
        }
    }
}

impl<W: AsyncWrite + Send + Unpin + 'static> MessageWriter for StreamWriter<W> {
    fn put(&mut self, message: Bytes) {
        self.pending.push_back(message);
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.pending.is_empty() {
            let mut slices = [IoSlice::new(&[]); JOIN_MESSAGES];
            for (slice, message) in slices.iter_mut().zip(&self.pending) {
                *slice = IoSlice::new(message);
            }
            let count = self.pending.len().min(JOIN_MESSAGES);
            let io = Pin::new(&mut self.io);
            let written = ready!(io.poll_write_vectored(cx, &slices[..count]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(written);
        }
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use proptest::{collection::vec, prelude::*};
    use tokio::io::AsyncReadExt;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn bytes_come_out_in_order_whatever_the_io_takes_at_a_time(
            messages in vec(vec(any::<u8>(), 1..3000), 1..60),
            takes in 1usize..500,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let got = runtime.block_on(async {
                let (near, mut far) = tokio::io::duplex(takes);
                let write = async {
                    let mut writer = StreamWriter::new(near);
                    for message in &messages {
                        writer.put(Bytes::from(message.clone()));
                    }
                    poll_fn(|cx| writer.poll_flush(cx)).await.unwrap();
                    assert!(writer.pending.is_empty());
                    poll_fn(|cx| writer.poll_close(cx)).await.unwrap();
                };
                let mut got = Vec::new();
                let (_, read) = tokio::join!(write, far.read_to_end(&mut got));
                read.unwrap();
                got
            });
            prop_assert_eq!(got, messages.concat());
        }
    }
}
