//! What a file is besides its name and its bytes: owner, mode, attributes, times.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::{
    fs::{
        AtFlags, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat, fchmod,
        fchown, fgetxattr, flistxattr, fsetxattr, futimens, lgetxattr, llistxattr, lsetxattr,
        utimensat,
    },
    io::Errno,
};

pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

#[derive(Clone, Debug)]
pub(crate) struct Metadata {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u32,
    pub(crate) xattrs: Xattrs,
    pub(crate) times: Timestamps,
}

pub(crate) const EPOCH: Timestamps = Timestamps {
    last_access: Timespec { tv_sec: 0, tv_nsec: 0 },
    last_modification: Timespec { tv_sec: 0, tv_nsec: 0 },
};

impl Metadata {
    pub(crate) fn of(stat: &Stat, xattrs: Xattrs) -> Self {
        Self {
            uid: stat.st_uid,
            gid: stat.st_gid,
            mode: stat.st_mode & 0o7777,
            xattrs,
            times: times_of(stat),
        }
    }

    /// To what is open, and not only as a path. Returns how many attributes the file
    /// system did not take.
    pub(crate) fn set(&self, fd: BorrowedFd<'_>) -> Result<u64, Errno> {
        let dropped = self.set_but_times(fd)?;
        futimens(fd, &self.times)?;
        Ok(dropped)
    }

    /// For directories: what is put into one later would change its times again.
    pub(crate) fn set_but_times(&self, fd: BorrowedFd<'_>) -> Result<u64, Errno> {
        // In this order: a change of owner takes away setuid and capabilities.
        fchown(fd, Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)))?;
        fchmod(fd, Mode::from_raw_mode(self.mode))?;
        let mut dropped = 0;
        for (name, value) in self.xattrs.iter().filter(|(name, _)| is_welcome(name)) {
            let set = fsetxattr(fd, name.as_slice(), value, XattrFlags::empty());
            dropped += u64::from(!taken(name, set)?);
        }
        Ok(dropped)
    }

    /// To a symlink, which has no mode of its own and cannot be opened.
    pub(crate) fn set_on_link(&self, dir: impl AsFd, name: &[u8]) -> Result<u64, Errno> {
        let dir = dir.as_fd();
        chownat(
            dir,
            name,
            Some(Uid::from_raw(self.uid)),
            Some(Gid::from_raw(self.gid)),
            AtFlags::SYMLINK_NOFOLLOW,
        )?;
        let dropped = self.set_xattrs_at(dir, name)?;
        utimensat(dir, name, &self.times, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(dropped)
    }

    /// To a device or fifo, which had better not be opened. Nobody but us changes the
    /// directory, so the name is not a symlink meanwhile.
    pub(crate) fn set_on_node(&self, dir: impl AsFd, name: &[u8]) -> Result<u64, Errno> {
        let dir = dir.as_fd();
        let dropped = self.set_on_link(dir, name)?;
        chmodat(dir, name, Mode::from_raw_mode(self.mode), AtFlags::empty())?;
        Ok(dropped)
    }

    fn set_xattrs_at(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<u64, Errno> {
        let mut dropped = 0;
        for (key, value) in self.xattrs.iter().filter(|(key, _)| is_welcome(key)) {
            let path = by_fd(dir, name);
            let set = lsetxattr(path, key.as_slice(), value, XattrFlags::empty());
            dropped += u64::from(!taken(key, set)?);
        }
        Ok(dropped)
    }
}

pub(crate) fn times_of(stat: &Stat) -> Timestamps {
    let time = |seconds: i64, nanos: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: i64::try_from(nanos).unwrap_or_default(),
    };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

/// Overlay's own attributes would let a layer point into others; a SELinux label is the
/// business of the host's policy.
pub(crate) fn is_welcome(name: &[u8]) -> bool {
    !(name.starts_with(b"trusted.overlay.")
        || name.starts_with(b"user.overlay.")
        || name == b"security.selinux")
}

fn taken(name: &[u8], set: Result<(), Errno>) -> Result<bool, Errno> {
    match set {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP) => Ok(false),
        // Only files and directories have these.
        Err(Errno::PERM) if name.starts_with(b"user.") => Ok(false),
        Err(e) => Err(e),
    }
}

/// The calls for attributes know no directory descriptor.
fn by_fd(dir: BorrowedFd<'_>, name: &[u8]) -> Vec<u8> {
    [format!("/proc/self/fd/{}/", dir.as_raw_fd()).as_bytes(), name].concat()
}

/// All attributes that should go where the file goes.
pub(crate) fn xattrs(fd: BorrowedFd<'_>) -> Result<Xattrs, Errno> {
    collect(|buffer| flistxattr(fd, buffer), |name, buffer| fgetxattr(fd, name, buffer))
}

/// Of a name in a directory, without following it.
pub(crate) fn xattrs_at(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Xattrs, Errno> {
    let path = by_fd(dir, name);
    collect(
        |buffer| llistxattr(path.as_slice(), buffer),
        |name, buffer| lgetxattr(path.as_slice(), name, buffer),
    )
}

fn collect(
    list: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    get: impl Fn(&[u8], &mut [u8]) -> Result<usize, Errno>,
) -> Result<Xattrs, Errno> {
    // As much as Linux allows for names, and for one value.
    let mut names = vec![0; 1 << 16];
    let len = match list(&mut names) {
        Ok(len) => len,
        Err(Errno::OPNOTSUPP) => 0,
        Err(e) => return Err(e),
    };
    if len == 0 {
        return Ok(Vec::new());
    }
    let mut value = vec![0; 1 << 16];
    let names = names[..len].split(|&b| b == 0).filter(|name| !name.is_empty());
    names
        .filter(|name| is_welcome(name))
        .map(|name| get(name, &mut value).map(|len| (name.to_vec(), value[..len].to_vec())))
        .collect()
}
