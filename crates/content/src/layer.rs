//! Where layers go, and how they get there while they are still arriving.
//!
//! ```text
//!  registry ──► writer ──► ingest file ◄── LayerSource ──► LayerSink   (unpacks)
//!                  └─ Arrival: "n bytes are here" ──────►┘
//! ```
//!
//! The file is the buffer: a sink that is slower than the network holds nobody up, and
//! one that comes late, or a second one, reads from the beginning.

use std::{
    error::Error,
    fmt,
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use base::{Digest, Kind};
use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

/// A layer to be unpacked, as a link of its image's chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerDescriptor {
    /// Where it shall go.
    pub snapshotter: Arc<str>,
    /// Of the compressed bytes.
    pub digest: Digest,
    pub media_type: String,
    pub size: u64,
    /// Of the uncompressed bytes; for the sink to check.
    pub diff_id: Digest,
    pub chain_id: Digest,
    /// The layer below; none for the lowest.
    pub parent_chain: Option<Digest>,
}

/// Unpacks layers. Implemented above this crate, over the snapshots.
pub trait LayerSink: Send + Sync + 'static {
    /// Whether the layer is unpacked, whole.
    fn has(&self, snapshotter: &str, chain_id: &Digest) -> bool;

    /// Unpacks one layer. Called at most once at a time for a chain id; layers of an image
    /// are applied in parallel: when this is called the layer below is there, or its own call
    /// goes on or has just failed; so waiting for it is fine. If it fails, so should this;
    /// both are called again where that may help. `source` must be read to its end: only there it is known whether the
    /// bytes were right, and nothing may become visible if it gives an error.
    ///
    /// To cancel, the source is made to fail; the future is not dropped except when the
    /// runtime ends.
    fn apply(
        &self,
        layer: LayerDescriptor,
        source: LayerSource,
    ) -> impl Future<Output = Result<(), SinkError>> + Send;

    /// Whatever `apply` has finished survives power loss when this returns. Called once per
    /// pull, before the image becomes visible.
    fn sync(&self) -> impl Future<Output = Result<(), SinkError>> + Send;
}

/// Why a layer was not unpacked, in the words of who should have.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{source}")]
pub struct SinkError {
    pub kind: Kind,
    pub source: Arc<dyn Error + Send + Sync>,
}

impl SinkError {
    pub fn new(kind: Kind, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { kind, source: source.into().into() }
    }
}

/// How much of a blob is on disk.
pub(crate) struct Arrival {
    state: Mutex<State>,
    changed: Condvar,
    /// For those who wait without a thread: a first byte, or the end.
    begun: watch::Sender<bool>,
}

struct State {
    file: Option<Arc<File>>,
    here: u64,
    end: Option<Result<(), String>>,
}

impl Arrival {
    pub(crate) fn new() -> Self {
        let state = State { file: None, here: 0, end: None };
        Self { state: Mutex::new(state), changed: Condvar::new(), begun: watch::Sender::new(false) }
    }

    pub(crate) fn open(&self, file: File) {
        self.state.lock().file = Some(Arc::new(file));
    }

    pub(crate) fn advance(&self, here: u64) {
        self.state.lock().here = here;
        self.changed.notify_all();
        self.begin();
    }

    /// Verified, or why not.
    pub(crate) fn end(&self, end: Result<(), String>) {
        self.state.lock().end = Some(end);
        self.changed.notify_all();
        self.begin();
    }

    fn begin(&self) {
        self.begun.send_if_modified(|begun| !std::mem::replace(begun, true));
    }

    pub(crate) fn here(&self) -> u64 {
        self.state.lock().here
    }

    pub(crate) async fn begun(&self) {
        // The sender is ours, so it cannot be gone.
        let _ = self.begun.subscribe().wait_for(|begun| *begun).await;
    }
}

impl fmt::Debug for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        write!(f, "Arrival({} bytes, {:?})", state.here, state.end)
    }
}

/// The arrival of a layer's bytes as those see it who wait for the layer: it may begin late,
/// and again.
#[derive(Debug, Default)]
pub(crate) struct Board(Mutex<Option<Arc<Arrival>>>);

impl Board {
    pub(crate) fn show(&self, arrival: &Arc<Arrival>) {
        *self.0.lock() = Some(Arc::clone(arrival));
    }

    pub(crate) fn here(&self) -> u64 {
        self.0.lock().as_ref().map_or(0, |arrival| arrival.here())
    }
}

/// The compressed bytes of a layer, from its first. Reading blocks until more have come.
/// The end is reported only once all of them were verified; if they were not, the last
/// read is an error.
pub struct LayerSource {
    bytes: Bytes,
    position: u64,
    stop: Arc<AtomicBool>,
}

enum Bytes {
    /// Verified before.
    Here(File),
    Arriving {
        arrival: Arc<Arrival>,
        file: Option<Arc<File>>,
    },
}

/// Makes a source fail, whoever reads it and wherever.
#[derive(Clone, Debug)]
pub(crate) struct Stopper {
    stop: Arc<AtomicBool>,
    arrival: Option<Arc<Arrival>>,
}

impl Stopper {
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(arrival) = &self.arrival {
            // Under the lock, or a reader between its look and its wait would miss it.
            let _state = arrival.state.lock();
            arrival.changed.notify_all();
        }
    }
}

impl LayerSource {
    /// Of bytes that are known to be right. For tests of sinks, too.
    pub fn of_file(file: File) -> Self {
        Self { bytes: Bytes::Here(file), position: 0, stop: Arc::default() }
    }

    pub(crate) fn arriving(arrival: Arc<Arrival>) -> Self {
        let bytes = Bytes::Arriving { arrival, file: None };
        Self { bytes, position: 0, stop: Arc::default() }
    }

    pub(crate) fn stopper(&self) -> Stopper {
        let arrival = match &self.bytes {
            Bytes::Here(_) => None,
            Bytes::Arriving { arrival, .. } => Some(Arc::clone(arrival)),
        };
        Stopper { stop: Arc::clone(&self.stop), arrival }
    }
}

impl Read for LayerSource {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let stopped = || self.stop.load(Ordering::Relaxed);
        let cancelled = || Err(io::Error::other("nobody wants this layer any more"));
        let count = match &mut self.bytes {
            Bytes::Here(_) if stopped() => return cancelled(),
            Bytes::Here(file) => file.read_at(into, self.position)?,
            Bytes::Arriving { arrival, file } => {
                let mut state = arrival.state.lock();
                while state.here <= self.position && state.end.is_none() && !stopped() {
                    arrival.changed.wait(&mut state);
                }
                if stopped() {
                    return cancelled();
                }
                let here = state.here - self.position;
                if here == 0 {
                    return match &state.end {
                        Some(Err(why)) => {
                            Err(io::Error::new(io::ErrorKind::InvalidData, why.clone()))
                        }
                        _ => Ok(0),
                    };
                }
                if file.is_none() {
                    file.clone_from(&state.file);
                }
                drop(state);
                let take = usize::try_from(here).map_or(into.len(), |here| here.min(into.len()));
                let file = file.as_ref().ok_or_else(|| io::Error::other("bytes without a file"))?;
                file.read_at(&mut into[..take], self.position)?
            }
        };
        self.position += count as u64;
        Ok(count)
    }
}

impl fmt::Debug for LayerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LayerSource(at {})", self.position)
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, thread, time::Duration};

    use super::*;

    fn arrival() -> (Arc<Arrival>, File) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let arrival = Arc::new(Arrival::new());
        arrival.open(file.reopen().expect("opens"));
        (arrival, file.into_file())
    }

    #[test]
    fn readers_follow_the_writer_to_the_verified_end() {
        let (arrival, mut file) = arrival();
        let reader = |arrival: &Arc<Arrival>| {
            let mut source = LayerSource::arriving(Arc::clone(arrival));
            thread::spawn(move || {
                let mut text = String::new();
                source.read_to_string(&mut text).map(|_| text)
            })
        };
        let early = reader(&arrival);
        for (piece, here) in [("hel", 3), ("lo", 5)] {
            file.write_all(piece.as_bytes()).expect("writes");
            arrival.advance(here);
            thread::sleep(Duration::from_millis(5));
        }
        assert!(!early.is_finished(), "the end is not known yet");
        arrival.end(Ok(()));
        assert_eq!(early.join().expect("ends").expect("reads"), "hello");
        assert_eq!(reader(&arrival).join().expect("ends").expect("reads"), "hello");
    }

    #[test]
    fn bytes_beyond_the_mark_are_not_seen() {
        let (arrival, mut file) = arrival();
        file.write_all(b"hello").expect("writes");
        arrival.advance(2);
        let mut source = LayerSource::arriving(Arc::clone(&arrival));
        let mut buffer = [0; 16];
        assert_eq!(source.read(&mut buffer).expect("reads"), 2);
        arrival.end(Err("wrong bytes".to_owned()));
        let error = source.read(&mut buffer).expect_err("is wrong");
        assert_eq!(error.to_string(), "wrong bytes");
    }

    #[test]
    fn a_reader_that_waits_can_be_stopped() {
        let (arrival, file) = arrival();
        let mut source = LayerSource::arriving(arrival);
        let stopper = source.stopper();
        let reader = thread::spawn(move || source.read(&mut [0; 4]));
        thread::sleep(Duration::from_millis(5));
        stopper.stop();
        reader.join().expect("ends").expect_err("is stopped");
        let mut source = LayerSource::of_file(file);
        source.stopper().stop();
        source.read(&mut [0; 4]).expect_err("is stopped");
    }

    #[tokio::test]
    async fn beginnings_are_told() {
        let (arrival, _file) = arrival();
        let waiting = tokio::time::timeout(Duration::from_millis(5), arrival.begun());
        waiting.await.expect_err("nothing has come");
        arrival.advance(1);
        arrival.begun().await;
        let other = Arrival::new();
        other.end(Err(String::new()));
        other.begun().await;
    }
}
