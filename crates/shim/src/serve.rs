//! The life of a shim that is ready: it serves until it is shut down, or until its pod is
//! gone.
//!
//! A pod whose PID 1 dies is dead: nothing can be started in its PID namespace any more. The shim
//! kills what still runs, keeps the exits on record and ends, leaving everything else as if it had
//! been killed. So a daemon learns of it as it learns of the death of a shim, now or when it is
//! back, and cleans up in the same way.

use std::{
    fs::{self, File},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use api_shim::{
    name,
    start::{Description, Files},
};
use parking_lot::Mutex;
use rustix::fs::inotify;
use shim_io::IoThread;
use tokio::{
    io::{Interest, unix::AsyncFd},
    signal::unix::{SignalKind, signal},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use ttrpc::{Server, ServerBuilder, Service};

use crate::{
    error::{Error, Result},
    note,
    pod::Pod,
    reaper::{self, Reaper},
    service,
    tasks::Tasks,
};

/// Answers on their way when the shim ends.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

/// By then whoever waited for the pod has it.
const SETTLE: Duration = Duration::from_millis(50);

/// What is killed with the pod ends within this, or the shim does not wait for it any longer.
const LAST_EXITS: Duration = Duration::from_secs(10);
/// Between two looks at what may have been started meanwhile.
const KILL_AGAIN: Duration = Duration::from_millis(100);

/// How the work of a shim came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The pod is released, or as far as it can be.
    Released,
    /// PID 1 of the pod has ended by itself; all is left to whoever cleans up after the shim.
    PodDied,
}

/// What the handlers share.
#[derive(Debug)]
pub(crate) struct Shim {
    pub(crate) tasks: Arc<Tasks>,
    pod: Mutex<Pod>,
    stop: CancellationToken,
}

/// Bound before the pod is made, so that a ready shim can be reached.
#[derive(Debug)]
pub(crate) struct Sockets {
    calls: UnixListener,
    attach: UnixListener,
}

impl Sockets {
    pub(crate) fn bind(dir: &Path, files: &Files) -> Result<Self> {
        let bind = |path: &Path| {
            let (short, _dir) = short_path(path)?;
            if UnixStream::connect(&short).is_ok() {
                return Err(Error::Exists { what: "shim in", id: dir.display().to_string() });
            }
            // Left by a shim that was killed.
            let _ = fs::remove_file(path);
            UnixListener::bind(short).map_err(Error::on("bind", path))
        };
        if !dir.is_dir() {
            return Err(Error::Invalid { field: "dir", why: "is no directory".to_owned() });
        }
        Ok(Self { calls: bind(&files.socket)?, attach: bind(&files.attach)? })
    }
}

/// The same path, short enough for a socket address while the directory is held open.
pub(crate) fn short_path(path: &Path) -> Result<(PathBuf, Option<File>)> {
    const MAX: usize = 107;
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Error::Invalid { field: "path", why: "is no socket's".to_owned() });
    };
    if path.as_os_str().len() <= MAX {
        return Ok((path.to_owned(), None));
    }
    let dir = File::open(dir).map_err(Error::on("open", dir))?;
    let short = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name);
    Ok((short, Some(dir)))
}

/// Returns when the shim's work is over.
pub(crate) fn run(
    description: &Description,
    pod: Pod,
    sockets: Sockets,
    more: impl FnOnce() -> Vec<Service>,
) -> Result<End> {
    // Few things happen at once here, and the room for events is memory of every pod.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_io_events_per_tick(16)
        .build();
    let runtime = runtime.map_err(Error::io("start the control thread"))?;
    runtime.block_on(async { serve(description, pod, sockets, more()).await })
}

async fn serve(
    description: &Description,
    pod: Pod,
    sockets: Sockets,
    more: Vec<Service>,
) -> Result<End> {
    let children = reaper::children().map_err(Error::io("listen for exits"))?;
    // Only a shutdown, the end of the pod, or SIGKILL ends a shim.
    let _deaf = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()]
        .map(|kind| signal(kind));
    let reaper = Arc::new(Reaper::default());
    let io = IoThread::start(sockets.attach, |text| note::warn(text))?;
    let files = Files::of(&description.dir);
    let records = files.tasks.clone();
    let tasks = Tasks::new(description, pod.first_pid(), io, Arc::clone(&reaper), records)?;
    let tasks = Arc::new(tasks);
    let first = pod.watch_first()?;
    let stop = CancellationToken::new();
    let shim = Arc::new(Shim { tasks, pod: Mutex::new(pod), stop: stop.clone() });
    let server = Server::builder()
        .service(service::task(name::TASK_V3, &shim))
        .service(service::task(name::TASK_V2, &shim))
        .service(service::io(&shim));
    let server = more.into_iter().fold(server, ServerBuilder::service).build();
    sockets.calls.set_nonblocking(true).map_err(Error::io("listen"))?;
    let listener =
        tokio::net::UnixListener::from_std(sockets.calls).map_err(Error::io("listen"))?;

    let settled = Arc::clone(&shim);
    shim.tasks.work.spawn(async move {
        tokio::time::sleep(SETTLE).await;
        settled.pod.lock().settle();
    });
    let mut end = End::Released;
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = reaper.run(children) => note::warn("no more exits are told"),
        served = server.serve(listener) => served.map_err(Error::io("serve"))?,
        () = pod_gone(&files, &shim) => note::warn("the pod's directory is gone"),
        () = pod_died(first, &shim.tasks) => end = End::PodDied,
    }
    if timeout(LAST_ANSWERS, server.shutdown()).await.is_err() {
        server.abort();
    }
    // Without its files nobody would ever clean up after us.
    if end == End::PodDied && files.bootstrap.exists() {
        shim.pod.lock().abandon();
        return Ok(End::PodDied);
    }
    shim.pod.lock().release()?;
    Ok(End::Released)
}

/// Returns once PID 1 of the pod has ended by itself and nothing of the pod runs any more.
async fn pod_died(first: Option<OwnedFd>, tasks: &Tasks) {
    let Some(first) = first else { return std::future::pending().await };
    let watched = async { readable(first)?.readable().await.map(drop) };
    if let Err(error) = watched.await {
        note::warn(format_args!("watch PID 1 of the pod: {error}"));
        return std::future::pending().await;
    }
    note::warn("PID 1 of the pod's PID namespace has ended: the pod ends with it");
    let killed = async {
        while tasks.census().0 {
            tasks.kill_all().await;
            // One that was being created may run by then.
            let _ = timeout(KILL_AGAIN, tasks.none_runs()).await;
        }
    };
    if timeout(LAST_EXITS, killed).await.is_err() {
        note::warn("containers of the pod do not end: left to be cleaned up");
    }
}

/// Nobody can find us any more, and nothing runs.
async fn pod_gone(files: &Files, shim: &Shim) {
    if let Err(error) = removal(&files.bootstrap).await {
        // Then only a shutdown ends us.
        note::warn(format_args!("watch {}: {error}", files.bootstrap.display()));
        return std::future::pending().await;
    }
    shim.tasks.none_runs().await;
}

/// The directory itself tells of its end only when nobody has anything in it open, and we
/// have. So its content is watched.
async fn removal(file: &Path) -> std::io::Result<()> {
    use inotify::{CreateFlags, WatchFlags};
    let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    let flags = WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::MOVE_SELF;
    inotify::add_watch(&watch, file.parent().unwrap_or(file), flags)?;
    let watch = readable(watch)?;
    while file.try_exists()? {
        let mut ready = watch.readable().await?;
        // What happened does not matter, only whether the file is still there.
        let mut events = [0; 1024];
        while rustix::io::read(watch.get_ref(), &mut events).is_ok_and(|len| len > 0) {}
        ready.clear_ready();
    }
    Ok(())
}

#[expect(deprecated, reason = "its unsafe twin is for descriptors that others may close")]
fn readable(fd: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}

impl Shim {
    /// Releases the pod and ends the shim. Refused while a container runs, and while one
    /// is not deleted unless it is to be `now`.
    pub(crate) async fn shutdown(&self, now: bool) -> Result<()> {
        let (runs, any) = self.tasks.census();
        if runs || any && !now {
            let phase = if runs { "in use by a container that runs" } else { "not empty" };
            let (wanted, what, id) = ("shut down", "pod", String::new());
            return Err(Error::Phase { wanted, what, id, phase: phase.to_owned() });
        }
        self.pod.lock().release()?;
        self.stop.cancel();
        Ok(())
    }
}
