//! From a bundle to a running process.

use std::sync::Arc;

use jiff::Timestamp;
use shim_client::{CreateTask, LogFormat, LogTarget, Shim, ShimError, Stdio};

use crate::{
    error::{EngineError, Result},
    record::ContainerRecord,
    shared::Shared,
};

pub(crate) const OPERATION: &str = "start-container";
pub(crate) const STAGES: [&str; 3] = ["create-task", "start-task", "started"];

/// A process that runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Started {
    pub(crate) pid: u32,
    pub(crate) at: Timestamp,
}

/// Creates the task and starts it; a task that cannot be started is deleted again.
pub(crate) async fn start(shared: Arc<Shared>, container: Arc<ContainerRecord>) -> Result<Started> {
    let stage = shared.stages.enter(container.id, OPERATION);
    let shim = shared.shim(container.pod)?;
    let id = container.id.as_str();
    stage.at(STAGES[0]);
    match shim.create(task(&shared, &container)).await {
        // Of an earlier attempt that was cut off; nobody has started it.
        Err(ShimError::Refused { kind: base::Kind::AlreadyExists, .. }) => {}
        created => drop(created?),
    }
    stage.at(STAGES[1]);
    match shim.start(id).await {
        Ok(pid) => {
            stage.at(STAGES[2]);
            Ok(Started { pid, at: Timestamp::now() })
        }
        Err(error) => {
            discard(&shim, id).await;
            Err(EngineError::from(error))
        }
    }
}

/// What cannot be deleted now is deleted with the container.
async fn discard(shim: &Shim, id: &str) {
    const SIGKILL: u32 = 9;
    let _ = shim.kill(id, SIGKILL, true).await;
    if let Err(error) = shim.delete(id).await {
        tracing::warn!(container = id, error = %base::Chain(&error), "delete a failed task");
    }
}

fn task(shared: &Shared, container: &ContainerRecord) -> CreateTask {
    let request = &container.request.container;
    CreateTask {
        id: container.id.to_string(),
        bundle: shared.layout.bundle(&container.pod, &container.id),
        stdio: Stdio { stdin: request.stdin, stdin_once: request.stdin_once, tty: request.tty },
        log: container.log_path.as_ref().map(|path| LogTarget {
            path: path.clone(),
            format: LogFormat::Cri,
            max_line: shared.config.max_log_line,
        }),
    }
}
