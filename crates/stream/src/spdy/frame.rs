//! Frames on the wire.
//!
//! ```text
//!   control: 1 version:15 type:16 flags:8 length:24 …      data: 0 stream:31 flags:8 length:24 …
//! ```
//! Data frames may have 16 MB; they are read in pieces, so that what waits stays small.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{
    SpdyError,
    headers::{Headers, MAX_BLOCK, Squeezer, Unsqueezer},
};

const VERSION: u16 = 3;
const CONTROL: u16 = 0x8000;
const HEADER_LEN: usize = 8;
const ID_BITS: u32 = 0x7fff_ffff;
/// A piece of data as it is handed on, and a data frame as we send it.
pub const MAX_PIECE: usize = 32 << 10;
/// Settings there may be of one peer.
const MAX_SETTINGS: usize = 64;

const FIN: u8 = 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    SynStream {
        id: u32,
        headers: Headers,
        fin: bool,
    },
    SynReply {
        id: u32,
        headers: Headers,
        fin: bool,
    },
    /// Headers that come late.
    Headers {
        id: u32,
        headers: Headers,
        fin: bool,
    },
    Reset {
        id: u32,
        status: u32,
    },
    /// Identifier and value.
    Settings(Vec<(u32, u32)>),
    Ping(u32),
    GoAway {
        last: u32,
        status: u32,
    },
    /// Stream 0 is the connection as a whole.
    Window {
        id: u32,
        more: u32,
    },
    /// A piece of a data frame; `fin` with its last one.
    Data {
        id: u32,
        bytes: Bytes,
        fin: bool,
    },
    /// Of a type that nobody uses.
    Other(u16),
}

/// Why a stream is reset.
pub mod reset {
    pub const PROTOCOL_ERROR: u32 = 1;
    pub const INVALID_STREAM: u32 = 2;
    pub const REFUSED_STREAM: u32 = 3;
    pub const CANCEL: u32 = 5;
}

/// The setting that changes the window of all streams.
pub const INITIAL_WINDOW: u32 = 7;

mod kind {
    pub(super) const SYN_STREAM: u16 = 1;
    pub(super) const SYN_REPLY: u16 = 2;
    pub(super) const RST_STREAM: u16 = 3;
    pub(super) const SETTINGS: u16 = 4;
    pub(super) const PING: u16 = 6;
    pub(super) const GOAWAY: u16 = 7;
    pub(super) const HEADERS: u16 = 8;
    pub(super) const WINDOW_UPDATE: u16 = 9;
}

/// From bytes to frames. After an error nothing more can be read.
#[derive(Debug, Default)]
pub struct Decoder {
    headers: Unsqueezer,
    /// The rest of a data frame: stream, bytes, and whether it is the stream's last.
    data: Option<(u32, usize, bool)>,
}

impl Decoder {
    /// The next frame, or the next piece of a data frame, if it is there.
    pub fn next(&mut self, wire: &mut BytesMut) -> Result<Option<Frame>, SpdyError> {
        if self.data.is_some() {
            return Ok(self.piece(wire));
        }
        let Some(header) = wire.first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let mut header = &header[..];
        let (word, flags_and_len) = (header.get_u32(), header.get_u32());
        let (flags, len) = (flags_and_len.to_be_bytes()[0], (flags_and_len & 0xff_ffff) as usize);
        if word & !ID_BITS == 0 {
            if word == 0 {
                return Err(SpdyError::NoStream);
            }
            wire.advance(HEADER_LEN);
            self.data = Some((word, len, flags & FIN != 0));
            return Ok(self.piece(wire));
        }
        let kind = Kind::new(word)?;
        kind.check(len)?;
        if wire.len() < HEADER_LEN + len {
            return Ok(None);
        }
        wire.advance(HEADER_LEN);
        let body = wire.split_to(len).freeze();
        self.control(kind, flags, body).map(Some)
    }

    fn piece(&mut self, wire: &mut BytesMut) -> Option<Frame> {
        let (id, left, fin) = self.data?;
        if left > 0 && wire.is_empty() {
            return None;
        }
        let bytes = wire.split_to(left.min(wire.len()).min(MAX_PIECE)).freeze();
        let left = left - bytes.len();
        self.data = (left > 0).then_some((id, left, fin));
        Some(Frame::Data { id, bytes, fin: fin && left == 0 })
    }

    fn control(&mut self, kind: Kind, flags: u8, mut body: Bytes) -> Result<Frame, SpdyError> {
        let fin = flags & FIN != 0;
        Ok(match kind.0 {
            kind::SYN_STREAM => {
                let id = body.get_u32() & ID_BITS;
                // The stream it belongs to, priority and slot mean nothing here.
                body.advance(6);
                Frame::SynStream { id, headers: self.headers.unsqueeze(&body)?, fin }
            }
            kind::SYN_REPLY => {
                let id = body.get_u32() & ID_BITS;
                Frame::SynReply { id, headers: self.headers.unsqueeze(&body)?, fin }
            }
            kind::HEADERS => {
                let id = body.get_u32() & ID_BITS;
                Frame::Headers { id, headers: self.headers.unsqueeze(&body)?, fin }
            }
            kind::RST_STREAM => {
                Frame::Reset { id: body.get_u32() & ID_BITS, status: body.get_u32() }
            }
            kind::SETTINGS => settings(body)?,
            kind::PING => Frame::Ping(body.get_u32()),
            kind::GOAWAY => {
                Frame::GoAway { last: body.get_u32() & ID_BITS, status: body.get_u32() }
            }
            kind::WINDOW_UPDATE => {
                Frame::Window { id: body.get_u32() & ID_BITS, more: body.get_u32() & ID_BITS }
            }
            other => Frame::Other(other),
        })
    }
}

fn settings(mut body: Bytes) -> Result<Frame, SpdyError> {
    let count = body.get_u32() as usize;
    if count > MAX_SETTINGS || body.len() != count * 8 {
        return Err(SpdyError::Length { name: "SETTINGS", len: body.len() });
    }
    let one = |_| (body.get_u32() & 0xff_ffff, body.get_u32());
    Ok(Frame::Settings((0..count).map(one).collect()))
}

/// The type of a control frame.
#[derive(Clone, Copy, Debug)]
struct Kind(u16);

impl Kind {
    fn new(word: u32) -> Result<Self, SpdyError> {
        let [a, b, c, d] = word.to_be_bytes();
        match u16::from_be_bytes([a, b]) & !CONTROL {
            VERSION => Ok(Self(u16::from_be_bytes([c, d]))),
            other => Err(SpdyError::Version(other)),
        }
    }

    /// Whether the fixed fields fit in, and the rest is not too much.
    fn check(self, len: usize) -> Result<(), SpdyError> {
        let most = MAX_BLOCK;
        let (name, range) = match self.0 {
            kind::SYN_STREAM => ("SYN_STREAM", 10..=most),
            kind::SYN_REPLY => ("SYN_REPLY", 4..=most),
            kind::HEADERS => ("HEADERS", 4..=most),
            kind::RST_STREAM => ("RST_STREAM", 8..=8),
            kind::SETTINGS => ("SETTINGS", 4..=4 + 8 * MAX_SETTINGS),
            kind::PING => ("PING", 4..=4),
            kind::GOAWAY => ("GOAWAY", 8..=8),
            kind::WINDOW_UPDATE => ("WINDOW_UPDATE", 8..=8),
            _ => ("unknown", 0..=most),
        };
        if range.contains(&len) { Ok(()) } else { Err(SpdyError::Length { name, len }) }
    }
}

/// From frames to bytes.
#[derive(Debug, Default)]
pub struct Encoder {
    headers: Squeezer,
}

impl Encoder {
    /// Data of more than 16 MB is the caller's mistake: see [`MAX_PIECE`].
    pub fn put(&mut self, frame: &Frame, wire: &mut BytesMut) {
        match frame {
            Frame::SynStream { id, headers, fin } => {
                let block = self.headers.squeeze(headers);
                control(wire, kind::SYN_STREAM, *fin, block.len() + 10);
                wire.put_u32(*id);
                wire.put_bytes(0, 6);
                wire.put_slice(&block);
            }
            Frame::SynReply { id, headers, fin } => {
                self.put_headers(wire, kind::SYN_REPLY, *id, headers, *fin);
            }
            Frame::Headers { id, headers, fin } => {
                self.put_headers(wire, kind::HEADERS, *id, headers, *fin);
            }
            Frame::Reset { id, status } => pair(wire, kind::RST_STREAM, *id, *status),
            Frame::Settings(settings) => {
                control(wire, kind::SETTINGS, false, 4 + 8 * settings.len());
                wire.put_u32(length(settings.len()));
                for (id, value) in settings {
                    wire.put_u32(*id);
                    wire.put_u32(*value);
                }
            }
            Frame::Ping(id) => {
                control(wire, kind::PING, false, 4);
                wire.put_u32(*id);
            }
            Frame::GoAway { last, status } => pair(wire, kind::GOAWAY, *last, *status),
            Frame::Window { id, more } => pair(wire, kind::WINDOW_UPDATE, *id, *more),
            Frame::Data { id, bytes, fin } => {
                wire.put_u32(*id);
                wire.put_u32(u32::from(*fin) << 24 | length(bytes.len()));
                wire.put_slice(bytes);
            }
            Frame::Other(kind) => control(wire, *kind, false, 0),
        }
    }

    fn put_headers(
        &mut self,
        wire: &mut BytesMut,
        kind: u16,
        id: u32,
        headers: &Headers,
        fin: bool,
    ) {
        let block = self.headers.squeeze(headers);
        control(wire, kind, fin, block.len() + 4);
        wire.put_u32(id);
        wire.put_slice(&block);
    }
}

fn control(wire: &mut BytesMut, kind: u16, fin: bool, len: usize) {
    wire.put_u16(CONTROL | VERSION);
    wire.put_u16(kind);
    wire.put_u32(u32::from(fin) << 24 | length(len));
}

fn pair(wire: &mut BytesMut, kind: u16, first: u32, second: u32) {
    control(wire, kind, false, 8);
    wire.put_u32(first);
    wire.put_u32(second);
}

fn length(len: usize) -> u32 {
    let len = u32::try_from(len).ok().filter(|len| *len < 1 << 24);
    len.expect("frames are below 16 MB")
}

#[cfg(test)]
mod tests {
    use proptest::{collection, prelude::*};

    use super::*;

    fn id() -> impl Strategy<Value = u32> {
        1..=ID_BITS
    }

    fn headers() -> impl Strategy<Value = Headers> {
        collection::btree_map("[a-z]{1,8}", "[ -~]{0,20}", 0..4).prop_map(|map| {
            map.iter().fold(Headers::default(), |all, (name, value)| all.with(name, value))
        })
    }

    fn frame() -> impl Strategy<Value = Frame> {
        prop_oneof![
            (id(), headers(), any::<bool>()).prop_map(|(id, headers, fin)| Frame::SynStream {
                id,
                headers,
                fin
            }),
            (id(), headers(), any::<bool>()).prop_map(|(id, headers, fin)| Frame::SynReply {
                id,
                headers,
                fin
            }),
            (id(), headers(), any::<bool>()).prop_map(|(id, headers, fin)| Frame::Headers {
                id,
                headers,
                fin
            }),
            (id(), any::<u32>()).prop_map(|(id, status)| Frame::Reset { id, status }),
            collection::vec((0..1_u32 << 24, any::<u32>()), 0..4).prop_map(Frame::Settings),
            any::<u32>().prop_map(Frame::Ping),
            (id(), any::<u32>()).prop_map(|(last, status)| Frame::GoAway { last, status }),
            (0..=ID_BITS, id()).prop_map(|(id, more)| Frame::Window { id, more }),
            (id(), collection::vec(any::<u8>(), 0..200), any::<bool>())
                .prop_map(|(id, bytes, fin)| Frame::Data { id, bytes: bytes.into(), fin }),
            (10_u16..).prop_map(Frame::Other),
        ]
    }

    /// All frames, with the pieces of one data frame put together again.
    fn decoded(wire: &[u8], step: usize) -> Vec<Frame> {
        let (mut decoder, mut buffer, mut all) =
            (Decoder::default(), BytesMut::new(), Vec::<Frame>::new());
        let mut in_data = false;
        for part in wire.chunks(step) {
            buffer.extend_from_slice(part);
            while let Some(frame) = decoder.next(&mut buffer).unwrap() {
                match (all.last_mut(), frame) {
                    (
                        Some(Frame::Data { bytes, fin, .. }),
                        Frame::Data { bytes: more, fin: f, .. },
                    ) if in_data => {
                        *bytes = [&bytes[..], &more].concat().into();
                        *fin = f;
                    }
                    (_, frame) => all.push(frame),
                }
                in_data = decoder.data.is_some();
            }
        }
        assert!(buffer.is_empty());
        all
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in(
            frames in collection::vec(frame(), 0..20),
            step in 1_usize..300,
        ) {
            let (mut encoder, mut wire) = (Encoder::default(), BytesMut::new());
            frames.iter().for_each(|frame| encoder.put(frame, &mut wire));
            prop_assert_eq!(decoded(&wire, step), frames);
        }

        #[test]
        fn no_bytes_panic(bytes in collection::vec(any::<u8>(), 0..200), control in any::<bool>()) {
            let mut wire = BytesMut::from(&bytes[..]);
            if let (true, Some(start)) = (control, wire.first_chunk_mut::<3>()) {
                *start = [0x80, 3, 0];
            }
            let mut decoder = Decoder::default();
            while let Ok(Some(_)) = decoder.next(&mut wire) {}
        }
    }

    #[track_caller]
    fn refused(bytes: &[u8], want: &str) {
        let error = Decoder::default().next(&mut BytesMut::from(bytes)).unwrap_err();
        assert_eq!(error.to_string(), want);
    }

    #[test]
    fn nonsense_is_refused_before_it_is_read() {
        refused(&[0x80, 2, 0, 1, 0, 0, 0, 10], "frame of SPDY version 2, this is 3");
        refused(&[0x80, 3, 0, 1, 0, 0, 0, 9], "SYN_STREAM frame of 9 bytes");
        refused(&[0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff], "SYN_STREAM frame of 16777215 bytes");
        refused(&[0x80, 3, 0, 6, 0, 0, 0, 5], "PING frame of 5 bytes");
        refused(&[0x80, 3, 0, 4, 0, 0, 0, 4, 0, 0, 0, 1], "SETTINGS frame of 0 bytes");
        refused(&[0, 0, 0, 0, 0, 0, 0, 1], "data of stream 0");
    }

    #[test]
    fn a_large_data_frame_comes_in_pieces() {
        let body = vec![7; 3 * MAX_PIECE + 1];
        let (mut encoder, mut wire) = (Encoder::default(), BytesMut::new());
        encoder.put(&Frame::Data { id: 1, bytes: body.into(), fin: true }, &mut wire);
        let mut decoder = Decoder::default();
        let mut sizes = Vec::new();
        while let Some(Frame::Data { bytes, fin, .. }) = decoder.next(&mut wire).unwrap() {
            sizes.push((bytes.len(), fin));
        }
        let whole = (MAX_PIECE, false);
        assert_eq!(sizes, [whole, whole, whole, (1, true)]);
    }
}
