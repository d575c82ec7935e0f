//! Fits a layer onto the layers below it, once these are there.
//!
//! A layer applied alone is right but for what it leaves unsaid:
//! - directories it only implies take everything from the one below;
//! - where such a directory is a symlink below, the files belong to where that leads;
//! - hard links to files below need these files, so they are copied up;
//! - deletions are written down, where there is something to delete.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::ErrorKind,
    os::fd::AsFd,
};

use rustix::fs::{AtFlags, futimens, linkat, readlinkat, renameat, unlinkat};

use crate::{
    ApplyError, Form, LayerDir, Refusal, Usage,
    apply::Applied,
    copy::{self, Place},
    layer::Node,
    limits::{self, NAME_BYTES},
    node::{EPOCH, times_of},
    path,
    stack::{Found, FoundKind, Stack},
    tree::{Dir, Tree, inside, names},
};

/// Finishes a layer, given the finished ones below it, topmost first. Returns what it
/// takes on disk. [`crate::Snapshots::commit`] does this, and more.
///
/// Blocks.
pub fn rebase_layer(
    layer: &LayerDir,
    applied: Applied,
    below: &[LayerDir],
) -> Result<Usage, ApplyError> {
    let tree = Tree::resume(layer, applied.pending, applied.usage)?;
    let below = Stack::open(below)?;
    let mut rebase = Rebase { tree, below, form: layer.form };
    rebase.settle_implied()?;
    rebase.copy_linked()?;
    // Files that were copied up lie in directories, too.
    rebase.settle_implied()?;
    rebase.mark_deleted()?;
    rebase.set_times()?;
    Ok(rebase.tree.usage)
}

/// No entry can have this name: it would delete nothing.
const ASIDE: &[u8] = b".wh..";

struct Rebase {
    tree: Tree,
    below: Stack,
    form: Form,
}

impl Rebase {
    /// What the layers below show at a path, seen from above this layer.
    fn lookup_below(&self, path: &[u8]) -> Result<Option<Found>, ApplyError> {
        let pending = &self.tree.pending;
        let hides = |dir: &[u8]| pending.opaque.contains(dir) || pending.whiteouts.contains(dir);
        match path::ancestors(path).any(hides) {
            true => Ok(None),
            false => self.below.lookup(path),
        }
    }

    fn settle_implied(&mut self) -> Result<(), ApplyError> {
        // Ascending: a directory comes after the one it is in. Relocation adds to the set.
        while let Some(path) = self.tree.pending.implied.pop_first() {
            match self.lookup_below(&path)? {
                None => {
                    self.tree.pending.times.entry(path).or_insert(EPOCH);
                }
                Some(found) => match found.kind {
                    FoundKind::Directory => self.take_over(&path, &found)?,
                    FoundKind::Symlink => self.relocate(&path, &found)?,
                    FoundKind::Other => {
                        return Err(ApplyError::refused(&path, Refusal::NotADirectory));
                    }
                },
            }
        }
        Ok(())
    }

    fn take_over(&mut self, path: &[u8], found: &Found) -> Result<(), ApplyError> {
        let (from, to) = (self.below.open_dir(found.layer, path)?, self.tree.open(path)?);
        let copied = copy::copy_dir_metadata(from.fd.as_fd(), to.fd.as_fd(), None);
        copied.map_err(ApplyError::io("describe", path))?;
        self.tree.pending.times.insert(path.to_vec(), times_of(&found.stat));
        Ok(())
    }

    /// `path` is a symlink below, and entries of this layer went through it.
    fn relocate(&mut self, path: &[u8], found: &Found) -> Result<(), ApplyError> {
        let (parent, name) = path::split(path);
        let from = self.below.open_dir(found.layer, parent)?;
        let link = readlinkat(&from.fd, name, Vec::new());
        let link = link.map_err(ApplyError::io("read link", path))?;
        let target = self.resolve(parent, link.as_bytes())?;
        if target == path || path::below(&target, path).is_some() {
            return Err(ApplyError::refused(path, Refusal::Loop));
        }
        self.tree.forget_known();
        // First out of the way: the place it belongs to may be one it lies in.
        let (own, root) = (self.tree.open(parent)?, self.tree.root());
        renameat(&own.fd, name, &root.fd, ASIDE).map_err(ApplyError::io("move", path))?;
        self.rename_pending(path, ASIDE);
        let to = self.tree.dir(&target)?;
        self.move_into(ASIDE, &to.path)?;
        self.rename_pending(ASIDE, &to.path);
        self.tree.forget_known();
        Ok(())
    }

    /// Where a container would come to: this layer's names first, then those below.
    /// Parts that are nowhere are taken as they are.
    fn resolve(&self, from: &[u8], link: &[u8]) -> Result<Vec<u8>, ApplyError> {
        let refused = |why| ApplyError::refused(link, why);
        let ahead = |text: &[u8]| -> Vec<Vec<u8>> {
            path::components(text).rev().map(<[u8]>::to_vec).collect()
        };
        let start = |text: &[u8], here: &[u8]| match text.starts_with(b"/") {
            true => Vec::new(),
            false => here.to_vec(),
        };
        let mut here = start(link, from);
        let mut left = ahead(link);
        let mut followed = 1;
        while let Some(name) = left.pop() {
            match name.as_slice() {
                b"." => continue,
                b".." => {
                    here = path::split(&here).0.to_vec();
                    continue;
                }
                _ => {}
            }
            let next = path::join(&here, &name);
            if next.len() > NAME_BYTES {
                return Err(limits::limit(crate::Limited::NameBytes, NAME_BYTES as u64));
            }
            match self.link_at(&here, &name)? {
                Some(link) => {
                    followed += 1;
                    if followed > 40 {
                        return Err(refused(Refusal::Loop));
                    }
                    here = start(&link, &here);
                    left.extend(ahead(&link));
                }
                None => here = next,
            }
        }
        Ok(here)
    }

    /// What a symlink says; `None` for anything else.
    fn link_at(&self, dir: &[u8], name: &[u8]) -> Result<Option<Vec<u8>>, ApplyError> {
        let path = path::join(dir, name);
        let read = |dir: &Dir| {
            let link = readlinkat(&dir.fd, name, Vec::new());
            link.map(|link| Some(link.into_bytes())).map_err(ApplyError::io("read link", &path))
        };
        if let Some(own) = self.own_dir(dir)? {
            match self.tree.probe(&own, name)? {
                Node::Symlink(_) => return read(&own),
                // An implied one only stands for what is below.
                Node::Directory(_) if self.tree.pending.implied.contains(&path) => {}
                Node::Missing if !self.tree.pending.whiteouts.contains(&path) => {}
                _ => return Ok(None),
            }
        }
        match self.lookup_below(&path)? {
            Some(found) if found.kind == FoundKind::Symlink => {
                read(&self.below.open_dir(found.layer, dir)?)
            }
            _ => Ok(None),
        }
    }

    fn own_dir(&self, path: &[u8]) -> Result<Option<std::rc::Rc<Dir>>, ApplyError> {
        match self.tree.open(path) {
            Ok(dir) => Ok(Some(dir)),
            Err(ApplyError::Io { source, .. })
                if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// All that is in one directory of this layer into another one.
    fn move_into(&mut self, from: &[u8], to: &[u8]) -> Result<(), ApplyError> {
        let (source, target) = (self.tree.open(from)?, self.tree.open(to)?);
        for name in names(&source)? {
            let (old, new) = (path::join(from, &name), path::join(to, &name));
            let both = (self.tree.probe(&source, &name)?, self.tree.probe(&target, &name)?);
            if let (Node::Directory(_), Node::Directory(_)) = both {
                if !self.tree.pending.implied.contains(&old) {
                    let (a, b) = (self.tree.open(&old)?, self.tree.open(&new)?);
                    copy::copy_dir_metadata(a.fd.as_fd(), b.fd.as_fd(), None)
                        .map_err(ApplyError::io("describe", &new))?;
                    self.tree.pending.implied.remove(&new);
                }
                self.move_into(&old, &new)?;
                continue;
            }
            self.tree.clear(&target, &name)?;
            self.tree.pending.whiteouts.remove(&new);
            renameat(&source.fd, name.as_slice(), &target.fd, name.as_slice())
                .map_err(ApplyError::io("move", &old))?;
        }
        let (parent, name) = path::split(from);
        unlinkat(&self.tree.open(parent)?.fd, name, AtFlags::REMOVEDIR)
            .map_err(ApplyError::io("remove", from))?;
        self.tree.usage = self.tree.usage.less(Usage::DIRECTORY);
        Ok(())
    }

    /// What is noted about paths below `from` is about paths below `to` now.
    fn rename_pending(&mut self, from: &[u8], to: &[u8]) {
        let renamed = |path: &[u8]| {
            path::below(path, from).map_or_else(|| to.to_vec(), |rest| path::join(to, rest))
        };
        let pending = &mut self.tree.pending;
        pending.times.remove(from);
        if pending.opaque.remove(from) {
            pending.opaque.insert(to.to_vec());
        }
        let rename_set = |set: &mut BTreeSet<Vec<u8>>| {
            let moved: Vec<_> = set.extract_if(inside(from), |_| true).collect();
            set.extend(moved.iter().map(|path| renamed(path)));
        };
        rename_set(&mut pending.implied);
        rename_set(&mut pending.whiteouts);
        rename_set(&mut pending.opaque);
        let moved: Vec<_> = pending.times.extract_if(inside(from), |_, _| true).collect();
        pending.times.extend(moved.into_iter().map(|(path, times)| (renamed(&path), times)));
        let moved: Vec<_> = pending.links.extract_if(inside(from), |_, _| true).collect();
        pending.links.extend(moved.into_iter().map(|(path, target)| (renamed(&path), target)));
    }

    fn copy_linked(&mut self) -> Result<(), ApplyError> {
        let mut copied: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for (at, target) in std::mem::take(&mut self.tree.pending.links) {
            let (dir, name) = path::split(&target);
            let target = path::join(&self.resolve(b"", dir)?, name);
            let (dir, name) = path::split(&at);
            let dir = self.tree.open(dir)?;
            self.tree.clear(&dir, name)?;
            match copied.get(&target) {
                Some(first) => self.link(&first.clone(), &dir, name)?,
                None => {
                    self.copy_up(&target, &dir, name)?;
                    copied.insert(target, at);
                }
            }
        }
        Ok(())
    }

    /// The file below gets the new name; where nothing of this layer is in its way, both
    /// names are of one file, as they would be in one tree.
    fn copy_up(&mut self, target: &[u8], dir: &Dir, name: &[u8]) -> Result<(), ApplyError> {
        let at = path::join(&dir.path, name);
        let found = match self.lookup_below(target)? {
            Some(found) if found.kind != FoundKind::Directory => found,
            Some(_) => return Err(ApplyError::refused(&at, Refusal::LinkToDirectory)),
            None => return Err(ApplyError::refused(&at, Refusal::TargetMissing)),
        };
        let (from_dir, from_name) = path::split(target);
        let from = self.below.open_dir(found.layer, from_dir)?;
        let usage = copy::copy_node(
            Place { dir: from.fd.as_fd(), name: from_name },
            &found.stat,
            Place { dir: dir.fd.as_fd(), name },
            None,
        );
        self.tree.usage += usage.map_err(ApplyError::io("copy up", target))?;
        for name in self.names_below(target, &found)? {
            if self.tree.pending.whiteouts.contains(&name) {
                continue;
            }
            let (dir, last) = path::split(&name);
            let home = self.tree.dir(dir)?;
            if let Node::Missing = self.tree.probe(&home, last)? {
                self.link(&at, &home, last)?;
            }
        }
        Ok(())
    }

    /// All names under which a file shows. Only a walk through its layer finds those it has
    /// beside the one that is known; few files have any, and fewer are linked to later.
    fn names_below(&self, target: &[u8], found: &Found) -> Result<Vec<Vec<u8>>, ApplyError> {
        let mut all = vec![target.to_vec()];
        let mut ahead = vec![Vec::new()];
        while let Some(path) = ahead.pop() {
            if all.len() as u64 >= found.stat.st_nlink {
                break;
            }
            let dir = self.below.open_dir(found.layer, &path)?;
            for name in names(&dir)? {
                let path = path::join(&path, &name);
                match self.tree.probe(&dir, &name)? {
                    Node::Directory(_) => ahead.push(path),
                    Node::Other(stat) | Node::Symlink(stat)
                        if stat.st_ino == found.stat.st_ino && path != target =>
                    {
                        let shows = self.lookup_below(&path)?;
                        all.extend(shows.filter(|it| it.layer == found.layer).map(|_| path));
                    }
                    _ => {}
                }
            }
        }
        Ok(all)
    }

    fn link(&self, from: &[u8], dir: &Dir, name: &[u8]) -> Result<(), ApplyError> {
        let (from_dir, from_name) = path::split(from);
        let from_dir = self.tree.open(from_dir)?;
        linkat(&from_dir.fd, from_name, &dir.fd, name, AtFlags::empty())
            .map_err(ApplyError::io("create hard link", &path::join(&dir.path, name)))
    }

    fn mark_deleted(&mut self) -> Result<(), ApplyError> {
        for path in std::mem::take(&mut self.tree.pending.whiteouts) {
            if self.lookup_below(&path)?.is_none() {
                continue;
            }
            let (dir, name) = path::split(&path);
            let dir = self.tree.open(dir)?;
            match self.tree.probe(&dir, name)? {
                Node::Missing => {
                    let marked = self.form.add_whiteout(dir.fd.as_fd(), name);
                    marked.map_err(ApplyError::io("mark as deleted", &path))?;
                    self.tree.usage += Usage::NODE;
                }
                // Moved here from where a link led.
                Node::Directory(_) => {
                    self.tree.pending.opaque.insert(path);
                }
                _ => {}
            }
        }
        for path in self.tree.pending.opaque.clone() {
            // Nothing below, or nothing that this one would continue: nothing to hide.
            let hides = self.lookup_below(&path)?;
            if hides.is_some_and(|found| found.kind == FoundKind::Directory) {
                let dir = self.tree.open(&path)?;
                self.form
                    .set_opaque(dir.fd.as_fd())
                    .map_err(ApplyError::io("mark as opaque", &path))?;
            }
        }
        Ok(())
    }

    fn set_times(&mut self) -> Result<(), ApplyError> {
        for (path, times) in &self.tree.pending.times {
            let dir = self.tree.open(path)?;
            futimens(&dir.fd, times).map_err(ApplyError::io("describe", path))?;
        }
        Ok(())
    }
}
