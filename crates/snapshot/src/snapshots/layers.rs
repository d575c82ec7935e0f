//! Layers: staged, committed, kept, collected.

use std::{
    collections::{BTreeSet, HashSet},
    fmt, fs,
    sync::Arc,
};

use base::Digest;
use jiff::Timestamp;

use super::{Inner, Result, Snapshots};
use crate::{Applied, LayerDir, LayerRecord, SnapshotError, Usage, rebase_layer, record::chain_id};

/// A layer on its way in. Dropped before its commit it is thrown away.
pub struct Staging {
    inner: Arc<Inner>,
    chain_id: Digest,
    parent: Option<Digest>,
    dir: LayerDir,
    committed: bool,
}

/// Keeps layers from being collected, those that are there and those still to come.
#[must_use = "what is not held may be collected"]
pub struct Hold {
    inner: Arc<Inner>,
    id: u64,
}

/// What a collection removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    pub layers: Vec<Digest>,
    pub usage: Usage,
}

impl Snapshots {
    /// Whether a layer is unpacked on all that belongs below it.
    pub fn has(&self, chain_id: &Digest) -> bool {
        self.inner.layer(chain_id).is_some()
    }

    pub fn layer(&self, chain_id: &Digest) -> Option<Arc<LayerRecord>> {
        self.inner.layer(chain_id)
    }

    pub fn layers(&self) -> Vec<Arc<LayerRecord>> {
        self.inner.own_layers().collect()
    }

    /// To be taken for all chain ids of an image before the first is asked for, and to be
    /// dropped when the image is recorded. What is there when this returns stays.
    ///
    /// Cancel safe: nothing is held then.
    pub async fn hold(&self, chain_ids: &[Digest]) -> Hold {
        let id = self.inner.next_hold();
        self.inner.held.lock().insert(id, chain_ids.iter().cloned().collect());
        let hold = Hold { inner: Arc::clone(&self.inner), id };
        // A collection that began before has made up its mind already.
        drop(self.inner.changing.lock().await);
        hold
    }

    /// A directory to apply a layer in. The parent need not be there yet. Any number may
    /// be staged for one chain id; the first commit wins.
    ///
    /// Blocks for the length of a mkdir.
    pub fn stage(&self, chain_id: &Digest, parent: Option<&Digest>) -> Result<Staging> {
        let path = self.inner.layout.stage()?;
        Ok(Staging {
            dir: LayerDir::new(path, self.inner.layout.form),
            inner: Arc::clone(&self.inner),
            chain_id: chain_id.clone(),
            parent: parent.cloned(),
            committed: false,
        })
    }

    /// Fits the layer onto its parent, which has to be there now, and makes it visible.
    /// If another one was quicker, that one is returned and this one thrown away.
    ///
    /// Cancel safe: the commit goes on when the future is dropped.
    pub async fn commit(&self, mut staging: Staging, applied: Applied) -> Result<Arc<LayerRecord>> {
        let inner = Arc::clone(&self.inner);
        self.run(async move {
            let (chain_id, parent) = (staging.chain_id.clone(), staging.parent.clone());
            let diff_id = applied.diff_id.clone();
            if chain_id != self::chain_id(parent.as_ref(), &diff_id) {
                return Err(SnapshotError::WrongChain { layer: chain_id, diff_id });
            }
            if let Some(there) = inner.layer(&chain_id) {
                return Ok(there);
            }
            let below = inner.chain_dirs(parent.as_ref())?;
            let dir = staging.dir.clone();
            let layer = chain_id.clone();
            let usage = inner
                .blocking(move || {
                    rebase_layer(&dir, applied, &below)
                        .map_err(|source| SnapshotError::Rebase { layer, source })
                })
                .await?;
            let record = LayerRecord {
                snapshotter: inner.snapshotter,
                chain_id,
                diff_id,
                parent,
                usage,
                created: Timestamp::now(),
                unsynced_boot: Some(inner.boot.clone()),
            };
            inner.publish(&mut staging, record).await
        })
        .await
    }

    /// Removes a layer nobody needs; false: it was not there.
    ///
    /// Cancel safe: the removal goes on when the future is dropped.
    pub async fn remove_layer(&self, chain_id: &Digest) -> Result<bool> {
        let (inner, chain_id) = (Arc::clone(&self.inner), chain_id.clone());
        self.run(async move {
            let _changing = inner.changing.lock().await;
            let Some(layer) = inner.layer(&chain_id) else {
                return Ok(false);
            };
            if let Some(by) = inner.user_of(&chain_id) {
                return Err(SnapshotError::LayerInUse { layer: chain_id, by });
            }
            inner.drop_layers(&[layer]).await?;
            Ok(true)
        })
        .await
    }

    /// Removes all layers but those in `keep`, those held, those that snapshots stand on,
    /// and all that lies below any of these.
    ///
    /// Cancel safe: the collection goes on when the future is dropped.
    pub async fn gc(&self, keep: BTreeSet<Digest>) -> Result<Collected> {
        let inner = Arc::clone(&self.inner);
        self.run(async move {
            let _changing = inner.changing.lock().await;
            let needed = inner.needed(keep);
            let all = inner.own_layers();
            let gone: Vec<_> = all.filter(|layer| !needed.contains(&layer.chain_id)).collect();
            inner.drop_layers(&gone).await?;
            Ok(Collected {
                layers: gone.iter().map(|layer| layer.chain_id.clone()).collect(),
                usage: gone.iter().map(|layer| layer.usage).sum(),
            })
        })
        .await
    }
}

impl Inner {
    async fn publish(
        &self,
        staging: &mut Staging,
        record: LayerRecord,
    ) -> Result<Arc<LayerRecord>> {
        let _changing = self.changing.lock().await;
        if let Some(there) = self.layer(&record.chain_id) {
            return Ok(there);
        }
        if let Some(parent) = &record.parent {
            // It may have been collected while nobody held it.
            self.layer(parent).ok_or_else(|| SnapshotError::NoLayer(parent.clone()))?;
        }
        let to = self.layout.layer(&record.chain_id).path;
        // No record: what lies there is litter.
        self.discard(&to)?;
        fs::rename(&staging.dir.path, &to).map_err(SnapshotError::io("move to", &to))?;
        staging.committed = true;
        let record = Arc::new(record);
        if let Err(error) = self.layers.put(Arc::clone(&record)).await {
            self.discard(&to)?;
            return Err(error.into());
        }
        Ok(record)
    }

    /// `changing` is held. Records first.
    async fn drop_layers(&self, gone: &[Arc<LayerRecord>]) -> Result<()> {
        if gone.is_empty() {
            return Ok(());
        }
        let mut batch = self.store.batch();
        for layer in gone {
            batch.delete(&self.layers, &store::Record::key(&**layer));
        }
        batch.commit().await?;
        for layer in gone {
            self.discard(&self.layout.layer(&layer.chain_id).path)?;
        }
        Ok(())
    }

    fn needed(&self, keep: BTreeSet<Digest>) -> HashSet<Digest> {
        let held = self.held.lock().values().flatten().cloned().collect::<Vec<_>>();
        let snapshots = self.snapshots.list();
        let tops = snapshots.iter().filter(|record| record.snapshotter == self.snapshotter);
        let tops = tops.filter_map(|record| record.top.clone());
        let mut ahead: Vec<Digest> = keep.into_iter().chain(held).chain(tops).collect();
        let mut needed = HashSet::new();
        while let Some(id) = ahead.pop() {
            if let Some(layer) = self.layer(&id) {
                ahead.extend(layer.parent.clone().filter(|parent| !needed.contains(parent)));
            }
            needed.insert(id);
        }
        needed
    }

    fn user_of(&self, chain_id: &Digest) -> Option<String> {
        if self.held.lock().values().any(|held| held.contains(chain_id)) {
            return Some("a pull".to_owned());
        }
        let child = self.own_layers().find(|layer| layer.parent.as_ref() == Some(chain_id));
        if let Some(child) = child {
            return Some(format!("layer {}", child.chain_id));
        }
        let mut snapshots = self.snapshots.list().into_iter();
        let user = snapshots.find(|record| {
            record.snapshotter == self.snapshotter && record.top.as_ref() == Some(chain_id)
        });
        user.map(|record| format!("snapshot {}", record.key))
    }
}

impl Staging {
    /// What to apply the layer into.
    pub fn dir(&self) -> &LayerDir {
        &self.dir
    }

    pub fn chain_id(&self) -> &Digest {
        &self.chain_id
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.committed {
            return;
        }
        if let Err(error) = self.inner.discard(&self.dir.path) {
            let error = base::Chain(&error);
            tracing::warn!(dir = %self.dir.path.display(), %error, "staging stays until restart");
        }
    }
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Staging({} in {})", self.chain_id, self.dir.path.display())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.inner.held.lock().remove(&self.id);
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hold({})", self.id)
    }
}
