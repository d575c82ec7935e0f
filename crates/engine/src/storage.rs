//! Where root file systems come from: the edge between the engine and images.

use std::{fmt, fs::File, path::PathBuf, pin::Pin};

use base::{Digest, Id};
use jiff::Timestamp;
use oci::IdMappings;

use crate::{error::Result, record::PinnedImage};

pub use snapshot::Diff;

/// Whether work that may take long shall go on.
pub type GoOn = Box<dyn Fn() -> bool + Send>;

/// A future behind a trait object.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A root file system to be made for a container.
#[derive(Clone, Debug)]
pub struct NewRootfs {
    pub container: Id,
    /// Whose layers they are, in case the snapshotter has to unpack them.
    pub image: Digest,
    /// Chain ids of the layers, lowest first.
    pub chain: Vec<Digest>,
    /// The name of the snapshotter that the handler wants; `None` for the default.
    pub snapshotter: Option<String>,
    /// A directory to be mounted on.
    pub target: PathBuf,
    /// The container's ids, shifted by its user namespace.
    pub mapping: Option<IdMappings>,
    /// The SELinux label of its files.
    pub label: Option<String>,
}

/// An image to be shown to a container, read-only.
#[derive(Clone, Debug)]
pub struct NewView {
    pub container: Id,
    /// Which of the container's.
    pub number: usize,
    pub image: Digest,
    pub chain: Vec<Digest>,
    pub snapshotter: Option<String>,
    pub target: PathBuf,
    pub mapping: Option<IdMappings>,
    pub label: Option<String>,
}

/// What the writable layer of a container took when it was last counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerUsage {
    /// A directory on the file system that it is on.
    pub mountpoint: PathBuf,
    pub bytes: u64,
    pub inodes: u64,
    pub at: Timestamp,
}

/// Images and snapshots, as far as containers need them.
pub trait Storage: fmt::Debug + Send + Sync + 'static {
    /// By id, prefix, tag or digest.
    fn image<'a>(&'a self, reference: &'a str) -> Boxed<'a, Result<PinnedImage>>;

    /// Idempotent. Not visible to anybody until it returns.
    fn mount(&self, rootfs: NewRootfs) -> Boxed<'_, Result<()>>;

    /// Unmounts and forgets; of what is not there, nothing.
    fn release(&self, container: Id, target: PathBuf) -> Boxed<'_, Result<()>>;

    /// Idempotent.
    fn show(&self, view: NewView) -> Boxed<'_, Result<()>>;

    /// Unmounts and forgets a view; of what is not there, nothing.
    fn hide(&self, container: Id, number: usize) -> Boxed<'_, Result<()>>;

    /// Writes what a container changed of its image as a tar. It is frozen, and the work ends
    /// when `go_on` says no.
    fn diff(&self, container: Id, out: File, go_on: GoOn) -> Boxed<'_, Result<Diff>>;

    /// From memory.
    fn usage(&self, container: Id) -> Option<LayerUsage>;
}
