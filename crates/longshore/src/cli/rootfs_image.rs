//! An image made of a folder: one layer, written as an OCI layout in a tar.

use std::{
    fs::File,
    io::{self, Read, Seek, Write},
    path::Path,
};

use anyhow::Context;
use base::{Digest, ImageRef};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The layer lies in a file that is gone when it is closed; the documents are small.
#[derive(Debug)]
pub(super) struct RootfsImage {
    layer: File,
    layer_digest: Digest,
    layer_size: u64,
    name: String,
    config: Vec<u8>,
}

const OCI: &str = "application/vnd.oci.image";

impl RootfsImage {
    /// Packs `folder`; its containers run `command` unless told otherwise.
    pub(super) fn build(folder: &Path, name: &str, command: &[String]) -> anyhow::Result<Self> {
        let name: ImageRef = name.parse().with_context(|| format!("{name:?}"))?;
        let doing = || format!("pack {}", folder.display());
        let mut layer = unnamed_file()?;
        let mut hashed = Hashed { file: &mut layer, hash: Sha256::new(), size: 0 };
        let mut tar = tar::Builder::new(&mut hashed);
        tar.follow_symlinks(false);
        tar.append_dir_all(".", folder).with_context(doing)?;
        tar.into_inner().with_context(doing)?;
        let (layer_digest, layer_size) =
            (Digest::sha256(hashed.hash.finalize().into()), hashed.size);
        layer.rewind()?;
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let config = json!({
            "architecture": architecture,
            "os": "linux",
            "config": { "Cmd": command },
            "rootfs": { "type": "layers", "diff_ids": [layer_digest] },
        });
        let config = config.to_string().into_bytes();
        Ok(Self { layer, layer_digest, layer_size, name: name.to_string(), config })
    }

    /// The whole archive, to be read from its beginning.
    pub(super) fn into_archive(self) -> anyhow::Result<impl Read + Send + 'static> {
        let config = Digest::sha256(Sha256::digest(&self.config).into());
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": format!("{OCI}.manifest.v1+json"),
            "config": blob(&format!("{OCI}.config.v1+json"), &config, self.config.len() as u64),
            "layers": [blob(&format!("{OCI}.layer.v1.tar"), &self.layer_digest, self.layer_size)],
        });
        let manifest = manifest.to_string().into_bytes();
        let manifest_digest = Digest::sha256(Sha256::digest(&manifest).into());
        let mut entry =
            blob(&format!("{OCI}.manifest.v1+json"), &manifest_digest, manifest.len() as u64);
        entry["annotations"] = json!({
            "io.containerd.image.name": self.name,
            "org.opencontainers.image.ref.name": self.name,
        });
        let index = json!({ "schemaVersion": 2, "manifests": [entry] });
        let layout = json!({ "imageLayoutVersion": "1.0.0" });

        let mut tar = tar::Builder::new(unnamed_file()?);
        append(&mut tar, "oci-layout", layout.to_string().as_bytes())?;
        append(&mut tar, "index.json", index.to_string().as_bytes())?;
        append(&mut tar, &path(&config), &self.config)?;
        append(&mut tar, &path(&manifest_digest), &manifest)?;
        let mut header = header(self.layer_size);
        tar.append_data(&mut header, path(&self.layer_digest), self.layer)?;
        let mut archive = tar.into_inner()?;
        archive.rewind()?;
        Ok(archive)
    }
}

fn unnamed_file() -> anyhow::Result<File> {
    tempfile::tempfile().context("make a temporary file")
}

fn path(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

fn blob(media_type: &str, digest: &Digest, size: u64) -> Value {
    json!({ "mediaType": media_type, "digest": digest, "size": size })
}

fn header(size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(0o644);
    header
}

fn append(tar: &mut tar::Builder<File>, name: &str, bytes: &[u8]) -> io::Result<()> {
    tar.append_data(&mut header(bytes.len() as u64), name, bytes)
}

/// A file that knows the hash of what was written.
struct Hashed<'a> {
    file: &'a mut File,
    hash: Sha256,
    size: u64,
}

impl Write for Hashed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_holds_what_its_index_names() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("hello"), "x").unwrap();
        let command = ["/hello".to_owned()];
        let image = RootfsImage::build(dir.path(), "demo:1", &command).unwrap();
        let mut names = Vec::new();
        let mut archive = tar::Archive::new(image.into_archive().unwrap());
        let mut index = Value::Null;
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().to_string_lossy().into_owned();
            if name == "index.json" {
                index = serde_json::from_reader(&mut entry).unwrap();
            }
            names.push(name);
        }
        let manifest = index["manifests"][0]["digest"].as_str().unwrap();
        assert!(names.contains(&format!("blobs/{}", manifest.replace(':', "/"))), "{names:?}");
        assert_eq!(names.len(), 5);
    }
}
