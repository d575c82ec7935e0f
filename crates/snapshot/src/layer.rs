//! A layer on disk, and the two ways it can say "what was below is gone".
//!
//! | mark | [`Form::Overlay`] | [`Form::Plain`] |
//! |---|---|---|
//! | `name` is deleted | character device 0:0 at `name` | empty file `.wh.name` |
//! | directory is opaque | xattr `trusted.overlay.opaque` = `y` on it | empty file `.wh..wh..opq` in it |
//!
//! The plain form is that of the archives; it works on any file system, also inside a
//! container where neither such devices nor such attributes may be made.

use std::{
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, Stat, XattrFlags, fgetxattr, fsetxattr, mknodat, openat,
        statat,
    },
    io::Errno,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Overlay,
    Plain,
}

/// A directory that holds one layer, finished or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerDir {
    pub path: PathBuf,
    pub form: Form,
}

pub(crate) const WHITEOUT: &[u8] = b".wh.";
pub(crate) const OPAQUE: &[u8] = b".wh..wh..opq";
const OPAQUE_XATTR: &str = "trusted.overlay.opaque";

/// What lies at a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Node {
    Missing,
    Whiteout,
    Directory(Stat),
    Symlink(Stat),
    /// Anything else: file, device, fifo, socket.
    Other(Stat),
}

impl LayerDir {
    pub fn new(path: impl Into<PathBuf>, form: Form) -> Self {
        Self { path: path.into(), form }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Form {
    /// Looks without following a symlink.
    pub(crate) fn probe(self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<Node, Errno> {
        let stat = match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => {
                return Ok(match self {
                    Self::Plain if self.has_whiteout_file(dir, name)? => Node::Whiteout,
                    _ => Node::Missing,
                });
            }
            Err(e) => return Err(e),
        };
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Node::Directory(stat),
            FileType::Symlink => Node::Symlink(stat),
            FileType::CharacterDevice if stat.st_rdev == 0 && self == Self::Overlay => {
                Node::Whiteout
            }
            _ => Node::Other(stat),
        })
    }

    fn has_whiteout_file(self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<bool, Errno> {
        match statat(dir, whiteout_name(name), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            // A name that is too long with its prefix cannot have been made.
            Err(Errno::NOENT | Errno::NAMETOOLONG) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Nothing may lie at `name`.
    pub(crate) fn add_whiteout(self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
        match self {
            Self::Overlay => mknodat(dir, name, FileType::CharacterDevice, Mode::empty(), 0),
            Self::Plain => touch(dir, &whiteout_name(name)),
        }
    }

    pub(crate) fn set_opaque(self, dir: BorrowedFd<'_>) -> Result<(), Errno> {
        match self {
            Self::Overlay => fsetxattr(dir, OPAQUE_XATTR, b"y", XattrFlags::empty()),
            Self::Plain => touch(dir, OPAQUE),
        }
    }

    pub(crate) fn is_opaque(self, dir: BorrowedFd<'_>) -> Result<bool, Errno> {
        match self {
            Self::Overlay => match fgetxattr(dir, OPAQUE_XATTR, &mut [0u8; 4][..]) {
                Ok(len) => Ok(len > 0),
                Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
                Err(e) => Err(e),
            },
            Self::Plain => match statat(dir, OPAQUE, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(_) => Ok(true),
                Err(Errno::NOENT) => Ok(false),
                Err(e) => Err(e),
            },
        }
    }

    /// Whether a name found in a layer is a mark and not a file.
    pub(crate) fn is_mark(self, name: &[u8]) -> bool {
        self == Self::Plain && name.starts_with(WHITEOUT)
    }
}

fn whiteout_name(name: &[u8]) -> Vec<u8> {
    [WHITEOUT, name].concat()
}

fn touch(dir: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(dir, name, flags, Mode::from_raw_mode(0o600)).map(drop)
}
