//! The way out: where whole messages go.
//!
//! Reading needs no more than bytes, and [`AsyncRead`](tokio::io::AsyncRead) does. Writing
//! is different: a multiplexer underneath must know where a message ends, because the
//! frames it makes may not span two of them. So a connection hands its messages to a
//! [`MessageWriter`], one at a time and whole, and says when it has no more for now.
//!
//! ```text
//!   callers --> queue --> one task --> MessageWriter --> socket: messages joined into few writes
//!                                                    `-> multiplexer: messages cut into its frames
//! ```
//!
//! **Invariant:** one task owns the writer and is never cancelled in the middle of a
//! message as long as the connection lives, so that no dropped call leaves half of one
//! behind.

use std::{collections::VecDeque, io, io::IoSlice};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncWrite, AsyncWriteExt};

/// Takes whole messages. Any [`AsyncWrite`] becomes one inside
/// [`Client::new`](crate::Client::new) and
/// [`Server::serve_connection`](crate::Server::serve_connection); implement it for a
/// transport that cares about the borders of messages and pass it to `from_parts` and
/// `serve_parts`.
pub trait MessageWriter: Send + 'static {
    /// Takes one message: ten bytes of header and its payload, nothing before or after.
    /// It need not be on its way before [`flush`](Self::flush).
    fn write(&mut self, message: Bytes) -> impl Future<Output = io::Result<()>> + Send;

    /// Sends what was taken. Called whenever no further message is waiting.
    fn flush(&mut self) -> impl Future<Output = io::Result<()>> + Send;

    /// Ends the connection in order; the last call, after a flush. A connection that is cut
    /// off drops its writer without it.
    fn close(&mut self) -> impl Future<Output = io::Result<()>> + Send;
}

/// Joins small messages into one vectored write; large ones are not copied either.
#[derive(Debug)]
pub(crate) struct StreamWriter<W> {
    io: W,
    pending: VecDeque<Bytes>,
    pending_bytes: usize,
}

/// Enough to make system calls cheap by the message, little enough to keep latency flat.
const JOIN_BYTES: usize = 64 << 10;
const JOIN_MESSAGES: usize = 32;

impl<W> StreamWriter<W> {
    pub(crate) fn new(io: W) -> Self {
        Self { io, pending: VecDeque::new(), pending_bytes: 0 }
    }
}

impl<W: AsyncWrite + Unpin> StreamWriter<W> {
    async fn write_pending(&mut self) -> io::Result<()> {
        while !self.pending.is_empty() {
            let mut slices = [IoSlice::new(&[]); JOIN_MESSAGES];
            for (slice, message) in slices.iter_mut().zip(&self.pending) {
                *slice = IoSlice::new(message);
            }
            let count = self.pending.len().min(JOIN_MESSAGES);
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

impl<W: AsyncWrite + Send + Unpin + 'static> MessageWriter for StreamWriter<W> {
    async fn write(&mut self, message: Bytes) -> io::Result<()> {
        self.pending_bytes += message.len();
        self.pending.push_back(message);
        match self.pending_bytes >= JOIN_BYTES || self.pending.len() >= JOIN_MESSAGES {
            true => self.write_pending().await,
            false => Ok(()),
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        self.write_pending().await?;
        self.io.flush().await
    }

    async fn close(&mut self) -> io::Result<()> {
        self.io.shutdown().await
    }
}

#[cfg(test)]
mod tests {
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
                        writer.write(Bytes::from(message.clone())).await.unwrap();
                    }
                    writer.flush().await.unwrap();
                    assert_eq!(writer.pending_bytes, 0);
                    writer.close().await.unwrap();
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
