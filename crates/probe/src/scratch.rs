//! A directory for one trial, gone with everything below when it is dropped.

use std::{
    fmt::Write as _,
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use sys::mount::{Table, Unmount, unmount_tree};

/// **Invariant:** nothing is removed through a mount. Mounts a runtime left below
/// are taken away first, and if that fails the directory stays: better litter than
/// the host's files deleted through a forgotten bind mount.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    /// Distinguishes this trial's names from those of any other on the host.
    pub(crate) nonce: String,
}

impl Scratch {
    pub(crate) fn below(parent: &Path) -> io::Result<Self> {
        let nonce = nonce()?;
        let path = parent.join(format!(".longshore-check-{nonce}"));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        // Mount points are listed by their real path.
        match path.canonicalize() {
            Ok(path) => Ok(Self { path, nonce }),
            Err(error) => {
                let _ = fs::remove_dir(&path);
                Err(error)
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a directory below and gives its path.
    pub(crate) fn dir(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = unmount_tree(&self.path, Unmount::Lazy);
        let clear = Table::own().is_ok_and(|table| table.below(&self.path).next().is_none());
        if clear {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn nonce() -> io::Result<String> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    // The process id lets people, and tests, see whose it was.
    let mut text = format!("{}-", std::process::id());
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_nothing() {
        let parent = tempfile::tempdir().unwrap();
        let scratch = Scratch::below(parent.path()).unwrap();
        let other = Scratch::below(parent.path()).unwrap();
        assert_ne!(scratch.nonce, other.nonce);
        fs::write(scratch.dir("a/b").unwrap().join("file"), "x").unwrap();
        drop((scratch, other));
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
