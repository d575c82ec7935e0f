//! Removal, and the collection of what nothing needs.
//!
//! Needed is what a record names or work in flight leases. The look and the deed happen
//! under the lock of the leases (see `lease`); the long part, deleting, comes after.

use std::{collections::BTreeSet, sync::Arc};

use base::{Digest, ImageQuery, ImageRef};

use crate::{
    error::ContentError,
    images::{Images, Inner},
    layer::LayerSink,
    record::{Found, ImageRecord, untag},
};

/// An image that was removed, or a name of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    pub id: Digest,
    /// All it had, or the one that was taken.
    pub names: Vec<ImageRef>,
    /// Whether the image itself is gone.
    pub gone: bool,
}

/// What was deleted, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    pub blobs: Vec<(Digest, u64)>,
    /// Downloads that did not end.
    pub partials: Vec<(Digest, u64)>,
}

impl Pruned {
    pub fn bytes(&self) -> u64 {
        self.blobs.iter().chain(&self.partials).map(|(_, size)| size).sum()
    }
}

impl<S: LayerSink> Images<S> {
    /// Removes an image, whichever of its names is given, with all of them. `None` if there
    /// is no such image: nothing to do is no error. Running containers keep their snapshots.
    ///
    /// Cancel safe: what is left then is found by [`Images::prune`].
    pub async fn remove(&self, query: &str) -> Result<Option<Removed>, ContentError> {
        match self.0.forget(&query.parse()?, |_| None).await? {
            Found::One(image) => {
                self.0.discard_of(&image).await?;
                let names = image.names.keys().cloned().collect();
                Ok(Some(Removed { id: image.id.clone(), names, gone: true }))
            }
            Found::None => Ok(None),
            Found::Several => Err(ContentError::Ambiguous(query.to_owned())),
        }
    }

    /// Takes one name away; the image goes with its last one.
    ///
    /// Cancel safe like [`Images::remove`].
    pub async fn untag(&self, name: &ImageRef) -> Result<Removed, ContentError> {
        let query = ImageQuery::Name(name.clone());
        match self.0.forget(&query, |image| untag(image, name)).await? {
            Found::One(image) => {
                self.0.discard_of(&image).await?;
                let gone = self.0.table.get(&image.id).is_none();
                Ok(Removed { id: image.id.clone(), names: vec![name.clone()], gone })
            }
            Found::None | Found::Several => Err(ContentError::NoSuchImage(name.to_string())),
        }
    }

    /// Deletes every blob and every part of one that nothing needs.
    ///
    /// Cancel safe: what was begun is finished.
    pub async fn prune(&self) -> Result<Pruned, ContentError> {
        let images = Arc::clone(&self.0);
        self.0.blocking(move || images.sweep(Deed::Delete)).await
    }

    /// What [`Images::prune`] would delete now.
    ///
    /// Cancel safe.
    pub async fn prune_dry_run(&self) -> Result<Pruned, ContentError> {
        let images = Arc::clone(&self.0);
        self.0.blocking(move || images.sweep(Deed::Look)).await
    }

    /// Runs `act` if no image and no pull needs the unpacked layer; none can begin to
    /// while it runs, so keep it short (a rename).
    pub fn if_chain_unneeded<R>(&self, chain_id: &Digest, act: impl FnOnce() -> R) -> Option<R> {
        let named = || self.0.table.list().iter().any(|image| image.chain_ids().contains(chain_id));
        self.0.leases.unless_leased(chain_id, || (!named()).then(act)).flatten()
    }

    /// The unpacked layers that records name: what a collection of snapshots keeps.
    pub fn chains(&self) -> BTreeSet<Digest> {
        self.0.table.list().iter().flat_map(|image| image.chain_ids()).collect()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Deed {
    Look,
    Delete,
}

impl<S: LayerSink> Inner<S> {
    /// The blobs of an image whose record has gone or shrunk.
    async fn discard_of(self: &Arc<Self>, image: &ImageRecord) -> Result<(), ContentError> {
        let blobs = image.blobs().map(|(digest, _)| digest.clone()).collect();
        self.discard_unneeded(blobs).await
    }

    /// Those of them that nothing needs.
    pub(crate) async fn discard_unneeded(
        self: &Arc<Self>,
        blobs: BTreeSet<Digest>,
    ) -> Result<(), ContentError> {
        let images = Arc::clone(self);
        self.blocking(move || {
            for digest in &blobs {
                images.sweep_blob(digest, Deed::Delete)?;
            }
            Ok(())
        })
        .await?;
        self.delete_in_background();
        Ok(())
    }

    /// Out of sight already; the caller need not wait for the disk.
    pub(crate) fn delete_in_background(&self) {
        let blobs = self.blobs.clone();
        self.tracker.spawn_blocking(move || {
            if let Err(error) = blobs.empty_trash() {
                // Tried again at each removal and at the next start.
                tracing::warn!(error = %base::Chain(&error), "discarded blobs cannot be deleted");
            }
        });
    }

    fn sweep(&self, deed: Deed) -> Result<Pruned, ContentError> {
        let mut pruned = Pruned::default();
        for (digest, size) in self.blobs.list()? {
            if self.sweep_blob(&digest, deed)? {
                pruned.blobs.push((digest, size));
            }
        }
        for partial in self.blobs.partials()? {
            let act = || {
                // One that nobody wants any more may still be ending.
                let idle = !self.downloads.is_flying(&partial.digest);
                if idle && deed == Deed::Delete {
                    self.blobs.remove_partial(&partial.digest)?;
                }
                Ok::<_, ContentError>(idle)
            };
            if self.leases.unless_leased(&partial.digest, act).unwrap_or(Ok(false))? {
                pruned.partials.push((partial.digest, partial.bytes));
            }
        }
        if deed == Deed::Delete {
            self.blobs.empty_trash()?;
        }
        Ok(pruned)
    }

    /// True if nothing needs it and it was here.
    fn sweep_blob(&self, digest: &Digest, deed: Deed) -> Result<bool, ContentError> {
        let named = || {
            let known = self.table.list();
            known.iter().any(|image| image.blobs().any(|(other, _)| other == digest))
        };
        let act = || match deed {
            _ if named() => Ok(false),
            Deed::Look => Ok(self.blobs.has(digest)),
            Deed::Delete => self.blobs.discard(digest),
        };
        Ok(self.leases.unless_leased(digest, act).unwrap_or(Ok(false))?)
    }
}
