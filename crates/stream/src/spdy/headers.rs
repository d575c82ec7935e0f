//! Header blocks: names and values, squeezed by one zlib context per direction.
//!
//! **Invariant:** blocks go through a context in the order of their frames, all of them, also
//! those of streams that are refused: the next one is unreadable otherwise.

use std::sync::LazyLock;

use bytes::{Buf, BufMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::SpdyError;

/// What one block may come to; ours need a hundred bytes.
pub const MAX_BLOCK: usize = 64 << 10;
const MAX_HEADERS: u32 = 100;

/// Words of the dictionary that carry their length, in the order of the specification.
const WORDS: &[&str] = &[
    "options",
    "head",
    "post",
    "put",
    "delete",
    "trace",
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "accept-ranges",
    "age",
    "allow",
    "authorization",
    "cache-control",
    "connection",
    "content-base",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-md5",
    "content-range",
    "content-type",
    "date",
    "etag",
    "expect",
    "expires",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "location",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "referer",
    "retry-after",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "method",
    "get",
    "status",
    "200 OK",
    "version",
    "HTTP/1.1",
    "url",
    "public",
    "set-cookie",
    "keep-alive",
    "origin",
];

/// What follows them, as it is.
const TEXT: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415\
    416417502504505203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad \
    Request401 Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not \
    Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 \
    Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,\
    application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,\
    deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

static DICTIONARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for word in WORDS {
        put_text(&mut all, word);
    }
    all.extend_from_slice(TEXT.as_bytes());
    all
});

/// Names are in lower case; a name is there once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

/// The context of what we send.
#[derive(Debug)]
pub struct Squeezer(Compress);

/// The context of what we get.
#[derive(Debug)]
pub struct Unsqueezer(Decompress);

impl Headers {
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.0.push((name.to_ascii_lowercase(), value.to_owned()));
        self
    }

    /// `name` in lower case.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn encode(&self) -> Vec<u8> {
        let mut block = Vec::new();
        block.put_u32(len(self.0.len()));
        for (name, value) in &self.0 {
            put_text(&mut block, name);
            put_text(&mut block, value);
        }
        block
    }

    fn decode(mut block: &[u8]) -> Result<Self, SpdyError> {
        let count = block.try_get_u32().map_err(|_| SpdyError::Headers("cut short"))?;
        if count > MAX_HEADERS {
            return Err(SpdyError::Headers("too many"));
        }
        let mut headers = Self::default();
        for _ in 0..count {
            let name = take_text(&mut block)?.to_ascii_lowercase();
            let value = take_text(&mut block)?;
            if headers.get(&name).is_some() {
                return Err(SpdyError::Headers("a name twice"));
            }
            headers.0.push((name, value));
        }
        match block {
            [] => Ok(headers),
            _ => Err(SpdyError::Headers("more than they say")),
        }
    }
}

fn len(len: usize) -> u32 {
    u32::try_from(len).expect("we send short headers only")
}

fn put_text(block: &mut Vec<u8>, text: &str) {
    block.put_u32(len(text.len()));
    block.put_slice(text.as_bytes());
}

fn take_text(block: &mut &[u8]) -> Result<String, SpdyError> {
    let cut = SpdyError::Headers("cut short");
    let Ok(len) = block.try_get_u32() else { return Err(cut) };
    let Some((text, rest)) = block.split_at_checked(len as usize) else { return Err(cut) };
    *block = rest;
    String::from_utf8(text.to_vec()).map_err(|_| SpdyError::Headers("not text"))
}

// === zlib ===

impl Default for Squeezer {
    fn default() -> Self {
        let mut context = Compress::new(Compression::default(), true);
        context.set_dictionary(&DICTIONARY).expect("a new context takes a dictionary");
        Self(context)
    }
}

impl Squeezer {
    pub fn squeeze(&mut self, headers: &Headers) -> Vec<u8> {
        let block = headers.encode();
        let mut out = Vec::new();
        let mut used = 0;
        loop {
            out.reserve(block.len() + 64);
            let before = self.0.total_in();
            let result = self.0.compress_vec(&block[used..], &mut out, FlushCompress::Sync);
            result.expect("deflate refuses nothing");
            used += progress(before, self.0.total_in());
            // Room that is left means that all is flushed.
            if used == block.len() && out.len() < out.capacity() {
                return out;
            }
        }
    }
}

impl Default for Unsqueezer {
    fn default() -> Self {
        Self(Decompress::new(true))
    }
}

impl Unsqueezer {
    pub fn unsqueeze(&mut self, block: &[u8]) -> Result<Headers, SpdyError> {
        let mut all = Vec::new();
        let mut used = 0;
        loop {
            all.reserve(1024);
            let before = (self.0.total_in(), all.len());
            let result = self.0.decompress_vec(&block[used..], &mut all, FlushDecompress::Sync);
            used += progress(before.0, self.0.total_in());
            match result {
                Ok(Status::StreamEnd) => return Err(SpdyError::Headers("the last ones")),
                Ok(_) => {}
                Err(error) if error.needs_dictionary().is_some() => {
                    let set = self.0.set_dictionary(&DICTIONARY);
                    set.map_err(|_| SpdyError::Headers("of another dictionary"))?;
                    continue;
                }
                Err(_) => return Err(SpdyError::Headers("not deflated")),
            }
            if all.len() > MAX_BLOCK {
                return Err(SpdyError::Headers("too long"));
            }
            let stuck = all.len() == before.1 && self.0.total_in() == before.0;
            if stuck || (used == block.len() && all.len() < all.capacity()) {
                break;
            }
        }
        if used < block.len() {
            return Err(SpdyError::Headers("more than they say"));
        }
        Headers::decode(&all)
    }
}

fn progress(before: u64, now: u64) -> usize {
    usize::try_from(now - before).expect("less than we gave")
}

#[cfg(test)]
mod tests {
    use proptest::{collection, prelude::*};

    use super::*;

    /// The checksum by which zlib streams name a dictionary.
    fn adler32(bytes: &[u8]) -> u32 {
        let (a, b) = bytes.iter().fold((1_u32, 0_u32), |(a, b), byte| {
            let a = (a + u32::from(*byte)) % 65521;
            (a, (b + a) % 65521)
        });
        b << 16 | a
    }

    #[test]
    fn the_dictionary_is_the_one_all_others_use() {
        assert_eq!(DICTIONARY.len(), 1423);
        assert_eq!(adler32(&DICTIONARY), 0xe3c6_a7c2);
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<_> = hex.bytes().map(|c| char::from(c).to_digit(16).unwrap()).collect();
        digits.chunks(2).map(|pair| u8::try_from(pair[0] << 4 | pair[1]).unwrap()).collect()
    }

    /// Two blocks that zlib itself deflated in one context.
    #[test]
    fn blocks_of_another_implementation() {
        let mut context = Unsqueezer::default();
        let first = "78f9e3c6a7c202a62346703a2b294a4dcc851625aca9a08006000000ffff";
        let headers = context.unsqueeze(&bytes(first)).unwrap();
        assert_eq!(headers, Headers::default().with("streamtype", "error"));
        let second = context.unsqueeze(&bytes("c22e555c02cc2e00000000ffff")).unwrap();
        assert_eq!(second.get("streamtype"), Some("stdin"));
    }

    #[track_caller]
    fn refused(block: &[u8], want: &str) {
        let got = Headers::decode(block).unwrap_err().to_string();
        assert_eq!(got, format!("headers that make no sense: {want}"));
    }

    #[test]
    fn malformed_blocks_are_refused() {
        refused(&[0, 0, 0], "cut short");
        refused(&[0, 0, 0, 1], "cut short");
        refused(&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 1], "cut short");
        refused(&[0, 0, 1, 0], "too many");
        refused(&[0, 0, 0, 0, 0], "more than they say");
        refused(&[0, 0, 0, 1, 0, 0, 0, 1, 0xff, 0, 0, 0, 0], "not text");
        let twice = [0, 0, 0, 2, 0, 0, 0, 1, b'a', 0, 0, 0, 0, 0, 0, 0, 1, b'A', 0, 0, 0, 0];
        refused(&twice, "a name twice");
    }

    #[test]
    fn a_bomb_is_cut_off() {
        let bomb = Headers::default().with("a", &"x".repeat(MAX_BLOCK + 1));
        let squeezed = Squeezer::default().squeeze(&bomb);
        assert!(squeezed.len() < 1000);
        let error = Unsqueezer::default().unsqueeze(&squeezed).unwrap_err();
        assert_eq!(error.to_string(), "headers that make no sense: too long");
    }

    proptest! {
        #[test]
        fn blocks_come_out_as_they_went_in(
            blocks in collection::vec(
                collection::btree_map("[a-z]{1,8}", any::<String>(), 0..5), 1..10),
        ) {
            let (mut out, mut back) = (Squeezer::default(), Unsqueezer::default());
            for block in blocks {
                let headers = Headers(block.into_iter().collect());
                let squeezed = out.squeeze(&headers);
                prop_assert_eq!(back.unsqueeze(&squeezed).unwrap(), headers);
            }
        }

        #[test]
        fn no_bytes_panic(blocks in collection::vec(collection::vec(any::<u8>(), 0..64), 0..4)) {
            let mut back = Unsqueezer::default();
            for block in blocks {
                let _ = back.unsqueeze(&block);
                let _ = Headers::decode(&block);
            }
        }
    }
}
