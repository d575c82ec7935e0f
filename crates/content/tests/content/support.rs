//! A machine to pull to: content, records and a place for layers below one directory.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use base::{Digest, ImageRef, Kind};
use content::{
    ContentConfig, ContentError, Images, LayerDescriptor, LayerSink, LayerSource, Patience,
    PullOptions, Pulled, SinkError, digest::Hasher,
};
use parking_lot::Mutex;
use store::Store;
use tempfile::TempDir;
use testkit::image::Image;
use tokio::sync::Notify;

/// Unpacks a layer to one file below a directory, after checking its diff id, and so
/// survives the process like the real one.
#[derive(Clone, Debug)]
pub(crate) struct Layers(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    applied: AtomicUsize,
    staged: AtomicUsize,
    refuse: AtomicBool,
    busy: Mutex<HashSet<Digest>>,
    /// Ever.
    called: Mutex<HashSet<Digest>>,
    changed: Notify,
}

impl Layers {
    pub(crate) fn open(root: PathBuf) -> Self {
        let _ = fs::remove_dir_all(root.join("staging"));
        fs::create_dir_all(root.join("staging")).expect("creates");
        let (applied, staged, refuse, busy, called, changed) = Default::default();
        Self(Arc::new(Inner { root, applied, staged, refuse, busy, called, changed }))
    }

    fn path(&self, snapshotter: &str, chain: &Digest) -> PathBuf {
        self.0.root.join(format!("{snapshotter}-{}", chain.hex()))
    }

    /// How many layers were unpacked to the end.
    pub(crate) fn applied(&self) -> usize {
        self.0.applied.load(Ordering::Relaxed)
    }

    pub(crate) fn refuse(&self, refuse: bool) {
        self.0.refuse.store(refuse, Ordering::Relaxed);
    }

    pub(crate) fn lose(&self, snapshotter: &str, chain: &Digest) {
        fs::remove_file(self.path(snapshotter, chain)).expect("was there");
    }

    /// To the staging file that is returned.
    fn unpack(&self, layer: &LayerDescriptor, mut source: LayerSource) -> io::Result<PathBuf> {
        let number = self.0.staged.fetch_add(1, Ordering::Relaxed);
        let staging = self.0.root.join("staging").join(number.to_string());
        let mut file = File::create(&staging)?;
        let mut plain = plain(&layer.media_type, &mut source)?;
        let mut hasher = Hasher::new(layer.diff_id.algorithm());
        let mut piece = vec![0; 64 << 10];
        let unpacked = loop {
            match plain.read(&mut piece) {
                Ok(0) => break Ok(()),
                Ok(count) => {
                    hasher.update(&piece[..count]);
                    io::Write::write_all(&mut file, &piece[..count])?;
                }
                Err(e) => break Err(e),
            }
        };
        drop(plain);
        // What a decoder leaves unread counts too: the verdict comes at the very end.
        let rest = io::copy(&mut source, &mut io::sink());
        let checked = unpacked.and(rest.map(|_| ())).and_then(|()| match hasher.finish() {
            got if got == layer.diff_id => Ok(()),
            got => Err(io::Error::other(format!("diff id is {got}"))),
        });
        match checked {
            Ok(()) => Ok(staging),
            Err(e) => {
                fs::remove_file(staging)?;
                Err(e)
            }
        }
    }
}

fn plain<'a>(media_type: &str, source: &'a mut LayerSource) -> io::Result<Box<dyn Read + 'a>> {
    Ok(match media_type {
        gzip if gzip.ends_with("gzip") => Box::new(flate2::read::MultiGzDecoder::new(source)),
        zstd if zstd.ends_with("zstd") => Box::new(zstd::Decoder::new(source)?),
        _ => Box::new(source),
    })
}

impl Layers {
    /// Like the real one: unpacked in parallel, visible after the layer below.
    async fn apply_onto_parent(
        &self,
        layer: LayerDescriptor,
        source: LayerSource,
    ) -> Result<(), SinkError> {
        let parent = layer.parent_chain.clone();
        let has = |chain: &Digest| self.has(&layer.snapshotter, chain);
        if let Some(parent) = &parent {
            let called = self.0.called.lock().contains(parent) || has(parent);
            assert!(called, "called before the layer below");
        }
        let (layers, unpacked) = (self.clone(), layer.clone());
        let unpack = move || layers.unpack(&unpacked, source);
        let staged = tokio::task::spawn_blocking(unpack).await.expect("does not panic");
        let staged = staged.map_err(|e| SinkError::new(Kind::from(&e), e))?;
        while let Some(parent) = parent.as_ref().filter(|parent| !has(parent)) {
            let changed = self.0.changed.notified();
            if !self.0.busy.lock().contains(parent) && !has(parent) {
                fs::remove_file(staged).expect("removes");
                return Err(SinkError::new(Kind::Unavailable, "the layer below failed"));
            }
            if self.0.busy.lock().contains(parent) {
                changed.await;
            }
        }
        fs::rename(staged, self.path(&layer.snapshotter, &layer.chain_id)).expect("renames");
        self.0.applied.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl LayerSink for Layers {
    fn has(&self, snapshotter: &str, chain_id: &Digest) -> bool {
        self.path(snapshotter, chain_id).exists()
    }

    async fn apply(&self, layer: LayerDescriptor, source: LayerSource) -> Result<(), SinkError> {
        if self.0.refuse.load(Ordering::Relaxed) {
            return Err(SinkError::new(Kind::ResourceExhausted, "no room for layers"));
        }
        let mine = layer.chain_id.clone();
        assert!(self.0.busy.lock().insert(mine.clone()), "called twice at once");
        self.0.called.lock().insert(mine.clone());
        let applied = self.apply_onto_parent(layer, source).await;
        self.0.busy.lock().remove(&mine);
        self.0.changed.notify_waiters();
        applied
    }

    async fn sync(&self) -> Result<(), SinkError> {
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) images: Images<Layers>,
    pub(crate) layers: Layers,
    pub(crate) store: Store,
    pub(crate) home: TempDir,
}

/// Short, so that a test of a hanging server ends soon; long enough for a busy machine.
pub(crate) fn patience() -> Patience {
    let second = Duration::from_secs(1);
    Patience { dial: second, answer: second, blob_answer: 2 * second, progress: second }
}

pub(crate) fn config(home: &Path) -> ContentConfig {
    let mut config = ContentConfig::new(home.join("content"));
    config.registry.hosts_dirs = vec![home.join("certs.d")];
    config.registry.patience = patience();
    config
}

impl Machine {
    pub(crate) fn new() -> Self {
        Self::with(|_| ())
    }

    pub(crate) fn with(change: impl FnOnce(&mut ContentConfig)) -> Self {
        Self::open(tempfile::tempdir().expect("a directory"), change)
    }

    pub(crate) fn open(home: TempDir, change: impl FnOnce(&mut ContentConfig)) -> Self {
        let mut config = config(home.path());
        change(&mut config);
        let store = Store::open(home.path().join("state")).expect("opens");
        let layers = Layers::open(home.path().join("layers"));
        let images = Images::open(config, &store, layers.clone()).expect("opens");
        Self { images, layers, store, home }
    }

    /// As after a restart of the daemon.
    pub(crate) async fn restart(self, change: impl FnOnce(&mut ContentConfig)) -> Self {
        let home = self.stop().await;
        Self::open(home, change)
    }

    pub(crate) async fn stop(self) -> TempDir {
        self.images.close().await;
        self.store.close().await.expect("closes");
        self.home
    }

    pub(crate) async fn pull(&self, name: &str) -> Result<Pulled, ContentError> {
        self.pull_with(name, PullOptions::default()).await
    }

    pub(crate) async fn pull_with(
        &self,
        name: &str,
        options: PullOptions,
    ) -> Result<Pulled, ContentError> {
        let name: ImageRef = name.parse()?;
        self.images.pull(&name, options).await
    }

    /// The files of one of the content's folders.
    pub(crate) fn files(&self, folder: &str) -> Vec<String> {
        let dir = self.home.path().join("content").join(folder);
        let names = fs::read_dir(dir).expect("lists");
        let mut names: Vec<String> = names
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    pub(crate) fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.home.path().join("content/blobs/sha256").join(digest.hex())
    }

    /// The whole image is here, byte for byte, and unpacked.
    #[track_caller]
    pub(crate) fn assert_whole(&self, image: &Image) {
        for blob in image.blobs().chain([&image.manifest]) {
            let bytes = fs::read(self.blob_path(&blob.digest)).expect("is here");
            assert!(bytes == blob.bytes, "{} differs", blob.digest);
        }
        let chain = self.images.layers(image.id(), "overlayfs").expect("is known");
        assert_eq!(chain.len(), image.layers.len());
        for layer in chain {
            assert!(
                self.layers.has("overlayfs", &layer.chain_id),
                "{} is not unpacked",
                layer.digest
            );
        }
    }

    /// Nothing was left by what failed.
    #[track_caller]
    pub(crate) fn assert_nothing_visible(&self) {
        assert_eq!(self.images.list(), []);
        assert_eq!(
            fs::read_dir(self.home.path().join("layers/staging")).expect("lists").count(),
            0
        );
    }
}
