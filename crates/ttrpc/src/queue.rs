//! Queues bounded by the bytes in them, and what bounds them.
//!
//! Messages are between ten bytes and four megabytes, so a bound on their number is
//! either too tight for small ones or no bound at all for large ones. A full queue makes
//! the sender wait; a message larger than the whole budget waits for an empty queue.
//!
//! **Invariant:** room is taken before an item is queued and given back when it is taken
//! out; between the two calls of a sender there is no await, so a dropped future leaks none.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use tokio::sync::{Semaphore, SemaphorePermit, TryAcquireError, mpsc};

/// What an item costs besides its bytes, so that empty ones are bounded too.
const ITEM_COST: usize = 64;

#[derive(Debug)]
pub(crate) struct Sender<T> {
    room: Arc<Room>,
    items: mpsc::UnboundedSender<(u32, T)>,
}

#[derive(Debug)]
pub(crate) struct Receiver<T> {
    room: Arc<Room>,
    items: mpsc::UnboundedReceiver<(u32, T)>,
}

/// Room for one item of a queue.
#[derive(Debug)]
pub(crate) struct Permit<'a, T> {
    queue: &'a Sender<T>,
    room: Held<'a>,
}

/// So many bytes, and no more at a time.
#[derive(Debug)]
pub(crate) struct Room {
    free: Semaphore,
    budget: u32,
}

/// Room that was taken; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    permit: SemaphorePermit<'a>,
    cost: u32,
}

/// Nobody takes anything out any longer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Closed;

impl Room {
    pub(crate) fn new(budget: u32) -> Self {
        Self { free: Semaphore::new(budget as usize), budget }
    }

    /// Waits for room, in the order of asking.
    ///
    /// Cancel safe.
    pub(crate) async fn reserve(&self, bytes: usize) -> Result<Held<'_>, Closed> {
        let cost = self.cost(bytes);
        let permit = self.free.acquire_many(cost).await.map_err(|_| Closed)?;
        Ok(Held { permit, cost })
    }

    /// `Ok(None)` where there is none.
    pub(crate) fn try_reserve(&self, bytes: usize) -> Result<Option<Held<'_>>, Closed> {
        let cost = self.cost(bytes);
        match self.free.try_acquire_many(cost) {
            Ok(permit) => Ok(Some(Held { permit, cost })),
            Err(TryAcquireError::NoPermits) => Ok(None),
            Err(TryAcquireError::Closed) => Err(Closed),
        }
    }

    /// Gives back what [`Held::keep`] kept.
    pub(crate) fn release(&self, cost: u32) {
        self.free.add_permits(cost as usize);
    }

    pub(crate) fn close(&self) {
        self.free.close();
    }

    fn cost(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.saturating_add(ITEM_COST)).unwrap_or(u32::MAX).min(self.budget)
    }
}

impl Held<'_> {
    /// Its cost; from here on the room belongs to the item it was taken for.
    pub(crate) fn keep(self) -> u32 {
        self.permit.forget();
        self.cost
    }
}

pub(crate) fn channel<T>(budget: u32) -> (Sender<T>, Receiver<T>) {
    let room = Arc::new(Room::new(budget));
    let (sender, receiver) = mpsc::unbounded_channel();
    (Sender { room: Arc::clone(&room), items: sender }, Receiver { room, items: receiver })
}

impl<T> Sender<T> {
    /// Waits for room, in the order of asking.
    ///
    /// Cancel safe.
    pub(crate) async fn reserve(&self, bytes: usize) -> Result<Permit<'_, T>, Closed> {
        Ok(Permit { queue: self, room: self.room.reserve(bytes).await? })
    }

    /// `Ok(None)` where the queue is full.
    pub(crate) fn try_reserve(&self, bytes: usize) -> Result<Option<Permit<'_, T>>, Closed> {
        let room = self.room.try_reserve(bytes)?;
        Ok(room.map(|room| Permit { queue: self, room }))
    }

    /// Queues without asking for room. For the last item of a stream, of which there is
    /// one, and which must arrive however full the queue is.
    pub(crate) fn send_last(&self, item: T) {
        // A receiver that is gone wants no last word.
        let _ = self.items.send((0, item));
    }
}

impl<T> Permit<'_, T> {
    pub(crate) fn send(self, item: T) -> Result<(), Closed> {
        let Self { queue, room } = self;
        // A queue without a receiver has no use for its room either.
        queue.items.send((room.keep(), item)).map_err(|_| Closed)
    }
}

impl<T> Receiver<T> {
    /// `None` once all senders are gone and the queue is empty.
    pub(crate) fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.items.poll_recv(cx).map(|next| next.map(|(cost, item)| self.taken(cost, item)))
    }

    fn taken(&self, cost: u32, item: T) -> T {
        self.room.release(cost);
        item
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { room: Arc::clone(&self.room), items: self.items.clone() }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // Those who wait for room must not wait for ever.
        self.room.close();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// Room for four items of 36 bytes.
    const FOUR: u32 = 4 * (64 + 36);

    impl<T> Receiver<T> {
        async fn recv(&mut self) -> Option<T> {
            std::future::poll_fn(|cx| self.poll_recv(cx)).await
        }
    }

    #[tokio::test]
    async fn a_full_queue_makes_senders_wait_until_an_item_is_taken() {
        let (tx, mut rx) = channel(FOUR);
        for i in 0..4 {
            tx.reserve(36).await.unwrap().send(i).unwrap();
        }
        assert!(tx.try_reserve(36).unwrap().is_none());
        let mut waiting = Box::pin(tx.reserve(36));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert_eq!(rx.recv().await, Some(0));
        waiting.await.unwrap().send(4).unwrap();
        assert_eq!(rx.recv().await, Some(1));
    }

    #[tokio::test]
    async fn a_giant_waits_for_an_empty_queue_and_passes() {
        let (tx, mut rx) = channel(FOUR);
        tx.reserve(0).await.unwrap().send("small").unwrap();
        let mut giant = Box::pin(tx.reserve(100_000));
        assert!(giant.as_mut().now_or_never().is_none());
        assert_eq!(rx.recv().await, Some("small"));
        giant.await.unwrap().send("giant").unwrap();
        assert!(tx.try_reserve(0).unwrap().is_none());
        assert_eq!(rx.recv().await, Some("giant"));
    }

    #[tokio::test]
    async fn a_permit_not_used_and_a_wait_given_up_cost_nothing() {
        let (tx, mut rx) = channel(FOUR);
        for _ in 0..100 {
            drop(tx.reserve(36).await.unwrap());
        }
        tx.reserve(FOUR as usize).await.unwrap().send(0).unwrap();
        for _ in 0..100 {
            assert!(tx.reserve(1).now_or_never().is_none());
        }
        assert_eq!(rx.recv().await, Some(0));
        assert_eq!(tx.room.free.available_permits(), FOUR as usize);
    }

    #[tokio::test]
    async fn a_gone_receiver_releases_those_who_wait() {
        let (tx, rx) = channel(FOUR);
        tx.reserve(1000).await.unwrap().send(0).unwrap();
        let mut waiting = Box::pin(tx.reserve(36));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(rx);
        assert_eq!(waiting.await.err(), Some(Closed));
    }

    #[tokio::test]
    async fn the_last_item_passes_a_full_queue_and_the_end_follows() {
        let (tx, mut rx) = channel(FOUR);
        tx.reserve(1000).await.unwrap().send(1).unwrap();
        tx.send_last(2);
        drop(tx);
        assert_eq!((rx.recv().await, rx.recv().await, rx.recv().await), (Some(1), Some(2), None));
    }
}
