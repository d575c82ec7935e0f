use std::{fmt, sync::Arc};

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::{
    db::{Row, Write},
    error::StoreError,
    feed::Seq,
    handle::Shared,
    record::{self, Record},
    table::Table,
    writer::Job,
};

/// Far above what the front ends accept (16 MiB), far below what SQLite does (1 GB): one
/// absurd record must not fail the transaction it shares with others.
const VALUE_LIMIT: usize = 64 << 20;

/// Writes to any tables of one store that happen together or not at all.
///
/// Records are encoded as they are added, on the caller's thread; what goes wrong there
/// is told by [`Batch::commit`].
#[must_use = "a batch does nothing until it is committed"]
pub struct Batch {
    shared: Arc<Shared>,
    ops: Vec<Op>,
    durable: bool,
    fault: Option<StoreError>,
}

/// One write: what goes to disk, and what happens in memory once it is there.
pub(crate) struct Op {
    pub(crate) write: Write,
    pub(crate) publish: Box<dyn FnOnce(Seq) + Send>,
}

/// A batch in the writer's queue.
pub(crate) struct Queued {
    pub(crate) ops: Vec<Op>,
    pub(crate) done: Acknowledge,
    /// Held by a durable batch until it is acknowledged.
    pub(crate) durable: Option<OwnedSemaphorePermit>,
}

pub(crate) type Acknowledge = oneshot::Sender<Result<Seq, StoreError>>;

impl Batch {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, ops: Vec::new(), durable: false, fault: None }
    }

    pub fn put<T: Record>(&mut self, table: &Table<T>, record: impl Into<Arc<T>>) -> &mut Self {
        let record = record.into();
        let key = record.key();
        match encode(&*record, &key) {
            Ok(row) => self.push(table, key, Some((row, record))),
            Err(fault) => self.refuse(fault),
        }
    }

    /// A key that is not there is no error.
    pub fn delete<T: Record>(&mut self, table: &Table<T>, key: &T::Key) -> &mut Self {
        self.push(table, key.clone(), None)
    }

    /// Acknowledge after an fdatasync: the batch, and every one before it, then survives
    /// power loss. For records that name what was synced before (images). An empty
    /// durable batch is a barrier.
    pub fn durable(&mut self) -> &mut Self {
        self.durable = true;
        self
    }

    /// Waits until the batch is committed and visible. A full disk fails this batch only;
    /// the next may be tried.
    ///
    /// Cancel safe: a batch is never torn. Dropping the future before the batch is queued
    /// drops the batch, later it abandons the wait and not the write.
    pub async fn commit(self) -> Result<Seq, StoreError> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let shared = self.shared;
        let core = &shared.core;
        let durable = match self.durable {
            true => {
                let Ok(permit) = Arc::clone(&core.durable).acquire_owned().await else {
                    return Err(core.gone().await);
                };
                Some(permit)
            }
            false => None,
        };
        let (done, mut answer) = oneshot::channel();
        let queued = Queued { ops: self.ops, done, durable };
        if shared.queue.send(Job::Commit(queued)).await.is_err() {
            return Err(core.gone().await);
        }
        // A batch that enters the queue at the moment the writer leaves it stays there and
        // is not even dropped. So whoever waits watches the threads, too.
        let answered = tokio::select! {
            biased;
            answered = &mut answer => answered.ok(),
            () = core.ended() => answer.try_recv().ok(),
        };
        match answered {
            Some(answer) => answer,
            None => Err(core.gone().await),
        }
    }

    fn push<T: Record>(
        &mut self,
        table: &Table<T>,
        key: T::Key,
        put: Option<(Row, Arc<T>)>,
    ) -> &mut Self {
        if !Arc::ptr_eq(&self.shared, &table.shared) {
            return self.refuse(StoreError::ForeignTable { table: T::TABLE });
        }
        let (row, record) = put.unzip();
        let statements = Arc::clone(&table.live.statements);
        let write = Write { statements, key: key.to_string(), row };
        let live = Arc::clone(&table.live);
        let publish = Box::new(move |seq| live.publish(seq, key, record));
        self.ops.push(Op { write, publish });
        self
    }

    fn refuse(&mut self, fault: StoreError) -> &mut Self {
        self.fault.get_or_insert(fault);
        self
    }
}

fn encode<T: Record>(record: &T, key: &T::Key) -> Result<Row, StoreError> {
    let value = record::encode(record).map_err(|source| StoreError::Encode {
        table: T::TABLE,
        key: key.to_string(),
        source: Arc::new(source),
    })?;
    if value.len() > VALUE_LIMIT {
        return Err(StoreError::TooLarge {
            table: T::TABLE,
            key: key.to_string(),
            bytes: value.len(),
            limit: VALUE_LIMIT,
        });
    }
    Ok(Row { version: T::VERSION, value })
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let durable = if self.durable { ", durable" } else { "" };
        write!(f, "Batch({} writes{durable})", self.ops.len())
    }
}
