//! The streams of a container, also of one that is not started yet.
//!
//! ```text
//!   attach_from_start ──> queue of the container ──taken by its start──┐
//!   start: create task ──> everybody in the queue is connected ──> start task
//! ```
//! **Invariant:** who was in the queue when the start began misses no byte.

use std::time::Duration;

use base::Id;
use futures_util::future::join_all;
use parking_lot::Mutex;
use shim_client::{AttachIo, Shim};
use tokio::sync::oneshot;

use crate::{
    error::{EngineError, Result},
    exec::ExecStdio,
    record::ContainerRecord,
};

/// Who may wait for one container's start.
const MOST: usize = 16;
/// What a start grants a shim to connect those who wait. Usually it is a millisecond.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a container may still say to a client whose input has ended, and who leaves with it.
pub const LAST_WORDS: Duration = Duration::from_millis(500);

impl ContainerRecord {
    /// Whether the end of a client's input ends its attach: unless the container itself sees
    /// that end, nothing else would.
    pub fn leaves_at_end_of_input(&self) -> bool {
        let asked = &self.request.container;
        asked.tty || !asked.stdin_once
    }
}

/// Somebody who wants the streams.
#[derive(Debug)]
pub(crate) struct Waiter {
    stdio: ExecStdio,
    reply: oneshot::Sender<Result<AttachIo>>,
}

/// An attach that waits for the start of its container. Dropping it gives up.
#[derive(Debug)]
pub struct Attaching {
    id: Id,
    answer: oneshot::Receiver<Result<AttachIo>>,
}

/// Those who wait for one container's start.
#[derive(Debug)]
pub(crate) struct Queue(Mutex<Option<Vec<Waiter>>>);

impl Default for Queue {
    fn default() -> Self {
        Self(Mutex::new(Some(Vec::new())))
    }
}

impl Attaching {
    /// The streams, once the container is about to start; of one that is removed instead,
    /// an error of kind `NotFound`.
    pub async fn attached(self) -> Result<AttachIo> {
        let gone = || EngineError::NotFound { what: "container", id: self.id.to_string() };
        self.answer.await.unwrap_or_else(|_| Err(gone()))
    }
}

impl Waiter {
    pub(crate) fn new(id: Id, stdio: ExecStdio) -> (Self, Attaching) {
        let (reply, answer) = oneshot::channel();
        (Self { stdio, reply }, Attaching { id, answer })
    }

    /// Connects it now.
    pub(crate) async fn attach(self, shim: &Shim, id: &str) {
        let ExecStdio { stdin, stdout, stderr } = self.stdio;
        let attached = tokio::time::timeout(PATIENCE, shim.attach(id, stdin, stdout, stderr)).await;
        let attached = match attached {
            Ok(attached) => attached.map_err(EngineError::from),
            Err(_) => {
                let doing = format!("attach to container {id}");
                Err(EngineError::Timeout { doing, limit: PATIENCE })
            }
        };
        self.answer(attached);
    }

    fn answer(self, attached: Result<AttachIo>) {
        // One who gave up is fine.
        let _ = self.reply.send(attached);
    }
}

impl Queue {
    /// Gives the waiter back if the start has passed the point.
    pub(crate) fn push(&self, waiter: Waiter) -> Option<Waiter> {
        let mut waiting = self.0.lock();
        let Some(waiters) = waiting.as_mut() else { return Some(waiter) };
        waiters.retain(|waiter| !waiter.reply.is_closed());
        if waiters.len() == MOST {
            waiter.answer(Err(EngineError::Failed {
                doing: "attach to a container that is not started".to_owned(),
                why: format!("{MOST} wait for its start already"),
                kind: base::Kind::ResourceExhausted,
            }));
        } else {
            waiters.push(waiter);
        }
        None
    }

    fn take(&self) -> Vec<Waiter> {
        self.0.lock().take().unwrap_or_default()
    }

    /// Connects all, of a task that is created and not started.
    pub(crate) async fn connect(&self, shim: &Shim, id: &str) {
        join_all(self.take().into_iter().map(|waiter| waiter.attach(shim, id))).await;
    }

    /// There will be no start.
    pub(crate) fn refuse(&self, error: &EngineError) {
        self.take().into_iter().for_each(|waiter| waiter.answer(Err(error.clone())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiter() -> (Waiter, Attaching) {
        Waiter::new(Id::random(), ExecStdio::default())
    }

    #[tokio::test]
    async fn the_queue_is_bounded_and_forgets_who_gave_up() {
        let queue = Queue::default();
        let waiters: Vec<_> = (0..MOST).map(|_| waiter()).collect();
        let attaching: Vec<_> = waiters
            .into_iter()
            .map(|(waiter, attaching)| {
                assert!(queue.push(waiter).is_none());
                attaching
            })
            .collect();
        let (one_more, refused) = waiter();
        assert!(queue.push(one_more).is_none());
        let error = refused.attached().await.unwrap_err();
        assert_eq!(error.kind(), base::Kind::ResourceExhausted);
        drop(attaching);
        let (again, attaching) = waiter();
        assert!(queue.push(again).is_none());
        queue.refuse(&EngineError::Closing);
        assert_eq!(attaching.attached().await.unwrap_err().kind(), base::Kind::Unavailable);
        let (late, _) = waiter();
        assert!(queue.push(late).is_some(), "the start has passed");
    }
}
