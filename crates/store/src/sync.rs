//! The thread that waits for the disk, so that nobody else does.
//!
//! It syncs the WAL within a second of a write, answers durable batches, moves the WAL
//! into the database, and at the end leaves a database without a WAL behind.

use std::{fs::File, sync::Arc};

use parking_lot::{Condvar, Mutex};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use crate::{
    batch::Acknowledge,
    core::{Core, Ending},
    db::Database,
    error::StoreError,
    feed::Seq,
    pace::{Due, Pace, Timeline},
};

pub(crate) const THREAD: &str = "store-sync";

/// Durable batches in flight; the next one waits before it is queued.
pub(crate) const DURABLE: usize = 64;

/// A committed batch whose caller wants to know that it is on the disk.
pub(crate) struct Waiter {
    pub(crate) done: Acknowledge,
    pub(crate) seq: Seq,
    pub(crate) _permit: OwnedSemaphorePermit,
}

/// The thread's mailbox: not a queue but a summary, so it cannot overflow. The waiters in
/// it hold permits, of which there are [`DURABLE`].
pub(crate) struct Syncer {
    pending: Mutex<Pending>,
    wake: Condvar,
    /// How the last checkpoint went, for `close`.
    farewell: Mutex<Result<(), StoreError>>,
}

struct Pending {
    timeline: Timeline,
    waiters: Vec<Waiter>,
    stopping: bool,
    /// Nobody will answer waiters any more.
    ended: bool,
}

enum Work {
    Sync(Vec<Waiter>),
    Checkpoint,
    Stop(Vec<Waiter>),
}

/// What the thread owns.
pub(crate) struct Disk {
    pub(crate) db: Database,
    /// The WAL's own descriptor, to sync it without asking SQLite. SQLite keeps no locks
    /// on this file, so closing it loses none.
    pub(crate) wal: File,
}

// === impl Syncer ===

impl Syncer {
    pub(crate) fn new(pace: Pace) -> Self {
        let pending = Pending {
            timeline: Timeline::new(pace),
            waiters: Vec::new(),
            stopping: false,
            ended: false,
        };
        Self { pending: Mutex::new(pending), wake: Condvar::new(), farewell: Mutex::new(Ok(())) }
    }

    /// `bytes` is about how much the WAL has grown. Waiters that nobody can answer any more are dropped, which tells them.
    pub(crate) fn wrote(&self, bytes: u64, waiters: Vec<Waiter>) {
        let mut pending = self.pending.lock();
        if pending.ended {
            return;
        }
        let due = pending.timeline.wrote(Instant::now(), bytes);
        let urgent = !waiters.is_empty();
        pending.waiters.extend(waiters);
        if due || urgent {
            self.wake.notify_one();
        }
    }

    /// The disk is full; an empty WAL may help the next write.
    pub(crate) fn make_room(&self) {
        self.pending.lock().timeline.cramped();
        self.wake.notify_one();
    }

    pub(crate) fn stop(&self) {
        self.pending.lock().stopping = true;
        self.wake.notify_one();
    }

    pub(crate) fn farewell(&self) -> Result<(), StoreError> {
        self.farewell.lock().clone()
    }

    fn next(&self) -> Work {
        let mut pending = self.pending.lock();
        loop {
            if pending.stopping {
                return Work::Stop(std::mem::take(&mut pending.waiters));
            }
            let due = match pending.waiters.is_empty() {
                true => pending.timeline.due(Instant::now()),
                false => Due::Sync,
            };
            match due {
                Due::Sync => {
                    pending.timeline.syncing();
                    return Work::Sync(std::mem::take(&mut pending.waiters));
                }
                Due::Checkpoint => return Work::Checkpoint,
                Due::Never => self.wake.wait(&mut pending),
                Due::At(at) => {
                    let rest = at.saturating_duration_since(Instant::now());
                    self.wake.wait_for(&mut pending, rest);
                }
            }
        }
    }

    fn timeline(&self, record: impl FnOnce(&mut Timeline)) {
        record(&mut self.pending.lock().timeline);
    }
}

// === the thread ===

pub(crate) fn spawn(core: &Arc<Core>, disk: Disk) -> std::io::Result<std::thread::JoinHandle<()>> {
    core.running.send_modify(|running| *running += 1);
    let spawned = {
        let core = Arc::clone(core);
        std::thread::Builder::new().name(THREAD.to_owned()).spawn(move || run(&core, disk))
    };
    if spawned.is_err() {
        core.running.send_modify(|running| *running -= 1);
    }
    spawned
}

fn run(core: &Core, mut disk: Disk) {
    let _gone = Gone(core);
    let _ending = Ending { core, thread: THREAD };
    if let Err(error) = serve(core, &mut disk) {
        core.fail(error);
    }
    if !core.has_failed() {
        *core.syncer.farewell.lock() = disk.db.finish();
    }
    // The directory is unlocked before anybody is told.
    drop(disk);
}

struct Gone<'a>(&'a Core);

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        let mut pending = self.0.syncer.pending.lock();
        pending.ended = true;
        pending.waiters.clear();
        drop(pending);
        self.0.durable.close();
        self.0.running.send_modify(|running| *running -= 1);
    }
}

/// Until the writer has ended, or the disk does no longer what it is told.
fn serve(core: &Core, disk: &mut Disk) -> Result<(), StoreError> {
    loop {
        match core.syncer.next() {
            Work::Sync(waiters) => {
                let wal_bytes = disk.sync()?;
                core.syncer.timeline(|timeline| timeline.synced(wal_bytes));
                acknowledge(waiters);
            }
            Work::Checkpoint => {
                let complete = match checkpoint(core, disk) {
                    Ok(complete) => complete,
                    // The WAL holds everything: nothing is lost, only not tidied.
                    Err(error) if error.leaves_state_intact() => {
                        tracing::warn!(error = %base::Chain(&error), "checkpoint put off");
                        false
                    }
                    Err(error) => return Err(error),
                };
                let wal_bytes = disk.wal_bytes()?;
                core.syncer.timeline(|timeline| timeline.checkpointed(wal_bytes, complete));
            }
            Work::Stop(waiters) => {
                if !core.has_failed() {
                    disk.sync()?;
                    acknowledge(waiters);
                }
                return Ok(());
            }
        }
    }
}

fn acknowledge(waiters: Vec<Waiter>) {
    for waiter in waiters {
        // Whoever does not wait any more does not want to know.
        let _ = waiter.done.send(Ok(waiter.seq));
    }
}

/// Moves the WAL into the database and begins a new one; false when a reader of another
/// process was in the way.
///
/// Most of it happens beside the writer. Only the end needs the writer to stand still,
/// for a few pages: SQLite starts the WAL anew in the first write after a complete
/// checkpoint, and syncs its header there. So the checkpoint beside the writer is kept
/// incomplete by a pinned snapshot, and the complete one, with the write that follows it,
/// is made here while the writer's connection is held.
fn checkpoint(core: &Core, disk: &mut Disk) -> Result<bool, StoreError> {
    // The second time moves what was written during the first.
    for _ in 0..2 {
        match move_beside_writer(core, disk) {
            // No room for the marker: then all of it is moved while the writer waits.
            Err(error) if !error.leaves_state_intact() => return Err(error),
            _ => {}
        }
    }
    let wal_bytes = disk.wal_bytes()?;
    let held = core.db.lock();
    let since = Instant::now();
    let complete = disk.db.truncate()?;
    // Whether or not a reader was in the way: the next frame must not be the writer's.
    disk.db.mark()?;
    drop(held);
    tracing::debug!(wal_bytes, complete, held = ?since.elapsed(), "log moved into the database");
    Ok(complete)
}

fn move_beside_writer(core: &Core, disk: &mut Disk) -> Result<(), StoreError> {
    disk.sync()?;
    let pin = disk.db.pin()?;
    if let Some(db) = core.db.lock().as_mut() {
        // One frame that the pinned snapshot does not see.
        db.mark()?;
    }
    disk.db.checkpoint_beside_writer()?;
    drop(pin);
    disk.db.sync_file()
}

impl Disk {
    /// After it, everything written before it survives power loss. Gives the WAL's size.
    ///
    /// A sync that fails is final: the kernel may have dropped the pages it could not
    /// write, and a second try would report success without them.
    fn sync(&self) -> Result<u64, StoreError> {
        self.wal.sync_data().map_err(self.io("sync the log of"))?;
        self.wal_bytes()
    }

    fn wal_bytes(&self) -> Result<u64, StoreError> {
        Ok(self.wal.metadata().map_err(self.io("look at the log of"))?.len())
    }

    fn io(&self, doing: &'static str) -> impl FnOnce(std::io::Error) -> StoreError {
        let path = self.db.path().to_owned();
        // Not `StoreError::io`: a full disk is no excuse for a failed sync.
        move |source| StoreError::Io { doing, path, source: Arc::new(source) }
    }
}
