//! Mounts a small overlay and uses it the way container roots are used.
//!
//! The mount is detached: it hangs on a descriptor, in no mount namespace, and
//! is gone when the descriptor is, however this process ends.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::FileTypeExt,
    },
    path::Path,
};

use rustix::{
    fs::{
        AtFlags, Mode, OFlags, XattrFlags, fgetxattr, fsetxattr, lgetxattr, mkdirat, openat,
        unlinkat,
    },
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
        fsopen,
    },
};

use crate::scratch::Scratch;

/// What part of a container's root does not work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OverlayError {
    #[error("cannot prepare directories: {0}")]
    Prepare(#[source] io::Error),
    #[error("the kernel has no overlayfs")]
    Absent,
    #[error("not permitted to mount")]
    NotPermitted,
    #[error("cannot mount: {source}{}{said}", if .said.is_empty() { "" } else { ": " })]
    Mount { source: Errno, said: String },
    #[error("{what} does not work: {source}")]
    Use { what: &'static str, source: io::Error },
    #[error("{0}")]
    Wrong(&'static str),
}

/// Two lower layers and an upper one: reads through both, writes, a whiteout, an opaque
/// directory and an extended attribute.
pub(crate) fn try_overlay(parent: &Path) -> Result<(), OverlayError> {
    let scratch = Scratch::below(parent).map_err(OverlayError::Prepare)?;
    let dirs = Dirs::make(&scratch).map_err(OverlayError::Prepare)?;
    let merged = dirs.mount()?;
    read_layers(&merged)?;
    write_through(&merged, &dirs)?;
    whiteout(&merged, scratch.path())?;
    opaque(&merged, scratch.path())
}

struct Dirs {
    lower: [OwnedFd; 2],
    upper: OwnedFd,
    work: OwnedFd,
}

// === impl Dirs ===

impl Dirs {
    fn make(scratch: &Scratch) -> io::Result<Self> {
        for (name, text) in [("base", "hidden"), ("top", "seen")] {
            let dir = scratch.dir(name)?;
            fs::write(dir.join("both"), text)?;
            fs::write(dir.join(name), name)?;
            fs::create_dir(dir.join("folder"))?;
            fs::write(dir.join("folder/old"), name)?;
        }
        let open = |name| File::open(scratch.dir(name)?).map(OwnedFd::from);
        Ok(Self {
            lower: [open("top")?, open("base")?],
            upper: open("upper")?,
            work: open("work")?,
        })
    }

    fn mount(&self) -> Result<OwnedFd, OverlayError> {
        let context = match fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC) {
            Ok(context) => context,
            Err(Errno::NODEV) => return Err(OverlayError::Absent),
            Err(Errno::PERM) => return Err(OverlayError::NotPermitted),
            Err(source) => return Err(OverlayError::Mount { source, said: String::new() }),
        };
        self.configure(&context).map_err(|source| match source {
            Errno::PERM => OverlayError::NotPermitted,
            source => OverlayError::Mount { source, said: said(&context) },
        })
    }

    /// Paths through descriptors: short, and free of the colons and commas that option
    /// strings would take for separators.
    fn configure(&self, context: &OwnedFd) -> Result<OwnedFd, Errno> {
        let path = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
        let lower: Vec<_> = self.lower.iter().map(path).collect();
        fsconfig_set_string(context, "lowerdir", lower.join(":"))?;
        fsconfig_set_string(context, "upperdir", path(&self.upper))?;
        fsconfig_set_string(context, "workdir", path(&self.work))?;
        fsconfig_create(context)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NODEV;
        let mount = fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        // The mount descriptor is a path only; the directory itself can be written below.
        openat(&mount, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    }
}

/// The kernel explains a refused mount in the context's log.
fn said(context: &OwnedFd) -> String {
    let mut lines = Vec::new();
    let mut buffer = [0; 1024];
    // Each read gives one message, `e text`, until ENODATA.
    while let Ok(length @ 1..) = rustix::io::read(context, &mut buffer) {
        let line = String::from_utf8_lossy(&buffer[..length]);
        lines.push(line.trim().trim_start_matches(['e', 'w', 'i']).trim().to_owned());
    }
    lines.join("; ")
}

fn open(dir: impl AsFd, name: &str, flags: OFlags) -> io::Result<File> {
    let mode = Mode::from_raw_mode(0o644);
    Ok(openat(dir, name, flags | OFlags::CLOEXEC, mode)?.into())
}

fn text(dir: BorrowedFd<'_>, name: &str) -> io::Result<String> {
    let mut text = String::new();
    open(dir, name, OFlags::RDONLY)?.read_to_string(&mut text)?;
    Ok(text)
}

fn read_layers(merged: &OwnedFd) -> Result<(), OverlayError> {
    let what = "reading through two layers";
    let read =
        |name| text(merged.as_fd(), name).map_err(|source| OverlayError::Use { what, source });
    if read("base")? != "base" || read("top")? != "top" || read("both")? != "seen" {
        return Err(OverlayError::Wrong("the layers show up in the wrong order"));
    }
    Ok(())
}

fn write_through(merged: &OwnedFd, dirs: &Dirs) -> Result<(), OverlayError> {
    let used = |what| move |source| OverlayError::Use { what, source };
    let mut file = open(merged, "base", OFlags::WRONLY | OFlags::TRUNC).map_err(used("copy-up"))?;
    file.write_all(b"changed").map_err(used("writing"))?;
    // Image layers carry file capabilities and user attributes.
    fsetxattr(&file, "trusted.longshore", b"kept", XattrFlags::empty()).map_err(|errno| {
        OverlayError::Use { what: "an extended attribute", source: errno.into() }
    })?;
    let upper = open(&dirs.upper, "base", OFlags::RDONLY).map_err(used("the upper layer"))?;
    let mut value = [0; 8];
    let length = fgetxattr(&upper, "trusted.longshore", &mut value).unwrap_or(0);
    let lower = text(dirs.lower[1].as_fd(), "base").map_err(used("the lower layer"))?;
    if &value[..length] != b"kept" || lower != "base" {
        return Err(OverlayError::Wrong("a change did not go to the upper layer alone"));
    }
    Ok(())
}

fn whiteout(merged: &OwnedFd, dir: &Path) -> Result<(), OverlayError> {
    let used = |source: io::Error| OverlayError::Use { what: "deleting a file of a layer", source };
    unlinkat(merged, "top", AtFlags::empty()).map_err(|errno| used(errno.into()))?;
    let mark = dir.join("upper/top").symlink_metadata().map_err(used)?;
    if !mark.file_type().is_char_device() {
        return Err(OverlayError::Wrong("a deleted file left no whiteout"));
    }
    Ok(())
}

fn opaque(merged: &OwnedFd, dir: &Path) -> Result<(), OverlayError> {
    let used =
        |errno: Errno| OverlayError::Use { what: "replacing a directory", source: errno.into() };
    unlinkat(merged, "folder/old", AtFlags::empty()).map_err(used)?;
    unlinkat(merged, "folder", AtFlags::REMOVEDIR).map_err(used)?;
    mkdirat(merged, "folder", Mode::from_raw_mode(0o755)).map_err(used)?;
    let mut value = [0; 8];
    let length = lgetxattr(dir.join("upper/folder"), "trusted.overlay.opaque", &mut value);
    if !matches!(length, Ok(1)) || value[0] != b'y' {
        return Err(OverlayError::Wrong("a replaced directory is not opaque"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::is_root;

    #[test]
    fn works_below_any_name() {
        if !is_root("overlay works_below_any_name") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("a:b,c d\\e");
        fs::create_dir(&odd).unwrap();
        try_overlay(&odd).unwrap();
        assert_eq!(fs::read_dir(odd).unwrap().count(), 0);
    }

    #[test]
    fn a_place_without_directories_is_refused() {
        let error = try_overlay(Path::new("/proc")).unwrap_err();
        assert!(matches!(error, OverlayError::Prepare(_)), "{error}");
    }
}
