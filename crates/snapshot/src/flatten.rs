//! Layers copied together into one tree, for file systems that cannot carry an overlay.

use std::{collections::HashMap, os::fd::AsFd, path::Path};

use rustix::fs::{AtFlags, Mode, OFlags, Timestamps, futimens, linkat, mkdirat};
use sys::{beneath::Root, idmap::IdMaps};

use crate::{
    ApplyError, LayerDir, Usage,
    copy::{self, Place},
    path,
    stack::{Found, FoundKind, Stack},
    tree::{Dir, as_path},
};

/// Copies what `layers`, topmost first, show as one into an empty directory.
pub(crate) fn flatten(
    layers: &[LayerDir],
    into: &Path,
    ids: Option<&IdMaps>,
) -> Result<Usage, ApplyError> {
    let name = into.display().to_string();
    let root = Root::open(into).map_err(ApplyError::io("open", name.as_bytes()))?;
    let stack = Stack::open(layers)?;
    let mut copy = Flatten { stack, root, ids, usage: Usage::default(), links: HashMap::new() };
    let mut times = Vec::new();
    let mut ahead = vec![Vec::new()];
    while let Some(path) = ahead.pop() {
        let Some(found) = copy.stack.lookup(&path)? else { continue };
        times.push((path.clone(), copy.dir(&path, &found)?));
        let into = copy.open(&path)?;
        for (name, found) in copy.stack.list(&path)? {
            match found.kind {
                FoundKind::Directory => ahead.push(path::join(&path, &name)),
                _ => copy.node(&into, &name, &found)?,
            }
        }
    }
    for (path, times) in times {
        let dir = copy.open(&path)?;
        futimens(&dir.fd, &times).map_err(ApplyError::io("describe", &path))?;
    }
    Ok(copy.usage)
}

struct Flatten<'i> {
    stack: Stack,
    root: Root,
    ids: Option<&'i IdMaps>,
    usage: Usage,
    /// Files of several names by layer and inode, and the first of the names.
    links: HashMap<(usize, u64), Vec<u8>>,
}

impl Flatten<'_> {
    fn dir(&mut self, path: &[u8], found: &Found) -> Result<Timestamps, ApplyError> {
        if !path.is_empty() {
            let (parent, name) = path::split(path);
            mkdirat(&self.open(parent)?.fd, name, Mode::from_raw_mode(0o700))
                .map_err(ApplyError::io("create directory", path))?;
        }
        self.usage += Usage::DIRECTORY;
        let (from, to) = (self.stack.open_dir(found.layer, path)?, self.open(path)?);
        copy::copy_dir_metadata(from.fd.as_fd(), to.fd.as_fd(), self.ids)
            .map(|metadata| metadata.times)
            .map_err(ApplyError::io("describe", path))
    }

    fn node(&mut self, into: &Dir, name: &[u8], found: &Found) -> Result<(), ApplyError> {
        let path = path::join(&into.path, name);
        let file = (found.layer, found.stat.st_ino);
        if let Some(first) = self.links.get(&file).filter(|_| found.stat.st_nlink > 1) {
            let (dir, first) = path::split(first);
            return linkat(&self.open(dir)?.fd, first, &into.fd, name, AtFlags::empty())
                .map_err(ApplyError::io("create hard link", &path));
        }
        let from = self.stack.open_dir(found.layer, &into.path)?;
        let usage = copy::copy_node(
            Place { dir: from.fd.as_fd(), name },
            &found.stat,
            Place { dir: into.fd.as_fd(), name },
            self.ids,
        );
        self.usage += usage.map_err(ApplyError::io("copy", &path))?;
        if found.stat.st_nlink > 1 {
            self.links.insert(file, path);
        }
        Ok(())
    }

    fn open(&self, path: &[u8]) -> Result<Dir, ApplyError> {
        let name = if path.is_empty() { b"." } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let fd = self.root.open_beneath(as_path(name), flags, Mode::empty());
        let fd = fd.map_err(ApplyError::io("open directory", path))?.into();
        Ok(Dir { path: path.to_vec(), fd })
    }
}
