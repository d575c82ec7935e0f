//! Commands in running containers.

use std::{sync::Arc, time::Duration};

use base::Id;
use oci::{ExecRequest, Spec};
use shim_client::{ExecFifos, ExecTask, Shim, ShimError};
use tokio::{io::AsyncReadExt, net::unix::pipe::Receiver, sync::oneshot};
use tokio_util::sync::CancellationToken;

use crate::{
    error::{EngineError, Result},
    files::blocking,
    record::ContainerRecord,
    shared::Shared,
    view::ExecOutput,
};

/// More of a stream is read and thrown away, so that the command can end.
const OUTPUT_LIMIT: usize = 16 << 20;
const SIGKILL: u32 = 9;

/// A command in a container, on its way or running.
struct Command {
    shared: Arc<Shared>,
    shim: Arc<Shim>,
    container: Arc<ContainerRecord>,
    exec_id: String,
}

/// See [`crate::Engine::exec_sync`]. The command is a task of its own, which ends it and
/// cleans up also when nobody waits any longer.
pub(crate) async fn run_to_end(
    shared: &Arc<Shared>,
    container: Arc<ContainerRecord>,
    request: ExecRequest,
    limit: Option<Duration>,
) -> Result<ExecOutput> {
    if container.phase.pid().is_none() {
        let state = container.phase.to_string();
        let (what, id, action) = ("container", container.id, "run a command");
        return Err(EngineError::State { what, id, state, action });
    }
    let shim = shared.shim(container.pod)?;
    let exec_id = Id::random().to_string();
    let command = Command { shared: Arc::clone(shared), shim, container, exec_id };
    let (done, answer) = oneshot::channel();
    let abandoned = CancellationToken::new();
    let _abandon = abandoned.clone().drop_guard();
    shared.tasks.spawn(async move {
        let result = command.run(request, limit, abandoned).await;
        let _ = done.send(result);
    });
    answer.await.map_err(|_| EngineError::Closing)?
}

impl Command {
    async fn run(
        &self,
        request: ExecRequest,
        limit: Option<Duration>,
        abandoned: CancellationToken,
    ) -> Result<ExecOutput> {
        let (id, exec_id) = (self.container.id.as_str(), self.exec_id.as_str());
        let process_json = self.process(request).await?;
        let dir = self.shared.layout.exec(&self.container.pod);
        let fifos = ExecFifos::create(&dir, &exec_id[..Id::SHORT_LEN], false, true, true)?;
        self.shim
            .exec(ExecTask {
                id: id.to_owned(),
                exec_id: exec_id.to_owned(),
                process_json,
                tty: false,
                stdin: None,
                stdout: fifos.stdout.clone(),
                stderr: fifos.stderr.clone(),
            })
            .await?;
        if let Err(error) = self.shim.start_exec(id, exec_id).await {
            self.delete().await;
            return Err(error.into());
        }
        let streams = fifos.into_streams()?;
        let read =
            async { tokio::join!(read_limited(streams.stdout), read_limited(streams.stderr)) };
        let output = self.wait(limit, abandoned, read).await;
        self.delete().await;
        output
    }

    async fn process(&self, request: ExecRequest) -> Result<Vec<u8>> {
        let path = self.shared.layout.spec(&self.container.pod, &self.container.id);
        let shared = Arc::clone(&self.shared);
        blocking(move || {
            let json = std::fs::read(&path).map_err(EngineError::io("read", &path))?;
            let spec: Spec = serde_json::from_slice(&json).map_err(|e| {
                EngineError::failed(format!("parse {}", path.display()), base::Kind::Internal, &e)
            })?;
            let process =
                oci::exec_process(&spec, &request, &oci::Accounts::default(), &shared.config.host)?;
            Ok(serde_json::to_vec(&process).expect("a process is JSON"))
        })
        .await
    }

    /// Its end, or ours: a command over its limit, or that nobody waits for, is killed.
    async fn wait(
        &self,
        limit: Option<Duration>,
        abandoned: CancellationToken,
        read: impl Future<Output = (Vec<u8>, Vec<u8>)>,
    ) -> Result<ExecOutput> {
        let (id, exec_id) = (self.container.id.as_str(), self.exec_id.as_str());
        let expiry = async {
            match limit {
                Some(limit) => tokio::time::sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        let mut read = std::pin::pin!(read);
        let mut output = None;
        let mut ended = std::pin::pin!(self.shim.wait_exec(id, exec_id));
        let mut expiry = std::pin::pin!(expiry);
        let exit = loop {
            tokio::select! {
                biased;
                exit = ended.as_mut() => break exit?,
                both = read.as_mut(), if output.is_none() => output = Some(both),
                () = expiry.as_mut() => return Err(self.kill(limit).await),
                () = abandoned.cancelled() => return Err(self.kill(None).await),
            }
        };
        // Children that the command left may hold the streams open for ever.
        let drain = self.shared.config.limits.drain;
        let (stdout, stderr) = match output {
            Some(both) => both,
            None => tokio::time::timeout(drain, read).await.unwrap_or_default(),
        };
        Ok(ExecOutput { stdout, stderr, code: i32::try_from(exit.code).unwrap_or(255) })
    }

    async fn kill(&self, limit: Option<Duration>) -> EngineError {
        let (id, exec_id) = (self.container.id.as_str(), self.exec_id.as_str());
        match self.shim.kill_exec(id, exec_id, SIGKILL).await {
            Ok(()) | Err(ShimError::NotFound { .. }) => {
                // Returns at once: nothing survives SIGKILL.
                let _ = tokio::time::timeout(
                    self.shared.config.limits.kill,
                    self.shim.wait_exec(id, exec_id),
                )
                .await;
            }
            Err(error) => {
                tracing::warn!(container = id, error = %base::Chain(&error), "kill a command")
            }
        }
        let doing = format!("command in container {id}");
        match limit {
            Some(limit) => EngineError::Timeout { doing, limit },
            None => EngineError::Closing,
        }
    }

    async fn delete(&self) {
        let deleted = self.shim.delete_exec(self.container.id.as_str(), &self.exec_id).await;
        match deleted {
            Ok(_) | Err(ShimError::NotFound { .. } | ShimError::Gone { .. }) => {}
            Err(error) => tracing::warn!(error = %base::Chain(&error), "delete a command"),
        }
    }
}

async fn read_limited(stream: Option<Receiver>) -> Vec<u8> {
    let Some(mut stream) = stream else { return Vec::new() };
    let mut all = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    // An error of a pipe is its end as far as the output goes.
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        let room = OUTPUT_LIMIT - all.len();
        all.extend_from_slice(&buffer[..count.min(room)]);
    }
    all
}
