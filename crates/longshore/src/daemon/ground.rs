//! The directories the daemon stands on, and the lock that makes them its own.
//!
//! **Invariant:** what [`Ground::take`] made is taken back unless the start succeeds: one
//! that is refused leaves the host as it was.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

use crate::config::Settings;

#[derive(Debug, thiserror::Error)]
pub(super) enum GroundError {
    #[error("create {}: {}", path.display(), hint(source))]
    Create { path: PathBuf, source: io::Error },
    #[error("write to {}: {}", path.display(), hint(source))]
    Write { path: PathBuf, source: io::Error },
    #[error(
        "{} is in use by another daemon{}: stop it, or give this one another --root",
        root.display(),
        holder(*pid)
    )]
    Locked { root: PathBuf, pid: Option<u32> },
}

/// Holds the lock of the root until it is dropped.
#[derive(Debug)]
pub(super) struct Ground {
    made: Made,
    _lock: File,
}

impl Ground {
    pub(super) fn take(settings: &Settings) -> Result<Self, GroundError> {
        let mut made = Made::default();
        made.dir(&settings.root, 0o700)?;
        let lock = made.lock(&settings.root)?;
        // The root of a pod's user namespace passes through it to its own root file system.
        made.dir(&settings.state, 0o711)?;
        made.writable(&settings.state)?;
        Ok(Self { made, _lock: lock })
    }

    /// The start succeeded: what was made stays.
    pub(super) fn keep(&mut self) {
        self.made.0.clear();
    }
}

/// What this attempt created, to be removed in reverse unless it succeeds.
#[derive(Debug, Default)]
struct Made(Vec<PathBuf>);

impl Made {
    /// `path` with this mode, and the missing ones above it.
    fn dir(&mut self, path: &Path, mode: u32) -> Result<(), GroundError> {
        let missing: Vec<_> = path.ancestors().take_while(|dir| !dir.exists()).collect();
        for dir in missing.into_iter().rev() {
            let mode = if dir == path { mode } else { 0o755 };
            match fs::DirBuilder::new().mode(mode).create(dir) {
                Ok(()) => self.0.push(dir.to_owned()),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(GroundError::Create { path: dir.to_owned(), source }),
            }
        }
        if path.is_dir() {
            return Ok(());
        }
        let source = io::ErrorKind::NotADirectory.into();
        Err(GroundError::Create { path: path.to_owned(), source })
    }

    fn lock(&mut self, root: &Path) -> Result<File, GroundError> {
        let path = root.join("lock");
        let failed = |source| GroundError::Write { path: path.clone(), source };
        let existed = path.exists();
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let pid = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
            return Err(GroundError::Locked { root: root.to_owned(), pid });
        }
        if !existed {
            self.0.push(path.clone());
        }
        file.set_len(0).map_err(failed)?;
        // On a full disk this is what fails, before anything else was begun.
        writeln!(file, "{}", std::process::id()).and_then(|()| file.sync_all()).map_err(failed)?;
        Ok(file)
    }

    fn writable(&mut self, dir: &Path) -> Result<(), GroundError> {
        let path = dir.join(".probe");
        let failed = |source| GroundError::Write { path: dir.to_owned(), source };
        fs::write(&path, b"?").map_err(failed)?;
        fs::remove_file(&path).map_err(failed)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for path in self.0.drain(..).rev() {
            // A directory somebody else began to use meanwhile is not empty: it stays.
            let _ = if path.is_dir() { fs::remove_dir(&path) } else { fs::remove_file(&path) };
        }
    }
}

fn holder(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}

/// The error with the way out, where there is a usual one.
fn hint(error: &io::Error) -> String {
    let way_out = match error.kind() {
        io::ErrorKind::StorageFull => ": free some space there or choose another directory",
        io::ErrorKind::ReadOnlyFilesystem => ": remount it read-write or choose another directory",
        io::ErrorKind::PermissionDenied => ": run as root or choose another directory",
        io::ErrorKind::NotADirectory => ": something else than a directory is there",
        _ => "",
    };
    format!("{error}{way_out}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn settings(dir: &Path) -> Settings {
        let config =
            Config { root: dir.join("a/lib"), state: dir.join("b/run"), ..Config::default() };
        config.check().unwrap()
    }

    #[test]
    fn two_daemons_never_share_a_root() {
        let dir = tempfile::tempdir().unwrap();
        let settings = settings(dir.path());
        let first = Ground::take(&settings).unwrap();
        let error = Ground::take(&settings).unwrap_err().to_string();
        assert!(error.contains(&format!("(pid {})", std::process::id())), "{error}");
        drop(first);
        assert!(!dir.path().join("a").exists(), "not kept, so taken back");
        Ground::take(&settings).unwrap().keep();
        assert!(settings.root.is_dir() && settings.state.is_dir());
    }

    #[test]
    fn a_refused_start_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let settings = settings(dir.path());
        // The state directory cannot be made: its parent is a file.
        fs::write(dir.path().join("b"), b"").unwrap();
        let error = Ground::take(&settings).unwrap_err().to_string();
        assert!(error.starts_with("create "), "{error}");
        assert!(!dir.path().join("a").exists());
    }
}
