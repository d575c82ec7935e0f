//! Decoding of header blocks, and their encoding as literals with a valid authority.

use std::{borrow::Cow, fmt};

use http::uri::Authority;
use loona_hpack::Decoder;

use crate::{
    huffman,
    rewriter::{MAX_LITERAL_BYTES, Violation},
};

/// The authority of a request without a valid one; what gRPC libraries send for `unix:` targets.
const LOCALHOST: &[u8] = b"localhost";

/// The limit of the client's dynamic table: the default of SETTINGS_HEADER_TABLE_SIZE, which our
/// server does not change.
const TABLE_BYTES: usize = 4096;

/// The maximum length of an encoded integer; the HPACK crate has the same.
const MAX_INTEGER_BYTES: usize = 5;

/// The representation of a field (RFC 7541, 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Representation {
    Indexed,
    IndexedLiteral,
    TableSize,
    NeverIndexedLiteral,
    Literal,
}

impl Representation {
    fn of(first: u8) -> Self {
        match first {
            0x80.. => Self::Indexed,
            0x40.. => Self::IndexedLiteral,
            0x20.. => Self::TableSize,
            0x10.. => Self::NeverIndexedLiteral,
            _ => Self::Literal,
        }
    }

    /// The number of bits of the first octet that belong to its integer.
    fn prefix(self) -> u32 {
        match self {
            Self::Indexed => 7,
            Self::IndexedLiteral => 6,
            Self::TableSize => 5,
            Self::NeverIndexedLiteral | Self::Literal => 4,
        }
    }

    /// The number of strings after the integer: the name unless it is indexed, and the value.
    fn strings(self, index: usize) -> usize {
        match self {
            Self::Indexed | Self::TableSize => 0,
            _ if index == 0 => 2,
            _ => 1,
        }
    }
}

/// Decodes the header blocks of one connection, in the order in which they arrive.
pub(crate) struct BlockDecoder {
    decoder: Decoder<'static>,
    /// The current field as the client encoded it, but with its strings Huffman-decoded.
    field: Vec<u8>,
}

impl BlockDecoder {
    pub(crate) fn new() -> Self {
        let mut decoder = Decoder::new();
        decoder.set_max_allowed_table_size(TABLE_BYTES);
        Self { decoder, field: Vec::new() }
    }

    /// Appends the fields of `block` to `out` as literals. After an error the dynamic table is out
    /// of sync, and no later block of the connection can be decoded.
    pub(crate) fn rewrite(&mut self, block: &[u8], out: &mut Vec<u8>) -> Result<(), Violation> {
        let (begin, mut rest, mut fields) = (out.len(), block, 0);
        self.field.clear();
        while let Some(&first) = rest.first() {
            let representation = Representation::of(first);
            let size = self.copy_field(representation, rest).ok_or(Violation::Hpack)?;
            rest = &rest[size..];
            if representation == Representation::TableSize {
                // Only allowed before the first field (RFC 7541, 4.2), and decoded together with
                // it.
                if fields > 0 {
                    return Err(Violation::Hpack);
                }
                continue;
            }
            fields += 1;
            let never_indexed = representation == Representation::NeverIndexedLiteral;
            self.put_field(never_indexed, begin + MAX_LITERAL_BYTES, out)?;
            self.field.clear();
        }
        if self.field.is_empty() { Ok(()) } else { Err(Violation::Hpack) }
    }

    /// Copies the field at the start of `block` to `self.field`, its strings Huffman-decoded.
    /// Returns its size in the block, or `None` if it is malformed.
    fn copy_field(&mut self, representation: Representation, block: &[u8]) -> Option<usize> {
        let (index, mut at) = integer(block, representation.prefix())?;
        self.field.extend_from_slice(&block[..at]);
        for _ in 0..representation.strings(index) {
            at += copy_string(&block[at..], &mut self.field)?;
        }
        Some(at)
    }

    /// Decodes the field in `self.field` and appends it to `out` as a literal.
    fn put_field(
        &mut self,
        never_indexed: bool,
        limit: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Violation> {
        let mut result = Err(Violation::Hpack);
        let decoded = self.decoder.decode_with_cb(&self.field, |name, value| {
            let value = if *name == *b":authority" { authority(value) } else { value };
            // A length takes at most five octets.
            let size = 1 + 5 + name.len() + 5 + value.len();
            result = if out.len() + size > limit {
                Err(Violation::TooLarge)
            } else {
                put_literal(never_indexed, &name, &value, out);
                Ok(())
            };
        });
        decoded.map_err(|_| Violation::Hpack).and(result)
    }
}

impl fmt::Debug for BlockDecoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockDecoder").finish_non_exhaustive()
    }
}

/// Returns the authority to forward: the given one if h2 accepts it, which is decided by the same
/// parser.
fn authority(given: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    match Authority::try_from(&*given) {
        Ok(_) => given,
        Err(_) => Cow::Borrowed(LOCALHOST),
    }
}

/// Decodes an integer (RFC 7541, 5.1). Returns it and its encoded size.
fn integer(bytes: &[u8], prefix: u32) -> Option<(usize, usize)> {
    let max = (1 << prefix) - 1;
    let mut value = usize::from(*bytes.first()?) & max;
    if value < max {
        return Some((value, 1));
    }
    for at in 1..MAX_INTEGER_BYTES {
        let byte = *bytes.get(at)?;
        value += usize::from(byte & 0x7f) << (7 * (at - 1));
        if byte & 0x80 == 0 {
            return Some((value, at + 1));
        }
    }
    None
}

fn put_integer(flags: u8, prefix: u32, mut value: usize, out: &mut Vec<u8>) {
    let low = |value: usize| u8::try_from(value & 0x7f).expect("seven bits");
    let max = (1 << prefix) - 1;
    if value < max {
        return out.push(flags | low(value));
    }
    out.push(flags | low(max));
    value -= max;
    while value > 0x7f {
        out.push(0x80 | low(value));
        value >>= 7;
    }
    out.push(low(value));
}

/// Copies the string (RFC 7541, 5.2) at the start of `bytes` to `out`, Huffman-decoded. Returns its
/// size in `bytes`.
fn copy_string(bytes: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    let is_huffman = bytes.first()? & 0x80 != 0;
    let (length, at) = integer(bytes, 7)?;
    let end = at + length;
    let string = bytes.get(at..end)?;
    if is_huffman {
        // The shortest code has five bits.
        let mut plain = Vec::with_capacity(string.len() * 8 / 5);
        huffman::decode(string, &mut plain)?;
        put_string(&plain, out);
    } else {
        put_string(string, out);
    }
    Some(end)
}

fn put_string(string: &[u8], out: &mut Vec<u8>) {
    put_integer(0, 7, string.len(), out);
    out.extend_from_slice(string);
}

fn put_literal(never_indexed: bool, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.push(if never_indexed { 0x10 } else { 0 });
    put_string(name, out);
    put_string(value, out);
}
