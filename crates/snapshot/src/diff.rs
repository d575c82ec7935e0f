//! What a writable directory has changed of the layers below it, as a tar.
//!
//! ```text
//!   upper ──walk──> files, directories, links, devices ──> tar, in the order of their names
//!             └───> marks of deletion ──> a list of paths
//! ```
//!
//! **Invariant:** an archive is what its headers say: a file that is not as long as it was when
//! its header was written ends the work.

use std::{
    collections::HashMap,
    ffi::OsStr,
    fs::File,
    io::{self, Read, Write},
    os::{fd::AsFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FileType, Mode, OFlags, Stat, fgetxattr, major, minor, openat, readlinkat},
    io::Errno,
};
use sys::beneath::Root;
use tar::{Builder, EntryType, Header};

use crate::{
    Form, LayerDir, SnapshotError,
    error::shown,
    layer::Node,
    node,
    path::join,
    stack::Stack,
    tree::{Dir, as_path, names},
};

/// Whether to go on; asked before every piece.
pub type GoOn<'g> = &'g dyn Fn() -> bool;

/// What became of a tree besides what is in the archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diff {
    /// Things that were changed or added, all in the archive.
    pub entries: u64,
    /// Things of the layers that are gone, as paths from the root.
    pub deleted: Vec<PathBuf>,
}

/// Exactly so many bytes of a file, or an error; no more once it is told to end.
pub struct Exactly<'g, R> {
    from: R,
    left: u64,
    go_on: GoOn<'g>,
}

impl<'g, R> Exactly<'g, R> {
    pub fn new(from: R, bytes: u64, go_on: GoOn<'g>) -> Self {
        Self { from, left: bytes, go_on }
    }
}

impl<R> std::fmt::Debug for Exactly<'_, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Exactly({} bytes to go)", self.left)
    }
}

impl<R: Read> Read for Exactly<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if !(self.go_on)() {
            return Err(stopped());
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
        let read = self.from.read(&mut into[..most])?;
        if read == 0 && most > 0 {
            let why = "it became shorter while it was read";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
        }
        self.left -= read as u64;
        Ok(read)
    }
}

fn stopped() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "told to end")
}

/// Writes what `upper`, the writable directory of an overlay over `layers`, topmost first, has.
/// Nobody may be changing it meanwhile. Blocking.
pub fn write_diff(
    upper: &Path,
    layers: &[LayerDir],
    out: File,
    go_on: GoOn<'_>,
) -> Result<Diff, SnapshotError> {
    let failed = || SnapshotError::io("archive the changes in", upper);
    let stack = Stack::open(layers).map_err(unread)?;
    let root = Root::open(upper)?;
    let tar = Builder::new(io::BufWriter::with_capacity(256 << 10, out));
    let mut work = Work { root, stack, tar, links: HashMap::new(), diff: Diff::default(), go_on };
    let mut ahead = vec![Vec::new()];
    while let Some(path) = ahead.pop() {
        ahead.extend(work.directory(&path)?.into_iter().rev());
    }
    let mut out = work.tar.into_inner().map_err(failed())?;
    out.flush().map_err(failed())?;
    Ok(work.diff)
}

struct Work<'g> {
    root: Root,
    stack: Stack,
    tar: Builder<io::BufWriter<File>>,
    /// Files of several names, and the first of them.
    links: HashMap<u64, Vec<u8>>,
    diff: Diff,
    go_on: GoOn<'g>,
}

const READ: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK);

impl Work<'_> {
    /// All in it but its directories, which are returned.
    fn directory(&mut self, path: &[u8]) -> Result<Vec<Vec<u8>>, SnapshotError> {
        let dir = self.open(path)?;
        self.refuse_reference(dir.fd.as_fd(), path)?;
        if !path.is_empty() {
            self.describe(&dir)?;
        }
        let mut own = names(&dir).map_err(unread)?;
        own.sort();
        let opaque = Form::Overlay.is_opaque(dir.fd.as_fd()).map_err(io_at("look at", path))?;
        if opaque {
            let below = self.stack.list(path).map_err(unread)?;
            let gone = below.keys().filter(|name| own.binary_search(name).is_err());
            self.diff.deleted.extend(gone.map(|name| absolute(&join(path, name))));
        }
        let mut deeper = Vec::new();
        for name in own {
            if !(self.go_on)() {
                return Err(io_at("archive", path)(stopped()));
            }
            let full = join(path, &name);
            let probed = Form::Overlay.probe(dir.fd.as_fd(), &name);
            match probed.map_err(io_at("look at", &full))? {
                Node::Missing => {}
                // One that hides nothing tells nothing.
                Node::Whiteout if opaque => {}
                Node::Whiteout => self.diff.deleted.push(absolute(&full)),
                Node::Directory(_) => deeper.push(full),
                Node::Symlink(stat) | Node::Other(stat) => self.node(&dir, &name, &stat)?,
            }
        }
        Ok(deeper)
    }

    fn open(&self, path: &[u8]) -> Result<Dir, SnapshotError> {
        let name = if path.is_empty() { b"." } else { path };
        let flags = READ | OFlags::DIRECTORY;
        let fd = self.root.open_beneath(as_path(name), flags, Mode::empty())?;
        Ok(Dir { path: path.to_vec(), fd: fd.into() })
    }

    fn describe(&mut self, dir: &Dir) -> Result<(), SnapshotError> {
        let failed = || io_at("archive", &dir.path);
        let stat = rustix::fs::fstat(&dir.fd).map_err(failed())?;
        self.extend(&node::xattrs(dir.fd.as_fd()).map_err(failed())?, &dir.path)?;
        let mut header = header(&stat, EntryType::Directory);
        self.put(&mut header, &dir.path, io::empty())
    }

    /// Anything but a directory.
    fn node(&mut self, dir: &Dir, name: &[u8], stat: &Stat) -> Result<(), SnapshotError> {
        let path = join(&dir.path, name);
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => EntryType::Regular,
            FileType::Symlink => EntryType::Symlink,
            FileType::CharacterDevice => EntryType::Char,
            FileType::BlockDevice => EntryType::Block,
            FileType::Fifo => EntryType::Fifo,
            // Sockets live as long as who listens; no archive has them.
            _ => return Ok(()),
        };
        if let Some(first) = self.links.get(&stat.st_ino).filter(|_| stat.st_nlink > 1).cloned() {
            return self.link(header(stat, EntryType::Link), &path, &first);
        }
        if stat.st_nlink > 1 {
            self.links.insert(stat.st_ino, path.clone());
        }
        let mut header = header(stat, kind);
        if kind == EntryType::Regular {
            return self.file(dir, name, &path, header);
        }
        let xattrs = node::xattrs_at(dir.fd.as_fd(), name).map_err(io_at("archive", &path))?;
        self.extend(&xattrs, &path)?;
        if kind == EntryType::Symlink {
            let target = readlinkat(&dir.fd, name, Vec::new()).map_err(io_at("archive", &path))?;
            return self.link(header, &path, target.as_bytes());
        }
        self.put(&mut header, &path, io::empty())
    }

    fn file(
        &mut self,
        dir: &Dir,
        name: &[u8],
        path: &[u8],
        mut header: Header,
    ) -> Result<(), SnapshotError> {
        let failed = || io_at("archive", path);
        let file = openat(&dir.fd, name, READ | OFlags::CLOEXEC, Mode::empty()).map_err(failed())?;
        self.refuse_reference(file.as_fd(), path)?;
        self.extend(&node::xattrs(file.as_fd()).map_err(failed())?, path)?;
        let bytes = File::from(file);
        let size = bytes.metadata().map_err(io_at("archive", path))?.len();
        header.set_size(size);
        let content = Exactly::new(bytes, size, self.go_on);
        self.put(&mut header, path, content)
    }

    fn link(&mut self, mut header: Header, path: &[u8], to: &[u8]) -> Result<(), SnapshotError> {
        header.set_size(0);
        let put =
            self.tar.append_link(&mut header, as_path(path), Path::new(OsStr::from_bytes(to)));
        put.map_err(io_at("archive", path))?;
        self.diff.entries += 1;
        Ok(())
    }

    fn put(
        &mut self,
        header: &mut Header,
        path: &[u8],
        content: impl Read,
    ) -> Result<(), SnapshotError> {
        let put = self.tar.append_data(header, as_path(path), content);
        put.map_err(io_at("archive", path))?;
        self.diff.entries += 1;
        Ok(())
    }

    fn extend(&mut self, xattrs: &node::Xattrs, path: &[u8]) -> Result<(), SnapshotError> {
        let named: Vec<_> = xattrs
            .iter()
            .filter_map(|(name, value)| Some((std::str::from_utf8(name).ok()?, value.as_slice())))
            .map(|(name, value)| (format!("SCHILY.xattr.{name}"), value))
            .collect();
        if named.is_empty() {
            return Ok(());
        }
        let pairs = named.iter().map(|(name, value)| (name.as_str(), *value));
        self.tar.append_pax_extensions(pairs).map_err(io_at("archive", path))
    }

    /// Of some things an overlay may keep only where they are in the layers. Ours do not, unless
    /// the kernel was told to.
    fn refuse_reference(&self, fd: impl AsFd, path: &[u8]) -> Result<(), SnapshotError> {
        for (mark, option) in [("redirect", "redirect_dir"), ("metacopy", "metacopy")] {
            match fgetxattr(fd.as_fd(), format!("trusted.overlay.{mark}"), &mut [0_u8; 0][..]) {
                Ok(_) => return Err(SnapshotError::Reference { path: shown(path), option }),
                Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                Err(e) => return Err(io_at("look at", path)(e)),
            }
        }
        Ok(())
    }
}

fn header(stat: &Stat, kind: EntryType) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(stat.st_mode & 0o7777);
    header.set_uid(stat.st_uid.into());
    header.set_gid(stat.st_gid.into());
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or_default());
    header.set_size(0);
    if matches!(kind, EntryType::Char | EntryType::Block) {
        // GNU headers have these fields.
        let _ = header.set_device_major(major(stat.st_rdev));
        let _ = header.set_device_minor(minor(stat.st_rdev));
    }
    header
}

fn absolute(path: &[u8]) -> PathBuf {
    Path::new("/").join(as_path(path))
}

fn io_at<E: Into<io::Error>>(doing: &'static str, path: &[u8]) -> impl FnOnce(E) -> SnapshotError {
    SnapshotError::io(doing, absolute(path))
}

fn unread(source: crate::ApplyError) -> SnapshotError {
    SnapshotError::Unread { source }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        fs,
        os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    };

    use super::*;

    struct Trees {
        dir: tempfile::TempDir,
        layers: Vec<LayerDir>,
    }

    impl Trees {
        /// Layers, topmost first, of files.
        fn new(layers: &[&[&str]]) -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join("upper")).unwrap();
            let made = layers.iter().enumerate().map(|(n, files)| {
                let layer = dir.path().join(n.to_string());
                for file in *files {
                    let file = layer.join(file);
                    fs::create_dir_all(file.parent().unwrap()).unwrap();
                    fs::write(file, "below").unwrap();
                }
                LayerDir::new(layer, Form::Overlay)
            });
            let layers = made.collect();
            Self { dir, layers }
        }

        fn upper(&self) -> PathBuf {
            self.dir.path().join("upper")
        }

        fn diff(&self) -> (Diff, BTreeMap<String, (EntryType, String)>) {
            let out = self.dir.path().join("out.tar");
            let file = File::create(&out).unwrap();
            let diff = write_diff(&self.upper(), &self.layers, file, &|| true).unwrap();
            let mut archive = tar::Archive::new(File::open(out).unwrap());
            let entries = archive.entries().unwrap().map(|entry| {
                let mut entry = entry.unwrap();
                let name = entry.path().unwrap().display().to_string();
                let mut text = String::new();
                entry.read_to_string(&mut text).unwrap();
                if let Some(to) = entry.link_name().unwrap() {
                    text = to.display().to_string();
                }
                (name, (entry.header().entry_type(), text))
            });
            (diff, entries.collect())
        }
    }

    fn expect(kind: EntryType, text: &str) -> (EntryType, String) {
        (kind, text.to_owned())
    }

    #[test]
    fn nothing_changed_is_an_empty_archive() {
        let trees = Trees::new(&[&["etc/a"]]);
        assert_eq!(trees.diff(), (Diff::default(), BTreeMap::new()));
    }

    #[test]
    fn what_was_written_is_in_the_archive() {
        let trees = Trees::new(&[&["etc/a"]]);
        let upper = trees.upper();
        let long = format!("{}/{}", "d".repeat(120), "f".repeat(200));
        fs::create_dir_all(upper.join("etc")).unwrap();
        fs::create_dir_all(upper.join(&long).parent().unwrap()).unwrap();
        fs::write(upper.join(&long), "long").unwrap();
        fs::write(upper.join("etc/b"), "new").unwrap();
        fs::hard_link(upper.join("etc/b"), upper.join("etc/c")).unwrap();
        symlink("b", upper.join("etc/l")).unwrap();
        fs::set_permissions(upper.join("etc/b"), fs::Permissions::from_mode(0o4711)).unwrap();
        let (diff, entries) = trees.diff();
        assert_eq!((diff.entries, diff.deleted), (6, Vec::new()));
        assert_eq!(entries["etc/b"], expect(EntryType::Regular, "new"));
        assert_eq!(entries["etc/c"], expect(EntryType::Link, "etc/b"));
        assert_eq!(entries["etc/l"], expect(EntryType::Symlink, "b"));
        assert_eq!(entries[&long], expect(EntryType::Regular, "long"));
    }

    #[test]
    fn what_unpacks_it_gets_modes_and_attributes() {
        let trees = Trees::new(&[]);
        let file = trees.upper().join("f");
        fs::write(&file, "x").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        let has_xattrs = rustix::fs::setxattr(&file, "user.mark", b"7", flags).is_ok();
        trees.diff();
        let into = trees.dir.path().join("into");
        let mut unpack = std::process::Command::new("tar");
        unpack.args(["--xattrs", "-xpf"]).arg(trees.dir.path().join("out.tar"));
        fs::create_dir(&into).unwrap();
        assert!(unpack.arg("-C").arg(&into).status().unwrap().success());
        let got = fs::metadata(into.join("f")).unwrap();
        assert_eq!((got.mode() & 0o7777, got.len()), (0o640, 1));
        if has_xattrs {
            let mut value = [0_u8; 8];
            let len = rustix::fs::getxattr(into.join("f"), "user.mark", &mut value[..]).unwrap();
            assert_eq!(&value[..len], b"7");
        }
    }

    #[test]
    fn what_is_gone_is_listed() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let trees = Trees::new(&[&["o/top", "etc/a"], &["o/bottom", "o/kept"]]);
        let upper = Root::open(&trees.upper()).unwrap();
        Form::Overlay.add_whiteout(upper.as_fd(), b"gone").unwrap();
        // Emptied and made anew.
        fs::create_dir(trees.upper().join("o")).unwrap();
        fs::write(trees.upper().join("o/kept"), "again").unwrap();
        let dir = File::open(trees.upper().join("o")).unwrap();
        Form::Overlay.set_opaque(dir.as_fd()).unwrap();
        let (diff, entries) = trees.diff();
        assert_eq!(diff.deleted, ["/gone", "/o/bottom", "/o/top"].map(PathBuf::from));
        assert_eq!(entries.keys().collect::<Vec<_>>(), ["o", "o/kept"]);
    }

    #[test]
    fn what_is_only_a_reference_is_refused_by_name() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let trees = Trees::new(&[]);
        let dir = trees.upper().join("moved");
        fs::create_dir(&dir).unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&dir, "trusted.overlay.redirect", b"old", flags).unwrap();
        let out = File::create(trees.dir.path().join("out.tar")).unwrap();
        let refused = write_diff(&trees.upper(), &[], out, &|| true).unwrap_err();
        assert!(refused.to_string().contains("\"moved\""), "{refused}");
        assert!(refused.to_string().contains("redirect_dir"), "{refused}");
    }

    #[test]
    fn it_ends_when_told() {
        let trees = Trees::new(&[]);
        fs::write(trees.upper().join("f"), "x").unwrap();
        let out = File::create(trees.dir.path().join("out.tar")).unwrap();
        let ended = write_diff(&trees.upper(), &[], out, &|| false).unwrap_err();
        assert_eq!(ended.kind(), base::Kind::Deadline, "{ended}");
    }

    #[test]
    fn a_file_that_shrinks_is_an_error() {
        let mut short = Exactly::new(&b"abc"[..], 4, &|| true);
        let error = io::copy(&mut short, &mut io::sink()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        let mut long = Exactly::new(&b"abc"[..], 2, &|| true);
        assert_eq!(io::copy(&mut long, &mut io::sink()).unwrap(), 2);
    }
}
