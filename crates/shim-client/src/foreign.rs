//! Shims that others wrote: containerd's own for runc, those of gVisor and kata.
//!
//! ```text
//!   daemon ──exec──> shim start ──forks──> the shim, one per pod
//!     │  Task v2 or v3, and Sandbox ─────────^    │ runs the containers, and beside them what
//!     │  where it has that, one connection        │ is the pod: a first task, or its own sandbox
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
mod namespaces;
mod pod_config;
mod record;
mod service;
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
    namespace::{self, Namespace},
    pidfd::Pidfd,
};

pub use bootstrap::{BootstrapForm, shim_version};
pub(crate) use bury::bury;
pub use launch::ask_version;
pub use name::{BadName, find_shim, shim_binary_name};
pub use pod_config::{PodConfig, PodDns, PodPids, PodPort, PodProtocol, PodResources};
pub(crate) use record::PodFile;
pub use record::{RuntimeOptions, Sandboxer};
pub use service::{SandboxMetrics, SandboxService, SandboxStatus};
pub(crate) use streams::{Inner as Pipes, Streams};

use crate::{
    CreateTask, Namespaces, Shim, ShimError, ShimInfo, Stdio,
    bury::{running, started_at},
    connect,
    shim::Side,
    task::Task,
};
use events::Events;
use record::{Running, TaskFile};
use streams::Ground;

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
    streams: Mutex<BTreeMap<PathBuf, Weak<Pipes>>>,
}

/// A pod to start a foreign shim for.
#[derive(Clone, Debug)]
pub struct StartForeign {
    /// Of the pod, and so of its sandbox.
    pub id: String,
    /// Exists, belongs to the pod alone, mode 0700.
    pub dir: PathBuf,
    /// Of the sandbox: named by its id, in the directory where those of the containers are, as
    /// shims expect. It exists when the shim is launched, and if the sandbox is a task it is
    /// complete.
    pub bundle: PathBuf,
    pub sandboxer: Sandboxer,
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
            sandboxer: spec.sandboxer.clone(),
            namespaces: spec.namespaces.clone(),
            running: None,
        };
        file.write(&spec.dir)?;
        let made = tokio::task::spawn_blocking(move || file.make_namespaces()).await;
        let doing = "make the pod's namespaces";
        let made = made.map_err(|e| ShimError::io(doing)(io::Error::other(e)))?;
        made.map_err(ShimError::io(doing))
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
        match &pod.sandboxer {
            Sandboxer::Task => run_task(&pod, &line, &streams, limit).await?,
            Sandboxer::Service(config) => {
                run_sandbox(&pod, config, &line, &streams, limit).await?;
            }
        }
        pin_pids(dir, &pod)?;
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
        if let Some(service) = line.service(&pod) {
            service.ping(limit).await?;
            if !service.status(limit).await?.ready {
                return Err(sandbox_ended());
            }
        }
        let streams = self.streams(dir, &pod, &line.task)?;
        self.assemble(dir, &pod, line, streams)
    }

    /// The pod's directory is one of a foreign shim.
    pub fn is_in(dir: &Path) -> bool {
        PodFile::is_in(dir)
    }

    /// How the pod in the directory is kept; `None` if not by a foreign shim. A record that
    /// cannot be read is told of by whoever needs more of it.
    pub fn sandboxer_in(dir: &Path) -> Option<Sandboxer> {
        match PodFile::read(dir) {
            Ok(pod) => pod.map(|pod| pod.sandboxer),
            Err(_) => Some(Sandboxer::default()),
        }
    }

    fn assemble(
        &self,
        dir: &Path,
        pod: &PodFile,
        line: Line,
        streams: Streams,
    ) -> Result<Shim, ShimError> {
        let sandbox = TaskFile::read(dir, &pod.id)?.ok_or_else(sandbox_ended)?.task;
        let service = line.service(pod);
        let info = ShimInfo {
            pid: line.pid,
            pod_pid: (pod.namespaces.pid && sandbox.pid != 0).then_some(sandbox.pid),
            address: pod.running.as_ref().map(|r| r.address.clone()).unwrap_or_default(),
            namespaces: pod.namespaces.clone(),
        };
        let mut keepers: Vec<OwnedFd> = vec![line.process.into()];
        if service.is_none() {
            let process = running(sandbox.pid, sandbox.start_time).ok_or_else(sandbox_ended)?;
            keepers.push(process.into());
        }
        Shim::new(dir, info, line.task, Side::Foreign(streams, service), keepers)
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
    client: ttrpc::Client,
    task: Task,
    version: u32,
    pid: u32,
    process: Pidfd,
}

impl Line {
    /// If that is how the pod is kept.
    fn service(&self, pod: &PodFile) -> Option<SandboxService> {
        match &pod.sandboxer {
            Sandboxer::Task => None,
            Sandboxer::Service(_) => Some(SandboxService::new(self.client.clone(), &pod.id)),
        }
    }
}

/// Pins the PID namespace of the sandbox, if containers share it. A sandbox without a process on
/// this host has none to pin.
fn pin_pids(dir: &Path, pod: &PodFile) -> Result<(), ShimError> {
    let sandbox = TaskFile::read(dir, &pod.id)?.map(|file| file.task);
    let sandbox = sandbox.filter(|task| task.pid != 0);
    let (Some(pin), Some(sandbox)) = (&pod.namespaces.pid_pin, sandbox) else { return Ok(()) };
    let process = running(sandbox.pid, sandbox.start_time).ok_or_else(sandbox_ended)?;
    let pinned = namespace::pin_of(&process, sandbox.pid, Namespace::Pid, pin);
    pinned.map_err(ShimError::io("pin the PID namespace"))
}

/// The pod as a first task.
async fn run_task(
    pod: &PodFile,
    line: &Line,
    streams: &Streams,
    limit: Duration,
) -> Result<(), ShimError> {
    let (id, bundle) = (pod.id.clone(), pod.bundle.clone());
    streams.create(&line.task, limit, CreateTask { id, bundle, ..CreateTask::default() }).await?;
    let request = StartRequest { id: pod.id.clone(), exec_id: String::new() };
    let _: StartResponse = line.task.call("Start", limit, &request).await?;
    Ok(())
}

/// The pod as the shim makes it.
async fn run_sandbox(
    pod: &PodFile,
    config: &PodConfig,
    line: &Line,
    streams: &Streams,
    limit: Duration,
) -> Result<(), ShimError> {
    let service = SandboxService::new(line.client.clone(), &pod.id);
    let mut file = TaskFile::intended(&pod.bundle, Stdio::default(), None);
    streams.record(&pod.id, &mut file, 0)?;
    service.create(limit, &pod.bundle, pod.namespaces.net.as_deref(), config).await?;
    let pid = service.start(limit).await?;
    streams.record(&pod.id, &mut file, pid)?;
    let (os, _) = service.platform(limit).await?;
    if !matches!(os.as_str(), "" | "linux") {
        return Err(refused(format!("it runs programs for {os:?}, not for Linux")));
    }
    if pod.namespaces.pid && !namespaces::has_own_pids(pid) {
        return Err(refused("it made no PID namespace that containers could share".to_owned()));
    }
    Ok(())
}

fn refused(message: String) -> ShimError {
    ShimError::Refused { call: "StartSandbox", kind: base::Kind::Unimplemented, message }
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
                return Ok(Line { client, task, version, pid, process });
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

fn sandbox_ended() -> ShimError {
    let source = io::Error::new(io::ErrorKind::NotFound, "the sandbox has ended");
    ShimError::Gone { call: CALL, source: Some(source) }
}
