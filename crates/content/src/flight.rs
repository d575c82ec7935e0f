//! Work that several callers want: done once, for as long as at least one of them waits.
//!
//! ```text
//!  join ─► Interest ┐
//!  join ─► Interest ┼─► one task per key ──► outcome, to all
//!  join ─► Interest ┘        ▲
//!                            └── cancelled when the last Interest is dropped
//! ```
//!
//! **Invariant:** of one key at most one task runs at any time. Whoever joins a flight that
//! was cancelled but has not ended yet gets a new one, which waits for that end first.

use std::{collections::HashMap, fmt, hash::Hash, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// `S` is what everybody aboard can see while the flight lasts, `V` its outcome.
pub(crate) struct Flights<K, S, V> {
    flights: Arc<Mutex<Table<K, S, V>>>,
    tracker: TaskTracker,
    /// Ends all of them.
    stop: CancellationToken,
}

struct Table<K, S, V> {
    flying: HashMap<K, Flight<S, V>>,
    last: u64,
}

struct Flight<S, V> {
    number: u64,
    interested: usize,
    cancel: CancellationToken,
    aboard: S,
    outcome: watch::Receiver<Option<V>>,
}

/// A place in a flight; dropping it gives the place up.
pub(crate) struct Interest<K: Hash + Eq, S, V> {
    flights: Arc<Mutex<Table<K, S, V>>>,
    key: K,
    number: u64,
    outcome: watch::Receiver<Option<V>>,
    pub(crate) aboard: S,
    /// Whether this join started the flight, or found it in the air.
    pub(crate) started: bool,
}

impl<K, S, V> Flights<K, S, V>
where
    K: Hash + Eq + Clone + Send + 'static,
    S: Clone + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    pub(crate) fn new(tracker: TaskTracker, stop: CancellationToken) -> Self {
        let flights = Arc::new(Mutex::new(Table { flying: HashMap::new(), last: 0 }));
        Self { flights, tracker, stop }
    }

    /// Takes a place in the flight of `key`, or starts one. `run` is told by its token when
    /// nobody waits any more; it ends in its own time.
    pub(crate) fn join<R>(
        &self,
        key: K,
        board: impl FnOnce() -> S,
        run: impl FnOnce(S, CancellationToken) -> R,
    ) -> Interest<K, S, V>
    where
        R: Future<Output = V> + Send + 'static,
    {
        let mut table = self.flights.lock();
        if let Some(flight) = table.flying.get_mut(&key)
            && flight.interested > 0
        {
            flight.interested += 1;
            let (number, aboard) = (flight.number, flight.aboard.clone());
            let (flights, outcome) = (Arc::clone(&self.flights), flight.outcome.clone());
            return Interest { flights, key, number, outcome, aboard, started: false };
        }
        table.last += 1;
        let number = table.last;
        let cancel = self.stop.child_token();
        let aboard = board();
        let (tell, outcome) = watch::channel(None);
        let flight = Flight {
            number,
            interested: 1,
            cancel: cancel.clone(),
            aboard: aboard.clone(),
            outcome: outcome.clone(),
        };
        let before = table.flying.insert(key.clone(), flight).map(|flight| flight.outcome);
        drop(table);
        let landing = Landing { flights: Arc::clone(&self.flights), key: key.clone(), number };
        let work = run(aboard.clone(), cancel);
        self.tracker.spawn(async move {
            if let Some(mut before) = before {
                // An error only means that it ended without a word.
                let _ = before.wait_for(Option::is_some).await;
            }
            let value = work.await;
            // First out of the table: who joins from now on gets a new flight.
            drop(landing);
            tell.send_replace(Some(value));
        });
        let flights = Arc::clone(&self.flights);
        Interest { flights, key, number, outcome, aboard, started: true }
    }

    /// Whether a task of `key` runs, wanted or ending.
    pub(crate) fn is_flying(&self, key: &K) -> bool {
        self.flights.lock().flying.contains_key(key)
    }
}

impl<K: Hash + Eq, S, V: Clone> Interest<K, S, V> {
    /// `None` if the task died without an outcome.
    ///
    /// Cancel safe.
    pub(crate) async fn outcome(&mut self) -> Option<V> {
        let outcome = self.outcome.wait_for(Option::is_some).await.ok()?;
        outcome.clone()
    }
}

impl<K: Hash + Eq, S, V> Drop for Interest<K, S, V> {
    fn drop(&mut self) {
        let mut table = self.flights.lock();
        let Some(flight) = table.flying.get_mut(&self.key) else { return };
        if flight.number == self.number {
            flight.interested -= 1;
            if flight.interested == 0 {
                flight.cancel.cancel();
            }
        }
    }
}

/// Leaves the table when the task ends, also by a panic.
struct Landing<K: Hash + Eq, S, V> {
    flights: Arc<Mutex<Table<K, S, V>>>,
    key: K,
    number: u64,
}

impl<K: Hash + Eq, S, V> Drop for Landing<K, S, V> {
    fn drop(&mut self) {
        let mut table = self.flights.lock();
        // After a cancellation it may be the next flight's entry.
        if table.flying.get(&self.key).is_some_and(|flight| flight.number == self.number) {
            table.flying.remove(&self.key);
        }
    }
}

impl<K, S, V> fmt::Debug for Flights<K, S, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flights({} in the air)", self.flights.lock().flying.len())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU32, Ordering},
        time::Duration,
    };

    use tokio::time::sleep;

    use super::*;

    type Numbers = Flights<&'static str, (), u32>;

    fn flights() -> (Numbers, TaskTracker, CancellationToken) {
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        (Flights::new(tracker.clone(), stop.clone()), tracker, stop)
    }

    /// A second of work; 0 if cancelled.
    async fn work(cancel: CancellationToken, value: u32) -> u32 {
        tokio::select! {
            () = cancel.cancelled() => 0,
            () = sleep(Duration::from_secs(1)) => value,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_task_serves_all_who_join() {
        let (flights, _, _) = flights();
        let runs = Arc::new(AtomicU32::new(0));
        let join = || {
            let runs = Arc::clone(&runs);
            flights.join(
                "a",
                || (),
                move |(), cancel| async move {
                    runs.fetch_add(1, Ordering::Relaxed);
                    work(cancel, 7).await
                },
            )
        };
        let mut places = [join(), join(), join()];
        assert_eq!(places.each_ref().map(|place| place.started), [true, false, false]);
        for place in &mut places {
            assert_eq!(place.outcome().await, Some(7));
        }
        assert_eq!(runs.load(Ordering::Relaxed), 1);
        assert!(!flights.is_flying(&"a"));
        assert!(join().started, "a flight that ended is not joined");
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_to_leave_cancels() {
        let (flights, tracker, _) = flights();
        let join = |value| flights.join("a", || (), move |(), cancel| work(cancel, value));
        let (first, mut second) = (join(1), join(2));
        drop(first);
        assert_eq!(second.outcome().await, Some(1), "one of two may leave");

        let (first, second) = (join(3), join(4));
        let mut outcome = first.outcome.clone();
        drop((first, second));
        assert_eq!(outcome.wait_for(Option::is_some).await.map(|v| *v).ok(), Some(Some(0)));
        tracker.close();
        tracker.wait().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_flight_waits_until_a_cancelled_one_has_ended() {
        let (flights, _, _) = flights();
        let running = Arc::new(AtomicU32::new(0));
        let join = || {
            let running = Arc::clone(&running);
            flights.join(
                "a",
                || (),
                move |(), cancel| async move {
                    assert_eq!(running.fetch_add(1, Ordering::Relaxed), 0, "two at once");
                    work(cancel, 1).await;
                    // Winding down takes longer than the next one takes to start.
                    sleep(Duration::from_secs(5)).await;
                    running.fetch_sub(1, Ordering::Relaxed);
                    7
                },
            )
        };
        let first = join();
        sleep(Duration::from_millis(10)).await;
        drop(first);
        let mut second = join();
        assert!(second.started);
        assert_eq!(second.outcome().await, Some(7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_an_outcome_for_those_who_wait() {
        let (flights, _, _) = flights();
        let mut place = flights.join("a", || (), |(), _| async { panic!("as planned") });
        assert_eq!(place.outcome().await, None);
        assert!(!flights.is_flying(&"a"));
    }

    #[tokio::test(start_paused = true)]
    async fn stopping_ends_every_flight() {
        let (flights, tracker, stop) = flights();
        let mut place = flights.join("a", || (), |(), cancel| work(cancel, 7));
        stop.cancel();
        assert_eq!(place.outcome().await, Some(0));
        tracker.close();
        tracker.wait().await;
    }
}
