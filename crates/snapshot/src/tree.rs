//! A layer being unpacked: its directory, and what is known about it beyond that.
//!
//! Nothing below it is known while it grows, so that layers unpack in any order. What
//! depends on the layers below is noted in [`Pending`] and settled by `rebase`.
//!
//! **Invariant:** paths in [`Pending`] are canonical: no symlink of this layer lies on
//! them. Marks of deletion are only in [`Pending`], never yet on disk.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Range,
    os::{fd::AsFd, unix::ffi::OsStrExt},
    path::Path,
    rc::Rc,
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, Stat, Timestamps, mkdirat, readlinkat, unlinkat},
    io::Errno,
};
use sys::beneath::Root;

use crate::{
    ApplyError, Form, LayerDir, Limited, Refusal, Usage,
    layer::Node,
    limits::{self, NAME_BYTES},
    node::{EPOCH, Metadata},
    path,
};

/// What is still to be settled, when the layers below are there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending {
    /// Directories that entries lie in and that no entry described.
    pub(crate) implied: BTreeSet<Vec<u8>>,
    /// Names that are gone in the layers below, and that this layer has nothing at.
    pub(crate) whiteouts: BTreeSet<Vec<u8>>,
    /// Directories of this layer that do not continue what is below.
    pub(crate) opaque: BTreeSet<Vec<u8>>,
    /// Set last: everything that happens inside a directory changes its times.
    pub(crate) times: BTreeMap<Vec<u8>, Timestamps>,
    /// Hard links to files of layers below, each with its target, as far as this layer's
    /// symlinks resolve it. An empty file of one name stands in for each.
    pub(crate) links: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Debug)]
pub(crate) struct Tree {
    root: Rc<Dir>,
    /// Directories by the paths that entries called them, for as long as these mean them.
    known: HashMap<Vec<u8>, Rc<Dir>>,
    pub(crate) pending: Pending,
    pub(crate) usage: Usage,
}

/// An open directory and its canonical path.
#[derive(Debug)]
pub(crate) struct Dir {
    pub(crate) path: Vec<u8>,
    pub(crate) fd: Root,
}

/// Where a walk came to.
pub(crate) enum Walk {
    Arrived(Rc<Dir>),
    /// Something on the way is not in this layer: from there on the path is as it was.
    Left(Vec<u8>),
}

/// As many descriptors as one tree holds open.
const KNOWN: usize = 64;
/// As the kernel.
const SYMLINKS: usize = 40;

const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW);

impl Tree {
    /// Of a directory that is there and empty.
    pub(crate) fn new(layer: &LayerDir) -> Result<Self, ApplyError> {
        let mut tree = Self::resume(layer, Pending::default(), Usage::DIRECTORY)?;
        plain().set_but_times(tree.root.fd.as_fd()).map_err(ApplyError::io("describe", b"/"))?;
        tree.pending.implied.insert(Vec::new());
        Ok(tree)
    }

    pub(crate) fn resume(
        layer: &LayerDir,
        pending: Pending,
        usage: Usage,
    ) -> Result<Self, ApplyError> {
        let name = layer.path.as_os_str().as_bytes();
        let open = || Root::open(&layer.path)?.open_beneath(Path::new("."), DIR, Mode::empty());
        let fd = open().map_err(ApplyError::io("open layer", name))?.into();
        let root = Rc::new(Dir { path: Vec::new(), fd });
        Ok(Self { root, known: HashMap::new(), pending, usage })
    }

    pub(crate) fn root(&self) -> Rc<Dir> {
        Rc::clone(&self.root)
    }

    /// The directory at `path`, as a container would find it; made where it is not there.
    pub(crate) fn dir(&mut self, path: &[u8]) -> Result<Rc<Dir>, ApplyError> {
        if path.is_empty() {
            return Ok(self.root());
        }
        if let Some(dir) = self.known.get(path) {
            return Ok(Rc::clone(dir));
        }
        let dir = match self.walk(path, true)? {
            Walk::Arrived(dir) => dir,
            Walk::Left(_) => return Err(ApplyError::refused(path, Refusal::NotADirectory)),
        };
        if self.known.len() >= KNOWN {
            self.known.clear();
        }
        self.known.insert(path.to_vec(), Rc::clone(&dir));
        Ok(dir)
    }

    /// The same without making anything.
    pub(crate) fn find_dir(&mut self, path: &[u8]) -> Result<Walk, ApplyError> {
        match self.known.get(path) {
            Some(dir) => Ok(Walk::Arrived(Rc::clone(dir))),
            None => self.walk(path, false),
        }
    }

    fn walk(&mut self, path: &[u8], make: bool) -> Result<Walk, ApplyError> {
        let refused = |why| ApplyError::refused(path, why);
        let mut here = self.root();
        let mut ahead: Vec<Vec<u8>> = path::components(path).rev().map(<[u8]>::to_vec).collect();
        let mut followed = 0;
        while let Some(name) = ahead.pop() {
            match name.as_slice() {
                b"." => continue,
                b".." => {
                    here = self.open(path::split(&here.path).0)?;
                    continue;
                }
                name if path::join(&here.path, name).len() > NAME_BYTES => {
                    return Err(limits::limit(Limited::NameBytes, NAME_BYTES as u64));
                }
                _ => {}
            }
            if let Some(next) = open_below(&here, &name)? {
                here = next;
                continue;
            }
            match Form::Overlay.probe(here.fd.as_fd(), &name).map_err(looking(path))? {
                Node::Symlink(_) => {
                    followed += 1;
                    if followed > SYMLINKS {
                        return Err(refused(Refusal::Loop));
                    }
                    let target = readlinkat(&here.fd, name.as_slice(), Vec::new())
                        .map_err(ApplyError::io("read link", path))?;
                    if target.as_bytes().starts_with(b"/") {
                        here = self.root();
                    }
                    let parts = path::components(target.as_bytes()).rev();
                    ahead.extend(parts.map(<[u8]>::to_vec));
                }
                Node::Missing if make => here = self.imply(&here, &name)?,
                Node::Missing => {
                    ahead.push(name);
                    let rest: Vec<_> = ahead.into_iter().rev().collect();
                    return Ok(Walk::Left(path::join(&here.path, &rest.join(&b'/'))));
                }
                _ => return Err(refused(Refusal::NotADirectory)),
            }
        }
        Ok(Walk::Arrived(here))
    }

    /// By its canonical path.
    pub(crate) fn open(&self, path: &[u8]) -> Result<Rc<Dir>, ApplyError> {
        if path.is_empty() {
            return Ok(self.root());
        }
        let fd = self.root.fd.open_beneath(as_path(path), DIR, Mode::empty());
        let fd = fd.map_err(ApplyError::io("open directory", path))?.into();
        Ok(Rc::new(Dir { path: path.to_vec(), fd }))
    }

    fn imply(&mut self, parent: &Dir, name: &[u8]) -> Result<Rc<Dir>, ApplyError> {
        let (dir, _) = self.make_dir(parent, name)?;
        plain().set_but_times(dir.fd.as_fd()).map_err(ApplyError::io("describe", &dir.path))?;
        self.pending.times.insert(dir.path.clone(), EPOCH);
        // One that follows its own deletion takes nothing from what was deleted.
        if !self.pending.opaque.contains(&dir.path) {
            self.pending.implied.insert(dir.path.clone());
        }
        Ok(dir)
    }

    /// A directory where nothing is yet, or a directory. True: it is new.
    pub(crate) fn make_dir(
        &mut self,
        parent: &Dir,
        name: &[u8],
    ) -> Result<(Rc<Dir>, bool), ApplyError> {
        let path = path::join(&parent.path, name);
        let make = || mkdirat(&parent.fd, name, Mode::from_raw_mode(0o700));
        let mut replaces = self.pending.whiteouts.remove(&path);
        let mut made = make();
        if made == Err(Errno::EXIST) {
            if let Some(dir) = open_below(parent, name)? {
                return Ok((dir, false));
            }
            replaces |= self.clear(parent, name)?;
            made = make();
        }
        made.map_err(ApplyError::io("create directory", &path))?;
        self.usage += Usage::DIRECTORY;
        // What had been there in this layer hid what is below, and still does.
        if replaces {
            self.pending.opaque.insert(path.clone());
        }
        let dir = open_below(parent, name)?;
        let dir = dir.ok_or_else(|| ApplyError::refused(&path, Refusal::NotADirectory))?;
        Ok((dir, true))
    }

    pub(crate) fn probe(&self, parent: &Dir, name: &[u8]) -> Result<Node, ApplyError> {
        Form::Overlay.probe(parent.fd.as_fd(), name).map_err(looking(name))
    }

    /// Runs `make`, which does not replace anything; what is in its way is removed first.
    pub(crate) fn make<T>(
        &mut self,
        parent: &Dir,
        name: &[u8],
        doing: &'static str,
        make: impl Fn() -> Result<T, Errno>,
    ) -> Result<T, ApplyError> {
        let mut made = make();
        if matches!(made, Err(Errno::EXIST)) {
            self.clear(parent, name)?;
            made = make();
        }
        let path = path::join(&parent.path, name);
        self.pending.whiteouts.remove(&path);
        made.map_err(ApplyError::io(doing, &path))
    }

    /// Removes whatever lies at a name of this layer; false: nothing did.
    pub(crate) fn clear(&mut self, parent: &Dir, name: &[u8]) -> Result<bool, ApplyError> {
        let path = path::join(&parent.path, name);
        match self.probe(parent, name)? {
            Node::Missing => return Ok(false),
            Node::Directory(_) => {
                self.known.clear();
                self.clear_dir(&path)?;
                self.forget(&path);
            }
            node => {
                if matches!(node, Node::Symlink(_)) {
                    self.known.clear();
                }
                self.unlink(parent, name, node)?;
            }
        }
        Ok(true)
    }

    fn unlink(&mut self, parent: &Dir, name: &[u8], node: Node) -> Result<(), ApplyError> {
        if let Node::Other(stat) | Node::Symlink(stat) = node {
            self.usage = self.usage.less(usage_of(&stat));
        }
        let path = path::join(&parent.path, name);
        self.pending.links.remove(&path);
        unlinkat(&parent.fd, name, AtFlags::empty()).map_err(ApplyError::io("remove", &path))
    }

    /// Goes by paths, so that a deep tree does not use up descriptors.
    fn clear_dir(&mut self, path: &[u8]) -> Result<(), ApplyError> {
        let mut stack = vec![path.to_vec()];
        while let Some(top) = stack.last().cloned() {
            let dir = self.open(&top)?;
            let mut deeper = Vec::new();
            for name in names(&dir)? {
                match self.probe(&dir, &name)? {
                    Node::Directory(_) => deeper.push(path::join(&top, &name)),
                    node => self.unlink(&dir, &name, node)?,
                }
            }
            if !deeper.is_empty() {
                stack.append(&mut deeper);
                continue;
            }
            let (parent, name) = path::split(&top);
            unlinkat(&self.open(parent)?.fd, name, AtFlags::REMOVEDIR)
                .map_err(ApplyError::io("remove", &top))?;
            self.usage = self.usage.less(Usage::DIRECTORY);
            stack.pop();
        }
        Ok(())
    }

    /// What was noted about a directory and all below it means nothing any more.
    fn forget(&mut self, dir: &[u8]) {
        let pending = &mut self.pending;
        pending.times.remove(dir);
        pending.times.extract_if(inside(dir), |_, _| true).for_each(drop);
        pending.links.extract_if(inside(dir), |_, _| true).for_each(drop);
        for set in [&mut pending.implied, &mut pending.whiteouts, &mut pending.opaque] {
            set.remove(dir);
            set.extract_if(inside(dir), |_| true).for_each(drop);
        }
    }

    /// The name is gone in the layers below; what this layer has there stays.
    pub(crate) fn add_whiteout(&mut self, path: &[u8]) -> Result<(), ApplyError> {
        let (dir, name) = path::split(path);
        let dir = self.dir(dir)?;
        let path = path::join(&dir.path, name);
        match self.probe(&dir, name)? {
            Node::Missing => {
                self.pending.whiteouts.insert(path);
            }
            Node::Directory(_) => {
                self.pending.implied.remove(&path);
                self.pending.opaque.insert(path);
            }
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn add_opaque(&mut self, path: &[u8]) -> Result<(), ApplyError> {
        let dir = self.dir(path)?;
        self.pending.opaque.insert(dir.path.clone());
        Ok(())
    }

    /// Opened paths are no longer what entries call them.
    pub(crate) fn forget_known(&mut self) {
        self.known.clear();
    }
}

/// A directory that nobody describes.
fn plain() -> Metadata {
    Metadata { uid: 0, gid: 0, mode: 0o755, xattrs: Vec::new(), times: EPOCH }
}

/// The range of all paths below a directory: `/` and the byte after it.
pub(crate) fn inside(dir: &[u8]) -> Range<Vec<u8>> {
    [dir, b"/"].concat()..[dir, b"0"].concat()
}

/// `None`: it is not a directory, or nothing at all.
fn open_below(parent: &Dir, name: &[u8]) -> Result<Option<Rc<Dir>>, ApplyError> {
    match parent.fd.open_beneath(as_path(name), DIR, Mode::empty()) {
        Ok(fd) => Ok(Some(Rc::new(Dir { path: path::join(&parent.path, name), fd: fd.into() }))),
        Err(e) if e.is(Errno::NOTDIR) || e.is(Errno::NOENT) || e.is(Errno::LOOP) => Ok(None),
        Err(e) => Err(ApplyError::io("open directory", &path::join(&parent.path, name))(e)),
    }
}

pub(crate) fn names(dir: &Dir) -> Result<Vec<Vec<u8>>, ApplyError> {
    let read = || -> Result<Vec<Vec<u8>>, Errno> {
        let entries = rustix::fs::Dir::read_from(&dir.fd)?;
        let names = entries.map(|entry| entry.map(|entry| entry.file_name().to_bytes().to_vec()));
        let names: Result<Vec<_>, Errno> = names.collect();
        Ok(names?.into_iter().filter(|name| name != b"." && name != b"..").collect())
    };
    read().map_err(ApplyError::io("read directory", &dir.path))
}

/// What goes with the last name of a file.
fn usage_of(stat: &Stat) -> Usage {
    match FileType::from_raw_mode(stat.st_mode) {
        _ if stat.st_nlink > 1 => Usage::default(),
        FileType::RegularFile => Usage::of_file(u64::try_from(stat.st_size).unwrap_or_default()),
        _ => Usage::NODE,
    }
}

fn looking(path: &[u8]) -> impl FnOnce(Errno) -> ApplyError {
    ApplyError::io("look at", path)
}

pub(crate) fn as_path(path: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(path))
}
