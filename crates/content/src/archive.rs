//! Images from files and to files.
//!
//! ```text
//!  OCI layout      oci-layout, index.json, blobs/<algorithm>/<hex>
//!  docker-archive  manifest.json, <config>.json, <layer>/layer.tar
//! ```
//!
//! Both as a tar (plain, gzip or zstd) or as a folder; what has both forms, as newer Docker
//! writes it, is read by its index. We write one tar that is both.
//!
//! An archive is read once, front to back: every file becomes a blob under its digest, then
//! the lists say which of them are images, and the rest is discarded.

mod choose;
mod read;
mod write;

use std::{
    io::{Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use base::{Digest, DigestError, ImageRef, ImageRefError, Kind};

use crate::{
    blobs::BlobStore,
    error::ContentError,
    image::platform::Platform,
    images::{Images, Inner},
    layer::LayerSink,
    lease::Lease,
    pull::{commit, unpack_layers},
    record::ImageRecord,
};

#[derive(Clone, Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("read {what}")]
    Read { what: String, source: Arc<std::io::Error> },
    #[error("write")]
    Write(#[source] Arc<std::io::Error>),
    #[error("neither index.json nor manifest.json is in it: not an image archive")]
    NotAnArchive,
    #[error("more than {limit} files")]
    TooManyFiles { limit: usize },
    #[error("{file} of {bytes} bytes: the limit is {limit}")]
    TooLarge { file: String, bytes: u64, limit: u64 },
    #[error("{file} is not named by its digest: its bytes are {got}")]
    WrongName { file: String, got: Digest },
    #[error("{file}: {source}")]
    Digest { file: String, source: DigestError },
    #[error("{list}: {why}")]
    List { list: &'static str, why: String },
    #[error("{list} names {file}, which is not in it")]
    Missing { list: &'static str, file: String },
    #[error("{name:?} in {list}")]
    Name { list: &'static str, name: String, source: ImageRefError },
    #[error("compressed layers of {0} were not kept: pull it again to export it")]
    NotKept(Digest),
}

impl ArchiveError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Read { source, .. } | Self::Write(source) => Kind::from(source.as_ref()),
            Self::NotKept(_) => Kind::FailedPrecondition,
            _ => Kind::Invalid,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// Else the machine's.
    pub platform: Option<Platform>,
    /// Else the configured one.
    pub snapshotter: Option<Arc<str>>,
    /// The repository of images that the archive names by a tag alone, or not at all.
    pub name: Option<ImageRef>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    pub id: Digest,
    /// None if the archive gives it none: it is then known by its id.
    pub names: Vec<ImageRef>,
}

impl<S: LayerSink> Images<S> {
    /// Takes in the images of a tar. The archive is read where blocking is fine.
    ///
    /// Cancel safe: images are made known one by one, each whole.
    pub async fn import(
        &self,
        archive: impl Read + Send + 'static,
        options: ImportOptions,
    ) -> Result<Vec<Imported>, ContentError> {
        self.import_by(options, move |blobs, lease| read::tar(archive, blobs, lease)).await
    }

    /// The same from a folder.
    ///
    /// Cancel safe like [`Images::import`].
    pub async fn import_dir(
        &self,
        dir: &Path,
        options: ImportOptions,
    ) -> Result<Vec<Imported>, ContentError> {
        let dir: PathBuf = dir.to_owned();
        self.import_by(options, move |blobs, lease| read::folder(&dir, blobs, lease)).await
    }

    async fn import_by(
        &self,
        options: ImportOptions,
        read: impl FnOnce(&BlobStore, &Lease) -> Result<read::Contents, ContentError> + Send + 'static,
    ) -> Result<Vec<Imported>, ContentError> {
        let images = &self.0;
        let ImportOptions { platform, snapshotter, name } = options;
        let platform = platform.unwrap_or_else(|| images.config.platform.clone());
        let snapshotter = snapshotter.unwrap_or_else(|| Arc::clone(&images.config.snapshotter));
        let lease = images.lease();
        let blobs = images.blobs.clone();
        let (lease, contents, chosen) = images
            .blocking(move || {
                let contents = read(&blobs, &lease)?;
                let chosen = choose::images(&contents, &blobs, &lease, &platform, name.as_ref())?;
                Ok((lease, contents, chosen))
            })
            .await?;
        let mut imported = Vec::with_capacity(chosen.len());
        for image in chosen {
            imported.push(import_one(images, image, &snapshotter).await?);
        }
        drop(lease);
        let files = contents.files.into_values().map(|(digest, _)| digest);
        images.discard_unneeded(files.collect()).await?;
        Ok(imported)
    }

    /// Writes images to a tar that Docker, skopeo and we can read.
    ///
    /// Cancel safe for us; what was written stays written.
    pub async fn export(
        &self,
        queries: &[&str],
        out: impl Write + Send + 'static,
    ) -> Result<(), ContentError> {
        let lease = self.0.lease();
        let mut wanted = Vec::with_capacity(queries.len());
        for query in queries {
            let image = self.get(query)?.record;
            lease.add(image.blobs().map(|(digest, _)| digest));
            wanted.push(image);
        }
        let blobs = self.0.blobs.clone();
        self.0
            .blocking(move || {
                let written = write::tar(&blobs, &wanted, out);
                drop(lease);
                written
            })
            .await
    }
}

async fn import_one<S: LayerSink>(
    images: &Arc<Inner<S>>,
    mut image: ImageRecord,
    snapshotter: &Arc<str>,
) -> Result<Imported, ContentError> {
    let lease = images.lease();
    lease.add(image.blobs().map(|(digest, _)| digest));
    unpack_layers(images, &image, snapshotter, &lease).await?;
    for root in image.roots.values_mut() {
        root.keeps_layers = images.config.keep_layers;
    }
    let (id, names) = (image.id.clone(), image.names.keys().cloned().collect());
    commit(images, image, lease).await?;
    Ok(Imported { id, names })
}
