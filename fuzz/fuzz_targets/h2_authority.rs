//! The rewriter of HTTP/2 requests gives the same output for any frames in reads of any size. The
//! output is bounded, ends at a violation, and its header blocks are literals without indexing.
#![no_main]

use h2_authority::{MAX_LITERAL_BYTES, PREFACE, Rewriter, Violation};
use libfuzzer_sys::{
    arbitrary::{self, Arbitrary},
    fuzz_target,
};

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const HEAD_LEN: usize = 9;
const MAX_FRAME_BYTES: usize = 16 << 10;

#[derive(Arbitrary, Debug)]
enum Sent {
    /// The bytes of a block, in a frame with these flags.
    Headers { flags: u8, stream: u8, block: Vec<u8> },
    Continuation { flags: u8, stream: u8, block: Vec<u8> },
    Other { kind: u8, flags: u8, stream: u8, payload: Vec<u8> },
    Junk(Vec<u8>),
}

#[derive(Arbitrary, Debug)]
struct Connection {
    is_http2: bool,
    sent: Vec<Sent>,
    pieces: Vec<u8>,
}

fn wire(connection: &Connection) -> Vec<u8> {
    let mut wire = if connection.is_http2 { PREFACE.to_vec() } else { Vec::new() };
    for sent in &connection.sent {
        let (kind, flags, stream, payload) = match sent {
            Sent::Headers { flags, stream, block } => (HEADERS, *flags, *stream, block),
            Sent::Continuation { flags, stream, block } => (CONTINUATION, *flags, *stream, block),
            Sent::Other { kind, flags, stream, payload } => (*kind, *flags, *stream, payload),
            Sent::Junk(bytes) => {
                wire.extend_from_slice(bytes);
                continue;
            }
        };
        let length = u32::try_from(payload.len()).expect("a short payload").to_be_bytes();
        wire.extend_from_slice(&length[1..]);
        wire.extend_from_slice(&[kind, flags, 0, 0, 0, stream]);
        wire.extend_from_slice(payload);
    }
    wire
}

/// Rewrites as `AuthorityStream` does: bytes that pass through are not fed.
fn rewrite(wire: &[u8], pieces: &[u8]) -> (Vec<u8>, Option<Violation>) {
    let (mut rewriter, mut out, mut rest) = (Rewriter::new(), Vec::new(), wire);
    let mut sizes = pieces.iter().map(|&size| usize::from(size) + 1).cycle();
    while !rest.is_empty() {
        let size = sizes.next().unwrap_or(rest.len()).min(rest.len());
        let (piece, later) = rest.split_at(size);
        rest = later;
        let passed = rewriter.pass(piece.len());
        out.extend_from_slice(&piece[..passed]);
        let mut input = &piece[passed..];
        while !input.is_empty() {
            let before = out.len();
            let fed = rewriter.feed(input, &mut out);
            assert!(fed > 0);
            assert!(out.len() - before <= fed + MAX_LITERAL_BYTES + 5 * HEAD_LEN);
            input = &input[fed..];
        }
    }
    (out, rewriter.violation())
}

/// Checks the header blocks of the output. h2 refuses a HEADERS frame that is too large, so what
/// follows one does not matter.
fn check(out: &[u8]) {
    let Some(mut rest) = out.strip_prefix(PREFACE) else { return };
    while let Some((head, later)) = rest.split_first_chunk::<HEAD_LEN>() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some((payload, later)) = later.split_at_checked(length) else { return };
        if (head[3] == HEADERS && length > MAX_FRAME_BYTES) || head[3] == CONTINUATION {
            return;
        }
        if head[3] == HEADERS {
            assert_eq!(head[4] & !0x5, 0, "neither padding nor priority");
            assert!(matches!(payload.first(), None | Some(0 | 0x10)), "a literal");
        }
        rest = later;
    }
}

fuzz_target!(|connection: Connection| {
    let wire = wire(&connection);
    let whole = rewrite(&wire, &[]);
    assert_eq!(whole, rewrite(&wire, &connection.pieces));
    let (out, violation) = whole;
    if violation.is_some() {
        assert!(out.ends_with(&[0, 0, 0, CONTINUATION, 4, 0, 0, 0, 1]));
    }
    check(&out);
});
