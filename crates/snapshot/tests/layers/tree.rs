//! Trees as values, so that they can be compared.

use std::{
    collections::{BTreeMap, HashMap},
    fmt, fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::Path,
};

/// All that a file is, but for its name.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) kind: char,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) mtime: (i64, i64),
    pub(crate) device: u64,
    pub(crate) content: Vec<u8>,
    pub(crate) xattrs: BTreeMap<String, Vec<u8>>,
    /// The first of the names of a file that has several.
    pub(crate) group: Option<String>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, mode, owner: (uid, gid), mtime, device, content, xattrs, group } = self;
        let len = content.len();
        let content = content[..len.min(40)].escape_ascii();
        write!(f, "{kind} {mode:o} {uid}:{gid} {mtime:?} dev {device:#x} {len} \"{content}\"")?;
        write!(f, " {xattrs:?} {group:?}")
    }
}

pub(crate) type Tree = BTreeMap<String, Node>;

/// Names as text with escapes; the root is `/`.
pub(crate) fn read(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut groups = HashMap::new();
    visit(root, "/", &mut tree, &mut groups);
    tree
}

fn visit(path: &Path, name: &str, tree: &mut Tree, groups: &mut HashMap<u64, String>) {
    let node = node(path, name, groups);
    let is_dir = node.kind == 'd';
    tree.insert(name.to_owned(), node);
    if !is_dir {
        return;
    }
    let mut entries: Vec<_> =
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for entry in entries {
        let last = entry.file_name().unwrap().as_bytes().escape_ascii().to_string();
        visit(&entry, &format!("{}/{last}", name.trim_end_matches('/')), tree, groups);
    }
}

fn node(path: &Path, name: &str, groups: &mut HashMap<u64, String>) -> Node {
    let meta = fs::symlink_metadata(path).unwrap();
    let kind = meta.file_type();
    let (kind, content) = match () {
        () if kind.is_dir() => ('d', Vec::new()),
        () if kind.is_symlink() => {
            ('l', fs::read_link(path).unwrap().as_os_str().as_bytes().to_vec())
        }
        () if kind.is_char_device() => ('c', Vec::new()),
        () if kind.is_block_device() => ('b', Vec::new()),
        () if kind.is_fifo() => ('p', Vec::new()),
        () if kind.is_socket() => ('s', Vec::new()),
        () => ('f', fs::read(path).unwrap()),
    };
    let group = (kind != 'd' && meta.nlink() > 1)
        .then(|| groups.entry(meta.ino()).or_insert_with(|| name.to_owned()).clone());
    Node {
        kind,
        mode: if kind == 'l' { 0 } else { meta.mode() & 0o7777 },
        owner: (meta.uid(), meta.gid()),
        mtime: (meta.mtime(), meta.mtime_nsec()),
        device: if matches!(kind, 'c' | 'b') { meta.rdev() } else { 0 },
        content,
        xattrs: xattrs(path),
        group,
    }
}

fn xattrs(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut names = vec![0; 1 << 16];
    let len = rustix::fs::llistxattr(path, &mut names).unwrap();
    let names = names[..len].split(|&b| b == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0; 1 << 16];
            let len = rustix::fs::lgetxattr(path, name, &mut value).unwrap();
            (String::from_utf8_lossy(name).into_owned(), value[..len].to_vec())
        })
        .collect()
}

/// One line per difference.
pub(crate) fn differences(ours: &Tree, theirs: &Tree) -> Vec<String> {
    let mut names: Vec<_> = ours.keys().chain(theirs.keys()).collect();
    names.sort();
    names.dedup();
    let differ = names.into_iter().filter(|name| ours.get(*name) != theirs.get(*name));
    differ
        .map(|name| {
            format!("{name}\n   ours   {:?}\n   theirs {:?}", ours.get(name), theirs.get(name))
        })
        .collect()
}
