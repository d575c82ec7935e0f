use std::{collections::BTreeMap, fmt, path::Path, sync::Arc, thread::JoinHandle};

use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::{
    batch::Batch,
    core::{Core, OpenTable},
    db::{
        Row, Verdict,
        open::{self, Opened},
        quarantine::Quarantined,
    },
    error::StoreError,
    feed::Seq,
    pace::Pace,
    record::{self, Decoded, RawRow, Record},
    sync::{self, Syncer},
    table::{Live, Table},
    writer::{self, Job},
};

/// The state of one daemon. Cheap to clone; all clones and tables are one store.
///
/// Dropping the last handle without [`Store::close`] loses nothing: the threads finish
/// what was queued and end by themselves, a moment later.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

/// What the handles share beyond [`Core`]. The threads do not hold it: when the last
/// handle goes, the queue closes and they end.
pub(crate) struct Shared {
    pub(crate) core: Arc<Core>,
    pub(crate) queue: mpsc::Sender<Job>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Store {
    /// Opens the state in `dir`, making both if they are new. Blocks for a few
    /// milliseconds. On an error nothing is left behind that was not there before.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_with(dir, Pace::default())
    }

    pub fn open_with(dir: impl AsRef<Path>, pace: Pace) -> Result<Self, StoreError> {
        let dir = dir.as_ref();
        let Opened { db, disk, quarantined } = open::open(dir)?;
        let core = Arc::new(Core::new(dir.to_owned(), db, Syncer::new(pace)));
        *core.quarantined.lock() = quarantined;
        core.syncer.wrote(0, Vec::new());
        let (queue, jobs) = mpsc::channel(writer::QUEUE);
        let spawn_failed = |error| StoreError::io("start the threads of", dir)(error);
        let syncing = sync::spawn(&core, disk).map_err(spawn_failed)?;
        let writing = match writer::spawn(&core, jobs) {
            Ok(writing) => writing,
            Err(error) => {
                core.syncer.stop();
                return Err(spawn_failed(error));
            }
        };
        let threads = Mutex::new(vec![writing, syncing]);
        Ok(Self { shared: Arc::new(Shared { core, queue, threads }) })
    }

    /// The table of a record type, loaded on first use; migrates what is older, sets
    /// aside what does not decode. Blocks while it reads, so open tables at start.
    pub fn table<T: Record>(&self) -> Result<Table<T>, StoreError> {
        const { record::assert_storable::<T>() };
        let core = &self.shared.core;
        let mut tables = core.tables.lock();
        if let Some(open) = tables.get(T::TABLE) {
            let live = Arc::clone(&open.live).downcast::<Live<T>>();
            let live = live.map_err(|_| StoreError::TableTaken { table: T::TABLE })?;
            return Ok(Table { live, shared: Arc::clone(&self.shared) });
        }
        let live = Arc::new(Live::new(self.load::<T>()?));
        tables.insert(T::TABLE, OpenTable { live: live.clone(), feeds: live.clone() });
        Ok(Table { live, shared: Arc::clone(&self.shared) })
    }

    fn load<T: Record>(&self) -> Result<BTreeMap<T::Key, Arc<T>>, StoreError> {
        let core = &self.shared.core;
        let mut records = BTreeMap::new();
        let mut judge = |raw: RawRow<'_>| match record::decode::<T>(raw) {
            Ok(Decoded { record, migrated }) => {
                let verdict = match migrated.then(|| record::encode(&record)) {
                    None => Verdict::Keep,
                    Some(Ok(value)) => Verdict::Rewrite(Row { version: T::VERSION, value }),
                    Some(Err(error)) => return Verdict::Quarantine(error.to_string()),
                };
                records.insert(record.key(), Arc::new(record));
                verdict
            }
            Err(error) => Verdict::Quarantine(error.to_string()),
        };
        let moved = {
            let mut db = core.db.lock();
            let db = db.as_mut().ok_or_else(|| core.why_gone())?;
            db.load::<T>(&mut judge)?
        };
        core.syncer.wrote(0, Vec::new());
        for bad in &moved {
            tracing::warn!(table = bad.table, key = bad.key, error = bad.error, "record set aside");
        }
        core.quarantined.lock().extend(moved);
        Ok(records)
    }

    pub fn batch(&self) -> Batch {
        Batch::new(Arc::clone(&self.shared))
    }

    /// Several reads at one point: while `read` runs nothing becomes visible, in any
    /// table. Keep it short, commits wait for it.
    pub fn view<R>(&self, read: impl FnOnce(Seq) -> R) -> R {
        self.shared.core.order.at_rest(read)
    }

    /// The records that were set aside, in this run or before, oldest first.
    pub fn quarantined(&self) -> Vec<Quarantined> {
        self.shared.core.quarantined.lock().clone()
    }

    pub fn dir(&self) -> &Path {
        &self.shared.core.dir
    }

    /// Resolves when the store can no longer write, with the reason; never while it can.
    /// The daemon then ends in order.
    ///
    /// Cancel safe.
    pub async fn failed(&self) -> StoreError {
        let mut failures = self.shared.core.failures();
        let failure = failures.wait_for(Option::is_some).await.ok().and_then(|f| f.clone());
        match failure {
            Some(cause) => StoreError::clone(&cause),
            // The sender lives in `core`, which we hold.
            None => std::future::pending().await,
        }
    }

    /// Ends the store in order: commits what is queued, refuses what comes later, empties
    /// the log into the database. Returns when both threads have ended and the directory
    /// is unlocked. Calling it again waits for the same end.
    ///
    /// Cancel safe: dropping the future abandons the wait, the store still closes.
    pub async fn close(&self) -> Result<(), StoreError> {
        let shared = &self.shared;
        // Refused only when the writer has ended already.
        let _ = shared.queue.send(Job::Close).await;
        shared.core.ended().await;
        for thread in std::mem::take(&mut *shared.threads.lock()) {
            // Its last act was to count itself out: this does not wait. A panic was
            // reported by `failed` already.
            let _ = thread.join();
        }
        match shared.core.has_failed() {
            true => Err(shared.core.why_gone()),
            false => shared.core.syncer.farewell(),
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({})", self.dir().display())
    }
}
