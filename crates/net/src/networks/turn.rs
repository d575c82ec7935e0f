//! One thing at a time per pod, and how a DEL stops the ADD before it.

use std::{collections::HashMap, sync::Arc};

use base::Id;
use parking_lot::Mutex;
use tokio::sync::MutexGuard;
use tokio_util::sync::CancellationToken;

/// The pods something is done for, or waits.
#[derive(Debug)]
pub(super) struct Turns {
    pods: Arc<Pods>,
    /// Stops every ADD.
    end: CancellationToken,
}

type Pods = Mutex<HashMap<Id, Arc<Pod>>>;

#[derive(Debug)]
struct Pod {
    turn: tokio::sync::Mutex<()>,
    /// Given to each ADD; replaced when a DEL cancels it, so that a later ADD is not meant.
    adding: Mutex<CancellationToken>,
    end: CancellationToken,
}

/// A place in the line of one pod. Forgotten with the last of them.
#[derive(Debug)]
pub(super) struct Turn {
    id: Id,
    /// Always there until the turn is dropped.
    pod: Option<Arc<Pod>>,
    pods: Arc<Pods>,
}

impl Turns {
    pub(super) fn new(end: CancellationToken) -> Self {
        Self { pods: Arc::default(), end }
    }

    pub(super) fn of(&self, id: Id) -> Turn {
        let new = || {
            let (turn, adding) = (tokio::sync::Mutex::default(), self.end.child_token().into());
            Arc::new(Pod { turn, adding, end: self.end.clone() })
        };
        let pod = Arc::clone(self.pods.lock().entry(id).or_insert_with(new));
        Turn { id, pod: Some(pod), pods: Arc::clone(&self.pods) }
    }
}

impl Turn {
    /// Cancel safe.
    pub(super) async fn wait(&self) -> MutexGuard<'_, ()> {
        self.pod().turn.lock().await
    }

    /// Cancelled by the next [`Turn::stop_adding`].
    pub(super) fn adding(&self) -> CancellationToken {
        self.pod().adding.lock().clone()
    }

    pub(super) fn stop_adding(&self) {
        let next = self.pod().end.child_token();
        std::mem::replace(&mut *self.pod().adding.lock(), next).cancel();
    }

    fn pod(&self) -> &Pod {
        self.pod.as_ref().expect("taken only when dropped")
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut pods = self.pods.lock();
        drop(self.pod.take());
        // Only the map has it, and only under this lock could another get it.
        if pods.get(&self.id).is_some_and(|pod| Arc::strong_count(pod) == 1) {
            pods.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_at_a_time_per_pod() {
        let turns = Turns::new(CancellationToken::new());
        let (one, other) = (Id::random(), Id::random());
        let (first, second, else_) = (turns.of(one), turns.of(one), turns.of(other));
        let held = first.wait().await;
        assert!(futures_util::FutureExt::now_or_never(second.wait()).is_none());
        assert!(futures_util::FutureExt::now_or_never(else_.wait()).is_some());
        drop(held);
        assert!(futures_util::FutureExt::now_or_never(second.wait()).is_some());
    }

    #[test]
    fn only_earlier_adds_are_stopped() {
        let turns = Turns::new(CancellationToken::new());
        let turn = turns.of(Id::random());
        let before = turn.adding();
        turn.stop_adding();
        let after = turn.adding();
        assert!(before.is_cancelled() && !after.is_cancelled());
        turns.end.cancel();
        assert!(after.is_cancelled());
    }

    #[test]
    fn nothing_is_kept() {
        let turns = Turns::new(CancellationToken::new());
        let id = Id::random();
        let (first, second) = (turns.of(id), turns.of(id));
        drop(first);
        assert_eq!(turns.pods.lock().len(), 1);
        drop(second);
        assert!(turns.pods.lock().is_empty());
    }
}
