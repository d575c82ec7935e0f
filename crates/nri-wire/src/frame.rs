//! Frames of the trunk: how bytes of several connections share one stream.
//!
//! ```text
//!  0               4               8
//!  +---------------+---------------+---------------------+
//!  | connection id | length        | payload (length)    |
//!  +---------------+---------------+---------------------+
//! ```
//!
//! Integers are big endian. Going in, frames are only a way to mark whose the bytes are:
//! pieces of them are passed on as they come, so a length costs nothing before its bytes
//! are there. Going out, the reference peer imposes more, because it reads through a buffer
//! of 4096 bytes and fails on a frame that does not fit the buffer it is reading into:
//!
//! - a message up to 4096 bytes is one frame; a larger one is a frame of exactly 4096 and one
//!   of all the rest, which then goes straight into the buffer of the message;
//! - not more frames than that, since the peer queues 256 of them and gives up;
//! - no frame has bytes of two messages.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::MuxError;

/// Bytes in front of every payload.
pub const HEADER_LEN: usize = 8;

/// The largest payload: one ttrpc message with its header.
pub const MAX_FRAME: usize = ttrpc::HEADER_LEN + ttrpc::MAX_PAYLOAD;

/// The most that goes into the first frame of a message.
pub const FIRST_FRAME: usize = 4096;

/// Bytes of one connection: a frame, or as much of one as has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub connection: u32,
    pub bytes: Bytes,
}

/// Cuts a byte stream into pieces. Pure: bytes in, pieces out.
///
/// ```
/// # use nri_wire::Frames;
/// let mut buf = bytes::BytesMut::from(&[0, 0, 0, 2, 0, 0, 0, 3, b'a', b'b'][..]);
/// let mut frames = Frames::default();
/// let piece = frames.next(&mut buf)?.expect("two of three bytes are there");
/// assert_eq!((piece.connection, &piece.bytes[..]), (2, &b"ab"[..]));
/// assert!(frames.next(&mut buf)?.is_none() && !frames.at_border());
/// # Ok::<(), nri_wire::MuxError>(())
/// ```
#[derive(Debug, Default)]
pub struct Frames {
    /// Of the frame that is being read.
    connection: u32,
    left: usize,
}

impl Frames {
    /// Takes the next piece off the front of `buf`; `None` asks for more bytes. A frame
    /// without payload gives none. After an error the stream makes no sense any longer.
    pub fn next(&mut self, buf: &mut BytesMut) -> Result<Option<Piece>, MuxError> {
        while self.left == 0 {
            if buf.len() < HEADER_LEN {
                return Ok(None);
            }
            self.connection = buf.get_u32();
            let len = buf.get_u32();
            if len as usize > MAX_FRAME {
                return Err(MuxError::FrameTooLarge { connection: self.connection, len });
            }
            self.left = len as usize;
        }
        if buf.is_empty() {
            return Ok(None);
        }
        let bytes = buf.split_to(self.left.min(buf.len())).freeze();
        self.left -= bytes.len();
        Ok(Some(Piece { connection: self.connection, bytes }))
    }

    /// Whether the stream may end here without a frame being cut. A header that has come
    /// only in part is still in the buffer.
    pub fn at_border(&self) -> bool {
        self.left == 0
    }

    /// Bytes still to come of the frame that is being read.
    pub fn left(&self) -> usize {
        self.left
    }
}

/// Lays one message out in frames: what is to be copied goes to `head`, and what is large
/// enough to be sent as it is comes back.
pub(crate) fn lay_out(connection: u32, mut message: Bytes, head: &mut BytesMut) -> Option<Bytes> {
    let rest = message.split_off(message.len().min(FIRST_FRAME));
    head.reserve(2 * HEADER_LEN + message.len());
    put_header(head, connection, message.len());
    head.put_slice(&message);
    if rest.is_empty() {
        return None;
    }
    put_header(head, connection, rest.len());
    Some(rest)
}

fn put_header(buf: &mut BytesMut, connection: u32, len: usize) {
    buf.put_u32(connection);
    buf.put_u32(u32::try_from(len).expect("a message is at most four megabytes"));
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn wire(frames: &[(u32, Vec<u8>)]) -> Vec<u8> {
        let mut out = BytesMut::new();
        for (connection, payload) in frames {
            put_header(&mut out, *connection, payload.len());
            out.put_slice(payload);
        }
        out.to_vec()
    }

    fn in_pieces(wire: &[u8], sizes: &[usize]) -> (Vec<Piece>, Frames, BytesMut) {
        let (mut frames, mut buf, mut out) = (Frames::default(), BytesMut::new(), Vec::new());
        let mut rest = wire;
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, later) = rest.split_at((*size).min(rest.len()));
            buf.extend_from_slice(piece);
            rest = later;
            while let Some(piece) = frames.next(&mut buf).unwrap() {
                out.push(piece);
            }
        }
        (out, frames, buf)
    }

    /// The lengths of the frames a message of `len` becomes, with the payload checked.
    fn frames_of(len: usize) -> Vec<usize> {
        let message = Bytes::from(vec![7; len]);
        let mut out = BytesMut::new();
        let rest = lay_out(1, message.clone(), &mut out);
        out.extend_from_slice(&rest.unwrap_or_default());
        let (mut lengths, mut payload) = (Vec::new(), Vec::new());
        while out.has_remaining() {
            assert_eq!(out.get_u32(), 1);
            let len = out.get_u32() as usize;
            lengths.push(len);
            payload.extend_from_slice(&out.split_to(len));
        }
        assert_eq!(payload, message);
        lengths
    }

    #[test]
    fn messages_become_one_frame_or_two() {
        assert_eq!(frames_of(10), [10]);
        assert_eq!(frames_of(4096), [4096]);
        assert_eq!(frames_of(4097), [4096, 1]);
        assert_eq!(frames_of(MAX_FRAME), [4096, MAX_FRAME - 4096]);
    }

    #[test]
    fn the_limit_is_allowed_and_one_more_is_not() {
        let header = |len: usize| {
            let mut buf = BytesMut::new();
            put_header(&mut buf, 1, len);
            Frames::default().next(&mut buf)
        };
        assert!(matches!(header(MAX_FRAME), Ok(None)));
        let refused = header(MAX_FRAME + 1);
        assert!(matches!(refused, Err(MuxError::FrameTooLarge { connection: 1, len: 4_194_315 })));
    }

    proptest! {
        #[test]
        fn any_frames_in_any_pieces_keep_their_bytes_and_order(
            frames in vec((0u32..4, vec(any::<u8>(), 0..300)), 0..12),
            sizes in vec(1usize..200, 1..8),
        ) {
            let (pieces, decoder, buf) = in_pieces(&wire(&frames), &sizes);
            prop_assert!(decoder.at_border() && buf.is_empty());
            for connection in 0..4 {
                let got: Vec<u8> = pieces.iter().filter(|p| p.connection == connection)
                    .flat_map(|p| p.bytes.to_vec()).collect();
                let want: Vec<u8> = frames.iter().filter(|f| f.0 == connection)
                    .flat_map(|f| f.1.clone()).collect();
                prop_assert_eq!(got, want);
            }
        }

        #[test]
        fn any_bytes_are_taken_without_panic(
            wire in vec(prop_oneof![9 => Just(0u8), 1 => any::<u8>()], 0..2000),
        ) {
            let mut buf = BytesMut::from(&wire[..]);
            let mut frames = Frames::default();
            while let Ok(Some(piece)) = frames.next(&mut buf) {
                prop_assert!(!piece.bytes.is_empty());
            }
            prop_assert!(frames.left() <= MAX_FRAME);
        }

        #[test]
        fn what_is_laid_out_is_read_back(
            messages in vec((1u32..3, vec(any::<u8>(), 1..9000)), 0..8),
            sizes in vec(1usize..5000, 1..8),
        ) {
            let mut out = BytesMut::new();
            for (connection, message) in &messages {
                let rest = lay_out(*connection, message.clone().into(), &mut out);
                out.extend_from_slice(&rest.unwrap_or_default());
            }
            let (pieces, ..) = in_pieces(&out, &sizes);
            for connection in 1..3 {
                let got: Vec<u8> = pieces.iter().filter(|p| p.connection == connection)
                    .flat_map(|p| p.bytes.to_vec()).collect();
                let want: Vec<u8> = messages.iter().filter(|m| m.0 == connection)
                    .flat_map(|m| m.1.clone()).collect();
                prop_assert_eq!(got, want);
            }
        }
    }
}
