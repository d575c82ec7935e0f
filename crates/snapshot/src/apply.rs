//! One archive into one directory.

use std::{
    io::Read,
    os::fd::{AsFd, OwnedFd},
    rc::Rc,
};

use base::{Algorithm, Digest};
use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, ftruncate, linkat, makedev, mknodat,
        openat, symlinkat,
    },
    io::{Errno, pwrite},
};

use crate::{
    ApplyError, LayerDir, Limits, Refusal, Usage,
    archive::{Archive, Entry, EntryKind},
    layer::Node,
    node::Metadata,
    path::{self, Meaning},
    pipeline,
    tree::{Dir, Pending, Tree, Walk},
};

/// How [`apply_layer`] shall go about it.
#[derive(Clone, Debug, Default)]
pub struct ApplyOptions {
    pub limits: Limits,
    /// What the unpacked bytes must hash to.
    pub diff_id: Option<Digest>,
}

/// A layer that is unpacked and not yet fitted onto the layers below it: give it to
/// [`crate::Snapshots::commit`].
#[derive(Clone, Debug)]
pub struct Applied {
    pub diff_id: Digest,
    pub usage: Usage,
    pub entries: u64,
    /// Attributes that the file system does not keep; not an error, but worth a line.
    pub dropped_xattrs: u64,
    pub(crate) pending: Pending,
}

/// Unpacks a layer into a directory that is empty. `reader` gives the bytes as they were
/// downloaded; gzip, zstd or none is found by looking.
///
/// Needs nothing of the layers below, so the layers of an image may be applied in any
/// order and at the same time. After an error the directory holds anything; throw it away.
///
/// Blocks, uses two more threads, and returns only after the reader's last read has.
pub fn apply_layer(
    reader: impl Read + Send,
    into: &LayerDir,
    options: &ApplyOptions,
) -> Result<Applied, ApplyError> {
    let algorithm = options.diff_id.as_ref().map_or(Algorithm::Sha256, Digest::algorithm);
    let passed = pipeline::run(reader, options.limits, algorithm, |stream| {
        let mut applier = Applier::new(into, options.limits)?;
        let mut archive = Archive::new(stream, options.limits);
        while let Some(entry) = archive.next()? {
            applier.apply(&mut archive, &entry)?;
        }
        Ok(applier)
    })?;
    if let Some(expected) = options.diff_id.as_ref().filter(|id| **id != passed.digest) {
        return Err(ApplyError::DiffId { expected: expected.clone(), found: passed.digest });
    }
    let Applier { tree, entries, dropped_xattrs, .. } = passed.result;
    Ok(Applied {
        diff_id: passed.digest,
        usage: tree.usage,
        entries,
        dropped_xattrs,
        pending: tree.pending,
    })
}

struct Applier {
    tree: Tree,
    limits: Limits,
    entries: u64,
    dropped_xattrs: u64,
}

impl Applier {
    fn new(into: &LayerDir, limits: Limits) -> Result<Self, ApplyError> {
        let tree = Tree::new(into)?;
        Ok(Self { tree, limits, entries: 0, dropped_xattrs: 0 })
    }

    fn apply(&mut self, archive: &mut Archive<'_>, entry: &Entry) -> Result<(), ApplyError> {
        self.entries += 1;
        match path::meaning(&entry.path, &self.limits)? {
            Meaning::Root if entry.kind == EntryKind::Directory => {
                let root = self.tree.root();
                self.describe_dir(&root, entry)
            }
            Meaning::Root => Err(ApplyError::refused(&entry.path, Refusal::Root)),
            Meaning::Ignored => Ok(()),
            Meaning::Opaque(dir) => self.tree.add_opaque(&dir),
            Meaning::Whiteout(path) => self.tree.add_whiteout(&path),
            Meaning::Node(path) => self.node(archive, entry, &path),
        }
    }

    fn node(
        &mut self,
        archive: &mut Archive<'_>,
        entry: &Entry,
        path: &[u8],
    ) -> Result<(), ApplyError> {
        let (dir, name) = path::split(path);
        let dir = self.tree.dir(dir)?;
        match entry.kind {
            EntryKind::Directory => {
                let (made, _) = self.tree.make_dir(&dir, name)?;
                self.describe_dir(&made, entry)
            }
            EntryKind::File => self.file(archive, entry, &dir, name),
            EntryKind::HardLink => self.hard_link(entry, &dir, name),
            EntryKind::Symlink => self.symlink(entry, &dir, name),
            EntryKind::Fifo => self.special(entry, &dir, name, FileType::Fifo),
            EntryKind::CharDevice if entry.device == (0, 0) => {
                Err(ApplyError::refused(&entry.path, Refusal::WhiteoutDevice))
            }
            EntryKind::CharDevice => self.special(entry, &dir, name, FileType::CharacterDevice),
            EntryKind::BlockDevice => self.special(entry, &dir, name, FileType::BlockDevice),
        }
    }

    fn describe_dir(&mut self, dir: &Rc<Dir>, entry: &Entry) -> Result<(), ApplyError> {
        let metadata = metadata(entry);
        self.dropped_xattrs += metadata.set_but_times(dir.fd.as_fd()).map_err(describing(entry))?;
        self.tree.pending.implied.remove(&dir.path);
        self.tree.pending.times.insert(dir.path.clone(), metadata.times);
        Ok(())
    }

    fn file(
        &mut self,
        archive: &mut Archive<'_>,
        entry: &Entry,
        dir: &Dir,
        name: &[u8],
    ) -> Result<(), ApplyError> {
        let file = self.create(dir, name)?;
        if entry.is_sparse() {
            ftruncate(&file, entry.size).map_err(ApplyError::io("size", &entry.path))?;
        }
        archive.data(entry, |at, bytes| {
            write_at(&file, at, bytes).map_err(ApplyError::io("write", &entry.path))
        })?;
        self.tree.usage += Usage::of_file(entry.data_bytes());
        self.dropped_xattrs += metadata(entry).set(file.as_fd()).map_err(describing(entry))?;
        Ok(())
    }

    fn create(&mut self, dir: &Dir, name: &[u8]) -> Result<OwnedFd, ApplyError> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW;
        self.tree.make(dir, name, "create file", || {
            openat(&dir.fd, name, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o600))
        })
    }

    fn symlink(&mut self, entry: &Entry, dir: &Dir, name: &[u8]) -> Result<(), ApplyError> {
        if entry.link.is_empty() {
            return Err(ApplyError::refused(&entry.path, Refusal::NoTarget));
        }
        if entry.link.contains(&0) {
            return Err(ApplyError::refused(&entry.path, Refusal::Nul));
        }
        let link = entry.link.as_slice();
        self.tree.make(dir, name, "create symlink", || symlinkat(link, &dir.fd, name))?;
        self.tree.usage += Usage::NODE;
        self.dropped_xattrs +=
            metadata(entry).set_on_link(&dir.fd, name).map_err(describing(entry))?;
        Ok(())
    }

    fn special(
        &mut self,
        entry: &Entry,
        dir: &Dir,
        name: &[u8],
        kind: FileType,
    ) -> Result<(), ApplyError> {
        let (major, minor) = entry.device;
        let mode = Mode::from_raw_mode(0o600);
        self.tree.make(dir, name, "create device", || {
            mknodat(&dir.fd, name, kind, mode, makedev(major, minor))
        })?;
        self.tree.usage += Usage::NODE;
        self.dropped_xattrs +=
            metadata(entry).set_on_node(&dir.fd, name).map_err(describing(entry))?;
        Ok(())
    }

    fn hard_link(&mut self, entry: &Entry, dir: &Dir, name: &[u8]) -> Result<(), ApplyError> {
        let refused = |why| ApplyError::refused(&entry.path, why);
        let target = match path::meaning(&entry.link, &self.limits)? {
            Meaning::Node(target) => target,
            Meaning::Root => return Err(refused(Refusal::LinkToDirectory)),
            _ => return Err(refused(Refusal::NoTarget)),
        };
        let (target_dir, target_name) = path::split(&target);
        let found = match self.tree.find_dir(target_dir)? {
            Walk::Left(target_dir) => {
                return self.link_later(dir, name, path::join(&target_dir, target_name));
            }
            Walk::Arrived(found) => found,
        };
        if (&found.path[..], target_name) == (&dir.path[..], name) {
            return Err(refused(Refusal::SelfLink));
        }
        match self.tree.probe(&found, target_name)? {
            Node::Missing | Node::Whiteout => {
                self.link_later(dir, name, path::join(&found.path, target_name))
            }
            Node::Directory(_) => Err(refused(Refusal::LinkToDirectory)),
            Node::Symlink(_) | Node::Other(_) => {
                let own = path::join(&found.path, target_name);
                if path::below(&own, &path::join(&dir.path, name)).is_some() {
                    return Err(refused(Refusal::TargetMissing));
                }
                if let Some(target) = self.tree.pending.links.get(&own).cloned() {
                    return self.link_later(dir, name, target);
                }
                self.tree.make(dir, name, "create hard link", || {
                    linkat(&found.fd, target_name, &dir.fd, name, AtFlags::empty())
                })
            }
        }
    }

    /// The file is not of this layer.
    fn link_later(&mut self, dir: &Dir, name: &[u8], target: Vec<u8>) -> Result<(), ApplyError> {
        let at = path::join(&dir.path, name);
        if at == target {
            return Err(ApplyError::refused(&at, Refusal::SelfLink));
        }
        self.create(dir, name)?;
        self.tree.usage += Usage::NODE;
        self.tree.pending.links.insert(at, target);
        Ok(())
    }
}

fn write_at(file: &OwnedFd, mut at: u64, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match pwrite(file, bytes, at) {
            Ok(len) => (at, bytes) = (at + len as u64, &bytes[len..]),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn metadata(entry: &Entry) -> Metadata {
    let mtime = entry.mtime;
    let newer = |time: &Timespec| (time.tv_sec, time.tv_nsec) > (mtime.tv_sec, mtime.tv_nsec);
    Metadata {
        uid: entry.uid,
        gid: entry.gid,
        mode: entry.mode,
        xattrs: entry.xattrs.clone(),
        times: Timestamps {
            // Never older than the data: programs take that for "not read since".
            last_access: entry.atime.filter(newer).unwrap_or(mtime),
            last_modification: mtime,
        },
    }
}

fn describing(entry: &Entry) -> impl FnOnce(Errno) -> ApplyError {
    ApplyError::io("describe", &entry.path)
}
