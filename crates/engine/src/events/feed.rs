//! From the two change feeds of the store to one order, and from there to events.

use std::sync::Arc;

use jiff::Timestamp;
use store::{Change, Feed, FeedEnd};
use tokio::time::Instant;

use super::{Moment, world::World};
use crate::{
    record::{ContainerRecord, PodRecord},
    shared::Shared,
};

/// Changes that may wait for us. The work on each is a few lines, so this is never full
/// unless the machine stands still.
const CAPACITY: usize = 4096;

/// Starts to listen; every change from now on becomes events.
pub(crate) fn watch(shared: &Arc<Shared>) {
    let mut changes = Changes::open(shared);
    let shared = Arc::clone(shared);
    shared.clone().tasks.spawn(async move {
        loop {
            let end = follow(&shared, &mut changes).await;
            match end {
                Some(FeedEnd::Lagged { .. }) => {
                    tracing::warn!("events were lost: subscribers have to look for themselves");
                    shared.events.lost();
                    changes = Changes::open(&shared);
                }
                Some(FeedEnd::Closed) | None => return shared.events.close(),
            }
        }
    });
}

/// `None`: the engine is closing.
async fn follow(shared: &Shared, changes: &mut Changes) -> Option<FeedEnd> {
    let events = &shared.events;
    loop {
        let expiry = events.expire(Instant::now());
        let expired = async {
            match expiry {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return None,
            change = changes.next() => match change {
                Ok(change) => {
                    for event in changes.world.on(change) {
                        // Nobody will ask what it uses any more.
                        if matches!(event.moment, Moment::Stopped | Moment::Deleted) {
                            shared.groups.forget(event.id);
                        }
                        events.publish(event, Instant::now());
                    }
                }
                Err(end) => return Some(end),
            },
            () = expired => {}
        }
    }
}

/// Both feeds as one, in commit order.
struct Changes {
    world: World,
    pods: Ahead<PodRecord>,
    containers: Ahead<ContainerRecord>,
}

/// A feed and the change that was taken out of it to be looked at.
struct Ahead<T: store::Record> {
    feed: Feed<T>,
    head: Option<Change<T>>,
}

pub(super) enum Either {
    Pod(Change<PodRecord>),
    Container(Change<ContainerRecord>),
}

impl Changes {
    fn open(shared: &Shared) -> Self {
        let (pods, pod_feed) = shared.pods.subscribe(CAPACITY);
        let (containers, container_feed) = shared.containers.subscribe(CAPACITY);
        Self {
            world: World::new(&pods.records, &containers.records),
            pods: Ahead { feed: pod_feed, head: None },
            containers: Ahead { feed: container_feed, head: None },
        }
    }

    /// Cancel safe.
    async fn next(&mut self) -> Result<Either, FeedEnd> {
        loop {
            self.containers.look()?;
            self.pods.look()?;
            // What was committed before that change of a pod is there by now.
            self.containers.look()?;
            let seq = |head: Option<store::Seq>| head.map_or(u64::MAX, store::Seq::get);
            let pod = seq(self.pods.head.as_ref().map(|change| change.seq));
            let container = seq(self.containers.head.as_ref().map(|change| change.seq));
            // Containers go with their pod in one batch, and before it.
            let first = if container <= pod {
                self.containers.head.take().map(Either::Container)
            } else {
                self.pods.head.take().map(Either::Pod)
            };
            if let Some(first) = first {
                return Ok(first);
            }
            tokio::select! {
                change = self.containers.feed.next() => self.containers.head = Some(change?),
                change = self.pods.feed.next() => self.pods.head = Some(change?),
            }
        }
    }
}

impl<T: store::Record> Ahead<T> {
    fn look(&mut self) -> Result<(), FeedEnd> {
        if self.head.is_none() {
            self.head = self.feed.try_next()?;
        }
        Ok(())
    }
}

impl World {
    fn on(&mut self, change: Either) -> Vec<super::Event> {
        let now = Timestamp::now();
        match change {
            Either::Pod(change) => self.pod(change.key, change.after, now),
            Either::Container(change) => {
                let record = change.after.as_ref().or(change.before.as_ref());
                let Some(pod) = record.map(|record| record.pod) else { return Vec::new() };
                self.container(change.key, pod, change.after, now)
            }
        }
    }
}
