use std::{
    borrow::Borrow,
    collections::BTreeMap,
    fmt,
    ops::{Bound, RangeBounds},
    sync::Arc,
};

use parking_lot::RwLock;

use crate::{
    batch::Batch,
    db::Statements,
    error::StoreError,
    feed::{self, Change, Feed, Seq, Snapshot, Subscriber},
    handle::Shared,
    record::Record,
};

/// All records of one kind. Cheap to clone; every clone sees the same records.
///
/// Reads come from memory. Several reads at one point in time: [`crate::Store::view`].
pub struct Table<T: Record> {
    pub(crate) live: Arc<Live<T>>,
    pub(crate) shared: Arc<Shared>,
}

/// The memory of one table, written by the writer thread only.
pub(crate) struct Live<T: Record> {
    rows: RwLock<Rows<T>>,
    pub(crate) statements: Arc<Statements>,
}

struct Rows<T: Record> {
    records: BTreeMap<T::Key, Arc<T>>,
    /// `None` once the store has ended: whoever subscribes then is told at once.
    subscribers: Option<Vec<Subscriber<T>>>,
}

// === impl Table ===

impl<T: Record> Table<T> {
    pub fn get<Q>(&self, key: &Q) -> Option<Arc<T>>
    where
        T::Key: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.live.rows.read().records.get(key).cloned()
    }

    /// All records, in key order.
    pub fn list(&self) -> Vec<Arc<T>> {
        self.live.rows.read().records.values().cloned().collect()
    }

    pub fn range<Q>(&self, range: impl RangeBounds<Q>) -> Vec<Arc<T>>
    where
        T::Key: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        let rows = self.live.rows.read();
        rows.records.range::<Q, _>(range).map(|(_, record)| Arc::clone(record)).collect()
    }

    /// The records whose key begins with `prefix`, in key order.
    pub fn prefix(&self, prefix: &str) -> Vec<Arc<T>>
    where
        T::Key: Borrow<str>,
    {
        let rows = self.live.rows.read();
        rows.records
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(|(key, _)| <T::Key as Borrow<str>>::borrow(key).starts_with(prefix))
            .map(|(_, record)| Arc::clone(record))
            .collect()
    }

    pub fn len(&self) -> usize {
        self.live.rows.read().records.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A batch of one put. Cancel safe like [`Batch::commit`].
    pub async fn put(&self, record: impl Into<Arc<T>>) -> Result<Seq, StoreError> {
        let mut batch = Batch::new(Arc::clone(&self.shared));
        batch.put(self, record);
        batch.commit().await
    }

    /// A batch of one delete; a key that is not there is no error. Cancel safe like
    /// [`Batch::commit`].
    pub async fn delete(&self, key: &T::Key) -> Result<Seq, StoreError> {
        let mut batch = Batch::new(Arc::clone(&self.shared));
        batch.delete(self, key);
        batch.commit().await
    }

    /// The records of now and every change after, without a gap and without a repeat.
    ///
    /// `capacity` is how many changes may wait for the subscriber; one more, and it is
    /// cut off with [`feed::FeedEnd::Lagged`].
    pub fn subscribe(&self, capacity: usize) -> (Snapshot<T>, Feed<T>) {
        self.shared.core.order.at_rest(|seq| {
            let (subscriber, feed) = feed::channel(capacity);
            let mut rows = self.live.rows.write();
            let records = rows.records.values().cloned().collect();
            if let Some(subscribers) = &mut rows.subscribers {
                // A table that never changes would collect the dead ones for ever.
                subscribers.retain(|subscriber| !subscriber.is_gone());
                subscribers.push(subscriber);
            }
            (Snapshot { seq, records }, feed)
        })
    }
}

impl<T: Record> Clone for Table<T> {
    fn clone(&self) -> Self {
        Self { live: Arc::clone(&self.live), shared: Arc::clone(&self.shared) }
    }
}

impl<T: Record> fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Table({}, {} records)", T::TABLE, self.len())
    }
}

// === impl Live ===

impl<T: Record> Live<T> {
    pub(crate) fn new(records: BTreeMap<T::Key, Arc<T>>) -> Self {
        Self {
            rows: RwLock::new(Rows { records, subscribers: Some(Vec::new()) }),
            statements: Arc::new(Statements::new(T::TABLE)),
        }
    }

    /// Makes a committed change visible and tells the subscribers.
    pub(crate) fn publish(&self, seq: Seq, key: T::Key, after: Option<Arc<T>>) {
        let mut rows = self.rows.write();
        let before = match &after {
            Some(record) => rows.records.insert(key.clone(), Arc::clone(record)),
            None => rows.records.remove(&key),
        };
        if before.is_none() && after.is_none() {
            return;
        }
        let change = Change { seq, key, before, after };
        if let Some(subscribers) = &mut rows.subscribers {
            subscribers.retain(|subscriber| subscriber.send(change.clone()));
        }
    }
}

/// What the store does with a table whose record type it does not know.
pub(crate) trait EndFeeds: Send + Sync {
    fn end_feeds(&self);
}

impl<T: Record> EndFeeds for Live<T> {
    fn end_feeds(&self) {
        self.rows.write().subscribers = None;
    }
}
