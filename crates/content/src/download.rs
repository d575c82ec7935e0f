//! Blobs on their way from a registry into the store: each once, however many want it.

use std::sync::Arc;

use base::Digest;
use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    blobs::{BlobError, BlobStore},
    error::ContentError,
    flight::{Flights, Interest},
    image::manifest::Descriptor,
    layer::Arrival,
    registry::{Contribution, FetchError, Session},
};

/// Pieces between the network and the disk, each of up to 400 KiB; when full, the network
/// waits.
const PIECES: usize = 4;

/// Up to this size a blob does not queue behind layers: configurations, for which a whole
/// pull waits.
const SMALL: u64 = 256 << 10;
const SMALL_SLOTS: usize = 8;

/// How often a blob is fetched from its beginning because its bytes were wrong.
const ATTEMPTS: usize = 4;

#[derive(Debug)]
pub(crate) struct Downloads {
    blobs: BlobStore,
    flights: Flights<Digest, Aboard, Landed>,
    /// Parallel downloads of the whole process, first come, first served.
    slots: Arc<Semaphore>,
    small_slots: Arc<Semaphore>,
    tracker: TaskTracker,
}

/// What everybody who waits for a blob can see.
#[derive(Clone, Debug)]
pub(crate) struct Aboard {
    pub(crate) arrival: Arc<Arrival>,
    session: Arc<Session>,
}

type Landed = Result<(), Failure>;

pub(crate) type Download = Interest<Digest, Aboard, Landed>;

#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) error: ContentError,
    /// Another attempt would go differently: other servers, or all bytes anew.
    pub(crate) again: bool,
}

impl From<ContentError> for Failure {
    fn from(error: ContentError) -> Self {
        Self { error, again: false }
    }
}

impl Downloads {
    pub(crate) fn new(
        blobs: BlobStore,
        parallel: usize,
        tracker: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let flights = Flights::new(tracker.clone(), stop);
        let [slots, small_slots] =
            [parallel, SMALL_SLOTS].map(|count| Arc::new(Semaphore::new(count)));
        Self { blobs, flights, slots, small_slots, tracker }
    }

    pub(crate) fn is_flying(&self, digest: &Digest) -> bool {
        self.flights.is_flying(digest)
    }

    /// Takes part in the download of `blob`, or starts it.
    pub(crate) fn join(&self, session: &Arc<Session>, blob: &Descriptor) -> Download {
        let board = || Aboard { arrival: Arc::new(Arrival::new()), session: Arc::clone(session) };
        let slots = if blob.size <= SMALL { &self.small_slots } else { &self.slots };
        let (blobs, slots, tracker) = (self.blobs.clone(), Arc::clone(slots), self.tracker.clone());
        let wanted = blob.clone();
        self.flights.join(blob.digest.clone(), board, move |aboard: Aboard, cancel| async move {
            let arrival = Arc::clone(&aboard.arrival);
            let flight = Flight { blobs, blob: wanted, aboard, tracker };
            let landed = flight.run(slots, cancel).await;
            let why = |failure: &Failure| base::Chain(&failure.error).to_string();
            arrival.end(landed.as_ref().copied().map_err(why));
            landed
        })
    }

    /// Returns when the blob is in the store.
    ///
    /// Cancel safe: the download goes on if others want it.
    pub(crate) async fn get(
        &self,
        session: &Arc<Session>,
        blob: &Descriptor,
    ) -> Result<(), ContentError> {
        let mut attempt = 1;
        loop {
            if self.blobs.size(&blob.digest)? == Some(blob.size) {
                return Ok(());
            }
            let mut download = self.join(session, blob);
            match outcome(&mut download, session).await {
                Ok(()) => return Ok(()),
                Err(failure) if failure.again && attempt < ATTEMPTS => attempt += 1,
                Err(failure) => return Err(failure.error),
            }
        }
    }
}

/// How a download ended, for someone who would have used `session`: the failure of one
/// that used another registry or other credentials says nothing about ours.
pub(crate) async fn outcome(download: &mut Download, session: &Session) -> Landed {
    let foreign = !download.started && !download.aboard.session.is_like(session);
    match download.outcome().await {
        None => Err(ContentError::Lost.into()),
        Some(Err(failure)) => Err(Failure { again: failure.again || foreign, ..failure }),
        Some(Ok(())) => Ok(()),
    }
}

/// One download.
struct Flight {
    blobs: BlobStore,
    blob: Descriptor,
    aboard: Aboard,
    tracker: TaskTracker,
}

/// How far the writer came.
enum Written {
    Whole,
    /// The bytes stopped coming.
    Part,
}

impl Flight {
    async fn run(self, slots: Arc<Semaphore>, cancel: CancellationToken) -> Landed {
        let slot = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(ContentError::Cancelled.into()),
            slot = slots.acquire_owned() => slot,
        };
        let _slot = slot.map_err(|_| ContentError::Cancelled)?;
        if self.prepare()? {
            return Ok(());
        }
        let (pieces, arriving) = mpsc::channel(PIECES);
        let (present, found) = oneshot::channel();
        let writer = {
            let (blobs, blob) = (self.blobs.clone(), self.blob.clone());
            let (arrival, cancel) = (Arc::clone(&self.aboard.arrival), cancel.clone());
            let write = move || write(&blobs, &blob, &arrival, arriving, present, &cancel);
            self.tracker.spawn_blocking(write)
        };
        let mut contributions = Vec::new();
        let mut resumed = 0;
        let fetched = tokio::select! {
            biased;
            () = cancel.cancelled() => Err(ContentError::Cancelled),
            fetched = self.fetch(pieces, found, &mut resumed, &mut contributions) => fetched,
        };
        // Its sender is gone by now, so it ends with what it has.
        match writer.await {
            Err(_) => Err(ContentError::Lost.into()),
            Ok(Ok(Written::Whole)) => Ok(()),
            // The writer waits for more until the fetch has ended, so that one failed.
            Ok(Ok(Written::Part)) => Err(fetched.err().unwrap_or(ContentError::Lost).into()),
            Ok(Err(BlobError::Digest { want, got })) => {
                let learnt = self.aboard.session.wrong_bytes(&want, &contributions);
                let error = ContentError::WrongBytes { digest: want, got };
                // Of bytes from an earlier run nobody knows which part was wrong.
                Err(Failure { error, again: learnt || resumed > 0 })
            }
            Ok(Err(error)) => Err(ContentError::from(error).into()),
        }
    }

    /// True if it is here already. A file of another size is not it, whatever its name.
    fn prepare(&self) -> Result<bool, ContentError> {
        match self.blobs.size(&self.blob.digest)? {
            Some(size) if size == self.blob.size => Ok(true),
            Some(_) => self.blobs.discard(&self.blob.digest).map(|_| false).map_err(Into::into),
            None => Ok(false),
        }
    }

    async fn fetch(
        &self,
        pieces: mpsc::Sender<Bytes>,
        found: oneshot::Receiver<u64>,
        resumed: &mut u64,
        contributions: &mut Vec<Contribution>,
    ) -> Result<(), ContentError> {
        // Without a word the writer could not even open its file, and tells that itself.
        let Ok(from) = found.await else { return Err(ContentError::Lost) };
        *resumed = from;
        if from == self.blob.size {
            return Ok(());
        }
        let session = &self.aboard.session;
        match session.blob(&self.blob, from, &pieces, contributions).await {
            Ok(()) => Ok(()),
            Err(FetchError::Registry(error)) => Err(error.into()),
            Err(FetchError::ReceiverGone) => Err(ContentError::Lost),
        }
    }
}

/// Puts what arrives into the file, hashes it, tells those who read along. Blocks.
fn write(
    blobs: &BlobStore,
    blob: &Descriptor,
    arrival: &Arrival,
    mut pieces: mpsc::Receiver<Bytes>,
    present: oneshot::Sender<u64>,
    cancel: &CancellationToken,
) -> Result<Written, BlobError> {
    let mut ingest = blobs.ingest(&blob.digest, blob.size)?;
    arrival.open(ingest.reader()?);
    let mut here = ingest.present();
    // A fetch that was cancelled meanwhile does not want to know.
    let _ = present.send(here);
    ingest.catch_up(|at| {
        arrival.advance(at);
        !cancel.is_cancelled()
    })?;
    if cancel.is_cancelled() {
        return Ok(Written::Part);
    }
    while let Some(piece) = pieces.blocking_recv() {
        here = ingest.write(&piece)?;
        arrival.advance(here);
    }
    if here < blob.size {
        return Ok(Written::Part);
    }
    ingest.commit()?;
    Ok(Written::Whole)
}
