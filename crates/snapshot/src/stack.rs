//! Finished layers seen as one tree, without mounting them: what overlay would show.
//!
//! A directory of the tree is a list of layers that have it, topmost first. The list ends
//! where a layer deletes the name, has something else there, or says it is opaque.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap, btree_map::Entry},
    os::fd::AsFd,
    rc::Rc,
};

use rustix::fs::{Mode, OFlags, Stat};
use sys::beneath::Root;

use crate::{
    ApplyError, Form, LayerDir,
    layer::Node,
    path,
    tree::{Dir, as_path, names},
};

#[derive(Debug)]
pub(crate) struct Stack {
    /// Topmost first.
    layers: Vec<Root>,
    form: Form,
    /// Which layers make up a directory; empty for what is none.
    known: RefCell<HashMap<Vec<u8>, Rc<[usize]>>>,
}

/// The layer that shows, and what is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) layer: usize,
    pub(crate) kind: FoundKind,
    pub(crate) stat: Stat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoundKind {
    Directory,
    Symlink,
    Other,
}

const KNOWN: usize = 1 << 16;
const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW);

impl Stack {
    /// Topmost first.
    pub(crate) fn open(layers: &[LayerDir]) -> Result<Self, ApplyError> {
        let open = |layer: &LayerDir| {
            let name = layer.path.display().to_string();
            Root::open(&layer.path).map_err(ApplyError::io("open layer", name.as_bytes()))
        };
        Ok(Self {
            form: layers.first().map_or(Form::Plain, |layer| layer.form),
            layers: layers.iter().map(open).collect::<Result<_, _>>()?,
            known: RefCell::default(),
        })
    }

    /// `path` is canonical in this tree: a symlink on the way means that it is not there.
    pub(crate) fn lookup(&self, path: &[u8]) -> Result<Option<Found>, ApplyError> {
        if path.is_empty() {
            let Some(&layer) = self.members(path)?.first() else { return Ok(None) };
            let stat =
                rustix::fs::fstat(&self.layers[layer]).map_err(ApplyError::io("look at", path))?;
            return Ok(Some(Found { layer, kind: FoundKind::Directory, stat }));
        }
        let (dir, name) = path::split(path);
        for &layer in self.members(dir)?.iter() {
            let (kind, stat) = match self.probe(layer, dir, name)? {
                Node::Missing => continue,
                Node::Whiteout => return Ok(None),
                Node::Directory(stat) => (FoundKind::Directory, stat),
                Node::Symlink(stat) => (FoundKind::Symlink, stat),
                Node::Other(stat) => (FoundKind::Other, stat),
            };
            return Ok(Some(Found { layer, kind, stat }));
        }
        Ok(None)
    }

    /// The directory of one layer, for reading.
    pub(crate) fn open_dir(&self, layer: usize, path: &[u8]) -> Result<Dir, ApplyError> {
        let name = if path.is_empty() { b"." } else { path };
        let fd = self.layers[layer]
            .open_beneath(as_path(name), DIR, Mode::empty())
            .map_err(ApplyError::io("open directory", path))?;
        Ok(Dir { path: path.to_vec(), fd: fd.into() })
    }

    /// What shows in a directory, by name.
    pub(crate) fn list(&self, path: &[u8]) -> Result<BTreeMap<Vec<u8>, Found>, ApplyError> {
        let mut shown: BTreeMap<Vec<u8>, Option<Found>> = BTreeMap::new();
        for &layer in self.members(path)?.iter() {
            let dir = self.open_dir(layer, path)?;
            for name in names(&dir)?.into_iter().filter(|name| !self.form.is_mark(name)) {
                // Where a layer above has a mark and not a name, only a lookup knows.
                if let Entry::Vacant(new) = shown.entry(name) {
                    let found = self.lookup(&path::join(path, new.key()))?;
                    new.insert(found);
                }
            }
        }
        Ok(shown.into_iter().filter_map(|(name, found)| Some((name, found?))).collect())
    }

    fn members(&self, path: &[u8]) -> Result<Rc<[usize]>, ApplyError> {
        if let Some(members) = self.known.borrow().get(path) {
            return Ok(Rc::clone(members));
        }
        let members: Rc<[usize]> = match path {
            [] => self.until_opaque((0..self.layers.len()).map(Ok), path)?.into(),
            path => {
                let (dir, name) = path::split(path);
                let above = self.members(dir)?;
                let mut ended = false;
                let having = above.iter().filter_map(|&layer| {
                    if ended {
                        return None;
                    }
                    match self.probe(layer, dir, name) {
                        Ok(Node::Directory(_)) => return Some(Ok(layer)),
                        Ok(Node::Missing) => {}
                        Ok(_) => ended = true,
                        Err(e) => return Some(Err(e)),
                    }
                    None
                });
                self.until_opaque(having, path)?.into()
            }
        };
        let mut known = self.known.borrow_mut();
        if known.len() >= KNOWN {
            known.clear();
        }
        known.insert(path.to_vec(), Rc::clone(&members));
        Ok(members)
    }

    fn until_opaque(
        &self,
        layers: impl Iterator<Item = Result<usize, ApplyError>>,
        path: &[u8],
    ) -> Result<Vec<usize>, ApplyError> {
        let mut members = Vec::new();
        for layer in layers {
            let layer = layer?;
            members.push(layer);
            let dir = self.open_dir(layer, path)?;
            if self.form.is_opaque(dir.fd.as_fd()).map_err(ApplyError::io("look at", path))? {
                break;
            }
        }
        Ok(members)
    }

    fn probe(&self, layer: usize, dir: &[u8], name: &[u8]) -> Result<Node, ApplyError> {
        let dir = self.open_dir(layer, dir)?;
        self.form.probe(dir.fd.as_fd(), name).map_err(ApplyError::io("look at", name))
    }
}
