//! Commands in running containers.
//!
//! A command has a task of its own, which learns its end and cleans up after it, also when
//! whoever started it went away: then it is killed. When the daemon stops, commands are left as
//! they are: the shim reads their output from then on, and forgets them when they have ended.

mod output;

use std::{sync::Arc, time::Duration};

use base::Id;
use oci::ExecRequest;
use shim_client::{ExecFifos, ExecInput, ExecStreams, ExecTask, Exit, Shim, ShimError};
use tokio::{io::AsyncReadExt, net::unix::pipe::Receiver, sync::oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    error::{EngineError, Result},
    files::{blocking, read_json},
    program,
    record::ContainerRecord,
    shared::Shared,
    view::ExecOutput,
};

pub use output::{ExecPipe, MAX_PIECE};

/// More of a stream is read and thrown away, so that the command can end.
const OUTPUT_LIMIT: usize = 16 << 20;
const SIGKILL: u32 = 9;
/// How long a daemon that stops waits for commands whose output nobody has seen yet: most are
/// probes, and short.
const SYNC_GRACE: Duration = Duration::from_secs(1);

/// Which streams of a command are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecStdio {
    pub stdin: bool,
    pub stdout: bool,
    /// With a terminal there is none: all output is stdout.
    pub stderr: bool,
}

/// A command that runs. Dropping it kills the command, unless the daemon is stopping.
#[derive(Debug)]
pub struct ExecSession {
    /// Dropping it ends the command's input.
    pub stdin: Option<ExecInput>,
    /// Ends with the command, or soon after it if others hold it open.
    pub stdout: Option<ExecPipe>,
    pub stderr: Option<ExecPipe>,
    pub control: ExecControl,
    ended: oneshot::Receiver<Result<Exit>>,
    _abandon: DropGuard,
}

/// The terminal of a command; outlives nothing, may be cloned.
#[derive(Clone, Debug)]
pub struct ExecControl(Arc<Command>);

/// A command in a container, on its way or running.
#[derive(Debug)]
struct Command {
    shared: Arc<Shared>,
    shim: Arc<Shim>,
    container: Arc<ContainerRecord>,
    exec_id: String,
    /// How long it may still take when the daemon stops, before it is left running.
    stop_grace: Duration,
}

/// Starts `request` in a running container.
pub(crate) async fn start(
    shared: &Arc<Shared>,
    container: Arc<ContainerRecord>,
    request: ExecRequest,
    stdio: ExecStdio,
) -> Result<ExecSession> {
    start_with(shared, container, request, stdio, Duration::ZERO).await
}

async fn start_with(
    shared: &Arc<Shared>,
    container: Arc<ContainerRecord>,
    request: ExecRequest,
    stdio: ExecStdio,
    stop_grace: Duration,
) -> Result<ExecSession> {
    if container.phase.pid().is_none() {
        let state = container.phase.to_string();
        let (what, id, action) = ("container", container.id, "run a command");
        return Err(EngineError::State { what, id, state, action });
    }
    let shim = shared.shim(container.pod)?;
    let exec_id = Id::random().to_string();
    let shared_of = Arc::clone(shared);
    let command = Command { shared: shared_of, shim, container, exec_id, stop_grace };
    let command = Arc::new(command);
    let (started, answer) = oneshot::channel();
    let abandoned = CancellationToken::new();
    let guard = abandoned.clone().drop_guard();
    let (done, ended) = oneshot::channel();
    let (running, over) = (Arc::clone(&command), CancellationToken::new());
    let silent = over.clone();
    // In a task of its own from the first step: a caller that goes away leaves nothing.
    shared.tasks.spawn(async move {
        match running.start(request, stdio).await {
            Ok(streams) => {
                let _ = started.send(Ok(streams));
                let end = running.end(abandoned).await;
                over.cancel();
                let is_left = matches!(end, Err(EngineError::CommandLeft { .. }));
                let _ = done.send(end);
                if !is_left {
                    running.delete().await;
                }
            }
            Err(error) => drop(started.send(Err(error))),
        }
    });
    let ExecStreams { stdin, stdout, stderr } =
        answer.await.map_err(|_| EngineError::Closing)??;
    let control = ExecControl(command);
    let pipe = |receiver: Option<Receiver>| receiver.map(|r| ExecPipe::new(r, silent.clone()));
    let (stdout, stderr) = (pipe(stdout), pipe(stderr));
    Ok(ExecSession { stdin, stdout, stderr, control, ended, _abandon: guard })
}

/// See [`crate::Engine::exec_sync`].
pub(crate) async fn run_to_end(
    shared: &Arc<Shared>,
    container: Arc<ContainerRecord>,
    request: ExecRequest,
    limit: Option<Duration>,
) -> Result<ExecOutput> {
    let id = container.id;
    let stdio = ExecStdio { stdin: false, stdout: true, stderr: !request.tty };
    let run = async {
        let mut session = start_with(shared, container, request, stdio, SYNC_GRACE).await?;
        let streams = (session.stdout.take(), session.stderr.take());
        let read = async { tokio::join!(read_limited(streams.0), read_limited(streams.1)) };
        let mut read = std::pin::pin!(read);
        let mut output = None;
        let mut ended = std::pin::pin!(session.wait());
        let code = loop {
            tokio::select! {
                biased;
                code = ended.as_mut() => break code?,
                both = read.as_mut(), if output.is_none() => output = Some(both),
            }
        };
        // Children that the command left may hold the streams open for ever.
        let (stdout, stderr) = match output {
            Some(both) => both,
            None => {
                tokio::time::timeout(shared.config.limits.drain, read).await.unwrap_or_default()
            }
        };
        Ok(ExecOutput { stdout, stderr, code })
    };
    match limit {
        None => run.await,
        Some(limit) => tokio::time::timeout(limit, run).await.unwrap_or_else(|_| {
            Err(EngineError::Timeout { doing: format!("command in container {id}"), limit })
        }),
    }
}

impl ExecSession {
    /// Its exit code, once it has ended; [`EngineError::CommandLeft`] when the daemon stops before
    /// that. Cancel safe.
    pub async fn wait(&mut self) -> Result<i32> {
        let exit = (&mut self.ended).await.map_err(|_| EngineError::Closing)??;
        Ok(i32::try_from(exit.code).unwrap_or(crate::phase::UNKNOWN_CODE))
    }
}

impl ExecControl {
    pub async fn resize(&self, width: u16, height: u16) -> Result<()> {
        let Command { shim, container, exec_id, .. } = &*self.0;
        Ok(shim.resize(container.id.as_str(), exec_id, width, height).await?)
    }
}

impl Command {
    async fn start(&self, request: ExecRequest, stdio: ExecStdio) -> Result<ExecStreams> {
        let (id, exec_id) = (self.container.id.as_str(), self.exec_id.as_str());
        let tty = request.tty;
        let program = request.command.first().cloned().unwrap_or_default();
        let process_json = self.process(request).await?;
        let dir = self.shared.layout.exec(&self.container.pod);
        let name = &exec_id[..Id::SHORT_LEN];
        let fifos = ExecFifos::create(&dir, name, stdio.stdin, stdio.stdout, stdio.stderr)?;
        self.shim
            .exec(ExecTask {
                id: id.to_owned(),
                exec_id: exec_id.to_owned(),
                process_json,
                tty,
                stdin: fifos.stdin.clone(),
                stdout: fifos.stdout.clone(),
                stderr: fifos.stderr.clone(),
            })
            .await?;
        if let Err(error) = self.shim.start_exec(id, exec_id).await {
            self.delete().await;
            return Err(program::explain(error, &program));
        }
        Ok(self.shim.exec_streams(id, exec_id, fifos)?)
    }

    async fn process(&self, request: ExecRequest) -> Result<Vec<u8>> {
        let path = self.shared.layout.spec(&self.container.pod, &self.container.id);
        let shared = Arc::clone(&self.shared);
        blocking(move || {
            let spec = read_json(&path)?;
            let accounts = oci::Accounts::default();
            let process = oci::exec_process(&spec, &request, &accounts, &shared.config.host)?;
            Ok(serde_json::to_vec(&process).expect("a process is JSON"))
        })
        .await
    }

    /// Its end; that of one nobody waits for is brought about.
    async fn end(&self, abandoned: CancellationToken) -> Result<Exit> {
        let (id, exec_id) = (self.container.id.as_str(), self.exec_id.as_str());
        let mut ended = std::pin::pin!(self.shim.wait_exec(id, exec_id));
        tokio::select! {
            biased;
            exit = ended.as_mut() => return Ok(exit?),
            () = self.stopping() => {}
            () = abandoned.cancelled() => {}
        }
        if self.shared.stopping.is_cancelled() {
            return Err(EngineError::CommandLeft { container: self.container.id });
        }
        match self.shim.kill_exec(id, exec_id, SIGKILL).await {
            Ok(()) | Err(ShimError::NotFound { .. }) => {}
            Err(error) => {
                tracing::warn!(container = id, error = %base::Chain(&error), "kill a command");
            }
        }
        let limit = self.shared.config.limits.kill;
        let doing = || format!("the end of a command in container {id}");
        let ended = tokio::time::timeout(limit, ended).await;
        Ok(ended.map_err(|_| EngineError::Timeout { doing: doing(), limit })??)
    }

    /// Resolves when the daemon stops and the command has had its grace.
    async fn stopping(&self) {
        self.shared.stopping.cancelled().await;
        tokio::time::sleep(self.stop_grace).await;
    }

    async fn delete(&self) {
        let deleted = self.shim.delete_exec(self.container.id.as_str(), &self.exec_id).await;
        match deleted {
            Ok(_) | Err(ShimError::NotFound { .. } | ShimError::Gone { .. }) => {}
            Err(error) => tracing::warn!(error = %base::Chain(&error), "delete a command"),
        }
    }
}

async fn read_limited(stream: Option<ExecPipe>) -> Vec<u8> {
    let Some(mut stream) = stream.map(|stream| stream.pipe) else { return Vec::new() };
    let mut all = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    // An error of a pipe is its end as far as the output goes.
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        let room = OUTPUT_LIMIT - all.len();
        all.extend_from_slice(&buffer[..count.min(room)]);
    }
    all
}
