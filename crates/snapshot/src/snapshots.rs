//! The layers that are unpacked and the snapshots made of them.
//!
//! **Invariant:** a record says what is on disk and complete. On the way in the disk comes
//! first and the record last, on the way out the record goes first: what a crash leaves
//! between is a directory without a record, which the next start throws away.

mod background;
mod layers;
mod layout;
mod mount;
mod prepare;
mod recover;

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base::Digest;
use jiff::Timestamp;
use parking_lot::Mutex;
use store::{Store, Table};
use tokio_util::task::TaskTracker;

pub use self::{
    background::Sample,
    layers::{Collected, Hold, Staging},
    recover::Recovery,
};
use self::{
    background::{Background, Census},
    layout::Layout,
};
use crate::{
    Key, LayerDir, LayerKey, LayerRecord, SnapshotError, SnapshotKey, SnapshotRecord, Snapshotter,
    Usage,
};

/// Where and how often.
#[derive(Clone, Debug)]
pub struct SnapshotsConfig {
    /// The snapshotter makes a directory of its name in here.
    pub root: PathBuf,
    pub snapshotter: Snapshotter,
    /// The pause between two countings of what snapshots take.
    pub usage_period: Duration,
}

impl SnapshotsConfig {
    pub fn new(root: impl Into<PathBuf>, snapshotter: Snapshotter) -> Self {
        Self { root: root.into(), snapshotter, usage_period: Duration::from_secs(10) }
    }
}

/// One snapshotter. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Snapshots {
    inner: Arc<Inner>,
}

struct Inner {
    snapshotter: Snapshotter,
    layout: Layout,
    boot: String,
    store: Store,
    layers: Table<LayerRecord>,
    snapshots: Table<SnapshotRecord>,
    /// Held while a layer becomes visible or goes.
    changing: tokio::sync::Mutex<()>,
    /// Keys somebody works on: one at a time.
    busy: Mutex<HashSet<Key>>,
    /// Layers that are wanted soon, by hold.
    held: Mutex<BTreeMap<u64, HashSet<Digest>>>,
    next_hold: AtomicU64,
    background: Background,
    tasks: TaskTracker,
    recovery: Recovery,
}

/// What a snapshotter takes of its file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsInfo {
    pub snapshotter: Snapshotter,
    /// The snapshotter's own directory; it exists.
    pub mountpoint: PathBuf,
    /// All layers and all snapshots.
    pub usage: Usage,
    /// The time of the sum, whenever its parts were counted: a kubelet takes no notice of a
    /// usage that is not newer than the last.
    pub at: Timestamp,
}

type Result<T> = std::result::Result<T, SnapshotError>;

impl Snapshots {
    /// Checks every record against the disk, forgets layers that are not to be trusted and
    /// throws away what no record names. Takes as long as listing directories does; what
    /// is thrown away is deleted later.
    ///
    /// Not cancel safe: dropping the future may leave layers that are lost in the records,
    /// until the next start.
    pub async fn open(config: SnapshotsConfig, store: &Store) -> Result<Self> {
        let (layers, snapshots) = (store.table()?, store.table()?);
        let tables = (layers.clone(), snapshots.clone());
        let start = move || {
            let layout = Layout::open(&config.root, config.snapshotter)?;
            let boot = recover::boot_id()?;
            let found = recover::recover(config.snapshotter, &layout, &boot, &tables.0, &tables.1)?;
            Ok((config, layout, boot, found))
        };
        let (config, layout, boot, recovery) = join(tokio::task::spawn_blocking(start).await)?;
        let mut batch = store.batch();
        for (lost, _) in &recovery.lost_layers {
            batch.delete(&layers, &LayerKey::new(config.snapshotter, lost));
        }
        batch.commit().await?;
        for (lost, _) in &recovery.lost_layers {
            layout.discard(&layout.layer(lost).path)?;
        }
        let trees = Trees {
            snapshotter: config.snapshotter,
            root: layout.snapshots(),
            snapshots: snapshots.clone(),
        };
        let background = Background::spawn(layout.trash(), config.usage_period, trees)?;
        let inner = Inner {
            snapshotter: config.snapshotter,
            layout,
            boot,
            store: store.clone(),
            layers,
            snapshots,
            changing: tokio::sync::Mutex::new(()),
            busy: Mutex::default(),
            held: Mutex::default(),
            next_hold: AtomicU64::new(0),
            background,
            tasks: TaskTracker::new(),
            recovery,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    pub fn snapshotter(&self) -> Snapshotter {
        self.inner.snapshotter
    }

    /// Its own directory; it exists.
    pub fn root(&self) -> &Path {
        &self.inner.layout.root
    }

    /// What the start found.
    pub fn recovery(&self) -> &Recovery {
        &self.inner.recovery
    }

    /// The snapshots there are, from memory.
    pub fn list(&self) -> Vec<Arc<SnapshotRecord>> {
        let all = self.inner.snapshots.list();
        all.into_iter().filter(|record| record.snapshotter == self.inner.snapshotter).collect()
    }

    /// Whether there is neither a layer nor a snapshot, from memory.
    pub fn is_empty(&self) -> bool {
        self.inner.own_layers().next().is_none() && self.list().is_empty()
    }

    pub fn get(&self, key: &Key) -> Option<Arc<SnapshotRecord>> {
        self.inner.snapshots.get(&SnapshotKey::new(self.inner.snapshotter, key))
    }

    /// What the writable part of a snapshot takes, as counted last; from memory. `None`
    /// until it is counted for the first time after a start.
    pub fn usage(&self, key: &Key) -> Result<Option<Sample>> {
        self.inner.snapshot(key)?;
        Ok(self.inner.background.samples.lock().get(key).copied())
    }

    /// From memory, too.
    pub fn fs_info(&self) -> FsInfo {
        let inner = &self.inner;
        let layers = inner.own_layers().map(|layer| layer.usage).sum::<Usage>();
        let samples = inner.background.samples.lock();
        FsInfo {
            snapshotter: inner.snapshotter,
            mountpoint: inner.layout.root.clone(),
            usage: layers + samples.values().map(|sample| sample.usage).sum(),
            at: Timestamp::now(),
        }
    }

    /// After this, what was committed before survives the loss of power. To be called
    /// before an image is recorded that names these layers.
    ///
    /// Cancel safe: dropping the future abandons the wait.
    pub async fn sync(&self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        self.run(async move {
            // Those committed while the sync runs may not be in it.
            let before: Vec<_> =
                inner.own_layers().filter(|layer| layer.unsynced_boot.is_some()).collect();
            if before.is_empty() {
                return Ok(());
            }
            let root = inner.layout.root.clone();
            inner.blocking(move || sync_file_system(&root)).await?;
            let _changing = inner.changing.lock().await;
            let mut batch = inner.store.batch();
            for old in before {
                // It may have been collected meanwhile.
                let Some(layer) = inner.layer(&old.chain_id) else { continue };
                batch.put(&inner.layers, LayerRecord { unsynced_boot: None, ..(*layer).clone() });
            }
            batch.commit().await?;
            Ok(())
        })
        .await
    }

    /// Waits for what is in work and ends both threads. What is in the trash stays there
    /// until the next start.
    ///
    /// Cancel safe: dropping the future abandons the wait.
    pub async fn close(&self) {
        let inner = &self.inner;
        inner.tasks.close();
        inner.background.stop();
        inner.tasks.wait().await;
        let inner = Arc::clone(inner);
        // It ends within moments, and nothing but a panic can be in the answer.
        let _ = tokio::task::spawn_blocking(move || inner.background.join()).await;
    }

    /// Work that goes on when the caller goes away.
    async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        if self.inner.tasks.is_closed() {
            return Err(SnapshotError::Closed);
        }
        join(self.inner.tasks.spawn(work).await)
    }
}

impl fmt::Debug for Snapshots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshots({})", self.inner.layout.root.display())
    }
}

// === impl Inner ===

impl Inner {
    fn snapshot(&self, key: &Key) -> Result<Arc<SnapshotRecord>> {
        let found = self.snapshots.get(&SnapshotKey::new(self.snapshotter, key));
        found.ok_or_else(|| SnapshotError::NoSnapshot(key.clone()))
    }

    fn layer(&self, chain_id: &Digest) -> Option<Arc<LayerRecord>> {
        self.layers.get(&LayerKey::new(self.snapshotter, chain_id))
    }

    fn own_layers(&self) -> impl Iterator<Item = Arc<LayerRecord>> {
        let own = self.snapshotter;
        self.layers.list().into_iter().filter(move |layer| layer.snapshotter == own)
    }

    /// From a layer down to the lowest, as records.
    fn chain(&self, top: Option<&Digest>) -> Result<Vec<Arc<LayerRecord>>> {
        let mut chain = Vec::new();
        let mut next = top.cloned();
        while let Some(id) = next {
            let layer = self.layer(&id).ok_or(SnapshotError::NoLayer(id))?;
            next = layer.parent.clone();
            chain.push(layer);
        }
        Ok(chain)
    }

    fn chain_dirs(&self, top: Option<&Digest>) -> Result<Vec<LayerDir>> {
        let chain = self.chain(top)?;
        Ok(chain.iter().map(|layer| self.layout.layer(&layer.chain_id)).collect())
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        join(tokio::task::spawn_blocking(work).await)
    }

    fn discard(&self, path: &Path) -> Result<()> {
        self.layout.discard(path)?;
        self.background.trash_has_come();
        Ok(())
    }

    fn next_hold(&self) -> u64 {
        self.next_hold.fetch_add(1, Ordering::Relaxed)
    }
}

fn join<T>(joined: std::result::Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    match joined {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is going down.
            Err(_) => Err(SnapshotError::Closed),
        },
    }
}

fn sync_file_system(root: &Path) -> Result<()> {
    let dir = std::fs::File::open(root).map_err(SnapshotError::io("open", root))?;
    rustix::fs::syncfs(dir).map_err(SnapshotError::io("sync", root))
}

/// The view of snapshots that the counting thread has; it does not keep the store open.
struct Trees {
    snapshotter: Snapshotter,
    root: PathBuf,
    snapshots: Table<SnapshotRecord>,
}

impl Census for Trees {
    fn trees(&self) -> Vec<(Key, PathBuf)> {
        let part = match self.snapshotter {
            Snapshotter::Overlayfs => mount::UPPER,
            Snapshotter::Native => mount::ROOT,
        };
        let all = self.snapshots.list();
        let own = all.iter().filter(|record| record.snapshotter == self.snapshotter);
        own.map(|record| (record.key.clone(), self.root.join(record.key.as_str()).join(part)))
            .collect()
    }

    fn is_alive(&self, key: &Key) -> bool {
        self.snapshots.get(&SnapshotKey::new(self.snapshotter, key)).is_some()
    }
}
