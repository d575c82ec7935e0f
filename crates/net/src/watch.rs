//! Learning that a directory changed, also one that is not there yet, or no longer.
//!
//! ```text
//!   /etc/cni            watched for the name net.d: made, moved, removed, relinked
//!   /etc/cni/net.d      watched for everything
//! ```
//! If `/etc/cni` is missing too, `/etc` is watched for the name cni, and so on.
//!
//! **Invariant:** who arms first and then reads the directory misses no change: one that
//! comes after the arming is told, even if it is told twice.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags},
    io::Errno,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::sleep,
};

/// How often to look where watching does not work: the kernel's limits on watches are small
/// and others use them up.
const POLL: Duration = Duration::from_secs(5);
/// Files are often written in several steps.
const SETTLE: Duration = Duration::from_millis(30);
const ROUNDS: usize = 8;

#[derive(Debug)]
pub(crate) struct Watcher {
    dir: PathBuf,
    inotify: Option<AsyncFd<OwnedFd>>,
    /// By watch: the one name in it that counts, or all.
    armed: BTreeMap<i32, Option<OsString>>,
    /// Not everything is watched.
    degraded: bool,
    /// Something changed and nobody was told yet.
    unsettled: bool,
}

impl Watcher {
    /// `dir` is absolute. Needs a runtime.
    pub(crate) fn new(dir: &Path) -> Self {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)
            .map_err(std::io::Error::from)
            .and_then(readable);
        let inotify = inotify.inspect_err(|error| {
            tracing::warn!(dir = %dir.display(), %error, "cannot watch, looking every {POLL:?}");
        });
        let dir = dir.to_owned();
        Self {
            dir,
            inotify: inotify.ok(),
            armed: BTreeMap::new(),
            degraded: false,
            unsettled: false,
        }
    }

    /// Watches what is there now, and `beside`, directories below.
    pub(crate) fn arm(&mut self, beside: &[PathBuf]) {
        let Some(inotify) = &self.inotify else { return };
        let mut armed = BTreeMap::new();
        let mut degraded = false;
        let mut add = |path: &Path, name: Option<&OsStr>| match watch(inotify.get_ref(), path) {
            Ok(wd) => {
                armed.insert(wd, name.map(OsStr::to_owned));
                true
            }
            Err(Errno::NOENT | Errno::NOTDIR) => false,
            Err(_) => {
                degraded = true;
                true
            }
        };
        // What is made between two looks is seen by the next.
        for _ in 0..ROUNDS {
            let missing = ancestor(&self.dir, &mut add);
            if add(&self.dir, None) || !missing.exists() {
                break;
            }
        }
        for dir in beside {
            add(dir, None);
        }
        for wd in self.armed.keys().filter(|wd| !armed.contains_key(wd)) {
            // It is gone already if the directory is.
            let _ = inotify::remove_watch(inotify.get_ref(), *wd);
        }
        (self.armed, self.degraded) = (armed, degraded);
    }

    /// Resolves some time after something changed, when it has settled. Cancel safe.
    pub(crate) async fn changed(&mut self) {
        if !self.unsettled {
            let poll = async {
                match self.degraded || self.inotify.is_none() {
                    true => sleep(POLL).await,
                    false => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.event() => {}
                () = poll => {}
            }
        }
        // Events are gone once they are read: who drops us now must hear of them later.
        self.unsettled = true;
        sleep(SETTLE).await;
        self.unsettled = false;
    }

    async fn event(&self) {
        let Some(inotify) = &self.inotify else { return std::future::pending().await };
        loop {
            let Ok(mut ready) = inotify.readable().await else { return sleep(POLL).await };
            // All is read: the next event makes it ready again.
            let told = self.read(inotify.get_ref());
            ready.clear_ready();
            if told {
                return;
            }
        }
    }

    /// Reads all events; whether one of them counts.
    fn read(&self, inotify: &OwnedFd) -> bool {
        let mut buf = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(inotify, &mut buf);
        let mut counts = false;
        while let Ok(event) = reader.next() {
            let lost = event.events().contains(ReadFlags::QUEUE_OVERFLOW);
            counts |= lost
                || match self.armed.get(&event.wd()) {
                    None => false,
                    Some(None) => true,
                    Some(Some(name)) => {
                        event.file_name().is_none_or(|own| own.to_bytes() == name.as_bytes())
                    }
                };
        }
        counts
    }
}

#[expect(deprecated, reason = "its unsafe twin is for descriptors that others may close")]
fn readable(inotify: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(inotify, Interest::READABLE)
}

/// Watches the nearest directory above that is there; gives what is not there below it.
fn ancestor<'a>(dir: &'a Path, add: &mut impl FnMut(&Path, Option<&OsStr>) -> bool) -> &'a Path {
    let mut below = dir;
    while let (Some(parent), Some(name)) = (below.parent(), below.file_name()) {
        if add(parent, Some(name)) {
            break;
        }
        below = parent;
    }
    below
}

fn watch(inotify: &OwnedFd, dir: &Path) -> Result<i32, Errno> {
    let flags = WatchFlags::CLOSE_WRITE
        | WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    inotify::add_watch(inotify, dir, flags)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tokio::time::timeout;

    use super::*;

    async fn told(watcher: &mut Watcher) -> bool {
        timeout(Duration::from_secs(10), watcher.changed()).await.is_ok()
    }

    async fn quiet(watcher: &mut Watcher) -> bool {
        timeout(Duration::from_millis(300), watcher.changed()).await.is_err()
    }

    #[tokio::test]
    async fn files_are_noticed() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("net.d");
        fs::create_dir(&dir).unwrap();
        let mut watcher = Watcher::new(&dir);
        watcher.arm(&[]);
        assert!(quiet(&mut watcher).await);
        fs::write(dir.join("a"), "x").unwrap();
        assert!(told(&mut watcher).await);
        assert!(quiet(&mut watcher).await, "told once");
        fs::rename(dir.join("a"), dir.join("b")).unwrap();
        assert!(told(&mut watcher).await);
        fs::remove_file(dir.join("b")).unwrap();
        assert!(told(&mut watcher).await);
        // A neighbour is not our business.
        fs::write(root.path().join("other"), "x").unwrap();
        assert!(quiet(&mut watcher).await);
    }

    #[tokio::test]
    async fn a_directory_is_waited_for_and_may_vanish() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("etc/cni/net.d");
        let mut watcher = Watcher::new(&dir);
        for part in ["etc", "etc/cni", "etc/cni/net.d"] {
            watcher.arm(&[]);
            fs::create_dir(root.path().join(part)).unwrap();
            assert!(told(&mut watcher).await, "{part}");
        }
        watcher.arm(&[]);
        fs::remove_dir_all(root.path().join("etc")).unwrap();
        assert!(told(&mut watcher).await);
        watcher.arm(&[]);
        fs::create_dir_all(&dir).unwrap();
        assert!(told(&mut watcher).await);
        watcher.arm(&[]);
        // Moved away with its watch: what happens there is not ours any more.
        let away = root.path().join("away");
        fs::rename(&dir, &away).unwrap();
        assert!(told(&mut watcher).await);
        watcher.arm(&[]);
        fs::write(away.join("a"), "x").unwrap();
        assert!(quiet(&mut watcher).await);
    }

    #[tokio::test]
    async fn an_impatient_listener_misses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut watcher = Watcher::new(dir.path());
        watcher.arm(&[]);
        for number in 0..10 {
            fs::write(dir.path().join("a"), number.to_string()).unwrap();
            // Gives up between the event and its settling, unless the machine was too busy to.
            let gave_up = timeout(SETTLE / 2, watcher.changed()).await.is_err();
            assert!(!gave_up || told(&mut watcher).await, "change {number} was lost");
        }
    }

    #[tokio::test]
    async fn a_link_may_point_elsewhere() {
        let root = tempfile::tempdir().unwrap();
        let (one, two, dir) =
            (root.path().join("1"), root.path().join("2"), root.path().join("net.d"));
        fs::create_dir(&one).unwrap();
        fs::create_dir(&two).unwrap();
        std::os::unix::fs::symlink(&one, &dir).unwrap();
        let mut watcher = Watcher::new(&dir);
        watcher.arm(&[]);
        let next = root.path().join("next");
        std::os::unix::fs::symlink(&two, &next).unwrap();
        fs::rename(&next, &dir).unwrap();
        assert!(told(&mut watcher).await);
        watcher.arm(&[]);
        fs::write(two.join("a"), "x").unwrap();
        assert!(told(&mut watcher).await);
    }
}
