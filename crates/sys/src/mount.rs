//! Mounts, by the API that has descriptors for them (`fsopen`, `open_tree`, `move_mount`).
//!
//! ```text
//!   Overlay, bind, tmpfs, proc …  ──make──>  Detached  ──set, idmap──>  ──attach──>  a path
//! ```
//! A [`Detached`] mount is in no tree yet: nobody sees it while its flags are being set,
//! and dropping it undoes it.
//!
//! **Invariant:** a mount becomes visible only with all its attributes.

mod overlay;
mod table;

use std::{
    ffi::CStr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
        OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
        fsmount, fsopen, mount_change, move_mount, open_tree,
    },
};

pub use overlay::{Overlay, Upper};
pub use table::{Entry, ParseError, Table};

use crate::{
    error::{Error, Result, on, to},
    fd::last_errno,
};

/// What may not be done through a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attrs {
    pub read_only: bool,
    pub no_suid: bool,
    pub no_dev: bool,
    pub no_exec: bool,
    pub no_symlinks: bool,
    pub no_atime: bool,
}

impl Attrs {
    pub const READ_ONLY: Self = Self {
        read_only: true,
        no_suid: false,
        no_dev: false,
        no_exec: false,
        no_symlinks: false,
        no_atime: false,
    };

    fn bits(self) -> u64 {
        [
            (self.read_only, libc::MOUNT_ATTR_RDONLY),
            (self.no_suid, libc::MOUNT_ATTR_NOSUID),
            (self.no_dev, libc::MOUNT_ATTR_NODEV),
            (self.no_exec, libc::MOUNT_ATTR_NOEXEC),
            (self.no_symlinks, libc::MOUNT_ATTR_NOSYMFOLLOW),
            (self.no_atime, libc::MOUNT_ATTR_NOATIME),
        ]
        .into_iter()
        .filter_map(|(on, bit)| on.then_some(bit))
        .fold(0, |all, bit| all | bit)
    }
}

/// Only the mount itself, or all that is mounted below it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    One,
    Tree,
}

/// Whether mounts made later on one side show on the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Private,
    /// From the host to us, not back.
    Slave,
    Shared,
    Unbindable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// `EBUSY` while someone uses it.
    Now,
    /// Out of the tree at once, gone when the last user is.
    Lazy,
}

/// A mount (or a tree of them) that is in no namespace yet.
#[derive(Debug)]
pub struct Detached(OwnedFd);

impl Detached {
    /// Adds attributes; none is taken away. With [`Depth::Tree`] a read-only bind is
    /// read-only all the way down, which a plain remount never does.
    pub fn restrict(&self, attrs: Attrs, depth: Depth) -> Result<()> {
        if attrs == Attrs::default() {
            return Ok(());
        }
        let mut change = change();
        change.attr_set = attrs.bits();
        if attrs.no_atime {
            // The access-time bits are one field: it is cleared before it is set.
            change.attr_clr = libc::MOUNT_ATTR__ATIME;
        }
        mount_setattr(self.0.as_fd(), &change, depth).map_err(to("restrict a mount"))
    }

    pub fn set_propagation(&self, propagation: Propagation, depth: Depth) -> Result<()> {
        let mut change = change();
        change.propagation = match propagation {
            Propagation::Private => libc::MS_PRIVATE,
            Propagation::Slave => libc::MS_SLAVE,
            Propagation::Shared => libc::MS_SHARED,
            Propagation::Unbindable => libc::MS_UNBINDABLE,
        };
        mount_setattr(self.0.as_fd(), &change, depth).map_err(to("set the propagation of a mount"))
    }

    /// Shows the files to `user_namespace`'s ids: what root owns on disk belongs to that
    /// namespace's root. Once, before attaching. `EINVAL`: the file system cannot.
    pub fn idmap(&self, user_namespace: impl AsFd, depth: Depth) -> Result<()> {
        let fd = user_namespace.as_fd().as_raw_fd();
        let mut change = change();
        change.attr_set = libc::MOUNT_ATTR_IDMAP;
        change.userns_fd = fd.cast_unsigned().into();
        mount_setattr(self.0.as_fd(), &change, depth).map_err(to("map the ids of a mount"))
    }

    /// Puts it at a path; symlinks in the last component are not followed.
    pub fn attach(self, target: &Path) -> Result<()> {
        move_mount(self.0, c"", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(on("mount on", target))
    }

    /// Puts it on what was opened before, wherever that is now: for targets found by
    /// [`crate::beneath`], between whose finding and mounting nothing can be swapped.
    pub fn attach_to(self, target: impl AsFd) -> Result<()> {
        let flags =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(self.0, c"", target, c"", flags).map_err(to("mount on an open directory"))
    }
}

/// The root of the mount: usable for `openat` before it is attached.
impl AsFd for Detached {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn change() -> libc::mount_attr {
    libc::mount_attr { attr_set: 0, attr_clr: 0, propagation: 0, userns_fd: 0 }
}

/// `mount_setattr(2)`, which neither std nor rustix has.
fn mount_setattr(
    mount: BorrowedFd<'_>,
    change: &libc::mount_attr,
    depth: Depth,
) -> std::result::Result<(), Errno> {
    const EMPTY: &CStr = c"";
    let recursive = match depth {
        Depth::One => 0,
        Depth::Tree => libc::AT_RECURSIVE,
    };
    // SAFETY: an open descriptor, a C string, and a struct of the size we say, all of
    // which outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            EMPTY.as_ptr(),
            libc::AT_EMPTY_PATH | recursive,
            std::ptr::from_ref(change),
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// A second view of `source`; with [`Depth::Tree`] with all that is mounted below it.
/// Carries the attributes of the original: `restrict` adds to them.
pub fn bind(source: &Path, depth: Depth) -> Result<Detached> {
    clone_tree(CWD, source, depth).map_err(on("bind", source))
}

/// Like [`bind`], of what is already open.
pub fn bind_fd(source: impl AsFd, depth: Depth) -> Result<Detached> {
    clone_tree(source.as_fd(), Path::new(""), depth).map_err(to("bind an open path"))
}

fn clone_tree(
    dir: BorrowedFd<'_>,
    path: &Path,
    depth: Depth,
) -> std::result::Result<Detached, Errno> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if depth == Depth::Tree {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    if path.as_os_str().is_empty() {
        flags |= OpenTreeFlags::AT_EMPTY_PATH;
    }
    open_tree(dir, path, flags).map(Detached)
}

/// A tmpfs; sizes of 0 are no limit.
#[derive(Clone, Copy, Debug)]
pub struct Tmpfs {
    pub bytes: u64,
    pub inodes: u64,
    pub mode: u32,
}

impl Tmpfs {
    pub fn create(&self, attrs: Attrs) -> Result<Detached> {
        self.create_labelled(attrs, None)
    }

    /// With the SELinux label of all its files.
    pub fn create_labelled(&self, attrs: Attrs, label: Option<&str>) -> Result<Detached> {
        let (bytes, inodes) = (self.bytes.to_string(), self.inodes.to_string());
        let mode = format!("{:o}", self.mode);
        let mut options =
            vec![("source", "tmpfs"), ("size", &bytes), ("nr_inodes", &inodes), ("mode", &mode)];
        options.extend(label.map(|label| ("context", label)));
        filesystem("tmpfs", &options, attrs)
    }
}

/// Shows the processes of the PID namespace of the caller.
pub fn proc(attrs: Attrs) -> Result<Detached> {
    filesystem("proc", &[("source", "proc")], attrs)
}

/// Any file system by its options.
pub fn filesystem(kind: &str, options: &[(&str, &str)], attrs: Attrs) -> Result<Detached> {
    let context = Context::open(kind)?;
    for (key, value) in options {
        context.set(key, *value)?;
    }
    context.create(attrs)
}

/// A file system being configured. The kernel says in words what it does not like; the
/// words are in the descriptor, and go into our error.
struct Context {
    kind: String,
    fd: OwnedFd,
}

impl Context {
    fn open(kind: &str) -> Result<Self> {
        let fd = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)
            .map_err(|e| Error::new(format!("open file system {kind}"), e))?;
        Ok(Self { kind: kind.to_owned(), fd })
    }

    fn set(&self, key: &str, value: impl rustix::path::Arg + Copy) -> Result<()> {
        fsconfig_set_string(&self.fd, key, value).map_err(|e| {
            let shown = value.to_string_lossy();
            self.refused(&format!("set {key}={shown}"), e)
        })
    }

    fn flag(&self, key: &str) -> Result<()> {
        fsconfig_set_flag(&self.fd, key).map_err(|e| self.refused(&format!("set {key}"), e))
    }

    fn create(&self, attrs: Attrs) -> Result<Detached> {
        fsconfig_create(&self.fd).map_err(|e| self.refused("create", e))?;
        let bits = u32::try_from(attrs.bits()).unwrap_or_default();
        let attrs = MountAttrFlags::from_bits_retain(bits);
        fsmount(&self.fd, FsMountFlags::FSMOUNT_CLOEXEC, attrs)
            .map(Detached)
            .map_err(|e| self.refused("mount", e))
    }

    fn refused(&self, step: &str, errno: Errno) -> Error {
        let mut text = format!("{} file system: {step}", self.kind);
        let mut line = [0; 256];
        // One message per read, `e overlay: …`; none left is ENODATA.
        for _ in 0..8 {
            match rustix::io::read(&self.fd, &mut line) {
                Ok(len) if len > 2 => {
                    let message = String::from_utf8_lossy(&line[2..len]);
                    text.push_str(&format!(" ({})", message.trim_end()));
                }
                _ => break,
            }
        }
        Error::new(text, errno)
    }
}

/// Changes the mount at `path`, in our namespace.
pub fn set_propagation(path: &Path, propagation: Propagation, depth: Depth) -> Result<()> {
    let mut flags = match propagation {
        Propagation::Private => MountPropagationFlags::PRIVATE,
        Propagation::Slave => MountPropagationFlags::DOWNSTREAM,
        Propagation::Shared => MountPropagationFlags::SHARED,
        Propagation::Unbindable => MountPropagationFlags::UNBINDABLE,
    };
    flags.set(MountPropagationFlags::REC, depth == Depth::Tree);
    mount_change(path, flags).map_err(on("set the propagation of", path))
}

/// True: it was mounted. Nothing there, or nothing mounted there, is no error.
pub fn unmount(path: &Path, how: Unmount) -> Result<bool> {
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, how == Unmount::Lazy);
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL | Errno::NOENT) => Ok(false),
        Err(e) => Err(on("unmount", path)(e)),
    }
}

/// Unmounts all that is mounted at `path` or below it, deepest and topmost first;
/// returns how many there were. Goes on after a failure and returns the first.
pub fn unmount_tree(path: &Path, how: Unmount) -> Result<usize> {
    let table = Table::own()?;
    let mut count = 0;
    let mut failure = None;
    for entry in table.below(path).rev() {
        match unmount(&entry.point, how) {
            Ok(true) => count += 1,
            Ok(false) => {}
            Err(e) => failure = failure.or(Some(e)),
        }
    }
    failure.map_or(Ok(count), Err)
}

/// Whether something is mounted at `path` itself. A symlink is not followed; nothing
/// there is simply no.
pub fn is_mount_point(path: &Path) -> Result<bool> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let stat = match statx(CWD, path, flags, StatxFlags::empty()) {
        Ok(stat) => stat,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
        Err(e) => return Err(on("ask about", path)(e)),
    };
    if stat.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) {
        return Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    }
    // Before Linux 5.8.
    let whole = std::fs::canonicalize(path).map_err(on("resolve", path))?;
    Ok(Table::own()?.entries.iter().any(|entry| entry.point == whole))
}
