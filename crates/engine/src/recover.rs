//! What an earlier daemon left: finished, undone or taken over.
//!
//! Every pod is looked at on its own and at the same time as the others. One that cannot be
//! made sense of is kept and said; it delays nobody and stops nobody.

use std::{sync::Arc, time::Duration};

use base::{Chain, Kind};
use jiff::Timestamp;
use shim_client::{Shim, TaskState, TaskStatus};
use tokio::task::JoinSet;

use crate::{
    container::{MakeContainer, root::HeldRoot, start},
    controller::{self, Controller, Keeper},
    error::Result,
    owner::{Begin, Owner, Turn},
    phase::{ContainerEvent, ContainerPhase, PodEvent, PodPhase, Reason},
    pod::MakePod,
    record::{ContainerRecord, PodRecord},
    shared::Shared,
    steps,
};

/// A CNI program that hangs must not keep the daemon from serving; its work is done later.
const DETACH: Duration = Duration::from_secs(1);

pub(crate) async fn recover(shared: &Arc<Shared>) {
    let mut work = JoinSet::new();
    for pod in shared.pods.list() {
        let shared = Arc::clone(shared);
        work.spawn(async move {
            let id = pod.id;
            if let Err(error) = recover_pod(&shared, pod).await {
                tracing::error!(pod = %id, error = %Chain(&error), "recover");
            }
        });
    }
    while work.join_next().await.is_some() {}
}

async fn recover_pod(shared: &Arc<Shared>, pod: Arc<PodRecord>) -> Result<()> {
    for container in shared.containers_of(pod.id) {
        if let ContainerPhase::Making { step } = &container.phase {
            undo_container(shared, &pod, &container, step).await?;
        }
    }
    if let PodPhase::Making { step } = &pod.phase {
        return undo_pod(shared, &pod, step).await;
    }
    let taken = take_over(shared, &pod).await;
    // It gets an owner all the same: somebody must answer for it, and try again.
    let shim = taken.unwrap_or_else(|error| {
        tracing::error!(pod = %pod.id, error = %Chain(&error), "take over");
        None
    });
    let pod = shared.pods.get(&pod.id).unwrap_or(pod);
    restore_names(shared, &pod);
    let removing = pod.phase == PodPhase::Removing;
    Owner::spawn(shared, Arc::clone(&pod), Begin::Recovered { shim });
    if removing {
        let (reply, _) = tokio::sync::oneshot::channel();
        let ask = crate::owner::Message::Ask(crate::owner::Ask::RemovePod { reply });
        let _ = shared.owner(pod.id)?.send(ask).await;
    }
    Ok(())
}

fn restore_names(shared: &Shared, pod: &PodRecord) {
    shared.pod_names.restore(&pod.request.name.to_string(), pod.id, pod.delivered);
    for container in shared.containers_of(pod.id) {
        shared.container_names.restore(&container.name, container.id, container.delivered);
    }
}

async fn undo_pod(shared: &Arc<Shared>, pod: &Arc<PodRecord>, step: &str) -> Result<()> {
    let mut plan = MakePod::new(shared, pod, DETACH);
    match steps::undo_from(&mut plan, step).await.into_iter().next() {
        Some(error) => Err(error),
        None => shared.pods.delete(&pod.id).await.map(drop).map_err(Into::into),
    }
}

async fn undo_container(
    shared: &Arc<Shared>,
    pod: &Arc<PodRecord>,
    container: &ContainerRecord,
    step: &str,
) -> Result<()> {
    let mut plan = MakeContainer::new(shared, pod, container.clone(), Turn::default());
    match steps::undo_from(&mut plan, step).await.into_iter().next() {
        Some(error) => Err(error),
        None => shared.containers.delete(&container.id).await.map(drop).map_err(Into::into),
    }
}

/// Connects to the pod's shim, or finds out how its containers ended without it.
async fn take_over(shared: &Arc<Shared>, pod: &Arc<PodRecord>) -> Result<Option<Arc<Shim>>> {
    if !matches!(pod.phase, PodPhase::Ready | PodPhase::Lost { .. }) {
        return Ok(None);
    }
    match Keeper::of(shared, pod).connect(pod).await {
        Ok(shim) => {
            let tasks = shim.list().await?;
            for container in shared.containers_of(pod.id) {
                let task = tasks.iter().find(|task| task.id == container.id.as_str());
                reconcile(shared, &shim, &container, task).await?;
            }
            Ok(Some(shim))
        }
        Err(error) if matches!(error.kind(), Kind::NotFound | Kind::Unavailable) => {
            tracing::warn!(pod = %pod.id, error = %Chain(&error), "its shim is gone");
            bury(shared, pod).await?;
            Ok(None)
        }
        // It is there and does not answer: nobody can say what its containers do.
        Err(error) => {
            tracing::error!(pod = %pod.id, error = %Chain(&error), "its shim does not answer");
            for container in shared.containers_of(pod.id) {
                if container.phase.is_live() {
                    advance(shared, &container, &ContainerEvent::Doubt).await?;
                }
            }
            Ok(None)
        }
    }
}

async fn bury(shared: &Arc<Shared>, pod: &PodRecord) -> Result<()> {
    let buried = controller::bury(shared, pod).await?;
    for container in shared.containers_of(pod.id) {
        if !container.phase.is_live() {
            continue;
        }
        let exit = buried.iter().find(|b| b.id == container.id.as_str()).and_then(|b| b.exit);
        let event = match exit {
            Some(exit) => ended(&exit),
            None => ContainerEvent::Vanished { at: Timestamp::now(), reason: Reason::ShimLost },
        };
        advance(shared, &container, &event).await?;
    }
    let phase = pod.phase.on(&PodEvent::Lost { at: Timestamp::now() })?;
    shared.pods.put(PodRecord { phase, ..pod.clone() }).await?;
    Ok(())
}

/// Brings a record in line with what the shim knows.
async fn reconcile(
    shared: &Shared,
    shim: &Shim,
    container: &ContainerRecord,
    task: Option<&TaskState>,
) -> Result<()> {
    let created = task.is_some_and(|task| task.status == TaskStatus::Created);
    // Created and never started: the start is to be asked for again.
    if created && container.phase == ContainerPhase::Starting {
        let root = HeldRoot::of(shared.layout.rootfs(&container.pod, &container.id))?;
        start::discard(shim, container.id.as_str(), start::CUT_OFF).await?;
        root.map_or(Ok(()), HeldRoot::put_back)?;
        return advance(shared, container, &ContainerEvent::NotStarted).await;
    }
    match told(&container.phase, task) {
        Some(event) => advance(shared, container, &event).await,
        None => Ok(()),
    }
}

/// What a container's task says to the one who lost sight of it.
pub(crate) fn told(phase: &ContainerPhase, task: Option<&TaskState>) -> Option<ContainerEvent> {
    let now = Timestamp::now();
    let event = match (task.map(|task| task.status), phase) {
        (None, ContainerPhase::Starting) => ContainerEvent::NotStarted,
        (None, phase) if phase.is_live() => {
            ContainerEvent::Vanished { at: now, reason: Reason::Unknown }
        }
        (Some(TaskStatus::Running | TaskStatus::Paused), phase) if phase.is_live() => {
            let pid = task.map_or(0, |task| task.pid);
            ContainerEvent::Started { pid, at: now }
        }
        (Some(TaskStatus::Stopped), phase) if phase.is_live() => {
            match task.and_then(|task| task.exit) {
                Some(exit) => ended(&exit),
                None => ContainerEvent::Vanished { at: now, reason: Reason::Unknown },
            }
        }
        _ => return None,
    };
    Some(event)
}

fn ended(exit: &shim_client::Exit) -> ContainerEvent {
    let code = i32::try_from(exit.code).unwrap_or(crate::phase::UNKNOWN_CODE);
    ContainerEvent::Exited { code, at: exit.at, oom: exit.oom }
}

async fn advance(
    shared: &Shared,
    container: &ContainerRecord,
    event: &ContainerEvent,
) -> Result<()> {
    shared.containers.put(container.on(event)?).await?;
    Ok(())
}

/// Containers whose pod is not on record belong to nobody. Plugins hear of their end.
pub(crate) async fn forget_orphans(shared: &Arc<Shared>) {
    for container in shared.containers.list() {
        if shared.pods.get(&container.pod).is_some() {
            continue;
        }
        let removed =
            crate::container::remove::remove(Arc::clone(shared), Arc::clone(&container)).await;
        if let Err(error) = removed {
            tracing::error!(container = %container.id, error = %Chain(&error), "remove an orphan");
        }
    }
}
