//! A layer on its way into a snapshotter: each once, however many pulls want it.

use std::{collections::HashSet, future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use base::Digest;
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::timeout,
};
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

/// How long a layer waits for one below it that nobody unpacks.
const LOST: Duration = Duration::from_secs(5);

/// Snapshotter and chain id.
pub(crate) type LayerKey = (Arc<str>, Digest);

#[derive(Clone, Debug)]
pub(crate) struct Aboard {
    pub(crate) board: Arc<Board>,
    session: Option<Arc<Session>>,
}

pub(crate) type Unpack = Interest<LayerKey, Aboard, Result<(), Failure>>;

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
        let slot = self.cancel.run_until_cancelled(self.turn(download.as_ref())).await;
        let _slot = slot.ok_or(ContentError::Cancelled)??;
        let done = match download {
            None => self.apply_stored().await,
            Some(download) => self.apply_arriving(download).await,
        };
        done.map_err(|failure| {
            // A sink cannot finish a layer whose parent failed; if that one is tried again,
            // so is this.
            let orphan = self.parent().is_some_and(|parent| !self.images.has_layer(&parent));
            Failure { again: failure.again || orphan, ..failure }
        })
    }

    /// Waits until the sink may be called, and for a place. In this order: whoever has a
    /// place must not wait for one that has none.
    async fn turn(&self, download: Option<&Download>) -> Result<OwnedSemaphorePermit, Failure> {
        let parent = self.parent();
        if let Some(download) = download {
            self.aboard.board.show(&download.aboard.arrival);
        }
        loop {
            if let Some(parent) = &parent {
                self.images.below_begun(parent).await;
            }
            if let Some(download) = download {
                download.aboard.arrival.begun().await;
            }
            let slots = Arc::clone(&self.images.unpack_slots);
            let slot = slots.acquire_owned().await.map_err(|_| ContentError::Cancelled)?;
            // The one below may have failed while we waited for the place.
            if parent.as_ref().is_none_or(|parent| self.images.may_build_on(parent)) {
                return Ok(slot);
            }
        }
    }

    fn parent(&self) -> Option<LayerKey> {
        let chain = self.layer.parent_chain.clone()?;
        Some((Arc::clone(&self.layer.snapshotter), chain))
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
        let mut applying = pin!(self.images.sink.apply(self.layer.clone(), source));
        let first = poll_fn(|cx| Poll::Ready(applying.as_mut().poll(cx))).await;
        // That was the call; only now may the layers above rely on it.
        let key = (Arc::clone(&self.layer.snapshotter), self.layer.chain_id.clone());
        let _busy = self.images.applying.begin(key);
        if let Poll::Ready(applied) = first {
            return applied;
        }
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

/// The layers a sink is busy with.
#[derive(Debug, Default)]
pub(crate) struct Applying {
    layers: Mutex<HashSet<LayerKey>>,
    changed: watch::Sender<()>,
}

impl Applying {
    fn begin(&self, key: LayerKey) -> Busy<'_> {
        self.layers.lock().insert(key.clone());
        self.changed.send_replace(());
        Busy { applying: self, key }
    }
}

struct Busy<'a> {
    applying: &'a Applying,
    key: LayerKey,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.applying.layers.lock().remove(&self.key);
        self.applying.changed.send_replace(());
    }
}

impl<S: LayerSink> Inner<S> {
    fn has_layer(&self, (snapshotter, chain): &LayerKey) -> bool {
        self.sink.has(snapshotter, chain)
    }

    fn may_build_on(&self, parent: &LayerKey) -> bool {
        let busy = self.applying.layers.lock().contains(parent);
        busy || self.has_layer(parent) || !self.unpacks.is_flying(parent)
    }

    /// Returns when the sink was called for the layer below, or has it. The same pulls that
    /// want a layer want the one below it; so if that one fails, this wait is cancelled.
    async fn below_begun(&self, parent: &LayerKey) {
        let mut changes = self.applying.changed.subscribe();
        loop {
            if self.applying.layers.lock().contains(parent) || self.has_layer(parent) {
                return;
            }
            // Nobody at work on it, for so long: it was there and has vanished. The sink
            // will say so.
            let waited = timeout(LOST, changes.changed()).await;
            if waited.is_err() && !self.unpacks.is_flying(parent) {
                return;
            }
        }
    }
}
