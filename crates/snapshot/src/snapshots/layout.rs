//! Where things lie.
//!
//! ```text
//! <root>/<snapshotter>/          0700: the files in it keep their setuid bits
//!   layers/<chain id>/           finished, never changed
//!   staging/<random>/            being made; litter after a crash
//!   snapshots/<key>/             upper + work (overlayfs), root (native)
//!   trash/                       being deleted
//!   mapped/<random>/             mount points that live for the length of one mount call
//!   empty/                       what an image without layers consists of
//! ```

use std::{
    fs,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt, fs::DirBuilderExt},
    },
    path::{Path, PathBuf},
};

use base::Digest;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::{Form, Key, LayerDir, SnapshotError, Snapshotter, sweep::random};

#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) root: PathBuf,
    pub(crate) form: Form,
    /// Held open: one process at a time.
    _lock: OwnedFd,
}

impl Layout {
    pub(crate) fn open(root: &Path, snapshotter: Snapshotter) -> Result<Self, SnapshotError> {
        let root = root.join(snapshotter.name());
        make_dir_all(&root)?;
        // Absolute: a record is read by a process with another working directory.
        let root = fs::canonicalize(&root).map_err(SnapshotError::io("find", &root))?;
        for name in ["layers", "staging", "snapshots", "trash", "mapped", "empty"] {
            make_dir_all(&root.join(name))?;
        }
        let path = root.join("lock");
        let lock = fs::File::create(&path).map_err(SnapshotError::io("create", &path))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { root, form: snapshotter.form(), _lock: lock.into() }),
            Err(Errno::WOULDBLOCK) => Err(SnapshotError::Locked(root)),
            Err(e) => Err(SnapshotError::io("lock", &path)(e)),
        }
    }

    pub(crate) fn layers(&self) -> PathBuf {
        self.root.join("layers")
    }

    pub(crate) fn layer(&self, chain_id: &Digest) -> LayerDir {
        LayerDir::new(self.layers().join(chain_id.hex()), self.form)
    }

    pub(crate) fn snapshots(&self) -> PathBuf {
        self.root.join("snapshots")
    }

    pub(crate) fn snapshot(&self, key: &Key) -> PathBuf {
        self.snapshots().join(key.as_str())
    }

    pub(crate) fn staging(&self) -> PathBuf {
        self.root.join("staging")
    }

    pub(crate) fn trash(&self) -> PathBuf {
        self.root.join("trash")
    }

    pub(crate) fn mapped(&self) -> PathBuf {
        self.root.join("mapped")
    }

    pub(crate) fn empty(&self) -> PathBuf {
        self.root.join("empty")
    }

    /// A fresh directory for something to be made in.
    pub(crate) fn stage(&self) -> Result<PathBuf, SnapshotError> {
        let path = self.staging().join(format!("{:016x}", random()));
        make_dir(&path)?;
        Ok(path)
    }

    /// Instant, whatever lies there; what is not there is no error.
    pub(crate) fn discard(&self, path: &Path) -> Result<(), SnapshotError> {
        let name = path.file_name().map_or(&b"x"[..], |name| name.as_bytes());
        let name = String::from_utf8_lossy(&name[..name.len().min(64)]).into_owned();
        let to = self.trash().join(format!("{name}-{:016x}", random()));
        match fs::rename(path, &to) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(SnapshotError::io("throw away", path)(e))
            }
            _ => Ok(()),
        }
    }
}

pub(crate) fn make_dir(path: &Path) -> Result<(), SnapshotError> {
    fs::DirBuilder::new().mode(0o700).create(path).map_err(SnapshotError::io("create", path))
}

fn make_dir_all(path: &Path) -> Result<(), SnapshotError> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(SnapshotError::io("create", path))
}

/// The names in a directory.
pub(crate) fn entries(path: &Path) -> Result<Vec<PathBuf>, SnapshotError> {
    let read =
        || fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>();
    read().map_err(SnapshotError::io("read", path))
}
