//! Images made offline, byte for byte the same each time.

use std::{fs, io::Write, path::Path};

use anyhow::{Context, Result};
use base::Digest;
use bytes::Bytes;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

const OCI: &str = "application/vnd.oci.image";

pub fn digest_of(bytes: &[u8]) -> Digest {
    Digest::sha256(Sha256::digest(bytes).into())
}

/// Bytes that do not compress, the same for the same seed.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        // xorshift64: small, fast, and noise enough.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
    Zstd,
}

/// A layer in the making: a tar that grows.
pub struct LayerBuilder {
    tar: tar::Builder<Vec<u8>>,
    compression: Compression,
}

impl Default for LayerBuilder {
    fn default() -> Self {
        Self { tar: tar::Builder::new(Vec::new()), compression: Compression::Gzip }
    }
}

impl std::fmt::Debug for LayerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LayerBuilder({:?}, {} bytes)", self.compression, self.tar.get_ref().len())
    }
}

impl LayerBuilder {
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    #[must_use]
    pub fn dir(self, path: &str, mode: u32) -> Self {
        self.entry(path, tar::EntryType::Directory, mode, b"", None)
    }

    #[must_use]
    pub fn file(self, path: &str, mode: u32, bytes: &[u8]) -> Self {
        self.entry(path, tar::EntryType::Regular, mode, bytes, None)
    }

    #[must_use]
    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(path, tar::EntryType::Symlink, 0o777, b"", Some(target))
    }

    #[must_use]
    pub fn hard_link(self, path: &str, target: &str) -> Self {
        self.entry(path, tar::EntryType::Link, 0o755, b"", Some(target))
    }

    fn entry(
        mut self,
        path: &str,
        kind: tar::EntryType,
        mode: u32,
        bytes: &[u8],
        target: Option<&str>,
    ) -> Self {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_700_000_000);
        header.set_size(bytes.len() as u64);
        let added = match target {
            Some(target) => self.tar.append_link(&mut header, path, target),
            None => self.tar.append_data(&mut header, path, bytes),
        };
        added.expect("a tar in memory takes what fits a header");
        self
    }

    pub fn build(self) -> Layer {
        let tar = self.tar.into_inner().expect("a tar in memory ends");
        Layer::of_tar(&tar, self.compression)
    }
}

/// A finished layer.
#[derive(Clone, Debug)]
pub struct Layer {
    pub blob: Blob,
    pub diff_id: Digest,
}

impl Layer {
    /// Of any bytes, be they a tar or not.
    pub fn of_tar(tar: &[u8], compression: Compression) -> Self {
        let (suffix, bytes) = match compression {
            Compression::None => ("", tar.to_vec()),
            Compression::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
                let bytes = encoder.write_all(tar).and_then(|()| encoder.finish());
                ("+gzip", bytes.expect("compressing in memory works"))
            }
            Compression::Zstd => {
                ("+zstd", zstd::encode_all(tar, 1).expect("compressing in memory works"))
            }
        };
        let blob = Blob::new(format!("{OCI}.layer.v1.tar{suffix}"), bytes);
        Self { blob, diff_id: digest_of(tar) }
    }

    /// One file of `len` bytes that do not compress.
    pub fn of_noise(len: usize, seed: u64) -> Self {
        LayerBuilder::default().file(&format!("noise-{seed}"), 0o644, &noise(len, seed)).build()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    pub media_type: String,
    pub digest: Digest,
    pub bytes: Bytes,
}

impl Blob {
    pub fn new(media_type: impl Into<String>, bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self { media_type: media_type.into(), digest: digest_of(&bytes), bytes }
    }

    fn descriptor(&self) -> Value {
        json!({ "mediaType": self.media_type, "digest": self.digest, "size": self.bytes.len() })
    }
}

/// An image in the making.
#[derive(Clone, Debug)]
pub struct ImageBuilder {
    layers: Vec<Layer>,
    config: Value,
    docker: bool,
}

impl Default for ImageBuilder {
    /// For this machine.
    fn default() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let config = json!({
            "architecture": architecture,
            "os": "linux",
            "created": "2024-01-02T03:04:05Z",
            "config": { "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"] },
        });
        Self { layers: Vec::new(), config, docker: false }
    }
}

impl ImageBuilder {
    #[must_use]
    pub fn layer(mut self, layer: Layer) -> Self {
        self.layers.push(layer);
        self
    }

    /// A field of what containers run: `User`, `Cmd`, `Env`…
    #[must_use]
    pub fn set(mut self, field: &str, value: Value) -> Self {
        self.config["config"][field] = value;
        self
    }

    /// `os/architecture[/variant]`.
    #[must_use]
    pub fn platform(mut self, platform: &str) -> Self {
        let mut parts = platform.split('/');
        self.config["os"] = parts.next().unwrap_or_default().into();
        self.config["architecture"] = parts.next().unwrap_or_default().into();
        if let Some(variant) = parts.next() {
            self.config["variant"] = variant.into();
        }
        self
    }

    /// In Docker's media types instead of OCI's.
    #[must_use]
    pub fn docker(mut self) -> Self {
        self.docker = true;
        self
    }

    pub fn build(mut self) -> Image {
        let diff_ids: Vec<&Digest> = self.layers.iter().map(|layer| &layer.diff_id).collect();
        self.config["rootfs"] = json!({ "type": "layers", "diff_ids": diff_ids });
        let (config_type, manifest_type) = match self.docker {
            true => (
                "application/vnd.docker.container.image.v1+json".to_owned(),
                "application/vnd.docker.distribution.manifest.v2+json".to_owned(),
            ),
            false => (format!("{OCI}.config.v1+json"), format!("{OCI}.manifest.v1+json")),
        };
        let config = Blob::new(config_type, self.config.to_string());
        let layers: Vec<Blob> = self.layers.iter().map(|layer| layer.blob.clone()).collect();
        let descriptors: Vec<Value> = layers.iter().map(Blob::descriptor).collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": manifest_type,
            "config": config.descriptor(),
            "layers": descriptors,
        });
        let manifest = Blob::new(manifest_type, manifest.to_string());
        let mut platform =
            json!({ "os": self.config["os"], "architecture": self.config["architecture"] });
        if let Some(variant) = self.config.get("variant") {
            platform["variant"] = variant.clone();
        }
        Image { manifest, config, layers, platform }
    }
}

/// One image for one platform.
#[derive(Clone, Debug)]
pub struct Image {
    pub manifest: Blob,
    pub config: Blob,
    pub layers: Vec<Blob>,
    platform: Value,
}

impl Image {
    /// As the daemon names it.
    pub fn id(&self) -> &Digest {
        &self.config.digest
    }

    /// Configuration and layers.
    pub fn blobs(&self) -> impl Iterator<Item = &Blob> {
        std::iter::once(&self.config).chain(&self.layers)
    }

    /// Writes an OCI layout; `name` becomes the annotation that names the image.
    pub fn write_layout(&self, dir: &Path, name: Option<&str>) -> Result<()> {
        let blobs = dir.join("blobs/sha256");
        fs::create_dir_all(&blobs)?;
        for blob in self.blobs().chain([&self.manifest]) {
            fs::write(blobs.join(blob.digest.hex()), &blob.bytes)?;
        }
        let mut entry = self.manifest.descriptor();
        if let Some(name) = name {
            entry["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
        }
        let index = json!({ "schemaVersion": 2, "manifests": [entry] });
        fs::write(dir.join("index.json"), index.to_string())?;
        fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
        Ok(())
    }

    /// The tar that `docker save` wrote before it knew OCI: a folder per layer, a layer
    /// that comes twice is a link.
    pub fn docker_archive(&self, names: &[&str]) -> Vec<u8> {
        let mut builder = LayerBuilder::default();
        let mut paths: Vec<String> = Vec::new();
        for (at, layer) in self.layers.iter().enumerate() {
            let path = format!("layer{at}/layer.tar");
            let same = self.layers[..at].iter().position(|other| other == layer);
            builder = match same {
                Some(first) => builder.symlink(&path, &format!("../layer{first}/layer.tar")),
                None => builder.file(&path, 0o644, &layer.bytes),
            };
            paths.push(path);
        }
        let config = format!("{}.json", self.config.digest.hex());
        let list = json!([{ "Config": config, "RepoTags": names, "Layers": paths }]);
        let builder = builder.file(&config, 0o644, &self.config.bytes);
        let builder = builder.file("manifest.json", 0o644, list.to_string().as_bytes());
        builder.tar.into_inner().expect("a tar in memory ends")
    }
}

/// The same image for several platforms.
#[derive(Clone, Debug)]
pub struct Index {
    pub blob: Blob,
    pub images: Vec<Image>,
}

impl Index {
    pub fn of(images: Vec<Image>) -> Self {
        let entry = |image: &Image| {
            let mut entry = image.manifest.descriptor();
            entry["platform"] = image.platform.clone();
            entry
        };
        let entries: Vec<Value> = images.iter().map(entry).collect();
        let media_type = format!("{OCI}.index.v1+json");
        let index = json!({ "schemaVersion": 2, "mediaType": media_type, "manifests": entries });
        Self { blob: Blob::new(media_type, index.to_string()), images }
    }

    /// Writes an OCI layout of all platforms.
    pub fn write_layout(&self, dir: &Path, name: &str) -> Result<()> {
        for image in &self.images {
            image.write_layout(dir, None)?;
        }
        fs::write(dir.join("blobs/sha256").join(self.blob.digest.hex()), &self.blob.bytes)?;
        let mut entry = self.blob.descriptor();
        entry["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
        let index = json!({ "schemaVersion": 2, "manifests": [entry] });
        Ok(fs::write(dir.join("index.json"), index.to_string())?)
    }
}

/// What people have in an image of busybox, of the statically linked one of this machine.
pub fn busybox() -> Result<Image> {
    Ok(busybox_with()?.build())
}

/// The same, to be added to.
pub fn busybox_with() -> Result<ImageBuilder> {
    let program = ["/bin/busybox", "/usr/bin/busybox"].iter().find(|path| Path::new(path).exists());
    let program = program.context("no busybox here: install busybox-static")?;
    let bytes = fs::read(program).with_context(|| format!("read {program}"))?;
    let mut layer = LayerBuilder::default();
    for (dir, mode) in [
        ("bin", 0o755),
        ("etc", 0o755),
        ("home", 0o755),
        ("root", 0o700),
        ("tmp", 0o1777),
        ("var", 0o755),
    ] {
        layer = layer.dir(dir, mode);
    }
    layer = layer.file("bin/busybox", 0o755, &bytes);
    for applet in APPLETS {
        layer = layer.symlink(&format!("bin/{applet}"), "busybox");
    }
    let users = b"root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33:www:/var:/bin/false\n";
    let groups = b"root:x:0:\nwww-data:x:33:\n";
    let layer = layer.file("etc/passwd", 0o644, users).file("etc/group", 0o644, groups);
    Ok(ImageBuilder::default().layer(layer.build()).set("Cmd", json!(["sh"])))
}

const APPLETS: [&str; 44] = [
    "[", "ash", "awk", "basename", "cat", "chmod", "chown", "cp", "cut", "date", "dd", "df",
    "dirname", "echo", "env", "expr", "false", "find", "grep", "head", "hostname", "httpd", "id",
    "ip", "kill", "ln", "ls", "mkdir", "mount", "mv", "nc", "ps", "pwd", "rm", "sed", "seq", "sh",
    "sleep", "sort", "stat", "tail", "test", "true", "wget",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_made_twice_is_the_same() {
        let make = || ImageBuilder::default().layer(Layer::of_noise(5_000, 7)).build();
        assert_eq!(make().manifest, make().manifest);
        assert_ne!(noise(100, 1), noise(100, 2));
        assert_eq!(noise(13, 1).len(), 13);
    }

    #[test]
    fn documents_name_their_parts() {
        let image = ImageBuilder::default().layer(Layer::of_noise(10, 1)).docker().build();
        let manifest: Value = serde_json::from_slice(&image.manifest.bytes).expect("is JSON");
        assert_eq!(manifest["config"]["digest"], image.id().as_str());
        assert_eq!(manifest["layers"][0]["size"], image.layers[0].bytes.len());
        let index = Index::of(vec![image.clone()]);
        let parsed: Value = serde_json::from_slice(&index.blob.bytes).expect("is JSON");
        assert_eq!(parsed["manifests"][0]["platform"]["os"], "linux");
    }

    #[test]
    fn busybox_has_a_shell() {
        let Ok(image) = busybox() else {
            return crate::skip("busybox_has_a_shell", "no busybox here");
        };
        let tar = flate2::read::GzDecoder::new(&image.layers[0].bytes[..]);
        let mut tar = tar::Archive::new(tar);
        let entries = tar.entries().expect("reads").map(|entry| entry.expect("reads"));
        let paths: Vec<_> =
            entries.map(|entry| entry.path().expect("a path").into_owned()).collect();
        for path in ["bin/busybox", "bin/sh", "etc/passwd", "tmp"] {
            assert!(paths.iter().any(|found| found == Path::new(path)), "{path} is not in it");
        }
    }
}
