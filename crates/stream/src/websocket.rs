//! Streams as channels of a WebSocket: the first byte of a message says which.
//!
//! Without windows: who does not take one channel makes all of them wait.

use std::{
    collections::BTreeMap,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::{Bytes, BytesMut};
use futures_util::{Sink as _, SinkExt, Stream, StreamExt};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::mpsc,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        self, Message,
        protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode},
    },
};
use tokio_util::sync::CancellationToken;

use crate::lanes::{Activity, Credit, Out, Output, Queue, Sink, queue};

/// What one message may hold: a client sends as much of its stdin as it likes at once.
const MAX_MESSAGE: usize = 16 << 20;
/// What a client may still send after our last word.
const LINGER: Duration = Duration::from_secs(5);
/// Version 5: the second byte says which channel has ended.
const CLOSE_CHANNEL: u8 = 255;

type Error = tungstenite::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    Raw,
    /// Text, the channel as a digit.
    Base64,
}

impl Codec {
    fn encode(self, channel: u8, bytes: &[u8]) -> Message {
        match self {
            Self::Raw => {
                let mut message = BytesMut::with_capacity(bytes.len() + 1);
                message.extend_from_slice(&[channel]);
                message.extend_from_slice(bytes);
                Message::Binary(message.freeze())
            }
            Self::Base64 => {
                let mut text = String::from(char::from(b'0' + channel));
                STANDARD.encode_string(bytes, &mut text);
                Message::text(text)
            }
        }
    }

    /// `None` for what carries nothing.
    fn decode(self, mut message: Bytes) -> Option<(u8, Bytes)> {
        if message.is_empty() {
            return None;
        }
        let channel = message.split_to(1)[0];
        match self {
            Self::Raw => Some((channel, message)),
            Self::Base64 => {
                let bytes = STANDARD.decode(&message).ok()?;
                Some((channel.checked_sub(b'0')?, bytes.into()))
            }
        }
    }
}

/// A connection whose handshake is done.
pub(crate) async fn upgraded<T>(io: T) -> WebSocketStream<T>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let config = WebSocketConfig::default()
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE));
    WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await
}

/// The channels of a connection, to be served while [`Driver::run`] runs.
#[derive(Clone, Debug)]
pub(crate) struct Channels {
    queue: Queue,
    pub(crate) gone: CancellationToken,
}

#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) codec: Codec,
    pub(crate) half_close: bool,
    /// Channels that the client writes to.
    pub(crate) sinks: BTreeMap<u8, Sink>,
    pub(crate) idle: Duration,
    out: mpsc::Receiver<Out>,
    gone: CancellationToken,
}

pub(crate) fn session(codec: Codec, half_close: bool, idle: Duration) -> (Driver, Channels) {
    let (queue, out) = queue();
    let gone = CancellationToken::new();
    let channels = Channels { queue, gone: gone.clone() };
    (Driver { codec, half_close, sinks: BTreeMap::new(), idle, out, gone }, channels)
}

impl Channels {
    pub(crate) fn output(&self, channel: u8) -> Output {
        let credits = [Credit::unlimited(), Credit::unlimited()];
        Output::new(channel.into(), self.queue.clone(), credits)
    }

    /// Ends the connection after all that was sent.
    pub(crate) async fn close(self) {
        let _ = self.queue.send(Out::Close).await;
    }
}

impl Driver {
    /// Returns when the connection is over. Dropping it breaks the connection.
    pub(crate) async fn run<T>(self, socket: WebSocketStream<T>) -> Result<(), Error>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let _gone = self.gone.drop_guard();
        let (writer, reader) = socket.split();
        let activity = Activity::new();
        let reading = read(reader, self.sinks, self.codec, self.half_close, &activity);
        let mut reading = std::pin::pin!(reading);
        let mut writing = std::pin::pin!(write(writer, self.out, self.codec, &activity));
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

async fn read(
    mut socket: impl Stream<Item = Result<Message, Error>> + Unpin,
    mut sinks: BTreeMap<u8, Sink>,
    codec: Codec,
    half_close: bool,
    activity: &Activity,
) -> Result<(), Error> {
    while let Some(message) = socket.next().await {
        activity.touch();
        let bytes = match message? {
            Message::Binary(bytes) => bytes,
            Message::Text(text) => text.into(),
            Message::Close(_) => return Ok(()),
            // Answered by the library.
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => continue,
        };
        let Some((channel, mut bytes)) = codec.decode(bytes) else { continue };
        if channel == CLOSE_CHANNEL && half_close {
            bytes.first().map(|ended| sinks.remove(ended));
        } else if let Some(sink) = sinks.get_mut(&channel)
            && sink.write(&mut bytes).await.is_err()
        {
            sinks.remove(&channel);
        }
    }
    Ok(())
}

async fn write(
    mut socket: impl futures_util::Sink<Message, Error = Error> + Unpin,
    mut out: mpsc::Receiver<Out>,
    codec: Codec,
    activity: &Activity,
) -> Result<(), Error> {
    loop {
        let next = match out.try_recv() {
            Ok(next) => next,
            Err(_) => {
                socket.flush().await?;
                activity.touch();
                out.recv().await.unwrap_or(Out::Close)
            }
        };
        match next {
            Out::Data { id, bytes } => {
                let channel = u8::try_from(id).unwrap_or(u8::MAX);
                socket.feed(codec.encode(channel, &bytes)).await?;
            }
            // The protocol has no word for it.
            Out::Fin(_) => {}
            Out::Close => return socket.send(last_word()).await,
        }
    }
}

fn last_word() -> Message {
    Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() }))
}

/// The messages of a WebSocket as one stream of bytes.
#[derive(Debug)]
pub(crate) struct Tunnel<T> {
    socket: WebSocketStream<T>,
    unread: Bytes,
    closing: bool,
}

impl<T> Tunnel<T> {
    pub(crate) fn new(socket: WebSocketStream<T>) -> Self {
        Self { socket, unread: Bytes::new(), closing: false }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for Tunnel<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.unread.is_empty() {
            match ready!(self.socket.poll_next_unpin(context)) {
                Some(Ok(Message::Binary(bytes))) => self.unread = bytes,
                Some(Ok(Message::Close(_))) | None => return Poll::Ready(Ok(())),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
            }
        }
        let count = self.unread.len().min(buffer.remaining());
        buffer.put_slice(&self.unread.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Tunnel<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.socket.poll_ready_unpin(context)).map_err(io::Error::other)?;
        let message = Message::Binary(Bytes::copy_from_slice(bytes));
        self.socket.start_send_unpin(message).map_err(io::Error::other)?;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context).map_err(io::Error::other)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.closing {
            ready!(self.socket.poll_ready_unpin(context)).map_err(io::Error::other)?;
            self.socket.start_send_unpin(last_word()).map_err(io::Error::other)?;
            self.closing = true;
        }
        self.poll_flush(context)
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection, prelude::*};

    use super::*;

    fn bytes(message: Message) -> Bytes {
        message.into_data()
    }

    #[test]
    fn base64_is_the_channel_as_a_digit_and_the_rest() {
        assert_eq!(bytes(Codec::Base64.encode(1, b"\n")), "1Cg==");
        assert_eq!(Codec::Base64.decode("0Zm9vCg==".into()), Some((0, "foo\n".into())));
        assert_eq!(Codec::Base64.decode("0***".into()), None);
        assert_eq!(Codec::Base64.decode("\u{1}Cg==".into()), None);
        assert_eq!(Codec::Raw.decode(Bytes::new()), None);
    }

    proptest! {
        #[test]
        fn messages_come_out_as_they_went_in(
            channel in 0..10_u8,
            data in collection::vec(any::<u8>(), 0..50),
        ) {
            for codec in [Codec::Raw, Codec::Base64] {
                let message = bytes(codec.encode(channel, &data));
                prop_assert_eq!(codec.decode(message), Some((channel, data.clone().into())));
            }
        }

        #[test]
        fn no_bytes_panic(data in collection::vec(any::<u8>(), 0..20)) {
            let _ = Codec::Base64.decode(data.clone().into());
            let _ = Codec::Raw.decode(data.into());
        }
    }
}
