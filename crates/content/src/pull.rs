//! One pull: from a name to an image record.
//!
//! ```text
//!  name ─► root (index or manifest) ─► manifest ─► configuration ─► chain of layers
//!                                                                        │
//!      per layer, in parallel: here and unpacked? else fetch and unpack ◄┘
//!                                                                        │
//!                            sync ─► record, durable ─► lease ends ◄─────┘
//! ```
//!
//! **Invariant:** what the pull found or fetched is leased before it is looked for, until
//! the record that names it is visible.

use std::{collections::BTreeMap, sync::Arc};

use base::{Digest, ImageRef, Kind};
use bytes::Bytes;
use futures_util::future::try_join_all;
use tokio::time::Instant;

use crate::{
    blobs::BlobError,
    digest::chain_ids,
    error::ContentError,
    image::{
        config::{ConfigError, ImageConfig},
        manifest::{CONFIG_LIMIT, Descriptor, Document, MANIFEST_LIMIT, Manifest},
        platform::Platform,
    },
    images::Inner,
    layer::{Board, LayerDescriptor, LayerSink, SinkError},
    lease::Lease,
    progress::Progress,
    record::{ImageRecord, Root, StoredBlob, names_of_pull},
    registry::{Session, credentials::AuthConfig},
    unpack::{ATTEMPTS, Unpack, join_unpack},
};

/// An index may lead to another one; a chain of them is a trap.
const INDEX_DEPTH: usize = 3;

#[derive(Clone, Debug, Default)]
pub struct PullOptions {
    pub auth: AuthConfig,
    /// Else the machine's.
    pub platform: Option<Platform>,
    /// Else the configured one.
    pub snapshotter: Option<Arc<str>>,
    /// After which the caller does not want the answer any more.
    pub deadline: Option<Instant>,
    pub progress: Option<Arc<Progress>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// Digest of the configuration: the id of the image everywhere.
    pub id: Digest,
    /// Digest of what the name stands for: an index or a manifest.
    pub root: Digest,
}

pub(crate) async fn pull<S: LayerSink>(
    images: &Arc<Inner<S>>,
    name: &ImageRef,
    options: PullOptions,
) -> Result<Pulled, ContentError> {
    let PullOptions { auth, platform, snapshotter, deadline: _, progress } = options;
    let session = session(images, name, auth).await?;
    let pull = Pull {
        images,
        name,
        session,
        platform: platform.unwrap_or_else(|| images.config.platform.clone()),
        snapshotter: snapshotter.unwrap_or_else(|| Arc::clone(&images.config.snapshotter)),
        progress: progress.unwrap_or_default(),
        lease: images.lease(),
    };
    pull.run().await
}

async fn session<S: LayerSink>(
    images: &Arc<Inner<S>>,
    name: &ImageRef,
    auth: AuthConfig,
) -> Result<Arc<Session>, ContentError> {
    let (registry, repository) = (images.registry.clone(), name.repository().clone());
    let failed = {
        let registry = repository.registry().to_owned();
        move |source| ContentError::Setup { registry, source }
    };
    let open = move || {
        let credentials = auth.check(repository.registry()).map_err(Into::into);
        credentials.and_then(|credentials| registry.session(&repository, &credentials))
    };
    images.blocking(move || open().map(Arc::new).map_err(failed)).await
}

struct Pull<'a, S> {
    images: &'a Arc<Inner<S>>,
    name: &'a ImageRef,
    session: Arc<Session>,
    platform: Platform,
    snapshotter: Arc<str>,
    progress: Arc<Progress>,
    lease: Lease,
}

/// A manifest or index that is in the store.
struct Stored {
    bytes: Bytes,
    digest: Digest,
    media_type: Option<String>,
}

impl<S: LayerSink> Pull<'_, S> {
    async fn run(self) -> Result<Pulled, ContentError> {
        let root = self.root().await?;
        let root_digest = root.digest.clone();
        let (documents, media_type, manifest) = self.manifest(root).await?;
        let config = self.config(&manifest).await?;
        let id = manifest.config.digest.clone();
        let root = Root {
            keeps_layers: self.images.config.keep_layers,
            ..Root::new(documents, media_type, &manifest)
        };
        let mut record = ImageRecord::new(id.clone(), manifest.config.size, &config);
        record.roots = BTreeMap::from([(root_digest.clone(), root)]);
        let names = names_of_pull(self.name, &root_digest).into_iter();
        record.names = names.map(|name| (name, root_digest.clone())).collect();
        let changed = self.layers(&descriptors(&record, &self.snapshotter)).await?;
        if changed || !self.images.knows(&record) {
            commit(self.images, record, self.lease).await?;
        }
        Ok(Pulled { id, root: root_digest })
    }

    // === documents ===

    /// What the name stands for. The registry is asked in any case: it says whether these
    /// credentials may have the image, even if all of it is here.
    async fn root(&self) -> Result<Stored, ContentError> {
        let wanted = self.name.digest();
        let reference = match (wanted, self.name.tag()) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(tag)) => tag.to_string(),
            (None, None) => "latest".to_owned(),
        };
        if let Some((digest, media_type)) = self.known_root() {
            self.lease.add([&digest]);
            // A question costs less than the document, and registries do not count it.
            let says = self.session.head(&reference, wanted).await?;
            if says.as_ref() == Some(&digest)
                && let Some(bytes) = self.read(&digest, MANIFEST_LIMIT).await?
            {
                return Ok(Stored { bytes, digest, media_type });
            }
        }
        let fetched = self.session.manifest(&reference, wanted).await?;
        self.store(&fetched.digest, &fetched.bytes).await?;
        let media_type = fetched.media_type;
        Ok(Stored { bytes: fetched.bytes, digest: fetched.digest, media_type })
    }

    /// What the name stood for last time.
    fn known_root(&self) -> Option<(Digest, Option<String>)> {
        let known = self.images.table.list();
        let digest = match self.name.digest() {
            Some(digest) => digest.clone(),
            None => known.iter().find_map(|image| image.names.get(self.name))?.clone(),
        };
        let root = known.iter().find_map(|image| image.roots.get(&digest))?;
        Some((digest, Some(root.media_type.clone())))
    }

    /// From the root to the manifest of our platform. Returns all documents on the way and
    /// the type of the first.
    async fn manifest(
        &self,
        root: Stored,
    ) -> Result<(Vec<StoredBlob>, String, Manifest), ContentError> {
        let mut documents = Vec::new();
        let mut root_type = None;
        let mut current = root;
        for _ in 0..=INDEX_DEPTH {
            let Stored { bytes, digest, media_type } = current;
            documents.push(StoredBlob { digest: digest.clone(), size: bytes.len() as u64 });
            let parsed = Document::parse(&bytes, media_type.as_deref())
                .map_err(|source| ContentError::Manifest { digest: digest.clone(), source })?;
            let index = match parsed {
                Document::Index(index) => index,
                Document::Manifest(manifest) => {
                    let root_type = root_type.unwrap_or_else(|| manifest.media_type.clone());
                    return Ok((documents, root_type, manifest));
                }
            };
            root_type.get_or_insert_with(|| index.media_type.clone());
            let chosen = index.choose(&self.platform).ok_or_else(|| ContentError::Platform {
                wanted: Box::new(self.platform.clone()),
                offered: index.platforms().cloned().collect(),
            })?;
            current = self.document(chosen).await?;
        }
        let digest = documents.swap_remove(0).digest;
        Err(ContentError::Nested { digest })
    }

    async fn document(&self, wanted: &Descriptor) -> Result<Stored, ContentError> {
        let Descriptor { digest, media_type, .. } = wanted;
        self.lease.add([digest]);
        let bytes = match self.read(digest, MANIFEST_LIMIT).await? {
            Some(bytes) => bytes,
            None => {
                let fetched = self.session.manifest(digest.as_str(), Some(digest)).await?;
                self.store(digest, &fetched.bytes).await?;
                fetched.bytes
            }
        };
        Ok(Stored { bytes, digest: digest.clone(), media_type: Some(media_type.clone()) })
    }

    /// `None` if it is not here, or no longer what it was.
    async fn read(&self, digest: &Digest, limit: u64) -> Result<Option<Bytes>, ContentError> {
        let (blobs, digest) = (self.images.blobs.clone(), digest.clone());
        let read = move || match blobs.read(&digest, limit) {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(_) => blobs.discard(&digest).map(|_| None).map_err(Into::into),
        };
        self.images.blocking(read).await
    }

    async fn store(&self, digest: &Digest, bytes: &Bytes) -> Result<(), ContentError> {
        self.lease.add([digest]);
        let (blobs, digest, bytes) = (self.images.blobs.clone(), digest.clone(), bytes.clone());
        self.images.blocking(move || blobs.put(&digest, &bytes).map_err(Into::into)).await
    }

    async fn config(&self, manifest: &Manifest) -> Result<ImageConfig, ContentError> {
        let wanted = &manifest.config;
        self.lease.add([&wanted.digest]);
        let bytes = match self.read(&wanted.digest, CONFIG_LIMIT).await? {
            Some(bytes) => bytes,
            None => {
                self.images.downloads.get(&self.session, wanted).await?;
                let bytes = self.read(&wanted.digest, CONFIG_LIMIT).await?;
                bytes.ok_or_else(|| BlobError::Missing(wanted.digest.clone()))?
            }
        };
        let bad = |source| ContentError::Config { digest: wanted.digest.clone(), source };
        let config = ImageConfig::parse(&bytes).map_err(bad)?;
        if config.diff_ids.len() != manifest.layers.len() {
            let (diff_ids, layers) = (config.diff_ids.len(), manifest.layers.len());
            return Err(bad(ConfigError::LayerCount { diff_ids, layers }));
        }
        if !self.platform.runs(&config.platform) {
            let (wanted, offered) = (Box::new(self.platform.clone()), vec![config.platform]);
            return Err(ContentError::Platform { wanted, offered });
        }
        Ok(config)
    }

    // === layers ===

    /// Returns when all are here and unpacked; true if that was not so before.
    async fn layers(&self, layers: &[LayerDescriptor]) -> Result<bool, ContentError> {
        self.lease.add(layers.iter().flat_map(|layer| [&layer.digest, &layer.chain_id]));
        self.progress.begin(layers.iter().map(|layer| (&layer.digest, layer.size)));
        // Lowest first: places in the queues are taken in this order.
        let places: Vec<Place> = layers.iter().map(|layer| self.take_place(layer)).collect();
        let changed = !places.iter().all(|place| matches!(place, Place::Done));
        let waits = layers.iter().zip(places).enumerate();
        try_join_all(waits.map(|(at, (layer, place))| self.layer(at, layer, place))).await?;
        Ok(changed)
    }

    fn take_place(&self, layer: &LayerDescriptor) -> Place {
        let kept = !self.images.config.keep_layers || self.is_here(layer);
        match self.images.sink.has(&layer.snapshotter, &layer.chain_id) {
            true if kept => Place::Done,
            true => Place::Fetch,
            false => {
                let session = Some(Arc::clone(&self.session));
                Place::Unpack(join_unpack(self.images, session, layer))
            }
        }
    }

    fn is_here(&self, layer: &LayerDescriptor) -> bool {
        matches!(self.images.blobs.size(&layer.digest), Ok(Some(size)) if size == layer.size)
    }

    async fn layer(
        &self,
        at: usize,
        layer: &LayerDescriptor,
        mut place: Place,
    ) -> Result<(), ContentError> {
        for attempt in 1..=ATTEMPTS {
            match place {
                Place::Done => {
                    self.progress.done(at);
                    return Ok(());
                }
                Place::Fetch => {
                    let wanted = layer.blob();
                    let board = Arc::new(Board::default());
                    let download = self.images.downloads.join(&self.session, &wanted);
                    board.show(&download.aboard.arrival);
                    self.progress.watch(at, &board);
                    self.images.downloads.get(&self.session, &wanted).await?;
                }
                Place::Unpack(mut unpack) => {
                    self.progress.watch(at, &unpack.aboard.board);
                    if self.is_here(layer) {
                        self.progress.unpacking(at);
                    }
                    let foreign = unpack.is_foreign(&self.session);
                    match unpack.outcome().await.unwrap_or(Err(ContentError::Lost.into())) {
                        Ok(()) => {}
                        Err(failure) if foreign && attempt < ATTEMPTS => {
                            tracing::debug!(error = %failure.error, "another pull's layer failed");
                        }
                        Err(failure) => return Err(failure.error),
                    }
                }
            }
            // Looks again: whatever was done, it counts if it is there.
            place = self.take_place(layer);
        }
        let source = SinkError::new(Kind::Internal, "gone as soon as it was there");
        Err(ContentError::Unpack { digest: layer.digest.clone(), source })
    }
}

/// Makes an image known, once all it names is there. In a task of its own: begun, it ends,
/// and the lease lasts as long.
pub(crate) async fn commit<S: LayerSink>(
    images: &Arc<Inner<S>>,
    record: ImageRecord,
    lease: Lease,
) -> Result<(), ContentError> {
    let inner = Arc::clone(images);
    let commit = async move {
        let blobs = inner.blobs.clone();
        inner.blocking(move || blobs.sync().map_err(Into::into)).await?;
        inner.sink.sync().await.map_err(ContentError::Sync)?;
        let roots = record.roots.values().filter(|root| !root.keeps_layers);
        let layers = roots.flat_map(|root| &root.layers).map(|layer| layer.digest.clone());
        let unneeded = layers.collect();
        inner.adopt(record).await?;
        drop(lease);
        inner.discard_unneeded(unneeded).await
    };
    images.tracker.spawn(commit).await.unwrap_or(Err(ContentError::Lost))
}

/// Where a layer's wait begins.
enum Place {
    Done,
    /// Unpacked, but its compressed form shall be kept too.
    Fetch,
    Unpack(Unpack),
}

/// Unpacks an image from what is here.
pub(crate) async fn unpack_layers<S: LayerSink>(
    images: &Arc<Inner<S>>,
    image: &ImageRecord,
    snapshotter: &Arc<str>,
    lease: &Lease,
) -> Result<(), ContentError> {
    let layers = descriptors(image, snapshotter);
    lease.add(layers.iter().flat_map(|layer| [&layer.digest, &layer.chain_id]));
    let missing = layers.iter().filter(|layer| !images.sink.has(snapshotter, &layer.chain_id));
    let places: Vec<Unpack> = missing.map(|layer| join_unpack(images, None, layer)).collect();
    try_join_all(places.into_iter().map(|mut place| async move {
        let outcome = place.outcome().await.unwrap_or(Err(ContentError::Lost.into()));
        outcome.map_err(|failure| failure.error)
    }))
    .await?;
    Ok(())
}

/// The chain of an image, lowest first, by the first form it is known in.
pub(crate) fn descriptors(image: &ImageRecord, snapshotter: &Arc<str>) -> Vec<LayerDescriptor> {
    let chain = chain_ids(&image.diff_ids);
    let stored = image.roots.values().next().map_or(&[][..], |root| &root.layers);
    let describe = |(at, layer): (usize, &crate::record::StoredLayer)| LayerDescriptor {
        snapshotter: Arc::clone(snapshotter),
        digest: layer.digest.clone(),
        media_type: layer.media_type.clone(),
        size: layer.size,
        diff_id: image.diff_ids[at].clone(),
        chain_id: chain[at].clone(),
        parent_chain: at.checked_sub(1).map(|below| chain[below].clone()),
    };
    stored.iter().take(chain.len()).enumerate().map(describe).collect()
}
