//! Namespaces: made together, kept alive as files, entered for a moment.
//!
//! ```text
//!   Spaces ──Holder::park──> a child that only waits ──pin──> files (nsfs mounts)
//!                              └── ends when the holder is dropped; the pins live on
//!   Spaces ──clone_into────> a child that runs our code, e.g. a PID 1
//! ```
//! Nothing is unshared: all namespaces come from one `clone3`, so a user namespace among
//! them owns the others, and the calling process stays as it was. A parked child makes
//! bare system calls only, so that `park` is right in a process with threads too.
//!
//! **Invariant:** no thread comes back from here in other namespaces than it had.

mod child;
mod enter;

use std::{
    fs::{self, OpenOptions},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::Path,
    time::Duration,
};

use rustix::{io::Errno, mount::mount_bind, thread::UnshareFlags};

pub use child::{Child, Holder, clone_into};
pub use enter::{in_child, in_each_network, in_thread};

use crate::{
    error::{Error, Result, on, to},
    fd::last_errno,
    host::FsType,
    idmap::IdMaps,
    mount::{self, Depth, Propagation, Unmount},
    pidfd::Pidfd,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Namespace {
    Cgroup,
    Ipc,
    Mount,
    Network,
    Pid,
    User,
    Uts,
}

impl Namespace {
    pub const ALL: [Self; 7] =
        [Self::Cgroup, Self::Ipc, Self::Mount, Self::Network, Self::Pid, Self::User, Self::Uts];

    /// The name in `/proc/<pid>/ns`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::Ipc => "ipc",
            Self::Mount => "mnt",
            Self::Network => "net",
            Self::Pid => "pid",
            Self::User => "user",
            Self::Uts => "uts",
        }
    }

    fn flag(self) -> i32 {
        match self {
            Self::Cgroup => libc::CLONE_NEWCGROUP,
            Self::Ipc => libc::CLONE_NEWIPC,
            Self::Mount => libc::CLONE_NEWNS,
            Self::Network => libc::CLONE_NEWNET,
            Self::Pid => libc::CLONE_NEWPID,
            Self::User => libc::CLONE_NEWUSER,
            Self::Uts => libc::CLONE_NEWUTS,
        }
    }

    /// Which kind an open namespace file is; `ENOTTY` for other files.
    pub fn of(file: impl AsFd) -> Result<Self> {
        // SAFETY: this request takes no argument and returns an integer.
        let flag = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), libc::NS_GET_NSTYPE) };
        let step = "ask the kind of a namespace";
        if flag < 0 {
            return Err(Error::new(step, last_errno()));
        }
        let known = Self::ALL.into_iter().find(|kind| kind.flag() == flag);
        known.ok_or_else(|| Error::malformed(step, format!("clone flag {flag:#x}")))
    }
}

/// What to make. `user` gets these maps and owns `others`; without it the caller's user
/// namespace owns them.
#[derive(Clone, Debug, Default)]
pub struct Spaces {
    pub user: Option<IdMaps>,
    pub others: Vec<Namespace>,
}

impl Spaces {
    fn flags(&self) -> Result<u64> {
        if self.others.contains(&Namespace::User) {
            return Err(Error::new("a user namespace needs its maps", Errno::INVAL));
        }
        let user = self.user.iter().map(|_| Namespace::User);
        let flags = user.chain(self.others.iter().copied()).map(Namespace::flag);
        Ok(flags.fold(0, |all, flag| all | u64::from(flag.cast_unsigned())))
    }
}

/// Opens a pinned namespace, or one of `/proc/<pid>/ns`; refuses any other file.
pub fn open(path: &Path) -> Result<OwnedFd> {
    let file = fs::File::open(path).map_err(on("open namespace", path))?;
    let stat = rustix::fs::fstatfs(&file).map_err(on("open namespace", path))?;
    if FsType::from_raw(stat.f_type) != FsType::NSFS {
        return Err(Error::malformed(
            format!("open namespace {}", path.display()),
            "the file is no namespace",
        ));
    }
    Ok(file.into())
}

/// Whether `path` is a namespace *now*. A pin whose mount is gone leaves a plain file.
pub fn is_namespace(path: &Path) -> Result<bool> {
    match FsType::of(path) {
        Ok(kind) => Ok(kind == FsType::NSFS),
        Err(e) if e.is(Errno::NOENT) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Two paths with the same identity are the same namespace.
pub fn identity(path: &Path) -> Result<(u64, u64)> {
    let stat = fs::metadata(path).map_err(on("ask the identity of", path))?;
    Ok((stat.dev(), stat.ino()))
}

/// Keeps the namespace behind `source` alive at `target`, which must not exist yet.
fn pin(source: &Path, target: &Path) -> Result<()> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o000)
        .open(target)
        .map_err(on("create", target))?;
    mount_bind(source, target).map_err(|e| {
        let _ = fs::remove_file(target);
        on("pin a namespace at", target)(e)
    })
}

/// Keeps a namespace of a running process alive at `target`, which must not exist yet. `pid` is the
/// number of the process that `process` holds; `ESRCH` if that has ended, and the number may be
/// another's.
pub fn pin_of(process: &Pidfd, pid: u32, kind: Namespace, target: &Path) -> Result<()> {
    let path = format!("/proc/{pid}/ns/{}", kind.name());
    let opened = open(Path::new(&path))?;
    if process.wait_end(Some(Duration::ZERO))? {
        return Err(Error::new(format!("pin {path}"), Errno::SRCH));
    }
    pin(Path::new(&format!("/proc/self/fd/{}", opened.as_raw_fd())), target)
}

/// Lets a pinned namespace go, and removes the file. Nothing there is no error; a mount
/// that is no namespace is not touched, and then the file cannot be removed.
pub fn unpin(path: &Path) -> Result<()> {
    // A pin over a pin happens when a crash left one behind; each takes one unmount.
    while is_namespace(path)? && mount::unmount(path, Unmount::Lazy)? {}
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(on("remove", path)(e)),
        _ => Ok(()),
    }
}

/// Makes the cgroup that the calling *thread* is in the root of what it sees of them. For children
/// of [`clone_into`] that were moved after they were made.
pub fn unshare_cgroups() -> Result<()> {
    // SAFETY: the contract is about CLONE_FILES, which we do not ask for.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWCGROUP) }
        .map_err(to("unshare the cgroup namespace"))
}

/// Gives the calling *thread* a mount table of its own that nothing leaks out of or into.
/// The thread must not serve others afterwards: for helper processes and probes.
pub fn unshare_mounts() -> Result<()> {
    // SAFETY: the contract is about CLONE_FILES, which we do not ask for.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }
        .map_err(to("unshare the mount namespace"))?;
    mount::set_propagation(Path::new("/"), Propagation::Private, Depth::Tree)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_apart() {
        for kind in Namespace::ALL {
            let file = open(&Path::new("/proc/self/ns").join(kind.name())).unwrap();
            assert_eq!(Namespace::of(&file).unwrap(), kind);
        }
        let plain = fs::File::open("/dev/null").unwrap();
        assert!(Namespace::of(&plain).unwrap_err().is(Errno::NOTTY));
    }

    #[test]
    fn other_files_are_no_namespaces() {
        assert!(open(Path::new("/dev/null")).is_err());
        assert!(!is_namespace(Path::new("/dev/null")).unwrap());
        assert!(!is_namespace(Path::new("/nowhere")).unwrap());
        assert!(is_namespace(Path::new("/proc/self/ns/uts")).unwrap());
    }

    #[test]
    fn a_user_namespace_without_maps_is_refused() {
        let spaces = Spaces { user: None, others: vec![Namespace::User] };
        assert!(Holder::park(&spaces).unwrap_err().is(Errno::INVAL));
    }

    #[test]
    fn unpinning_nothing_is_fine() {
        let dir = tempfile::tempdir().unwrap();
        unpin(&dir.path().join("none")).unwrap();
        // The file of a pin that a reboot unmounted.
        let stale = dir.path().join("stale");
        fs::write(&stale, "").unwrap();
        unpin(&stale).unwrap();
        assert!(!stale.exists());
    }
}
