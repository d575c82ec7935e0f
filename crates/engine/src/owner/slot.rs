//! One container, as its pod's owner sees it.

use std::{collections::VecDeque, sync::Arc};

use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{Ask, Expiry, Life, Reply, Turn};
use crate::{attach, error::Result, names::Outcome};

#[derive(Debug)]
pub(super) struct Slot {
    /// Exclusive work is running.
    pub(super) busy: bool,
    /// Exclusive work that waits for its turn, in order.
    pub(super) queue: VecDeque<Ask>,
    /// The stop signal was sent; it is sent once.
    pub(super) signalled: bool,
    pub(super) life: watch::Sender<Life>,
    pub(super) turn: Turn,
    /// Breaks off a start.
    pub(super) evicted: CancellationToken,
    /// There while the work is a checkpoint, and breaks it off.
    pub(super) checkpoint: Option<CancellationToken>,
    /// Who waits for the work that is running.
    pub(super) waiting: Option<Reply<()>>,
    /// Who waits for it to be made.
    pub(super) tell: Option<watch::Sender<Outcome>>,
    pub(super) expiry: Expiry,
    /// Who wants its streams from the first byte on.
    pub(super) attaching: Arc<attach::Queue>,
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            busy: false,
            queue: VecDeque::new(),
            signalled: false,
            life: watch::Sender::new(Life::Lives),
            turn: Turn::default(),
            evicted: CancellationToken::new(),
            checkpoint: None,
            waiting: None,
            tell: None,
            expiry: None,
            attaching: Arc::default(),
        }
    }
}

impl Slot {
    pub(super) fn answer(&mut self, result: Result<()>) {
        if let Some(reply) = self.waiting.take() {
            send(reply, result);
        }
    }
}

/// A caller that went away is fine.
pub(super) fn send<T>(reply: oneshot::Sender<T>, value: T) {
    let _ = reply.send(value);
}
