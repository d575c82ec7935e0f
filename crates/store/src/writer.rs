//! The one thread that commits.
//!
//! Everything queued while the last commit ran shares the next transaction. After the
//! commit each batch is published whole, in queue order, and acknowledged; a durable one
//! is handed to `store-sync` for that.
//!
//! **Invariant:** no fsync, fdatasync or checkpoint happens on this thread.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::{
    batch::Queued,
    core::{Core, Ending},
    error::StoreError,
    sync::Waiter,
};

pub(crate) const THREAD: &str = "store-write";

/// Batches that may wait; the next `commit` waits for room.
pub(crate) const QUEUE: usize = 256;

/// Batches in one transaction: enough to share its cost, few enough that the first of
/// them does not wait long.
const GROUP: usize = 64;

pub(crate) enum Job {
    Commit(Queued),
    Close,
}

pub(crate) fn run(core: &Core, mut queue: mpsc::Receiver<Job>) {
    let _stop = Stop(core);
    let _ending = Ending { core, thread: THREAD };
    let mut jobs = Vec::with_capacity(GROUP);
    let mut group = Vec::with_capacity(GROUP);
    let mut open = true;
    while open && queue.blocking_recv_many(&mut jobs, GROUP) > 0 {
        for job in jobs.drain(..) {
            match job {
                Job::Commit(batch) if open => group.push(batch),
                // Behind the close: answered by being dropped.
                Job::Commit(_) => {}
                Job::Close => open = false,
            }
        }
        open &= commit(core, &mut group);
    }
}

/// Lets go of the connection, tells the readers, and leaves the rest to `store-sync`.
struct Stop<'a>(&'a Core);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        drop(self.0.db.lock().take());
        self.0.end_feeds();
        self.0.syncer.stop();
        self.0.running.send_modify(|running| *running -= 1);
    }
}

/// False when the store has failed and no more may be written.
fn commit(core: &Core, group: &mut Vec<Queued>) -> bool {
    if group.is_empty() {
        return true;
    }
    match write(core, group) {
        Ok(()) => publish(core, group.drain(..)),
        // One large batch must not take the small ones with it.
        Err(error) if error.leaves_state_intact() && group.len() > 1 => {
            for batch in group.drain(..) {
                let mut alone = vec![batch];
                if !commit(core, &mut alone) {
                    return false;
                }
            }
        }
        Err(error) => {
            let fatal = !error.leaves_state_intact();
            if fatal {
                core.fail(error.clone());
            } else {
                core.syncer.make_room();
            }
            for batch in group.drain(..) {
                // Whoever does not wait any more does not want to know.
                let _ = batch.done.send(Err(error.clone()));
            }
            return !fatal;
        }
    }
    true
}

fn write(core: &Core, group: &[Queued]) -> Result<(), StoreError> {
    let mut db = core.db.lock();
    if core.has_failed() {
        return Err(core.why_gone());
    }
    let db = db.as_mut().ok_or(StoreError::Closed)?;
    db.commit(group.iter().flat_map(|batch| &batch.ops).map(|op| &op.write))
}

fn publish(core: &Core, group: impl Iterator<Item = Queued>) {
    let mut waiters = Vec::new();
    let mut bytes = 0;
    for Queued { ops, done, durable } in group {
        bytes += ops.iter().map(|op| op.write.wal_bytes()).sum::<u64>();
        let seq = core.order.next(|seq| {
            for op in ops {
                (op.publish)(seq);
            }
        });
        match durable {
            Some(permit) => waiters.push(Waiter { done, seq, _permit: permit }),
            None => drop(done.send(Ok(seq))),
        }
    }
    core.syncer.wrote(bytes, waiters);
}

/// Spawned with the receiver, so that the queue closes when the thread ends.
pub(crate) fn spawn(
    core: &Arc<Core>,
    queue: mpsc::Receiver<Job>,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    core.running.send_modify(|running| *running += 1);
    let spawned = {
        let core = Arc::clone(core);
        std::thread::Builder::new().name(THREAD.to_owned()).spawn(move || run(&core, queue))
    };
    if spawned.is_err() {
        core.running.send_modify(|running| *running -= 1);
    }
    spawned
}
