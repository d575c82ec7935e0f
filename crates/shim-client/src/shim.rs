//! A connected shim, and every call it takes.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use api_shim::{
    attach::Hello,
    longshore::{self as wire, CreateOptions, IoClient, ListRequest, ReopenLogRequest},
    name,
    process::Status,
    start::{Bootstrap, Files},
    task::v3::{
        CloseIoRequest, CreateTaskRequest, DeleteRequest, ExecProcessRequest, KillRequest,
        PauseRequest, PidsRequest, ResizePtyRequest, ResumeRequest, ShutdownRequest, StartRequest,
        TaskClient, UpdateTaskRequest, WaitRequest,
    },
};
use jiff::Timestamp;
use prost::Message;
use prost_types::Any;
use tokio::io::unix::AsyncFd;
use ttrpc::Context;

use crate::{
    AttachIo, CreateTask, ExecTask, Exit, Limits, LogFormat, LogTarget, Namespaces, ShimError,
    TaskState, TaskStatus,
};

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
    task: TaskClient,
    io: IoClient,
    pidfd: Arc<AsyncFd<OwnedFd>>,
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
        bootstrap: Bootstrap,
        client: ttrpc::Client,
        pidfd: OwnedFd,
    ) -> Result<Self, ShimError> {
        let pidfd = watch(pidfd).map_err(ShimError::io("watch the shim"))?;
        let info = ShimInfo {
            pid: bootstrap.pid,
            pod_pid: bootstrap.pod_pid,
            address: bootstrap.address,
            namespaces: bootstrap.namespaces,
        };
        let inner = Inner {
            info,
            dir: dir.to_owned(),
            task: TaskClient::new(client.clone()),
            io: IoClient::new(client),
            pidfd: Arc::new(pidfd),
        };
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
        self.inner.task.connection().is_closed()
    }

    /// Resolves when the shim's process has ended, also for one we did not start.
    pub fn died(&self) -> impl Future<Output = ()> + Send + 'static {
        let pidfd = Arc::clone(&self.inner.pidfd);
        async move {
            // An error means that this runtime is ending, and then nobody waits for us.
            if pidfd.readable().await.is_err() {
                std::future::pending().await
            }
        }
    }

    // === containers ===

    /// Returns the process that waits to be started.
    pub async fn create(&self, task: CreateTask) -> Result<u32, ShimError> {
        let CreateTask { id, bundle, stdio, log } = task;
        let options = CreateOptions {
            stdin: stdio.stdin,
            stdin_once: stdio.stdin_once,
            log: log.map(log_to_wire).transpose()?,
        };
        let request = CreateTaskRequest {
            id,
            bundle: text(bundle)?,
            terminal: stdio.tty,
            options: Some(any(name::CREATE_OPTIONS, options.encode_to_vec())),
            ..CreateTaskRequest::default()
        };
        let (call, limit) = ("Create", self.limits.runtime);
        let created = self.inner.task.create(&Context::timeout(limit), &request).await;
        created.map(|response| response.pid).map_err(|e| ShimError::of_call(call, limit, e))
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
        let (call, limit) = ("Pids", self.limits.quick);
        let request = PidsRequest { id: id.to_owned() };
        let response = self.inner.task.pids(&Context::timeout(limit), &request).await;
        let response = response.map_err(|e| ShimError::of_call(call, limit, e))?;
        Ok(response.processes.into_iter().map(|process| process.pid).collect())
    }

    pub async fn pause(&self, id: &str) -> Result<(), ShimError> {
        let (call, limit) = ("Pause", self.limits.quick);
        let request = PauseRequest { id: id.to_owned() };
        let done = self.inner.task.pause(&Context::timeout(limit), &request).await;
        done.map_err(|e| ShimError::of_call(call, limit, e)).map(drop)
    }

    pub async fn resume(&self, id: &str) -> Result<(), ShimError> {
        let (call, limit) = ("Resume", self.limits.quick);
        let request = ResumeRequest { id: id.to_owned() };
        let done = self.inner.task.resume(&Context::timeout(limit), &request).await;
        done.map_err(|e| ShimError::of_call(call, limit, e)).map(drop)
    }

    /// OCI `LinuxResources` as JSON. All or nothing: a value the kernel refuses takes back
    /// those before it.
    pub async fn update(&self, id: &str, resources_json: &[u8]) -> Result<(), ShimError> {
        let (call, limit) = ("Update", self.limits.runtime);
        let resources = Some(any(name::OCI_RESOURCES, resources_json.to_vec()));
        let request =
            UpdateTaskRequest { id: id.to_owned(), resources, ..UpdateTaskRequest::default() };
        let done = self.inner.task.update(&Context::timeout(limit), &request).await;
        done.map_err(|e| ShimError::of_call(call, limit, e)).map(drop)
    }

    /// After the log file was moved away: the next line goes to a new one.
    pub async fn reopen_log(&self, id: &str) -> Result<(), ShimError> {
        let (call, limit) = ("ReopenLog", self.limits.quick);
        let request = ReopenLogRequest { id: id.to_owned() };
        let done = self.inner.io.reopen_log(&Context::timeout(limit), &request).await;
        done.map_err(|e| ShimError::of_call(call, limit, e)).map(drop)
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
        let (call, limit) = ("Exec", self.limits.quick);
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
        let done = self.inner.task.exec(&Context::timeout(limit), &request).await;
        done.map_err(|e| ShimError::of_call(call, limit, e)).map(drop)
    }

    pub async fn start_exec(&self, id: &str, exec_id: &str) -> Result<u32, ShimError> {
        self.start_process(id, exec_id).await
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
        let (call, limit) = ("ResizePty", self.limits.quick);
        let request = ResizePtyRequest {
            id: id.to_owned(),
            exec_id: exec_id.to_owned(),
            width: width.into(),
            height: height.into(),
        };
        let done = self.inner.task.resize_pty(&Context::timeout(limit), &request).await;
        done.map_err(|e| ShimError::of_call(call, limit, e)).map(drop)
    }

    /// The process sees the end of its input. An empty `exec_id` means the container.
    pub async fn close_stdin(&self, id: &str, exec_id: &str) -> Result<(), ShimError> {
        let (call, limit) = ("CloseIO", self.limits.quick);
        let (id, exec_id) = (id.to_owned(), exec_id.to_owned());
        let request = CloseIoRequest { id, exec_id, stdin: true };
        let done = self.inner.task.close_io(&Context::timeout(limit), &request).await;
        done.map_err(|e| ShimError::of_call(call, limit, e)).map(drop)
    }

    // === the pod ===

    /// Ends PID 1, releases the namespaces and ends the shim. Refused while it has
    /// containers that were not deleted. [`Shim::died`] tells when it is over.
    pub async fn shutdown(&self) -> Result<(), ShimError> {
        let (call, limit) = ("Shutdown", self.limits.quick);
        let request = ShutdownRequest { id: String::new(), now: false };
        let done = self.inner.task.shutdown(&Context::timeout(limit), &request).await;
        done.map_err(|e| ShimError::of_call(call, limit, e)).map(drop)
    }

    // === what containers and execs have in common ===

    async fn start_process(&self, id: &str, exec_id: &str) -> Result<u32, ShimError> {
        let (call, limit) = ("Start", self.limits.runtime);
        let request = StartRequest { id: id.to_owned(), exec_id: exec_id.to_owned() };
        let started = self.inner.task.start(&Context::timeout(limit), &request).await;
        started.map(|response| response.pid).map_err(|e| ShimError::of_call(call, limit, e))
    }

    async fn wait_process(&self, id: &str, exec_id: &str) -> Result<Exit, ShimError> {
        let request = WaitRequest { id: id.to_owned(), exec_id: exec_id.to_owned() };
        let exit = self.inner.io.wait(&Context::new(), &request).await;
        exit_from_wire("Wait", exit.map_err(|e| ShimError::of_call("Wait", Duration::MAX, e))?)
    }

    async fn kill_process(
        &self,
        id: &str,
        exec_id: &str,
        signal: u32,
        all: bool,
    ) -> Result<(), ShimError> {
        let (call, limit) = ("Kill", self.limits.quick);
        let (id, exec_id) = (id.to_owned(), exec_id.to_owned());
        let request = KillRequest { id, exec_id, signal, all };
        let done = self.inner.task.kill(&Context::timeout(limit), &request).await;
        done.map_err(|e| ShimError::of_call(call, limit, e)).map(drop)
    }

    async fn delete_process(&self, id: &str, exec_id: &str) -> Result<Exit, ShimError> {
        let (call, limit) = ("Delete", self.limits.runtime);
        let request = DeleteRequest { id: id.to_owned(), exec_id: exec_id.to_owned() };
        let exit = self.inner.io.delete(&Context::timeout(limit), &request).await;
        exit_from_wire(call, exit.map_err(|e| ShimError::of_call(call, limit, e))?)
    }

    async fn states(&self, call: &'static str, id: &str) -> Result<Vec<TaskState>, ShimError> {
        let limit = self.limits.quick;
        let request = ListRequest { id: id.to_owned(), exec_id: String::new() };
        let response = self.inner.io.list(&Context::timeout(limit), &request).await;
        let response = response.map_err(|e| ShimError::of_call(call, limit, e))?;
        response.tasks.into_iter().map(|task| state_from_wire(call, task)).collect()
    }
}

#[expect(deprecated, reason = "its unsafe twin is for descriptors that others may close")]
fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, tokio::io::Interest::READABLE)
}

fn log_to_wire(log: LogTarget) -> Result<wire::Log, ShimError> {
    let format = match log.format {
        LogFormat::Cri => wire::log::Format::Cri,
        LogFormat::JsonFile => wire::log::Format::JsonFile,
    };
    let max_line = u32::try_from(log.max_line).unwrap_or(u32::MAX);
    Ok(wire::Log { path: text(log.path)?, format: format.into(), max_line })
}

fn state_from_wire(call: &'static str, task: wire::TaskInfo) -> Result<TaskState, ShimError> {
    let status = match task.status() {
        Status::Created => TaskStatus::Created,
        Status::Running => TaskStatus::Running,
        Status::Paused | Status::Pausing => TaskStatus::Paused,
        Status::Stopped => TaskStatus::Stopped,
        Status::Unknown => return Err(garbled(call, "task without a status")),
    };
    Ok(TaskState {
        id: task.id,
        bundle: task.bundle.into(),
        pid: task.pid,
        status,
        exit: task.exit.map(|exit| exit_from_wire(call, exit)).transpose()?,
        execs: task.execs,
    })
}

fn exit_from_wire(call: &'static str, exit: wire::Exit) -> Result<Exit, ShimError> {
    let at = exit.at.and_then(|at| Timestamp::new(at.seconds, at.nanos).ok());
    Ok(Exit {
        code: exit.status,
        at: at.ok_or_else(|| garbled(call, "exit without a time"))?,
        oom: exit.oom,
        log_errors: exit.log_errors,
    })
}

fn garbled(call: &'static str, what: &str) -> ShimError {
    let source = io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    ShimError::Io { doing: format!("understand the answer to {call}"), source }
}

fn any(type_url: &str, value: Vec<u8>) -> Any {
    Any { type_url: type_url.to_owned(), value }
}

/// The protocol has text where the system has bytes.
fn text(path: PathBuf) -> Result<String, ShimError> {
    path.into_os_string().into_string().map_err(|path| ShimError::Io {
        doing: format!("name {} to the shim", path.display()),
        source: io::Error::new(io::ErrorKind::InvalidInput, "the path is not UTF-8"),
    })
}
