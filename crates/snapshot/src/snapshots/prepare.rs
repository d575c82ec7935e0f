//! Snapshots: prepared, mounted, unmounted, removed.

use std::{
    fs,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use base::Digest;
use jiff::Timestamp;
use sys::idmap::IdMaps;

use super::{
    Inner, Result, Sample, Snapshots,
    layout::make_dir,
    mount::{self, ROOT, UPPER, WORK},
};
use crate::{
    Diff, Key, LayerDir, PrepareOptions, SnapshotError, SnapshotRecord, Snapshotter, Usage, copy,
    diff::write_diff, flatten::flatten,
};

impl Snapshots {
    /// Makes a root file system of layers; [`Snapshots::mount`] shows it. `top` is the
    /// chain id of the topmost layer.
    ///
    /// Overlay: two directories. Native: a copy of all layers, which takes its time.
    ///
    /// Cancel safe: the work goes on when the future is dropped.
    pub async fn prepare(
        &self,
        key: &Key,
        top: Option<&Digest>,
        options: PrepareOptions,
    ) -> Result<Arc<SnapshotRecord>> {
        let (inner, key, top) = (Arc::clone(&self.inner), key.clone(), top.cloned());
        self.run(async move {
            let _busy = Busy::take(&inner, &key)?;
            if inner.snapshot(&key).is_ok() {
                return Err(SnapshotError::SnapshotExists(key));
            }
            // Until it is recorded nothing else says that its layers are in use.
            let _hold = Snapshots { inner: Arc::clone(&inner) }.hold(top.as_slice()).await;
            let chain = inner.chain_dirs(top.as_ref())?;
            let record = record_of(inner.snapshotter, &key, top, &options);
            let worker = Arc::clone(&inner);
            let usage = inner.blocking(move || worker.fill(&key, &chain, &options)).await?;
            let record = Arc::new(record);
            if let Err(error) = inner.snapshots.put(Arc::clone(&record)).await {
                inner.discard(&inner.layout.snapshot(&record.key))?;
                return Err(error.into());
            }
            let sample = Sample { usage, at: record.created };
            inner.background.samples.lock().entry(record.key.clone()).or_insert(sample);
            Ok(record)
        })
        .await
    }

    /// Shows a snapshot at a directory. Mounting it again where it is mounted is no error.
    ///
    /// Cancel safe: the work goes on when the future is dropped.
    pub async fn mount(&self, key: &Key, target: &Path) -> Result<()> {
        let (inner, key, target) = (Arc::clone(&self.inner), key.clone(), target.to_owned());
        self.run(async move {
            let _busy = Busy::take(&inner, &key)?;
            let record = inner.snapshot(&key)?;
            if let Some(there) = &record.target
                && sys::mount::is_mount_point(there)?
            {
                return match *there == target {
                    true => Ok(()),
                    false => Err(SnapshotError::AlreadyMounted { key, target: there.clone() }),
                };
            }
            if record.spent && mount::is_spent(&inner.layout, &record) {
                return Err(SnapshotError::Spent(key));
            }
            let chain = inner.chain_dirs(record.top.as_ref()).map_err(|missing| {
                SnapshotError::Broken { key: key.clone(), why: missing.to_string() }
            })?;
            let volatile = record.volatile && !record.read_only_view;
            let intent = SnapshotRecord {
                target: Some(target.clone()),
                spent: record.spent || volatile,
                ..(*record).clone()
            };
            inner.snapshots.put(intent.clone()).await?;
            let worker = Arc::clone(&inner);
            let mounted = inner.blocking(move || worker.show(&intent, &chain, &target)).await;
            if mounted.is_err() {
                inner.snapshots.put(record).await?;
            }
            mounted
        })
        .await
    }

    /// False: it was not mounted.
    ///
    /// Cancel safe: the work goes on when the future is dropped.
    pub async fn unmount(&self, key: &Key) -> Result<bool> {
        let (inner, key) = (Arc::clone(&self.inner), key.clone());
        self.run(async move {
            let _busy = Busy::take(&inner, &key)?;
            let record = inner.snapshot(&key)?;
            inner.hide(&record).await
        })
        .await
    }

    /// Writes what was changed of its layers as a tar. Nobody may be changing it meanwhile.
    ///
    /// Cancel safe: the work goes on when the future is dropped, until `go_on` says no.
    pub async fn diff(
        &self,
        key: &Key,
        out: fs::File,
        go_on: impl Fn() -> bool + Send + 'static,
    ) -> Result<Diff> {
        let (inner, key) = (Arc::clone(&self.inner), key.clone());
        self.run(async move {
            let record = inner.snapshot(&key)?;
            if inner.snapshotter == Snapshotter::Native {
                return Err(SnapshotError::NoDiff(inner.snapshotter.name()));
            }
            let chain = inner.chain_dirs(record.top.as_ref())?;
            let upper = inner.layout.snapshot(&key).join(UPPER);
            inner.blocking(move || write_diff(&upper, &chain, out, &go_on)).await
        })
        .await
    }

    /// Unmounts it if need be and removes it; its files are deleted later. False: there
    /// is none of this key.
    ///
    /// Cancel safe: the work goes on when the future is dropped.
    pub async fn remove(&self, key: &Key) -> Result<bool> {
        let (inner, key) = (Arc::clone(&self.inner), key.clone());
        self.run(async move {
            let _busy = Busy::take(&inner, &key)?;
            let Ok(record) = inner.snapshot(&key) else {
                return Ok(false);
            };
            inner.hide(&record).await?;
            inner.snapshots.delete(&store::Record::key(&*record)).await?;
            inner.background.samples.lock().remove(&key);
            let worker = Arc::clone(&inner);
            inner.blocking(move || worker.discard(&worker.layout.snapshot(&key))).await?;
            Ok(true)
        })
        .await
    }
}

impl Inner {
    /// In a staging directory, renamed when it is whole.
    fn fill(&self, key: &Key, chain: &[LayerDir], options: &PrepareOptions) -> Result<Usage> {
        let staging = self.layout.stage()?;
        let to = self.layout.snapshot(key);
        let filled = self.fill_dir(key, chain, options, &staging).and_then(|usage| {
            // No record: what lies there is litter.
            self.discard(&to)?;
            fs::rename(&staging, &to).map_err(SnapshotError::io("move to", &to))?;
            Ok(usage)
        });
        if filled.is_err() {
            self.discard(&staging)?;
        }
        filled
    }

    fn fill_dir(
        &self,
        key: &Key,
        chain: &[LayerDir],
        options: &PrepareOptions,
        dir: &Path,
    ) -> Result<Usage> {
        let ids = options.idmap.as_ref();
        match self.snapshotter {
            Snapshotter::Native => {
                let root = dir.join(ROOT);
                make_dir(&root)?;
                let copied = flatten(chain, &root, ids);
                let copied =
                    copied.map_err(|source| SnapshotError::Flatten { key: key.clone(), source })?;
                // A bind takes no label of its own.
                if let Some(label) = &options.label {
                    sys::label::set_tree(&root, label)?;
                }
                Ok(copied)
            }
            Snapshotter::Overlayfs if options.read_only_view => Ok(Usage::default()),
            Snapshotter::Overlayfs => {
                let upper = dir.join(UPPER);
                make_dir(&upper)?;
                make_dir(&dir.join(WORK))?;
                // The root of the container is this directory.
                let top = chain.first().map_or_else(|| self.layout.empty(), |l| l.path.clone());
                like(&top, &upper, ids).map_err(SnapshotError::io("describe", &upper))?;
                Ok(Usage::DIRECTORY)
            }
        }
    }

    fn show(&self, record: &SnapshotRecord, chain: &[LayerDir], target: &Path) -> Result<()> {
        let ids = id_maps(record)?;
        // Asked before, because a volatile overlay that is made and not shown is spent.
        fs::read_dir(target).map_err(SnapshotError::io("mount on", target))?;
        mount::mount(&self.layout, record, chain, ids.as_ref(), target)
    }

    async fn hide(&self, record: &SnapshotRecord) -> Result<bool> {
        let Some(target) = record.target.clone() else {
            return Ok(false);
        };
        let was = self.blocking(move || mount::unmount(&target)).await?;
        self.snapshots.put(SnapshotRecord { target: None, ..record.clone() }).await?;
        Ok(was)
    }
}

fn record_of(
    snapshotter: Snapshotter,
    key: &Key,
    top: Option<Digest>,
    options: &PrepareOptions,
) -> SnapshotRecord {
    let ranges = |of: fn(&IdMaps) -> &[sys::idmap::IdRange]| {
        let ranges = options.idmap.as_ref().map(of).unwrap_or_default();
        ranges.iter().copied().map(Into::into).collect()
    };
    SnapshotRecord {
        snapshotter,
        key: key.clone(),
        top,
        uids: ranges(IdMaps::uids),
        gids: ranges(IdMaps::gids),
        volatile: options.volatile,
        read_only_view: options.read_only_view,
        created: Timestamp::now(),
        target: None,
        spent: false,
        label: options.label.clone(),
    }
}

fn id_maps(record: &SnapshotRecord) -> Result<Option<IdMaps>> {
    if record.uids.is_empty() && record.gids.is_empty() {
        return Ok(None);
    }
    let ranges = |stored: &[crate::StoredRange]| stored.iter().map(|&r| r.into()).collect();
    let maps = IdMaps::new(ranges(&record.uids), ranges(&record.gids));
    let broken = |e: sys::idmap::IdMapError| SnapshotError::Broken {
        key: record.key.clone(),
        why: e.to_string(),
    };
    maps.map(Some).map_err(broken)
}

/// Owner, mode, attributes and times of one directory for another.
fn like(from: &Path, to: &PathBuf, ids: Option<&IdMaps>) -> std::io::Result<()> {
    let (from, to) = (fs::File::open(from)?, fs::File::open(to)?);
    let metadata = copy::copy_dir_metadata(from.as_fd(), to.as_fd(), ids)?;
    rustix::fs::futimens(&to, &metadata.times)?;
    Ok(())
}

/// Two callers with one key are a mistake of theirs; the second is told.
struct Busy {
    inner: Arc<Inner>,
    key: Key,
}

impl Busy {
    fn take(inner: &Arc<Inner>, key: &Key) -> Result<Self> {
        match inner.busy.lock().insert(key.clone()) {
            true => Ok(Self { inner: Arc::clone(inner), key: key.clone() }),
            false => Err(SnapshotError::Busy(key.clone())),
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.inner.busy.lock().remove(&self.key);
    }
}
