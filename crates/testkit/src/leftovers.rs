//! What is a daemon's in the kernel and on disk, found from outside.
//!
//! A process is the daemon's if it names the daemon's directory, has something in it open,
//! sits in its cgroup, or descends from such a one. The daemon itself does not count.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use rustix::{
    mount::{UnmountFlags, unmount},
    process::{Pid, Signal, kill_process},
};

use crate::DaemonProcess;

/// By what the things of one daemon are known.
#[derive(Clone, Debug)]
pub(crate) struct Marks {
    pub(crate) home: PathBuf,
    /// The parent of its containers' cgroups, if it has one of its own.
    pub(crate) cgroup: Option<PathBuf>,
    pub(crate) daemon: u32,
}

/// A process that is not mistaken for a later one of the same number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    pub pid: u32,
    started: u64,
    pub command: String,
}

impl Process {
    fn find(pid: u32) -> Option<(Self, u32)> {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let stat = fs::read_to_string(proc.join("stat")).ok()?;
        let (head, fields) = stat.rsplit_once(')')?;
        let fields: Vec<_> = fields.split_whitespace().collect();
        let (parent, started) = (fields.get(1)?.parse().ok()?, fields.get(19)?.parse().ok()?);
        let line = fs::read(proc.join("cmdline")).ok()?;
        let mut command = String::from_utf8_lossy(&line).replace('\0', " ");
        if command.is_empty() {
            command = head.split_once('(')?.1.to_owned();
        }
        Some((Self { pid, started, command: command.trim_end().to_owned() }, parent))
    }

    pub fn is_alive(&self) -> bool {
        Self::find(self.pid).is_some_and(|(now, _)| now.started == self.started)
    }

    pub fn signal(&self, signal: Signal) {
        if let (true, Some(pid)) =
            (self.is_alive(), i32::try_from(self.pid).ok().and_then(Pid::from_raw))
        {
            let _ = kill_process(pid, signal);
        }
    }
}

impl Marks {
    pub(crate) fn processes(&self) -> BTreeSet<Process> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let all: BTreeMap<u32, (Process, u32)> =
            pids.filter_map(|pid| Some((pid, Process::find(pid)?))).collect();
        let own = [self.daemon, std::process::id()];
        let marked: BTreeSet<u32> =
            all.keys().copied().filter(|pid| !own.contains(pid) && self.marks(*pid)).collect();
        let descends = |pid: &u32| {
            let parent = |pid: &u32| all.get(pid).map(|(_, parent)| *parent);
            std::iter::successors(Some(*pid), parent).take(64).any(|pid| marked.contains(&pid))
        };
        all.iter().filter(|(pid, _)| descends(pid)).map(|(_, (it, _))| it.clone()).collect()
    }

    fn marks(&self, pid: u32) -> bool {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        // A fork of ours that is not another program yet has all our descriptors.
        let own = fs::read_link("/proc/self/exe").ok();
        if own.is_some() && fs::read_link(proc.join("exe")).ok() == own {
            return false;
        }
        let within = |link: PathBuf| fs::read_link(link).is_ok_and(|to| to.starts_with(&self.home));
        let home = self.home.to_string_lossy();
        let named = fs::read(proc.join("cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&*home));
        let in_group = || {
            let groups = fs::read_to_string(proc.join("cgroup")).unwrap_or_default();
            let has = |parent: &PathBuf| groups.contains(&format!(":{}/", parent.display()));
            self.cgroup.as_ref().is_some_and(has)
        };
        let mut fds = fs::read_dir(proc.join("fd")).into_iter().flatten().flatten();
        named || in_group() || within(proc.join("cwd")) || fds.any(|fd| within(fd.path()))
    }

    /// Mount points below the home, as the process `seen_by` has them, deepest last.
    pub(crate) fn mounts(&self, seen_by: &str) -> Vec<PathBuf> {
        let table = fs::read_to_string(format!("/proc/{seen_by}/mountinfo")).unwrap_or_default();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
        points.filter(|point| point.starts_with(&self.home) && *point != self.disk()).collect()
    }

    /// The mount that a test made, see [`DaemonProcess::start_on_disk_of`].
    fn disk(&self) -> PathBuf {
        self.home.join("disk")
    }

    /// Groups below the parent, in all hierarchies, deepest last.
    pub(crate) fn cgroups(&self) -> Vec<PathBuf> {
        let parents = self.parents();
        let mut found: Vec<PathBuf> = parents.iter().flat_map(|dir| directories(dir)).collect();
        let mut at = 0;
        while let Some(dir) = found.get(at).cloned() {
            found.extend(directories(&dir));
            at += 1;
        }
        found
    }

    fn parents(&self) -> Vec<PathBuf> {
        let Some(cgroup) = &self.cgroup else { return Vec::new() };
        let name = cgroup.strip_prefix("/").unwrap_or(cgroup);
        let root = Path::new("/sys/fs/cgroup");
        let hierarchies = directories(root).into_iter().map(|dir| dir.join(name));
        hierarchies.chain([root.join(name)]).filter(|dir| dir.is_dir()).collect()
    }

    /// For tests that failed: ends and removes whatever is there.
    pub(crate) fn sweep(&self) {
        // A parent that is killed may have made another child meanwhile.
        for _ in 0..50 {
            let left = self.processes();
            if left.is_empty() {
                break;
            }
            left.iter().for_each(|process| process.signal(Signal::KILL));
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        for point in self.mounts("self").into_iter().rev() {
            let _ = unmount(point, UnmountFlags::DETACH);
        }
        for dir in self.cgroups().into_iter().rev().chain(self.parents()) {
            let _ = fs::remove_dir(dir);
        }
    }
}

fn directories(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir() && !path.is_symlink()).collect()
}

impl DaemonProcess {
    pub(crate) fn marks(&self, cgroup: Option<PathBuf>) -> Marks {
        let daemon = self.pid().as_raw_nonzero().get().unsigned_abs();
        Marks { home: self.home().to_owned(), cgroup, daemon }
    }

    /// Mounts and pod directories under the state directory, and processes of shims. Empty
    /// when all pods have been removed.
    pub fn left_behind(&self) -> Vec<String> {
        self.left_of(&self.marks(None))
    }

    pub(crate) fn left_of(&self, marks: &Marks) -> Vec<String> {
        let path = |path: PathBuf| path.display().to_string();
        let mut left: Vec<String> = marks.mounts("self").into_iter().map(path).collect();
        left.extend(marks.mounts(&marks.daemon.to_string()).into_iter().map(path));
        let oci = directories(&self.state().join("oci"));
        let kept = oci.iter().flat_map(|handler| directories(handler));
        let volumes = directories(&self.root().join("volumes"));
        let pods = directories(&self.state().join("pods"));
        left.extend(pods.into_iter().chain(kept).chain(volumes).map(path));
        left.extend(marks.processes().into_iter().map(|process| process.command));
        left.extend(marks.cgroups().into_iter().map(path));
        left
    }
}
