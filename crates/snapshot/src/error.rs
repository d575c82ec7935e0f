use std::{io, path::PathBuf};

use base::{Digest, Kind};
use store::StoreError;

use crate::{Compression, Key};

/// Why a layer was not unpacked. Names of entries are shown with escapes, so a hostile
/// name stays on its line of the log.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error("read the layer")]
    Read(#[source] io::Error),

    #[error("decompress the layer as {compression}")]
    Decompress { compression: Compression, source: io::Error },

    #[error("layer is compressed with {0}: gzip, zstd and none are supported")]
    Unsupported(&'static str),

    #[error("layer is not a tar archive: {why} at byte {at}")]
    Malformed { at: u64, why: &'static str },

    #[error("entry {entry} is refused: {why}")]
    Refused { entry: String, why: Refusal },

    #[error("layer has more than {limit} {what}")]
    Limit { what: Limited, limit: u64 },

    #[error("layer has diff id {found}, its image says {expected}")]
    DiffId { expected: Digest, found: Digest },

    #[error("{doing} {entry}")]
    Io { doing: &'static str, entry: String, source: io::Error },
}

/// What is wrong with one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("its name holds `..`")]
    DotDot,
    #[error("its name holds a zero byte")]
    Nul,
    #[error("a part of its name is longer than 255 bytes")]
    LongName,
    #[error("it has no name")]
    NoName,
    #[error("only a directory can be the root")]
    Root,
    #[error("a directory on its way is named like a whiteout")]
    BelowWhiteout,
    #[error("it is a whiteout of nothing")]
    EmptyWhiteout,
    #[error("a part of its way is not a directory")]
    NotADirectory,
    #[error("its way goes through too many symlinks")]
    Loop,
    #[error("it is a link to itself")]
    SelfLink,
    #[error("it is a link to nothing")]
    NoTarget,
    #[error("it is a hard link to a directory")]
    LinkToDirectory,
    #[error("it is a hard link to what neither this layer nor one below has")]
    TargetMissing,
    #[error("character device 0:0 is how overlay marks deletions")]
    WhiteoutDevice,
    #[error("its type {0:#04x} is unknown")]
    Type(u8),
    #[error("owner or group is not a number below 4294967295")]
    Owner,
    #[error("its device number is out of range")]
    Device,
    #[error("its map of holes contradicts itself")]
    Sparse,
}

/// What is counted while a layer is unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Limited {
    #[error("entries")]
    Entries,
    #[error("bytes")]
    Bytes,
    #[error("times its compressed size in bytes")]
    Ratio,
    #[error("directories on the way to an entry")]
    Depth,
    #[error("bytes in the name of an entry")]
    NameBytes,
    #[error("bytes of extended headers at an entry")]
    HeaderBytes,
    #[error("pieces in a sparse file")]
    SparsePieces,
}

impl ApplyError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Read(source) | Self::Io { source, .. } => Kind::from(source),
            Self::Unsupported(_) => Kind::Unimplemented,
            Self::Limit { .. } => Kind::ResourceExhausted,
            Self::Decompress { .. }
            | Self::Malformed { .. }
            | Self::Refused { .. }
            | Self::DiffId { .. } => Kind::Invalid,
        }
    }

    pub(crate) fn refused(entry: &[u8], why: Refusal) -> Self {
        Self::Refused { entry: shown(entry), why }
    }

    /// `.map_err(ApplyError::io("create file", &path))`
    pub(crate) fn io<E: Into<io::Error>>(
        doing: &'static str,
        entry: &[u8],
    ) -> impl FnOnce(E) -> Self {
        move |source| Self::Io { doing, entry: shown(entry), source: source.into() }
    }
}

/// A name somebody else chose, fit for a log: escaped, and never longer than a line.
pub(crate) fn shown(name: &[u8]) -> String {
    const LONGEST: usize = 200;
    match name.get(..LONGEST) {
        Some(head) if name.len() > LONGEST => format!("\"{}…\"", head.escape_ascii()),
        _ => format!("\"{}\"", name.escape_ascii()),
    }
}

/// Why a snapshot or a layer of the store cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("snapshotter {0:?} is not known: this engine has overlayfs and native")]
    UnknownSnapshotter(String),

    #[error("{0:?} cannot name a snapshot: up to 128 of a-z A-Z 0-9 . _ -, no dot first")]
    BadKey(String),

    #[error("no snapshot {0}")]
    NoSnapshot(Key),

    #[error("snapshot {0} exists")]
    SnapshotExists(Key),

    #[error("snapshot {0} is being worked on by another request")]
    Busy(Key),

    #[error("layer {0} is not unpacked")]
    NoLayer(Digest),

    #[error("layer {layer} is used by {by}")]
    LayerInUse { layer: Digest, by: String },

    #[error("diff id {diff_id} on what lies below does not make layer {layer}")]
    WrongChain { layer: Digest, diff_id: Digest },

    #[error("snapshot {key} is already mounted on {target}")]
    AlreadyMounted { key: Key, target: PathBuf },

    #[error("snapshot {0} was mounted without syncing before, and cannot be mounted again")]
    Spent(Key),

    #[error("snapshot {key} cannot be used: {why}")]
    Broken { key: Key, why: String },

    #[error("{fs} at {root} cannot map ids: use the native snapshotter for user namespaces")]
    NoIdmap { root: PathBuf, fs: String },

    #[error("{0} is in use by another snapshot store")]
    Locked(PathBuf),

    #[error("snapshots are shutting down")]
    Closed,

    #[error("fit layer {layer} onto the layers below it")]
    Rebase { layer: Digest, source: ApplyError },

    #[error("copy the layers of snapshot {key} together")]
    Flatten { key: Key, source: ApplyError },

    #[error("snapshotter {0} keeps no changes apart from layers: use overlayfs")]
    NoDiff(&'static str),

    #[error("{path} is kept as a reference into a layer: switch off {option} of overlay")]
    Reference { path: String, option: &'static str },

    #[error("compare with the layers below")]
    Unread { source: ApplyError },

    #[error(transparent)]
    Store(#[from] StoreError),

    #[error(transparent)]
    Sys(#[from] sys::Error),

    #[error("{doing} {path}")]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
}

impl SnapshotError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::UnknownSnapshotter(_) | Self::BadKey(_) | Self::WrongChain { .. } => {
                Kind::Invalid
            }
            Self::NoSnapshot(_) | Self::NoLayer(_) => Kind::NotFound,
            Self::SnapshotExists(_) | Self::AlreadyMounted { .. } => Kind::AlreadyExists,
            Self::LayerInUse { .. } | Self::Spent(_) | Self::Broken { .. } => {
                Kind::FailedPrecondition
            }
            Self::NoIdmap { .. } | Self::NoDiff(_) | Self::Reference { .. } => Kind::Unimplemented,
            Self::Busy(_) | Self::Locked(_) | Self::Closed => Kind::Unavailable,
            Self::Rebase { source, .. }
            | Self::Flatten { source, .. }
            | Self::Unread { source } => source.kind(),
            Self::Store(source) => source.kind(),
            Self::Sys(source) => Kind::from(&io::Error::from(source.io_kind())),
            Self::Io { source, .. } => Kind::from(source),
        }
    }

    pub(crate) fn io<E: Into<io::Error>>(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(E) -> Self {
        move |source| Self::Io { doing, path: path.into(), source: source.into() }
    }
}
