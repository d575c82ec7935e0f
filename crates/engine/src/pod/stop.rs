//! Ending a pod: its containers, then its keeper, then its network.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use shim_client::{Buried, Shim, ShimError};
use tokio::sync::watch;

use crate::{
    controller,
    error::{EngineError, Result},
    network,
    owner::Life,
    record::PodRecord,
    shared::Shared,
};

pub(crate) const OPERATION: &str = "stop-pod";
pub(crate) const STAGES: [&str; 5] = ["kill", "shim", "plugins", "network", "stopped"];

const SIGKILL: u32 = 9;

/// Containers that were running when the stop began, and the news of their exits.
pub(crate) type Running = Vec<(String, watch::Receiver<Life>)>;

/// Kills what runs, waits until the exits are on record, then ends the keeper; with one that
/// does not answer, its containers end too, as is told. The network namespace lives until
/// the pod is off its networks. Idempotent; not cancel safe.
pub(crate) async fn stop(
    shared: Arc<Shared>,
    pod: Arc<PodRecord>,
    running: Running,
) -> Result<Vec<Buried>> {
    let stage = shared.stages.enter(pod.id, OPERATION);
    if let Some(shim) = shared.live.shim(pod.id) {
        stage.at(STAGES[0]);
        let limit = shared.config.limits.kill;
        tokio::select! {
            emptied = empty(&pod, &shim, running, limit) => emptied?,
            () = shim.died() => {}
        }
    }
    stage.at(STAGES[1]);
    let buried = controller::bury(&shared, &pod).await?;
    shared.live.drop_shim(pod.id);
    stage.at(STAGES[2]);
    shared.plugins.stop_pod(&shared, &pod).await?;
    stage.at(STAGES[3]);
    network::detach(&shared, &pod, shared.config.limits.detach).await;
    if let Err(error) = network::release(&shared, &pod).await {
        // The removal tries again, and insists.
        tracing::warn!(pod = %pod.id, error = %base::Chain(&error), "release its network");
    }
    stage.at(STAGES[4]);
    Ok(buried)
}

/// Ends the containers in good order. That of one whose shim does not answer is the burial.
async fn empty(pod: &PodRecord, shim: &Shim, running: Running, limit: Duration) -> Result<()> {
    let kills = join_all(running.iter().map(|(id, _)| shim.kill(id, SIGKILL, true))).await;
    for error in kills.iter().filter_map(|kill| kill.as_ref().err()) {
        // Its end, not this call, is what counts: it may have ended by itself.
        tracing::debug!(pod = %pod.id, error = %base::Chain(error), "kill");
        if matches!(error, ShimError::Timeout { .. } | ShimError::Gone { .. }) {
            tracing::warn!(pod = %pod.id, "its shim does not answer: ended with its containers");
            return Ok(());
        }
    }
    let ended = tokio::time::timeout(limit, all_ended(running)).await;
    ended.map_err(|_| EngineError::Timeout {
        doing: format!("the end of the containers of pod {}", pod.id),
        limit,
    })?;
    if tokio::time::timeout(limit, delete_all(shim)).await.is_err() {
        tracing::warn!(pod = %pod.id, "deleting its tasks takes too long: they are buried");
    }
    Ok(())
}

/// Those that just ended are being deleted already; to end the shim meanwhile would leave an
/// OCI runtime at work in a directory that is to go.
async fn delete_all(shim: &Shim) {
    let tasks = shim.list().await.unwrap_or_default();
    let deleted = tasks.iter().map(|task| shim.delete(&task.id));
    for error in join_all(deleted).await.into_iter().filter_map(std::result::Result::err) {
        if !matches!(error, ShimError::NotFound { .. }) {
            tracing::debug!(error = %base::Chain(&error), "delete a task");
        }
    }
}

async fn all_ended(running: Running) {
    for (_, mut exited) in running {
        // An error means that its owner is gone, and nobody will tell any more.
        let _ = exited.wait_for(|life| *life >= Life::Ended).await;
    }
}
