//! What happened to pods and containers, for those who want to hear of it.
//!
//! ```text
//!  store ──change feeds──> one task: World (what a change means) ──> Events
//!                                                                      │ a queue each
//!                                              nobody is there: kept ──┤
//!                                              for a while             └──> subscribers
//! ```
//!
//! **Invariants**
//! - The engine knows nothing of this: owners write records, and records are all it takes.
//! - Events of a pod and of its containers come in the order of its records, each with the
//!   pod as it was at that moment.
//! - Every queue is bounded. A subscriber that falls behind loses its queue and is told so.

mod feed;
mod world;

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    time::Duration,
};

use base::Id;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

pub(crate) use self::feed::watch;
use crate::{
    metrics::Metrics,
    record::{ContainerRecord, PodRecord},
};

/// Events kept while there is no subscriber.
const BACKLOG: usize = 256;

/// Events that may wait for one subscriber: the backlog, and as many again.
const QUEUE: usize = 2 * BACKLOG;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Created,
    Started,
    Stopped,
    Deleted,
}

/// Something happened to a container or to a pod itself.
#[derive(Clone, Debug)]
pub struct Event {
    /// The container's; or the pod's, if it happened to the pod.
    pub id: Id,
    pub moment: Moment,
    pub at: Timestamp,
    /// As it was then; `None` once it is deleted.
    pub pod: Option<Arc<PodRecord>>,
    /// All of the pod that were visible then.
    pub containers: Vec<Arc<ContainerRecord>>,
}

/// Why there is nothing more to hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventsEnd {
    #[error("more than {QUEUE} events were not read: list what there is and subscribe again")]
    Lagged,
    #[error("the engine is closing")]
    Closing,
}

/// Where events go.
#[derive(Debug)]
pub(crate) struct Events {
    inner: Mutex<Inner>,
    discard_after: Duration,
    metrics: Metrics,
}

#[derive(Debug, Default)]
struct Inner {
    subscribers: Vec<Weak<Queue>>,
    /// The oldest first. Empty while there is a subscriber.
    backlog: VecDeque<(Instant, Arc<Event>)>,
    closing: bool,
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<Waiting>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<Arc<Event>>,
    end: Option<EventsEnd>,
}

/// One who hears of all events from now on, and of those that nobody has heard of before.
#[derive(Debug)]
pub struct Subscription {
    queue: Arc<Queue>,
}

impl Events {
    pub(crate) fn new(discard_after: Duration, metrics: Metrics) -> Self {
        Self { inner: Mutex::default(), discard_after, metrics }
    }

    pub(crate) fn subscribe(&self) -> Subscription {
        let mut inner = self.inner.lock();
        let queue = Arc::new(Queue::default());
        {
            let mut waiting = queue.state.lock();
            waiting.events = inner.backlog.drain(..).map(|(_, event)| event).collect();
            waiting.end = inner.closing.then_some(EventsEnd::Closing);
        }
        inner.subscribers.retain(|known| known.strong_count() > 0);
        inner.subscribers.push(Arc::downgrade(&queue));
        Subscription { queue }
    }

    /// Waits for nobody.
    fn publish(&self, event: Event, now: Instant) {
        let event = Arc::new(event);
        self.metrics.events.inc();
        let mut inner = self.inner.lock();
        let cut_off = &self.metrics.subscribers_cut_off;
        inner.subscribers.retain(|queue| {
            let Some(queue) = queue.upgrade() else { return false };
            let took = queue.push(&event);
            if !took {
                cut_off.inc();
            }
            took
        });
        if inner.subscribers.is_empty() && !inner.closing {
            inner.backlog.push_back((now, event));
            if inner.backlog.len() > BACKLOG {
                inner.backlog.pop_front();
                self.metrics.events_discarded.inc();
            }
        }
    }

    /// Discards what is too old; says when there will be more of it.
    fn expire(&self, now: Instant) -> Option<Instant> {
        let mut inner = self.inner.lock();
        while let Some((since, _)) = inner.backlog.front() {
            let until = *since + self.discard_after;
            if until > now {
                return Some(until);
            }
            inner.backlog.pop_front();
            self.metrics.events_discarded.inc();
        }
        None
    }

    /// Changes were lost: whoever listens must look for himself.
    fn lost(&self) {
        let mut inner = self.inner.lock();
        self.metrics.events_discarded.inc_by(inner.backlog.len() as u64);
        inner.backlog.clear();
        for queue in inner.subscribers.drain(..).filter_map(|queue| queue.upgrade()) {
            self.metrics.subscribers_cut_off.inc();
            queue.end(EventsEnd::Lagged);
        }
    }

    /// The end of all subscriptions, after what is in their queues.
    pub(crate) fn close(&self) {
        let mut inner = self.inner.lock();
        inner.closing = true;
        for queue in inner.subscribers.drain(..).filter_map(|queue| queue.upgrade()) {
            queue.state.lock().end = Some(EventsEnd::Closing);
            queue.changed.notify_one();
        }
    }
}

impl Queue {
    /// False: there was no room, and now there is nothing left of it.
    fn push(&self, event: &Arc<Event>) -> bool {
        let mut waiting = self.state.lock();
        if waiting.events.len() >= QUEUE {
            drop(waiting);
            self.end(EventsEnd::Lagged);
            return false;
        }
        waiting.events.push_back(Arc::clone(event));
        drop(waiting);
        self.changed.notify_one();
        true
    }

    fn end(&self, end: EventsEnd) {
        let mut waiting = self.state.lock();
        waiting.events = VecDeque::new();
        waiting.end = Some(end);
        drop(waiting);
        self.changed.notify_one();
    }
}

impl Subscription {
    /// The next event; after an end, the same end again. Cancel safe.
    pub async fn next(&mut self) -> Result<Arc<Event>, EventsEnd> {
        loop {
            {
                let mut waiting = self.queue.state.lock();
                if let Some(event) = waiting.events.pop_front() {
                    return Ok(event);
                }
                if let Some(end) = waiting.end {
                    return Err(end);
                }
            }
            self.queue.changed.notified().await;
        }
    }
}

#[cfg(test)]
mod tests;
