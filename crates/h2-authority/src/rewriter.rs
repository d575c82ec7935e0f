//! The state machine that rewrites a client's bytes, without I/O.

use crate::block::BlockDecoder;

/// The client's connection preface (RFC 9113, 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The maximum size of a header block as the client compressed it.
pub const MAX_BLOCK_BYTES: usize = 64 << 10;

/// The maximum size of a header block as literals. h2's own limit is lower and ends the request
/// only; this one ends the connection.
pub const MAX_LITERAL_BYTES: usize = 64 << 10;

/// The maximum number of frames of a header block.
pub const MAX_FRAGMENTS: usize = 32;

/// The maximum payload of a frame: the default of SETTINGS_MAX_FRAME_SIZE, which our server does
/// not change.
const MAX_FRAME_BYTES: usize = 16 << 10;

const HEAD_LEN: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
const PRIORITY_LEN: usize = 5;

/// What a client did to have its connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("header block is not valid HPACK")]
    Hpack,
    #[error(
        "header block is larger than {MAX_BLOCK_BYTES} bytes, {MAX_LITERAL_BYTES} bytes when \
         decompressed, or {MAX_FRAGMENTS} frames"
    )]
    TooLarge,
    #[error("HEADERS frame is shorter than its padding and priority")]
    Padding,
    #[error("header block is interrupted by another frame")]
    Interrupted,
}

/// A frame header (RFC 9113, 4.1).
#[derive(Clone, Copy, Debug)]
struct Head {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl Head {
    fn parse(bytes: [u8; HEAD_LEN]) -> Self {
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = bytes;
        Self {
            length: u32::from_be_bytes([0, l0, l1, l2]) as usize,
            kind,
            flags,
            // The first bit is reserved and ignored.
            stream: u32::from_be_bytes([s0, s1, s2, s3]) & (u32::MAX >> 1),
        }
    }

    fn put(self, out: &mut Vec<u8>) {
        let length = u32::try_from(self.length).expect("a length of three octets").to_be_bytes();
        out.extend_from_slice(&length[1..]);
        out.extend_from_slice(&[self.kind, self.flags]);
        out.extend_from_slice(&self.stream.to_be_bytes());
    }

    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Within the preface, of which `passed` bytes have passed.
    Preface { passed: usize },
    /// Within a frame header, of which `known` bytes are there.
    Head { bytes: [u8; HEAD_LEN], known: usize },
    /// Within a payload that passes through, with `left` bytes to come.
    Payload { left: usize },
    /// Within a payload that belongs to a header block and is collected.
    Fragment { head: Head },
    /// The client does not speak HTTP/2: everything passes, for h2 to refuse.
    Foreign,
    /// The client violated HTTP/2, and h2 has been made to see it: the rest is dropped.
    Refused(Violation),
}

impl State {
    const NEXT_FRAME: Self = Self::Head { bytes: [0; HEAD_LEN], known: 0 };
}

/// A header block that is still incomplete.
#[derive(Debug)]
struct OpenBlock {
    stream: u32,
    end_stream: bool,
    fragments: usize,
    bytes: Vec<u8>,
}

/// Rewrites the bytes of one client: header blocks become literals, everything else is unchanged.
#[derive(Debug)]
pub struct Rewriter {
    state: State,
    /// The collected payload of the current frame.
    fragment: Vec<u8>,
    block: Option<OpenBlock>,
    /// Whether the current call of [`Self::feed`] has appended a header block.
    block_ended: bool,
    decoder: BlockDecoder,
}

impl Default for Rewriter {
    fn default() -> Self {
        Self::new()
    }
}

impl Rewriter {
    pub fn new() -> Self {
        Self {
            state: State::Preface { passed: 0 },
            fragment: Vec::new(),
            block: None,
            block_ended: false,
            decoder: BlockDecoder::new(),
        }
    }

    /// Consumes `input` up to the end of its first header block and appends what h2 shall read
    /// instead to `out`. Returns the number of bytes consumed. As there is one header block per
    /// call at most, a call appends no more than the input and [`MAX_LITERAL_BYTES`] with their
    /// frame headers.
    pub fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) -> usize {
        let mut rest = input;
        self.block_ended = false;
        while !rest.is_empty() && !self.block_ended {
            let taken = self.step(rest, out);
            rest = &rest[taken..];
        }
        input.len() - rest.len()
    }

    /// Consumes up to `available` bytes that pass through unchanged and returns their number. Those
    /// after them have to go through [`Self::feed`].
    pub fn pass(&mut self, available: usize) -> usize {
        match &mut self.state {
            State::Payload { left } => {
                let passed = available.min(*left);
                *left -= passed;
                if *left == 0 {
                    self.state = State::NEXT_FRAME;
                }
                passed
            }
            State::Foreign => available,
            _ => 0,
        }
    }

    /// Returns how the client violated HTTP/2, if it did. The rest of its connection is dropped.
    pub fn violation(&self) -> Option<Violation> {
        match self.state {
            State::Refused(violation) => Some(violation),
            _ => None,
        }
    }

    /// Consumes at least one byte of `rest`, which is not empty, and returns the number.
    fn step(&mut self, rest: &[u8], out: &mut Vec<u8>) -> usize {
        match self.state {
            State::Preface { passed } => self.match_preface(passed, rest, out),
            State::Head { bytes, known } => self.take_head(bytes, known, rest, out),
            State::Payload { .. } | State::Foreign => {
                let passed = self.pass(rest.len());
                out.extend_from_slice(&rest[..passed]);
                passed
            }
            State::Fragment { head } => {
                let taken = rest.len().min(head.length - self.fragment.len());
                self.fragment.extend_from_slice(&rest[..taken]);
                if self.fragment.len() == head.length {
                    self.end_fragment(head, out);
                }
                taken
            }
            State::Refused(_) => rest.len(),
        }
    }

    fn match_preface(&mut self, passed: usize, rest: &[u8], out: &mut Vec<u8>) -> usize {
        let wanted = &PREFACE[passed..];
        let taken = rest.len().min(wanted.len());
        out.extend_from_slice(&rest[..taken]);
        self.state = if rest[..taken] != wanted[..taken] {
            State::Foreign
        } else if taken == wanted.len() {
            State::NEXT_FRAME
        } else {
            State::Preface { passed: passed + taken }
        };
        taken
    }

    fn take_head(
        &mut self,
        mut bytes: [u8; HEAD_LEN],
        known: usize,
        rest: &[u8],
        out: &mut Vec<u8>,
    ) -> usize {
        let taken = rest.len().min(HEAD_LEN - known);
        bytes[known..known + taken].copy_from_slice(&rest[..taken]);
        if known + taken < HEAD_LEN {
            self.state = State::Head { bytes, known: known + taken };
            return taken;
        }
        let head = Head::parse(bytes);
        match self.carries_block(head) {
            None => self.refuse(Violation::Interrupted, out),
            Some(true) => {
                self.fragment.clear();
                self.state = State::Fragment { head };
                if head.length == 0 {
                    self.end_fragment(head, out);
                }
            }
            Some(false) => {
                out.extend_from_slice(&bytes);
                self.state = match head.length {
                    0 => State::NEXT_FRAME,
                    left => State::Payload { left },
                };
            }
        }
        taken
    }

    /// Whether the frame belongs to a header block. `None` if it must not occur here: an incomplete
    /// block may only be followed by its continuation (RFC 9113, 6.10).
    fn carries_block(&self, head: Head) -> Option<bool> {
        match &self.block {
            Some(block) => {
                let goes_on = head.kind == CONTINUATION
                    && head.stream == block.stream
                    && head.length <= MAX_FRAME_BYTES;
                goes_on.then_some(true)
            }
            // h2 refuses frames that are too large, and continuations without a beginning.
            None => Some(head.kind == HEADERS && head.length <= MAX_FRAME_BYTES),
        }
    }

    /// Adds a complete payload to its header block, and forwards the block if it is the last one.
    fn end_fragment(&mut self, head: Head, out: &mut Vec<u8>) {
        self.state = State::NEXT_FRAME;
        let forwarded = self.collect(head).and_then(|()| match self.block.take() {
            Some(block) if head.has(END_HEADERS) => self.put_block(&block, out),
            open => {
                self.block = open;
                Ok(())
            }
        });
        if let Err(violation) = forwarded {
            self.refuse(violation, out);
        }
    }

    /// Adds a payload to its header block.
    fn collect(&mut self, head: Head) -> Result<(), Violation> {
        let fragment = match head.kind {
            HEADERS => strip(&self.fragment, head).ok_or(Violation::Padding)?,
            _ => &self.fragment,
        };
        let block = self.block.get_or_insert_with(|| OpenBlock {
            stream: head.stream,
            end_stream: head.has(END_STREAM),
            fragments: 0,
            bytes: Vec::new(),
        });
        block.fragments += 1;
        block.bytes.extend_from_slice(fragment);
        if block.fragments > MAX_FRAGMENTS || block.bytes.len() > MAX_BLOCK_BYTES {
            return Err(Violation::TooLarge);
        }
        Ok(())
    }

    /// Appends a header block as HEADERS and CONTINUATION frames, without padding and priority,
    /// which h2 ignores.
    fn put_block(&mut self, block: &OpenBlock, out: &mut Vec<u8>) -> Result<(), Violation> {
        self.block_ended = true;
        let mut literals = Vec::with_capacity(block.bytes.len() * 2);
        self.decoder.rewrite(&block.bytes, &mut literals)?;
        let end_stream = if block.end_stream { END_STREAM } else { 0 };
        let (mut kind, mut flags, mut rest) = (HEADERS, end_stream, &literals[..]);
        loop {
            let (payload, later) = rest.split_at(rest.len().min(MAX_FRAME_BYTES));
            flags |= if later.is_empty() { END_HEADERS } else { 0 };
            Head { length: payload.len(), kind, flags, stream: block.stream }.put(out);
            out.extend_from_slice(payload);
            if later.is_empty() {
                return Ok(());
            }
            (kind, flags, rest) = (CONTINUATION, 0, later);
        }
    }

    /// Makes h2 end the connection with PROTOCOL_ERROR, its answer to a malformed header block too,
    /// by a CONTINUATION frame that continues nothing.
    fn refuse(&mut self, violation: Violation, out: &mut Vec<u8>) {
        Head { length: 0, kind: CONTINUATION, flags: END_HEADERS, stream: 1 }.put(out);
        self.state = State::Refused(violation);
        self.block = None;
    }
}

/// Returns the header block fragment in the payload of a HEADERS frame (RFC 9113, 6.2).
fn strip(payload: &[u8], head: Head) -> Option<&[u8]> {
    let mut rest = payload;
    let mut padding = 0;
    if head.has(PADDED) {
        let (length, later) = rest.split_first()?;
        (padding, rest) = (usize::from(*length), later);
    }
    if head.has(PRIORITY) {
        rest = rest.get(PRIORITY_LEN..)?;
    }
    rest.get(..rest.len().checked_sub(padding)?)
}
