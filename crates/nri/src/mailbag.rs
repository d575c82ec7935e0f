//! Requests that go out together.
//!
//! A plugin that takes many requests at once is woken once for all that are there. Under load
//! several requests have just come from the plugin before and go on to the same next one: they are
//! put into the bag, and sent when all that is ready to run has run.

use std::{mem, sync::Arc};

use parking_lot::Mutex;
use tokio_util::task::TaskTracker;
use ttrpc::Client;

/// Connections that have something to send. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Mailbag {
    waiting: Arc<Mutex<Vec<Client>>>,
    tasks: TaskTracker,
}

impl Mailbag {
    pub(crate) fn new(tasks: TaskTracker) -> Self {
        Self { waiting: Arc::default(), tasks }
    }

    /// What this connection has left to be sent later will be.
    pub(crate) fn put(&self, client: &Client) {
        let mut waiting = self.waiting.lock();
        waiting.push(client.clone());
        if waiting.len() == 1 {
            drop(waiting);
            self.tasks.spawn(self.clone().carry());
        }
    }

    async fn carry(self) {
        tokio::task::yield_now().await;
        let waiting = mem::take(&mut *self.waiting.lock());
        waiting.iter().for_each(Client::flush);
    }
}
