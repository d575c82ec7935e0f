//! The cgroup of a container, held open from its creation to its deletion.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use api_shim::start::CgroupHierarchy;
use sys::cgroup::{Cgroup, Hierarchy, Layout, LayoutMode, Membership, Version, parse};
use tokio::io::{Interest, unix::AsyncFd};

use crate::error::{Error, Result};

/// Ends and halts take the kernel milliseconds; more means that something hangs.
const LIMIT: Duration = Duration::from_secs(10);

/// As the daemon told us; looked for only if it did not.
pub(crate) fn layout(told: &[CgroupHierarchy]) -> Result<Layout> {
    if told.is_empty() {
        return Layout::detect().map_err(Error::io("find the cgroups"));
    }
    let mut layout = Layout {
        mode: LayoutMode::V1,
        controllers: BTreeMap::new(),
        named: Vec::new(),
        unified: None,
    };
    for one in told {
        let version = if one.v2 { Version::V2 } else { Version::V1 };
        let hierarchy = Hierarchy { version, mount: one.mount.clone(), root: one.root.clone() };
        if one.v2 {
            layout.unified = Some(hierarchy.clone());
        } else if one.controllers.is_empty() {
            layout.named.push(hierarchy.clone());
        }
        for name in &one.controllers {
            layout.controllers.insert(name.clone(), hierarchy.clone());
        }
    }
    layout.mode = match (&layout.unified, told.iter().all(|one| one.v2)) {
        (None, _) => LayoutMode::V1,
        (Some(_), false) => LayoutMode::Hybrid,
        (Some(_), true) => LayoutMode::V2,
    };
    Ok(layout)
}

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) path: PathBuf,
    inner: Arc<Cgroup>,
    /// What the OOM killer had taken when we last looked.
    kills: Arc<AtomicU64>,
}

impl Group {
    /// `None` if the process has no group of its own but sits in ours, which nobody must
    /// freeze or kill.
    pub(crate) fn of(layout: &Layout, pid: u32) -> Result<Option<Self>> {
        let doing = || Error::io("find the container's cgroup");
        let path = layout.path_of(&Membership::of(pid).map_err(doing())?);
        let ours = layout.path_of(&Membership::of(std::process::id()).map_err(doing())?);
        let Some(path) = path.filter(|path| path != Path::new("/") && Some(path) != ours.as_ref())
        else {
            return Ok(None);
        };
        let opened = Cgroup::open(layout, &path).map_err(doing())?;
        Ok(opened.map(|group| Self { path, inner: Arc::new(group), kills: Arc::default() }))
    }

    pub(crate) fn cgroup(&self) -> Arc<Cgroup> {
        Arc::clone(&self.inner)
    }

    pub(crate) fn pids(&self) -> Result<Vec<u32>> {
        self.inner.pids().map_err(Error::io("list the container's processes"))
    }

    /// Ends every process of the container. Blocks for milliseconds: off the control thread.
    pub(crate) async fn kill(&self) -> Result<()> {
        let group = self.cgroup();
        off_thread("kill", move || group.kill(LIMIT)).await
    }

    pub(crate) async fn freeze(&self, frozen: bool) -> Result<()> {
        let group = self.cgroup();
        off_thread("freeze", move || group.freeze(frozen, LIMIT)).await
    }

    /// Resumes a container that is frozen, whoever froze it.
    pub(crate) fn thaw(&self) -> Result<()> {
        self.inner.thaw().map_err(Error::io("thaw the container"))
    }

    /// Whether the OOM killer took a process of the container, ever.
    pub(crate) fn was_oom(&self) -> bool {
        // A group that systemd has removed meanwhile cannot be read: then what the watch
        // saw counts.
        if let Ok(Some(kills)) = self.inner.oom_kills() {
            self.kills.fetch_max(kills, Ordering::Relaxed);
        }
        self.kills.load(Ordering::Relaxed) > 0
    }

    /// Keeps the count of OOM kills up to date while the group exists; needed where someone
    /// else removes it at the end of its last process. Version 2 only: it tells of changes.
    pub(crate) fn watch(&self) -> Option<impl Future<Output = ()> + Send + 'static> {
        if self.inner.version_of("memory") != Some(Version::V2) {
            return None;
        }
        let has_memory = |path: &&Path| path.join("memory.events").exists();
        let file = File::open(self.inner.paths().find(has_memory)?.join("memory.events")).ok()?;
        let kills = Arc::clone(&self.kills);
        Some(async move {
            let Ok(events) = watch_file(file.into()) else { return };
            loop {
                if let Some(count) = read_kills(events.get_ref()) {
                    kills.fetch_max(count, Ordering::Relaxed);
                }
                match events.ready(Interest::PRIORITY).await {
                    Ok(mut ready) => ready.clear_ready(),
                    Err(_) => return,
                }
            }
        })
    }
}

#[expect(deprecated, reason = "its unsafe twin is for descriptors that others may close")]
pub(crate) fn watch_file(file: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(file, Interest::PRIORITY)
}

fn read_kills(file: &OwnedFd) -> Option<u64> {
    let mut file = File::from(file.try_clone().ok()?);
    let mut text = String::new();
    file.rewind().ok()?;
    file.read_to_string(&mut text).ok()?;
    parse::field(&text, "oom_kill")
}

/// Runs what blocks in a thread that ends with it.
pub(crate) async fn off_thread<T: Send + 'static>(
    what: &'static str,
    work: impl FnOnce() -> sys::Result<T> + Send + 'static,
) -> Result<T> {
    let (done, answer) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name(what.to_owned()).stack_size(128 << 10);
    let started = thread.spawn(move || drop(done.send(work())));
    started.map_err(Error::io("start a thread"))?;
    let lost = || Error::io(what)(std::io::Error::other("its thread panicked"));
    answer.await.map_err(|_| lost())?.map_err(Error::io(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_daemon_tells_is_what_we_would_find() {
        let found = Layout::detect().unwrap();
        let told: Vec<_> = found
            .hierarchies()
            .into_iter()
            .map(|(hierarchy, controllers)| CgroupHierarchy {
                v2: hierarchy.version == Version::V2,
                mount: hierarchy.mount,
                root: hierarchy.root,
                controllers,
            })
            .collect();
        assert_eq!(layout(&told).unwrap(), found);
        assert_eq!(layout(&[]).unwrap(), found);
    }

    #[test]
    fn our_own_group_is_nobodys() {
        let layout = Layout::detect().unwrap();
        assert!(Group::of(&layout, std::process::id()).unwrap().is_none());
    }

    #[tokio::test]
    async fn work_off_the_thread_answers() {
        assert_eq!(off_thread("test", || Ok(7)).await.unwrap(), 7);
    }
}
