//! Overlay file systems with any number of layers.

use std::{
    ffi::{CString, OsStr},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    io::Errno,
    mount::MountFlags,
};

use super::{Attrs, Context, Depth, Detached, bind};
use crate::error::{Result, on};

/// Where changes go. Both directories lie on one file system; `work` is empty and the
/// kernel's own.
#[derive(Clone, Debug)]
pub struct Upper {
    pub dir: PathBuf,
    pub work: PathBuf,
}

/// Layers seen as one tree.
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    /// Topmost first, at least one.
    pub lower: Vec<PathBuf>,
    /// Without one the overlay is a read-only view.
    pub upper: Option<Upper>,
    /// Never syncs. After an unclean end the kernel refuses to mount `upper` again: only
    /// for trees that are mounted once.
    pub volatile: bool,
    /// Keep hard links whole across copy-up; `None` is the kernel's default.
    pub index: Option<bool>,
    /// Copy up only the metadata on chown and chmod; `None` is the kernel's default.
    pub metacopy: Option<bool>,
    /// Keep marks in `user.overlay.*`, which a user namespace may write.
    pub userxattr: bool,
    /// The SELinux label of all files, whatever they have on disk.
    pub label: Option<String>,
}

impl Overlay {
    /// Needs Linux ≥ 6.8 (`lowerdir+`); [`Overlay::mount_at`] does not.
    pub fn create(&self, attrs: Attrs) -> Result<Detached> {
        if let Some(only) = self.single_view() {
            let view = bind(only, Depth::One)?;
            view.restrict(Attrs { read_only: true, ..attrs }, Depth::One)?;
            return Ok(view);
        }
        let context = Context::open("overlay")?;
        context.set("source", "overlay")?;
        // Held until the mount exists: some values are names of these descriptors.
        let mut held = Vec::new();
        for dir in &self.lower {
            context.set("lowerdir+", &*shortened(dir, &mut held)?)?;
        }
        if let Some(upper) = &self.upper {
            context.set("upperdir", &*shortened(&upper.dir, &mut held)?)?;
            context.set("workdir", &*shortened(&upper.work, &mut held)?)?;
        }
        if let Some(label) = &self.label {
            context.set("context", label.as_str())?;
        }
        for (key, value) in self.switches() {
            match value {
                Some(value) => context.set(key, value)?,
                None => context.flag(key)?,
            }
        }
        context.create(self.attrs(attrs))
    }

    /// Mounts on a path, on older kernels too.
    pub fn mount_at(&self, target: &Path, attrs: Attrs) -> Result<()> {
        match self.create(attrs) {
            Ok(mount) => mount.attach(target),
            // `lowerdir+` is unknown, or all of fsopen.
            Err(e) if e.is(Errno::INVAL) || e.is(Errno::NOSYS) => {
                self.mount_by_string(target, attrs).map_err(|_| e)
            }
            Err(e) => Err(e),
        }
    }

    /// The old way: all options in one string of a page. Layers go in by descriptor
    /// (`/proc/self/fd/7`), which leaves room for more than 200 of them. Public so that it
    /// can be tried where [`Overlay::mount_at`] would not choose it.
    pub fn mount_by_string(&self, target: &Path, attrs: Attrs) -> Result<()> {
        let mut held = Vec::new();
        let mut by_fd = |dir: &Path| -> Result<String> { fd_name(dir, &mut held) };
        let lower = self.lower.iter().map(|dir| by_fd(dir)).collect::<Result<Vec<_>>>()?;
        let mut data = format!("lowerdir={}", lower.join(":"));
        if let Some(upper) = &self.upper {
            let (dir, work) = (by_fd(&upper.dir)?, by_fd(&upper.work)?);
            data.push_str(&format!(",upperdir={dir},workdir={work}"));
        }
        if let Some(label) = &self.label {
            // Quoted, for its commas.
            data.push_str(&format!(",context=\"{label}\""));
        }
        for (key, value) in self.switches() {
            let value = value.map(|value| format!("={value}")).unwrap_or_default();
            data.push_str(&format!(",{key}{value}"));
        }
        let data = CString::new(data).map_err(on("mount overlay on", target))?;
        let attrs = self.attrs(attrs);
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, attrs.read_only);
        flags.set(MountFlags::NOSUID, attrs.no_suid);
        flags.set(MountFlags::NODEV, attrs.no_dev);
        flags.set(MountFlags::NOEXEC, attrs.no_exec);
        flags.set(MountFlags::NOATIME, attrs.no_atime);
        rustix::mount::mount("overlay", target, "overlay", flags, &*data)
            .map_err(on("mount overlay on", target))
    }

    /// The kernel makes no overlay of a single layer.
    fn single_view(&self) -> Option<&Path> {
        match (&self.lower[..], &self.upper) {
            ([only], None) => Some(only),
            _ => None,
        }
    }

    fn attrs(&self, attrs: Attrs) -> Attrs {
        Attrs { read_only: attrs.read_only || self.upper.is_none(), ..attrs }
    }

    /// The options without paths; `None` is a flag.
    fn switches(&self) -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
        let choice = |on: bool| Some(if on { "on" } else { "off" });
        [
            // Nothing is written without an upper, so there is nothing not to sync.
            (self.volatile && self.upper.is_some()).then_some(("volatile", None)),
            self.userxattr.then_some(("userxattr", None)),
            self.index.map(|on| ("index", choice(on))),
            self.metacopy.map(|on| ("metacopy", choice(on))),
        ]
        .into_iter()
        .flatten()
    }
}

/// The path itself, which is what people want to read in the mount table; by descriptor
/// where it is longer than the 255 bytes `fsconfig` takes.
fn shortened<'a>(dir: &'a Path, held: &mut Vec<OwnedFd>) -> Result<std::borrow::Cow<'a, OsStr>> {
    match dir.as_os_str().as_bytes().len() {
        0..256 => Ok(dir.as_os_str().into()),
        _ => Ok(std::ffi::OsString::from(fd_name(dir, held)?).into()),
    }
}

fn fd_name(dir: &Path, held: &mut Vec<OwnedFd>) -> Result<String> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = openat(CWD, dir, flags, Mode::empty()).map_err(on("open layer", dir))?;
    let name = format!("/proc/self/fd/{}", fd.as_raw_fd());
    held.push(fd);
    Ok(name)
}
