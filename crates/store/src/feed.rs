//! Change feeds: what was committed after a known point, in order, or a clear end.
//!
//! **Invariant:** a subscriber never slows a writer down. Its queue is bounded; when it is
//! full the subscriber is cut off, gets what was queued, and then [`FeedEnd::Lagged`].

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::mpsc;

use crate::record::Record;

/// The place of a batch in commit order, counted from 1 since the store was opened.
/// All changes of one batch share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub(crate) u64);

impl Seq {
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One record was put (`after` is there) or deleted (it is not).
pub struct Change<T: Record> {
    pub seq: Seq,
    pub key: T::Key,
    pub before: Option<Arc<T>>,
    pub after: Option<Arc<T>>,
}

/// The table as it was at `seq`; the feed that comes with it starts right after.
pub struct Snapshot<T> {
    pub seq: Seq,
    pub records: Vec<Arc<T>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeedEnd {
    /// Subscribe again and start from the new snapshot.
    #[error("subscriber fell behind and lost changes from {from} on")]
    Lagged { from: Seq },
    #[error("state store is closed")]
    Closed,
}

pub struct Feed<T: Record> {
    changes: mpsc::Receiver<Change<T>>,
    /// 0 until a change did not fit.
    lost_from: Arc<AtomicU64>,
}

/// The writer's end of a [`Feed`].
pub(crate) struct Subscriber<T: Record> {
    changes: mpsc::Sender<Change<T>>,
    lost_from: Arc<AtomicU64>,
}

pub(crate) fn channel<T: Record>(capacity: usize) -> (Subscriber<T>, Feed<T>) {
    let (sender, receiver) = mpsc::channel(capacity.max(1));
    let lost_from = Arc::new(AtomicU64::new(0));
    let feed = Feed { changes: receiver, lost_from: Arc::clone(&lost_from) };
    (Subscriber { changes: sender, lost_from }, feed)
}

// === impl Feed ===

impl<T: Record> Feed<T> {
    /// The next change; after an end, the same end again.
    ///
    /// Cancel safe: a change is taken only when it is returned.
    pub async fn next(&mut self) -> Result<Change<T>, FeedEnd> {
        let change = self.changes.recv().await;
        change.ok_or_else(|| self.end())
    }

    /// The next change if it is there already.
    pub fn try_next(&mut self) -> Result<Option<Change<T>>, FeedEnd> {
        match self.changes.try_recv() {
            Ok(change) => Ok(Some(change)),
            Err(mpsc::error::TryRecvError::Empty) => Ok(None),
            Err(mpsc::error::TryRecvError::Disconnected) => Err(self.end()),
        }
    }

    fn end(&self) -> FeedEnd {
        match self.lost_from.load(Ordering::Acquire) {
            0 => FeedEnd::Closed,
            seq => FeedEnd::Lagged { from: Seq(seq) },
        }
    }
}

// === impl Subscriber ===

impl<T: Record> Subscriber<T> {
    /// False when the subscriber is gone or was cut off: forget it.
    pub(crate) fn send(&self, change: Change<T>) -> bool {
        match self.changes.try_send(change) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Closed(_)) => false,
            Err(mpsc::error::TrySendError::Full(lost)) => {
                self.lost_from.store(lost.seq.0, Ordering::Release);
                false
            }
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.changes.is_closed()
    }
}

// === by hand: derived ones would ask for `T: Clone` and `T: Debug` ===

impl<T: Record> Clone for Change<T> {
    fn clone(&self) -> Self {
        Self {
            seq: self.seq,
            key: self.key.clone(),
            before: self.before.clone(),
            after: self.after.clone(),
        }
    }
}

impl<T: Record> fmt::Debug for Change<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.after.is_some() { "put" } else { "delete" };
        write!(f, "{}: {what} {} {:?}", self.seq, T::TABLE, self.key)
    }
}

impl<T: Record> fmt::Debug for Feed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Feed({}, {} queued)", T::TABLE, self.changes.len())
    }
}

impl<T: Record> fmt::Debug for Snapshot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({} of {} at {})", self.records.len(), T::TABLE, self.seq)
    }
}
