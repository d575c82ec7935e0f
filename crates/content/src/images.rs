//! The images of this machine: pull, find, list, remove, check, collect.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    sync::Arc,
};

use base::{Digest, ImageQuery, ImageRef};
use parking_lot::RwLock;
use store::{Store, Table};
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    blobs::{BlobError, BlobStore},
    download::{Downloads, Failure},
    error::ContentError,
    flight::Flights,
    image::{config::ImageConfig, manifest::CONFIG_LIMIT, platform::Platform},
    layer::{LayerDescriptor, LayerSink},
    lease::{Lease, Leases},
    pull::{self, PullOptions, Pulled},
    record::{self, Found, ImageRecord},
    registry::{Registry, RegistryConfig},
    unpack::{Aboard, Applying, LayerKey},
};

#[derive(Clone, Debug)]
pub struct ContentConfig {
    /// Everything this crate writes is below.
    pub root: PathBuf,
    pub registry: RegistryConfig,
    /// Which image of several to take, unless a pull says otherwise.
    pub platform: Platform,
    /// Where layers are unpacked, unless a pull says otherwise.
    pub snapshotter: Arc<str>,
    /// At once, over all pulls.
    pub parallel_downloads: usize,
    pub parallel_unpacks: usize,
    /// Keep compressed layers once they are unpacked: for export and for another
    /// snapshotter, at the cost of their space.
    pub keep_layers: bool,
    /// Never to be collected by the kubelet.
    pub pinned: BTreeSet<ImageRef>,
}

impl ContentConfig {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            registry: RegistryConfig::default(),
            platform: Platform::host(),
            snapshotter: "overlayfs".into(),
            parallel_downloads: 6,
            parallel_unpacks: 4,
            keep_layers: true,
            pinned: BTreeSet::new(),
        }
    }
}

/// An image as clients see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    pub record: Arc<ImageRecord>,
    pub pinned: bool,
}

/// An image that cannot be used until it is pulled again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    pub id: Digest,
    pub names: Vec<ImageRef>,
    pub missing: Vec<Digest>,
}

/// What the content takes on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    pub root: PathBuf,
    pub bytes: u64,
    pub inodes: u64,
}

/// Cheap to clone; all clones are one. Dropping the last one ends nothing by itself, see
/// [`Images::close`].
pub struct Images<S>(pub(crate) Arc<Inner<S>>);

pub(crate) struct Inner<S> {
    pub(crate) config: ContentConfig,
    pub(crate) blobs: BlobStore,
    pub(crate) sink: S,
    pub(crate) registry: Registry,
    pub(crate) downloads: Downloads,
    pub(crate) unpacks: Flights<LayerKey, Aboard, Result<(), Failure>>,
    pub(crate) unpack_slots: Arc<Semaphore>,
    pub(crate) applying: Applying,
    pub(crate) leases: Leases,
    pub(crate) table: Table<ImageRecord>,
    store: Store,
    /// Taken by whoever reads records to write them.
    writing: tokio::sync::Mutex<()>,
    pub(crate) broken: RwLock<BTreeMap<Digest, Vec<Digest>>>,
    pub(crate) tracker: TaskTracker,
    pub(crate) stop: CancellationToken,
}

impl<S> Clone for Images<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> fmt::Debug for Images<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Images({}, {} records)", self.0.config.root.display(), self.0.table.len())
    }
}

impl<S: LayerSink> Images<S> {
    /// Opens the content and checks every image. Those with something missing are told by
    /// [`Images::broken`] and not listed. Reads the disk; blocks for a few milliseconds.
    pub fn open(config: ContentConfig, store: &Store, sink: S) -> Result<Self, ContentError> {
        let table = store.table::<ImageRecord>()?;
        let blobs = BlobStore::open(&config.root)?;
        let records = table.list();
        let named =
            records.iter().flat_map(|image| image.blobs()).map(|(digest, _)| digest.clone());
        blobs.distrust(&named.collect())?;
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let inner = Inner {
            downloads: Downloads::new(
                blobs.clone(),
                config.parallel_downloads.max(1),
                tracker.clone(),
                stop.clone(),
            ),
            unpacks: Flights::new(tracker.clone(), stop.clone()),
            unpack_slots: Arc::new(Semaphore::new(config.parallel_unpacks.max(1))),
            registry: Registry::new(config.registry.clone()),
            config,
            blobs,
            sink,
            applying: Applying::default(),
            leases: Leases::default(),
            table,
            store: store.clone(),
            writing: tokio::sync::Mutex::default(),
            broken: RwLock::default(),
            tracker,
            stop,
        };
        for image in &records {
            let missing = inner.missing(image)?;
            if !missing.is_empty() {
                inner.broken.write().insert(image.id.clone(), missing);
            }
        }
        Ok(Self(Arc::new(inner)))
    }

    /// Ends all work and waits for its end. Pulls in flight fail as cancelled; what they
    /// have fetched stays for the next ones.
    ///
    /// Cancel safe: the work ends in any case.
    pub async fn close(&self) {
        self.0.stop.cancel();
        self.0.tracker.close();
        self.0.tracker.wait().await;
    }

    /// Fetches and unpacks an image and makes it known by `name`. Several pulls share what
    /// they have in common.
    ///
    /// Cancel safe: what nobody else waits for ends; what has arrived stays for the next
    /// pull. An image that is complete is made known even so.
    pub async fn pull(
        &self,
        name: &ImageRef,
        options: PullOptions,
    ) -> Result<Pulled, ContentError> {
        let deadline = options.deadline;
        let pull = Box::pin(pull::pull(&self.0, name, options));
        let pulled = async {
            match deadline {
                None => pull.await,
                Some(at) => tokio::time::timeout_at(at, pull)
                    .await
                    .unwrap_or_else(|_| Err(ContentError::Deadline(name.to_string()))),
            }
        };
        tokio::select! {
            biased;
            () = self.0.stop.cancelled() => Err(ContentError::Cancelled),
            pulled = pulled => pulled,
        }
    }

    /// Unpacks an image from what is here: into another snapshotter, or again.
    ///
    /// Cancel safe like [`Images::pull`].
    pub async fn unpack(&self, id: &Digest, snapshotter: &str) -> Result<(), ContentError> {
        let image = self.record(id)?;
        let lease = self.0.lease();
        pull::unpack_layers(&self.0, &image, &snapshotter.into(), &lease).await?;
        self.0.sink.sync().await.map_err(ContentError::Sync)
    }

    // === readers: from memory ===

    /// Every usable image, in the order of ids.
    pub fn list(&self) -> Vec<Image> {
        self.0.usable().into_iter().map(|record| self.image(record)).collect()
    }

    /// By id, beginning of an id, tag, digest or bare name.
    pub fn get(&self, query: &str) -> Result<Image, ContentError> {
        let known = self.0.usable();
        match record::find(&known, &query.parse::<ImageQuery>()?) {
            Found::One(at) => Ok(self.image(Arc::clone(&known[at]))),
            Found::None => Err(ContentError::NoSuchImage(query.to_owned())),
            Found::Several => Err(ContentError::Ambiguous(query.to_owned())),
        }
    }

    /// Images that are known but incomplete, and what they lack.
    pub fn broken(&self) -> Vec<Broken> {
        let broken = self.0.broken.read();
        let entry = |(id, missing): (&Digest, &Vec<Digest>)| {
            let names = self.0.table.get(id)?.names.keys().cloned().collect();
            Some(Broken { id: id.clone(), names, missing: missing.clone() })
        };
        broken.iter().filter_map(entry).collect()
    }

    /// The chain of a usable image, lowest layer first.
    pub fn layers(
        &self,
        id: &Digest,
        snapshotter: &str,
    ) -> Result<Vec<LayerDescriptor>, ContentError> {
        Ok(pull::descriptors(&*self.record(id)?, &snapshotter.into()))
    }

    fn image(&self, record: Arc<ImageRecord>) -> Image {
        let pinned = record.names.keys().any(|name| self.0.config.pinned.contains(name));
        Image { record, pinned }
    }

    fn record(&self, id: &Digest) -> Result<Arc<ImageRecord>, ContentError> {
        let known = self.0.table.get(id).filter(|_| !self.0.broken.read().contains_key(id));
        known.ok_or_else(|| ContentError::NoSuchImage(id.to_string()))
    }

    // === readers: from disk ===

    /// What a container of the image runs. If that turns out to be missing, the image is
    /// no longer usable.
    ///
    /// Cancel safe.
    pub async fn config(&self, id: &Digest) -> Result<ImageConfig, ContentError> {
        self.record(id)?;
        let (blobs, digest) = (self.0.blobs.clone(), id.clone());
        match self.0.blocking(move || blobs.read(&digest, CONFIG_LIMIT).map_err(Into::into)).await {
            Ok(bytes) => ImageConfig::parse(&bytes)
                .map_err(|source| ContentError::Config { digest: id.clone(), source }),
            Err(ContentError::Blob(BlobError::Missing(_) | BlobError::Digest { .. })) => {
                self.0.broken.write().insert(id.clone(), vec![id.clone()]);
                Err(ContentError::Incomplete { id: id.clone(), missing: id.clone() })
            }
            Err(other) => Err(other),
        }
    }

    /// Cancel safe.
    pub async fn usage(&self) -> Result<Usage, ContentError> {
        let (blobs, root) = (self.0.blobs.clone(), self.0.config.root.clone());
        self.0
            .blocking(move || {
                let whole = blobs.list()?.into_iter().map(|(_, size)| size);
                let parts = blobs.partials()?.into_iter().map(|partial| partial.bytes);
                let sizes: Vec<u64> = whole.chain(parts).collect();
                let (bytes, inodes) = (sizes.iter().sum(), sizes.len() as u64);
                Ok(Usage { root, bytes, inodes })
            })
            .await
    }

    // === names ===

    /// Gives an image one more name; another image that had it loses it.
    ///
    /// Cancel safe.
    pub async fn tag(&self, query: &str, name: &ImageRef) -> Result<(), ContentError> {
        let mut image = ImageRecord::clone(&self.get(query)?.record);
        let root = image.roots.keys().next().cloned();
        let root = root.ok_or_else(|| ContentError::NoSuchImage(query.to_owned()))?;
        let exact = record::names_of_pull(name, &root).remove(0);
        image.names = BTreeMap::from([(exact, root)]);
        self.0.adopt(image).await
    }
}

impl<S: LayerSink> Inner<S> {
    pub(crate) fn usable(&self) -> Vec<Arc<ImageRecord>> {
        let broken = self.broken.read();
        let mut known = self.table.list();
        known.retain(|image| !broken.contains_key(&image.id));
        known
    }

    /// What the image needs and has not: blobs, or layers that are neither kept nor
    /// unpacked.
    fn missing(&self, image: &ImageRecord) -> Result<Vec<Digest>, ContentError> {
        let mut missing = BTreeSet::new();
        for (digest, size) in image.blobs() {
            if self.blobs.size(digest)? != Some(size) {
                missing.insert(digest.clone());
            }
        }
        if image.roots.values().all(|root| !root.keeps_layers) {
            let chain = image.chain_ids().into_iter();
            missing.extend(chain.filter(|id| !self.sink.has(&self.config.snapshotter, id)));
        }
        Ok(missing.into_iter().collect())
    }

    /// Whether all of `image` is on record, and usable.
    pub(crate) fn knows(&self, image: &ImageRecord) -> bool {
        let Some(known) = self.table.get(&image.id) else { return false };
        let named = image.names.iter().all(|(name, root)| known.names.get(name) == Some(root));
        let formed = image.roots.iter().all(|(id, root)| known.roots.get(id) == Some(root));
        named && formed && !self.broken.read().contains_key(&image.id)
    }

    /// Writes an image and those it takes names from, all or none, durably. What it names
    /// must be synced and leased.
    pub(crate) async fn adopt(&self, image: ImageRecord) -> Result<(), ContentError> {
        let _writing = self.writing.lock().await;
        let id = image.id.clone();
        let mut known = self.table.list();
        if self.broken.read().contains_key(&id) {
            // Only what is whole of an incomplete image is joined with its repair.
            let is_here = |digest: &Digest, size| matches!(self.blobs.size(digest), Ok(Some(found)) if found == size);
            for old in known.iter_mut().filter(|old| old.id == id) {
                *old =
                    Arc::new(old.only_roots(|root| root.blobs().all(|(d, size)| is_here(d, size))));
            }
        }
        let mut batch = self.store.batch();
        for changed in record::adopt(known.iter().map(|image| &**image), image) {
            batch.put(&self.table, changed);
        }
        batch.durable();
        batch.commit().await?;
        self.broken.write().remove(&id);
        Ok(())
    }

    /// Takes the record of `query` away, or what `rest` leaves of it.
    pub(crate) async fn forget(
        &self,
        query: &ImageQuery,
        rest: impl FnOnce(&ImageRecord) -> Option<ImageRecord>,
    ) -> Result<Found<Arc<ImageRecord>>, ContentError> {
        let _writing = self.writing.lock().await;
        // Broken ones, too: to remove them is one way of repair.
        let known = self.table.list();
        let image = match record::find(&known, query) {
            Found::One(at) => Arc::clone(&known[at]),
            Found::None => return Ok(Found::None),
            Found::Several => return Ok(Found::Several),
        };
        let mut batch = self.store.batch();
        match rest(&image) {
            Some(rest) => batch.put(&self.table, rest),
            None => batch.delete(&self.table, &image.id),
        };
        // Else a power loss could bring back a record whose blobs are gone.
        batch.durable();
        batch.commit().await?;
        if self.table.get(&image.id).is_none() {
            self.broken.write().remove(&image.id);
        }
        Ok(Found::One(image))
    }

    pub(crate) fn lease(&self) -> Lease {
        self.leases.open()
    }

    /// Runs what blocks where it may.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ContentError> + Send + 'static,
    ) -> Result<T, ContentError> {
        self.tracker.spawn_blocking(work).await.unwrap_or(Err(ContentError::Lost))
    }
}
