//! Frames: how messages lie on the wire.
//!
//! ```text
//!  0               4               8      9      10
//!  +---------------+---------------+------+------+-------------------+
//!  | length        | stream id     | type | flags| payload (length)  |
//!  +---------------+---------------+------+------+-------------------+
//! ```
//!
//! Integers are big endian; the length counts the payload only.
//!
//! **Invariant:** a payload above [`MAX_PAYLOAD`] is never buffered. The decoder reports
//! its header once, then drops exactly that many bytes, and the next frame is read as if
//! nothing had happened.

use std::{fmt, io, ops::BitOr};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes in front of every payload.
pub const HEADER_LEN: usize = 10;

/// The largest payload either side may send: 4 MiB.
pub const MAX_PAYLOAD: usize = 4 << 20;

/// What a message is for. An open set: peers skip types they do not know.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MessageType(pub u8);

impl MessageType {
    /// Opens a stream; only clients send it.
    pub const REQUEST: Self = Self(1);
    /// Ends a stream with a result; only servers send it.
    pub const RESPONSE: Self = Self(2);
    /// One item of a stream.
    pub const DATA: Self = Self(3);
}

/// What a message says about the stream it belongs to.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    pub const NONE: Self = Self(0);
    /// The sender of this message will send no more on this stream.
    pub const REMOTE_CLOSED: Self = Self(1);
    /// On a request: data messages follow.
    pub const REMOTE_OPEN: Self = Self(2);
    /// There is no item in this message. Without it the empty payload of a data message is
    /// an item, namely one with all fields at their defaults.
    pub const NO_DATA: Self = Self(4);

    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The ten bytes in front of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub len: u32,
    pub stream_id: u32,
    pub kind: MessageType,
    pub flags: Flags,
}

impl Header {
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        let mut rest = &mut out[..];
        rest.put_u32(self.len);
        rest.put_u32(self.stream_id);
        rest.put_u8(self.kind.0);
        rest.put_u8(self.flags.0);
        out
    }

    pub fn from_bytes(bytes: [u8; HEADER_LEN]) -> Self {
        let mut rest = &bytes[..];
        Self {
            len: rest.get_u32(),
            stream_id: rest.get_u32(),
            kind: MessageType(rest.get_u8()),
            flags: Flags(rest.get_u8()),
        }
    }
}

/// What the decoder found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    Frame(Header, Bytes),
    /// The payload is above the limit and is being dropped.
    Oversize(Header),
}

/// Cuts a byte stream into frames. Pure: bytes in, frames out.
#[derive(Debug, Default)]
pub struct Decoder {
    /// Known once ten bytes were there, until the payload is complete.
    header: Option<Header>,
    /// Bytes of a refused payload still to come.
    skip: usize,
}

impl Decoder {
    /// Takes the next frame off the front of `buf`; `None` asks for more bytes.
    pub fn decode(&mut self, buf: &mut BytesMut) -> Option<Decoded> {
        let skipped = self.skip.min(buf.len());
        buf.advance(skipped);
        self.skip -= skipped;

        let header = match self.header.take() {
            Some(header) => header,
            None => Header::from_bytes(take_header(buf)?),
        };
        let len = header.len as usize;
        if len > MAX_PAYLOAD {
            self.skip = len;
            return Some(Decoded::Oversize(header));
        }
        if buf.len() < len {
            self.header = Some(header);
            return None;
        }
        Some(Decoded::Frame(header, buf.split_to(len).freeze()))
    }

    /// How many bytes `buf` must hold before [`decode`](Self::decode) can go on.
    fn wanted(&self) -> usize {
        self.header.map_or(HEADER_LEN, |header| header.len as usize)
    }

    /// Whether the stream may end here without a frame being cut.
    fn at_border(&self) -> bool {
        self.header.is_none() && self.skip == 0
    }
}

fn take_header(buf: &mut BytesMut) -> Option<[u8; HEADER_LEN]> {
    let bytes = *buf.first_chunk::<HEADER_LEN>()?;
    buf.advance(HEADER_LEN);
    Some(bytes)
}

/// Reads frames from a byte stream.
#[derive(Debug)]
pub(crate) struct FrameReader<R> {
    io: R,
    buf: BytesMut,
    decoder: Decoder,
    /// The buffer was made for a large payload.
    bulky: bool,
}

/// One read's worth of small messages, and what an idle connection keeps.
const READ_CHUNK: usize = 8 << 10;

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(crate) fn new(io: R) -> Self {
        Self { io, buf: BytesMut::new(), decoder: Decoder::default(), bulky: false }
    }

    /// The next frame, or `None` where the peer ended between two frames.
    ///
    /// Cancel safe: what was read stays in the buffer.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Decoded>> {
        loop {
            if let Some(decoded) = self.decoder.decode(&mut self.buf) {
                return Ok(Some(decoded));
            }
            self.make_room();
            if self.io.read_buf(&mut self.buf).await? == 0 {
                return match self.decoder.at_border() && self.buf.is_empty() {
                    true => Ok(None),
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                };
            }
        }
    }

    fn make_room(&mut self) {
        // Left to itself the buffer would take the room of a large payload back and keep it.
        if self.bulky && self.buf.is_empty() {
            (self.buf, self.bulky) = (BytesMut::new(), false);
        }
        let missing = self.decoder.wanted().saturating_sub(self.buf.len());
        self.bulky |= missing > READ_CHUNK;
        self.buf.reserve(missing.max(READ_CHUNK));
    }
}

impl fmt::Debug for MessageType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::REQUEST => f.write_str("request"),
            Self::RESPONSE => f.write_str("response"),
            Self::DATA => f.write_str("data"),
            Self(other) => write!(f, "type {other}"),
        }
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#05b}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn frame(stream_id: u32, kind: u8, flags: u8, payload: Vec<u8>) -> (Header, Bytes) {
        let len = u32::try_from(payload.len()).unwrap();
        let header = Header { len, stream_id, kind: MessageType(kind), flags: Flags(flags) };
        (header, payload.into())
    }

    fn frames() -> impl Strategy<Value = Vec<(Header, Bytes)>> {
        let one = (any::<u32>(), any::<u8>(), any::<u8>(), vec(any::<u8>(), 0..300));
        vec(one.prop_map(|(id, kind, flags, payload)| frame(id, kind, flags, payload)), 0..12)
    }

    fn on_the_wire(frames: &[(Header, Bytes)]) -> Vec<u8> {
        frames.iter().flat_map(|(h, p)| [&h.to_bytes()[..], p].concat()).collect()
    }

    /// Feeds `wire` in pieces of the given sizes, repeated, and collects what comes out.
    fn decode_in_pieces(wire: &[u8], sizes: &[usize]) -> (Vec<Decoded>, Decoder, BytesMut) {
        let (mut decoder, mut buf, mut out) = (Decoder::default(), BytesMut::new(), Vec::new());
        let mut rest = wire;
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, later) = rest.split_at((*size).min(rest.len()));
            buf.extend_from_slice(piece);
            rest = later;
            while let Some(decoded) = decoder.decode(&mut buf) {
                out.push(decoded);
            }
        }
        (out, decoder, buf)
    }

    proptest! {
        #[test]
        fn any_frames_in_any_pieces_come_out_whole(
            frames in frames(),
            sizes in vec(1usize..200, 1..8),
        ) {
            let (out, decoder, buf) = decode_in_pieces(&on_the_wire(&frames), &sizes);
            let want: Vec<_> = frames.into_iter().map(|(h, p)| Decoded::Frame(h, p)).collect();
            prop_assert_eq!(out, want);
            prop_assert!(decoder.at_border() && buf.is_empty());
        }

        #[test]
        fn headers_round_trip(bytes in any::<[u8; HEADER_LEN]>()) {
            prop_assert_eq!(Header::from_bytes(bytes).to_bytes(), bytes);
        }

        #[test]
        fn any_bytes_are_taken_without_panic(
            wire in vec(any::<u8>(), 0..2000),
            sizes in vec(1usize..64, 1..8),
        ) {
            let (out, decoder, buf) = decode_in_pieces(&wire, &sizes);
            // Nothing is invented: what came out plus what waits is what went in.
            let taken: usize = out.iter().map(|d| HEADER_LEN + match d {
                Decoded::Frame(_, payload) => payload.len(),
                Decoded::Oversize(header) => header.len as usize,
            }).sum();
            let waiting = buf.len() + decoder.header.map_or(0, |_| HEADER_LEN);
            prop_assert_eq!(taken + waiting, wire.len() + decoder.skip);
        }

    }

    proptest! {
        // Each case moves megabytes.
        #![proptest_config(ProptestConfig::with_cases(8))]

        #[test]
        fn the_frame_after_an_oversize_one_is_intact(
            extra in 1usize..5000,
            sizes in vec(1000usize..100_000, 1..4),
        ) {
            let big = frame(7, 1, 0, vec![0xAA; MAX_PAYLOAD + extra]);
            let next = frame(9, 1, 0, b"next".to_vec());
            let wire = on_the_wire(&[big.clone(), next.clone()]);
            let (out, ..) = decode_in_pieces(&wire, &sizes);
            prop_assert_eq!(out, [Decoded::Oversize(big.0), Decoded::Frame(next.0, next.1)]);
        }
    }

    #[test]
    fn header_layout() {
        let header = Header {
            len: 0x0102_0304,
            stream_id: 0x0506_0708,
            kind: MessageType::DATA,
            flags: Flags::REMOTE_CLOSED | Flags::NO_DATA,
        };
        assert_eq!(header.to_bytes(), [1, 2, 3, 4, 5, 6, 7, 8, 3, 5]);
    }

    #[test]
    fn the_limit_itself_is_allowed() {
        let (mut decoder, mut buf) = (Decoder::default(), BytesMut::new());
        let at_limit = frame(1, 1, 0, vec![0; MAX_PAYLOAD]);
        buf.extend_from_slice(&on_the_wire(std::slice::from_ref(&at_limit)));
        assert_eq!(decoder.decode(&mut buf), Some(Decoded::Frame(at_limit.0, at_limit.1)));
    }

    #[tokio::test]
    async fn an_idle_reader_keeps_little() {
        let (mut near, far) = tokio::io::duplex(1 << 20);
        let mut reader = FrameReader::new(far);
        for len in [MAX_PAYLOAD, 10, MAX_PAYLOAD / 2] {
            let wire = on_the_wire(&[frame(1, 1, 0, vec![0; len])]);
            let write = tokio::io::AsyncWriteExt::write_all(&mut near, &wire);
            let (written, read) = tokio::join!(write, reader.next());
            written.unwrap();
            // The payload is dropped here, so its room could be taken back.
            assert!(matches!(read, Ok(Some(Decoded::Frame(_, payload))) if payload.len() == len));
            let idle = tokio::time::timeout(std::time::Duration::from_millis(1), reader.next());
            assert!(idle.await.is_err());
            assert!(reader.buf.capacity() <= 2 * READ_CHUNK, "{}", reader.buf.capacity());
        }
    }

    #[tokio::test]
    async fn a_stream_cut_inside_a_frame_is_an_error() {
        let wire = on_the_wire(&[frame(1, 1, 0, b"abc".to_vec()), frame(3, 1, 0, b"d".to_vec())]);
        for cut in 0..=wire.len() {
            let mut reader = FrameReader::new(&wire[..cut]);
            let end = loop {
                match reader.next().await {
                    Ok(Some(_)) => {}
                    Ok(None) => break None,
                    Err(e) => break Some(e.kind()),
                }
            };
            let border = [0, 13, wire.len()].contains(&cut);
            assert_eq!(end, (!border).then_some(io::ErrorKind::UnexpectedEof), "cut at {cut}");
        }
    }
}
