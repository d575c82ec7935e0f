//! What is in flight, as messages.

use std::time::Duration;

use api_admin::v1::{self, ListStagesResponse};
use base::{Id, time};
use engine::{Engine, Stage};
use tonic::Status;

use crate::streams::Sender;

/// Between two looks. Most steps are shorter, and nobody reads faster.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) fn list(engine: &Engine) -> ListStagesResponse {
    let stages = engine.stages().into_iter().map(|stage| message(engine, stage)).collect();
    ListStagesResponse { stages }
}

/// The list now and at each change, for ever.
pub(crate) async fn watch(
    look: impl Fn() -> ListStagesResponse,
    out: Sender<ListStagesResponse>,
) -> Result<(), Status> {
    let mut told = None;
    loop {
        let now = look();
        if told.as_ref() != Some(&now) {
            if out.send(Ok(now.clone())).await.is_err() {
                return Ok(());
            }
            told = Some(now);
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn message(engine: &Engine, stage: Stage) -> v1::Stage {
    let Stage { id, operation, step, since } = stage;
    v1::Stage {
        id: id.to_string(),
        name: name(engine, id),
        operation: operation.to_owned(),
        step: step.to_owned(),
        since: time::to_unix_nanos(since),
    }
}

/// Objects in the making are not to be seen yet: they have none.
fn name(engine: &Engine, id: Id) -> String {
    let pod_name =
        |pod: &Id| engine.pod(pod.as_str()).map(|view| view.pod.request.name.name.clone());
    if let Ok(name) = pod_name(&id) {
        return name;
    }
    match engine.container(id.as_str()) {
        Ok(container) => {
            let pod = pod_name(&container.pod).unwrap_or_default();
            format!("{pod}/{}", container.request.container.name)
        }
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::sync::mpsc;

    use super::*;

    fn of(count: usize) -> ListStagesResponse {
        ListStagesResponse { stages: vec![v1::Stage::default(); count] }
    }

    #[tokio::test(start_paused = true)]
    async fn only_changes_are_told() {
        let (sender, mut receiver) = mpsc::channel(16);
        let looks = Cell::new(0);
        let counts = [1, 1, 1, 2, 2, 0];
        let look = || {
            let at = looks.replace(looks.get() + 1);
            of(counts[at.min(counts.len() - 1)])
        };
        let _ = tokio::time::timeout(Duration::from_secs(5), watch(look, sender)).await;
        assert!(looks.get() > counts.len());
        let mut told = Vec::new();
        while let Some(message) = receiver.recv().await {
            told.push(message.unwrap());
        }
        assert_eq!(told, [of(1), of(2), of(0)]);
    }
}
