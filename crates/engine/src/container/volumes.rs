//! Volumes that an image declares: directories of the container's own, filled with what the
//! image has there. All blocking.

use std::{
    collections::BTreeMap,
    fs, io,
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, PermissionsExt, lchown, symlink},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags};
use sys::beneath::Root;

use crate::{
    error::{EngineError, Result},
    files::{make_dir, remove_dir},
};

/// Makes one directory in `dir` for each of `paths`, and says which is which. Those that are
/// there stay as they are: they were filled before. `owner` is that of what the image lacks.
pub(super) fn make(
    dir: &Path,
    rootfs: &Path,
    paths: &[PathBuf],
    owner: Option<(u32, u32)>,
) -> Result<BTreeMap<PathBuf, PathBuf>> {
    let mut made = BTreeMap::new();
    for (number, path) in paths.iter().enumerate() {
        let volume = dir.join(number.to_string());
        if !volume.exists() {
            make_one(dir, &volume, rootfs, path, owner)?;
        }
        made.insert(path.clone(), volume);
    }
    Ok(made)
}

/// Under another name until it is whole.
fn make_one(
    dir: &Path,
    volume: &Path,
    rootfs: &Path,
    path: &Path,
    owner: Option<(u32, u32)>,
) -> Result<()> {
    let filling = dir.join("filling");
    remove_dir(&filling)?;
    make_dir(dir, 0o711)?;
    make_dir(&filling, 0o755)?;
    if let Some((uid, gid)) = owner {
        lchown(&filling, Some(uid), Some(gid)).map_err(EngineError::io("give away", &filling))?;
    }
    fill(&filling, rootfs, path)?;
    fs::rename(&filling, volume).map_err(EngineError::io("rename to", volume))
}

/// The image's path is its own to choose: whatever links are on the way, it stays inside.
fn fill(volume: &Path, rootfs: &Path, path: &Path) -> Result<()> {
    let inside = path.strip_prefix("/").unwrap_or(path);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let source = match Root::open(rootfs)?.open_in_root(inside, flags, Mode::empty()) {
        Ok(source) => source,
        // The image need not have it.
        Err(e) if e.io_kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    let source = PathBuf::from(format!("/proc/self/fd/{}", source.as_raw_fd()));
    copy_dir(&source, volume).map_err(EngineError::io("fill volume", path))
}

/// With modes and owners; links are copied, not followed; devices and sockets are left out.
fn copy_dir(from: &Path, to: &Path) -> io::Result<()> {
    let like = fs::metadata(from)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            fs::create_dir(&target)?;
            copy_dir(&source, &target)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(&source)?, &target)?;
            let like = fs::symlink_metadata(&source)?;
            lchown(&target, Some(like.uid()), Some(like.gid()))?;
        } else if kind.is_file() {
            fs::copy(&source, &target)?;
            own(&target, &fs::metadata(&source)?)?;
        }
    }
    own(to, &like)
}

/// The owner first: changing it clears set-id bits.
fn own(path: &Path, like: &fs::Metadata) -> io::Result<()> {
    lchown(path, Some(like.uid()), Some(like.gid()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(like.mode() & 0o7777))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_gets_what_the_image_has_and_nothing_of_the_host() {
        let dir = tempfile::tempdir().unwrap();
        let (rootfs, volumes) = (dir.path().join("rootfs"), dir.path().join("v"));
        fs::create_dir_all(rootfs.join("data/sub")).unwrap();
        fs::write(rootfs.join("data/sub/f"), "x").unwrap();
        fs::set_permissions(rootfs.join("data"), fs::Permissions::from_mode(0o1777)).unwrap();
        symlink("/etc/passwd", rootfs.join("data/link")).unwrap();
        symlink("/etc", rootfs.join("escape")).unwrap();
        let paths = ["/data", "/escape", "/absent"].map(PathBuf::from);
        let made = make(&volumes, &rootfs, &paths, Some((1, 2))).unwrap();
        let data = &made[Path::new("/data")];
        assert_eq!(fs::read(data.join("sub/f")).unwrap(), b"x");
        assert_eq!(fs::read_link(data.join("link")).unwrap(), Path::new("/etc/passwd"));
        assert_eq!(fs::metadata(data).unwrap().permissions().mode() & 0o7777, 0o1777);
        let empty = |path: &str| fs::read_dir(&made[Path::new(path)]).unwrap().count() == 0;
        assert!(empty("/escape"), "the host's /etc is not the image's");
        assert!(empty("/absent"));
        if rustix::process::geteuid().is_root() {
            let absent = fs::metadata(&made[Path::new("/absent")]).unwrap();
            assert_eq!((absent.uid(), absent.gid()), (1, 2));
        }
        fs::write(data.join("new"), "y").unwrap();
        fs::remove_file(data.join("sub/f")).unwrap();
        assert_eq!(make(&volumes, &rootfs, &paths, None).unwrap(), made);
        assert!(data.join("new").exists() && !data.join("sub/f").exists(), "filled once");
    }
}
