//! The multiplexer: several connections over one byte stream, the trunk.
//!
//! ```text
//!   socket --> run() --> inbox 1 --> MuxReader 1     bytes, in order
//!                   `--> inbox 2 --> MuxReader 2
//!   socket <-- egress <-- MuxWriter 1                whole messages, in frames
//!                    `<-- MuxWriter 2
//! ```
//!
//! Opening a connection is local: nothing about it goes on the wire, and frames for one that
//! is not open are dropped. So what a peer may send first must be open before [`Mux::run`].
//!
//! The wire has no flow control. Each connection may have [`INBOX_BYTES`] waiting for its
//! reader; beyond that the trunk is not read, which also holds up the other connections, so
//! this lasts [`STALL`] at most and then ends the trunk.
//!
//! **Invariants:** reading never waits for writing, so two peers that both write cannot
//! block each other for good. A writer dropped in the middle of a frame leaves the rest of
//! it to the next writer: the trunk stays in step. Nothing is allocated on the word of a
//! header.

mod egress;
mod inbox;

use std::{io, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadHalf, WriteHalf},
    time::timeout,
};

pub use egress::MuxWriter;
pub use inbox::MuxReader;

use self::{egress::Egress, inbox::Inbox};
use crate::Frames;

/// Bytes that may wait for the reader of one connection: two messages of any size.
pub(crate) const INBOX_BYTES: usize = 2 * crate::MAX_FRAME;
/// How long a full inbox may hold up the trunk.
pub(crate) const STALL: Duration = Duration::from_secs(1);

/// One read's worth of small frames, and of a large one.
const READ_SMALL: usize = 16 << 10;
const READ_LARGE: usize = 64 << 10;

/// Why a trunk ended, where the peer did not simply close it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MuxError {
    #[error(
        "frame of {len} bytes for connection {connection} is above the limit of {}",
        crate::MAX_FRAME
    )]
    FrameTooLarge { connection: u32, len: u32 },

    #[error("connection {connection} did not take what came for it within {STALL:?}")]
    Stalled { connection: u32 },

    #[error("trunk ended inside a frame")]
    Truncated,

    #[error("read the trunk")]
    Read(#[source] Arc<io::Error>),

    #[error("write the trunk")]
    Write(#[source] Arc<io::Error>),
}

/// Why a connection cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error("connection id 0 is reserved")]
    Reserved,
    #[error("connection {0} is already open")]
    AlreadyOpen(u32),
}

/// A trunk that is not read yet.
#[derive(Debug)]
pub struct Mux<T> {
    reader: ReadHalf<T>,
    egress: Arc<Egress<WriteHalf<T>>>,
    open: Inboxes,
}

/// The two ends of a connection inside a trunk.
#[derive(Debug)]
pub struct Connection<T> {
    pub reader: MuxReader,
    pub writer: MuxWriter<WriteHalf<T>>,
}

/// Where the pieces go. Ends all readers when dropped.
#[derive(Debug, Default)]
struct Inboxes(Vec<(u32, Arc<Inbox>)>);

impl<T: AsyncRead + AsyncWrite> Mux<T> {
    /// Reads and writes nothing yet.
    pub fn new(io: T) -> Self {
        let (reader, writer) = tokio::io::split(io);
        Self { reader, egress: Arc::new(Egress::new(writer)), open: Inboxes::default() }
    }

    pub fn open(&mut self, id: u32) -> Result<Connection<T>, OpenError> {
        if id == 0 {
            return Err(OpenError::Reserved);
        }
        if self.open.find(id).is_some() {
            return Err(OpenError::AlreadyOpen(id));
        }
        let inbox = Arc::new(Inbox::new(INBOX_BYTES));
        self.open.0.push((id, Arc::clone(&inbox)));
        let writer = MuxWriter::new(id, Arc::clone(&self.egress));
        Ok(Connection { reader: MuxReader::new(inbox), writer })
    }

    /// Reads until the peer closes or the trunk is beyond repair; every reader then gets
    /// what is left for it and the same end.
    ///
    /// Not cancel safe: dropping it ends all readers.
    pub async fn run(mut self) -> Result<(), MuxError> {
        let end = read_loop(&mut self.reader, &self.open).await;
        self.open.end(&end);
        end
    }
}

async fn read_loop<T: AsyncRead>(io: &mut ReadHalf<T>, open: &Inboxes) -> Result<(), MuxError> {
    let (mut frames, mut buf) = (Frames::default(), BytesMut::new());
    loop {
        while let Some(piece) = frames.next(&mut buf)? {
            if let Some(inbox) = open.find(piece.connection) {
                put(inbox, piece.connection, piece.bytes).await?;
            }
        }
        buf.reserve(frames.left().clamp(READ_SMALL, READ_LARGE).saturating_sub(buf.len()));
        let read = io.read_buf(&mut buf).await.map_err(|e| MuxError::Read(Arc::new(e)))?;
        if read == 0 {
            return match frames.at_border() && buf.is_empty() {
                true => Ok(()),
                false => Err(MuxError::Truncated),
            };
        }
    }
}

async fn put(inbox: &Inbox, connection: u32, bytes: Bytes) -> Result<(), MuxError> {
    let Err(bytes) = inbox.try_put(bytes) else { return Ok(()) };
    let stalled = |_| MuxError::Stalled { connection };
    timeout(STALL, inbox.put(bytes)).await.map_err(stalled)
}

impl Inboxes {
    fn find(&self, id: u32) -> Option<&Inbox> {
        self.0.iter().find(|(open, _)| *open == id).map(|(_, inbox)| &**inbox)
    }

    fn end(&self, end: &Result<(), MuxError>) {
        for (_, inbox) in &self.0 {
            inbox.end(end.clone());
        }
    }
}

impl Drop for Inboxes {
    fn drop(&mut self) {
        self.end(&Ok(()));
    }
}

impl From<MuxError> for io::Error {
    fn from(error: MuxError) -> Self {
        let kind = match &error {
            MuxError::FrameTooLarge { .. } => io::ErrorKind::InvalidData,
            MuxError::Stalled { .. } => io::ErrorKind::TimedOut,
            MuxError::Truncated => io::ErrorKind::UnexpectedEof,
            MuxError::Read(source) | MuxError::Write(source) => source.kind(),
        };
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncWriteExt, DuplexStream},
        net::UnixStream,
        time::Instant,
    };
    use ttrpc::MessageWriter;

    use super::*;
    use crate::{FIRST_FRAME, MAX_FRAME};

    /// A mux with connections 1 and 2 open, and the other end of its trunk.
    fn opened(capacity: usize) -> (Mux<DuplexStream>, [Connection<DuplexStream>; 2], DuplexStream) {
        let (near, far) = tokio::io::duplex(capacity);
        let mut mux = Mux::new(near);
        let connections = [mux.open(1).unwrap(), mux.open(2).unwrap()];
        (mux, connections, far)
    }

    fn frame(id: u32, payload: &[u8]) -> Vec<u8> {
        let len = u32::try_from(payload.len()).unwrap();
        [&id.to_be_bytes(), &len.to_be_bytes(), payload].concat()
    }

    async fn flush(writer: &mut impl MessageWriter) {
        std::future::poll_fn(|cx| writer.poll_flush(cx)).await.unwrap();
    }

    async fn all(reader: &mut MuxReader) -> (Vec<u8>, Option<io::ErrorKind>) {
        let mut got = Vec::new();
        let end = reader.read_to_end(&mut got).await;
        (got, end.err().map(|e| e.kind()))
    }

    #[tokio::test]
    async fn ids_are_opened_once_and_zero_never() {
        let (mut mux, ..) = opened(64);
        assert_eq!(mux.open(0).err(), Some(OpenError::Reserved));
        assert_eq!(mux.open(2).err(), Some(OpenError::AlreadyOpen(2)));
        assert!(mux.open(u32::MAX).is_ok());
    }

    #[tokio::test]
    async fn each_connection_gets_its_bytes_and_strangers_are_dropped() {
        let (mux, [mut one, mut two], mut far) = opened(1 << 16);
        for wire in [frame(1, b"a"), frame(9, b"x"), frame(2, b"b"), frame(1, b""), frame(1, b"c")]
        {
            far.write_all(&wire).await.unwrap();
        }
        drop(far);
        mux.run().await.unwrap();
        assert_eq!(all(&mut one.reader).await, (b"ac".to_vec(), None));
        assert_eq!(all(&mut two.reader).await, (b"b".to_vec(), None));
    }

    #[tokio::test]
    async fn a_trunk_cut_in_a_frame_is_an_error_for_all() {
        for cut in 1..9 {
            let (mux, [mut one, mut two], mut far) = opened(64);
            far.write_all(&frame(1, b"a")[..cut]).await.unwrap();
            drop(far);
            assert!(matches!(mux.run().await, Err(MuxError::Truncated)), "cut {cut}");
            assert_eq!(all(&mut one.reader).await.1, Some(io::ErrorKind::UnexpectedEof));
            assert_eq!(all(&mut two.reader).await.1, Some(io::ErrorKind::UnexpectedEof));
        }
    }

    #[tokio::test]
    async fn a_frame_above_the_limit_ends_the_trunk() {
        let (mux, [mut one, _two], mut far) = opened(64);
        far.write_all(&[0, 0, 0, 1, 0xFF, 0xFF, 0xFF, 0xFF]).await.unwrap();
        let end = mux.run().await;
        assert!(matches!(end, Err(MuxError::FrameTooLarge { connection: 1, len: u32::MAX })));
        assert_eq!(all(&mut one.reader).await.1, Some(io::ErrorKind::InvalidData));
    }

    #[tokio::test]
    async fn messages_of_both_sides_cross_whatever_the_trunk_takes_at_a_time() {
        let (mux, [one, two], far) = opened(1000);
        let mut peer = Mux::new(far);
        let (mut there1, mut there2) = (peer.open(1).unwrap(), peer.open(2).unwrap());
        let lengths = [10, 4096, 4097, 70_000, MAX_FRAME];
        let messages: Vec<Bytes> =
            lengths.iter().zip(1..).map(|(len, fill)| vec![fill; *len].into()).collect();
        let write = async |mut writer: MuxWriter<_>| {
            for message in &messages {
                writer.put(message.clone());
            }
            flush(&mut writer).await;
        };
        let read = async |reader: &mut MuxReader| {
            let mut got = vec![0; messages.iter().map(Bytes::len).sum()];
            reader.read_exact(&mut got).await.unwrap();
            assert!(got == messages.concat(), "bytes arrive as they were sent");
        };
        tokio::select! {
            _ = async { tokio::join!(mux.run(), peer.run()) } => panic!("a trunk ended"),
            _ = async {
                tokio::join!(
                    write(one.writer), write(two.writer), write(there2.writer),
                    read(&mut there1.reader), read(&mut there2.reader),
                    async { let mut reader = two.reader; read(&mut reader).await },
                )
            } => {}
        }
    }

    /// The rules of the reference peer: see `frame.rs`.
    #[tokio::test]
    async fn no_frame_spans_two_messages_or_starts_above_4096_bytes() {
        let (_mux, [one, _two], mut far) = opened(1 << 20);
        let mut writer = one.writer;
        for len in [20, 30, 5000, 10] {
            writer.put(vec![1; len].into());
        }
        flush(&mut writer).await;
        let mut frames = Vec::new();
        for _ in 0..5 {
            assert_eq!(far.read_u32().await.unwrap(), 1);
            let len = far.read_u32().await.unwrap() as usize;
            far.read_exact(&mut vec![0; len]).await.unwrap();
            frames.push(len);
        }
        assert_eq!(frames, [20, 30, FIRST_FRAME, 5000 - FIRST_FRAME, 10]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_nothing_ends_the_trunk_after_a_while() {
        let (mux, [mut one, mut two], mut far) = opened(1 << 16);
        let begun = Instant::now();
        let flood = async {
            let wire = frame(1, &vec![0; 1 << 20]);
            while far.write_all(&wire).await.is_ok() {}
        };
        let end = tokio::select! {
            end = mux.run() => end,
            () = flood => panic!("the trunk was closed before its end was known"),
        };
        assert!(matches!(end, Err(MuxError::Stalled { connection: 1 })), "{end:?}");
        assert_eq!(begun.elapsed(), STALL);
        assert_eq!(all(&mut two.reader).await, (vec![], Some(io::ErrorKind::TimedOut)));
        // What was queued before is still there, and no more than the budget allows.
        let (got, _) = all(&mut one.reader).await;
        assert!((INBOX_BYTES / 2..=INBOX_BYTES + READ_LARGE).contains(&got.len()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_inbox_passes_on_when_its_reader_comes_back_in_time() {
        let (mux, [mut one, mut two], mut far) = opened(1 << 16);
        let payload = vec![3; MAX_FRAME];
        let send = async {
            for _ in 0..4 {
                far.write_all(&frame(1, &payload)).await.unwrap();
            }
            far.write_all(&frame(2, b"after")).await.unwrap();
            drop(far);
        };
        let read = async {
            tokio::time::sleep(STALL / 2).await;
            let got = all(&mut one.reader).await;
            assert_eq!((got.0.len(), got.1), (4 * MAX_FRAME, None));
            assert_eq!(all(&mut two.reader).await.0, b"after");
        };
        let (end, (), ()) = tokio::join!(mux.run(), send, read);
        end.unwrap();
    }

    #[tokio::test]
    async fn a_reader_that_is_gone_holds_up_nobody() {
        let (mux, [one, mut two], mut far) = opened(1 << 16);
        drop(one.reader);
        let send = async {
            for _ in 0..20 {
                far.write_all(&frame(1, &vec![0; 1 << 20])).await.unwrap();
            }
            far.write_all(&frame(2, b"still here")).await.unwrap();
            drop(far);
        };
        let (end, ()) = tokio::join!(mux.run(), send);
        end.unwrap();
        assert_eq!(all(&mut two.reader).await.0, b"still here");
    }

    #[tokio::test]
    async fn a_writer_dropped_inside_a_frame_does_not_put_the_trunk_out_of_step() {
        let (_mux, [one, two], far) = opened(100);
        let mut dropped = one.writer;
        dropped.put(vec![1; 50_000].into());
        assert!(timeout(Duration::from_millis(10), flush(&mut dropped)).await.is_err());
        drop(dropped);

        let mut peer = Mux::new(far);
        let (mut there1, mut there2) = (peer.open(1).unwrap(), peer.open(2).unwrap());
        let mut writer = two.writer;
        let talk = async {
            writer.put(Bytes::from_static(b"next"));
            flush(&mut writer).await;
            let mut first = vec![0; 50_000];
            there1.reader.read_exact(&mut first).await.unwrap();
            let mut next = [0; 4];
            there2.reader.read_exact(&mut next).await.unwrap();
            assert_eq!((&first[..], &next), (&[1; 50_000][..], b"next"));
        };
        tokio::select! {
            end = peer.run() => panic!("{end:?}"),
            () = talk => {}
        }
    }

    #[tokio::test]
    async fn dropping_the_mux_ends_its_readers() {
        let (near, _far) = UnixStream::pair().unwrap();
        let mut mux = Mux::new(near);
        let mut one = mux.open(1).unwrap();
        let run = timeout(Duration::from_millis(5), mux.run()).await;
        assert!(run.is_err());
        assert_eq!(all(&mut one.reader).await, (vec![], None));
    }
}
