//! The streams of containers whose shim only copies them into pipes: logs and attached
//! clients are served by a log thread of the daemon.
//!
//! ```text
//!   container ── shim ──fifo──> log thread ──> log, attached clients
//! ```
//! The shim holds both ends of an output pipe: while no daemon is there the container can
//! write until the pipe is full, and waits then. A new daemon opens the same pipes.
//!
//! **Invariant:** a container that the shim may know has a record, which tells a new daemon
//! its pipes and its log; and at most one thread reads a pipe.

use std::{
    collections::BTreeSet,
    fs,
    os::{
        fd::OwnedFd,
        unix::{fs::OpenOptionsExt, net::UnixListener},
    },
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use api_shim::{
    start::{ExitRecord, Files, TaskRecord},
    task::v3::{
        CloseIoRequest, CreateTaskRequest, CreateTaskResponse, DeleteRequest, DeleteResponse,
        StateRequest, StateResponse, WaitRequest, WaitResponse,
    },
};
use parking_lot::{Mutex, RwLock};
use prost_types::Any;
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, mknodat},
    io::Errno,
    pipe::fcntl_setpipe_size,
};
use shim_io::{Format, IoError, IoThread, LogFile, Source, Stream};
use sys::cgroup::{Cgroup, Layout, Membership};
use tokio::{sync::oneshot, time::timeout};
use tokio_util::task::TaskTracker;

use super::{events::Ooms, record::TaskFile};
use crate::{
    CreateTask, ExecFifos, ExecStreams, Exit, LogFormat, LogTarget, ShimError, Stdio, TaskState,
    TaskStatus,
    bury::started_at,
    connect::reachable,
    own::{status, time},
    shim::text,
    task::Task,
};

/// How long the end of a container may wait for its last words to reach the log.
const LAST_WORDS: Duration = Duration::from_secs(1);
const INPUT_LIMIT: Duration = Duration::from_secs(10);
/// More room makes fewer switches, and more that can wait for a daemon that is away.
const PIPE_SIZE: usize = 1 << 20;

/// Clones share everything.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    dir: PathBuf,
    /// The task that is the pod.
    sandbox: String,
    io: IoThread,
    ooms: Ooms,
    layout: Option<Arc<Layout>>,
    /// Of the runtime, told with each creation.
    options: Option<Any>,
    /// Whose pipes the thread has.
    known: Mutex<BTreeSet<String>>,
    /// The newest connection.
    task: RwLock<Task>,
    work: TaskTracker,
}

/// What does not change in the life of a daemon.
#[derive(Clone, Debug)]
pub(crate) struct Ground {
    pub(crate) ooms: Ooms,
    pub(crate) layout: Option<Arc<Layout>>,
}

impl Streams {
    /// Reads on from the containers of the pod at `dir`, if there are any.
    pub(crate) fn open(
        dir: &Path,
        sandbox: &str,
        options: Option<Any>,
        ground: Ground,
        task: Task,
    ) -> Result<Self, ShimError> {
        let socket = Files::of(dir).attach;
        let doing = || ShimError::io(format!("listen on {}", socket.display()));
        // Left by a dead daemon.
        super::record::absent_is_fine(fs::remove_file(&socket)).map_err(doing())?;
        let (path, _dir) = reachable(&socket).map_err(doing())?;
        let listener = UnixListener::bind(path).map_err(doing())?;
        let io = IoThread::start(listener, |text| tracing::warn!("{text}")).map_err(io_error)?;
        let inner = Inner {
            dir: dir.to_owned(),
            sandbox: sandbox.to_owned(),
            io,
            ooms: ground.ooms,
            layout: ground.layout,
            options,
            known: Mutex::default(),
            task: RwLock::new(task),
            work: TaskTracker::new(),
        };
        let streams = Self { inner: Arc::new(inner) };
        for (id, file) in TaskFile::all(dir) {
            streams.connect(&id, &file)?;
        }
        Ok(streams)
    }

    pub(crate) fn downgrade(&self) -> Weak<Inner> {
        Arc::downgrade(&self.inner)
    }

    pub(crate) fn upgrade(weak: &Weak<Inner>) -> Option<Self> {
        weak.upgrade().map(|inner| Self { inner })
    }

    /// Reads no more; what was read is in the logs.
    pub(crate) async fn stop(&self) {
        if let Ok(Err(error)) = timeout(LAST_WORDS, self.inner.io.stop()).await {
            tracing::warn!(error = %base::Chain(&error), "end the reading of logs");
        }
    }

    /// After a connection broke.
    pub(crate) fn use_connection(&self, task: Task) {
        *self.inner.task.write() = task;
    }

    /// The newest, while anybody has the pod.
    pub(crate) fn connection(streams: &Weak<Inner>) -> Option<ttrpc::Client> {
        streams.upgrade().map(|inner| inner.task.read().client().clone())
    }

    // === calls ===

    pub(crate) async fn create(
        &self,
        task: &Task,
        limit: Duration,
        wanted: CreateTask,
    ) -> Result<u32, ShimError> {
        let CreateTask { id, bundle, stdio, log, priorities } = wanted;
        check_id(&id)?;
        if let Some(field) = priorities.fields().next() {
            let message = format!("{field}: shims that are not ours cannot set it");
            let kind = base::Kind::Unimplemented;
            return Err(ShimError::Refused { call: "Create", kind, message });
        }
        if TaskFile::read(&self.inner.dir, &id)?.is_some_and(|file| file.task.pid != 0) {
            let message = format!("container {id:?} exists already");
            let kind = base::Kind::AlreadyExists;
            return Err(ShimError::Refused { call: "Create", kind, message });
        }
        let mut file = TaskFile::intended(&bundle, stdio, log);
        self.record(&id, &mut file, 0)?;
        let created = async {
            let silent = id == self.inner.sandbox;
            if !silent {
                make_pipes(&bundle, stdio)?;
                self.connect(&id, &file)?;
            }
            let path =
                |name: Option<&str>| name.map_or(Ok(String::new()), |n| text(bundle.join(n)));
            let [stdin, stdout, stderr] = if silent { [None; 3] } else { pipe_names(stdio) };
            let request = CreateTaskRequest {
                id: id.clone(),
                bundle: text(bundle.clone())?,
                terminal: stdio.tty,
                stdin: path(stdin)?,
                stdout: path(stdout)?,
                stderr: path(stderr)?,
                options: self.inner.options.clone(),
                ..CreateTaskRequest::default()
            };
            task.call::<_, CreateTaskResponse>("Create", limit, &request).await
        };
        match created.await {
            Ok(CreateTaskResponse { pid }) => {
                self.record(&id, &mut file, pid)?;
                Ok(pid)
            }
            // It may be at it still: then the pipes are in use.
            Err(error @ (ShimError::Timeout { .. } | ShimError::Gone { .. })) => Err(error),
            Err(error) if error.kind() == base::Kind::AlreadyExists => Err(error),
            Err(error) => {
                self.forget(&id, &bundle).await;
                Err(error)
            }
        }
    }

    /// With its process, once that is known; 0 before.
    pub(crate) fn record(&self, id: &str, file: &mut TaskFile, pid: u32) -> Result<(), ShimError> {
        if pid != 0 {
            file.task.pid = pid;
            file.task.start_time = started_at(pid).unwrap_or_default();
            file.task.cgroup = self.cgroup_of(pid);
        }
        file.write(&self.inner.dir, id)
    }

    pub(crate) async fn wait(
        &self,
        task: &Task,
        id: &str,
        exec_id: &str,
    ) -> Result<Exit, ShimError> {
        let request = WaitRequest { id: id.to_owned(), exec_id: exec_id.to_owned() };
        let WaitResponse { exit_status, exited_at } = task.wait("Wait", &request).await?;
        let at = time("Wait", exited_at)?;
        let mut exit = Exit { code: exit_status, at, oom: false, log_errors: 0 };
        if exec_id.is_empty() {
            // Before anyone removes the group.
            exit.oom = self.was_oom(id);
            exit.log_errors = self.last_words(id).await;
            self.keep(id, &exit);
        }
        Ok(exit)
    }

    pub(crate) async fn delete(
        &self,
        task: &Task,
        limit: Duration,
        id: &str,
        exec_id: &str,
    ) -> Result<Exit, ShimError> {
        let oom = exec_id.is_empty() && self.was_oom(id);
        let request = DeleteRequest { id: id.to_owned(), exec_id: exec_id.to_owned() };
        let answer: Result<DeleteResponse, _> = task.call("Delete", limit, &request).await;
        let file = match exec_id {
            "" => TaskFile::read(&self.inner.dir, id)?,
            _ => None,
        };
        let Some(file) = file else {
            let DeleteResponse { exit_status, exited_at, .. } = answer?;
            let at = time("Delete", exited_at)?;
            return Ok(Exit { code: exit_status, at, oom: false, log_errors: 0 });
        };
        match answer {
            Ok(DeleteResponse { exit_status, exited_at, .. }) => {
                let at = time("Delete", exited_at)?;
                let log_errors = self.forget(id, &file.task.bundle).await;
                let known = file.task.exit.is_some_and(|exit| exit.oom);
                Ok(Exit { code: exit_status, at, oom: oom || known, log_errors })
            }
            Err(error @ ShimError::NotFound { .. }) => {
                self.forget(id, &file.task.bundle).await;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// All containers on record, or the one asked for; never the sandbox among all.
    pub(crate) async fn states(
        &self,
        task: &Task,
        limit: Duration,
        id: &str,
    ) -> Result<Vec<TaskState>, ShimError> {
        let files = match id {
            "" => TaskFile::all(&self.inner.dir),
            id => TaskFile::read(&self.inner.dir, id)?
                .map(|file| (id.to_owned(), file))
                .into_iter()
                .collect(),
        };
        let mut states = Vec::new();
        for (name, file) in
            files.into_iter().filter(|(name, _)| id == name || *name != self.inner.sandbox)
        {
            let request = StateRequest { id: name.clone(), exec_id: String::new() };
            match task.call::<_, StateResponse>("State", limit, &request).await {
                Ok(answer) => states.push(self.state(name, &file, &answer)?),
                // Recorded before it was created, or after it was deleted.
                Err(ShimError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(states)
    }

    fn state(
        &self,
        id: String,
        file: &TaskFile,
        answer: &StateResponse,
    ) -> Result<TaskState, ShimError> {
        let status = status("State", answer.status())?;
        let exit = match status {
            TaskStatus::Stopped => {
                let at = time("State", answer.exited_at)?;
                let (code, oom) = (answer.exit_status, self.was_oom(&id));
                Some(Exit { code, at, oom, log_errors: 0 })
            }
            _ => None,
        };
        let (bundle, pid) = (file.task.bundle.clone(), answer.pid);
        // Such shims do not tell the processes that were added.
        Ok(TaskState { id, bundle, pid, status, exit, execs: Vec::new() })
    }

    pub(crate) async fn reopen_log(&self, limit: Duration, id: &str) -> Result<(), ShimError> {
        let late = ShimError::Timeout { call: "ReopenLog", limit };
        let reopened = timeout(limit, self.inner.io.reopen(id)).await;
        reopened.map_err(|_| late)?.map_err(io_error)
    }

    /// Some shims simply ignore a shutdown while they have containers.
    pub(crate) fn check_empty(&self) -> Result<(), ShimError> {
        let left = TaskFile::all(&self.inner.dir);
        match left.iter().find(|(id, _)| *id != self.inner.sandbox) {
            None => Ok(()),
            Some((id, _)) => Err(ShimError::Refused {
                call: "Shutdown",
                kind: base::Kind::FailedPrecondition,
                message: format!("container {id:?} is there"),
            }),
        }
    }

    pub(crate) fn close_stdin(&self, id: &str) -> Result<(), ShimError> {
        self.inner.io.close_stdin(id).map_err(io_error)
    }

    // === the end of a container ===

    /// Until what it wrote is in the log. Who holds its streams beyond its end is not waited for.
    async fn last_words(&self, id: &str) -> u64 {
        let io = &self.inner.io;
        let _ = timeout(LAST_WORDS, io.ended(id)).await;
        match timeout(LAST_WORDS, io.drain(id)).await {
            Ok(Ok(errors)) => errors,
            _ => {
                tracing::warn!(container = id, "its log is behind");
                0
            }
        }
    }

    /// Resumes a container that was killed while it was frozen. Only a warning tells of a
    /// failure: the kill itself was done.
    pub(crate) fn thaw(&self, id: &str) {
        let Some(layout) = &self.inner.layout else { return };
        if let Ok(Some(file)) = TaskFile::read(&self.inner.dir, id) {
            thaw(layout, id, &file.task);
        }
    }

    fn was_oom(&self, id: &str) -> bool {
        if self.inner.ooms.has(id) {
            return true;
        }
        let Some(layout) = &self.inner.layout else { return false };
        let Ok(Some(file)) = TaskFile::read(&self.inner.dir, id) else { return false };
        let kills = |path: PathBuf| Cgroup::open(layout, &path).ok()??.oom_kills().ok()?;
        file.task.exit.is_some_and(|exit| exit.oom)
            || file.task.cgroup.and_then(kills).is_some_and(|kills| kills > 0)
    }

    /// For the case that the shim is killed before its exit is collected.
    fn keep(&self, id: &str, exit: &Exit) {
        let Ok(Some(mut file)) = TaskFile::read(&self.inner.dir, id) else { return };
        let at = i64::try_from(exit.at.as_nanosecond()).unwrap_or(i64::MAX);
        file.task.exit = Some(ExitRecord { status: exit.code, at, oom: exit.oom });
        if let Err(error) = file.write(&self.inner.dir, id) {
            tracing::warn!(container = id, error = %base::Chain(&error), "record an exit");
        }
    }

    async fn forget(&self, id: &str, bundle: &Path) -> u64 {
        let errors = match timeout(LAST_WORDS, self.inner.io.finish(id)).await {
            Ok(Ok(errors)) => errors,
            _ => 0,
        };
        self.inner.known.lock().remove(id);
        self.inner.ooms.forget(id);
        for name in PIPES {
            // The bundle goes with the container anyway.
            let _ = fs::remove_file(bundle.join(name));
        }
        if let Err(error) = TaskFile::remove(&self.inner.dir, id) {
            tracing::warn!(container = id, %error, "forget a task");
        }
        errors
    }

    // === pipes ===

    /// Has the thread read the container's pipes, once.
    fn connect(&self, id: &str, file: &TaskFile) -> Result<(), ShimError> {
        let TaskFile { task, stdio, log } = file;
        let [stdin, stdout, stderr] = pipe_names(*stdio);
        let out = stdout.map(|name| task.bundle.join(name)).filter(|path| path.exists());
        // The sandbox has none, and a creation may have been cut off before its pipes.
        let Some(out) = out.filter(|_| self.inner.known.lock().insert(id.to_owned())) else {
            return Ok(());
        };
        let log = log.as_ref().map(open_log).transpose()?;
        // A terminal has no end of input to give.
        let mut source = Source::new(id.to_owned(), stdio.stdin_once && !stdio.tty, log)
            .with_output(Stream::Stdout, open(&out, OFlags::RDONLY)?);
        if let Some(name) = stderr {
            source =
                source.with_output(Stream::Stderr, open(&task.bundle.join(name), OFlags::RDONLY)?);
        }
        if let Some(name) = stdin {
            // Read-write: it opens before the shim does.
            let pipe = open(&task.bundle.join(name), OFlags::RDWR)?;
            source = source.with_input(Some(pipe)).tell_input_end(self.on_input_end(id));
        }
        self.inner.io.add(source).map_err(io_error)
    }

    /// The shim holds the input open too, and is told when it ends.
    fn on_input_end(&self, id: &str) -> oneshot::Sender<()> {
        let (tell, ended) = oneshot::channel();
        let (weak, id) = (self.downgrade(), id.to_owned());
        self.inner.work.spawn(async move {
            // An error means that the container is forgotten.
            if ended.await.is_ok() {
                end_input(&weak, id, String::new()).await;
            }
        });
        tell
    }

    pub(crate) fn of_exec(&self, id: &str, exec_id: &str, fifos: ExecFifos) -> ExecStreams {
        let (streams, ended) = fifos.into_copied();
        let (weak, id, exec_id) = (self.downgrade(), id.to_owned(), exec_id.to_owned());
        if streams.stdin.is_some() {
            self.inner.work.spawn(async move {
                // However it ends.
                let _ = ended.await;
                end_input(&weak, id, exec_id).await;
            });
        }
        streams
    }

    fn cgroup_of(&self, pid: u32) -> Option<PathBuf> {
        let layout = self.inner.layout.as_ref()?;
        let ours = layout.path_of(&Membership::of(std::process::id()).ok()?);
        let path = layout.path_of(&Membership::of(pid).ok()?)?;
        // One that is in nobody's group of its own must not be killed by it.
        (path != Path::new("/") && Some(&path) != ours.as_ref()).then_some(path)
    }
}

/// Resumes the task's cgroup, if it has one and that is frozen.
pub(super) fn thaw(layout: &Layout, id: &str, task: &TaskRecord) {
    let Some(path) = &task.cgroup else { return };
    let thawed = Cgroup::open(layout, path).and_then(|group| group.map_or(Ok(()), |g| g.thaw()));
    if let Err(error) = thawed {
        tracing::warn!(task = id, error = %base::Chain(&error), "failed to thaw a killed task");
    }
}

async fn end_input(streams: &Weak<Inner>, id: String, exec_id: String) {
    let Some(task) = streams.upgrade().map(|inner| inner.task.read().clone()) else { return };
    let request = CloseIoRequest { id, exec_id, stdin: true };
    let closed: Result<(), _> = task.call("CloseIO", INPUT_LIMIT, &request).await;
    if let Err(error) = closed {
        // Most likely it has ended.
        tracing::debug!(container = request.id, error = %base::Chain(&error), "end its input");
    }
}

/// It is a name of files, ours and the shim's.
fn check_id(id: &str) -> Result<(), ShimError> {
    if id.is_empty() || id.starts_with('.') || id.contains(['/', '\0']) {
        let message = format!("{id:?} is no id of a container");
        return Err(ShimError::Refused { call: "Create", kind: base::Kind::Invalid, message });
    }
    Ok(())
}

const PIPES: [&str; 3] = ["stdin", "stdout", "stderr"];

/// With a terminal all output is stdout. Else both outputs: some shims wait for ever for one
/// that is missing.
fn pipe_names(stdio: Stdio) -> [Option<&'static str>; 3] {
    let [stdin, stdout, stderr] = PIPES;
    [stdio.stdin.then_some(stdin), Some(stdout), (!stdio.tty).then_some(stderr)]
}

/// Those that are there stay: a creation that was cut off may use them.
fn make_pipes(bundle: &Path, stdio: Stdio) -> Result<(), ShimError> {
    for path in pipe_names(stdio).into_iter().flatten().map(|name| bundle.join(name)) {
        match mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(ShimError::io(format!("make fifo {}", path.display()))(e)),
        }
    }
    Ok(())
}

fn open(path: &Path, access: OFlags) -> Result<OwnedFd, ShimError> {
    let write = access == OFlags::RDWR;
    let nonblock = OFlags::NONBLOCK.bits().cast_signed();
    let file = fs::OpenOptions::new().read(true).write(write).custom_flags(nonblock).open(path);
    let file = file.map_err(ShimError::io(format!("open fifo {}", path.display())))?;
    // A wish: whoever may not have it has less room.
    let _ = fcntl_setpipe_size(&file, PIPE_SIZE);
    Ok(file.into())
}

fn open_log(log: &LogTarget) -> Result<LogFile, ShimError> {
    let format = match log.format {
        LogFormat::Cri => Format::Cri,
        LogFormat::JsonFile => Format::JsonFile,
    };
    let opened =
        LogFile::open(log.path.clone(), format, log.max_line, |text| tracing::warn!("{text}"));
    opened.map_err(ShimError::io(format!("open log {}", log.path.display())))
}

fn io_error(error: IoError) -> ShimError {
    match error {
        IoError::Busy { .. } => ShimError::Refused {
            call: "Io",
            kind: base::Kind::ResourceExhausted,
            message: error.to_string(),
        },
        IoError::Failed { doing, source } => ShimError::io(doing)(source),
    }
}
