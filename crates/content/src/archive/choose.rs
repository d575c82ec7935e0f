//! Which files of an archive are images, and what they are called.

use std::{collections::BTreeMap, io::Read};

use base::{Digest, ImageRef};
use serde::Deserialize;

use super::{
    ArchiveError,
    read::{Contents, LIST_LIMIT},
};
use crate::{
    blobs::{BlobError, BlobStore},
    digest::sha256,
    error::ContentError,
    image::{
        config::{ConfigError, ImageConfig},
        manifest::{CONFIG_LIMIT, Descriptor, Document, Index, MANIFEST_LIMIT, Manifest},
        media,
        platform::Platform,
    },
    lease::Lease,
    record::{ImageRecord, Root, StoredBlob},
};

/// Docker writes the whole name here.
const FULL_NAME: &str = "io.containerd.image.name";
/// OCI's: a tag, or whatever the tool thought right.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

const INDEX: &str = "index.json";
const DOCKER: &str = "manifest.json";

/// The images of the archive that run on `platform`, their documents in the store.
pub(super) fn images(
    contents: &Contents,
    blobs: &BlobStore,
    lease: &Lease,
    platform: &Platform,
    default: Option<&ImageRef>,
) -> Result<Vec<ImageRecord>, ContentError> {
    let chooser = Chooser { contents, blobs, lease, platform, default };
    match (&contents.index, &contents.docker) {
        (Some(index), _) => chooser.oci(index),
        (None, Some(list)) => chooser.docker(list),
        (None, None) => Err(ArchiveError::NotAnArchive.into()),
    }
}

struct Chooser<'a> {
    contents: &'a Contents,
    blobs: &'a BlobStore,
    lease: &'a Lease,
    platform: &'a Platform,
    default: Option<&'a ImageRef>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Option<Vec<String>>,
}

impl Chooser<'_> {
    fn oci(&self, index: &[u8]) -> Result<Vec<ImageRecord>, ContentError> {
        let bad = |why: String| ArchiveError::List { list: INDEX, why };
        let parsed = Document::parse(index, Some(media::OCI_INDEX));
        let index = match parsed.map_err(|e| bad(e.to_string()))? {
            Document::Index(index) => index,
            Document::Manifest(_) => return Err(bad("is a manifest".to_owned()).into()),
        };
        // Several entries with names are several images; without, they are one image for
        // several platforms.
        let named = |entry: &&Descriptor| {
            entry.annotations.contains_key(FULL_NAME) || entry.annotations.contains_key(REF_NAME)
        };
        let several = index.manifests.iter().any(|entry| named(&entry));
        let entries: Vec<&Descriptor> = match several {
            true => index.manifests.iter().filter(named).collect(),
            false => vec![self.choose(&index)?],
        };
        let mut images: BTreeMap<Digest, ImageRecord> = BTreeMap::new();
        for entry in entries {
            let image = self.image(entry, self.names(entry)?)?;
            match images.get_mut(&image.id) {
                Some(same) => {
                    same.names.extend(image.names);
                    same.roots.extend(image.roots);
                }
                None => drop(images.insert(image.id.clone(), image)),
            }
        }
        Ok(images.into_values().collect())
    }

    fn choose<'i>(&self, index: &'i Index) -> Result<&'i Descriptor, ContentError> {
        index.choose(self.platform).ok_or_else(|| ContentError::Platform {
            wanted: Box::new(self.platform.clone()),
            offered: index.platforms().cloned().collect(),
        })
    }

    fn names(&self, entry: &Descriptor) -> Result<Vec<ImageRef>, ArchiveError> {
        let parse = |name: &String| {
            let parsed = name.parse::<ImageRef>();
            parsed.map_err(|source| ArchiveError::Name { list: INDEX, name: name.clone(), source })
        };
        let full = entry.annotations.get(FULL_NAME).map(parse).transpose()?;
        let short = entry.annotations.get(REF_NAME);
        let name = match (full, short, self.default) {
            (Some(full), _, _) => Some(full),
            (None, Some(name), _) if name.contains(['/', ':']) => Some(parse(name)?),
            (None, Some(tag), Some(default)) => tag
                .parse()
                .ok()
                .map(|tag| ImageRef::tagged(default.repository().clone(), tag))
                .or_else(|| Some(default.clone())),
            (None, None, default) => default.cloned(),
            // A bare tag names nothing without a repository.
            (None, Some(_), None) => None,
        };
        Ok(name.into_iter().collect())
    }

    fn image(&self, entry: &Descriptor, names: Vec<ImageRef>) -> Result<ImageRecord, ContentError> {
        let mut documents = Vec::new();
        let mut wanted = entry.clone();
        let manifest = loop {
            let bytes = self.read(&wanted.digest, MANIFEST_LIMIT)?;
            let size = bytes.len() as u64;
            documents.push(StoredBlob { digest: wanted.digest.clone(), size });
            let parsed = Document::parse(&bytes, Some(&wanted.media_type));
            let digest = wanted.digest.clone();
            match parsed.map_err(|source| ContentError::Manifest { digest, source })? {
                Document::Manifest(manifest) => break manifest,
                Document::Index(index) if documents.len() < 3 => {
                    wanted = self.choose(&index)?.clone();
                }
                Document::Index(_) => {
                    return Err(ContentError::Nested { digest: entry.digest.clone() });
                }
            }
        };
        for layer in &manifest.layers {
            self.require(INDEX, &layer.digest, layer.size)?;
        }
        let root = Root::new(documents, entry.media_type.clone(), &manifest);
        self.record(&manifest, entry.digest.clone(), root, names)
    }

    fn docker(&self, list: &[u8]) -> Result<Vec<ImageRecord>, ContentError> {
        let entries: Vec<DockerImage> = serde_json::from_slice(list)
            .map_err(|e| ArchiveError::List { list: DOCKER, why: e.to_string() })?;
        entries.into_iter().map(|entry| self.docker_image(entry)).collect()
    }

    /// There is no manifest: we write the one the image would have.
    fn docker_image(&self, entry: DockerImage) -> Result<ImageRecord, ContentError> {
        let find = |file: &str| {
            let missing = || ArchiveError::Missing { list: DOCKER, file: file.to_owned() };
            self.contents.file(file).cloned().ok_or_else(missing)
        };
        let (config, config_size) = find(&entry.config)?;
        let mut layers = Vec::new();
        for file in entry.layers.unwrap_or_default() {
            let (digest, size) = find(&file)?;
            layers.push(Descriptor::new(self.layer_type(&digest)?, digest, size));
        }
        let manifest = Manifest {
            schema_version: 2,
            media_type: media::OCI_MANIFEST.to_owned(),
            config: Descriptor::new(media::OCI_CONFIG, config, config_size),
            layers,
        };
        let bytes = serde_json::to_vec(&manifest)
            .map_err(|e| ArchiveError::List { list: DOCKER, why: e.to_string() })?;
        let digest = sha256(&bytes);
        self.lease.add([&digest]);
        self.blobs.put(&digest, &bytes)?;
        let size = bytes.len() as u64;
        let documents = vec![StoredBlob { digest: digest.clone(), size }];
        let root = Root::new(documents, manifest.media_type.clone(), &manifest);
        let mut names = Vec::new();
        for name in entry.repo_tags.unwrap_or_default() {
            let parsed = name.parse::<ImageRef>();
            let list = DOCKER;
            names.push(parsed.map_err(|source| ArchiveError::Name { list, name, source })?);
        }
        if names.is_empty() {
            names.extend(self.default.cloned());
        }
        self.record(&manifest, digest, root, names)
    }

    fn record(
        &self,
        manifest: &Manifest,
        root_digest: Digest,
        root: Root,
        names: Vec<ImageRef>,
    ) -> Result<ImageRecord, ContentError> {
        let digest = &manifest.config.digest;
        let bytes = self.read(digest, CONFIG_LIMIT)?;
        let bad = |source| ContentError::Config { digest: digest.clone(), source };
        let config = ImageConfig::parse(&bytes).map_err(bad)?;
        if config.diff_ids.len() != manifest.layers.len() {
            let (diff_ids, layers) = (config.diff_ids.len(), manifest.layers.len());
            return Err(bad(ConfigError::LayerCount { diff_ids, layers }));
        }
        if !self.platform.runs(&config.platform) {
            let (wanted, offered) = (Box::new(self.platform.clone()), vec![config.platform]);
            return Err(ContentError::Platform { wanted, offered });
        }
        let mut record = ImageRecord::new(digest.clone(), bytes.len() as u64, &config);
        record.names = names.into_iter().map(|name| (name, root_digest.clone())).collect();
        record.roots = BTreeMap::from([(root_digest, root)]);
        Ok(record)
    }

    /// From the archive, or from the store if it was here before.
    fn read(&self, digest: &Digest, limit: u64) -> Result<Vec<u8>, ContentError> {
        self.lease.add([digest]);
        self.blobs.read(digest, limit.max(LIST_LIMIT)).map_err(|error| match error {
            BlobError::Missing(digest) => {
                ArchiveError::Missing { list: INDEX, file: digest.to_string() }.into()
            }
            other => other.into(),
        })
    }

    fn require(&self, list: &'static str, digest: &Digest, size: u64) -> Result<(), ContentError> {
        self.lease.add([digest]);
        match self.blobs.size(digest)? {
            Some(found) if found == size => Ok(()),
            _ => Err(ArchiveError::Missing { list, file: digest.to_string() }.into()),
        }
    }

    fn layer_type(&self, digest: &Digest) -> Result<&'static str, ContentError> {
        let mut magic = Vec::new();
        let file = self.blobs.open_blob(digest)?;
        let read = file.take(4).read_to_end(&mut magic);
        read.map_err(BlobError::io("read", self.blobs.path(digest)))?;
        Ok(match magic[..] {
            [0x1f, 0x8b, ..] => media::OCI_LAYER_GZIP,
            [0x28, 0xb5, 0x2f, 0xfd] => media::OCI_LAYER_ZSTD,
            _ => media::OCI_LAYER,
        })
    }
}
