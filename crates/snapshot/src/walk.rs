//! Counts what a live tree takes, without haste.
//!
//! **Invariant:** of the processor it takes at most [`SHARE`]th of one core, whatever the
//! size of the tree: after each piece of work it sleeps many times as long as that took.

use std::{
    collections::HashSet,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    rc::Rc,
    time::Duration,
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx},
    io::Errno,
    time::{ClockId, clock_gettime},
};

use crate::{Usage, path};

/// One part work, nineteen parts sleep: five per cent.
const SHARE: u32 = 20;
/// Work between two sleeps.
const PIECE: Duration = Duration::from_millis(4);
/// Longer ways are opened and gone on from there, so that no path gets too long to open.
const LONGEST: usize = 2048;
/// Open directories a hostile tree can make us hold.
const ANCHORS: usize = 128;

/// Sleeps in proportion to the processor time of the calling thread.
pub(crate) struct Pace<'s> {
    /// False: the walk shall end.
    sleep: &'s dyn Fn(Duration) -> bool,
    worked: Duration,
}

impl<'s> Pace<'s> {
    pub(crate) fn new(sleep: &'s dyn Fn(Duration) -> bool) -> Self {
        Self { sleep, worked: cpu_time() }
    }

    fn rest(&mut self) -> Result<(), Stopped> {
        let worked = cpu_time().saturating_sub(self.worked);
        if worked < PIECE {
            return Ok(());
        }
        let going_on = (self.sleep)(worked * (SHARE - 1));
        self.worked = cpu_time();
        if going_on { Ok(()) } else { Err(Stopped) }
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stopped;

/// What a tree takes: blocks, and each file of several names once. Changes while it is
/// counted; what goes away meanwhile is not counted.
pub(crate) fn usage(root: BorrowedFd<'_>, pace: &mut Pace<'_>) -> Result<Option<Usage>, Stopped> {
    let Ok(root) = rustix::io::fcntl_dupfd_cloexec(root, 0) else { return Ok(None) };
    let root = Rc::new(root);
    let mut walk = Walk { total: Usage::default(), seen: HashSet::new(), anchors: Vec::new() };
    walk.count(root.as_fd(), b"");
    let mut ahead = vec![(Rc::clone(&root), Vec::new())];
    while let Some((anchor, way)) = ahead.pop() {
        let Ok(dir) = open(anchor.as_fd(), &way) else { continue };
        let dir = Rc::new(dir);
        let Ok(entries) = Dir::read_from(&dir) else { continue };
        for entry in entries {
            let Ok(entry) = entry else { break };
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            if walk.count(dir.as_fd(), name) {
                let next = path::join(&way, name);
                match next.len() > LONGEST {
                    false => ahead.push((Rc::clone(&anchor), next)),
                    true if walk.may_anchor(&dir) => ahead.push((Rc::clone(&dir), name.to_vec())),
                    true => {}
                }
            }
            pace.rest()?;
        }
    }
    Ok(Some(walk.total))
}

struct Walk {
    total: Usage,
    /// Inodes of several names.
    seen: HashSet<u64>,
    anchors: Vec<std::rc::Weak<OwnedFd>>,
}

impl Walk {
    /// True for a directory.
    fn count(&mut self, dir: BorrowedFd<'_>, name: &[u8]) -> bool {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
        let wanted = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::NLINK | StatxFlags::BLOCKS;
        let Ok(stat) = statx(dir, name, flags, wanted) else { return false };
        let is_dir = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory;
        if is_dir || stat.stx_nlink < 2 || self.seen.insert(stat.stx_ino) {
            self.total += Usage { bytes: stat.stx_blocks.saturating_mul(512), inodes: 1 };
        }
        is_dir
    }

    fn may_anchor(&mut self, dir: &Rc<OwnedFd>) -> bool {
        self.anchors.retain(|anchor| anchor.strong_count() > 0);
        let may = self.anchors.len() < ANCHORS;
        if may {
            self.anchors.push(Rc::downgrade(dir));
        }
        may
    }
}

fn open(anchor: BorrowedFd<'_>, way: &[u8]) -> Result<OwnedFd, Errno> {
    let way = if way.is_empty() { b"." } else { way };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    openat2(anchor, way, flags, Mode::empty(), how)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

    use super::*;

    fn count(dir: &Path) -> Usage {
        let root = fs::File::open(dir).unwrap();
        usage(root.as_fd(), &mut Pace::new(&|_| true)).unwrap().unwrap()
    }

    #[test]
    fn it_counts_what_du_counts() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for n in 0..50 {
            let sub = root.join(format!("d{}/e{n}", n % 7));
            fs::create_dir_all(&sub).unwrap();
            fs::write(sub.join("file"), vec![7; n * 1000]).unwrap();
            fs::hard_link(sub.join("file"), sub.join("again")).unwrap();
            symlink("/etc", sub.join("link")).unwrap();
        }
        fs::File::create(root.join("sparse")).unwrap().set_len(1 << 30).unwrap();
        // Blocks are given out when data is written back.
        rustix::fs::syncfs(fs::File::open(root).unwrap()).unwrap();
        let du = |args: &[&str]| -> u64 {
            let output = Command::new("du").args(args).arg(root).output().unwrap();
            String::from_utf8(output.stdout).unwrap().split('\t').next().unwrap().parse().unwrap()
        };
        let got = count(root);
        assert_eq!(got.bytes, du(&["-s", "-B1"]));
        assert_eq!(got.inodes, du(&["-s", "--inodes"]));
    }

    #[test]
    fn deep_trees_are_counted_to_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let mut here: OwnedFd = fs::File::open(dir.path()).unwrap().into();
        let name = "d".repeat(200);
        for _ in 0..500 {
            rustix::fs::mkdirat(&here, name.as_str(), Mode::from_raw_mode(0o700)).unwrap();
            here = open(here.as_fd(), name.as_bytes()).unwrap();
        }
        assert_eq!(count(dir.path()).inodes, 501);
        let trash = fs::File::open(dir.path()).unwrap();
        crate::sweep::sweep(trash.as_fd(), &|| false).unwrap();
    }

    #[test]
    fn it_sleeps_nineteen_times_as_long_as_it_works() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..3000 {
            fs::write(dir.path().join(n.to_string()), "").unwrap();
        }
        let root = fs::File::open(dir.path()).unwrap();
        let slept = std::cell::Cell::new(Duration::ZERO);
        let sleep = |time: Duration| {
            slept.set(slept.get() + time);
            true
        };
        let before = cpu_time();
        let mut pace = Pace::new(&sleep);
        for _ in 0..10 {
            usage(root.as_fd(), &mut pace).unwrap();
        }
        let worked = cpu_time() - before;
        assert!(worked > PIECE * 2, "{worked:?}");
        // What was worked since the last sleep is not slept off yet.
        assert!(slept.get() + PIECE * 2 * SHARE >= worked * (SHARE - 1), "{worked:?} {slept:?}");
    }

    #[test]
    fn it_ends_when_told() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..20_000 {
            fs::write(dir.path().join(n.to_string()), "").unwrap();
        }
        let root = fs::File::open(dir.path()).unwrap();
        let mut pace = Pace::new(&|_| false);
        let ends = (0..50).any(|_| usage(root.as_fd(), &mut pace) == Err(Stopped));
        assert!(ends);
    }
}
