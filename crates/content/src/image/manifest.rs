//! Indexes and manifests.
//!
//! A document is what its own fields say, and the media type it was served under must
//! agree: bytes that two readers could take for two kinds of document are refused, since
//! one digest would then name two images.

use std::{collections::BTreeMap, fmt};

use base::{Digest, Kind};
use serde::{Deserialize, Serialize};

use super::{
    media,
    platform::{Platform, choose},
};

/// Far above what people push: registries refuse larger manifests themselves.
pub const MANIFEST_LIMIT: u64 = 4 << 20;
/// A configuration grows with its history and labels, not with the image.
pub const CONFIG_LIMIT: u64 = 8 << 20;
/// Layers of one image.
pub const LAYER_LIMIT: usize = 1024;
/// Entries of one index.
const ENTRY_LIMIT: usize = 4096;

/// Names a blob together with what is known before it is fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    pub media_type: String,
    pub digest: Digest,
    pub size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    #[serde(default, deserialize_with = "null_is_default")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl Descriptor {
    pub fn new(media_type: impl Into<String>, digest: Digest, size: u64) -> Self {
        let media_type = media_type.into();
        Self { media_type, digest, size, platform: None, annotations: BTreeMap::new() }
    }
}

/// Go writes `null` for what is empty.
pub(super) fn null_is_default<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// The JSON object in `bytes`. Serde would take an array of the fields as well, which no
/// other reader does.
pub(super) fn object<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    match bytes.trim_ascii_start().first() {
        Some(b'{') => serde_json::from_slice(bytes).map_err(|e| e.to_string()),
        _ => Err("it does not begin with {".to_owned()),
    }
}

/// One image, in the form of one platform.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    pub schema_version: u32,
    pub media_type: String,
    pub config: Descriptor,
    /// Lowest first.
    pub layers: Vec<Descriptor>,
}

/// The same image for several platforms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    pub schema_version: u32,
    pub media_type: String,
    pub manifests: Vec<Descriptor>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    Index(Index),
    Manifest(Manifest),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    #[error("manifest of {bytes} bytes: the limit is {limit}")]
    TooLarge { bytes: u64, limit: u64 },
    #[error("not a manifest: {0}")]
    Json(String),
    #[error("image manifest schema 1 is not supported: push the image again with a newer tool")]
    Schema1,
    #[error("manifest has schema version {0} and not 2")]
    SchemaVersion(u32),
    #[error("document is an index and a manifest at once")]
    Ambiguous,
    #[error("document is neither an index nor a manifest")]
    Neither,
    #[error("document says it is {says} and is {is}")]
    MediaType { says: String, is: Shape },
    #[error("served as {served} but says it is {says}")]
    ServedAs { served: String, says: String },
    #[error("not a container image: its configuration is {0}")]
    NotAnImage(String),
    #[error("image configuration of {bytes} bytes: the limit is {limit}")]
    ConfigTooLarge { bytes: u64, limit: u64 },
    #[error("layer {digest} has media type {media_type}, which is not supported")]
    LayerType { digest: Digest, media_type: String },
    #[error("{what} has {count} entries: the limit is {limit}")]
    TooMany { what: Shape, count: usize, limit: usize },
    #[error("layer sizes do not add up to a number")]
    Sizes,
}

impl ManifestError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Schema1 | Self::NotAnImage(_) | Self::LayerType { .. } => Kind::Unimplemented,
            _ => Kind::Invalid,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Index,
    Manifest,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Index => "an index",
            Self::Manifest => "a manifest",
        })
    }
}

/// Either document as it lies on the wire.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    #[serde(default)]
    schema_version: u32,
    media_type: Option<String>,
    manifests: Option<Vec<Descriptor>>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
    fs_layers: Option<serde::de::IgnoredAny>,
}

impl Document {
    /// `served` is the `Content-Type` or the descriptor's media type, where there is one.
    pub fn parse(bytes: &[u8], served: Option<&str>) -> Result<Self, ManifestError> {
        if bytes.len() as u64 > MANIFEST_LIMIT {
            let bytes = bytes.len() as u64;
            return Err(ManifestError::TooLarge { bytes, limit: MANIFEST_LIMIT });
        }
        let raw: Raw = object(bytes).map_err(ManifestError::Json)?;
        if raw.schema_version == 1 || raw.fs_layers.is_some() {
            return Err(ManifestError::Schema1);
        }
        if raw.schema_version != 2 {
            return Err(ManifestError::SchemaVersion(raw.schema_version));
        }
        let shape = match (&raw.manifests, raw.config.is_some() || raw.layers.is_some()) {
            (Some(_), true) => return Err(ManifestError::Ambiguous),
            (Some(_), false) => Shape::Index,
            (None, true) => Shape::Manifest,
            (None, false) => return Err(ManifestError::Neither),
        };
        let media_type = shape.media_type(raw.media_type.as_deref(), served)?;
        match shape {
            Shape::Index => Index::check(media_type, raw.manifests).map(Self::Index),
            Shape::Manifest => {
                Manifest::check(media_type, raw.config, raw.layers).map(Self::Manifest)
            }
        }
    }
}

impl Shape {
    /// The type the document has, from the one it names, else the one it was served as.
    fn media_type(self, says: Option<&str>, served: Option<&str>) -> Result<String, ManifestError> {
        let suits = |media_type: &str| match self {
            Self::Index => media::is_index(media_type),
            Self::Manifest => media::is_manifest(media_type),
        };
        // Registries behind plain file servers answer with a type that says nothing.
        let served = served.map(media::essence);
        let served = served.filter(|t| media::is_index(t) || media::is_manifest(t));
        let says = says.filter(|says| !says.is_empty());
        if let Some(says) = says
            && !suits(says)
        {
            return Err(ManifestError::MediaType { says: says.to_owned(), is: self });
        }
        match (says, served) {
            (Some(says), Some(served)) if says != served => {
                Err(ManifestError::ServedAs { served: served.to_owned(), says: says.to_owned() })
            }
            (Some(says), _) => Ok(says.to_owned()),
            (None, Some(served)) if suits(served) => Ok(served.to_owned()),
            (None, Some(served)) => {
                Err(ManifestError::MediaType { says: served.to_owned(), is: self })
            }
            (None, None) => Ok(match self {
                Self::Index => media::OCI_INDEX.to_owned(),
                Self::Manifest => media::OCI_MANIFEST.to_owned(),
            }),
        }
    }
}

impl Index {
    fn check(
        media_type: String,
        manifests: Option<Vec<Descriptor>>,
    ) -> Result<Self, ManifestError> {
        let manifests = manifests.unwrap_or_default();
        if manifests.len() > ENTRY_LIMIT {
            let (count, limit) = (manifests.len(), ENTRY_LIMIT);
            return Err(ManifestError::TooMany { what: Shape::Index, count, limit });
        }
        Ok(Self { schema_version: 2, media_type, manifests })
    }

    /// The entry a machine that is `want` should run.
    pub fn choose(&self, want: &Platform) -> Option<&Descriptor> {
        choose(want, &self.manifests)
    }

    pub fn platforms(&self) -> impl Iterator<Item = &Platform> {
        self.manifests.iter().filter_map(|entry| entry.platform.as_ref())
    }
}

impl Manifest {
    fn check(
        media_type: String,
        config: Option<Descriptor>,
        layers: Option<Vec<Descriptor>>,
    ) -> Result<Self, ManifestError> {
        let config = config.ok_or(ManifestError::Neither)?;
        if !media::is_config(&config.media_type) {
            return Err(ManifestError::NotAnImage(config.media_type));
        }
        if config.size > CONFIG_LIMIT {
            return Err(ManifestError::ConfigTooLarge { bytes: config.size, limit: CONFIG_LIMIT });
        }
        let layers = layers.unwrap_or_default();
        if layers.len() > LAYER_LIMIT {
            let (count, limit) = (layers.len(), LAYER_LIMIT);
            return Err(ManifestError::TooMany { what: Shape::Manifest, count, limit });
        }
        for layer in &layers {
            if !media::is_layer(&layer.media_type) || media::is_encrypted(&layer.media_type) {
                let Descriptor { digest, media_type, .. } = layer.clone();
                return Err(ManifestError::LayerType { digest, media_type });
            }
        }
        let manifest = Self { schema_version: 2, media_type, config, layers };
        manifest.checked_size().ok_or(ManifestError::Sizes)?;
        Ok(manifest)
    }

    fn checked_size(&self) -> Option<u64> {
        let sizes = self.layers.iter().map(|layer| layer.size);
        sizes.chain([self.config.size]).try_fold(0u64, u64::checked_add)
    }

    /// Bytes to fetch: configuration and compressed layers.
    pub fn size(&self) -> u64 {
        self.checked_size().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEX: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn descriptor(media_type: &str, size: u64) -> String {
        format!(r#"{{"mediaType":"{media_type}","digest":"{HEX}","size":{size}}}"#)
    }

    fn manifest(layers: &[String]) -> String {
        let config = descriptor(media::OCI_CONFIG, 2);
        format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{}]}}"#, layers.join(","))
    }

    #[track_caller]
    fn check(json: &str, served: Option<&str>, want: &str) {
        let got = match Document::parse(json.as_bytes(), served) {
            Ok(Document::Index(index)) => format!("index {}", index.manifests.len()),
            Ok(Document::Manifest(manifest)) => format!("manifest {}", manifest.size()),
            Err(error) => error.to_string(),
        };
        assert_eq!(got, want, "{json}");
    }

    #[test]
    fn documents_are_what_their_fields_say() {
        check(&manifest(&[descriptor(media::OCI_LAYER_GZIP, 40)]), None, "manifest 42");
        check(&manifest(&[]), Some("application/json; charset=utf-8"), "manifest 2");
        check(r#"{"schemaVersion":2,"manifests":[]}"#, Some(media::DOCKER_INDEX), "index 0");
        check(r#"{"schemaVersion":2}"#, None, "document is neither an index nor a manifest");
        check(
            r#"{"schemaVersion":3,"manifests":[]}"#,
            None,
            "manifest has schema version 3 and not 2",
        );
        check("[]", None, "not a manifest: it does not begin with {");
    }

    #[test]
    fn documents_of_two_readings_are_refused() {
        let both = manifest(&[]).replace("\"config\"", "\"manifests\":[],\"config\"");
        check(&both, None, "document is an index and a manifest at once");
        check(
            &manifest(&[]),
            Some(media::OCI_INDEX),
            "document says it is application/vnd.oci.image.index.v1+json and is a manifest",
        );
        let says = format!(
            r#"{{"schemaVersion":2,"mediaType":"{}","manifests":[]}}"#,
            media::OCI_MANIFEST
        );
        check(
            &says,
            None,
            "document says it is application/vnd.oci.image.manifest.v1+json and is an index",
        );
        let says =
            format!(r#"{{"schemaVersion":2,"mediaType":"{}","manifests":[]}}"#, media::OCI_INDEX);
        check(
            &says,
            Some(media::DOCKER_INDEX),
            "served as application/vnd.docker.distribution.manifest.list.v2+json but says it is \
             application/vnd.oci.image.index.v1+json",
        );
    }

    #[test]
    fn what_we_cannot_run_is_refused_by_name() {
        let schema1 = r#"{"schemaVersion":1,"fsLayers":[]}"#;
        check(
            schema1,
            None,
            "image manifest schema 1 is not supported: push the image again with a newer tool",
        );
        let chart =
            manifest(&[]).replace(media::OCI_CONFIG, "application/vnd.cncf.helm.config.v1+json");
        check(
            &chart,
            None,
            "not a container image: its configuration is application/vnd.cncf.helm.config.v1+json",
        );
        let secret = format!("{}+encrypted", media::OCI_LAYER_GZIP);
        check(
            &manifest(&[descriptor(&secret, 1)]),
            None,
            &format!("layer {HEX} has media type {secret}, which is not supported"),
        );
    }

    #[test]
    fn limits_hold() {
        let layer = descriptor(media::OCI_LAYER, 1);
        check(&manifest(&vec![layer.clone(); 1024]), None, "manifest 1026");
        check(
            &manifest(&vec![layer; 1025]),
            None,
            "a manifest has 1025 entries: the limit is 1024",
        );
        let huge = descriptor(media::OCI_LAYER, u64::MAX);
        check(&manifest(&[huge]), None, "layer sizes do not add up to a number");
        let big = manifest(&[]).replace("\"size\":2", "\"size\":8388609");
        check(&big, None, "image configuration of 8388609 bytes: the limit is 8388608");
        let padded = format!("{}{}", manifest(&[]), " ".repeat(4 << 20));
        assert!(matches!(
            Document::parse(padded.as_bytes(), None),
            Err(ManifestError::TooLarge { .. })
        ));
        assert!(
            Document::parse(
                manifest(&[descriptor(media::OCI_LAYER, 1)]).replace(":1}", ":-1}").as_bytes(),
                None
            )
            .is_err()
        );
    }

    proptest! {
        #[test]
        fn what_we_write_we_read(sizes in prop::collection::vec(0u64..1 << 40, 0..20)) {
            let digest: Digest = HEX.parse().expect("a digest");
            let layers = sizes.iter().map(|&size| Descriptor::new(media::OCI_LAYER_ZSTD, digest.clone(), size));
            let manifest = Manifest {
                schema_version: 2,
                media_type: media::OCI_MANIFEST.to_owned(),
                config: Descriptor::new(media::OCI_CONFIG, digest.clone(), 7),
                layers: layers.collect(),
            };
            let bytes = serde_json::to_vec(&manifest).expect("encodes");
            prop_assert_eq!(Document::parse(&bytes, None), Ok(Document::Manifest(manifest)));
        }

        #[test]
        fn garbage_never_panics(bytes: Vec<u8>, served: Option<String>) {
            let _ = Document::parse(&bytes, served.as_deref());
        }
    }
}
