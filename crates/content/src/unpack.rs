//! A layer on its way into a snapshotter: each once, however many pulls want it.

use std::sync::Arc;

use base::Digest;
use tokio_util::sync::CancellationToken;

use crate::{
    download::{self, Download, Failure},
    error::ContentError,
    flight::Interest,
    image::manifest::Descriptor,
    images::Inner,
    layer::{Board, LayerDescriptor, LayerSink, LayerSource, SinkError},
    registry::Session,
};

/// How often a layer is begun anew because its bytes were wrong.
pub(crate) const ATTEMPTS: usize = 4;

#[derive(Clone, Debug)]
pub(crate) struct Aboard {
    pub(crate) board: Arc<Board>,
    session: Option<Arc<Session>>,
}

pub(crate) type Unpack = Interest<(Arc<str>, Digest), Aboard, Result<(), Failure>>;

impl Unpack {
    /// Begun by a pull from elsewhere or by someone else: its failure need not be ours.
    pub(crate) fn is_foreign(&self, session: &Session) -> bool {
        !self.started && !self.aboard.session.as_ref().is_some_and(|other| other.is_like(session))
    }
}

impl LayerDescriptor {
    pub(crate) fn blob(&self) -> Descriptor {
        Descriptor::new(self.media_type.clone(), self.digest.clone(), self.size)
    }
}

/// Without a session only what is here is used.
pub(crate) fn join_unpack<S: LayerSink>(
    images: &Arc<Inner<S>>,
    session: Option<Arc<Session>>,
    layer: &LayerDescriptor,
) -> Unpack {
    let key = (Arc::clone(&layer.snapshotter), layer.chain_id.clone());
    let board = || Aboard { board: Arc::default(), session };
    let (inner, layer) = (Arc::clone(images), layer.clone());
    images.unpacks.join(key, board, move |aboard, cancel| async move {
        let work = Work { images: inner, layer, aboard, cancel };
        work.run().await
    })
}

struct Work<S> {
    images: Arc<Inner<S>>,
    layer: LayerDescriptor,
    aboard: Aboard,
    cancel: CancellationToken,
}

impl<S: LayerSink> Work<S> {
    async fn run(self) -> Result<(), Failure> {
        let mut attempt = 1;
        loop {
            if self.images.sink.has(&self.layer.snapshotter, &self.layer.chain_id) {
                return Ok(());
            }
            match self.once().await {
                Err(failure) if failure.again && attempt < ATTEMPTS => attempt += 1,
                done => return done,
            }
        }
    }

    async fn once(&self) -> Result<(), Failure> {
        let is_here = self.images.blobs.size(&self.layer.digest).map_err(ContentError::from)?;
        let is_here = is_here == Some(self.layer.size);
        // The download begins before there is a place to unpack: the file is the buffer.
        let download = match (&self.aboard.session, is_here) {
            (_, true) => None,
            (Some(session), false) => Some(self.images.downloads.join(session, &self.layer.blob())),
            (None, false) => {
                let (id, missing) = (self.layer.chain_id.clone(), self.layer.digest.clone());
                return Err(ContentError::Incomplete { id, missing }.into());
            }
        };
        let slots = Arc::clone(&self.images.unpack_slots);
        let slot = tokio::select! {
            biased;
            () = self.cancel.cancelled() => return Err(ContentError::Cancelled.into()),
            slot = slots.acquire_owned() => slot,
        };
        let _slot = slot.map_err(|_| ContentError::Cancelled)?;
        match download {
            None => self.apply_stored().await,
            Some(download) => self.apply_arriving(download).await,
        }
    }

    async fn apply_stored(&self) -> Result<(), Failure> {
        let digest = &self.layer.digest;
        let file = self.images.blobs.open_blob(digest).map_err(ContentError::from)?;
        let Err(source) = self.apply(LayerSource::of_file(file)).await else { return Ok(()) };
        let error = ContentError::Unpack { digest: digest.clone(), source };
        if self.cancel.is_cancelled() {
            return Err(ContentError::Cancelled.into());
        }
        // The layer may be bad, or our copy of it.
        let (blobs, copy) = (self.images.blobs.clone(), digest.clone());
        let is_good = self.images.blocking(move || {
            let is_good = blobs.verify(&copy)?;
            if !is_good {
                blobs.discard(&copy)?;
            }
            Ok(is_good)
        });
        let again = !is_good.await? && self.aboard.session.is_some();
        Err(Failure { error, again })
    }

    /// Unpacks while it arrives.
    async fn apply_arriving(&self, mut download: Download) -> Result<(), Failure> {
        let arrival = Arc::clone(&download.aboard.arrival);
        self.aboard.board.show(&arrival);
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => return Err(ContentError::Cancelled.into()),
            () = arrival.begun() => {}
        }
        let applied = self.apply(LayerSource::arriving(arrival)).await;
        if self.cancel.is_cancelled() && applied.is_err() {
            return Err(ContentError::Cancelled.into());
        }
        // A sink that failed on wrong bytes may have noticed before the hash did.
        if let Some(session) = &self.aboard.session {
            download::outcome(&mut download, session).await?;
        }
        let digest = self.layer.digest.clone();
        applied.map_err(|source| ContentError::Unpack { digest, source }.into())
    }

    /// Until the sink has ended, also when cancelled.
    async fn apply(&self, source: LayerSource) -> Result<(), SinkError> {
        let stopper = source.stopper();
        let applying = self.images.sink.apply(self.layer.clone(), source);
        let mut applying = std::pin::pin!(applying);
        tokio::select! {
            biased;
            applied = &mut applying => applied,
            () = self.cancel.cancelled() => {
                stopper.stop();
                applying.await
            }
        }
    }
}
