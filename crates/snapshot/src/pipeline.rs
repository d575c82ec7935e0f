//! Bytes of a layer on their way to the applier, each stage on a thread of its own.
//!
//! ```text
//!   reader ─► layer-decode ─► layer-hash ─► Stream ─► (caller: tar, files)
//!                 ▲                            │
//!                 └────── emptied buffers ─────┘
//! ```
//! **Invariant:** there are [`BUFFERS`] buffers per layer, whatever the layer does: memory
//! is bounded, and a slow disk slows the reader down.

use std::{
    io::{self, BufReader, Read},
    panic,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{Builder, ScopedJoinHandle, scope},
};

use base::{Algorithm, Digest};
use sha2::Digest as _;

use crate::{ApplyError, Compression, Limits, compression};

const BUFFERS: usize = 6;
const BUFFER_BYTES: usize = 128 << 10;

/// What came through.
#[derive(Debug)]
pub(crate) struct Passed<T> {
    pub(crate) result: T,
    pub(crate) digest: Digest,
}

#[derive(Debug)]
struct Chunk {
    bytes: Box<[u8]>,
    len: usize,
}

type Message = Result<Chunk, ApplyError>;

/// Runs `apply` on the unpacked bytes, then reads what it left: the digest is that of the
/// whole stream. Returns after the reader's last read has, whatever happens.
pub(crate) fn run<T>(
    reader: impl Read + Send,
    limits: Limits,
    algorithm: Algorithm,
    apply: impl FnOnce(&mut Stream) -> Result<T, ApplyError>,
) -> Result<Passed<T>, ApplyError> {
    let (empty, to_fill) = sync_channel(BUFFERS);
    let (to_hash, unhashed) = sync_channel(BUFFERS);
    let (to_apply, full) = sync_channel(BUFFERS);
    for _ in 0..BUFFERS {
        let chunk = Chunk { bytes: vec![0; BUFFER_BYTES].into(), len: 0 };
        // There is room for all of them.
        let _ = empty.send(chunk);
    }
    scope(|scope| {
        let no_thread = ApplyError::io::<io::Error>("start threads for", b"layer");
        let decoding = Builder::new()
            .name("layer-decode".into())
            .spawn_scoped(scope, move || decode(reader, limits, &to_fill, &to_hash))
            .map_err(no_thread)?;
        let no_thread = ApplyError::io::<io::Error>("start threads for", b"layer");
        let hashing = Builder::new()
            .name("layer-hash".into())
            .spawn_scoped(scope, move || hash(algorithm, &unhashed, &to_apply))
            .map_err(no_thread)?;
        let mut stream = Stream { full, empty, chunk: None, at: 0, position: 0 };
        let result = apply(&mut stream).and_then(|result| stream.drain().map(|()| result));
        // The stages see their queue close and end.
        drop(stream);
        join(decoding);
        let digest = join(hashing);
        result.map(|result| Passed { result, digest })
    })
}

fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked))
}

fn decode(
    reader: impl Read + Send,
    limits: Limits,
    empty: &Receiver<Chunk>,
    full: &SyncSender<Message>,
) {
    // A queue that is closed means that the applier has given up; nobody wants to know.
    if let Err(error) = decode_all(reader, limits, empty, full) {
        let _ = full.send(Err(error));
    }
}

fn decode_all(
    reader: impl Read + Send,
    limits: Limits,
    empty: &Receiver<Chunk>,
    full: &SyncSender<Message>,
) -> Result<(), ApplyError> {
    let source = Arc::new(Source::default());
    let counted = Counted { reader, source: Arc::clone(&source) };
    let mut reader = BufReader::with_capacity(BUFFER_BYTES / 2, counted);
    let head = peek(&mut reader).map_err(ApplyError::Read)?;
    let compression = Compression::sniff(&head)?;
    let failed = |error| match compression == Compression::None || source.has_failed() {
        true => ApplyError::Read(error),
        false => ApplyError::Decompress { compression, source: error },
    };
    let reader = io::Cursor::new(head).chain(reader);
    let mut decoder = compression.decoder(reader).map_err(failed)?;
    let mut total = 0;
    while let Ok(mut chunk) = empty.recv() {
        chunk.len = fill(&mut decoder, &mut chunk.bytes).map_err(failed)?;
        if chunk.len == 0 {
            break;
        }
        total += chunk.len as u64;
        limits.check_stream(source.bytes.load(Ordering::Relaxed), total)?;
        if full.send(Ok(chunk)).is_err() {
            break;
        }
    }
    Ok(())
}

fn peek(reader: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = vec![0; compression::HEAD];
    let len = fill(reader, &mut head)?;
    head.truncate(len);
    Ok(head)
}

/// Until the buffer is full or the reader at its end.
fn fill(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match reader.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(len)
}

fn hash(algorithm: Algorithm, from: &Receiver<Message>, to: &SyncSender<Message>) -> Digest {
    let mut hasher = Hasher::new(algorithm);
    while let Ok(message) = from.recv() {
        if let Ok(chunk) = &message {
            hasher.update(&chunk.bytes[..chunk.len]);
        }
        if to.send(message).is_err() {
            break;
        }
    }
    hasher.finish()
}

enum Hasher {
    Sha256(sha2::Sha256),
    Sha512(sha2::Sha512),
}

impl Hasher {
    fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Sha256 => Self::Sha256(sha2::Sha256::new()),
            Algorithm::Sha512 => Self::Sha512(sha2::Sha512::new()),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
        }
    }

    fn finish(self) -> Digest {
        match self {
            Self::Sha256(hasher) => Digest::sha256(hasher.finalize().into()),
            Self::Sha512(hasher) => Digest::sha512(hasher.finalize().into()),
        }
    }
}

/// What is known about the compressed side, below the decoder that hides it.
#[derive(Debug, Default)]
struct Source {
    bytes: AtomicU64,
    failed: AtomicBool,
}

impl Source {
    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

struct Counted<R> {
    reader: R,
    source: Arc<Source>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let result = self.reader.read(buffer);
        match &result {
            Ok(len) => {
                self.source.bytes.fetch_add(*len as u64, Ordering::Relaxed);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.source.failed.store(true, Ordering::Relaxed),
        }
        result
    }
}

/// The unpacked bytes, where the applier takes them.
#[derive(Debug)]
pub(crate) struct Stream {
    full: Receiver<Message>,
    empty: SyncSender<Chunk>,
    chunk: Option<Chunk>,
    at: usize,
    position: u64,
}

impl Stream {
    /// Some bytes; none at the end.
    pub(crate) fn fill(&mut self) -> Result<&[u8], ApplyError> {
        while self.chunk.as_ref().is_none_or(|chunk| self.at == chunk.len) {
            if let Some(chunk) = self.chunk.take() {
                // The decoder may have ended; then nobody needs it.
                let _ = self.empty.send(chunk);
            }
            self.at = 0;
            match self.full.recv() {
                Ok(message) => self.chunk = Some(message?),
                Err(_) => return Ok(&[]),
            }
        }
        Ok(self.chunk.as_ref().map_or(&[], |chunk| &chunk.bytes[self.at..chunk.len]))
    }

    pub(crate) fn consume(&mut self, len: usize) {
        self.at += len;
        self.position += len as u64;
    }

    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Less than asked only at the end.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ApplyError> {
        let mut len = 0;
        while len < buffer.len() {
            let bytes = self.fill()?;
            if bytes.is_empty() {
                break;
            }
            let part = bytes.len().min(buffer.len() - len);
            buffer[len..len + part].copy_from_slice(&bytes[..part]);
            self.consume(part);
            len += part;
        }
        Ok(len)
    }

    fn drain(&mut self) -> Result<(), ApplyError> {
        loop {
            match self.fill()?.len() {
                0 => return Ok(()),
                len => self.consume(len),
            }
        }
    }
}

#[cfg(test)]
pub(crate) fn stream_of(bytes: &[u8]) -> Stream {
    let (to_apply, full) = sync_channel(bytes.len() / BUFFER_BYTES + 1);
    let (empty, _) = sync_channel(1);
    for piece in bytes.chunks(BUFFER_BYTES) {
        to_apply.send(Ok(Chunk { bytes: piece.into(), len: piece.len() })).expect("there is room");
    }
    Stream { full, empty, chunk: None, at: 0, position: 0 }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn read_all(packed: impl Read + Send, limits: Limits) -> Result<Passed<Vec<u8>>, ApplyError> {
        run(packed, limits, Algorithm::Sha256, |stream| {
            let mut all = Vec::new();
            loop {
                match stream.fill()? {
                    [] => return Ok(all),
                    bytes => all.extend_from_slice(bytes),
                }
                let len = stream.fill()?.len();
                stream.consume(len);
            }
        })
    }

    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24).to_le_bytes()[0]
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn every_packing_gives_the_same_bytes_and_digest() {
        let plain = noise(1_000_000);
        let members = [gzip(&plain[..10]), gzip(&plain[10..])].concat();
        let frames = [
            zstd::encode_all(&plain[..500], 1).unwrap(),
            // A frame to skip, of three bytes.
            vec![0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3],
            zstd::encode_all(&plain[500..], 1).unwrap(),
        ]
        .concat();
        let want = Digest::sha256(sha2::Sha256::digest(&plain).into());
        for packed in [plain.clone(), gzip(&plain), members, frames] {
            let passed = read_all(&packed[..], Limits::default()).unwrap();
            assert!(passed.result == plain);
            assert_eq!(passed.digest, want);
        }
    }

    #[test]
    fn what_is_left_unread_is_hashed_too() {
        let plain = noise(500_000);
        let passed = run(&plain[..], Limits::default(), Algorithm::Sha512, |stream| {
            stream.fill().map(<[u8]>::len)
        });
        let want = Digest::sha512(sha2::Sha512::digest(&plain).into());
        assert_eq!(passed.unwrap().digest, want);
    }

    #[test]
    fn an_applier_that_gives_up_ends_all_stages() {
        let endless = io::repeat(7);
        let limits = Limits { bytes: u64::MAX, ..Limits::default() };
        let result = run(endless, limits, Algorithm::Sha256, |_| {
            Err::<(), _>(ApplyError::Unsupported("test"))
        });
        assert!(matches!(result, Err(ApplyError::Unsupported("test"))));
    }

    struct Breaks(usize);

    impl Read for Breaks {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0 {
                0 => Err(io::ErrorKind::ConnectionReset.into()),
                left => {
                    let len = left.min(buffer.len());
                    self.0 -= len;
                    Ok(len)
                }
            }
        }
    }

    #[test]
    fn causes_are_told_apart() {
        let packed = gzip(&noise(300_000));
        let half = &packed[..packed.len() / 2];
        let check = |got: Result<Passed<Vec<u8>>, ApplyError>, want: &str| {
            assert_eq!(got.unwrap_err().to_string(), want);
        };
        check(read_all(half, Limits::default()), "decompress the layer as gzip");
        check(read_all(half.chain(Breaks(0)), Limits::default()), "read the layer");
        check(read_all(Breaks(1000), Limits::default()), "read the layer");
        check(
            read_all(&b"\xfd7zXZ\0more"[..], Limits::default()),
            "layer is compressed with xz: gzip, zstd and none are supported",
        );
        let mut broken = packed.clone();
        broken[1000] ^= 0xff;
        check(read_all(&broken[..], Limits::default()), "decompress the layer as gzip");
    }

    #[test]
    fn bombs_end() {
        let bomb = zstd::encode_all(io::repeat(0).take(64 << 20), 3).unwrap();
        assert!(bomb.len() < 10_000);
        let limits = Limits { ratio: 100, ratio_free: 1 << 20, ..Limits::default() };
        let error = read_all(&bomb[..], limits).unwrap_err();
        assert_eq!(error.to_string(), "layer has more than 100 times its compressed size in bytes");
        let limits = Limits { bytes: 1 << 20, ..Limits::default() };
        let error = read_all(io::repeat(0), limits).unwrap_err();
        assert_eq!(error.to_string(), "layer has more than 1048576 bytes");
    }
}
