//! One tar that is an OCI layout and a docker-archive at once.

use std::{
    collections::BTreeSet,
    io::{self, Read, Write},
    sync::Arc,
};

use base::Digest;
use serde_json::json;

use super::ArchiveError;
use crate::{
    blobs::BlobStore,
    error::ContentError,
    image::{
        manifest::{Document, MANIFEST_LIMIT},
        media,
    },
    record::{ImageRecord, Root},
};

pub(super) fn tar(
    blobs: &BlobStore,
    images: &[Arc<ImageRecord>],
    out: impl Write,
) -> Result<(), ContentError> {
    let mut lists = Lists::default();
    for image in images {
        lists.add(image, blobs)?;
    }
    let index = json!({
        "schemaVersion": 2, "mediaType": media::OCI_INDEX, "manifests": lists.index,
    });
    let mut tar = tar::Builder::new(out);
    let failed = |source: io::Error| ContentError::from(ArchiveError::Write(Arc::new(source)));
    // The lists come first: a reader then knows what each blob is for.
    for (name, list) in [
        ("oci-layout", json!({ "imageLayoutVersion": "1.0.0" })),
        ("index.json", index),
        ("manifest.json", json!(lists.docker)),
    ] {
        let text = list.to_string();
        append(&mut tar, name, text.len() as u64, text.as_bytes()).map_err(failed)?;
    }
    for digest in &lists.blobs {
        let size = blobs.size(digest)?.unwrap_or_default();
        append(&mut tar, &path(digest), size, blobs.open_blob(digest)?).map_err(failed)?;
    }
    tar.into_inner().and_then(|mut out| out.flush()).map_err(failed)
}

fn path(digest: &Digest) -> String {
    format!("blobs/{}/{}", digest.algorithm(), digest.hex())
}

fn append(
    tar: &mut tar::Builder<impl Write>,
    name: &str,
    size: u64,
    bytes: impl Read,
) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(0o644);
    tar.append_data(&mut header, name, bytes)
}

#[derive(Default)]
struct Lists {
    index: Vec<serde_json::Value>,
    docker: Vec<serde_json::Value>,
    blobs: BTreeSet<Digest>,
}

impl Lists {
    fn add(&mut self, image: &ImageRecord, blobs: &BlobStore) -> Result<(), ContentError> {
        let kept = |root: &&Root| root.keeps_layers;
        let root = image.roots.values().find(kept);
        let root = root.ok_or_else(|| ArchiveError::NotKept(image.id.clone()))?;
        let stored = root.manifest().ok_or_else(|| ArchiveError::NotKept(image.id.clone()))?;
        // Of an index only our platform is here, so the manifest stands for itself.
        let bytes = blobs.read(&stored.digest, MANIFEST_LIMIT)?;
        let digest = stored.digest.clone();
        let parsed = Document::parse(&bytes, None)
            .map_err(|source| ContentError::Manifest { digest, source })?;
        let media_type = match &parsed {
            Document::Manifest(manifest) => &manifest.media_type,
            Document::Index(index) => &index.media_type,
        };
        let descriptor = |name: Option<String>| {
            let mut entry = json!({
                "mediaType": media_type, "digest": stored.digest, "size": stored.size,
                "platform": image.platform,
            });
            if let Some(name) = name {
                entry["annotations"] = json!({
                    "io.containerd.image.name": name,
                    "org.opencontainers.image.ref.name": name,
                });
            }
            entry
        };
        let tags: Vec<String> = image.repo_tags().map(ToString::to_string).collect();
        match tags.is_empty() {
            true => self.index.push(descriptor(None)),
            false => self.index.extend(tags.iter().map(|name| descriptor(Some(name.clone())))),
        }
        let familiar: Vec<String> = image.repo_tags().map(|name| name.familiar()).collect();
        let layers: Vec<String> = root.layers.iter().map(|layer| path(&layer.digest)).collect();
        let config = path(&image.id);
        self.docker.push(json!({ "Config": config, "RepoTags": familiar, "Layers": layers }));
        self.blobs.insert(image.id.clone());
        self.blobs.insert(stored.digest.clone());
        self.blobs.extend(root.layers.iter().map(|layer| layer.digest.clone()));
        Ok(())
    }
}
