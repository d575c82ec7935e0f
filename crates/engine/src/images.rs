//! Images and the root file systems made of them: content over snapshots.
//!
//! ```text
//!  registry ──> content ──(Unpacker: each layer as it arrives)──> snapshots
//!                  └── image records          container root file systems ──┘
//! ```

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    fs::File,
    io::{Read, Write},
    path::{Path, PathBuf},
};

use base::{Digest, Id, Kind};
use content::{
    ContentConfig, ContentError, ImportOptions, LayerDescriptor, LayerSink, LayerSource,
    PullOptions, Pulled, SinkError,
};
use oci::{IdMapping, IdMappings, ImageFacts};
use parking_lot::Mutex;
use snapshot::{
    ApplyOptions, FsInfo, Key, PrepareOptions, SnapshotError, Snapshots, SnapshotsConfig,
    Snapshotter, apply_layer,
};
use store::Store;
use sys::idmap::{IdMaps, IdRange};
use tokio::sync::{RwLock, watch};

use crate::{
    error::{EngineError, Result},
    record::PinnedImage,
    storage::{Boxed, Diff, GoOn, LayerUsage, NewRootfs, NewView, Storage},
};

/// The snapshotter of handlers that name none.
const DEFAULT: Snapshotter = Snapshotter::Overlayfs;

/// All images of this node, and what containers stand on.
#[derive(Debug)]
pub struct Images {
    content: content::Images<Unpacker>,
    snapshots: Shelves,
    /// Held by pulls: what they found unpacked must not be collected before it is named.
    pulling: RwLock<()>,
}

/// What was, or would be, deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrunedImages {
    pub blobs: u64,
    pub bytes: u64,
}

/// One shelf per snapshotter.
type Shelves = BTreeMap<Snapshotter, Snapshots>;

/// Unpacks layers as they arrive. Layers of one image are unpacked at the same time; each
/// becomes visible after the one below it.
pub struct Unpacker {
    snapshots: Shelves,
    /// How layers being unpacked end, for those above them.
    unpacking: Mutex<HashMap<(Snapshotter, Digest), Ending>>,
}

/// Whether the unpacking of a layer went well; `None` while it goes on.
type Ending = watch::Receiver<Option<bool>>;

impl Images {
    /// `root` is where everything of images lies.
    pub async fn open(root: &Path, config: ContentConfig, store: &Store) -> Result<Self> {
        let mut snapshots = Shelves::new();
        for kind in Snapshotter::ALL {
            let config = SnapshotsConfig::new(root.join("snapshots"), kind);
            snapshots.insert(kind, Snapshots::open(config, store).await?);
        }
        let unpacker =
            Unpacker { snapshots: snapshots.clone(), unpacking: Mutex::new(HashMap::new()) };
        let content = content::Images::open(config, store, unpacker)?;
        Ok(Self { content, snapshots, pulling: RwLock::new(()) })
    }

    pub async fn close(&self) {
        self.content.close().await;
        for shelf in self.snapshots.values() {
            shelf.close().await;
        }
    }

    pub fn list(&self) -> Vec<content::Image> {
        self.content.list()
    }

    /// By id, beginning of an id, tag, digest or bare name; `None` if there is none.
    pub fn find(&self, query: &str) -> Result<Option<content::Image>> {
        match self.content.get(query) {
            Ok(image) => Ok(Some(image)),
            Err(ContentError::NoSuchImage(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Cancel safe: what nobody else waits for ends, and what has arrived stays.
    pub async fn pull(&self, name: &str, options: PullOptions) -> Result<Pulled> {
        let name = name.parse().map_err(|e| EngineError::invalid("image", e))?;
        let _pulling = self.pulling.read().await;
        Ok(self.content.pull(&name, options).await?)
    }

    /// Whichever of its names is given, all go. Of what is not there, nothing.
    pub async fn remove(&self, query: &str) -> Result<()> {
        self.content.remove(query).await?;
        self.collect().await
    }

    /// Takes in the images of a tar; one without a name gets `name`, unless that is empty.
    /// Cancel safe: images become known one by one, each whole.
    pub async fn load(
        &self,
        archive: impl Read + Send + 'static,
        name: &str,
    ) -> Result<Vec<content::Imported>> {
        let named = (!name.is_empty()).then(|| name.parse()).transpose();
        let name = named.map_err(|e| EngineError::invalid("name", e))?;
        let _pulling = self.pulling.read().await;
        let options = ImportOptions { name, ..ImportOptions::default() };
        Ok(self.content.import(archive, options).await?)
    }

    /// Writes the images to a tar that [`Self::load`] and others read.
    /// Cancel safe; what was written stays written.
    pub async fn save(&self, queries: &[String], out: impl Write + Send + 'static) -> Result<()> {
        let queries: Vec<_> = queries.iter().map(String::as_str).collect();
        Ok(self.content.export(&queries, out).await?)
    }

    /// Deletes what nothing needs any more, or only tells.
    pub async fn prune(&self, dry_run: bool) -> Result<PrunedImages> {
        let pruned = if dry_run {
            self.content.prune_dry_run().await?
        } else {
            self.collect().await?;
            self.content.prune().await?
        };
        Ok(PrunedImages {
            blobs: (pruned.blobs.len() + pruned.partials.len()) as u64,
            bytes: pruned.bytes(),
        })
    }

    /// Removes unpacked layers that no image and no container needs. During a pull nothing
    /// is removed: the next collection finds it.
    async fn collect(&self) -> Result<()> {
        let Ok(_alone) = self.pulling.try_write() else { return Ok(()) };
        for shelf in self.snapshots.values() {
            shelf.gc(self.content.chains()).await?;
        }
        Ok(())
    }

    /// The default snapshotter's file system first, then those of others that hold anything.
    pub fn file_systems(&self) -> Vec<FsInfo> {
        let shown = |shelf: &&Snapshots| shelf.snapshotter() == DEFAULT || !shelf.is_empty();
        self.snapshots.values().filter(shown).map(Snapshots::fs_info).collect()
    }

    pub async fn config(&self, id: &Digest) -> Result<content::ImageConfig> {
        Ok(self.content.config(id).await?)
    }

    /// For people who debug: what `crictl inspecti` shows.
    pub async fn details(&self, image: &content::Image) -> Result<serde_json::Value> {
        let config = self.content.config(&image.record.id).await?;
        let process = &config.process;
        Ok(serde_json::json!({
            "chainID": image.record.chain_ids().last(),
            "imageSpec": {
                "architecture": config.platform.architecture,
                "os": config.platform.os,
                "author": config.author,
                "config": {
                    "User": process.user,
                    "Env": process.env,
                    "Entrypoint": process.entrypoint,
                    "Cmd": process.cmd,
                    "WorkingDir": process.working_dir,
                    "Labels": process.labels,
                    "StopSignal": process.stop_signal,
                },
                "rootfs": { "type": "layers", "diff_ids": config.diff_ids },
            },
        }))
    }

    /// For commands that need all of it: import, export, prune.
    pub fn content(&self) -> &content::Images<Unpacker> {
        &self.content
    }

    fn shelf(&self, name: Option<&str>) -> Result<&Snapshots> {
        let kind = name.map_or(Ok(DEFAULT), str::parse)?;
        Ok(&self.snapshots[&kind])
    }

    /// A pull unpacks for the default snapshotter; another one gets an image when it is first
    /// wanted there.
    async fn unpack(&self, shelf: &Snapshots, image: &Digest, chain: &[Digest]) -> Result<()> {
        if chain.last().is_none_or(|top| shelf.has(top)) {
            return Ok(());
        }
        let _pulling = self.pulling.read().await;
        Ok(self.content.unpack(image, shelf.snapshotter().name()).await?)
    }

    async fn remove_snapshot(&self, key: &Key) -> Result<()> {
        for shelf in self.snapshots.values() {
            shelf.remove(key).await?;
        }
        Ok(())
    }

    async fn pin(&self, reference: &str) -> Result<PinnedImage> {
        let Some(image) = self.find(reference)? else {
            return Err(EngineError::NotFound { what: "image", id: reference.to_owned() });
        };
        let (record, config) = (&image.record, self.content.config(&image.record.id).await?);
        let process = config.process;
        let tag = record.repo_tags().next().map(ToString::to_string);
        let digest = record.repo_digests().next().map(ToString::to_string);
        let text = |text: String| (!text.is_empty()).then_some(text);
        Ok(PinnedImage {
            id: record.id.clone(),
            name: tag.unwrap_or_else(|| reference.to_owned()),
            repo_digest: digest.unwrap_or_else(|| record.id.to_string()),
            facts: ImageFacts {
                name: reference.to_owned(),
                entrypoint: process.entrypoint,
                cmd: process.cmd,
                env: process.env,
                working_dir: text(process.working_dir).map(PathBuf::from),
                user: process.user,
                stop_signal: text(process.stop_signal),
                volumes: process.volumes.into_iter().map(PathBuf::from).collect(),
                labels: process.labels.into_iter().collect(),
            },
            chain: record.chain_ids(),
        })
    }
}

impl Storage for Images {
    fn image<'a>(&'a self, reference: &'a str) -> Boxed<'a, Result<PinnedImage>> {
        Box::pin(self.pin(reference))
    }

    fn mount(&self, rootfs: NewRootfs) -> Boxed<'_, Result<()>> {
        Box::pin(async move {
            let shelf = self.shelf(rootfs.snapshotter.as_deref())?;
            self.unpack(shelf, &rootfs.image, &rootfs.chain).await?;
            let options = PrepareOptions {
                idmap: rootfs.mapping.as_ref().map(id_maps).transpose()?,
                // A container of the CRI is started once: its root is mounted once.
                volatile: true,
                read_only_view: false,
                label: rootfs.label.clone(),
            };
            let key = Key::from(rootfs.container);
            prepare_and_mount(shelf, &key, &rootfs.chain, options, &rootfs.target).await
        })
    }

    fn release(&self, container: Id, _target: PathBuf) -> Boxed<'_, Result<()>> {
        Box::pin(async move { self.remove_snapshot(&Key::from(container)).await })
    }

    fn show(&self, view: NewView) -> Boxed<'_, Result<()>> {
        Box::pin(async move {
            let shelf = self.shelf(view.snapshotter.as_deref())?;
            self.unpack(shelf, &view.image, &view.chain).await?;
            let options = PrepareOptions {
                idmap: view.mapping.as_ref().map(id_maps).transpose()?,
                volatile: false,
                read_only_view: true,
                label: view.label.clone(),
            };
            let key = view_key(view.container, view.number)?;
            prepare_and_mount(shelf, &key, &view.chain, options, &view.target).await
        })
    }

    fn hide(&self, container: Id, number: usize) -> Boxed<'_, Result<()>> {
        Box::pin(async move { self.remove_snapshot(&view_key(container, number)?).await })
    }

    fn diff(&self, container: Id, out: File, go_on: GoOn) -> Boxed<'_, Result<Diff>> {
        Box::pin(async move {
            let key = Key::from(container);
            let mut shelves = self.snapshots.values();
            let shelf = shelves.find(|shelf| shelf.get(&key).is_some());
            Ok(shelf.ok_or(SnapshotError::NoSnapshot(key.clone()))?.diff(&key, out, go_on).await?)
        })
    }

    fn usage(&self, container: Id) -> Option<LayerUsage> {
        let key = Key::from(container);
        self.snapshots.values().find_map(|shelf| layer_usage(shelf, &key))
    }
}

fn view_key(container: Id, number: usize) -> Result<Key> {
    Ok(format!("{container}-{number}").parse()?)
}

async fn prepare_and_mount(
    shelf: &Snapshots,
    key: &Key,
    chain: &[Digest],
    options: PrepareOptions,
    target: &Path,
) -> Result<()> {
    match shelf.prepare(key, chain.last(), options).await {
        // Of an attempt that was cut off.
        Ok(_) | Err(SnapshotError::SnapshotExists(_)) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(shelf.mount(key, target).await?)
}

fn layer_usage(shelf: &Snapshots, key: &Key) -> Option<LayerUsage> {
    let sample = shelf.usage(key).ok()??;
    Some(LayerUsage {
        mountpoint: shelf.root().to_owned(),
        bytes: sample.usage.bytes,
        inodes: sample.usage.inodes,
        at: sample.at,
    })
}

fn id_maps(maps: &IdMappings) -> Result<IdMaps> {
    let range =
        |map: &IdMapping| IdRange { inside: map.container, outside: map.host, count: map.len };
    let ranges = |maps: &[IdMapping]| maps.iter().map(range).collect();
    IdMaps::new(ranges(&maps.uids), ranges(&maps.gids))
        .map_err(|e| EngineError::invalid("userns_options", e))
}

// === unpacking ===

impl LayerSink for Unpacker {
    fn has(&self, snapshotter: &str, chain_id: &Digest) -> bool {
        self.shelf(snapshotter).is_ok_and(|shelf| shelf.has(chain_id))
    }

    async fn apply(&self, layer: LayerDescriptor, source: LayerSource) -> Result<(), SinkError> {
        let shelf = self.shelf(&layer.snapshotter).map_err(sink_error)?;
        let key = (shelf.snapshotter(), layer.chain_id.clone());
        let (tell, ended) = watch::channel(None);
        self.unpacking.lock().insert(key.clone(), ended);
        let done = self.unpack(shelf, layer, source).await;
        tell.send_replace(Some(done.is_ok()));
        self.unpacking.lock().remove(&key);
        done
    }

    async fn sync(&self) -> Result<(), SinkError> {
        for shelf in self.snapshots.values() {
            shelf.sync().await.map_err(sink_error)?;
        }
        Ok(())
    }
}

impl Unpacker {
    fn shelf(&self, name: &str) -> Result<&Snapshots, SnapshotError> {
        Ok(&self.snapshots[&name.parse::<Snapshotter>()?])
    }

    async fn unpack(
        &self,
        shelf: &Snapshots,
        layer: LayerDescriptor,
        source: LayerSource,
    ) -> Result<(), SinkError> {
        let parent = layer.parent_chain.as_ref();
        let staging = shelf.stage(&layer.chain_id, parent).map_err(sink_error)?;
        let options = ApplyOptions { diff_id: Some(layer.diff_id.clone()), ..Default::default() };
        let unpacked = tokio::task::spawn_blocking(move || {
            let applied = apply_layer(source, staging.dir(), &options);
            (staging, applied)
        });
        let (staging, applied) =
            unpacked.await.map_err(|e| SinkError::new(Kind::Internal, e.to_string()))?;
        let applied = applied.map_err(|e| SinkError::new(e.kind(), e))?;
        if let Some(parent) = parent {
            self.below(shelf, parent).await?;
        }
        shelf.commit(staging, applied).await.map(drop).map_err(sink_error)
    }

    /// Waits until the layer below is there.
    async fn below(&self, shelf: &Snapshots, parent: &Digest) -> Result<(), SinkError> {
        let key = (shelf.snapshotter(), parent.clone());
        let unpacking = self.unpacking.lock().get(&key).cloned();
        if let Some(mut ended) = unpacking {
            // An error means that it ended; whether well, the shelf tells.
            let _ = ended.wait_for(Option::is_some).await;
        }
        if shelf.has(parent) {
            return Ok(());
        }
        Err(SinkError::new(
            Kind::Unavailable,
            format!("the layer below, {parent}, was not unpacked"),
        ))
    }
}

fn sink_error(error: SnapshotError) -> SinkError {
    SinkError::new(error.kind(), error)
}

impl fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unpacker")
    }
}
