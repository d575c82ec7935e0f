//! From a bundle to a running process.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use shim_client::{CreateTask, LogFormat, LogTarget, Shim, ShimError, Stdio};
use tokio_util::sync::CancellationToken;

use super::priorities;
use crate::{
    attach,
    error::{EngineError, Result},
    files::{blocking, read_json},
    owner::Turn,
    program,
    record::ContainerRecord,
    shared::Shared,
};

pub(crate) const OPERATION: &str = "start-container";
pub(crate) const STAGES: [&str; 4] = ["create-task", "plugins", "start-task", "started"];

/// For a task that is not to be started to be gone.
pub(crate) const CUT_OFF: Duration = Duration::from_secs(5);

/// A process that runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Started {
    pub(crate) pid: u32,
    pub(crate) at: Timestamp,
}

/// Creates the task, asks plugins, connects who waits for its streams, and starts it; a task
/// that is not started is deleted again.
pub(crate) async fn start(
    shared: Arc<Shared>,
    container: Arc<ContainerRecord>,
    attaching: Arc<attach::Queue>,
    turn: Turn,
    evicted: CancellationToken,
) -> Result<Started> {
    let stage = shared.stages.enter(container.id, OPERATION);
    let shim = shared.shim(container.pod)?;
    let id = container.id.as_str();
    stage.at(STAGES[0]);
    let pid = create(&shared, &shim, &container, &turn).await?;
    let started = async {
        stage.at(STAGES[1]);
        shared.plugins.start(&shared, &container, pid, &evicted).await?;
        attaching.connect(&shim, id).await;
        stage.at(STAGES[2]);
        match shim.start(id).await {
            Ok(pid) => Ok(pid),
            Err(error) => Err(refused(&shared, &container, error).await),
        }
    };
    match started.await {
        Ok(pid) => {
            stage.at(STAGES[3]);
            Ok(Started { pid, at: Timestamp::now() })
        }
        Err(error) => {
            // What cannot be deleted now is deleted with the container.
            if let Err(error) = discard(&shim, id, CUT_OFF).await {
                tracing::warn!(container = id, error = %base::Chain(&error), "delete a failed task");
            }
            Err(error)
        }
    }
}

/// Names the plugins that adjusted a container in what the OCI runtime says against it.
fn blame(shared: &Shared, container: &ContainerRecord, error: EngineError) -> EngineError {
    match &error {
        EngineError::Program { .. } => {}
        EngineError::Shim(refusal) if matches!(**refusal, ShimError::Refused { .. }) => {}
        _ => return error,
    }
    let told = shared.stories.get(&container.id);
    let plugins = told.iter().flat_map(|told| told.story.adjusters().map(str::to_owned));
    let plugins: Vec<_> = plugins.collect();
    match plugins.is_empty() {
        true => error,
        false => EngineError::Adjusted { plugins, refusal: Box::new(error) },
    }
}

/// The task, whose process does not run yet. Limits do not change while the spec is read.
async fn create(
    shared: &Shared,
    shim: &Shim,
    container: &ContainerRecord,
    turn: &Turn,
) -> Result<u32> {
    let _turn = turn.lock().await;
    match shim.create(task(shared, container)).await {
        // Of an earlier attempt that was cut off; nobody has started it.
        Err(ShimError::Refused { kind: base::Kind::AlreadyExists, .. }) => {
            Ok(shim.state(container.id.as_str()).await?.pid)
        }
        Ok(pid) => Ok(pid),
        Err(error) => Err(refused(shared, container, error).await),
    }
}

/// Says of a program that could not be executed what is wrong with it, and who had a hand in it.
async fn refused(shared: &Shared, container: &ContainerRecord, error: ShimError) -> EngineError {
    let path = shared.layout.spec(&container.pod, &container.id);
    let spec = blocking(move || read_json::<oci::Spec>(&path)).await;
    let args = spec.ok().and_then(|spec| spec.process().as_ref()?.args().clone());
    let error = match args.as_deref() {
        Some([program, ..]) => program::explain(error, program),
        _ => error.into(),
    };
    blame(shared, container, error)
}

/// Ends and deletes a task that nobody has started. One that is still being created is ended as
/// soon as there is something to be ended. Idempotent.
pub(crate) async fn discard(shim: &Shim, id: &str, limit: Duration) -> Result<(), ShimError> {
    const SIGKILL: u32 = 9;
    const AGAIN: Duration = Duration::from_millis(20);
    let gone = |done: Result<(), ShimError>| match done {
        Err(ShimError::NotFound { .. }) => Ok(()),
        done => done,
    };
    let discarded = async {
        loop {
            gone(shim.kill(id, SIGKILL, true).await)?;
            // Its end is told a moment after the kill, and only then can it be deleted.
            if let Ok(ended) = tokio::time::timeout(AGAIN, shim.wait(id)).await {
                gone(ended.map(drop))?;
                return gone(shim.delete(id).await.map(drop));
            }
        }
    };
    let late = ShimError::Timeout { call: "Delete", limit };
    tokio::time::timeout(limit, discarded).await.unwrap_or(Err(late))
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
        priorities: priorities::of(&container.made.priorities),
    }
}
