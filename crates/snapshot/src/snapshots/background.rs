//! Two threads: one deletes what was thrown away, one counts what snapshots take.
//!
//! Neither is ever waited for. What is left undone at the end is done after the next start.

use std::{
    collections::HashMap, fs, os::fd::AsFd, path::PathBuf, sync::Arc, thread::JoinHandle,
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::{Condvar, Mutex};

use crate::{
    Key, SnapshotError, Usage,
    sweep::sweep,
    walk::{self, Pace},
};

/// What a snapshot took, and when it was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    pub usage: Usage,
    pub at: Timestamp,
}

#[derive(Debug)]
pub(crate) struct Background {
    signal: Arc<Signal>,
    pub(crate) samples: Arc<Mutex<HashMap<Key, Sample>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Signal {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stop: bool,
    trash: bool,
}

/// Something could not be deleted: a mount in it, an immutable file.
const RETRY: Duration = Duration::from_secs(60);

/// What the counting thread knows of snapshots.
pub(crate) trait Census: Send + 'static {
    /// The trees to count: the writable part of each snapshot.
    fn trees(&self) -> Vec<(Key, PathBuf)>;

    fn is_alive(&self, key: &Key) -> bool;
}

impl Background {
    pub(crate) fn spawn(
        trash: PathBuf,
        period: Duration,
        census: impl Census,
    ) -> Result<Self, SnapshotError> {
        let signal = Arc::new(Signal::default());
        // What the last run left.
        signal.state.lock().trash = true;
        let samples = Arc::new(Mutex::new(HashMap::new()));
        let background = Self { signal, samples, threads: Mutex::default() };
        let signal = Arc::clone(&background.signal);
        let path = trash.clone();
        background.start("snapshot-sweep", trash, move || sweep_loop(&path, &signal))?;
        let signal = Arc::clone(&background.signal);
        let samples = Arc::clone(&background.samples);
        background.start("snapshot-usage", PathBuf::new(), move || {
            count_loop(&signal, &samples, &census, period);
        })?;
        Ok(background)
    }

    fn start(
        &self,
        name: &'static str,
        path: PathBuf,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), SnapshotError> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(run);
        let thread = thread.map_err(SnapshotError::io("start a thread for", path))?;
        self.threads.lock().push(thread);
        Ok(())
    }

    pub(crate) fn trash_has_come(&self) {
        self.signal.state.lock().trash = true;
        self.signal.changed.notify_all();
    }

    /// Does not wait.
    pub(crate) fn stop(&self) {
        self.signal.state.lock().stop = true;
        self.signal.changed.notify_all();
    }

    /// Blocks until both have ended, which takes as long as one entry or one nap.
    pub(crate) fn join(&self) {
        self.stop();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // A panic was reported where it happened; nothing depends on these two.
            let _ = thread.join();
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Signal {
    fn stopped(&self) -> bool {
        self.state.lock().stop
    }

    /// False: it is the end.
    fn sleep(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        let until = std::time::Duration::min(time, Duration::from_secs(3600));
        // Woken for trash, too; the pace of counting does not suffer from that.
        if !state.stop {
            self.changed.wait_while_for(&mut state, |state| !state.stop, until);
        }
        !state.stop
    }

    /// False: it is the end.
    fn wait_for_trash(&self, retry: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        match retry {
            Some(time) => {
                let idle = |state: &mut State| !state.stop && !state.trash;
                self.changed.wait_while_for(&mut state, idle, time);
            }
            None => self.changed.wait_while(&mut state, |state| !state.stop && !state.trash),
        }
        state.trash = false;
        !state.stop
    }
}

fn sweep_loop(trash: &PathBuf, signal: &Signal) {
    let mut retry = None;
    while signal.wait_for_trash(retry) {
        let swept = fs::File::open(trash)
            .map_err(|e| e.to_string())
            .and_then(|dir| sweep(dir.as_fd(), &|| signal.stopped()).map_err(|e| e.to_string()));
        retry = match swept {
            Ok(None) => None,
            Ok(Some((left, error))) => {
                tracing::warn!(left, %error, "what was removed is not deleted yet");
                Some(RETRY)
            }
            Err(error) => {
                tracing::warn!(trash = %trash.display(), error, "what was removed is not deleted");
                Some(RETRY)
            }
        };
    }
}

fn count_loop(
    signal: &Signal,
    samples: &Mutex<HashMap<Key, Sample>>,
    census: &impl Census,
    period: Duration,
) {
    let sleep = |time| signal.sleep(time);
    let mut pace = Pace::new(&sleep);
    loop {
        for (key, path) in census.trees() {
            // It may have been removed since.
            let Ok(dir) = fs::File::open(&path) else { continue };
            match walk::usage(dir.as_fd(), &mut pace) {
                Ok(Some(usage)) => {
                    let mut samples = samples.lock();
                    // A removal takes the record first and the sample then: none is left.
                    if census.is_alive(&key) {
                        samples.insert(key, Sample { usage, at: Timestamp::now() });
                    }
                }
                Ok(None) => {}
                Err(walk::Stopped) => return,
            }
        }
        if !signal.sleep(period) {
            return;
        }
    }
}
