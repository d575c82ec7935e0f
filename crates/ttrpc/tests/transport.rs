//! A multiplexer underneath: it gets whole messages, one by one, and cuts them as its own
//! peers demand.

mod support;

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{self, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use support::{LONG, ask, service};
use tokio::io::{AsyncWrite, WriteHalf};
use tokio_util::task::TaskTracker;
use ttrpc::{Client, Context, HEADER_LEN, Header, MessageWriter, Server};

/// Checks that what it gets is one message, and writes it as NRI's Go peers need it: at most
/// 4096 bytes first, then all the rest.
struct Cutter<W> {
    io: WriteHalf<W>,
    pending: BytesMut,
    frames: tokio::sync::mpsc::UnboundedSender<usize>,
}

impl<W: AsyncWrite + Send + 'static> MessageWriter for Cutter<W> {
    fn put(&mut self, message: Bytes) {
        let header = *message.first_chunk::<HEADER_LEN>().expect("a header");
        assert_eq!(Header::from_bytes(header).len as usize, message.len() - HEADER_LEN);
        let (head, rest) = message.split_at(message.len().min(4096));
        for frame in [head, rest].into_iter().filter(|frame| !frame.is_empty()) {
            let _ = self.frames.send(frame.len());
            self.pending.extend_from_slice(frame);
        }
    }

    fn poll_flush(&mut self, cx: &mut task::Context<'_>) -> Poll<io::Result<()>> {
        while !self.pending.is_empty() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, &self.pending))?;
            self.pending.advance(written);
        }
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_close(&mut self, cx: &mut task::Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn a_transport_sees_the_borders_of_messages() {
    let (frames, mut cut) = tokio::sync::mpsc::unbounded_channel();
    let (near, far) = tokio::io::duplex(1 << 20);
    let (reader, writer) = tokio::io::split(near);
    let cutter = |io, frames| Cutter { io, pending: BytesMut::new(), frames };
    let client = Client::from_parts(reader, cutter(writer, frames.clone()));
    let (reader, writer) = tokio::io::split(far);
    let server = Server::builder().service(service(&Arc::default())).build();
    let tasks = TaskTracker::new();
    tasks.spawn(async move { server.serve_parts(reader, cutter(writer, frames)).await });

    // Many at once, so that messages wait behind each other.
    let calls = (0..20).map(|i| {
        let text = "x".repeat(i * 1000);
        let client = client.clone();
        async move {
            let ctx = Context::timeout(LONG);
            let answer = ask::<_, String>(&client, "Echo", ctx, text.clone()).await;
            assert_eq!(answer.unwrap(), text);
        }
    });
    futures_util::future::join_all(calls).await;
    client.close();
    client.closed().await;
    tasks.close();
    tasks.wait().await;

    let mut lens = Vec::new();
    while let Ok(len) = cut.try_recv() {
        lens.push(len);
    }
    // Twenty requests and responses; those of four thousand and more are cut once.
    assert_eq!(lens.iter().filter(|&&len| len == 4096).count(), 2 * 15);
    assert_eq!(lens.len(), 2 * (20 + 15));
}
