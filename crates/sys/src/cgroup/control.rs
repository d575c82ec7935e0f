//! Changing groups: making, freezing, ending, removing.

use std::{
    fs,
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

use rustix::io::Errno;

use super::{Cgroup, Group, Layout, Version, parse};
use crate::{
    error::{Error, Result, on},
    pidfd::Pidfd,
};

/// Between two looks at something the kernel is about to do.
const STEP: Duration = Duration::from_millis(1);
/// Steps after which what does not freeze is let go for a moment.
const AGAIN: u32 = 50;

impl Cgroup {
    /// Makes the group in the hierarchies of these controllers (those the host lacks are
    /// left out) and in the v2 one. What exists is taken as it is.
    pub fn create(layout: &Layout, path: &Path, controllers: &[&str]) -> Result<Self> {
        let wanted = |names: &[String]| names.iter().any(|name| controllers.contains(&&**name));
        for (hierarchy, names) in layout.hierarchies() {
            match hierarchy.version {
                Version::V1 if wanted(&names) => {
                    create_v1(&hierarchy.mount, &hierarchy.dir(path), &names)?;
                }
                Version::V1 => {}
                Version::V2 => {
                    let enable: Vec<_> =
                        names.iter().filter(|name| controllers.contains(&&***name)).collect();
                    create_v2(&hierarchy.mount, &hierarchy.dir(path), &enable)?;
                }
            }
        }
        let none = || Error::new(format!("create cgroup {}", path.display()), Errno::NOENT);
        Self::open(layout, path)?.ok_or_else(none)
    }

    /// Stops or resumes all processes of the group and below, and waits until they are.
    /// `ETIMEDOUT` if they do not come to a halt; freezing is then taken back.
    pub fn freeze(&self, frozen: bool, limit: Duration) -> Result<()> {
        let v1 = self.with("freezer").filter(|dir| dir.version == Version::V1);
        let freezer = v1.or_else(|| self.unified());
        let dir = freezer.ok_or_else(|| Error::new("freeze: no freezer", Errno::NOENT))?;
        for step in 1..=steps(limit) {
            // Writing again is what makes v1 look again at tasks that were not ready.
            dir.ask_frozen(frozen)?;
            if dir.is_frozen()? == frozen {
                return Ok(());
            }
            sleep(STEP);
            // A thread that becomes another program waits for others, and v1 holds these.
            if frozen && step % AGAIN == 0 {
                dir.ask_frozen(false)?;
            }
        }
        if frozen {
            dir.ask_frozen(false)?;
        }
        Err(Error::new(format!("freeze cgroup {}", dir.path.display()), Errno::TIMEDOUT))
    }

    /// Ends all processes in the group and below with SIGKILL, also such as fork while we
    /// are at it, frozen or not. Returns when none is left; `ETIMEDOUT` if some stay.
    pub fn kill(&self, limit: Duration) -> Result<()> {
        let main = self.main();
        let by_kernel = main.version == Version::V2 && main.read("cgroup.events")?.is_some();
        for _ in 0..steps(limit) {
            if main.all_pids()?.is_empty() {
                return Ok(());
            }
            // cgroup.kill came with Linux 5.14.
            match by_kernel.then(|| main.write("cgroup.kill", "1")) {
                Some(Ok(())) => {}
                Some(Err(e)) if !e.is(Errno::NOENT) => return Err(e),
                _ => main.kill_each()?,
            }
            // v1 freezes harder than SIGKILL; v2 lets it through.
            self.thaw()?;
            sleep(STEP);
        }
        Err(Error::new(format!("kill cgroup {}", main.path.display()), Errno::TIMEDOUT))
    }

    /// Resumes the group in every hierarchy where it is frozen, or on its way there, and does
    /// not wait for it. A group that is gone, or that nothing can freeze, is fine.
    pub fn thaw(&self) -> Result<()> {
        let v1 = self.with("freezer").filter(|dir| dir.version == Version::V1);
        for dir in v1.into_iter().chain(self.unified()) {
            if dir.is_asked_to_freeze()? {
                dir.ask_frozen(false)?;
            }
        }
        Ok(())
    }

    /// Removes the group and those below it from every hierarchy; what is gone is fine.
    /// Waits for processes that are just ending; `EBUSY` if they do not.
    pub fn remove(self, limit: Duration) -> Result<()> {
        let mut failure = None;
        for dir in self.dirs {
            if let Err(e) = remove_tree(&dir.path, steps(limit)) {
                failure = failure.or(Some(e));
            }
        }
        failure.map_or(Ok(()), Err)
    }
}

fn steps(limit: Duration) -> u32 {
    u32::try_from(limit.as_millis() / STEP.as_millis()).unwrap_or(u32::MAX).max(1)
}

impl Group {
    fn ask_frozen(&self, frozen: bool) -> Result<()> {
        match self.version {
            Version::V1 => self.write("freezer.state", if frozen { "FROZEN" } else { "THAWED" }),
            Version::V2 => self.write("cgroup.freeze", if frozen { "1" } else { "0" }),
        }
    }

    /// Whether somebody asked for it, also if it has not come to a halt yet.
    fn is_asked_to_freeze(&self) -> Result<bool> {
        let (file, running) = match self.version {
            Version::V1 => ("freezer.state", "THAWED"),
            Version::V2 => ("cgroup.freeze", "0"),
        };
        Ok(self.read(file)?.is_some_and(|state| state.trim() != running))
    }

    fn is_frozen(&self) -> Result<bool> {
        match self.version {
            // FREEZING is neither.
            Version::V1 => Ok(self.read("freezer.state")?.is_some_and(|s| s.trim() == "FROZEN")),
            Version::V2 => {
                let events = self.read("cgroup.events")?;
                Ok(events.and_then(|text| parse::field(&text, "frozen")) == Some(1))
            }
        }
    }

    /// In the group and below.
    pub(super) fn all_pids(&self) -> Result<Vec<u32>> {
        // A threaded group lists nobody: its parent does.
        let mut pids = self.pids()?;
        // Each group below is a link to this one: without any there is nothing to list.
        if rustix::fs::fstat(&self.fd).is_ok_and(|stat| stat.st_nlink == 2) {
            return Ok(pids);
        }
        for child in self.children()? {
            pids.extend(child.all_pids()?);
        }
        Ok(pids)
    }

    /// A pid may be reused between reading and killing: so each is held by a descriptor,
    /// and killed only if the group still lists it then.
    fn kill_each(&self) -> Result<()> {
        let held: Vec<_> = self
            .all_pids()?
            .into_iter()
            .filter_map(|pid| Some((pid, Pidfd::open(pid).ok()?)))
            .collect();
        let still = self.all_pids()?;
        for (_, pidfd) in held.iter().filter(|(pid, _)| still.contains(pid)) {
            pidfd.signal(libc::SIGKILL)?;
        }
        Ok(())
    }
}

/// `cpuset` groups are born empty and take no process until they have CPUs and memory
/// nodes: each on the way takes those of its parent.
fn create_v1(mount: &Path, dir: &Path, controllers: &[String]) -> Result<()> {
    for dir in below(mount, dir) {
        make_dir(&dir)?;
        if !controllers.iter().any(|name| name == "cpuset") {
            continue;
        }
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let (own, parent) = (dir.join(file), dir.with_file_name(file));
            let read = |path: &PathBuf| fs::read_to_string(path).map_err(on("read", path));
            if read(&own)?.trim().is_empty() {
                fs::write(&own, read(&parent)?.trim()).map_err(on("write", &own))?;
            }
        }
    }
    Ok(())
}

/// A v2 controller works in a group only if every group above hands it down.
fn create_v2(mount: &Path, dir: &Path, controllers: &[&String]) -> Result<()> {
    for dir in below(mount, dir) {
        let hand_down = dir.with_file_name("cgroup.subtree_control");
        for name in controllers {
            fs::write(&hand_down, format!("+{name}")).map_err(on("write", &hand_down))?;
        }
        make_dir(&dir)?;
    }
    Ok(())
}

/// The directories from below `mount` down to `dir`.
fn below(mount: &Path, dir: &Path) -> Vec<PathBuf> {
    let mut way: Vec<_> = dir.ancestors().take_while(|dir| *dir != mount).collect();
    way.reverse();
    way.into_iter().map(Path::to_owned).collect()
}

fn make_dir(dir: &Path) -> Result<()> {
    match fs::create_dir(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(on("create cgroup", dir)(e)),
        _ => Ok(()),
    }
}

/// The files of a group are not files: `rmdir` alone takes it away, deepest first.
fn remove_tree(dir: &Path, tries: u32) -> Result<()> {
    let mut last = Errno::BUSY;
    for _ in 0..tries {
        match rustix::fs::rmdir(dir) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            // Groups below it, or processes that are ending.
            Err(e @ (Errno::BUSY | Errno::NOTEMPTY)) => last = e,
            Err(e) => return Err(on("remove cgroup", dir)(e)),
        }
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove_tree(&entry.path(), tries)?;
            }
        }
        sleep(STEP);
    }
    Err(on("remove cgroup", dir)(last))
}
