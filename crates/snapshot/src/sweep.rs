//! Removes trees that containers left, of any depth and with any names.
//!
//! **Invariant:** nothing outside the trash is touched: no symlink is followed and no
//! mount point entered, whatever lies in there. As many descriptors are open as
//! [`DEPTH`], because what lies deeper is moved up first.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::{
    fs::{
        AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, fchmod, openat2, renameat, statat,
        unlinkat,
    },
    io::Errno,
};

const DEPTH: usize = 48;

/// Empties a directory. What cannot be removed stays; returns how many entries did, and
/// why the first of them did.
pub(crate) fn sweep(
    trash: BorrowedFd<'_>,
    stop: &dyn Fn() -> bool,
) -> Result<Option<(usize, Errno)>, Errno> {
    let mut sweeper = Sweeper { trash, stop, moved: 0, failures: Vec::new() };
    loop {
        let moved = sweeper.moved;
        sweeper.failures.clear();
        sweeper.empty(trash, 0)?;
        // What was too deep lies at the top now.
        if sweeper.moved == moved || stop() {
            let first = sweeper.failures.first().copied();
            return Ok(first.map(|errno| (sweeper.failures.len(), errno)));
        }
    }
}

struct Sweeper<'t> {
    trash: BorrowedFd<'t>,
    stop: &'t dyn Fn() -> bool,
    moved: u64,
    failures: Vec<Errno>,
}

impl Sweeper<'_> {
    fn empty(&mut self, dir: BorrowedFd<'_>, depth: usize) -> Result<(), Errno> {
        for entry in Dir::read_from(dir)? {
            if (self.stop)() {
                return Ok(());
            }
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let is_dir = match entry.file_type() {
                FileType::Unknown => is_dir(dir, name),
                kind => kind == FileType::Directory,
            };
            let removed = match is_dir {
                true => self.remove_dir(dir, name, depth),
                false => unlinkat(dir, name, AtFlags::empty()),
            };
            match removed {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => self.failures.push(e),
            }
        }
        Ok(())
    }

    fn remove_dir(&mut self, dir: BorrowedFd<'_>, name: &[u8], depth: usize) -> Result<(), Errno> {
        // Most directories are empty by the time, or can be told apart by asking.
        match unlinkat(dir, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            done => return done,
        }
        if depth == DEPTH {
            self.moved += 1;
            let up = format!("deep-{}-{:016x}", self.moved, random());
            return renameat(dir, name, self.trash, up);
        }
        let child = open(dir, name)?;
        let failures = self.failures.len();
        self.empty(child.as_fd(), depth + 1)?;
        match unlinkat(dir, name, AtFlags::REMOVEDIR) {
            // Counted already, one by one.
            Err(Errno::NOTEMPTY) if self.failures.len() > failures || (self.stop)() => Ok(()),
            done => done,
        }
    }
}

fn open(dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    let child = openat2(dir, name, flags, Mode::empty(), how)?;
    // Not root, or not with all of root's powers: then the mode counts.
    let _ = fchmod(&child, Mode::from_raw_mode(0o700));
    Ok(child)
}

fn is_dir(dir: BorrowedFd<'_>, name: &[u8]) -> bool {
    statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("getrandom(2) cannot fail on Linux 3.17 and later");
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use rustix::fs::mkdirat;

    use super::*;

    fn sweep_all(dir: &std::path::Path) -> Option<(usize, Errno)> {
        let trash = fs::File::open(dir).unwrap();
        sweep(trash.as_fd(), &|| false).unwrap()
    }

    #[test]
    fn trees_deeper_than_a_path_go() {
        let dir = tempfile::tempdir().unwrap();
        let mut here: OwnedFd = fs::File::open(dir.path()).unwrap().into();
        let name = "d".repeat(100);
        for level in 0..3000 {
            mkdirat(&here, name.as_str(), Mode::from_raw_mode(0o700)).unwrap();
            if level % 7 == 0 {
                mkdirat(&here, "side", Mode::from_raw_mode(0o000)).unwrap();
            }
            here = open(here.as_fd(), name.as_bytes()).unwrap();
        }
        drop(here);
        assert_eq!(sweep_all(dir.path()), None);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (trash, other) = (dir.path().join("trash"), dir.path().join("other"));
        fs::create_dir_all(trash.join("tree")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("precious"), "x").unwrap();
        symlink(&other, trash.join("tree/link")).unwrap();
        symlink(&other, trash.join("link")).unwrap();
        fs::hard_link(other.join("precious"), trash.join("hard")).unwrap();
        assert_eq!(sweep_all(&trash), None);
        assert_eq!(fs::read_dir(&trash).unwrap().count(), 0);
        assert_eq!(fs::read_to_string(other.join("precious")).unwrap(), "x");
    }

    #[test]
    fn it_stops_when_told() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..10 {
            fs::write(dir.path().join(n.to_string()), "x").unwrap();
        }
        let left = std::cell::Cell::new(4);
        let stop = || left.replace(left.get() - 1) <= 1;
        let trash = fs::File::open(dir.path()).unwrap();
        sweep(trash.as_fd(), &stop).unwrap();
        assert!(fs::read_dir(dir.path()).unwrap().count() >= 6);
    }
}
