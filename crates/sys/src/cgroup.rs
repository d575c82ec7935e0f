//! Control groups of both versions, also at once.
//!
//! ```text
//!   Layout: which hierarchy, of which version, holds each controller
//!      └─ Cgroup: one group, a directory handle per hierarchy
//!            ├─ cpu(), memory(), pids() …   the same units whatever the version
//!            └─ write, freeze, kill, remove
//! ```
//! A host may be v1, v2 or hybrid, and on a hybrid one any controller may be on either
//! side: so a version is a property of a controller, never of a host. A cgroup2 mount
//! alone says nothing; the type of `/sys/fs/cgroup` does.
//!
//! **Invariant:** what the kernel does not offer is `None`, never zero.

mod control;
mod layout;
pub mod parse;
mod stats;

use std::{
    ffi::OsString,
    os::{fd::OwnedFd, unix::ffi::OsStringExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Dir, Mode, OFlags, openat},
    io::Errno,
};

pub use layout::{Hierarchy, Layout, Membership, Mode as LayoutMode, Version, memberships};
pub use stats::{Cpu, Hugetlb, Io, IoDevice, Memory, MemoryDetails, Pids};

use crate::error::{Error, Result, on};

/// One group, opened: reading it costs no path walk, and a group that was removed and made
/// again is not mistaken for this one. A removed group reads as having nothing.
#[derive(Debug)]
pub struct Cgroup {
    /// The one that says who is in it comes first.
    dirs: Vec<Group>,
}

/// The group in one hierarchy.
#[derive(Debug)]
struct Group {
    version: Version,
    controllers: Vec<String>,
    path: PathBuf,
    fd: OwnedFd,
}

impl Cgroup {
    /// `path` is that of the group, `/kubepods/pod1`. `None`: no hierarchy has it.
    pub fn open(layout: &Layout, path: &Path) -> Result<Option<Self>> {
        Self::open_in(layout.hierarchies().into_iter(), path)
    }

    /// As [`Cgroup::open`], in the hierarchies of these controllers and in the v2 one only:
    /// on a v1 host that spares the descriptors of those nobody reads.
    pub fn open_for(layout: &Layout, path: &Path, wanted: &[&str]) -> Result<Option<Self>> {
        let read = |(hierarchy, controllers): &(Hierarchy, Vec<String>)| {
            let wanted = |name: &String| wanted.contains(&name.as_str());
            hierarchy.version == Version::V2 || controllers.iter().any(wanted)
        };
        Self::open_in(layout.hierarchies().into_iter().filter(read), path)
    }

    fn open_in(
        hierarchies: impl Iterator<Item = (Hierarchy, Vec<String>)>,
        path: &Path,
    ) -> Result<Option<Self>> {
        let mut dirs = Vec::new();
        for (hierarchy, controllers) in hierarchies {
            let path = hierarchy.dir(path);
            match open_dir(&path) {
                Ok(fd) => {
                    dirs.push(Group { version: hierarchy.version, controllers, path, fd });
                }
                Err(Errno::NOENT) => {}
                Err(e) => return Err(on("open cgroup", &path)(e)),
            }
        }
        Ok((!dirs.is_empty()).then_some(Self { dirs }))
    }

    /// Where the group is, in each hierarchy that has it.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.dirs.iter().map(|dir| dir.path.as_path())
    }

    /// Whether it has this controller, and of which version.
    pub fn version_of(&self, controller: &str) -> Option<Version> {
        self.with(controller).map(|dir| dir.version)
    }

    fn with(&self, controller: &str) -> Option<&Group> {
        self.dirs.iter().find(|dir| dir.controllers.iter().any(|own| own == controller))
    }

    /// The v2 side: it has pressure and freezing even where it has no controllers.
    fn unified(&self) -> Option<&Group> {
        self.dirs.iter().find(|dir| dir.version == Version::V2)
    }

    fn main(&self) -> &Group {
        // `open` and `create` make no group without one.
        &self.dirs[0]
    }

    /// A file of a controller, `memory.max`. `None`: no such controller or file.
    pub fn read(&self, controller: &str, file: &str) -> Result<Option<String>> {
        self.with(controller).map_or(Ok(None), |dir| dir.read(file))
    }

    /// `ENOENT` where there is no such controller or file.
    pub fn write(&self, controller: &str, file: &str, value: &str) -> Result<()> {
        let absent =
            || Error::new(format!("write {file}: no {controller} controller"), Errno::NOENT);
        self.with(controller).ok_or_else(absent)?.write(file, value)
    }

    /// Moves a process here, in every hierarchy.
    pub fn add(&self, pid: u32) -> Result<()> {
        self.dirs.iter().try_for_each(|dir| dir.write("cgroup.procs", &pid.to_string()))
    }

    /// The processes in this group, not those of groups below.
    pub fn pids(&self) -> Result<Vec<u32>> {
        self.main().pids()
    }

    /// The processes in this group and in all below.
    pub fn all_pids(&self) -> Result<Vec<u32>> {
        self.main().all_pids()
    }
}

impl Group {
    /// `None`: the kernel has no such file, or does not serve it (pressure that is switched
    /// off), or the group is gone.
    fn read(&self, file: &str) -> Result<Option<String>> {
        read_at(&self.fd, file).map_err(on("read", self.path.join(file)))
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let fail = |e: Errno| on("write", self.path.join(file))(e);
        let fd = openat(&self.fd, file, flags, Mode::empty()).map_err(fail)?;
        // One write: cgroup files take a value whole.
        rustix::io::write(fd, value.as_bytes()).map_err(|e| {
            Error::new(format!("write {value:?} to {}", self.path.join(file).display()), e)
        })?;
        Ok(())
    }

    fn pids(&self) -> Result<Vec<u32>> {
        Ok(self.read("cgroup.procs")?.map(|text| parse::pids(&text)).unwrap_or_default())
    }

    /// Names of the files and groups in it.
    fn names(&self) -> Result<Vec<(OsString, bool)>> {
        let fail = |e: Errno| on("list cgroup", &self.path)(e);
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push((OsString::from_vec(name.to_vec()), entry.file_type().is_dir()));
            }
        }
        Ok(names)
    }

    /// The groups directly below.
    fn children(&self) -> Result<Vec<Self>> {
        let mut children = Vec::new();
        for (name, is_dir) in self.names()? {
            let path = self.path.join(&name);
            match openat(&self.fd, &name, DIR_FLAGS, Mode::empty()) {
                _ if !is_dir => {}
                Ok(fd) => {
                    children.push(Self { version: self.version, controllers: Vec::new(), path, fd })
                }
                // Removed meanwhile.
                Err(Errno::NOENT) => {}
                Err(e) => return Err(on("open cgroup", &path)(e)),
            }
        }
        Ok(children)
    }
}

const DIR_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn open_dir(path: &Path) -> std::result::Result<OwnedFd, Errno> {
    openat(rustix::fs::CWD, path, DIR_FLAGS, Mode::empty())
}

/// ENODEV: removed between opening and reading.
const ABSENT: [Errno; 3] = [Errno::NOENT, Errno::NODEV, Errno::OPNOTSUPP];

/// Bare reads: the standard library would ask for the size first, which these files do not
/// have, and figures of many groups are many files.
fn read_at(dir: &OwnedFd, file: &str) -> std::io::Result<Option<String>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let fd = match openat(dir, file, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(e) if ABSENT.contains(&e) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    let (mut text, mut len) = (vec![0; 4096], 0);
    loop {
        match rustix::io::read(&fd, &mut text[len..]) {
            Ok(0) => break,
            Ok(count) => len += count,
            Err(Errno::INTR) => {}
            Err(e) if ABSENT.contains(&e) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
        if len == text.len() {
            text.resize(2 * len, 0);
        }
    }
    text.truncate(len);
    String::from_utf8(text).map(Some).map_err(std::io::Error::other)
}
