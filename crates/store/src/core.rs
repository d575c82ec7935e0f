//! What the handles and the two threads share.
//!
//! **Lock order:** `db` before `order` before the rows of a table. No lock is held while
//! anybody waits for a queue.

use std::{any::Any, collections::BTreeMap, fmt, path::PathBuf, sync::Arc};

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Semaphore, watch};

use crate::{
    db::{Database, quarantine::Quarantined},
    error::StoreError,
    feed::Seq,
    sync::{self, Syncer},
    table::EndFeeds,
};

pub(crate) struct Core {
    pub(crate) dir: PathBuf,
    /// The writing connection. Taken for one commit by the writer, for one table by a
    /// load, for the change of WAL by `store-sync`; gone when the writer has ended.
    pub(crate) db: Mutex<Option<Database>>,
    pub(crate) order: Order,
    pub(crate) syncer: Syncer,
    pub(crate) tables: Mutex<BTreeMap<&'static str, OpenTable>>,
    pub(crate) quarantined: Mutex<Vec<Quarantined>>,
    /// How many of the threads still run.
    pub(crate) running: watch::Sender<u8>,
    /// A permit for each durable batch in flight; closed when nobody syncs any more.
    pub(crate) durable: Arc<Semaphore>,
    failure: watch::Sender<Option<Arc<StoreError>>>,
}

pub(crate) struct OpenTable {
    pub(crate) live: Arc<dyn Any + Send + Sync>,
    pub(crate) feeds: Arc<dyn EndFeeds>,
}

/// Commit order as readers see it: the number of the last published batch. Held for
/// writing while a batch becomes visible.
#[derive(Debug, Default)]
pub(crate) struct Order(RwLock<Seq>);

// === impl Core ===

impl Core {
    pub(crate) fn new(dir: PathBuf, db: Database, syncer: Syncer) -> Self {
        Self {
            dir,
            db: Mutex::new(Some(db)),
            order: Order::default(),
            syncer,
            tables: Mutex::default(),
            quarantined: Mutex::default(),
            running: watch::Sender::new(0),
            durable: Arc::new(Semaphore::new(sync::DURABLE)),
            failure: watch::Sender::new(None),
        }
    }

    /// The first failure is the one that is kept.
    pub(crate) fn fail(&self, cause: StoreError) {
        self.failure.send_if_modified(|failure| {
            let first = failure.is_none();
            failure.get_or_insert_with(|| Arc::new(cause));
            first
        });
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    pub(crate) fn failures(&self) -> watch::Receiver<Option<Arc<StoreError>>> {
        self.failure.subscribe()
    }

    /// Why nobody serves the queue any more, as far as it is known by now.
    pub(crate) fn why_gone(&self) -> StoreError {
        self.failure.borrow().clone().map_or(StoreError::Closed, StoreError::Failed)
    }

    /// Why an answer will not come. A thread that dies drops its callers a moment before
    /// it can say why; so this waits until it did, or until all is over.
    pub(crate) async fn gone(&self) -> StoreError {
        let mut failures = self.failures();
        tokio::select! {
            biased;
            _ = failures.wait_for(Option::is_some) => {}
            () = self.ended() => {}
        }
        self.why_gone()
    }

    /// Returns when both threads have ended: every answer that will be given was given.
    pub(crate) async fn ended(&self) {
        let mut running = self.running.subscribe();
        // The sender is ours, so this does not fail.
        let _ = running.wait_for(|&running| running == 0).await;
    }

    pub(crate) fn end_feeds(&self) {
        for table in self.tables.lock().values() {
            table.feeds.end_feeds();
        }
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Core({})", self.dir.display())
    }
}

// === impl Order ===

impl Order {
    /// Publishes one batch whole: `publish` runs while no reader is at rest.
    pub(crate) fn next(&self, publish: impl FnOnce(Seq)) -> Seq {
        let mut last = self.0.write();
        last.0 += 1;
        publish(*last);
        *last
    }

    /// Nothing becomes visible while `read` runs. Recursive, so that a view may contain
    /// a subscription.
    pub(crate) fn at_rest<R>(&self, read: impl FnOnce(Seq) -> R) -> R {
        let last = self.0.read_recursive();
        read(*last)
    }
}

/// Runs when its thread ends, whichever way.
pub(crate) struct Ending<'a> {
    pub(crate) core: &'a Core,
    pub(crate) thread: &'static str,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.core.fail(StoreError::Panicked { thread: self.thread });
        }
    }
}
