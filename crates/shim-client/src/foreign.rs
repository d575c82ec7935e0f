//! Shims that others wrote: containerd's own for runc, those of gVisor and kata.
//!
//! ```text
//!   daemon ──exec──> shim start ──forks──> the shim, one per pod
//!     │  Task v2 or v3, one connection ──────^    │ runs the sandbox, a first task that is
//!     │                                           │ the pod, and the containers beside it
//!     ├─ log thread <────── pipes ────────────────┤
//!     └─ events server <──────────────────────────┘
//! ```
//! The pod's directory has what a new daemon needs to find it all again, written before it
//! is done.
//!
//! **Invariant:** whatever may exist of a pod can be found from its directory, and [`bury`]
//! removes it.

mod bootstrap;
mod bury;
mod events;
mod launch;
mod name;
mod record;
mod streams;

use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use api_shim::task::v3::{ConnectRequest, ConnectResponse, StartRequest, StartResponse};
use parking_lot::Mutex;
use sys::{
    cgroup::Layout,
    namespace::{Holder, Namespace, Spaces},
    pidfd::Pidfd,
};

pub use bootstrap::BootstrapForm;
pub(crate) use bury::bury;
pub use launch::ask_form;
pub use name::{BadName, find_shim, shim_binary_name};
pub(crate) use record::PodFile;
pub use record::RuntimeOptions;
pub(crate) use streams::Streams;

use crate::{
    CreateTask, Namespaces, Shim, ShimError, ShimInfo,
    bury::{held, started_at},
    connect,
    shim::Side,
    task::Task,
};
use events::Events;
use record::{Running, TaskFile};
use streams::{Ground, Inner};

const CALL: &str = "Connect";
/// A shim whose start failed is ended within this.
const UNDO_LIMIT: Duration = Duration::from_secs(10);

/// The daemon's side of all foreign shims: where they send their events. Clones share it.
#[derive(Clone, Debug)]
pub struct Foreign {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    events: Events,
    layout: Option<Arc<Layout>>,
    /// Pods whose streams are being read; a new connection takes them over.
    streams: Mutex<BTreeMap<PathBuf, Weak<Inner>>>,
}

/// A pod to start a foreign shim for.
#[derive(Clone, Debug)]
pub struct StartForeign {
    /// Of the pod, and so of its sandbox.
    pub id: String,
    /// Exists, belongs to the pod alone, mode 0700.
    pub dir: PathBuf,
    /// Of the sandbox: named by its id, in the directory where those of the containers are, as
    /// shims expect. It is complete when the shim is launched.
    pub bundle: PathBuf,
    /// See [`find_shim`].
    pub binary: PathBuf,
    pub form: BootstrapForm,
    pub options: RuntimeOptions,
    /// Pinned for the sandbox to join; `pid` means that containers share the sandbox's.
    pub namespaces: Namespaces,
}

impl Foreign {
    /// Serves events on `socket`. Must be called inside a tokio runtime.
    pub fn open(socket: &Path) -> Result<Self, ShimError> {
        let events = Events::serve(socket)?;
        // Without it exits do not tell of the OOM killer; probes complain of the rest.
        let layout = Layout::detect().ok().map(Arc::new);
        let shared = Shared { events, layout, streams: Mutex::default() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Hears no more events and reads no more output, for a daemon that ends. Shims and
    /// containers go on.
    pub async fn close(&self) {
        let streams = std::mem::take(&mut *self.shared.streams.lock());
        for streams in streams.values().filter_map(Streams::upgrade) {
            streams.stop().await;
        }
        self.shared.events.close().await;
    }

    /// Puts the pod on record and pins its namespaces. After an error, or to undo it,
    /// [`crate::bury`] removes what was made, but for the pin of the network namespace.
    ///
    /// Not cancel safe: what was made stays.
    pub async fn prepare(&self, spec: &StartForeign) -> Result<(), ShimError> {
        if spec.namespaces.user.is_some() {
            return Err(ShimError::Refused {
                call: "start shim",
                kind: base::Kind::Unimplemented,
                message: "user namespaces are not implemented for foreign shims".to_owned(),
            });
        }
        let file = PodFile {
            id: spec.id.clone(),
            binary: spec.binary.clone(),
            form: spec.form,
            options: spec.options.clone(),
            bundle: spec.bundle.clone(),
            namespaces: spec.namespaces.clone(),
            running: None,
        };
        file.write(&spec.dir)?;
        let namespaces = spec.namespaces.clone();
        let pinned = tokio::task::spawn_blocking(move || pin(&namespaces)).await;
        let doing = "pin the pod's namespaces";
        let pinned = pinned.map_err(|e| ShimError::io(doing)(io::Error::other(e)))?;
        pinned.map_err(ShimError::io(doing))
    }

    /// Starts the shim of a prepared pod, and the sandbox in it. After an error nothing but
    /// the pin of the network namespace is left.
    ///
    /// Not cancel safe: what was made stays, for [`crate::bury`].
    pub async fn launch(&self, dir: &Path, limit: Duration) -> Result<Shim, ShimError> {
        let begun = tokio::time::timeout(limit, self.try_launch(dir, limit)).await;
        let late = || Err(ShimError::Timeout { call: "start shim", limit });
        let error = match begun.unwrap_or_else(|_| late()) {
            Ok(shim) => return Ok(shim),
            Err(error) => error,
        };
        if let Err(error) = bury(dir, UNDO_LIMIT).await {
            tracing::warn!(dir = %dir.display(), error = %base::Chain(&error), "undo a start");
        }
        Err(error)
    }

    async fn try_launch(&self, dir: &Path, limit: Duration) -> Result<Shim, ShimError> {
        let mut pod = read_pod(dir)?;
        // Shims write what they have to say here, and some do not start without it.
        let log = pod.bundle.join("log");
        fs::write(&log, "").map_err(ShimError::io(format!("make {}", log.display())))?;
        let address = launch::Address { events: &self.shared.events.socket };
        let answer = launch::start(&pod, address, limit).await?;
        let line = dial(&pod.id, answer.version, &answer.address, limit).await?;
        let start_time = started_at(line.pid).unwrap_or_default();
        let (version, address, pid) = (line.version, answer.address, line.pid);
        pod.running = Some(Running { version, address, pid, start_time });
        pod.write(dir)?;
        let streams = self.streams(dir, &pod, &line.task)?;
        let sandbox =
            CreateTask { id: pod.id.clone(), bundle: pod.bundle.clone(), ..CreateTask::default() };
        streams.create(&line.task, limit, sandbox).await?;
        let request = StartRequest { id: pod.id.clone(), exec_id: String::new() };
        let _: StartResponse = line.task.call("Start", limit, &request).await?;
        self.assemble(dir, &pod, line, streams)
    }

    /// Connects to the shim of the pod whose directory this is. [`ShimError::NotFound`]: none was
    /// ever ready there; [`ShimError::Gone`]: it, or the sandbox, has ended.
    ///
    /// Cancel safe.
    pub async fn connect(&self, dir: &Path, limit: Duration) -> Result<Shim, ShimError> {
        let pod = read_pod(dir)?;
        let Some(Running { version, address, .. }) = &pod.running else {
            return Err(no_shim(dir));
        };
        let line = dial(&pod.id, *version, address, limit).await?;
        let streams = self.streams(dir, &pod, &line.task)?;
        self.assemble(dir, &pod, line, streams)
    }

    /// The pod's directory is one of a foreign shim.
    pub fn is_in(dir: &Path) -> bool {
        PodFile::is_in(dir)
    }

    fn assemble(
        &self,
        dir: &Path,
        pod: &PodFile,
        line: Line,
        streams: Streams,
    ) -> Result<Shim, ShimError> {
        let gone = || ShimError::Gone { call: CALL, source: Some(ended("the sandbox")) };
        let sandbox = TaskFile::read(dir, &pod.id)?.ok_or_else(gone)?.task;
        let process = held(sandbox.pid, sandbox.start_time).ok_or_else(gone)?;
        let info = ShimInfo {
            pid: line.pid,
            pod_pid: pod.namespaces.pid.then_some(sandbox.pid),
            address: pod.running.as_ref().map(|r| r.address.clone()).unwrap_or_default(),
            namespaces: pod.namespaces.clone(),
        };
        let keepers: Vec<OwnedFd> = vec![line.process.into(), process.into()];
        Shim::new(dir, info, line.task, Side::Foreign(streams), keepers)
    }

    /// Those of an earlier connection, if that is still in use somewhere: a pipe has one reader.
    fn streams(&self, dir: &Path, pod: &PodFile, task: &Task) -> Result<Streams, ShimError> {
        let mut all = self.shared.streams.lock();
        all.retain(|_, streams| streams.strong_count() > 0);
        if let Some(streams) = all.get(dir).and_then(Streams::upgrade) {
            streams.use_connection(task.clone());
            return Ok(streams);
        }
        let ground =
            Ground { ooms: self.shared.events.ooms.clone(), layout: self.shared.layout.clone() };
        let streams = Streams::open(dir, &pod.id, pod.options.to_any(), ground, task.clone())?;
        all.insert(dir.to_owned(), streams.downgrade());
        Ok(streams)
    }
}

/// A connection to a shim that answered.
#[derive(Debug)]
struct Line {
    task: Task,
    version: u32,
    pid: u32,
    process: Pidfd,
}

/// Shims say which version they speak; one that says wrong is asked for the other.
async fn dial(id: &str, version: u32, address: &str, limit: Duration) -> Result<Line, ShimError> {
    let socket = Path::new(address.strip_prefix("unix://").unwrap_or(address));
    let client = ttrpc::Client::new(connect::open(CALL, socket).await?);
    let other = if version == 3 { 2 } else { 3 };
    let request = ConnectRequest { id: id.to_owned() };
    let mut unknown = None;
    for version in [version, other] {
        let Some(task) = Task::new(client.clone(), version) else { continue };
        match task.call::<_, ConnectResponse>(CALL, limit, &request).await {
            Ok(answer) => {
                let pid = answer.shim_pid;
                let gone = |e: sys::Error| ShimError::Gone { call: CALL, source: Some(e.into()) };
                let process = Pidfd::open(pid).map_err(gone)?;
                // It answers, so the number is still its own: what we hold is the shim.
                let _: ConnectResponse = task.call(CALL, limit, &request).await?;
                return Ok(Line { task, version, pid, process });
            }
            Err(error) if error.kind() == base::Kind::Unimplemented => unknown = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(unknown.unwrap_or(ShimError::Gone { call: CALL, source: None }))
}

fn read_pod(dir: &Path) -> Result<PodFile, ShimError> {
    PodFile::read(dir)?.ok_or_else(|| no_shim(dir))
}

fn no_shim(dir: &Path) -> ShimError {
    ShimError::NotFound { call: CALL, message: format!("no shim in {}", dir.display()) }
}

fn ended(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{what} has ended"))
}

/// Makes the namespaces in a child that only waits, so that no thread of ours enters them.
fn pin(wanted: &Namespaces) -> sys::Result<()> {
    let pins = [
        (Namespace::Network, wanted.net.as_ref()),
        (Namespace::Ipc, wanted.ipc.as_ref()),
        (Namespace::Uts, wanted.uts.as_ref()),
    ];
    let pins: Vec<_> = pins.into_iter().filter_map(|(kind, path)| Some((kind, path?))).collect();
    if pins.is_empty() {
        return Ok(());
    }
    let others = pins.iter().map(|(kind, _)| *kind).collect();
    let holder = Holder::park(&Spaces { user: None, others })?;
    pins.into_iter().try_for_each(|(kind, path)| holder.pin(kind, path))
}
