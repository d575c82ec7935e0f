//! DEL until it succeeds.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use base::{Chain, Id};
use parking_lot::Mutex;
use tokio::time::sleep;

use super::Shared;
use crate::{error::NetError, record::Phase};

/// A pod that is to be detached and could not be yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    pub id: Id,
    /// How often DEL failed since this daemon runs.
    pub failures: u32,
    /// Of the last one. Empty: not tried yet.
    pub error: String,
}

/// One per pod, each with a task that tries.
#[derive(Debug, Default)]
pub(super) struct Retries {
    pods: Mutex<BTreeMap<Id, Leftover>>,
}

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

impl Retries {
    pub(super) fn list(&self) -> Vec<Leftover> {
        self.pods.lock().values().cloned().collect()
    }

    /// Whether it is new, and wants a task.
    fn insert(&self, id: Id) -> bool {
        let mut new = false;
        self.pods.lock().entry(id).or_insert_with(|| {
            new = true;
            Leftover { id, failures: 0, error: String::new() }
        });
        new
    }

    pub(super) fn failed(&self, id: &Id, error: &NetError) {
        if let Some(leftover) = self.pods.lock().get_mut(id) {
            leftover.failures += 1;
            leftover.error = Chain(error).to_string();
        }
    }

    pub(super) fn done(&self, id: &Id) {
        self.pods.lock().remove(id);
    }

    fn contains(&self, id: &Id) -> bool {
        self.pods.lock().contains_key(id)
    }
}

/// 1 s, 2 s, 4 s… 5 min.
fn longer(pause: Duration) -> Duration {
    if pause.is_zero() { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) }
}

impl Shared {
    /// Lists a pod as left over and tries its DEL after `pause`, and again.
    pub(super) fn retry(self: &Arc<Self>, id: Id, pause: Duration) {
        if self.retries.insert(id) {
            let task = Arc::clone(self).keep_trying(id, pause);
            self.tasks.spawn(self.stop.clone().run_until_cancelled_owned(task));
        }
    }

    pub(super) fn retry_later(self: &Arc<Self>, id: Id) {
        self.retry(id, FIRST_PAUSE);
    }

    /// Dropped when the daemon ends, in a pause or in a DEL: the record stays.
    async fn keep_trying(self: Arc<Self>, id: Id, mut pause: Duration) {
        loop {
            sleep(pause).await;
            pause = longer(pause);
            let turn = self.turns.of(id);
            let _held = turn.wait().await;
            // Somebody else's DEL may have succeeded meanwhile, and even an ADD.
            let record = self.records.get(&id).filter(|record| record.phase != Phase::Attached);
            let Some(record) = record.filter(|_| self.retries.contains(&id)) else {
                return self.retries.done(&id);
            };
            match self.clear(&record).await {
                Ok(()) => {
                    tracing::info!(%id, "a pod left over is detached from its networks");
                    return;
                }
                Err(error) => {
                    let error = Chain(&error).to_string();
                    tracing::warn!(%id, error, ?pause, "a pod stays on its networks");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit() {
        let mut pauses = vec![Duration::ZERO];
        for _ in 0..12 {
            pauses.push(longer(*pauses.last().unwrap()));
        }
        let seconds: Vec<_> = pauses.iter().map(Duration::as_secs).collect();
        assert_eq!(seconds, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
    }
}
