use std::sync::Arc;

use base::{Digest, ImageRefError, Kind};
use store::StoreError;

use crate::{
    archive::ArchiveError,
    blobs::BlobError,
    image::{config::ConfigError, manifest::ManifestError, platform::Platform},
    layer::SinkError,
    registry::{RegistryError, SetupError},
};

/// Why something about images did not work. Cloneable: one failed download answers all
/// pulls that waited for it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ContentError {
    #[error(transparent)]
    Reference(#[from] ImageRefError),
    #[error("no image {0:?} here")]
    NoSuchImage(String),
    #[error("{0:?} is the beginning of several image ids")]
    Ambiguous(String),
    #[error("image {id} is incomplete, {missing} is missing: pull it again")]
    Incomplete { id: Digest, missing: Digest },
    #[error("registry {registry}")]
    Setup { registry: String, source: SetupError },
    #[error(transparent)]
    Registry(Arc<RegistryError>),
    #[error("RegistryUnavailable: {digest} came with wrong bytes: they are {got}")]
    WrongBytes { digest: Digest, got: Digest },
    #[error("manifest {digest}")]
    Manifest { digest: Digest, source: ManifestError },
    #[error("index {digest} leads to another index")]
    Nested { digest: Digest },
    #[error("image configuration {digest}")]
    Config { digest: Digest, source: ConfigError },
    #[error("no image for {wanted}: there is {}", offered_text(.offered))]
    Platform { wanted: Box<Platform>, offered: Vec<Platform> },
    #[error(transparent)]
    Blob(#[from] BlobError),
    #[error("unpack layer {digest}")]
    Unpack { digest: Digest, source: SinkError },
    #[error("sync unpacked layers")]
    Sync(#[source] SinkError),
    #[error("archive")]
    Archive(#[from] ArchiveError),
    #[error("write image records")]
    Store(#[from] StoreError),
    #[error("pull of {0} took longer than its caller would wait")]
    Deadline(String),
    #[error("cancelled")]
    Cancelled,
    #[error("a task died")]
    Lost,
}

impl ContentError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Reference(_) | Self::Ambiguous(_) | Self::Nested { .. } => Kind::Invalid,
            Self::NoSuchImage(_) | Self::Platform { .. } => Kind::NotFound,
            Self::Incomplete { .. } => Kind::FailedPrecondition,
            Self::Setup { source, .. } => source.kind(),
            Self::Registry(source) => source.kind(),
            Self::WrongBytes { .. } => Kind::Unavailable,
            Self::Manifest { source, .. } => source.kind(),
            Self::Config { source, .. } => source.kind(),
            Self::Blob(source) => source.kind(),
            Self::Unpack { source, .. } | Self::Sync(source) => source.kind,
            Self::Archive(source) => source.kind(),
            Self::Store(source) => source.kind(),
            Self::Deadline(_) => Kind::Deadline,
            Self::Cancelled => Kind::Cancelled,
            Self::Lost => Kind::Internal,
        }
    }
}

impl From<RegistryError> for ContentError {
    fn from(error: RegistryError) -> Self {
        Self::Registry(Arc::new(error))
    }
}

fn offered_text(offered: &[Platform]) -> String {
    if offered.is_empty() {
        return "none".to_owned();
    }
    let texts: Vec<String> = offered.iter().map(ToString::to_string).collect();
    texts.join(", ")
}
