//! What is named, chosen and stored.

use std::{borrow::Borrow, fmt, path::PathBuf, str::FromStr};

use base::{Digest, Id};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use sys::idmap::{IdMaps, IdRange};

use crate::{Form, SnapshotError, Usage};

/// How layers become a root file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Snapshotter {
    /// Layers stay apart, the kernel shows them as one.
    Overlayfs,
    /// Layers are copied together, for file systems that cannot carry an overlay.
    Native,
}

impl Snapshotter {
    pub const ALL: [Self; 2] = [Self::Overlayfs, Self::Native];

    pub fn name(self) -> &'static str {
        match self {
            Self::Overlayfs => "overlayfs",
            Self::Native => "native",
        }
    }

    pub fn form(self) -> Form {
        match self {
            Self::Overlayfs => Form::Overlay,
            Self::Native => Form::Plain,
        }
    }
}

impl FromStr for Snapshotter {
    type Err = SnapshotError;

    fn from_str(name: &str) -> Result<Self, SnapshotError> {
        let known = Self::ALL.into_iter().find(|own| own.name() == name);
        known.ok_or_else(|| SnapshotError::UnknownSnapshotter(name.to_owned()))
    }
}

impl fmt::Display for Snapshotter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Names a snapshot: a container's id, or something with a suffix for its image volumes.
/// Fit to be a file name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Key(String);

impl Key {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Key {
    type Err = SnapshotError;

    fn from_str(text: &str) -> Result<Self, SnapshotError> {
        let fit = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let good = (1..=128).contains(&text.len()) && !text.starts_with('.');
        match good && text.bytes().all(fit) {
            true => Ok(Self(text.to_owned())),
            false => Err(SnapshotError::BadKey(text.to_owned())),
        }
    }
}

impl TryFrom<String> for Key {
    type Error = SnapshotError;

    fn try_from(text: String) -> Result<Self, SnapshotError> {
        text.parse()
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        key.0
    }
}

impl From<Id> for Key {
    fn from(id: Id) -> Self {
        Self(id.as_str().to_owned())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The names of an image's layers when unpacked onto each other, from those of each layer
/// alone: the first is its own, each next is the hash of `"<chain below> <own>"`.
pub fn chain_ids(diff_ids: &[Digest]) -> Vec<Digest> {
    let mut chain: Vec<Digest> = Vec::with_capacity(diff_ids.len());
    for own in diff_ids {
        chain.push(chain_id(chain.last(), own));
    }
    chain
}

pub(crate) fn chain_id(below: Option<&Digest>, own: &Digest) -> Digest {
    match below {
        None => own.clone(),
        Some(below) => Digest::sha256(Sha256::digest(format!("{below} {own}")).into()),
    }
}

/// What a snapshot is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrepareOptions {
    /// Show (or give, where copied) the files to these ids: what root owns in the layers
    /// belongs to the first range's user outside.
    pub idmap: Option<IdMaps>,
    /// Never synced, and therefore mounted once and never again: for containers that are
    /// not started a second time.
    pub volatile: bool,
    /// Nothing can be written: for image volumes.
    pub read_only_view: bool,
    /// The SELinux label of all its files.
    pub label: Option<String>,
}

/// A layer that is unpacked, whole and unchanging.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerRecord {
    pub snapshotter: Snapshotter,
    pub chain_id: Digest,
    pub diff_id: Digest,
    /// The chain id of the layer below; none for the lowest.
    pub parent: Option<Digest>,
    pub usage: Usage,
    pub created: Timestamp,
    /// The boot it was written in, until a sync: what the page cache of another boot held
    /// is not to be trusted.
    pub unsynced_boot: Option<String>,
}

/// Of one snapshotter, a layer has one key; two snapshotters keep the same layer twice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerKey(String);

impl LayerKey {
    pub(crate) fn new(snapshotter: Snapshotter, chain_id: &Digest) -> Self {
        Self(format!("{snapshotter}/{chain_id}"))
    }
}

impl Borrow<str> for LayerKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LayerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl store::Record for LayerRecord {
    const TABLE: &'static str = "layers";
    const VERSION: u32 = 1;
    type Key = LayerKey;

    fn key(&self) -> LayerKey {
        LayerKey::new(self.snapshotter, &self.chain_id)
    }
}

/// A container's root file system, or a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRecord {
    pub snapshotter: Snapshotter,
    pub key: Key,
    /// The chain id of the topmost layer; none for an image without layers.
    pub top: Option<Digest>,
    pub uids: Vec<StoredRange>,
    pub gids: Vec<StoredRange>,
    pub volatile: bool,
    pub read_only_view: bool,
    pub created: Timestamp,
    /// Written before it is mounted there.
    pub target: Option<PathBuf>,
    /// A volatile one cannot be mounted again.
    pub spent: bool,
    /// The SELinux label of all its files.
    #[serde(default)]
    pub label: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRange {
    pub inside: u32,
    pub outside: u32,
    pub count: u32,
}

impl From<IdRange> for StoredRange {
    fn from(range: IdRange) -> Self {
        Self { inside: range.inside, outside: range.outside, count: range.count }
    }
}

impl From<StoredRange> for IdRange {
    fn from(range: StoredRange) -> Self {
        Self { inside: range.inside, outside: range.outside, count: range.count }
    }
}

impl store::Record for SnapshotRecord {
    const TABLE: &'static str = "snapshots";
    const VERSION: u32 = 1;
    type Key = SnapshotKey;

    fn key(&self) -> SnapshotKey {
        SnapshotKey::new(self.snapshotter, &self.key)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotKey(String);

impl SnapshotKey {
    pub(crate) fn new(snapshotter: Snapshotter, key: &Key) -> Self {
        Self(format!("{snapshotter}/{key}"))
    }
}

impl Borrow<str> for SnapshotKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SnapshotKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshotters_have_names() {
        for own in Snapshotter::ALL {
            assert_eq!(own.name().parse::<Snapshotter>().unwrap(), own);
        }
        let error = "zfs".parse::<Snapshotter>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "snapshotter \"zfs\" is not known: this engine has overlayfs and native"
        );
    }

    #[test]
    fn keys_are_file_names() {
        let check = |text: &str, good: bool| {
            assert_eq!(text.parse::<Key>().is_ok(), good, "{text:?}");
            let json = serde_json::to_string(text).unwrap();
            assert_eq!(serde_json::from_str::<Key>(&json).is_ok(), good, "{text:?}");
        };
        check("abc-1.vol_2", true);
        check(&"a".repeat(128), true);
        check(&"a".repeat(129), false);
        for bad in ["", ".", "..", ".a", "a/b", "a b", "ä", "a\0"] {
            check(bad, false);
        }
    }

    #[test]
    fn chain_ids_hash_pairs() {
        let digest = |c: char| format!("sha256:{}", c.to_string().repeat(64)).parse().unwrap();
        let (a, b): (Digest, Digest) = (digest('a'), digest('b'));
        assert!(chain_ids(&[]).is_empty());
        assert_eq!(chain_ids(std::slice::from_ref(&a)), std::slice::from_ref(&a));
        let two = chain_ids(&[a.clone(), b.clone()]);
        let want = Digest::sha256(Sha256::digest(format!("{a} {b}")).into());
        assert_eq!(two, [a.clone(), want.clone()]);
        let three = chain_ids(&[a, b.clone(), b.clone()]);
        assert_eq!(three[2], Digest::sha256(Sha256::digest(format!("{want} {b}")).into()));
    }
}
