//! The output of a rewriter: frames pass through, header blocks become literals, memory is bounded,
//! and the sizes of reads make no difference.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use h2_authority::{
    MAX_BLOCK_BYTES, MAX_FRAGMENTS, MAX_LITERAL_BYTES, PREFACE, Rewriter, Violation,
};
use loona_hpack::{Decoder, Encoder};
use proptest::{collection::vec, prelude::*};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 32;

type Field = (String, String);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Frame {
    Frame { kind, flags, stream, payload: payload.to_vec() }
}

fn headers(stream: u32, block: &[u8]) -> Frame {
    frame(HEADERS, END_HEADERS, stream, block)
}

fn wire(frames: &[Frame]) -> Vec<u8> {
    let mut wire = PREFACE.to_vec();
    for frame in frames {
        wire.extend(&u32::try_from(frame.payload.len()).unwrap().to_be_bytes()[1..]);
        wire.extend([frame.kind, frame.flags]);
        wire.extend(frame.stream.to_be_bytes());
        wire.extend(&frame.payload);
    }
    wire
}

/// Parses all bytes of a connection into frames.
fn frames(wire: &[u8]) -> Vec<Frame> {
    let mut rest = wire.strip_prefix(PREFACE).expect("the preface");
    let mut frames = Vec::new();
    while let Some((head, later)) = rest.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        frames.push(frame(head[3], head[4], stream, &later[..length]));
        rest = &later[length..];
    }
    assert_eq!(rest, [0; 0]);
    frames
}

/// Rewrites `wire` as `AuthorityStream` does, in reads of the given sizes, which repeat.
fn rewrite_in(sizes: &[usize], wire: &[u8]) -> (Vec<u8>, Rewriter) {
    let (mut rewriter, mut out, mut rest) = (Rewriter::new(), Vec::new(), wire);
    let mut sizes = sizes.iter().copied().cycle();
    while !rest.is_empty() {
        let (piece, later) = rest.split_at(sizes.next().unwrap().clamp(1, rest.len()));
        rest = later;
        let passed = rewriter.pass(piece.len());
        out.extend(&piece[..passed]);
        let mut input = &piece[passed..];
        while !input.is_empty() {
            let mut step = Vec::new();
            let fed = rewriter.feed(input, &mut step);
            assert!(fed > 0);
            assert!(step.len() <= fed + MAX_LITERAL_BYTES + 9 * 5, "{} of {fed}", step.len());
            out.extend(step);
            input = &input[fed..];
        }
    }
    (out, rewriter)
}

fn rewrite(frames_in: &[Frame]) -> Vec<Frame> {
    let wire = wire(frames_in);
    let (out, rewriter) = rewrite_in(&[wire.len()], &wire);
    assert!(rewriter.violation().is_none(), "{frames_in:?}");
    frames(&out)
}

/// Asserts that h2 gets a frame that ends the connection, and nothing after it.
#[track_caller]
fn refused(violation: Violation, frames_in: &[Frame]) {
    let mut frames_in = frames_in.to_vec();
    frames_in.push(frame(PING, 0, 0, &[7; 8]));
    let wire = wire(&frames_in);
    let (out, rewriter) = rewrite_in(&[wire.len()], &wire);
    assert_eq!(rewriter.violation(), Some(violation));
    assert_eq!(frames(&out).last(), Some(&frame(CONTINUATION, END_HEADERS, 1, &[])));
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn integer(bytes: &[u8]) -> (usize, usize) {
    if bytes[0] < 0x7f {
        return (bytes[0].into(), 1);
    }
    let (mut value, mut at) = (0x7f, 1);
    loop {
        value += usize::from(bytes[at] & 0x7f) << (7 * (at - 1));
        at += 1;
        if bytes[at - 1] & 0x80 == 0 {
            return (value, at);
        }
    }
}

/// Parses a block that consists of literals without indexing, with plain strings.
fn literals(block: &[u8]) -> Vec<Field> {
    let (mut fields, mut rest) = (Vec::new(), block);
    while let Some((kind, later)) = rest.split_first() {
        assert!(matches!(kind, 0 | 0x10), "{kind:#x} is not such a literal");
        rest = later;
        let [name, value] = [(); 2].map(|()| {
            let (length, at) = integer(rest);
            let (string, later) = rest[at..].split_at(length);
            rest = later;
            text(string)
        });
        fields.push((name, value));
    }
    fields
}

fn literal(first: u8, name: &str, value: &str) -> Vec<u8> {
    let mut field = vec![first];
    for string in [name, value] {
        let length = string.len();
        if length < 0x7f {
            field.push(u8::try_from(length).unwrap());
        } else {
            let rest = length - 0x7f;
            field.push(0x7f);
            let groups = [rest % 128 + 128, rest / 128 % 128 + 128, rest / 128 / 128];
            field.extend(groups.map(|group| u8::try_from(group).unwrap()));
        }
        field.extend(string.bytes());
    }
    field
}

fn fields(fields: &[(&str, &str)]) -> Vec<Field> {
    fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[track_caller]
fn check_authority(given: &str, want: &str) {
    let out = rewrite(&[headers(1, &literal(0, ":authority", given))]);
    assert_eq!(literals(&out[0].payload), fields(&[(":authority", want)]));
}

#[test]
fn what_is_no_authority_becomes_localhost() {
    check_authority("", "localhost");
    check_authority("/run/x.sock", "localhost");
    check_authority("%2Frun%2Fx.sock", "localhost");
    check_authority("unix:///run/x.sock", "localhost");
    check_authority("a b", "localhost");
}

#[test]
fn what_is_one_stays() {
    check_authority("localhost", "localhost");
    check_authority("x.sock", "x.sock");
    check_authority("[::1]:10010", "[::1]:10010");
    check_authority("user@example.com:80", "user@example.com:80");
}

#[test]
fn bytes_that_are_no_text_become_localhost() {
    let out = rewrite(&[headers(1, b"\x01\x02\xff\xfe")]);
    assert_eq!(literals(&out[0].payload), fields(&[(":authority", "localhost")]));
}

#[test]
fn none_is_added() {
    let out = rewrite(&[headers(1, &[0x82, 0x84])]);
    assert_eq!(literals(&out[0].payload), fields(&[(":method", "GET"), (":path", "/")]));
}

#[test]
fn other_fields_may_be_paths() {
    let block = [literal(0, "host", "/run/x.sock"), literal(0, "authority", "")].concat();
    let out = rewrite(&[headers(1, &block)]);
    assert_eq!(out[0].payload, block);
}

#[test]
fn other_frames_pass_as_they_are() {
    let frames = [
        frame(SETTINGS, 0, 0, &[0, 1, 0, 0, 16, 0]),
        frame(DATA, 0, 1, &[9; 16384]),
        frame(DATA, END_STREAM, 1, &[]),
        frame(PING, 0, 0, &[1; 8]),
        frame(0xfe, 0xff, 3, b"of tomorrow"),
        // h2 refuses these.
        frame(HEADERS, END_HEADERS, 5, &[0x82; 16385]),
        frame(CONTINUATION, END_HEADERS, 5, &[0x82]),
    ];
    assert_eq!(rewrite(&frames), frames);
}

#[test]
fn what_is_not_http2_passes_as_it_is() {
    for wire in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rxyz", b"P"] {
        assert_eq!(rewrite_in(&[2], wire).0, wire);
    }
}

/// RFC 7541, C.4: three requests on one connection with Huffman coding, and trailers.
#[test]
fn requests_of_the_standard_are_read() {
    let first = b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff";
    let second = b"\x82\x86\x84\xbe\x58\x86\xa8\xeb\x10\x64\x9c\xbf";
    let third =
        b"\x82\x87\x85\xbf\x40\x88\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f\x89\x25\xa8\x49\xe9\x5b\xb8\
        \xe8\xb4\xbf";
    let last = frame(HEADERS, END_HEADERS | END_STREAM, 5, b"\xbe\xbf");
    let out = rewrite(&[headers(1, first), headers(3, second), headers(5, third), last]);
    let common = [(":method", "GET"), (":scheme", "http"), (":path", "/")];
    let authority = (":authority", "www.example.com");
    let of = |frame: &Frame| literals(&frame.payload);
    assert_eq!(of(&out[0]), fields(&[&common[..], &[authority]].concat()));
    let cached = ("cache-control", "no-cache");
    assert_eq!(of(&out[1]), fields(&[&common[..], &[authority, cached]].concat()));
    let custom = ("custom-key", "custom-value");
    let want =
        [(":method", "GET"), (":scheme", "https"), (":path", "/index.html"), authority, custom];
    assert_eq!(of(&out[2]), fields(&want));
    assert_eq!(of(&out[3]), fields(&[custom, cached]));
    assert_eq!((out[3].flags, out[3].stream), (END_HEADERS | END_STREAM, 5));
}

/// RFC 7541, 6.2.3.
#[test]
fn what_is_never_indexed_stays_so() {
    let secret = literal(0x10, "authorization", "secret");
    assert_eq!(rewrite(&[headers(1, &secret)])[0].payload, secret);
}

#[test]
fn sizes_of_the_table_are_kept_to() {
    let entry = literal(0x40, "x", "y");
    // The table is emptied, set to the maximum and filled again.
    let emptied = [&[0x20, 0x3f, 0xe1, 0x1f][..], &entry, &[0xbe]].concat();
    let out = rewrite(&[headers(1, &entry), headers(3, &emptied)]);
    assert_eq!(literals(&out[1].payload), fields(&[("x", "y"), ("x", "y")]));

    refused(Violation::Hpack, &[headers(1, &entry), headers(3, &[0x20, 0xbe])]);
    refused(Violation::Hpack, &[headers(1, &[0x3f, 0xe2, 0x1f, 0x82])]);
    refused(Violation::Hpack, &[headers(1, &[0x82, 0x20, 0x82])]);
    refused(Violation::Hpack, &[headers(1, &[0x20])]);
}

#[test]
fn large_blocks_leave_in_frames_of_allowed_size() {
    let block = literal(0, "x-large", &"v".repeat(40_000));
    let (first, rest) = block.split_at(16_384);
    let (second, third) = rest.split_at(16_384);
    let out = rewrite(&[
        frame(HEADERS, END_STREAM, 1, first),
        frame(CONTINUATION, 0, 1, second),
        frame(CONTINUATION, END_HEADERS, 1, third),
    ]);
    let heads: Vec<_> = out.iter().map(|f| (f.kind, f.flags, f.payload.len())).collect();
    let left = block.len() - 2 * 16_384;
    assert_eq!(
        heads,
        [
            (HEADERS, END_STREAM, 16_384),
            (CONTINUATION, 0, 16_384),
            (CONTINUATION, END_HEADERS, left)
        ]
    );
    let payload: Vec<u8> = out.iter().flat_map(|f| f.payload.clone()).collect();
    assert_eq!(payload, block);
}

#[test]
fn padding_and_priority_are_taken_off() {
    let padded =
        frame(HEADERS, END_HEADERS | PADDED | PRIORITY, 1, &[2, 0, 0, 0, 0, 1, 0x82, 0, 0]);
    let out = rewrite(&[padded]);
    assert_eq!(out, [headers(1, &literal(0, ":method", "GET"))]);

    refused(Violation::Padding, &[frame(HEADERS, END_HEADERS | PADDED, 1, &[])]);
    refused(Violation::Padding, &[frame(HEADERS, END_HEADERS | PADDED, 1, &[2, 0x82])]);
    refused(Violation::Padding, &[frame(HEADERS, END_HEADERS | PRIORITY, 1, &[0; 4])]);
}

#[test]
fn nothing_comes_between_the_frames_of_a_block() {
    let open = frame(HEADERS, 0, 1, &[0x82]);
    refused(Violation::Interrupted, &[open.clone(), frame(DATA, 0, 1, &[1])]);
    refused(Violation::Interrupted, &[open.clone(), headers(3, &[0x82])]);
    refused(Violation::Interrupted, &[open.clone(), frame(CONTINUATION, END_HEADERS, 3, &[0x84])]);
    refused(Violation::Interrupted, &[open, frame(CONTINUATION, END_HEADERS, 1, &[0x82; 16_385])]);
}

#[test]
fn what_is_not_hpack_is_refused() {
    for block in [
        &[0x80][..],
        &[0xbe],
        &[0xff],
        &[0x3f],
        &[0x40],
        &[0, 1],
        &[0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff],
        &[0, 1, b'x'],
        &[0, 1, b'x', 2, b'y'],
        // Huffman with bad padding, and with an end of string.
        &[0, 1, b'x', 0x81, 0],
        &[0, 1, b'x', 0x84, 0xff, 0xff, 0xff, 0xff],
    ] {
        refused(Violation::Hpack, &[headers(1, block)]);
    }
}

#[test]
fn what_is_kept_of_a_block_is_bounded() {
    let open = frame(HEADERS, 0, 1, &[]);
    let empty = vec![frame(CONTINUATION, 0, 1, &[]); MAX_FRAGMENTS];
    refused(Violation::TooLarge, &[std::slice::from_ref(&open), &empty[..]].concat());
    let full = vec![frame(CONTINUATION, 0, 1, &[0x82; 16_384]); MAX_BLOCK_BYTES / 16_384 + 1];
    refused(Violation::TooLarge, &[&[open], &full[..]].concat());
    // Single bytes that each expand to 4000.
    let entry = literal(0x40, "x", &"v".repeat(4000));
    let bomb = [&entry[..], &[0xbe; 1000]].concat();
    refused(Violation::TooLarge, &[headers(1, &bomb)]);
    let small = [&entry[..], &[0xbe; 14]].concat();
    assert_eq!(rewrite(&[headers(1, &small)]).len(), 4);
}

/// Requests, each with the sizes of the frames to split its header block into.
fn requests() -> impl Strategy<Value = Vec<(Vec<Field>, Vec<usize>)>> {
    let names =
        prop::sample::select(vec![":authority", ":path", "te", "x-a", "x-b", "grpc-timeout"]);
    let values =
        prop_oneof!["[a-z/%]{0,8}", "[ -~]{0,40}", Just("localhost".to_owned()), "[a-c]{900}"];
    let field = (names.prop_map(str::to_owned), values);
    vec((vec(field, 0..9), vec(0_usize..200, 0..5)), 0..9)
}

fn sent(requests: &[(Vec<Field>, Vec<usize>)]) -> Vec<Frame> {
    let mut encoder = Encoder::new();
    let mut frames = Vec::new();
    for (number, (fields, cuts)) in requests.iter().enumerate() {
        let stream = u32::try_from(number).unwrap() * 2 + 1;
        let block =
            encoder.encode(fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())));
        let (mut rest, mut kind) = (&block[..], HEADERS);
        for cut in cuts {
            let (part, later) = rest.split_at((*cut).min(rest.len()));
            frames.push(frame(kind, 0, stream, part));
            (rest, kind) = (later, CONTINUATION);
        }
        frames.push(frame(kind, END_HEADERS, stream, rest));
        frames.push(frame(DATA, END_STREAM, stream, b"payload"));
    }
    frames
}

fn wanted(fields: &[Field]) -> Vec<Field> {
    let right = |(name, value): &Field| {
        let ok = name != ":authority" || http::uri::Authority::try_from(value.as_str()).is_ok();
        (name.clone(), if ok { value.clone() } else { "localhost".to_owned() })
    };
    fields.iter().map(right).collect()
}

proptest! {
    #[test]
    fn fields_are_what_the_client_compressed(requests in requests()) {
        let out = rewrite(&sent(&requests));
        let blocks: Vec<_> = out.iter().filter(|f| f.kind == HEADERS).collect();
        prop_assert_eq!(blocks.len(), requests.len());
        for (block, (fields, _)) in blocks.iter().zip(&requests) {
            prop_assert_eq!(literals(&block.payload), wanted(fields));
            // No state of earlier blocks is needed.
            prop_assert!(Decoder::new().decode(&block.payload).is_ok());
        }
    }

    #[test]
    fn pieces_do_not_matter(requests in requests(), sizes in vec(1_usize..3000, 1..8)) {
        let wire = wire(&sent(&requests));
        prop_assert_eq!(rewrite_in(&sizes, &wire).0, rewrite_in(&[wire.len()], &wire).0);
    }

    #[test]
    fn anything_is_read_the_same_in_any_pieces(
        junk in vec(any::<u8>(), 0..400), requests in requests(), sizes in vec(1_usize..40, 1..8)
    ) {
        let mut wire = wire(&sent(&requests));
        wire.extend(junk);
        let (whole, all) = rewrite_in(&[wire.len()], &wire);
        let (pieces, each) = rewrite_in(&sizes, &wire);
        prop_assert_eq!(whole, pieces);
        prop_assert_eq!(all.violation(), each.violation());
    }

    #[test]
    fn any_block_is_read_or_refused(blocks in vec(vec(any::<u8>(), 0..60), 0..20)) {
        let frames_in: Vec<_> = blocks.iter().map(|block| headers(1, block)).collect();
        let wire = wire(&frames_in);
        let (out, rewriter) = rewrite_in(&[wire.len()], &wire);
        let mut out = frames(&out);
        if rewriter.violation().is_some() {
            out.pop();
        }
        for frame in out.iter().filter(|frame| frame.kind == HEADERS) {
            // Names and values may not be text here.
            prop_assert!(Decoder::new().decode(&frame.payload).is_ok());
        }
    }
}
