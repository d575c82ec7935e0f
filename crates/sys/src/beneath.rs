//! Paths that cannot lead out of a directory, whatever symlinks it holds and whoever
//! renames things in it meanwhile. The kernel resolves them (`openat2`, Linux ≥ 5.6), so
//! there is no moment between check and use.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, openat2},
    io::Errno,
};

use crate::error::{Error, Result, on};

/// A directory whose inside is not trusted.
#[derive(Debug)]
pub struct Root(OwnedFd);

impl Root {
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(CWD, path, flags, Mode::empty())
            .map(Self)
            .map_err(on("open directory", path))
    }

    /// Refuses (`EXDEV`) what would leave the root: `..` above it, absolute paths,
    /// absolute symlinks, links of `/proc`. For content someone else wrote.
    pub fn open_beneath(&self, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        self.resolve(path, flags, mode, ResolveFlags::BENEATH)
    }

    /// Sees the root as `/`, as a process living in it would: absolute symlinks start
    /// there, `..` at the top stays. For paths a container's user gave.
    pub fn open_in_root(&self, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        self.resolve(path, flags, mode, ResolveFlags::IN_ROOT)
    }

    /// Makes missing directories on the way and returns the last one.
    pub fn create_dirs(&self, path: &Path, mode: Mode) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        match self.open_beneath(path, flags, Mode::empty()) {
            Ok(dir) => return Ok(Self(dir)),
            Err(e) if e.is(Errno::NOENT) => {}
            Err(e) => return Err(e),
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Error::new(format!("create directory {}", path.display()), Errno::INVAL));
        };
        let parent = match parent.as_os_str().is_empty() {
            true => None,
            false => Some(self.create_dirs(parent, mode)?),
        };
        let parent = parent.as_ref().unwrap_or(self);
        match rustix::fs::mkdirat(parent, name, mode) {
            // Someone was quicker, or it is a dangling symlink: opening it tells.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(on("create directory", path)(e)),
        }
        parent.open_beneath(Path::new(name), flags | OFlags::NOFOLLOW, Mode::empty()).map(Self)
    }

    fn resolve(
        &self,
        path: &Path,
        flags: OFlags,
        mode: Mode,
        how: ResolveFlags,
    ) -> Result<OwnedFd> {
        // EAGAIN: a rename elsewhere made the kernel unsure. It passes; a rename storm
        // must not keep us here for ever.
        const TRIES: usize = 128;
        let how = how | ResolveFlags::NO_MAGICLINKS;
        let mut last = Errno::AGAIN;
        for _ in 0..TRIES {
            match openat2(&self.0, path, flags | OFlags::CLOEXEC, mode, how) {
                Ok(fd) => return Ok(fd),
                Err(e @ (Errno::AGAIN | Errno::INTR)) => last = e,
                Err(e) => return Err(on("open", path)(e)),
            }
        }
        Err(on("open", path)(last))
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Root {
    fn from(directory: OwnedFd) -> Self {
        Self(directory)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Read, os::unix::fs::symlink};

    use super::*;

    /// A root with traps, and a secret beside it.
    fn trapped() -> (tempfile::TempDir, Root) {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("root");
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::write(outer.path().join("secret"), "secret").unwrap();
        fs::write(root.join("etc/motd"), "inside").unwrap();
        symlink("../secret", root.join("up")).unwrap();
        symlink("/etc/motd", root.join("absolute")).unwrap();
        symlink("etc", root.join("relative")).unwrap();
        symlink("/proc/self/root", root.join("magic")).unwrap();
        let root = Root::open(&root).unwrap();
        (outer, root)
    }

    fn read(fd: Result<OwnedFd>) -> std::result::Result<String, Errno> {
        let mut text = String::new();
        let fd = fd.map_err(|e| e.errno().unwrap())?;
        fs::File::from(fd).read_to_string(&mut text).unwrap();
        Ok(text)
    }

    #[track_caller]
    fn check(
        path: &str,
        beneath: std::result::Result<&str, Errno>,
        in_root: std::result::Result<&str, Errno>,
    ) {
        let (_outer, root) = trapped();
        let path = Path::new(path);
        let got = read(root.open_beneath(path, OFlags::RDONLY, Mode::empty()));
        assert_eq!(got.as_deref(), beneath.as_deref(), "beneath {path:?}");
        let got = read(root.open_in_root(path, OFlags::RDONLY, Mode::empty()));
        assert_eq!(got.as_deref(), in_root.as_deref(), "in root {path:?}");
    }

    #[test]
    fn no_path_leaves_the_root() {
        check("etc/motd", Ok("inside"), Ok("inside"));
        check("relative/motd", Ok("inside"), Ok("inside"));
        check("etc/../etc/motd", Ok("inside"), Ok("inside"));
        check("/etc/motd", Err(Errno::XDEV), Ok("inside"));
        check("absolute", Err(Errno::XDEV), Ok("inside"));
        check("../../etc/motd", Err(Errno::XDEV), Ok("inside"));
        check("up", Err(Errno::XDEV), Err(Errno::NOENT));
        check("../secret", Err(Errno::XDEV), Err(Errno::NOENT));
        check("magic/etc/passwd", Err(Errno::XDEV), Err(Errno::NOENT));
        check("missing", Err(Errno::NOENT), Err(Errno::NOENT));
    }

    #[test]
    fn directories_are_made_inside_only() {
        let (outer, root) = trapped();
        let mode = Mode::from_raw_mode(0o755);
        root.create_dirs(Path::new("a/b/c"), mode).unwrap();
        root.create_dirs(Path::new("a/b/c"), mode).unwrap();
        root.create_dirs(Path::new("relative/d"), mode).unwrap();
        assert!(outer.path().join("root/a/b/c").is_dir());
        assert!(outer.path().join("root/etc/d").is_dir());
        for path in ["../x", "up/x", "absolute/x", "/x", "etc/motd/x", ""] {
            assert!(root.create_dirs(Path::new(path), mode).is_err(), "{path}");
        }
        assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_dangling_link_is_no_directory() {
        let (outer, root) = trapped();
        symlink("nowhere", outer.path().join("root/dangling")).unwrap();
        assert!(root.create_dirs(Path::new("dangling"), Mode::from_raw_mode(0o755)).is_err());
        assert!(!outer.path().join("root/nowhere").exists());
    }
}
