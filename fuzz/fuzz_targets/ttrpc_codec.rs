//! The frame decoder, fed any bytes in any pieces, finds what a plain reading of the whole
//! finds, and what it finds encodes to the bytes it came from.
#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use ttrpc::{Decoded, Decoder, HEADER_LEN, Header, MAX_PAYLOAD};

/// Frames by the book: no state, no pieces.
fn plainly(mut wire: &[u8]) -> Vec<Decoded> {
    let mut frames = Vec::new();
    while let Some((header, rest)) = wire.split_first_chunk::<HEADER_LEN>() {
        let header = Header::from_bytes(*header);
        let len = header.len as usize;
        if len > MAX_PAYLOAD {
            frames.push(Decoded::Oversize(header));
            wire = rest.get(len..).unwrap_or_default();
        } else if let Some((payload, next)) = rest.split_at_checked(len) {
            frames.push(Decoded::Frame(header, Bytes::copy_from_slice(payload)));
            wire = next;
        } else {
            break;
        }
    }
    frames
}

fn in_pieces(wire: &[u8], pieces: &[u8]) -> Vec<Decoded> {
    let (mut decoder, mut buf, mut frames) = (Decoder::default(), BytesMut::new(), Vec::new());
    let mut rest = wire;
    let mut sizes = pieces.iter().map(|&size| usize::from(size) + 1).cycle();
    while !rest.is_empty() {
        let size = sizes.next().unwrap_or(rest.len()).min(rest.len());
        let (piece, later) = rest.split_at(size);
        buf.extend_from_slice(piece);
        rest = later;
        frames.extend(std::iter::from_fn(|| decoder.decode(&mut buf)));
    }
    frames
}

fuzz_target!(|input: (Vec<u8>, Vec<u8>)| {
    let (pieces, wire) = input;
    let frames = in_pieces(&wire, &pieces);
    assert_eq!(frames, plainly(&wire));

    let mut at = 0;
    for frame in frames {
        let (header, payload) = match frame {
            Decoded::Frame(header, payload) => (header, payload),
            // Its payload went unseen, so what follows cannot be placed without it.
            Decoded::Oversize(header) => {
                assert_eq!(header.to_bytes()[..], wire[at..at + HEADER_LEN]);
                at += HEADER_LEN + header.len as usize;
                continue;
            }
        };
        let bytes = [&header.to_bytes()[..], &payload].concat();
        assert_eq!(bytes, wire[at..at + bytes.len()]);
        at += bytes.len();
    }
});
