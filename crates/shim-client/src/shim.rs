//! A connected shim, and every call it takes.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use api_shim::{
    attach::Hello,
    name,
    runc::CheckpointOptions,
    start::Files,
    task::v3::{
        CheckpointTaskRequest, CloseIoRequest, ExecProcessRequest, KillRequest, PauseRequest,
        PidsRequest, PidsResponse, ResizePtyRequest, ResumeRequest, ShutdownRequest, StartRequest,
        StartResponse, UpdateTaskRequest,
    },
};
use futures_util::future::select_all;
use prost::Message;
use prost_types::Any;
use tokio::io::unix::AsyncFd;

use crate::{
    AttachIo, CheckpointPaths, CreateTask, ExecFifos, ExecStreams, ExecTask, Exit, Limits,
    Namespaces, ShimError, TaskState,
    foreign::{Pipes, SandboxService, Streams},
    own::Io,
    task::Task,
};

const SIGKILL: u32 = 9;

/// A shim we talk to. Clones share the connection.
///
/// Every call is cancel safe: the shim finishes what it began, whoever still waits for it.
#[derive(Clone, Debug)]
pub struct Shim {
    inner: Arc<Inner>,
    limits: Limits,
}

#[derive(Debug)]
struct Inner {
    info: ShimInfo,
    dir: PathBuf,
    task: Task,
    side: Side,
    /// The pod ends with the first of them: its shim, and what else keeps it.
    keepers: Vec<Arc<AsyncFd<OwnedFd>>>,
}

/// Who keeps exits and writes logs.
#[derive(Debug)]
pub(crate) enum Side {
    /// Our shim.
    Own(Io),
    /// The daemon, for a shim that only copies streams into pipes; and the sandbox, where the
    /// shim has one of its own.
    Foreign(Streams, Option<SandboxService>),
}

/// Where the shim and its pod are.
#[derive(Clone, Debug)]
pub struct ShimInfo {
    pub pid: u32,
    /// PID 1 of the shared PID namespace, in the numbers of the host.
    pub pod_pid: Option<u32>,
    pub address: String,
    /// As pinned.
    pub namespaces: Namespaces,
}

impl Shim {
    pub(crate) fn new(
        dir: &Path,
        info: ShimInfo,
        task: Task,
        side: Side,
        keepers: Vec<OwnedFd>,
    ) -> Result<Self, ShimError> {
        let watched = keepers.into_iter().map(|keeper| watch(keeper).map(Arc::new));
        let keepers = watched.collect::<io::Result<_>>();
        let keepers = keepers.map_err(ShimError::io("watch the shim"))?;
        let inner = Inner { info, dir: dir.to_owned(), task, side, keepers };
        Ok(Self { inner: Arc::new(inner), limits: Limits::default() })
    }

    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    pub fn info(&self) -> &ShimInfo {
        &self.inner.info
    }

    /// The connection is gone; the shim may live. See [`crate::connect`] and [`Shim::died`].
    pub fn is_disconnected(&self) -> bool {
        self.inner.task.is_closed()
    }

    /// The sandbox of a shim that has one of its own.
    pub fn sandbox(&self) -> Option<&SandboxService> {
        match &self.inner.side {
            Side::Foreign(_, service) => service.as_ref(),
            Side::Own(_) => None,
        }
    }

    /// Resolves when the shim's process has ended, also for one we did not start, or the sandbox
    /// where that is another.
    pub fn died(&self) -> impl Future<Output = ()> + Send + 'static {
        let end = |keeper: Arc<AsyncFd<OwnedFd>>| async move {
            // An error means that this runtime is ending, and then nobody waits for us.
            if keeper.readable().await.is_err() {
                std::future::pending().await
            }
        };
        let ends: Vec<_> = self.inner.keepers.iter().cloned().map(|k| Box::pin(end(k))).collect();
        let sandbox = match &self.inner.side {
            Side::Foreign(streams, Some(service)) => {
                Some(Sandbox { streams: streams.downgrade(), id: service.id.clone() })
            }
            _ => None,
        };
        async move {
            tokio::select! {
                _ = select_all(ends) => {}
                () = end_of(sandbox) => {}
            }
        }
    }

    // === containers ===

    /// Returns the process that waits to be started.
    pub async fn create(&self, task: CreateTask) -> Result<u32, ShimError> {
        let limit = self.limits.runtime;
        match &self.inner.side {
            Side::Own(_) => Io::create(&self.inner.task, limit, task).await,
            Side::Foreign(streams, _) => streams.create(&self.inner.task, limit, task).await,
        }
    }

    pub async fn start(&self, id: &str) -> Result<u32, ShimError> {
        self.start_process(id, "").await
    }

    /// Without limit: ends with the container, or with [`ShimError::Gone`].
    pub async fn wait(&self, id: &str) -> Result<Exit, ShimError> {
        self.wait_process(id, "").await
    }

    /// `all`: every process of the container, not only its first.
    pub async fn kill(&self, id: &str, signal: u32, all: bool) -> Result<(), ShimError> {
        self.kill_process(id, "", signal, all).await
    }

    /// Takes a stopped container out of the runtime; its exit is collected with this.
    pub async fn delete(&self, id: &str) -> Result<Exit, ShimError> {
        self.delete_process(id, "").await
    }

    pub async fn state(&self, id: &str) -> Result<TaskState, ShimError> {
        let states = self.states("State", id).await?;
        let missing =
            || ShimError::NotFound { call: "State", message: format!("no container {id:?}") };
        states.into_iter().next().ok_or_else(missing)
    }

    pub async fn list(&self) -> Result<Vec<TaskState>, ShimError> {
        self.states("List", "").await
    }

    pub async fn pids(&self, id: &str) -> Result<Vec<u32>, ShimError> {
        let request = PidsRequest { id: id.to_owned() };
        let answer: PidsResponse =
            self.inner.task.call("Pids", self.limits.quick, &request).await?;
        Ok(answer.processes.into_iter().map(|process| process.pid).collect())
    }

    pub async fn pause(&self, id: &str) -> Result<(), ShimError> {
        let request = PauseRequest { id: id.to_owned() };
        self.inner.task.call("Pause", self.limits.quick, &request).await
    }

    pub async fn resume(&self, id: &str) -> Result<(), ShimError> {
        let request = ResumeRequest { id: id.to_owned() };
        self.inner.task.call("Resume", self.limits.quick, &request).await
    }

    /// Writes the memory of a container to files; it runs on. `limit` is for all of it.
    pub async fn checkpoint(
        &self,
        id: &str,
        paths: CheckpointPaths,
        limit: Duration,
    ) -> Result<(), ShimError> {
        let options = CheckpointOptions {
            // Else what has a connection or a lock could not be written at all.
            open_tcp: true,
            file_locks: true,
            work_path: text(paths.work)?,
            ..CheckpointOptions::default()
        };
        let options = Some(any(name::CHECKPOINT_OPTIONS, options.encode_to_vec()));
        let path = text(paths.images)?;
        let request = CheckpointTaskRequest { id: id.to_owned(), path, options };
        self.inner.task.call("Checkpoint", limit, &request).await
    }

    /// OCI `LinuxResources` as JSON. All or nothing: a value the kernel refuses takes back
    /// those before it.
    pub async fn update(&self, id: &str, resources_json: &[u8]) -> Result<(), ShimError> {
        let resources = Some(any(name::OCI_RESOURCES, resources_json.to_vec()));
        let request =
            UpdateTaskRequest { id: id.to_owned(), resources, ..UpdateTaskRequest::default() };
        self.inner.task.call("Update", self.limits.runtime, &request).await
    }

    /// After the log file was moved away: the next line goes to a new one.
    pub async fn reopen_log(&self, id: &str) -> Result<(), ShimError> {
        let limit = self.limits.quick;
        match &self.inner.side {
            Side::Own(io) => io.reopen_log(limit, id).await,
            Side::Foreign(streams, _) => streams.reopen_log(limit, id).await,
        }
    }

    /// Joins the container's streams, from now on. Works on a stopped container too, whose
    /// output has then simply ended.
    pub async fn attach(
        &self,
        id: &str,
        stdin: bool,
        stdout: bool,
        stderr: bool,
    ) -> Result<AttachIo, ShimError> {
        let (call, limit) = ("Attach", self.limits.quick);
        let hello = Hello { id: id.to_owned(), stdin, stdout, stderr };
        let socket = Files::of(&self.inner.dir).attach;
        let joined = AttachIo::join(&socket, &hello);
        let timeout = ShimError::Timeout { call, limit };
        tokio::time::timeout(limit, joined).await.unwrap_or(Err(timeout))
    }

    // === processes added to a container ===

    /// Only makes it known; [`Shim::start_exec`] runs it.
    pub async fn exec(&self, task: ExecTask) -> Result<(), ShimError> {
        let path = |path: Option<PathBuf>| path.map_or(Ok(String::new()), text);
        let request = ExecProcessRequest {
            id: task.id,
            exec_id: task.exec_id,
            terminal: task.tty,
            stdin: path(task.stdin)?,
            stdout: path(task.stdout)?,
            stderr: path(task.stderr)?,
            spec: Some(any(name::OCI_PROCESS, task.process_json)),
        };
        self.inner.task.call("Exec", self.limits.quick, &request).await
    }

    pub async fn start_exec(&self, id: &str, exec_id: &str) -> Result<u32, ShimError> {
        self.start_process(id, exec_id).await
    }

    /// Our ends of the pipes of an exec that has been started.
    pub fn exec_streams(
        &self,
        id: &str,
        exec_id: &str,
        fifos: ExecFifos,
    ) -> Result<ExecStreams, ShimError> {
        match &self.inner.side {
            Side::Own(_) => fifos.into_streams(),
            Side::Foreign(streams, _) => Ok(streams.of_exec(id, exec_id, fifos)),
        }
    }

    /// Without limit, see [`Shim::wait`].
    pub async fn wait_exec(&self, id: &str, exec_id: &str) -> Result<Exit, ShimError> {
        self.wait_process(id, exec_id).await
    }

    pub async fn kill_exec(&self, id: &str, exec_id: &str, signal: u32) -> Result<(), ShimError> {
        self.kill_process(id, exec_id, signal, false).await
    }

    pub async fn delete_exec(&self, id: &str, exec_id: &str) -> Result<Exit, ShimError> {
        self.delete_process(id, exec_id).await
    }

    /// The terminal of an exec, or with an empty `exec_id` of the container.
    pub async fn resize(
        &self,
        id: &str,
        exec_id: &str,
        width: u16,
        height: u16,
    ) -> Result<(), ShimError> {
        let request = ResizePtyRequest {
            id: id.to_owned(),
            exec_id: exec_id.to_owned(),
            width: width.into(),
            height: height.into(),
        };
        self.inner.task.call("ResizePty", self.limits.quick, &request).await
    }

    /// The process sees the end of its input. An empty `exec_id` means the container.
    pub async fn close_stdin(&self, id: &str, exec_id: &str) -> Result<(), ShimError> {
        if let (Side::Foreign(streams, _), "") = (&self.inner.side, exec_id) {
            return streams.close_stdin(id);
        }
        let (id, exec_id) = (id.to_owned(), exec_id.to_owned());
        let request = CloseIoRequest { id, exec_id, stdin: true };
        self.inner.task.call("CloseIO", self.limits.quick, &request).await
    }

    // === the pod ===

    /// Ends PID 1, releases the namespaces and ends the shim. Refused while it has
    /// containers that were not deleted. [`Shim::died`] tells when it is over.
    pub async fn shutdown(&self) -> Result<(), ShimError> {
        if let Side::Foreign(streams, service) = &self.inner.side {
            streams.check_empty()?;
            if let Some(service) = service {
                service.stop(self.limits.runtime).await?;
                return service.shutdown(self.limits.runtime).await;
            }
        }
        let request = ShutdownRequest { id: String::new(), now: false };
        self.inner.task.call("Shutdown", self.limits.quick, &request).await
    }

    // === what containers and execs have in common ===

    async fn start_process(&self, id: &str, exec_id: &str) -> Result<u32, ShimError> {
        let request = StartRequest { id: id.to_owned(), exec_id: exec_id.to_owned() };
        let started: StartResponse =
            self.inner.task.call("Start", self.limits.runtime, &request).await?;
        Ok(started.pid)
    }

    async fn wait_process(&self, id: &str, exec_id: &str) -> Result<Exit, ShimError> {
        match &self.inner.side {
            Side::Own(io) => io.wait(id, exec_id).await,
            Side::Foreign(streams, _) => streams.wait(&self.inner.task, id, exec_id).await,
        }
    }

    async fn kill_process(
        &self,
        id: &str,
        exec_id: &str,
        signal: u32,
        all: bool,
    ) -> Result<(), ShimError> {
        let request = KillRequest { id: id.to_owned(), exec_id: exec_id.to_owned(), signal, all };
        let killed = self.inner.task.call("Kill", self.limits.quick, &request).await;
        match &self.inner.side {
            // Some OCI runtimes leave what they kill frozen, and then it does not end.
            Side::Foreign(streams, _) if signal == SIGKILL && exec_id.is_empty() => {
                streams.thaw(id);
            }
            _ => {}
        }
        killed
    }

    async fn delete_process(&self, id: &str, exec_id: &str) -> Result<Exit, ShimError> {
        let (task, limit) = (&self.inner.task, self.limits.runtime);
        match &self.inner.side {
            Side::Own(io) => io.delete(limit, id, exec_id).await,
            Side::Foreign(streams, _) => streams.delete(task, limit, id, exec_id).await,
        }
    }

    async fn states(&self, call: &'static str, id: &str) -> Result<Vec<TaskState>, ShimError> {
        let limit = self.limits.quick;
        match &self.inner.side {
            Side::Own(io) => io.states(call, limit, id).await,
            Side::Foreign(streams, _) => streams.states(&self.inner.task, limit, id).await,
        }
    }
}

/// As the shim tells it. With a connection that breaks nothing has ended: the next one is asked.
async fn end_of(sandbox: Option<Sandbox>) {
    const AGAIN: Duration = Duration::from_secs(1);
    let Some(Sandbox { streams, id }) = sandbox else { return std::future::pending().await };
    while let Some(client) = Streams::connection(&streams) {
        match SandboxService::new(client, &id).wait().await {
            Ok(()) | Err(ShimError::NotFound { .. }) => return,
            Err(ShimError::Gone { .. }) => tokio::time::sleep(AGAIN).await,
            Err(error) => {
                tracing::warn!(sandbox = id, error = %base::Chain(&error), "its end is not told");
                break;
            }
        }
    }
    std::future::pending().await
}

/// Whose end is waited for, whatever becomes of a connection.
struct Sandbox {
    streams: Weak<Pipes>,
    id: String,
}

#[expect(deprecated, reason = "its unsafe twin is for descriptors that others may close")]
fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, tokio::io::Interest::READABLE)
}

pub(crate) fn garbled(call: &'static str, what: &str) -> ShimError {
    let source = io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    ShimError::Io { doing: format!("understand the answer to {call}"), source }
}

pub(crate) fn any(type_url: &str, value: Vec<u8>) -> Any {
    Any { type_url: type_url.to_owned(), value }
}

/// The protocol has text where the system has bytes.
pub(crate) fn text(path: PathBuf) -> Result<String, ShimError> {
    path.into_os_string().into_string().map_err(|path| ShimError::Io {
        doing: format!("name {} to the shim", path.display()),
        source: io::Error::new(io::ErrorKind::InvalidInput, "the path is not UTF-8"),
    })
}
